//! The system under the driver core: a simulated machine.
//!
//! Calls that sleep are waits of the calling task ([`crate::schedule`]). A sleeping
//! lock that is taken makes its task wait; a spin lock never is: no task waits
//! while it holds one, which is checked at each use.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, TryLockError, Weak};

use qnic_abi::attach::FIRST_DOORBELL;
use qnic_abi::control::{
    NewProcess, Opcode, RequestHeader, PROCESS_DRIVER, REPLY_BYTES, REQUEST_BYTES,
};
use qnic_abi::datagram::DRIVER_PORT;
use qnic_abi::header::Geometry;
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::page_table::PageAccess;
use qnic_abi::verbs;
use qnic_driver::platform::{
    self, Level, MemoryError, Mutex, NoMemory, RequestError, Run, Timeout, Waited, Waiters,
};
use qnic_driver::{Driver, MemoryManager, Platform, Region};
use qnic_nic::testing::Sram;
use zerocopy::FromBytes;

use crate::machine::device_memory::{Frames, SimHostArea, SimMemory};
use crate::machine::kernel::{Kernel, Notifier};
use crate::machine::memory::{Memory, Observer, Owner};
use crate::machine::verbs_events::VerbsEvents;
use crate::schedule::{lock, trace, Event, Incarnation, Schedule, Signal, TaskId};
use crate::settings::Settings;

/// Frames that a host area leaves to pages of processes: the host area of a process that has ended
/// stays as long as a page fault of it is served, and a successor may come before.
const FRAMES_LEFT: usize = 6;

/// No process.
const NO_SLOT: usize = usize::MAX;

/// The hardware and the kernel of one incarnation of a node.
pub(crate) struct Machine {
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) incarnation: Incarnation,
    pub(crate) sram: Arc<Sram>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) kernel: Arc<Kernel<SimPlatform>>,
    pub(crate) geometry: Geometry,
    /// Requests and replies.
    pub(crate) control: StdMutex<Control>,
    /// A reply has come.
    pub(crate) answered: Signal,
    /// A fault waits for a worker.
    pub(crate) faults: Signal,
    /// Slot of the process whose host area is allocated next; [`NO_SLOT`]: it is the driver's own.
    pub(crate) registering: AtomicUsize,
    /// Its driver, once it has started and until the device is gone.
    pub(crate) driver: StdMutex<Option<Arc<Driver<SimPlatform>>>>,
    /// Port of the process that its NIC takes for the driver itself.
    driver_port: Option<u16>,
    pub(crate) verbs_events: VerbsEvents,
    /// When the driver wants to serve its datagrams.
    datagrams_due: AtomicU64,
    /// Its NIC locks pages beyond the calls of its entry points, so its driver may wait for one.
    locks_last: bool,
    /// When the clock was read last, and how often it was then.
    clock_read: StdMutex<(u64, u32)>,
    /// Tasks that run on it.
    pub(crate) tasks: StdMutex<BTreeSet<TaskId>>,
    /// The device was reset or the power is off: no request is answered.
    gone: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Control {
    pub(crate) requests: VecDeque<(u64, [u8; REQUEST_BYTES])>,
    replies: BTreeMap<u64, [u8; REPLY_BYTES]>,
    waiting: BTreeSet<u64>,
    next: u64,
}

impl Machine {
    /// A machine on which nothing runs.
    pub(crate) fn new(
        (schedule, settings): (&Arc<Schedule>, &Settings),
        observer: Weak<dyn Observer>,
        incarnation: Incarnation,
        geometry: Geometry,
    ) -> Arc<Self> {
        let (schedule, disk) = (schedule.clone(), settings.disk);
        let sram = Arc::new(Sram::new(geometry.sram_bytes as usize));
        let memory = Memory::new(geometry, settings.block_frames, sram.clone(), observer);
        let memory = Arc::new(memory);
        Arc::new(Machine {
            schedule: schedule.clone(),
            incarnation,
            kernel: Arc::new(Kernel::new(schedule, memory.clone(), disk)),
            sram,
            memory,
            geometry,
            control: StdMutex::default(),
            answered: Signal::default(),
            faults: Signal::default(),
            registering: AtomicUsize::new(NO_SLOT),
            driver: StdMutex::new(None),
            driver_port: settings.driver_port(incarnation.node),
            verbs_events: VerbsEvents::default(),
            datagrams_due: AtomicU64::new(u64::MAX),
            locks_last: settings.options.engines,
            clock_read: StdMutex::default(),
            tasks: StdMutex::default(),
            gone: AtomicBool::new(false),
        })
    }

    /// Starts a task on it.
    pub(crate) fn run(self: &Arc<Self>, body: impl FnOnce() + Send + 'static) {
        let machine = self.clone();
        let task = self.schedule.spawn(move || {
            body();
            lock(&machine.tasks).remove(&machine.schedule.task());
        });
        lock(&self.tasks).insert(task);
    }

    /// Returns true if the driver is to serve its datagrams now. An event of which the driver has
    /// asked for an earlier one has nothing to do; or each would ask for another one.
    pub(crate) fn must_serve_datagrams(&self) -> bool {
        let is_due = self.datagrams_due.load(Ordering::Relaxed) <= self.schedule.now();
        if is_due {
            self.datagrams_due.store(u64::MAX, Ordering::Relaxed);
        }
        is_due
    }

    /// Notes a look at the clock. Returns true if the driver waits for time to pass.
    fn reads_again(&self, now: u64) -> bool {
        let mut read = lock(&self.clock_read);
        *read = match *read {
            (at, count) if at == now => (at, count + 1),
            _ => (now, 1),
        };
        read.1 >= SPINNING
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// From now on nothing is answered, and no task waits for anything.
    pub(crate) fn disappear(&self) {
        self.gone.store(true, Ordering::Relaxed);
        for task in lock(&self.tasks).iter() {
            self.schedule.interrupt(*task);
        }
    }

    /// The NIC has answered a request.
    pub(crate) fn answer(&self, token: u64, reply: [u8; REPLY_BYTES]) {
        let mut control = lock(&self.control);
        if control.waiting.remove(&token) {
            control.replies.insert(token, reply);
            drop(control);
            self.schedule.notify(&self.answered);
        }
    }

    /// A request as the NIC gets it. The driver core registers the process of a datagram worker as
    /// any other; here it becomes the driver itself.
    fn signed(&self, request: &[u8; REQUEST_BYTES]) -> [u8; REQUEST_BYTES] {
        let mut request = *request;
        let parsed = RequestHeader::read_from_prefix(&request);
        let (header, _) = parsed.expect("a header");
        let body = &mut request[size_of::<RequestHeader>()..];
        if header.opcode.get() == Opcode::NewProcess as u32 {
            let (process, _) = NewProcess::mut_from_prefix(body).expect("a body");
            if self.driver_port == Some(process.port.get()) {
                process.port = DRIVER_PORT.into();
                process.flags = PROCESS_DRIVER.into();
            }
        }
        request
    }

    /// Puts a request into the queue; returns its token.
    fn post(&self, request: &[u8; REQUEST_BYTES]) -> u64 {
        let request = self.signed(request);
        let mut control = lock(&self.control);
        control.next += 1;
        let token = control.next;
        control.requests.push_back((token, request));
        self.schedule
            .after(100..3000, Event::Control(self.incarnation));
        token
    }

    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        if self.is_gone() {
            return Err(RequestError::Gone);
        }
        let token = self.post(request);
        lock(&self.control).waiting.insert(token);
        let interruptible = matches!(timeout, Timeout::Interruptible(_));
        let (Timeout::Uninterruptible(milliseconds) | Timeout::Interruptible(milliseconds)) =
            timeout;
        let deadline = self.schedule.now() + u64::from(milliseconds) * 1_000_000;
        loop {
            self.schedule.wait(Some(&self.answered), Some(deadline));
            if let Some(reply) = lock(&self.control).replies.remove(&token) {
                return Ok(reply);
            }
            let error = if self.is_gone() {
                RequestError::Gone
            } else if interruptible && self.schedule.is_killed() {
                RequestError::Interrupted
            } else if self.schedule.now() >= deadline {
                panic!("a request of the driver was not answered within {milliseconds} ms");
            } else {
                continue;
            };
            lock(&self.control).waiting.remove(&token);
            return Err(error);
        }
    }
}

/// A handle on a machine for the driver core.
pub(crate) struct SimPlatform(pub(crate) Arc<Machine>);

pub(crate) struct Lock<T>(StdMutex<T>);

pub(crate) struct SleepLock<T> {
    value: StdMutex<T>,
    freed: Signal,
}

/// The guard of a lock, if it is free.
fn guard<T>(mutex: &StdMutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl<T: Send> platform::Lock<T> for SleepLock<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        Ok(SleepLock {
            value: StdMutex::new(value),
            freed: Signal::default(),
        })
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        loop {
            if let Some(mut value) = guard(&self.value) {
                let result = f(&mut value);
                drop(value);
                Schedule::current().notify(&self.freed);
                return result;
            }
            Schedule::current().wait(Some(&self.freed), None);
        }
    }
}

impl<T: Send> Mutex<T> for SleepLock<T> {
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut value = guard(&self.value)?;
        let result = f(&mut value);
        drop(value);
        Schedule::current().notify(&self.freed);
        Some(result)
    }
}

impl<T: Send> platform::Lock<T> for Lock<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        Ok(Lock(StdMutex::new(value)))
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let value = guard(&self.0);
        f(&mut value.expect("a task waits while it holds a spin lock"))
    }
}

/// Threads of one process that wait.
pub(crate) struct SimWaiters {
    machine: Arc<Machine>,
    woken: Signal,
}

impl Waiters for SimWaiters {
    fn wait(&self, ready: &dyn Fn() -> bool, timeout_ns: Option<u64>) -> Waited {
        let schedule = &self.machine.schedule;
        let deadline = timeout_ns.map(|timeout| schedule.now().saturating_add(timeout));
        loop {
            if ready() {
                return Waited::Ready;
            }
            if schedule.is_killed() || self.machine.is_gone() {
                return Waited::Interrupted;
            }
            if deadline.is_some_and(|deadline| schedule.now() >= deadline) {
                return Waited::TimedOut;
            }
            schedule.wait(Some(&self.woken), deadline);
        }
    }

    fn wake_all(&self) {
        self.machine.schedule.notify(&self.woken);
    }
}

/// Time that passes while the driver yields, in nanoseconds.
const YIELD_NS: u64 = 50_000;

/// Time that passes while the driver spins, in nanoseconds.
const SPIN_NS: u64 = 500;

/// A driver that reads the clock so often at one time spins.
const SPINNING: u32 = 3;

impl Platform for SimPlatform {
    type Sram = Sram;
    type Mutex<T: Send> = SleepLock<T>;
    type SpinLock<T: Send> = Lock<T>;
    type HostArea = SimHostArea;
    type Waiters = SimWaiters;
    type Memory = SimMemory;

    fn sram(&self) -> &Sram {
        &self.0.sram
    }

    fn now_ns(&self) -> u64 {
        let now = self.0.schedule.now();
        let waits = self.0.locks_last && self.0.schedule.is_in_task();
        if waits && self.0.reads_again(now) {
            self.0.schedule.sleep(SPIN_NS);
        }
        self.0.schedule.now()
    }

    fn yield_processor(&self) {
        self.0.schedule.sleep(YIELD_NS);
    }

    fn random(&self) -> u64 {
        self.0.schedule.any()
    }

    fn frames(&self) -> u64 {
        self.0.geometry.frames
    }

    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        self.0.request(request, timeout)
    }

    fn post(&self, request: &[u8; REQUEST_BYTES], _limit_ms: u32) -> Result<(), RequestError> {
        if self.0.is_gone() {
            return Err(RequestError::Gone);
        }
        self.0.post(request);
        Ok(())
    }

    fn stop_device(&self) {
        // What is dropped by the first failure may find another one.
        assert!(std::thread::panicking(), "the driver had to stop the NIC");
    }

    fn mark_dirty(&self, frame: u32) {
        self.0.kernel.mark_dirty(frame);
    }

    fn new_host_area(&self) -> Result<SimHostArea, NoMemory> {
        let slot = self.0.registering.swap(NO_SLOT, Ordering::Relaxed);
        if slot != NO_SLOT && self.0.memory.frames_for_pages() < HOST_PAGES + FRAMES_LEFT {
            return Err(NoMemory);
        }
        let mut frames = [0; HOST_PAGES];
        for page in 0..HOST_PAGES {
            let owner = match slot {
                NO_SLOT => Owner::Engine,
                slot => Owner::HostArea { slot, page },
            };
            let Some(frame) = self.0.kernel.try_frame_for(owner) else {
                for frame in &frames[..page] {
                    self.0.memory.release(*frame);
                }
                return Err(NoMemory);
            };
            frames[page] = frame;
        }
        Ok(SimHostArea::new(&self.0.memory, frames))
    }

    fn new_page(&self) -> Result<SimMemory, NoMemory> {
        let frame = self.0.kernel.try_frame_for(Owner::Engine);
        let frames = vec![frame.ok_or(NoMemory)?];
        Ok(SimMemory::new(Frames::new(&self.0.memory, frames)))
    }

    fn new_blocks(&self, runs: &[Run]) -> Result<Vec<SimMemory>, NoMemory> {
        let block = |pages| {
            if pages == 1 {
                return self.new_page();
            }
            let first = self.0.memory.allocate_block(pages, Owner::Engine);
            let first = first.ok_or(NoMemory)?;
            let frames = (first..first + pages as u32).collect();
            Ok(SimMemory::new(Frames::new(&self.0.memory, frames)))
        };
        Run::each(runs).map(block).collect()
    }

    fn ring_doorbell(&self, queue: u16) {
        let doorbell = u32::from(queue) - FIRST_DOORBELL as u32;
        let event = Event::Doorbell(self.0.incarnation, doorbell);
        self.0.schedule.after(50..3000, event);
    }

    fn schedule_datagrams(&self, at_ns: u64) {
        let due = self.0.datagrams_due.fetch_min(at_ns, Ordering::Relaxed);
        if at_ns < due {
            let event = Event::Datagrams(self.0.incarnation);
            self.0.schedule.at(at_ns, event);
        }
    }

    fn verbs_event(&self, owner: u64, event: verbs::Event) {
        self.0.verbs_events.push(owner, event);
        self.0.schedule.notify(&self.0.verbs_events.told);
    }

    fn doorbell_offset(&self, queue: u16) -> u32 {
        queue.into()
    }

    fn new_waiters(&self) -> Result<SimWaiters, NoMemory> {
        Ok(SimWaiters {
            machine: self.0.clone(),
            woken: Signal::default(),
        })
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let node = self.0.incarnation.node;
        trace!(self.0.schedule, "node {node}: driver {level:?}: {message}");
    }
}

impl MemoryManager for SimPlatform {
    type AddressSpace = u64;
    type Notifier = Notifier<Self>;
    type Pin = std::convert::Infallible;

    fn check(
        &self,
        space: &u64,
        region: &Region<Self>,
        _access: PageAccess,
    ) -> Result<(), MemoryError> {
        self.0.kernel.check(*space, region)
    }

    fn register_notifier(
        &self,
        space: &u64,
        region: &Arc<Region<Self>>,
    ) -> Result<Notifier<Self>, MemoryError> {
        self.0.kernel.register_notifier(*space, region)
    }

    fn may_use_physical(&self) -> bool {
        false
    }

    /// Nothing is ever pinned: no process may use physical addresses.
    fn pin(&self, _: &u64, _: u64, _: u64) -> Result<(Self::Pin, u64), MemoryError> {
        Err(MemoryError::NotExportable)
    }

    fn fault_in(
        &self,
        _space: &u64,
        notifier: &Notifier<Self>,
        _region: &Region<Self>,
        pages: Range<usize>,
        access: PageAccess,
    ) -> Result<(), MemoryError> {
        self.0.kernel.fault_in(notifier, pages, access)
    }

    fn install_resident(&self, _space: &u64, notifier: &Notifier<Self>, _region: &Region<Self>) {
        self.0.kernel.install_resident(notifier);
    }
}
