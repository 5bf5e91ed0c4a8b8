//! Memory that is offered to other nodes: the server on its port.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::page::{ticket, Sending};
use super::BATCH;
use crate::datagram::{BindError, Binding, Message, Port, PortConfig, Sent, Upper};
use crate::platform::{Lock, NoMemory, Platform, Waited, Waiters};
use crate::remote_memory::server::{Config, Server, ServerConfigError, ServerCounters};
use crate::remote_memory::wire::Arrival;

/// Pages beyond those that clients may have: for pages that the NIC still reads.
const SPARE_PAGES: usize = 64;
/// Rounds of a batch for one event; then other ports have their turn.
const ROUNDS: usize = 8;

/// Why memory is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ServerConfigError),
    /// The port.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl From<NoMemory> for ServeError {
    fn from(_: NoMemory) -> Self {
        ServeError::Config(ServerConfigError::NoMemory)
    }
}

/// The state of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryStatus {
    /// Pages in use.
    pub used: usize,
    /// Pages that there are.
    pub pages: usize,
    /// Pages that are in use, or reserved for clients.
    pub committed: usize,
    /// A client that is silent for this long loses its pages, in nanoseconds.
    pub lease: u64,
    /// Clients that are attached.
    pub clients: usize,
    /// It leaves.
    pub leaving: bool,
    /// Counters of the server.
    pub counters: ServerCounters,
}

struct Inner<P: Platform> {
    server: Server<Option<P::Memory>>,
    /// Unused pages.
    spare: Vec<P::Memory>,
    /// The NIC is gone: no client can be reached.
    gone: bool,
}

struct Node<P: Platform> {
    inner: P::SpinLock<Inner<P>>,
    /// Threads that wait until it has left.
    waiters: P::Waiters,
}

/// Memory of this node that other nodes can use. Dropping it ends that at once, and its contents are
/// lost.
pub struct Memory<P: Platform> {
    node: Arc<Node<P>>,
    port: Binding<P>,
    pages: usize,
    lease: u64,
}

impl<P: Platform> Memory<P> {
    /// Allocates all pages, and begins to serve. `bind` binds its port.
    ///
    /// # Errors
    /// [`ServeError`].
    pub(crate) fn serve(
        platform: &P,
        config: Config,
        bind: impl FnOnce(&PortConfig, Arc<dyn Upper<P>>) -> Result<Binding<P>, BindError>,
    ) -> Result<Self, ServeError> {
        let server = Server::new(config)?;
        let mut spare = Vec::new();
        let pages = config.pages + SPARE_PAGES;
        spare.try_reserve_exact(pages).map_err(NoMemory::from)?;
        for _ in 0..pages {
            spare.push(platform.new_page()?);
        }
        let under_way = config.clients * usize::from(config.window) + config.clients;
        let port = PortConfig {
            receives: (under_way + 16).min(1024) as u16,
            steered: 0,
            messages: (under_way + 16).min(4096) as u16,
        };
        let node = Arc::new(Node {
            inner: P::SpinLock::new(Inner {
                server,
                spare,
                gone: false,
            })?,
            waiters: platform.new_waiters()?,
        });
        let port = bind(&port, node.clone())?;
        port.fill()?;
        Ok(Memory {
            node,
            port,
            pages: config.pages,
            lease: config.lease,
        })
    }

    /// Leaves in order: takes no new client, and waits until the present ones have moved their
    /// pages, `timeout_ns` at most. Returns true if they have, or the
    /// NIC is gone. If not, it goes on leaving.
    pub fn leave(&self, timeout_ns: u64) -> bool {
        let now = self.port.now_ns();
        self.node.inner.with(|inner| {
            if !inner.server.is_leaving() {
                inner.server.leave(now);
            }
        });
        self.node.run(&self.port);
        let left = || {
            self.node
                .inner
                .with(|inner| inner.server.has_left() || inner.gone)
        };
        self.node.waiters.wait(&left, Some(timeout_ns)) == Waited::Ready
    }

    /// Ends the waits of all threads that leave, now and later: its NIC goes away.
    pub fn abandon(&self) {
        self.node.inner.with(|inner| inner.gone = true);
        self.node.waiters.wake_all();
    }

    /// Takes the memory back at once, and tells clients so; what they have here is lost.
    pub fn take_back(&self) {
        let now = self.port.now_ns();
        self.node.inner.with(|inner| inner.server.take_back(now));
        self.node.run(&self.port);
    }

    /// Its state.
    pub fn status(&self) -> MemoryStatus {
        self.node.inner.with(|inner| MemoryStatus {
            used: inner.server.pages(),
            pages: self.pages,
            committed: inner.server.committed(),
            lease: self.lease,
            clients: inner.server.attached(),
            leaving: inner.server.is_leaving(),
            counters: inner.server.counters(),
        })
    }
}

impl<P: Platform> Node<P> {
    /// Does the work that is due, and sets the next deadline.
    fn run(&self, port: &Port<P>) {
        for _ in 0..ROUNDS {
            let now = port.now_ns();
            let mut messages: [Option<Sending<P>>; BATCH] = Default::default();
            let mut free: [Option<P::Memory>; BATCH] = Default::default();
            self.inner.with(|inner| {
                inner.server.tick(now);
                for place in &mut messages {
                    let transmit = inner.server.poll_transmit(now);
                    *place = transmit.and_then(|it| Sending::new(it, Option::as_ref));
                }
                for place in &mut free {
                    *place = inner.server.poll_page().flatten();
                }
            });
            let more = messages.iter().any(Option::is_some) || free.iter().any(Option::is_some);
            for message in messages.into_iter().flatten() {
                if let Some(ticket) = message.send(port) {
                    self.inner.with(|inner| inner.server.handle_sent(ticket));
                }
            }
            free.into_iter()
                .flatten()
                .for_each(|page| self.free(port, page));
            if !more {
                let (deadline, left) = self
                    .inner
                    .with(|inner| (inner.server.deadline(), inner.server.has_left()));
                port.set_deadline(deadline);
                if left {
                    self.waiters.wake_all();
                }
                return;
            }
        }
        // There is more work: soon.
        port.set_deadline(Some(port.now_ns()));
    }

    /// A page is free: the port may lack one.
    fn free(&self, port: &Port<P>, page: P::Memory) {
        if let Some(page) = port.give(page) {
            let surplus = self.inner.with(|inner| match inner.spare.len() {
                room if room < inner.spare.capacity() => {
                    inner.spare.push(page);
                    None
                }
                _ => Some(page),
            });
            drop(surplus);
        }
    }
}

impl<P: Platform> Upper<P> for Node<P> {
    fn received(&self, port: &Port<P>, message: Message<P>) {
        let now = port.now_ns();
        let length = message.data.len();
        let [first, second] = message.data.into_buffers();
        drop(second);
        // The server may keep it; then the port gets another one.
        let page = first.map(|buffer| buffer.keep());
        let came = page.is_some();
        let back = self.inner.with(|inner| {
            let back = inner.server.handle_message(
                now,
                Arrival {
                    from: message.from,
                    header: message.header.as_bytes(),
                    target: 0,
                    page,
                    length,
                },
            );
            match back.flatten() {
                None if came => inner.spare.pop(),
                back => back,
            }
        });
        if let Some(page) = back {
            self.free(port, page);
        }
        self.run(port);
    }

    fn sent(&self, port: &Port<P>, sent: Sent<P>) {
        drop(sent.data);
        if let Some(ticket) = ticket(sent.token) {
            self.inner.with(|inner| inner.server.handle_sent(ticket));
            self.run(port);
        }
    }

    fn deadline(&self, port: &Port<P>, _now_ns: u64) {
        self.run(port);
    }

    fn gone(&self, _: &Port<P>) {
        self.inner.with(|inner| inner.gone = true);
        self.waiters.wake_all();
    }
}
