//! The servers of a volume, as its client sees them.
//!
//! ```text
//!              Attached                  no answer for server_timeout
//!   Detached ───────────► Live ◄──────────────────────────────► Silent
//!      ▲                   │ │  an answer in the same session     │
//!      │                   │ └─────────── NoSession ──────────────┤
//!      │                   │ it leaves, its pages are elsewhere   │
//!      │                   ▼                                      ▼
//!      │               Dismissed ────────── Detached ──────────► Gone
//!      └──────── no block names it as a holder any more ──────────┘
//! ```
//! A Silent server still holds the blocks that it has acknowledged, except those that are written
//! meanwhile; a Gone server has lost its memory. A Gone server can become Live again only when a sweep has
//! removed it from every block: so a server that has restarted is never taken for the one that had the data.

use alloc::vec::Vec;

use qnic_abi::remote_memory::{Kind, Reason};

use super::on_the_way::OnTheWay;
use super::server_set::{ServerIndex, ServerSet};
use super::slots::LegOf;
use crate::datagram::Address;
use crate::platform::NoMemory;
use crate::remote_memory::queue::Queue;

/// The state of a server, as the client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// There is no session. The client asks for one.
    Detached,
    /// It answers.
    Live,
    /// It has not answered for a while. Its blocks are not lost yet.
    Silent,
    /// It leaves, and is not needed any more.
    Dismissed,
    /// The session is over, and the server's blocks are lost.
    Gone,
}

/// One server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: Address,
    pub(super) state: ServerState,
    /// Number of its present or last session.
    pub(super) session: u64,
    /// Pages that the client may have there, as the server has said last.
    pub(super) granted: u64,
    /// Pages that are to be reserved there, and that are.
    pub(super) wanted: u64,
    pub(super) reserved: u64,
    /// Number of the last Reserve.
    pub(super) reserving: u32,
    /// A silence of the client for so long ends the session, in milliseconds.
    pub(super) lease_ms: u64,
    /// Pages on their way there for blocks that it does not hold.
    pub(super) incoming: u64,
    /// A session that is not this client's, which the server asks for.
    pub(super) disowned: Option<u64>,
    /// Requests that the client may have under way there.
    window: u16,
    /// It wants to leave.
    pub(super) leaving: bool,
    /// Until when it is not asked for more pages.
    pub(super) full_until: u64,
    /// Legs that were sent and not answered: those on their way, and lost ones.
    outstanding: u16,
    pub(super) on_the_way: OnTheWay,
    /// Since when it owes an answer.
    pub(super) waiting_since: Option<u64>,
    /// The message of the session that waits to be sent, and when the next one is due.
    pub(super) control: Option<Kind>,
    pub(super) control_due: u64,
    /// Its reason for refusing the last Attach, if it is a known one.
    pub(super) refusal: Option<Reason>,
    /// It has answered an Attach.
    pub(super) answered: bool,
    /// Legs that wait to be sent: reads, all others, and retransmissions.
    reads: Queue<LegOf>,
    fresh: Queue<LegOf>,
    again: Queue<LegOf>,
    /// Number of reads that have gone before a waiting leg of `fresh`.
    overtook: u8,
}

/// Which queue a leg waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// A page-in: a task waits for it, while writes come by the hundred at a time.
    Read,
    /// All others that were not sent yet.
    Fresh,
    /// A retransmission.
    Again,
}

/// This many reads go before another waiting leg; then it is its turn.
const OVERTAKING_READS: u8 = 4;

impl Server {
    fn new(address: Address, slots: usize) -> Result<Self, NoMemory> {
        Ok(Server {
            address,
            state: ServerState::Detached,
            session: 0,
            granted: 0,
            wanted: 0,
            reserved: 0,
            reserving: 0,
            lease_ms: 0,
            incoming: 0,
            disowned: None,
            window: 0,
            leaving: false,
            full_until: 0,
            outstanding: 0,
            on_the_way: OnTheWay::new(slots)?,
            waiting_since: None,
            control: None,
            control_due: 0,
            refusal: None,
            answered: false,
            reads: Queue::new(slots)?,
            fresh: Queue::new(slots)?,
            again: Queue::new(slots)?,
            overtook: 0,
        })
    }

    /// Returns true if its session may still be open.
    pub(super) fn has_session(&self) -> bool {
        matches!(
            self.state,
            ServerState::Live | ServerState::Silent | ServerState::Dismissed
        )
    }

    /// Begins a session.
    pub(super) fn attach(&mut self, session: u64, granted: u64, window: u16) {
        self.state = ServerState::Live;
        self.session = session;
        self.granted = granted;
        self.wanted = 0;
        self.reserved = 0;
        self.window = window.max(1);
        self.leaving = false;
        self.full_until = 0;
        self.outstanding = 0;
        self.refusal = None;
        self.control = None;
    }

    /// Pages that it still takes, `held` of its pages being known: of those that are reserved, and in all.
    pub(super) fn room(&self, held: u64) -> (u64, u64) {
        let used = held + self.incoming;
        let left = |pages: u64| pages.saturating_sub(used);
        (left(self.reserved), left(self.granted))
    }

    /// Puts a leg into a queue.
    pub(super) fn enqueue(&mut self, leg: LegOf, order: Order) {
        let queue = match order {
            Order::Read => &mut self.reads,
            Order::Fresh => &mut self.fresh,
            Order::Again => &mut self.again,
        };
        // A slot has at most one leg to a server, and a leg is in one queue: there is room.
        let _ = queue.push(leg);
    }

    /// Takes a leg out of the queues, also one that was sent and will not be answered.
    pub(super) fn drop_leg(&mut self, leg: LegOf, queued: bool, sent: bool) {
        if queued {
            self.reads.remove(&leg);
            self.fresh.remove(&leg);
            self.again.remove(&leg);
        }
        if sent {
            self.outstanding = self.outstanding.saturating_sub(1);
            self.on_the_way.remove(leg);
        }
    }

    /// Takes the leg that may be sent next, if congestion control has room: a retransmission, or a fresh
    /// leg if the server's window has room, too.
    pub(super) fn next_leg(&mut self) -> Option<LegOf> {
        if !self.on_the_way.has_room() {
            return None;
        }
        if let Some(leg) = self.again.pop() {
            return Some(leg);
        }
        if self.outstanding >= self.window {
            return None;
        }
        let leg = self.next_fresh()?;
        self.outstanding += 1;
        Some(leg)
    }

    /// A read, unless as many reads have gone before a waiting leg as may.
    fn next_fresh(&mut self) -> Option<LegOf> {
        if self.overtook < OVERTAKING_READS {
            if let Some(read) = self.reads.pop() {
                let waits = self.fresh.iter().next().is_some();
                self.overtook += u8::from(waits);
                return Some(read);
            }
        }
        self.overtook = 0;
        self.fresh.pop().or_else(|| self.reads.pop())
    }

    /// Notes that a message is sent that has an answer.
    pub(super) fn expect_answer(&mut self, now: u64) {
        self.waiting_since.get_or_insert(now);
    }
}

/// All servers, and the sets of them that requests use.
#[derive(Debug)]
pub(super) struct Servers {
    all: Vec<Server>,
    pub(super) live: ServerSet,
    pub(super) silent: ServerSet,
    pub(super) leaving: ServerSet,
    pub(super) gone: ServerSet,
}

impl Servers {
    /// Servers of which none is attached, with room for legs of so many requests.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(addresses: &[Address], slots: usize) -> Result<Self, NoMemory> {
        let mut all = Vec::new();
        all.try_reserve_exact(addresses.len())?;
        for address in addresses {
            all.push(Server::new(*address, slots)?);
        }
        Ok(Servers {
            all,
            live: ServerSet::default(),
            silent: ServerSet::default(),
            leaving: ServerSet::default(),
            gone: ServerSet::default(),
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ServerIndex, &Server)> {
        (0..).zip(self.all.iter())
    }

    /// One of them.
    pub(super) fn get(&self, server: ServerIndex) -> &Server {
        &self.all[usize::from(server)]
    }

    /// One of them. After a change of its state, [`Servers::update_sets`] must be called.
    pub(super) fn get_mut(&mut self, server: ServerIndex) -> &mut Server {
        &mut self.all[usize::from(server)]
    }

    /// The one with this address.
    pub(super) fn find(&self, address: Address) -> Option<ServerIndex> {
        let found = self.iter().find(|(_, server)| server.address == address);
        found.map(|(index, _)| index)
    }

    /// Derives the sets from the states.
    pub(super) fn update_sets(&mut self) {
        self.live = self.those(|server| server.state == ServerState::Live);
        self.silent = self.those(|server| server.state == ServerState::Silent);
        self.leaving = self.those(|server| server.leaving && server.has_session());
        self.gone = self.those(|server| server.state == ServerState::Gone);
    }

    fn those(&self, property: impl Fn(&Server) -> bool) -> ServerSet {
        let found = self.iter().filter(|(_, server)| property(server));
        found.map(|(index, _)| index).collect()
    }

    /// Live servers that are not leaving.
    pub(super) fn staying(&self) -> ServerSet {
        self.live.without(self.leaving)
    }

    /// The servers that have been full lately.
    pub(super) fn full(&self, now: u64) -> ServerSet {
        self.those(|server| server.full_until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::NodeId;

    #[test]
    fn reads_go_before_writes_and_do_not_keep_them() {
        let address = Address {
            node: NodeId(1),
            port: 2,
        };
        let mut server = Server::new(address, 32).unwrap();
        server.attach(1, 100, 32);
        (0..4).for_each(|slot| server.enqueue((slot, 0), Order::Fresh));
        (10..16).for_each(|slot| server.enqueue((slot, 0), Order::Read));
        server.enqueue((20, 0), Order::Again);
        server.drop_leg((11, 0), true, false);
        let sent = std::iter::from_fn(|| server.next_leg());
        let sent: Vec<_> = sent.map(|(slot, _)| slot).collect();
        assert_eq!(sent, [20, 10, 12, 13, 14, 0, 15, 1, 2, 3]);
    }
}
