//! The connections of an endpoint, and the state that they share.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use qnic_abi::stream::{Kind, StreamHeader};
use qnic_shared::timing::{Time, TimerId, TimerWheel};

use crate::stream_protocol::address::{Address, ConnectionId, Failure};
use crate::stream_protocol::budget::Budget;
use crate::stream_protocol::buffer::{ReceivedFrame, SendFrame};
use crate::stream_protocol::config::{BadConfig, Config};
use crate::stream_protocol::connection::{Connection, Stage, Timers};

/// Connections that have ended of which the last Ack is kept.
const ENDED: usize = 64;

/// The counters of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames handed out to be sent.
    pub frames_sent: u64,
    /// Data frames among them.
    pub data_frames_sent: u64,
    /// Data frames that were sent before.
    pub data_frames_resent: u64,
    /// Losses that only the timer found.
    pub resend_timeouts: u64,
    /// Frames that came and were taken.
    pub frames_received: u64,
    /// Data frames that had come before: dropped.
    pub repeated_frames: u64,
    /// Data frames that no window allowed: dropped.
    pub frames_outside: u64,
    /// Frames that contradict themselves or earlier ones: dropped.
    pub malformed_frames: u64,
    /// Frames of unknown connections, or from others than the peer: dropped.
    pub stale_frames: u64,
    /// Opens that were refused, because no program listens or too many wait.
    pub opens_refused: u64,
    /// Resets and last Acks that were not sent, as too many were waiting.
    pub resets_dropped: u64,
    /// Connections that have failed.
    pub connections_failed: u64,
}

/// The thing that the program should look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// Bytes can be read or written, or the connection has ended or failed.
    Connection(ConnectionId),
    /// A connection can be accepted.
    Incoming,
}

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarm {
    Retransmit(ConnectionId),
    Ack(ConnectionId),
    Silence(ConnectionId),
}

/// All connections of a datagram port.
#[derive(Debug)]
pub struct Endpoint<S, R> {
    pub(crate) config: Config,
    random: u64,
    slots: Vec<Option<Connection<S, R>>>,
    free: Vec<u16>,
    count: usize,
    /// Connections that peers have opened and the program has not accepted, by the contents of the Open.
    pub(crate) pending: BTreeMap<(Address, u64), ConnectionId>,
    /// The pending connections that are open.
    pub(crate) incoming: VecDeque<ConnectionId>,
    pub(crate) is_listening: bool,
    /// Connections that linger, the one that has done so longest first.
    pub(crate) lingering: VecDeque<ConnectionId>,
    /// Connections that may have frames to send.
    pub(crate) queue: VecDeque<ConnectionId>,
    /// Answers to frames of connections that the table does not have.
    pub(crate) answers: VecDeque<(Address, StreamHeader)>,
    /// The last Acks of connections that were complete and have gone, the oldest first: if the
    /// peer has not got them, its frames come again.
    ended: VecDeque<(Address, StreamHeader)>,
    pub(crate) changed: VecDeque<Changed>,
    pub(crate) incoming_changed: bool,
    pub(crate) receive_budget: Budget,
    pub(crate) send_budget: Budget,
    pub(crate) timers: TimerWheel<Alarm>,
    pub(crate) counters: Counters,
}

impl<S: SendFrame, R: ReceivedFrame> Endpoint<S, R> {
    /// An endpoint without connections. `seed` is random: a peer that can guess it can guess the numbers
    /// of connections.
    ///
    /// # Errors
    /// [`BadConfig`]
    pub fn new(config: Config, seed: u64) -> Result<Self, BadConfig> {
        config.check()?;
        let connections = config.connections;
        Ok(Endpoint {
            random: seed,
            slots: (0..connections).map(|_| None).collect(),
            free: (0..connections as u16).rev().collect(),
            count: 0,
            pending: BTreeMap::new(),
            incoming: VecDeque::new(),
            is_listening: false,
            lingering: VecDeque::new(),
            queue: VecDeque::new(),
            answers: VecDeque::new(),
            ended: VecDeque::new(),
            changed: VecDeque::new(),
            incoming_changed: false,
            receive_budget: Budget::new(config.receive_frames, connections),
            send_budget: Budget::new(config.send_frames, connections),
            timers: TimerWheel::new(),
            counters: Counters::default(),
            config,
        })
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The number of connections in the table.
    pub fn connections(&self) -> usize {
        self.count
    }

    /// Returns true if a peer lacks something that was written to it, or the end of it.
    pub fn owes_data(&self) -> bool {
        let mut connections = self.slots.iter().flatten();
        connections.any(|it| !matches!(it.stage, Stage::Failed(_)) && it.sender.len() > 0)
    }

    /// The next change that the program has to look at. A connection is named once, however much
    /// has changed.
    pub fn poll_changed(&mut self) -> Option<Changed> {
        let changed = self.changed.pop_front()?;
        match changed {
            Changed::Incoming => self.incoming_changed = false,
            Changed::Connection(id) => {
                if let Some(connection) = self.get_mut(id) {
                    connection.is_changed = false;
                }
            }
        }
        Some(changed)
    }

    /// When [`Endpoint::tick`] has work at the latest; perhaps earlier.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.deadline()
    }

    /// The next random number (splitmix64).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Adds a connection; makes room by ending one that lingers. `None` if the table is full.
    pub(crate) fn insert(
        &mut self,
        now: Time,
        peer: Address,
        theirs: u64,
        stage: Stage,
    ) -> Option<ConnectionId> {
        if self.free.is_empty() {
            let oldest = self.lingering.front().copied()?;
            self.remove(oldest);
        }
        let slot = self.free.pop()?;
        // The highest bit is set, so that no name is zero.
        let own = self.next_random() & !0xffff | 1 << 63 | u64::from(slot);
        self.slots[usize::from(slot)] = Some(Connection::new(peer, own, theirs, stage, now));
        self.count += 1;
        Some(ConnectionId(own))
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection<S, R>> {
        let connection = self.slots.get(id.slot())?.as_ref()?;
        (connection.own == id.0).then_some(connection)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<S, R>> {
        let connection = self.slots.get_mut(id.slot())?.as_mut()?;
        (connection.own == id.0).then_some(connection)
    }

    /// The connections that this side opens to an address.
    pub(crate) fn opening_to(&self, peer: Address) -> Vec<ConnectionId> {
        let slots = self.slots.iter().flatten();
        let opening = slots.filter(|it| it.peer == peer && it.stage == Stage::Opening);
        opening.map(|it| ConnectionId(it.own)).collect()
    }

    /// A connection, together with the budgets and the configuration.
    pub(crate) fn parts(&mut self, id: ConnectionId) -> Option<Parts<'_, S, R>> {
        let connections = self.count;
        let connection = self.slots.get_mut(id.slot())?.as_mut()?;
        let window = self.config.window as usize;
        (connection.own == id.0).then_some(Parts {
            receive_share: self.receive_budget.share(connections, window),
            send_share: self.send_budget.share(connections, window),
            connection,
            receive: &mut self.receive_budget,
            send: &mut self.send_budget,
            config: &self.config,
        })
    }

    /// A connection, together with the configuration.
    pub(crate) fn configured(
        &mut self,
        id: ConnectionId,
    ) -> Option<(&mut Connection<S, R>, &Config)> {
        let parts = self.parts(id)?;
        Some((parts.connection, parts.config))
    }

    /// The last Ack of a connection that was complete, for a frame of its peer.
    pub(crate) fn last_ack(&self, id: ConnectionId, peer: Address) -> Option<StreamHeader> {
        let mut ended = self.ended.iter();
        let found = ended.find(|(to, ack)| ack.from.get() == id.0 && *to == peer);
        found.map(|(_, ack)| *ack)
    }

    /// Removes a connection with all its frames.
    pub(crate) fn remove(&mut self, id: ConnectionId) {
        let Some(parts) = self.parts(id) else {
            return;
        };
        let connection = parts.connection;
        let ack = (connection.stage == Stage::Lingering)
            .then(|| (connection.peer, connection.header(Kind::Ack)));
        connection.stop(parts.receive, parts.send);
        connection.receiver.clear(parts.receive);
        let opened = (connection.peer, connection.theirs);
        let timers = std::mem::take(&mut connection.timers);
        self.cancel(timers);
        if self.pending.get(&opened) == Some(&id) {
            self.pending.remove(&opened);
        }
        self.incoming.retain(|other| *other != id);
        self.lingering.retain(|other| *other != id);
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.extend(ack);
        self.slots[id.slot()] = None;
        self.free.push(id.slot() as u16);
        self.count -= 1;
    }

    fn cancel(&mut self, timers: Timers) {
        let all = [timers.retransmit, timers.ack, timers.silence];
        for timer in all.into_iter().flatten() {
            self.timers.check_out(timer);
        }
    }

    /// Sets a timer that is not set.
    pub(crate) fn arm(
        &mut self,
        id: ConnectionId,
        at: Time,
        alarm: Alarm,
        which: impl Fn(&mut Timers) -> &mut Option<TimerId>,
    ) {
        let Some(connection) = self.slots[id.slot()].as_mut() else {
            return;
        };
        let timer = which(&mut connection.timers);
        if timer.is_none() {
            *timer = Some(self.timers.check_in(at, alarm));
        }
    }

    /// Notes that the connection may have frames to send.
    pub(crate) fn schedule(&mut self, id: ConnectionId) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        if !connection.is_queued && connection.next_kind().is_some() {
            connection.is_queued = true;
            self.queue.push_back(id);
        }
    }

    /// Notes that the program has to look at the connection.
    pub(crate) fn change(&mut self, id: ConnectionId) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        if connection.is_accepted && !connection.is_changed {
            connection.is_changed = true;
            self.changed.push_back(Changed::Connection(id));
        }
    }

    /// A connection has failed: the program learns of it; if no program has it, it is removed.
    pub(crate) fn fail(&mut self, id: ConnectionId, failure: Failure) {
        let Some(parts) = self.parts(id) else {
            return;
        };
        let connection = parts.connection;
        if let Stage::Failed(_) = connection.stage {
            return;
        }
        connection.stop(parts.receive, parts.send);
        connection.stage = Stage::Failed(failure);
        let is_accepted = connection.is_accepted;
        let timers = std::mem::take(&mut connection.timers);
        self.cancel(timers);
        self.counters.connections_failed += 1;
        match is_accepted {
            true => self.change(id),
            false => self.remove_when_reset_is_sent(id),
        }
    }

    /// Removes a connection that the program does not have; if a Reset is due, after it was sent.
    pub(crate) fn remove_when_reset_is_sent(&mut self, id: ConnectionId) {
        let reset = |connection: &Connection<S, R>| connection.reset_due.is_some();
        match self.get(id).is_some_and(reset) {
            true => self.schedule(id),
            false => self.remove(id),
        }
    }
}

/// A connection, and the state that it shares with others.
pub(crate) struct Parts<'a, S, R> {
    pub(crate) connection: &'a mut Connection<S, R>,
    pub(crate) receive: &'a mut Budget,
    pub(crate) send: &'a mut Budget,
    pub(crate) config: &'a Config,
    /// The most frames of either kind that one connection gets.
    pub(crate) receive_share: usize,
    pub(crate) send_share: usize,
}
