//! A NIC for unit tests: the other side of window and host area, moved by hand.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use qnic_abi::command::{Descriptor, COMMAND_BYTES, DESCRIPTOR_BYTES};
use qnic_abi::context::{DoorbellState, MessageContext, CONTEXT_BYTES, POOL_PAGES, REGION_BYTES};
use qnic_abi::header::Counts;
use qnic_abi::host_area::{
    completion_offset, notification_offset, reads_done_offset, receive_doorbell_offset,
    send_doorbell_offset, signal_offset, writes_done_offset, CompletionEntry, COMPLETIONS_WAITING,
    COMPLETION_ENTRIES, COMPLETION_TAIL, COUNTERS, DOORBELL_STATE, ERRORS, ERROR_RECORDS,
    ERROR_RING, GONE, HEAD, NOTIFICATIONS_LOST, NOTIFICATION_TAIL, POOL, QUEUE_STATUS,
    READ_ONLY_PAGES, SEND_DOORBELLS, SIGNAL_COUNTERS, WAKE_GENERATION, WRITABLE_PAGES,
};
use qnic_abi::rdma::WriteCommand;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{
    armed_bit, command_offset, receive_context_offset, send_context_offset, Changes, AWAKE,
    COMPLETION_HEAD, HEAD_STEP, NOTHING_WAITS, POLLED, SIGNAL_WAKE_REQUEST, WAKE_REQUEST,
    WINDOW_BYTES,
};
use qnic_abi::{uapi, SharedMemory, Status, PAGE_SIZE};
use qnic_shared::region::SharedRegion;
use zerocopy::{FromBytes, IntoBytes};

use crate::core::contexts::{ContextName, Direction};
use crate::core::lock;
use crate::error::Operation;
use crate::nic::Nic;
use crate::provider::{CallError, Memory, Process, Provider, Registration};

/// Inline limit of the fake NIC, in bytes.
pub(crate) const INLINE_MAX: usize = 96;

/// Length of the segment that every import finds.
pub(crate) const REMOTE_LENGTH: u64 = 1 << 20;

/// Address of the segment that every import finds.
pub(crate) const REMOTE_ADDRESS: u64 = 0x7000_0000;

#[derive(Debug, Default)]
struct State {
    read: u64,
    errors: u64,
    done: BTreeMap<u8, [u64; 2]>,
    /// The requests of each [`Wake`] that were acted upon.
    acted: [u64; 2],
    entries: u64,
    completions: u64,
    doorbells: u64,
    next_segment: u16,
    exported: Vec<u16>,
    gone: bool,
}

/// What a process asks to be woken for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wake {
    Anything,
    Signal,
}

/// The NIC and the driver of one process.
#[derive(Debug)]
pub(crate) struct FakeNic {
    registration: uapi::Register,
    window: SharedRegion,
    host_area: SharedRegion,
    pool: SharedRegion,
    state: Mutex<State>,
    woken: Condvar,
}

/// A command as the NIC read it.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) number: u64,
    pub(crate) descriptor: Descriptor,
    pub(crate) payload: Vec<u8>,
}

impl Fetched {
    /// The command as a write, or as a read, which has the same fields but for a few.
    pub(crate) fn write(&self) -> WriteCommand {
        self.descriptor.read()
    }

    pub(crate) fn operation(&self) -> Operation {
        match self.descriptor.header.opcode {
            1 => Operation::Write,
            _ => Operation::Read,
        }
    }
}

impl FakeNic {
    /// A NIC and the way to open it.
    pub(crate) fn new() -> (Arc<Self>, Nic) {
        FakeNic::with_counts(Counts::MOST)
    }

    /// The same, with so much for each process.
    pub(crate) fn with_counts(counts: Counts) -> (Arc<Self>, Nic) {
        let fake = Arc::new(FakeNic {
            registration: uapi::Register {
                node: 3.into(),
                inline_max: (INLINE_MAX as u32).into(),
                ..Default::default()
            }
            .with_counts(counts),
            window: SharedRegion::anonymous(WINDOW_BYTES).unwrap(),
            host_area: SharedRegion::anonymous(READ_ONLY_PAGES * PAGE_SIZE).unwrap(),
            pool: SharedRegion::anonymous(WRITABLE_PAGES * PAGE_SIZE).unwrap(),
            state: Mutex::default(),
            woken: Condvar::new(),
        });
        let nic = Nic::with_provider(Arc::new(Handle(fake.clone())), "fake");
        (fake, nic)
    }

    /// Reads the next command, if there is one.
    pub(crate) fn fetch(&self) -> Option<Fetched> {
        let mut state = lock(&self.state);
        let slot = command_offset(self.registration.counts().place(state.read));
        if self.window.load_u64(slot, Ordering::Acquire) == 0 {
            return None;
        }
        let mut bytes = [0; COMMAND_BYTES];
        self.window.read_bytes(slot, &mut bytes);
        self.window.store_u64(slot, 0, Ordering::Release);
        let number = state.read;
        state.read += 1;
        if state.read % HEAD_STEP == 0 {
            self.tell(HEAD, state.read);
        }
        let (descriptor, payload) = bytes.split_at(DESCRIPTOR_BYTES);
        Some(Fetched {
            number,
            descriptor: Descriptor::read_from_bytes(descriptor).unwrap(),
            payload: payload.to_vec(),
        })
    }

    /// Ends a command; it counts from the next [`FakeNic::publish`].
    pub(crate) fn finish(&self, command: &Fetched, status: Status) {
        let mut state = lock(&self.state);
        if status != Status::Ok {
            let index = (state.errors % ERROR_RECORDS as u64) as usize;
            let record = ERROR_RING + index * 16;
            self.tell(record, command.number);
            let lane = u64::from(command.descriptor.header.lane);
            self.tell(record + 8, u64::from(status.code()) | lane << 32);
            state.errors += 1;
        }
        let done = state.done.entry(command.descriptor.header.lane);
        done.or_default()[command.operation() as usize] += 1;
    }

    /// Publishes errors and counters, and wakes the process if it asked.
    pub(crate) fn publish(&self) {
        {
            let state = lock(&self.state);
            self.tell(ERRORS, state.errors);
            for (lane, [writes, reads]) in &state.done {
                self.tell(writes_done_offset(*lane), *writes);
                self.tell(reads_done_offset(*lane), *reads);
            }
        }
        self.check_wake(Wake::Anything, Changes::ANYTHING);
    }

    /// Fetches and ends everything there is, all with the same status.
    pub(crate) fn serve(&self, status: Status) -> usize {
        let mut served = 0;
        while let Some(command) = self.fetch() {
            self.finish(&command, status);
            served += 1;
        }
        self.publish();
        served
    }

    pub(crate) fn signal(&self, id: u32) {
        let (word, bit) = armed_bit(id);
        let mut queued = true;
        if id < SIGNAL_COUNTERS {
            let count = self
                .host_area
                .load_u64(signal_offset(id), Ordering::Relaxed);
            self.tell(signal_offset(id), count + 1);
            self.window.fence();
            queued = self.window.load_u64(word, Ordering::Relaxed) & bit != 0;
        }
        if queued {
            // It never coalesces: the process must cope with entries too many.
            let mut state = lock(&self.state);
            self.tell(notification_offset(state.entries), id.into());
            state.entries += 1;
            self.tell(NOTIFICATION_TAIL, state.entries);
        }
        self.check_wake(Wake::Anything, Changes::ANYTHING);
        self.check_wake(Wake::Signal, Changes::ANYTHING);
    }

    /// Puts an entry into the completion queue, and wakes the process if it asked. Returns false
    /// if there is no room: the process is told that one waits.
    pub(crate) fn complete(&self, entry: &CompletionEntry) -> bool {
        let mut state = lock(&self.state);
        let head = self.window.load_u64(COMPLETION_HEAD, Ordering::Acquire);
        if state.completions - head == COMPLETION_ENTRIES {
            self.tell(COMPLETIONS_WAITING, 1);
            return false;
        }
        self.tell(COMPLETIONS_WAITING, 0);
        let offset = completion_offset(state.completions);
        self.host_area.write_bytes(offset, entry.as_bytes());
        state.completions += 1;
        self.tell(COMPLETION_TAIL, state.completions);
        drop(state);
        self.check_wake(Wake::Anything, Changes::ANYTHING);
        true
    }

    /// A context and its region, as they stand in the window.
    pub(crate) fn context(&self, context: ContextName) -> (MessageContext, [u8; REGION_BYTES]) {
        let offset = match context.direction {
            Direction::Send => send_context_offset(context.number),
            Direction::Receive => receive_context_offset(context.number),
        };
        let mut bytes = [0; CONTEXT_BYTES];
        self.window.read_bytes(offset, &mut bytes);
        let (context, region) = bytes.split_at(size_of::<MessageContext>());
        let context = MessageContext::read_from_bytes(context).unwrap();
        (context, region.try_into().unwrap())
    }

    /// The state in the doorbell of a context.
    pub(crate) fn doorbell(&self, context: ContextName) -> DoorbellState {
        let offset = Self::doorbell_offset(context) + DOORBELL_STATE;
        let word = self.pool.load_u64(offset, Ordering::Acquire);
        match word >> 32 {
            0 => DoorbellState::Free,
            1 => DoorbellState::Used,
            2 => DoorbellState::Done,
            other => panic!("{other}"),
        }
    }

    fn doorbell_offset(context: ContextName) -> usize {
        let offset = match context.direction {
            Direction::Send => send_doorbell_offset(context.number),
            Direction::Receive => receive_doorbell_offset(context.number),
        };
        offset - SEND_DOORBELLS
    }

    /// Stores the doorbell of a context, its state last, and wakes the process if it asked.
    pub(crate) fn ring_context(
        &self,
        context: ContextName,
        state: DoorbellState,
        entry: CompletionEntry,
    ) {
        let entry = CompletionEntry {
            handle: (context.number as u64).into(),
            state: (state as u32).into(),
            ..entry
        };
        let offset = Self::doorbell_offset(context);
        let words: [u64; size_of::<CompletionEntry>() / 8] = zerocopy::transmute!(entry);
        let last = DOORBELL_STATE / 8;
        for index in (0..words.len())
            .filter(|index| *index != last)
            .chain([last])
        {
            let word = u64::from_le(words[index]);
            self.pool
                .store_u64(offset + index * 8, word, Ordering::Release);
        }
        self.check_wake(Wake::Anything, Changes::ANYTHING);
    }

    /// The pages of the buffer pool.
    pub(crate) fn pool(&self) -> SharedRegion {
        self.pool
            .part(POOL - SEND_DOORBELLS, POOL_PAGES * PAGE_SIZE)
    }

    /// Says that the NIC has dropped so many one-shot notifications.
    pub(crate) fn lose(&self, notifications: u64) {
        self.tell(NOTIFICATIONS_LOST, notifications);
    }

    /// Stops the command queue.
    pub(crate) fn fail_queue(&self, status: Status) {
        self.tell(QUEUE_STATUS, status.code().into());
        self.check_wake(Wake::Anything, Changes::ANYTHING);
    }

    /// Stores a word of the host area.
    fn tell(&self, offset: usize, value: u64) {
        self.host_area.store_u64(offset, value, Ordering::Release);
    }

    /// Says whether the NIC polls.
    pub(crate) fn set_awake(&self, awake: bool) {
        self.set_awake_to(if awake { POLLED } else { 0 });
    }

    /// Stores that it does not poll, and that no message waits.
    pub(crate) fn sleep_without_messages(&self) {
        self.set_awake_to(NOTHING_WAITS);
    }

    fn set_awake_to(&self, awake: u64) {
        self.window.store_u64(AWAKE, awake, Ordering::Release);
        self.window.fence();
        if awake != POLLED {
            self.tell(HEAD, lock(&self.state).read);
        }
    }

    pub(crate) fn doorbells(&self) -> u64 {
        lock(&self.state).doorbells
    }

    pub(crate) fn exported(&self) -> Vec<u16> {
        lock(&self.state).exported.clone()
    }

    /// Takes the device away, as the driver says it.
    pub(crate) fn vanish(&self) {
        lock(&self.state).gone = true;
        self.tell(WAKE_GENERATION, GONE);
        self.woken.notify_all();
    }

    /// Blocks until a process has asked to be woken.
    pub(crate) fn await_request(&self, wake: Wake) {
        while self.request(wake) == lock(&self.state).acted[wake as usize] {
            std::thread::yield_now();
        }
    }

    fn request(&self, wake: Wake) -> u64 {
        let word = [WAKE_REQUEST, SIGNAL_WAKE_REQUEST][wake as usize];
        self.window.load_u64(word, Ordering::Relaxed)
    }

    fn check_wake(&self, wake: Wake, changes: Changes) {
        self.window.fence();
        let wanted = self.request(wake);
        let mut state = lock(&self.state);
        if wanted != state.acted[wake as usize] && changes.answer(wanted) {
            state.acted[wake as usize] = wanted;
            self.wake();
        }
    }

    /// Wakes the process if it has asked for its head; the caller has fetched commands.
    pub(crate) fn wake_for_head(&self) {
        self.check_wake(Wake::Anything, Changes::HEAD);
    }

    /// The lock of the state is held.
    fn wake(&self) {
        self.tell(WAKE_GENERATION, self.generation().saturating_add(1));
        self.woken.notify_all();
    }

    /// How often it has been woken.
    pub(crate) fn generation(&self) -> u64 {
        self.host_area.load_u64(WAKE_GENERATION, Ordering::Acquire)
    }
}

/// The way to the NIC, and its one process.
#[derive(Debug)]
struct Handle(Arc<FakeNic>);

impl Provider for Handle {
    fn register(&self, port: u16, flags: u32) -> Result<Registration, CallError> {
        if flags != 0 {
            return Ok(Registration::Refused(Status::AccessDenied));
        }
        if port == 13 {
            return Ok(Registration::Refused(Status::PortInUse));
        }
        Ok(Registration::Done(Box::new(Handle(self.0.clone()))))
    }

    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError> {
        Ok(Arc::new(SharedRegion::anonymous(length)?))
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        Ok(uapi::Info::default())
    }

    fn counters(&self, _: &mut uapi::Counters) -> Result<(), CallError> {
        Ok(())
    }

    fn spin_budget(&self, _spinners: usize) -> Duration {
        Duration::from_micros(50)
    }
}

impl Process for Handle {
    fn registration(&self) -> &uapi::Register {
        &self.0.registration
    }

    fn window(&self) -> &dyn Memory {
        &self.0.window
    }

    fn host_area(&self) -> &dyn Memory {
        &self.0.host_area
    }

    fn pool(&self) -> &dyn Memory {
        &self.0.pool
    }

    fn ring_doorbell(&self) {
        lock(&self.0.state).doorbells += 1;
    }

    fn export(&self, call: &mut uapi::Export) -> Result<(), CallError> {
        let mut state = lock(&self.0.state);
        call.segment = state.next_segment.into();
        call.key = (1000 + u64::from(state.next_segment)).into();
        let segment = state.next_segment;
        state.exported.push(segment);
        state.next_segment += 1;
        Ok(())
    }

    fn unexport(&self, call: &mut uapi::Unexport) -> Result<(), CallError> {
        let mut state = lock(&self.0.state);
        let others = |segment: &u16| *segment != call.segment.get();
        state.exported.retain(others);
        Ok(())
    }

    fn import(&self, call: &mut uapi::Import) -> Result<(), CallError> {
        if call.name.get() == 404 {
            call.status = Status::NameNotFound.code().into();
            return Ok(());
        }
        call.access = 3.into();
        call.address = REMOTE_ADDRESS.into();
        call.length = REMOTE_LENGTH.into();
        call.key = 77.into();
        call.segment = 5.into();
        Ok(())
    }

    fn wait(&self, call: &mut uapi::Wait) -> Result<(), CallError> {
        let timeout = u64::try_from(call.timeout_ns.get()).unwrap_or(u64::MAX);
        let timeout = Duration::from_nanos(timeout.min(10_000_000_000));
        let (nic, before) = (&self.0, call.generation.get());
        let asleep = |state: &mut State| !state.gone && nic.generation() == before;
        let woken = nic
            .woken
            .wait_timeout_while(lock(&nic.state), timeout, asleep);
        let (state, result) = woken.unwrap();
        if state.gone {
            return Err(CallError::Gone);
        }
        if result.timed_out() {
            return Err(CallError::TimedOut);
        }
        call.generation = nic.generation().into();
        Ok(())
    }

    fn wake(&self, _call: &mut uapi::Wake) -> Result<(), CallError> {
        let _state = lock(&self.0.state);
        self.0.wake();
        Ok(())
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Err(CallError::System(std::io::ErrorKind::Unsupported.into()))
    }

    fn path(&self, _call: &mut uapi::Path) -> Result<(), CallError> {
        Err(CallError::System(std::io::ErrorKind::Unsupported.into()))
    }

    fn reset_queue(&self, _call: &mut uapi::ResetQueue) -> Result<(), CallError> {
        let mut state = lock(&self.0.state);
        for offset in (PAGE_SIZE..WINDOW_BYTES).step_by(8) {
            self.0.window.store_u64(offset, 0, Ordering::Relaxed);
        }
        let counters = (COUNTERS..COUNTERS + PAGE_SIZE).step_by(8);
        for offset in [HEAD, ERRORS, QUEUE_STATUS].into_iter().chain(counters) {
            self.0.tell(offset, 0);
        }
        (state.read, state.errors) = (0, 0);
        state.done.clear();
        Ok(())
    }
}
