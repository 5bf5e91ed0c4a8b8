//! The way of frames: from the queues of the process to the datagram port, and back.
//!
//! ```text
//!   output full ──► next ──► Port::send … Upper::sent ──► output empty
//!   input empty ──► next ──► Port::give … Upper::received ──► input full
//! ```
//! A frame is sent from where it is, and a packet lands where the process reads it: nothing is copied
//! here (S1). The lock is held for one slot at a time, and never while the port is called.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use qnic_abi::pool::{events, Pool, PoolInfo, Shape, WANT_WAKE};
use qnic_abi::{SharedMemory, Status};
use qnic_shared::pool::{DriverSide, InputFrame, OutputFrame, Packet};

use super::range::Range;
use crate::datagram::{Address, Buffer, Data, Header, Message, Outgoing, Port, Sent, Upper};
use crate::device::Counter;
use crate::platform::{table, DeviceMemory, Lock, NoMemory, Platform, Waiters};

/// Slots that are taken in one turn; the rest waits until other ports had theirs (H5).
const BATCH: usize = 256;

/// With this many frames being sent, the driver keeps working until they are sent, and the process
/// need not kick. With fewer it stops: their end would be an interrupt that no thread waits for.
const BURST: usize = 2;

/// A kick within this time after the last one, in nanoseconds, with no wait in between, begins a *row*: a
/// fast NIC sends each frame before the process hands over the next. From then on the
/// driver looks at the queues every [`LATER_NS`], and the process need not kick.
pub(super) const ROW_NS: u64 = 500_000;

/// How long frames of a process in a row may wait for the driver's next look, in nanoseconds. The row
/// ends when a look finds none.
pub(super) const LATER_NS: u64 = 250_000;

/// How long the driver keeps working while no frame gets sent, in nanoseconds: the pending frames
/// may go to a node that does not answer, and the process has frames for others.
pub(super) const SENDING_NS: u64 = 2_000_000;

/// Counters of one process's pools; the names are those of [`PoolInfo`].
#[derive(Default)]
struct Counters {
    frames_sent: Counter,
    frames_refused: Counter,
    frames_received: Counter,
    packets_dropped: Counter,
    malformed_slots: Counter,
    occupied_slots: Counter,
    kicks: Counter,
    waits: Counter,
    wakes: Counter,
    starved: Counter,
}

struct State {
    side: DriverSide,
    /// Input frames that the port has, by number.
    posted: Vec<Option<InputFrame>>,
    posted_count: usize,
    /// Output frames that are being sent, by number.
    sending: Vec<Option<OutputFrame>>,
    sending_count: usize,
    /// When the process kicked last, if it has not waited since.
    kicked_ns: Option<u64>,
    /// When the driver looks at the queues again, while the process is in a row of frames.
    row_until_ns: Option<u64>,
    /// Until when the driver keeps working for frames that are being sent, unless one is sent or
    /// handed over earlier.
    sending_until_ns: Option<u64>,
}

/// Which event makes the driver look at the queues again.
enum Next {
    /// A kick of the process, or a packet that arrives.
    Event,
    /// The NIC, when frames are sent; or this time, if it sends none.
    Sent(u64),
    /// This time.
    At(u64),
}

/// The pools of a process, as the upper module of their port.
pub(super) struct Shared<P: Platform> {
    pub(super) range: Range<P>,
    shape: Shape,
    state: P::SpinLock<State>,
    pub(super) waiters: P::Waiters,
    counters: Counters,
    gone: AtomicBool,
}

/// The next thing that the process has handed over.
enum Step<P: Platform> {
    /// An input frame, to be posted.
    Input(P::Memory),
    /// An output frame, to be sent.
    Output(P::Memory, Address, u64),
    /// A malformed slot, or a frame without a destination.
    Nothing,
    /// Both queues are empty.
    Empty(Next),
}

impl State {
    /// Which event makes the driver look again when both queues are empty.
    fn next(&mut self, now_ns: u64) -> Next {
        self.row_until_ns = self.row_until_ns.filter(|until_ns| now_ns < *until_ns);
        if let Some(until_ns) = self.row_until_ns {
            return Next::At(until_ns);
        }
        if self.sending_count < BURST {
            return Next::Event;
        }
        let until_ns = now_ns.saturating_add(SENDING_NS);
        match *self.sending_until_ns.get_or_insert(until_ns) {
            until_ns if now_ns < until_ns => Next::Sent(until_ns),
            _ => Next::Event,
        }
    }
}

impl<P: Platform> Shared<P> {
    /// Pools whose input frames are all to be posted, with [`Shared::post_all`].
    pub(super) fn new(platform: &P, shape: Shape) -> Result<Self, NoMemory> {
        let range = Range::new(platform, shape)?;
        let state = State {
            side: DriverSide::new(shape, &range),
            posted: table(shape.frames(Pool::Input))?,
            posted_count: 0,
            sending: table(shape.frames(Pool::Output))?,
            sending_count: 0,
            kicked_ns: None,
            row_until_ns: None,
            sending_until_ns: None,
        };
        Ok(Shared {
            range,
            shape,
            state: P::SpinLock::new(state)?,
            waiters: platform.new_waiters()?,
            counters: Counters::default(),
            gone: AtomicBool::new(false),
        })
    }

    /// Posts all input frames. To be called once, before the process has any.
    pub(super) fn post_all(&self, port: &Port<P>) {
        for index in 0..self.shape.frames(Pool::Input) {
            let memory = self.state.with(|state| {
                let frame = state.side.all_inputs().nth(index)?;
                self.post(state, frame)
            });
            self.give(port, memory);
        }
    }

    fn give(&self, port: &Port<P>, memory: Option<P::Memory>) {
        if let Some(memory) = memory {
            // The port has room for all frames; it refuses one only because it closes.
            drop(port.give(memory));
        }
    }

    /// Notes that the port gets an input frame.
    fn post(&self, state: &mut State, frame: InputFrame) -> Option<P::Memory> {
        let index = frame.index();
        let memory = self
            .range
            .frame(Pool::Input, index, self.shape.frame_bytes())?;
        *state.posted.get_mut(index)? = Some(frame);
        state.posted_count += 1;
        Some(memory)
    }

    /// Serves both queues of the process until they are empty, then stops. If
    /// several frames are being sent, the driver comes back by itself, and the process need not kick
    /// (S4), unless none of them is sent for [`SENDING_NS`].
    pub(super) fn serve(&self, port: &Port<P>) {
        self.empty_queues(port);
    }

    /// Returns false if one turn was not enough.
    fn empty_queues(&self, port: &Port<P>) -> bool {
        for _ in 0..BATCH {
            let now_ns = port.now_ns();
            let step = self.state.with(|state| self.step(state, now_ns));
            match step {
                Step::Nothing => {}
                Step::Input(memory) => self.give(port, Some(memory)),
                Step::Output(memory, to, token) => self.send(port, memory, to, token),
                Step::Empty(next) => {
                    match next {
                        Next::Event => {}
                        Next::Sent(until_ns) => {
                            port.set_deadline(Some(until_ns));
                            port.await_sends();
                        }
                        Next::At(time_ns) => port.set_deadline(Some(time_ns)),
                    }
                    return true;
                }
            }
        }
        // The process need not kick: this look comes earlier.
        port.set_deadline(Some(port.now_ns()));
        false
    }

    /// Serves the queues once more. Returns true if all frames that the process has handed over are sent.
    pub(super) fn has_sent_all(&self, port: &Port<P>) -> bool {
        let empty = self.empty_queues(port);
        port.await_sends();
        empty && self.state.with(|state| state.sending_count == 0)
    }

    fn step(&self, state: &mut State, now_ns: u64) -> Step<P> {
        state.side.work(&self.range);
        if let Some(taken) = state.side.next_input(&self.range) {
            let memory = taken.ok().and_then(|frame| self.post(state, frame));
            return memory.map_or_else(|| self.malformed(), Step::Input);
        }
        if let Some(taken) = state.side.next_output(&self.range) {
            let step = taken.ok().and_then(|packet| self.output(state, packet));
            if let Some(until_ns) = &mut state.row_until_ns {
                *until_ns = now_ns.saturating_add(LATER_NS);
            }
            return step.unwrap_or_else(|| self.malformed());
        }
        let next = state.next(now_ns);
        if !matches!(next, Next::Event) {
            return Step::Empty(next);
        }
        let short = state.posted_count * 2 < self.shape.frames(Pool::Input);
        match state.side.rest(&self.range, short) {
            true => Step::Empty(next),
            false => Step::Nothing,
        }
    }

    fn malformed(&self) -> Step<P> {
        self.counters.malformed_slots.add(1);
        Step::Nothing
    }

    fn output(
        &self,
        state: &mut State,
        packet: Packet<qnic_shared::pool::Output>,
    ) -> Option<Step<P>> {
        let Packet {
            frame,
            length,
            node,
            port,
        } = packet;
        let index = frame.index();
        let memory = self.range.frame(Pool::Output, index, length)?;
        *state.sending.get_mut(index)? = Some(frame);
        state.sending_count += 1;
        state.sending_until_ns = None;
        Some(Step::Output(memory, Address { node, port }, index as u64))
    }

    fn send(&self, port: &Port<P>, memory: P::Memory, to: Address, token: u64) {
        let data = match memory.size() {
            0 => Data::none(),
            _ => Data::whole(Buffer::new(memory)),
        };
        let message = Outgoing {
            header: Header::NONE,
            data,
            target: None,
            token,
        };
        if port.send(&[to], message).is_err() {
            self.done(token, false);
        }
    }

    /// A frame was sent, or could not be sent: the process gets it back.
    fn done(&self, token: u64, was_sent: bool) {
        let counters = &self.counters;
        counters.frames_sent.add(1);
        counters.frames_refused.add(u64::from(!was_sent));
        let must_wake = self.state.with(|state| {
            let index = usize::try_from(token).unwrap_or(usize::MAX);
            let frame = state.sending.get_mut(index).and_then(Option::take)?;
            state.sending_count -= 1;
            state.sending_until_ns = None;
            match state.side.output_done(&self.range, frame) {
                Ok(()) => Some(state.side.must_wake(&self.range, events::OUTPUT)),
                Err(_) => {
                    counters.occupied_slots.add(1);
                    None
                }
            }
        });
        self.wake_if(must_wake.unwrap_or(false));
    }

    /// Wakes the process if it waits for slots that were just filled. The lock is not held: waiting
    /// threads take it while they hold that of the wait queue.
    fn wake_if(&self, must_wake: bool) {
        if must_wake {
            self.counters.wakes.add(1);
            self.waiters.wake_all();
        }
    }

    /// Gives the process the packet in a frame. Returns the frame's memory if it cannot have the
    /// packet.
    fn deliver(&self, address: u64, length: usize, from: Address) -> Option<P::Memory> {
        let counters = &self.counters;
        let (must_wake, back) = self.state.with(|state| {
            let index = self.range.input_at(address)?;
            let frame = state.posted.get_mut(index)?.take()?;
            state.posted_count -= 1;
            counters.starved.add(u64::from(state.posted_count == 0));
            let packet = Packet {
                frame,
                length,
                node: from.node,
                port: from.port,
            };
            Some(match state.side.deliver(&self.range, packet) {
                Ok(()) => {
                    counters.frames_received.add(1);
                    (state.side.must_wake(&self.range, events::INPUT), None)
                }
                Err(occupied) => {
                    counters.occupied_slots.add(1);
                    (false, self.post(state, occupied.0.frame))
                }
            })
        })?;
        self.wake_if(must_wake);
        back
    }

    /// Gives the process the frame that a packet has come in.
    fn hand_over(&self, port: &Port<P>, from: Address, buffer: Buffer<P>, length: usize) {
        let memory = buffer.keep();
        let address = memory.address();
        drop(memory);
        let back = self.deliver(address, length, from);
        self.give(port, back);
        // The process does not kick for frames that it gives back meanwhile (S3).
        self.serve(port);
    }

    /// The events that are there.
    pub(super) fn ready(&self) -> u32 {
        self.state.with(|state| state.side.ready(&self.range))
    }

    /// The events among them that the process has asked for.
    pub(super) fn wanted(&self) -> u32 {
        self.ready() & self.range.load_u32(WANT_WAKE, Ordering::Relaxed)
    }

    /// Returns true if the process has asked for one of these events.
    pub(super) fn wants(&self, events: u32) -> bool {
        self.range.load_u32(WANT_WAKE, Ordering::Relaxed) & events != 0
    }

    pub(super) fn is_gone(&self) -> bool {
        // Acquire; partner: the release store in `gone`.
        self.gone.load(Ordering::Acquire)
    }

    /// The process kicks.
    pub(super) fn kicked(&self, now_ns: u64) {
        self.counters.kicks.add(1);
        self.state.with(|state| {
            let before = state.kicked_ns.replace(now_ns);
            if before.is_some_and(|before| now_ns.saturating_sub(before) < ROW_NS) {
                state.row_until_ns = Some(now_ns.saturating_add(LATER_NS));
            }
        });
    }

    /// The process waits, which ends its row. Returns true if it was in one: then it may have handed
    /// over frames that the driver has not looked at.
    pub(super) fn waits(&self) -> bool {
        self.counters.waits.add(1);
        self.state.with(|state| {
            state.kicked_ns = None;
            state.row_until_ns.take().is_some()
        })
    }

    pub(super) fn info(&self) -> PoolInfo {
        let counters = &self.counters;
        PoolInfo {
            status: Status::Ok.code().into(),
            reserved: 0.into(),
            frames_sent: counters.frames_sent.get().into(),
            frames_refused: counters.frames_refused.get().into(),
            frames_received: counters.frames_received.get().into(),
            packets_dropped: counters.packets_dropped.get().into(),
            malformed_slots: counters.malformed_slots.get().into(),
            occupied_slots: counters.occupied_slots.get().into(),
            kicks: counters.kicks.get().into(),
            waits: counters.waits.get().into(),
            wakes: counters.wakes.get().into(),
            starved: counters.starved.get().into(),
        }
    }
}

impl<P: Platform> Upper<P> for Shared<P> {
    fn received(&self, port: &Port<P>, message: Message<P>) {
        let (from, length) = (message.from, message.data.len());
        let plain = message.header.as_bytes().is_empty();
        let [Some(buffer), None] = message.data.into_buffers() else {
            self.counters.packets_dropped.add(1);
            return;
        };
        if !plain || length > self.shape.frame_bytes() {
            // The buffer returns to the port.
            self.counters.packets_dropped.add(1);
            return;
        }
        self.hand_over(port, from, buffer, length);
    }

    fn sent(&self, port: &Port<P>, sent: Sent<P>) {
        self.done(sent.token, sent.failed == 0);
        drop(sent);
        self.serve(port);
    }

    fn asks(&self) -> bool {
        true
    }

    /// The process learns of it by a frame without bytes.
    fn unbound(&self, port: &Port<P>, at: Address, buffer: Buffer<P>) {
        self.hand_over(port, at, buffer, 0);
    }

    fn deadline(&self, port: &Port<P>, _: u64) {
        self.serve(port);
    }

    fn gone(&self, _: &Port<P>) {
        // Release; partner: the acquire load in `is_gone`.
        self.gone.store(true, Ordering::Release);
        self.waiters.wake_all();
    }
}
