//! The clients that are attached.

use alloc::vec::Vec;

use super::config::MAX_CLIENTS;
use crate::datagram::Address;
use crate::platform::NoMemory;

const _: () = assert!(MAX_CLIENTS.is_power_of_two());

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Attached,
    /// The session is over; the client still has pages.
    Ending,
}

/// A client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client {
    state: State,
    pub(super) address: Address,
    pub(super) volume: u64,
    /// Number of its life.
    pub(super) life: u64,
    pub(super) session: u64,
    /// Pages that it has.
    pub(super) pages: u32,
    /// When it sent a message last.
    last_received: u64,
    /// When it is asked to go.
    ask_due: u64,
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    all: Vec<Client>,
    /// Makes each session number unlike all earlier ones.
    next: u64,
}

impl Clients {
    /// No clients, with room for so many.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(count: usize, incarnation: u64) -> Result<Self, NoMemory> {
        let nobody = Client {
            state: State::Free,
            address: Address {
                node: qnic_abi::NodeId(0),
                port: 0,
            },
            volume: 0,
            life: 0,
            session: 0,
            pages: 0,
            last_received: 0,
            ask_due: 0,
        };
        let mut all = Vec::new();
        all.try_reserve_exact(count)?;
        all.resize(count, nobody);
        Ok(Clients {
            all,
            next: incarnation,
        })
    }

    /// A client.
    pub(super) fn get(&self, client: u8) -> &Client {
        &self.all[usize::from(client)]
    }

    /// A client.
    pub(super) fn get_mut(&mut self, client: u8) -> &mut Client {
        &mut self.all[usize::from(client)]
    }

    /// The client with a session, if it has this address.
    pub(super) fn find(&self, session: u64, from: Address) -> Option<u8> {
        let index = session as usize % MAX_CLIENTS;
        let client = self.all.get(index)?;
        let is_it =
            client.state == State::Attached && client.session == session && client.address == from;
        is_it.then_some(index as u8)
    }

    /// Clients that are attached.
    pub(super) fn attached(&self) -> impl Iterator<Item = (u8, &Client)> {
        let all = (0..).zip(self.all.iter());
        all.filter(|(_, client)| client.state == State::Attached)
    }

    /// The client that has attached a volume.
    pub(super) fn of_volume(&self, volume: u64) -> Option<(u8, Client)> {
        let found = self.attached().find(|(_, client)| client.volume == volume);
        found.map(|(index, client)| (index, *client))
    }

    /// Begins a session, if there is room for a client.
    pub(super) fn attach(
        &mut self,
        now: u64,
        address: Address,
        volume: u64,
        life: u64,
    ) -> Option<u8> {
        let is_free = |client: &Client| client.state == State::Free;
        let index = self.all.iter().position(is_free)?;
        self.next = self.next.wrapping_add(1);
        let number = self.next.wrapping_mul(MAX_CLIENTS as u64);
        self.all[index] = Client {
            state: State::Attached,
            address,
            volume,
            life,
            // Zero is no session number, so index 0 alone would not do.
            session: (number | index as u64).max(MAX_CLIENTS as u64 | index as u64),
            pages: 0,
            last_received: now,
            ask_due: now,
        };
        Some(index as u8)
    }

    /// A client has sent a message.
    pub(super) fn received_from(&mut self, now: u64, client: u8) {
        self.get_mut(client).last_received = now;
    }

    /// Ends a session.
    pub(super) fn end(&mut self, client: u8) {
        self.get_mut(client).state = State::Ending;
    }

    /// A client whose pages are to be freed.
    pub(super) fn ending(&self) -> Option<u8> {
        let is_ending = |client: &Client| client.state == State::Ending;
        self.all.iter().position(is_ending).map(|index| index as u8)
    }

    /// A client has no pages any more.
    pub(super) fn release(&mut self, client: u8) {
        self.get_mut(client).state = State::Free;
    }

    /// Ends the sessions of clients that have been silent for `lease`. Returns their number.
    pub(super) fn expire(&mut self, now: u64, lease: u64) -> u64 {
        let mut expired = 0;
        for client in &mut self.all {
            let silence = now.saturating_sub(client.last_received);
            if client.state == State::Attached && silence >= lease {
                client.state = State::Ending;
                expired += 1;
            }
        }
        expired
    }

    /// Asks all clients to go.
    pub(super) fn ask_to_go(&mut self, now: u64) {
        self.all.iter_mut().for_each(|client| client.ask_due = now);
    }

    /// The next client that is to be asked to go; it is asked again after `interval`.
    pub(super) fn next_to_ask(&mut self, now: u64, interval: u64) -> Option<u8> {
        let is_due = |client: &Client| client.state == State::Attached && client.ask_due <= now;
        let index = self.all.iter().position(is_due)?;
        self.all[index].ask_due = now.saturating_add(interval);
        Some(index as u8)
    }

    /// When a client is to be asked to go, or has been silent for too long.
    pub(super) fn deadline(&self, lease: u64, leaving: bool) -> Option<u64> {
        let due = |client: &Client| {
            let expires = client.last_received.saturating_add(lease);
            if leaving {
                expires.min(client.ask_due)
            } else {
                expires
            }
        };
        self.attached().map(|(_, client)| due(client)).min()
    }
}
