//! The clients that are attached.

use alloc::vec::Vec;

use super::config::MAX_CLIENTS;
use crate::datagram::Address;
use crate::platform::NoMemory;

const _: () = assert!(MAX_CLIENTS.is_power_of_two());

/// A client that has said nothing for so long is asked whether it is still there, and again after so long, in
/// nanoseconds. One that is gone, and whose port another one has, says so: its pages are free before its lease
/// is over.
const ASK_AFTER: u64 = 5_000_000_000;

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
    /// Pages that are reserved for it, those that it has included.
    pub(super) reserved: u32,
    /// When it sent a message last.
    last_received: u64,
    /// When it is asked to go.
    leave_due: u64,
    /// When it is asked whether it is still there.
    ask_due: u64,
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    all: Vec<Client>,
    /// Makes each session number unlike all earlier ones.
    next: u64,
    /// Where `next` began.
    incarnation: u64,
    /// When silent clients were looked for last.
    called_at: u64,
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
            reserved: 0,
            last_received: 0,
            leave_due: 0,
            ask_due: 0,
        };
        let mut all = Vec::new();
        all.try_reserve_exact(count)?;
        all.resize(count, nobody);
        Ok(Clients {
            all,
            next: incarnation,
            incarnation,
            called_at: 0,
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
            reserved: 0,
            last_received: now,
            leave_due: now,
            ask_due: now.saturating_add(ASK_AFTER),
        };
        Some(index as u8)
    }

    /// A client has sent a message.
    pub(super) fn received_from(&mut self, now: u64, client: u8) {
        let client = self.get_mut(client);
        client.last_received = now;
        client.ask_due = now.saturating_add(ASK_AFTER);
    }

    /// Returns true if this server has opened that session, and it is over.
    pub(super) fn is_over(&self, session: u64) -> bool {
        let mask = u64::MAX / MAX_CLIENTS as u64;
        let number = session / MAX_CLIENTS as u64;
        let age = number.wrapping_sub(self.incarnation) & mask;
        let opened = self.next.wrapping_sub(self.incarnation) & mask;
        let is_open = self.attached().any(|(_, client)| client.session == session);
        (1..=opened).contains(&age) && !is_open
    }

    /// Pages that clients have reserved and do not have yet, without those of one client.
    pub(super) fn promised(&self, except: Option<u8>) -> usize {
        let others = self.attached().filter(|(index, _)| Some(*index) != except);
        let promised = |client: &Client| client.reserved.saturating_sub(client.pages) as usize;
        others.map(|(_, client)| promised(client)).sum()
    }

    /// Another life of a client has the address of a session: it is asked at once whether the session is
    /// its own.
    pub(super) fn doubt(&mut self, now: u64, address: Address) {
        let there = self.all.iter_mut();
        let there = there.filter(|it| it.state == State::Attached && it.address == address);
        there.for_each(|client| client.ask_due = client.ask_due.min(now));
    }

    /// The client of an address whose life is another one.
    pub(super) fn other_life(&self, address: Address, life: u64) -> bool {
        let mut attached = self.attached();
        attached.any(|(_, client)| client.address == address && client.life != life)
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

    /// Returns true if its session is open.
    pub(super) fn is_attached(&self, client: u8) -> bool {
        self.get(client).state == State::Attached
    }

    /// A client has no pages any more.
    pub(super) fn release(&mut self, client: u8) {
        self.get_mut(client).state = State::Free;
    }

    /// Ends the sessions of clients that have been silent for `lease`. Returns their number.
    /// Times in which this server stood still are no silence of its clients: while it has some, it is called
    /// as often as it asks them.
    pub(super) fn expire(&mut self, now: u64, lease: u64) -> u64 {
        let mut expired = 0;
        let since = now.saturating_sub(self.called_at);
        if since > 2 * ASK_AFTER {
            for client in &mut self.all {
                client.last_received = client.last_received.saturating_add(since).min(now);
            }
        }
        self.called_at = now;
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
        self.all
            .iter_mut()
            .for_each(|client| client.leave_due = now);
    }

    /// The next client that is to be asked to go; it is asked again after `interval`.
    pub(super) fn next_to_go(&mut self, now: u64, interval: u64) -> Option<u8> {
        let is_due = |client: &Client| client.state == State::Attached && client.leave_due <= now;
        let index = self.all.iter().position(is_due)?;
        self.all[index].leave_due = now.saturating_add(interval);
        Some(index as u8)
    }

    /// The next client that is to be asked whether it is still there.
    pub(super) fn next_to_ask(&mut self, now: u64) -> Option<u8> {
        let is_due = |client: &Client| client.state == State::Attached && client.ask_due <= now;
        let index = self.all.iter().position(is_due)?;
        self.all[index].ask_due = now.saturating_add(ASK_AFTER);
        Some(index as u8)
    }

    /// When a client is to be asked to go, or has been silent for too long.
    pub(super) fn deadline(&self, lease: u64, leaving: bool) -> Option<u64> {
        let due = |client: &Client| {
            let expires = client.last_received.saturating_add(lease);
            let asked = expires.min(client.ask_due);
            if leaving {
                asked.min(client.leave_due)
            } else {
                asked
            }
        };
        self.attached().map(|(_, client)| due(client)).min()
    }
}
