//! An attached volume: the client on its port.

use alloc::sync::Arc;

use super::page::{is_whole, ticket, Page, Sending};
use super::requests::{Action, Requests};
use super::BATCH;
use crate::datagram::{BindError, Binding, Buffer, Handle, Message, Port, PortConfig, Sent, Upper};
use crate::platform::{Lock, NoMemory, Platform, Waited, Waiters};
use crate::remote_memory::client::{
    AttachRefusal, Client, ClientCounters, ClientState, Config, ConfigError, Failure, Refusal,
    Repair, ServerStatus,
};
use crate::remote_memory::histogram::Histogram;
use crate::remote_memory::wire::Arrival;

/// The user of a volume.
pub trait VolumeUser<P: Platform>: Send + Sync {
    /// A request has ended; its page belongs to the user again. Atomic: it may be called from
    /// an interrupt, and from within the call that has made the request. It may make another request.
    fn done(&self, token: u64, result: Result<(), Failure>, page: Buffer<P>);
}

/// Why a volume is not attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Too few servers have given memory.
    #[error("too few servers have attached the volume; one has said: {0:?}")]
    Refused(
        /// The refusal of one of them.
        Option<AttachRefusal>,
    ),
    /// A signal arrived.
    #[error("interrupted by a signal")]
    Interrupted,
}

impl From<NoMemory> for AttachError {
    fn from(_: NoMemory) -> Self {
        AttachError::Config(ConfigError::NoMemory)
    }
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeStatus {
    /// State of the client.
    pub state: ClientState,
    /// Counters of the client.
    pub counters: ClientCounters,
    /// Progress of repair.
    pub repair: Repair,
    /// Latencies of reads.
    pub reads: Histogram,
    /// Latencies of writes.
    pub writes: Histogram,
    /// Pages that were copied because they came in another buffer than the steered one.
    pub pages_copied: u64,
    /// Written blocks with fewer live copies than they should have.
    pub degraded: u64,
    /// No block can be written that was not written before.
    pub full: bool,
    /// Servers have taken its memory back: all requests fail.
    pub taken_back: bool,
}

struct Inner<P: Platform> {
    client: Client<Option<Page<P>>>,
    requests: Requests<P>,
    /// The state that waiting threads were woken for last.
    told: ClientState,
    /// There are new requests that were not looked at.
    asked: bool,
}

struct Node<P: Platform> {
    inner: P::SpinLock<Inner<P>>,
    /// Threads that wait for a change of the client's state.
    waiters: P::Waiters,
    user: Arc<dyn VolumeUser<P>>,
}

/// An attached volume. Dropping it detaches it; requests under way fail.
pub struct Volume<P: Platform> {
    node: Arc<Node<P>>,
    port: Binding<P>,
    attach_ns: u64,
    detach_ns: u64,
    request_ns: u64,
    blocks: u64,
    replicas: usize,
    thin: bool,
    servers: usize,
}

impl<P: Platform> Volume<P> {
    /// Attaches a volume: waits until enough servers have given memory. `bind` binds its port.
    ///
    /// # Errors
    /// [`AttachError`].
    pub(crate) fn attach(
        platform: &P,
        config: Config,
        user: Arc<dyn VolumeUser<P>>,
        bind: impl FnOnce(&PortConfig, Arc<dyn Upper<P>>) -> Result<Binding<P>, BindError>,
    ) -> Result<Self, AttachError> {
        let volume = Self::begin(platform, config, user, bind)?;
        let limit = volume.attach_ns;
        volume.node.run(&volume.port);
        let attached = || !matches!(volume.node.state(), ClientState::Attaching { .. });
        match volume.node.waiters.wait(&attached, Some(limit)) {
            Waited::Interrupted => Err(AttachError::Interrupted),
            Waited::Ready | Waited::TimedOut => match volume.node.state() {
                ClientState::Active => Ok(volume),
                _ => Err(AttachError::Refused(volume.refusal())),
            },
        }
    }

    /// Makes the client and binds its port. Not inlined, because it takes more stack than the caller
    /// can spare.
    #[inline(never)]
    fn begin(
        platform: &P,
        config: Config,
        user: Arc<dyn VolumeUser<P>>,
        bind: impl FnOnce(&PortConfig, Arc<dyn Upper<P>>) -> Result<Binding<P>, BindError>,
    ) -> Result<Self, AttachError> {
        let under_way = (config.requests + config.copies) * config.replicas + config.servers.len();
        let port = PortConfig {
            // On a narrow route a page comes in up to eight packets, and incomplete messages are kept in half
            // of the buffers.
            receives: (under_way + 16).min(512) as u16,
            steered: config.requests as u16,
            messages: under_way.min(4096) as u16,
        };
        let limits = config.limits;
        let (blocks, replicas, servers) = (config.blocks, config.replicas, config.servers.len());
        let thin = config.thin;
        let requests = Requests::new(config.requests)?;
        let client = Client::new(config, platform.now_ns())?;
        let told = client.state();
        let node = Arc::new(Node {
            inner: P::SpinLock::new(Inner {
                client,
                requests,
                told,
                asked: false,
            })?,
            waiters: platform.new_waiters()?,
            user,
        });
        let port = bind(&port, node.clone())?;
        let volume = Volume {
            node,
            port,
            attach_ns: limits.attach_timeout.saturating_add(limits.server_timeout),
            detach_ns: limits.server_timeout.saturating_mul(2),
            request_ns: limits.request_timeout,
            blocks,
            replicas,
            thin,
            servers,
        };
        volume.port.fill()?;
        Ok(volume)
    }

    /// The refusal of a server, when attaching has failed for good.
    fn refusal(&self) -> Option<AttachRefusal> {
        let over = || !matches!(self.node.state(), ClientState::Detaching { .. });
        self.node.waiters.wait(&over, Some(self.detach_ns));
        match self.node.state() {
            ClientState::Failed(refusal) => refusal,
            _ => None,
        }
    }

    /// Requests the page of a block, in a page of the user's. It ends with [`VolumeUser::done`].
    /// Atomic.
    ///
    /// # Errors
    /// The page, if the request is not taken.
    #[allow(
        clippy::result_large_err,
        reason = "the page belongs to the caller again"
    )]
    pub fn read(
        &self,
        token: u64,
        block: u64,
        page: Buffer<P>,
    ) -> Result<(), (Buffer<P>, Refusal)> {
        if !is_whole(&page) {
            return Err((page, Refusal::NoSuchBlock));
        }
        let inner = &self.node.inner;
        let Some(index) = inner.with(|inner| inner.requests.begin_read(token)) else {
            return Err((page, Refusal::Busy));
        };
        let handle = match self.port.expect(page, None) {
            Ok(handle) => handle,
            Err((page, _)) => {
                inner.with(|inner| inner.requests.not_posted(index));
                return Err((page, Refusal::Busy));
            }
        };
        let now = self.port.now_ns();
        let mut refused = None;
        inner.with(|inner| {
            let target = inner.requests.posted(index, handle);
            if let Err(refusal) = inner.client.read(now, index, block, target) {
                let failure = match refusal {
                    Refusal::TakenBack => Failure::TakenBack,
                    _ => Failure::Detached,
                };
                refused = inner.requests.fail(index, failure);
            }
            inner.asked = true;
        });
        if let Some(action) = refused {
            self.node.act(&self.port, action);
        }
        self.node.set_deadline(&self.port);
        Ok(())
    }

    /// Writes a page to a block. It ends with [`VolumeUser::done`]. Atomic.
    ///
    /// # Errors
    /// The page, if the request is not taken.
    #[allow(
        clippy::result_large_err,
        reason = "the page belongs to the caller again"
    )]
    pub fn write(
        &self,
        token: u64,
        block: u64,
        page: Buffer<P>,
    ) -> Result<(), (Buffer<P>, Refusal)> {
        if !is_whole(&page) {
            return Err((page, Refusal::NoSuchBlock));
        }
        let now = self.port.now_ns();
        let page = Page {
            buffer: page,
            steered: false,
        };
        let refused = self.node.inner.with(|inner| {
            let Some(index) = inner.requests.begin(token) else {
                return Err((Some(page), Refusal::Busy));
            };
            inner.asked = true;
            let taken = inner.client.write(now, index, block, Some(page));
            taken.inspect_err(|_| inner.requests.forget(index))
        });
        match refused {
            Err((Some(page), refusal)) => Err((page.buffer, refusal)),
            _ => {
                self.node.set_deadline(&self.port);
                Ok(())
            }
        }
    }

    /// Announces that the calling thread is about to wait for its last request. If its service runs in its
    /// place, it polls the NIC for the answer. Atomic.
    pub fn look_on(&self) {
        self.port.look_on();
    }

    /// Its state.
    pub fn status(&self) -> VolumeStatus {
        self.node.inner.with(|inner| VolumeStatus {
            state: inner.client.state(),
            counters: inner.client.counters(),
            repair: inner.client.repair(),
            reads: *inner.client.read_latency(),
            writes: *inner.client.write_latency(),
            pages_copied: inner.requests.pages_copied,
            degraded: inner.client.degraded(),
            full: inner.client.is_full(),
            taken_back: inner.client.is_taken_back(),
        })
    }

    /// Returns true if its servers may hold less than all of it.
    pub(crate) fn is_thin(&self) -> bool {
        self.thin
    }

    /// Longest time of a request, in nanoseconds.
    pub(crate) fn request_timeout(&self) -> u64 {
        self.request_ns
    }

    /// Number of blocks, of a page each.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Replicas of each block.
    pub fn replicas(&self) -> usize {
        self.replicas
    }

    /// Number of servers.
    pub fn servers(&self) -> usize {
        self.servers
    }

    /// The state of one of its servers, in the order of the configuration.
    pub fn server(&self, index: usize) -> Option<ServerStatus> {
        self.node
            .inner
            .with(|inner| inner.client.servers().nth(index))
    }
}

impl<P: Platform> Drop for Volume<P> {
    /// Detaches from the servers, and waits for that a bounded time.
    fn drop(&mut self) {
        let now = self.port.now_ns();
        self.node.inner.with(|inner| inner.client.detach(now));
        self.node.run(&self.port);
        let state = || self.node.state();
        let over = || {
            matches!(
                state(),
                ClientState::Detached | ClientState::TakenBack | ClientState::Failed(_)
            )
        };
        self.node.waiters.wait(&over, Some(self.detach_ns));
    }
}

impl<P: Platform> Node<P> {
    fn state(&self) -> ClientState {
        self.inner.with(|inner| inner.client.state())
    }

    /// Does the work that is due, and sets the next deadline.
    fn run(&self, port: &Port<P>) {
        loop {
            let now = port.now_ns();
            let mut messages: [Option<Sending<P>>; BATCH] = Default::default();
            let mut actions: [Option<Action<P>>; BATCH] = Default::default();
            let (more, changed) = self.inner.with(|inner| {
                inner.asked = false;
                inner.client.tick(now);
                let more = inner.collect(now, &mut messages, &mut actions);
                let state = inner.client.state();
                (more, core::mem::replace(&mut inner.told, state) != state)
            });
            if changed {
                self.waiters.wake_all();
            }
            for message in messages.into_iter().flatten() {
                if let Some(ticket) = message.send(port) {
                    self.inner
                        .with(|inner| inner.client.handle_sent(now, ticket));
                }
            }
            for action in actions.into_iter().flatten() {
                self.act(port, action);
            }
            if !more {
                break;
            }
        }
        self.set_deadline(port);
    }

    /// Sets the port's deadline. Two threads may do so at the same time: the one that was last checks again.
    fn set_deadline(&self, port: &Port<P>) {
        let deadline = || {
            self.inner.with(|inner| match inner.asked {
                true => Some(0),
                false => inner.client.deadline(),
            })
        };
        let mut set = deadline();
        loop {
            port.set_deadline(set);
            let now = deadline();
            if now == set {
                return;
            }
            set = now;
        }
    }

    fn act(&self, port: &Port<P>, action: Action<P>) {
        match action {
            Action::Tell {
                token,
                result,
                page,
                spare,
            } => {
                drop(spare);
                self.user.done(token, result, page);
            }
            Action::Withdraw(handle) => port.withdraw(handle),
            Action::Free(buffer) => drop(buffer),
        }
    }
}

impl<P: Platform> Inner<P> {
    /// Takes as much work as there is room for. Returns true if there is more.
    fn collect(
        &mut self,
        now: u64,
        messages: &mut [Option<Sending<P>>],
        actions: &mut [Option<Action<P>>],
    ) -> bool {
        for place in actions.iter_mut() {
            let spare = self.client.poll_page().flatten();
            *place = spare.map(|page| Action::Free(page.buffer));
            while place.is_none() {
                match self.client.poll_completion() {
                    Some(completion) => *place = self.requests.complete(completion),
                    None => break,
                }
            }
        }
        for place in messages.iter_mut() {
            match self.client.poll_transmit(now) {
                Some(transmit) => *place = Sending::new(transmit, memory_of),
                None => break,
            }
        }
        messages.iter().all(Option::is_some) || actions.iter().all(Option::is_some)
    }
}

/// The memory of a page that is lent to a transmission.
fn memory_of<P: Platform>(page: &Option<Page<P>>) -> Option<&P::Memory> {
    page.as_ref().map(|page| page.buffer.memory())
}

impl<P: Platform> Upper<P> for Node<P> {
    fn received(&self, port: &Port<P>, message: Message<P>) {
        let now = port.now_ns();
        let length = message.data.len();
        let [first, second] = message.data.into_buffers();
        drop(second);
        let steered = message.steered;
        let page = first.map(|buffer| Page {
            buffer,
            steered: steered.is_some(),
        });
        let action = self.inner.with(|inner| {
            let back = inner.client.handle_message(
                now,
                Arrival {
                    from: message.from,
                    header: message.header.as_bytes(),
                    target: steered.map_or(0, |handle| handle.0),
                    page,
                    length,
                },
            );
            let page = back.flatten()?;
            match steered {
                Some(handle) => inner.requests.buffer_is_back(handle, page.buffer),
                None => Some(Action::Free(page.buffer)),
            }
        });
        if let Some(action) = action {
            self.act(port, action);
        }
        self.run(port);
    }

    fn sent(&self, port: &Port<P>, sent: Sent<P>) {
        drop(sent.data);
        if let Some(ticket) = ticket(sent.token) {
            let now = port.now_ns();
            self.inner
                .with(|inner| inner.client.handle_sent(now, ticket));
            self.run(port);
        }
    }

    fn withdrawn(&self, port: &Port<P>, handle: Handle, buffer: Buffer<P>) {
        let now = port.now_ns();
        let (action, is_refused) = self.inner.with(|inner| {
            let is_refused = inner.requests.waits_for(handle);
            let action = inner.requests.buffer_is_back(handle, buffer);
            if is_refused {
                inner.client.target_is_back(now, handle.0);
            }
            (action, is_refused)
        });
        if let Some(action) = action {
            self.act(port, action);
        }
        if is_refused {
            self.run(port);
        }
    }

    fn deadline(&self, port: &Port<P>, _now_ns: u64) {
        self.run(port);
    }

    fn gone(&self, port: &Port<P>) {
        let now = port.now_ns();
        self.inner.with(|inner| inner.client.abandon(now));
        self.waiters.wake_all();
        self.run(port);
    }
}
