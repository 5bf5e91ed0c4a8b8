//! A datagram port, as its upper module uses it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;

use qnic_abi::datagram::FIRST_ECHO_PORT;
use qnic_abi::NodeId;

use super::bound::Bound;
use super::buffer::{Buffer, PortKey};
use super::config::{BindError, PortConfig, SendError};
use super::message::{Address, Data, Handle, Header, Message, Outgoing, Sent};
use super::receives::MAX_SLOTS;
use super::sends::Destinations;
use crate::platform::{NoMemory, Platform};

/// Most messages that a port sends at the same time.
const MAX_MESSAGES: u16 = 4096;

/// How long a port waits for the NIC at most, in nanoseconds.
const WAIT_NS: u64 = 10_000_000_000;

/// An upper module: the calls that its port makes.
///
/// All of them are atomic: they neither sleep nor allocate. The port makes one call at a time, with
/// no lock held: an upper module may send, post and drop buffers from within.
pub trait Upper<P: Platform>: Send + Sync {
    /// A message has come.
    fn received(&self, port: &Port<P>, message: Message<P>);

    /// A message was sent, or given up.
    fn sent(&self, port: &Port<P>, sent: Sent<P>);

    /// A steered buffer was withdrawn, refused, or lost with the NIC; or the message that came
    /// in it did not need this page.
    fn withdrawn(&self, port: &Port<P>, handle: Handle, buffer: Buffer<P>) {
        let _ = (port, handle, buffer);
    }

    /// Returns true if the module wants to learn of ports that no module has bound ([`Upper::unbound`]).
    /// Asked when its port is bound.
    fn asks(&self) -> bool {
        false
    }

    /// A packet has found that no module has bound its port; the buffer that says so belongs to the port.
    fn unbound(&self, port: &Port<P>, at: Address, buffer: Buffer<P>) {
        let _ = (port, at, buffer);
    }

    /// The deadline that was set has passed ([`Port::set_deadline`]).
    fn deadline(&self, port: &Port<P>, now_ns: u64) {
        let _ = (port, now_ns);
    }

    /// The NIC is gone: nothing is sent or received any more.
    fn gone(&self, port: &Port<P>) {
        let _ = port;
    }
}

/// The engine of a NIC, with the upper modules of its ports.
pub(crate) type Engine<P> = super::engine::Engine<P, Arc<dyn Upper<P>>>;

/// A handle on a port. Its calls are atomic and allocate nothing.
pub struct Port<P: Platform> {
    engine: Arc<Engine<P>>,
    key: PortKey,
    number: u16,
}

impl<P: Platform> Clone for Port<P> {
    fn clone(&self) -> Self {
        Port::new(self.engine.clone(), self.key, self.number)
    }
}

impl<P: Platform> Port<P> {
    pub(super) fn new(engine: Arc<Engine<P>>, key: PortKey, number: u16) -> Self {
        Port {
            engine,
            key,
            number,
        }
    }

    /// Its number and this node's.
    pub fn address(&self) -> Address {
        Address {
            node: self.node(),
            port: self.number,
        }
    }

    fn node(&self) -> NodeId {
        self.engine.device.geometry.node
    }

    /// Sends a message to each of these ports, as one or more packets to each (H7). It ends
    /// with [`Upper::sent`].
    ///
    /// # Errors
    /// [`SendError`] with the message.
    #[allow(
        clippy::result_large_err,
        reason = "the message belongs to the caller again"
    )]
    pub fn send(
        &self,
        to: &[Address],
        message: Outgoing<P>,
    ) -> Result<(), (SendError, Outgoing<P>)> {
        let known = to.iter().all(|address| address.port != 0);
        let Some(to) = Destinations::new(to).filter(|_| known) else {
            return Err((SendError::Destinations, message));
        };
        let mut message = Some(message);
        let error = self.engine.with_port(self.key, |port| {
            if port.closing || port.gone {
                return Some(SendError::Closed);
            }
            let refused = message.take().and_then(|it| port.sends.push(to, it).err());
            message = refused;
            port.wants_sends |= message.is_some();
            message.is_some().then_some(SendError::Full)
        });
        match (error.unwrap_or(Some(SendError::Closed)), message) {
            (Some(error), Some(message)) => {
                self.engine.counters.messages_refused.add(1);
                Err((error, message))
            }
            _ => Ok(()),
        }
    }

    /// Posts a steered buffer of one or two pages for the message that names it as its target. It ends
    /// with [`Upper::received`], or with [`Upper::withdrawn`] for each page.
    ///
    /// # Errors
    /// The buffers, if all steered slots are in use or the port is closed.
    #[allow(
        clippy::result_large_err,
        reason = "the buffers belong to the caller again"
    )]
    #[allow(
        clippy::type_complexity,
        reason = "the arguments, given back as they came"
    )]
    pub fn expect(
        &self,
        first: Buffer<P>,
        second: Option<Buffer<P>>,
    ) -> Result<Handle, (Buffer<P>, Option<Buffer<P>>)> {
        let mut buffers = Some((first, second));
        let uses = self.engine.secret_use();
        let handle = self.engine.with_port(self.key, |port| {
            if port.closing || port.gone {
                return None;
            }
            let (first, second) = buffers.take()?;
            let posted = port.receives.expect(uses, self.key.index, first, second);
            posted.map_err(|back| buffers = Some(back)).ok()
        });
        match buffers {
            Some(buffers) => Err(buffers),
            None => Ok(handle.flatten().unwrap_or(Handle(0))),
        }
    }

    /// Takes a steered buffer back: [`Upper::withdrawn`] returns the pages without a message.
    pub fn withdraw(&self, handle: Handle) {
        let counters = &self.engine.counters;
        self.engine
            .with_port(self.key, |port| port.withdraw(handle, counters));
        self.engine.request_service();
    }

    /// Gives the port memory to receive in: a page, or a part of one. Returns it if the port
    /// has as much as it was bound with, or is closed.
    pub fn give(&self, memory: P::Memory) -> Option<P::Memory> {
        let mut memory = Some(memory);
        self.engine.with_port(self.key, |port| {
            if !port.closing {
                let refused = memory.take().and_then(|it| port.receives.give(it).err());
                memory = refused;
            }
        });
        memory
    }

    /// Allocates pages until the port has as much to receive in as it was bound with. May sleep.
    ///
    /// # Errors
    /// [`NoMemory`]; the port keeps the pages that it got.
    pub fn fill(&self) -> Result<(), NoMemory> {
        let lacking = self.engine.peek(self.key, |port| port.receives.lacks());
        for _ in 0..lacking.unwrap_or(0) {
            self.give(self.engine.device.platform.new_page()?);
        }
        Ok(())
    }

    /// Waits until the NIC has all memory to receive in that the port was given: a message that is
    /// sent to the port after this finds a buffer. May sleep. The wait ends early if the device is
    /// gone, and after ten seconds at most, for example if the device process is stopped. Then messages
    /// may be dropped until the NIC continues.
    pub fn wait_posted(&self) {
        let platform = &self.engine.device.platform;
        let limit = platform.now_ns().saturating_add(WAIT_NS);
        let mut commands = None;
        while self.engine.device.is_alive() && platform.now_ns() < limit {
            // Posts buffers for which there was no room.
            self.engine.serve();
            commands = commands.or_else(|| self.engine.posted_with(self.key));
            if commands.is_some_and(|count| self.engine.has_read(count)) {
                return;
            }
            platform.yield_processor();
        }
    }

    /// Serves all ports until `ready`, for `limit_ns` at most. May sleep.
    pub(crate) fn serve_until(&self, ready: &dyn Fn() -> bool, limit_ns: u64) {
        let platform = &self.engine.device.platform;
        let limit = platform.now_ns().saturating_add(limit_ns);
        while !ready() && platform.now_ns() < limit {
            self.engine.serve();
            platform.yield_processor();
        }
    }

    /// Announces that the upper module waits for a message to be sent: [`Upper::sent`] follows at once.
    /// Without this it comes with the next packet that arrives or is sent, or two milliseconds later.
    pub fn await_sends(&self) {
        self.engine
            .with_port(self.key, |port| port.wants_sends = !port.sends.is_empty());
    }

    /// Polls the NIC until `ready`, for `limit_ns` at most, while no other task wants the
    /// processor. Every port is served meanwhile.
    pub(crate) fn look(&self, ready: &dyn Fn() -> bool, limit_ns: u64) {
        self.engine.look(ready, limit_ns);
    }

    /// Announces that the calling thread has sent a request and is about to wait for the answer: the next
    /// service polls the NIC for it, while no other task wants the processor. Atomic.
    pub(crate) fn look_on(&self) {
        self.engine.look_on();
    }

    /// Calls [`Upper::deadline`] at that time, or never; this replaces the previous deadline.
    pub fn set_deadline(&self, at_ns: Option<u64>) {
        self.engine.with_port(self.key, |port| {
            port.deadline_ns = at_ns.filter(|_| !port.closing);
        });
        if let Some(at_ns) = at_ns {
            self.engine.request_service_at(at_ns);
        }
    }

    /// Monotonic time in nanoseconds: the clock of deadlines.
    pub fn now_ns(&self) -> u64 {
        self.engine.device.platform.now_ns()
    }

    /// A message of one packet without data, as most requests are.
    pub fn plain(header: Header, token: u64) -> Outgoing<P> {
        Outgoing {
            header,
            data: Data::none(),
            target: None,
            token,
        }
    }
}

/// Owns a bound port; dropping it closes the port, and may sleep.
pub struct Binding<P: Platform>(Port<P>);

impl<P: Platform> Deref for Binding<P> {
    type Target = Port<P>;

    fn deref(&self) -> &Port<P> {
        &self.0
    }
}

impl<P: Platform> Drop for Binding<P> {
    /// Returns when the upper module is called no more, and the NIC has nothing of the port.
    fn drop(&mut self) {
        let Port { engine, key, .. } = &self.0;
        engine.with_port(*key, Bound::close);
        let platform = &engine.device.platform;
        let limit = platform.now_ns().saturating_add(WAIT_NS);
        loop {
            engine.serve();
            if let Some(port) = engine.remove(*key) {
                drop(port);
                return;
            }
            if platform.now_ns() > limit && engine.device.is_alive() {
                engine
                    .device
                    .declare_broken(format_args!("it does not return datagram buffers"));
            }
            platform.yield_processor();
        }
    }
}

/// Binds a port. One call at a time.
pub(crate) fn bind<P: Platform>(
    engine: &Arc<Engine<P>>,
    number: u16,
    config: &PortConfig,
    upper: Arc<dyn Upper<P>>,
) -> Result<Binding<P>, BindError> {
    let slots = usize::from(config.receives) + usize::from(config.steered);
    if number == 0 || slots >= MAX_SLOTS || config.messages > MAX_MESSAGES {
        return Err(BindError::Invalid);
    }
    if number >= FIRST_ECHO_PORT {
        return Err(BindError::InUse);
    }
    let key = engine.free_place(number)?;
    let asks = upper.asks();
    let bound = Bound::new(
        &engine.device.platform,
        (key, number),
        config,
        (upper, asks),
    )?;
    engine.insert(Box::new(bound));
    // The first turn asks the NIC for wake events.
    engine.request_service();
    Ok(Binding(Port::new(engine.clone(), key, number)))
}
