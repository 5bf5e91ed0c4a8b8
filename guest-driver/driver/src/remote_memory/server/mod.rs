//! The server of remote memory (H9): keeps pages for clients.
//!
//! ```text
//!   Server::new(config)
//!   ┌─► handle_message(now, arrival)     a datagram from a client
//!   │   handle_sent(ticket)              the NIC does not read a page any more
//!   │   tick(now)                        at deadline(), or later
//!   │   poll_transmit(now)               until there is none
//!   │   poll_page()                      pages that are free again, until there is none
//!   └── deadline()
//!   leave(now)                           has_left() soon after
//! ```
//!
//! # Promises
//! 1. Of each block of each client it keeps the newest version that it was sent.
//! 2. It keeps acknowledged pages until the session ends: by Detach, because the client has been silent
//!    for [`Config::lease`], or because this server ends at once ([`Server::take_back`]). They are in no
//!    later session, and every request of the session is refused from then on, with Expired.
//! 3. All clients together have at most [`Config::pages`] pages, each at most
//!    [`Config::quota`], and each can only reach its own. Pages that a client has reserved no other
//!    one gets.
//! 4. A client that sends requests without end delays answers to others by no more than its window: its
//!    further requests are dropped and counted.

mod answers;
mod clients;
mod config;
mod requests;
mod store;

use qnic_abi::remote_memory::{Kind, HEADER_BYTES};

pub use config::{Config, ServerConfigError, MAX_CLIENTS};

use super::queue::Queue;
use super::wire::{bare, expired, header, AsHeader, Ticket, Transmit};
use answers::{Answer, Answers};
use clients::Clients;
use store::Store;

/// Counters since the server was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerCounters {
    /// Pages that were sent.
    pub reads: u64,
    /// Pages that were stored.
    pub writes: u64,
    /// Writes that came again, or late: the same or a newer version was stored already.
    pub stale_writes: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that were dropped because their client has too many under way.
    pub dropped: u64,
    /// Messages that are none of a client's.
    pub malformed: u64,
    /// Sessions that ended because the client was silent for too long.
    pub expired: u64,
}

/// A server.
#[derive(Debug)]
pub struct Server<P> {
    config: Config,
    store: Store<P>,
    clients: Clients,
    answers: Answers,
    /// Pages that were orphans.
    freed: Queue<P>,
    counters: ServerCounters,
    leaving: bool,
}

impl<P> Server<P> {
    /// Makes a server without any client.
    ///
    /// # Errors
    /// [`ServerConfigError`].
    pub fn new(config: Config) -> Result<Self, ServerConfigError> {
        config.check()?;
        let answers = config.clients * usize::from(config.window);
        Ok(Server {
            store: Store::new(config.pages, config.clients, answers)?,
            clients: Clients::new(config.clients, config.incarnation)?,
            answers: Answers::new(config.clients, config.window)?,
            freed: Queue::new(answers)?,
            counters: ServerCounters::default(),
            leaving: false,
            config,
        })
    }

    /// The counters.
    pub fn counters(&self) -> ServerCounters {
        self.counters
    }

    /// Pages that clients have.
    pub fn pages(&self) -> usize {
        self.store.used()
    }

    /// Pages that clients have, or that are reserved for them.
    pub fn committed(&self) -> usize {
        self.store.used() + self.clients.promised(None)
    }

    /// Clients that are attached.
    pub fn attached(&self) -> usize {
        self.clients.attached().count()
    }

    /// Takes all pages back at once, whatever clients have here, and tells them so.
    pub fn take_back(&mut self, now: u64) {
        self.leave(now);
        for client in 0..self.config.clients as u8 {
            if self.clients.is_attached(client) {
                let entry = self.clients.get(client);
                let (to, ended) = (entry.address, header(Kind::Refused, 0, entry.session));
                self.clients.end(client);
                self.push(to, expired(ended), Some(client));
            }
        }
    }

    /// Begins to leave: takes no new client, and asks those that it has to move their pages.
    pub fn leave(&mut self, now: u64) {
        self.leaving = true;
        self.clients.ask_to_go(now);
    }

    /// Returns true if it leaves.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns true if it leaves and no client needs it any more, or has pages here.
    pub fn has_left(&self) -> bool {
        let attached = self.clients.attached().next().is_some();
        self.leaving && !attached && self.clients.ending().is_none()
    }

    /// Does the work that is due.
    pub fn tick(&mut self, now: u64) {
        self.counters.expired += self.clients.expire(now, self.config.lease);
    }

    /// When work is due next, if nothing happens before.
    pub fn deadline(&self) -> Option<u64> {
        self.clients.deadline(self.config.lease, self.leaving)
    }

    /// A page that is free again: one of a client that is gone, or an orphan that the NIC has read
    /// meanwhile.
    pub fn poll_page(&mut self) -> Option<P> {
        if let Some(page) = self.freed.pop() {
            return Some(page);
        }
        while let Some(client) = self.clients.ending() {
            match self.store.pop(client) {
                Some(Some(page)) => return Some(page),
                // The NIC reads it: it comes later.
                Some(None) => {}
                None => self.clients.release(client),
            }
        }
        None
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self, now: u64) -> Option<Transmit<'_, P>> {
        if let Some(client) = self.clients.next_to_ask(now) {
            let entry = self.clients.get(client);
            return Some(bare(entry.address, &header(Kind::Ask, 0, entry.session)));
        }
        if self.leaving {
            let interval = self.config.leave_interval;
            if let Some(client) = self.clients.next_to_go(now, interval) {
                let entry = self.clients.get(client);
                let mut leave = header(Kind::Leave, 0, entry.session);
                leave.block = u64::from(entry.pages).into();
                return Some(bare(entry.address, &leave));
            }
        }
        let answer = self.answers.pop()?;
        let Answer {
            to,
            header,
            target,
            entry,
            client,
        } = answer;
        let Some(entry) = entry else {
            self.answers.is_sent(client);
            return Some(Transmit {
                target,
                ..bare(to, &header)
            });
        };
        let bytes: [u8; HEADER_BYTES] = header.bytes();
        Some(Transmit {
            to,
            header: bytes,
            target,
            data: self.store.page(entry),
            ticket: Some(self.answers.ticket(entry, client)),
        })
    }

    /// Takes back a page that the NIC does not read any more.
    pub fn handle_sent(&mut self, ticket: Ticket) {
        if let Some(entry) = self.answers.redeem(ticket) {
            if let Some(page) = self.store.end_read(entry) {
                // There is room: an orphan for each answer at most.
                let _ = self.freed.push(page);
            }
        }
    }
}
