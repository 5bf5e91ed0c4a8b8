//! How upper modules are called: in turns, one call at a time, with no lock held.

use alloc::sync::Arc;

use qnic_abi::SharedMemory;

use super::bound::{Call, Single};
use super::buffer::{Buffer, Home, Landed, PortKey};
use super::engine::BATCH;
use super::join::{join, Joined};
use super::message::{Address, Data, Handle, Message, Sent};
use super::port::{Engine, Port};
use crate::platform::{Lock, Platform};

impl<P: Platform> Engine<P> {
    /// Calls upper modules, at most [`BATCH`] times, and sends what is to be sent. Atomic. If another
    /// thread serves already, it returns at once, and that thread does the work.
    pub(crate) fn serve(self: &Arc<Self>) {
        self.serve_as(false);
    }

    /// The same, at the platform's request; no other call is scheduled now. It goes on polling for a
    /// while if the processor has nothing else to do.
    pub(crate) fn serve_scheduled(self: &Arc<Self>) {
        self.serve_as(true);
        self.look_on_if_spare();
    }

    fn serve_as(self: &Arc<Self>, scheduled: bool) {
        if !self.state.with(|state| state.enter(scheduled)) {
            return;
        }
        self.counters.batches.add(1);
        let mut left = BATCH;
        while left > 0 {
            let now = self.device.platform.now_ns();
            let Some((key, ready)) = prepare(self, now) else {
                break;
            };
            call(self, key, ready, now);
            left -= 1;
        }
        if left == 0 {
            self.counters.batches_full.add(1);
        }
        self.leave();
    }

    #[inline(never)]
    fn leave(&self) {
        let now = self.device.platform.now_ns();
        self.state.with(|state| state.leave(self, now));
    }

    /// Serves until no work is left. The device is gone, so no event would start another turn.
    pub(crate) fn finish(self: &Arc<Self>) {
        loop {
            self.serve();
            let rest = self
                .state
                .with(|state| state.is_served() || state.has_calls());
            if !rest {
                return;
            }
            self.device.platform.yield_processor();
        }
    }
}

/// The event that an upper module is called with.
enum Ready<P: Platform> {
    Nothing,
    Sent(Sent<P>),
    Withdrawn(Handle, Buffer<P>),
    Deadline,
    Gone,
    Received(Message<P>),
    Unbound(Address, Buffer<P>),
}

/// The next call. Not inlined, so that the variables that join fragments are off the stack when the
/// upper module gets the message: it needs all the stack there is.
#[inline(never)]
fn prepare<P: Platform>(engine: &Arc<Engine<P>>, now_ns: u64) -> Option<(PortKey, Ready<P>)> {
    let (key, call) = engine.state.with(|state| state.next(engine, now_ns))?;
    let counters = &engine.counters;
    let ready = match call {
        Call::Nothing => Ready::Nothing,
        Call::Sent(sent) => {
            match sent.failed {
                0 => counters.messages_sent.add(1),
                _ => counters.messages_failed.add(1),
            }
            Ready::Sent(sent)
        }
        Call::Withdrawn(handle, buffer) => Ready::Withdrawn(handle, buffer),
        Call::Deadline => Ready::Deadline,
        Call::Gone => Ready::Gone,
        Call::Received(single) => Ready::Received(received(engine, key, single)),
        Call::Unbound(landed, from) => Ready::Unbound(from, handed_over(engine, key, landed)),
        Call::Joinable => joined(engine, key).map_or(Ready::Nothing, Ready::Received),
    };
    Some((key, ready))
}

/// Makes a call. Only the serving thread calls upper modules.
fn call<P: Platform>(engine: &Arc<Engine<P>>, key: PortKey, ready: Ready<P>, now_ns: u64) {
    let found = engine.peek(key, |bound| (bound.upper.clone(), bound.number));
    let Some((upper, number)) = found else {
        return;
    };
    let port = Port::new(engine.clone(), key, number);
    match ready {
        Ready::Nothing => {}
        Ready::Sent(sent) => upper.sent(&port, sent),
        Ready::Withdrawn(handle, buffer) => upper.withdrawn(&port, handle, buffer),
        Ready::Deadline => upper.deadline(&port, now_ns),
        Ready::Gone => upper.gone(&port),
        Ready::Received(message) => upper.received(&port, message),
        Ready::Unbound(from, buffer) => upper.unbound(&port, from, buffer),
    }
}

/// A message that came in one packet. One without data gives its buffer back.
fn received<P: Platform>(engine: &Arc<Engine<P>>, port: PortKey, single: Single<P>) -> Message<P> {
    let Single {
        landed,
        from,
        header,
        length,
    } = single;
    engine.counters.messages_received.add(1);
    if length == 0 {
        engine.peek(port, |bound| bound.receives.put_back(landed));
        return Message {
            from,
            header,
            data: Data::none(),
            steered: None,
        };
    }
    let steered = engine.peek(port, |bound| bound.receives.hand_over(&landed));
    Message {
        from,
        header,
        data: Data::of([Some(handed_over(engine, port, landed)), None], length),
        steered: steered.flatten(),
    }
}

/// A page, as a buffer for the upper module.
fn handed_over<P: Platform>(
    engine: &Arc<Engine<P>>,
    port: PortKey,
    landed: Landed<P>,
) -> Buffer<P> {
    match landed {
        Landed::Steered(buffer, _) => {
            engine.counters.pages_steered.add(1);
            buffer
        }
        Landed::Own(memory) => {
            debug_assert!(memory.size() > 0);
            let engine = engine.clone();
            Buffer::of_port(memory, Home { engine, port })
        }
    }
}

/// Joins the fragments of a message; `None` if they do not fit.
#[inline(never)]
fn joined<P: Platform>(engine: &Arc<Engine<P>>, port: PortKey) -> Option<Message<P>> {
    let whole = engine.peek(port, |bound| bound.whole.take()).flatten()?;
    let (from, header, length) = (whole.from, whole.header, whole.length);
    let Joined { pages, spare, fits } = join(whole, &engine.counters);
    let mut steered = None;
    engine.peek(port, |bound| {
        for landed in spare.into_iter().flatten() {
            bound.receives.put_back(landed);
        }
        for landed in pages.iter().flatten() {
            steered = bound.receives.hand_over(landed).or(steered);
        }
    });
    if !fits {
        engine.counters.packets_malformed.add(1);
        return None;
    }
    let pages = pages.map(|landed| Some(handed_over(engine, port, landed?)));
    engine.counters.messages_received.add(1);
    Some(Message {
        from,
        header,
        data: Data::of(pages, length),
        steered,
    })
}
