//! Sessions with servers: how they begin, are kept, fall silent, return, and end.

use qnic_abi::remote_memory::{Header, Kind, Reason};

use super::server_set::{ServerIndex, ServerSet};
use super::servers::{Server, ServerState};
use super::slots::{Phase, SlotIndex, Work};
use super::{AttachRefusal, Client, ClientState, Failure};

impl<P> Client<P> {
    /// A server has opened a session for the volume.
    pub(super) fn attached(&mut self, now: u64, server: ServerIndex, header: &Header) {
        let session = header.session.get();
        let entry = self.servers.get_mut(server);
        let is_asked_for = entry.state == ServerState::Detached
            && header.version.get() == self.config.client
            && session != 0;
        let is_over = matches!(
            self.state,
            ClientState::Detached | ClientState::TakenBack | ClientState::Failed(_)
        );
        if !is_asked_for || is_over {
            self.counters.stale_answers += 1;
            return;
        }
        entry.attach(session, header.block.get(), header.window.get());
        entry.lease_ms = header.target.get();
        entry.answered = true;
        entry.waiting_since = None;
        entry.control_due = now + self.config.limits.renew_interval;
        self.counters.attached += 1;
        if !self.attaches() {
            // Too late: the server is detached again.
            let entry = self.servers.get_mut(server);
            entry.state = ServerState::Dismissed;
            entry.control = Some(Kind::Detach);
            return self.servers.update_sets();
        }
        self.servers.update_sets();
        if self.state == ClientState::Active {
            self.reserve_again(server);
        }
        self.server_can_help(now);
        self.tick_state(now);
    }

    /// A server refuses to attach the volume, at least for now.
    pub(super) fn attach_refused(&mut self, now: u64, server: ServerIndex, header: &Header) {
        let entry = self.servers.get_mut(server);
        if entry.state == ServerState::Detached && header.version.get() == self.config.client {
            entry.refusal = Reason::try_from(header.reason).ok();
            entry.answered = true;
            entry.waiting_since = None;
            self.tick_state(now);
        } else {
            self.counters.stale_answers += 1;
        }
    }

    /// A server has sent a message in its session.
    pub(super) fn received_from(&mut self, now: u64, server: ServerIndex) {
        let entry = self.servers.get_mut(server);
        entry.waiting_since = None;
        if entry.state == ServerState::Silent {
            entry.state = ServerState::Live;
            self.servers.update_sets();
            self.counters.returned += 1;
            self.server_can_help(now);
        }
    }

    /// A server wants to leave.
    pub(super) fn leaves(&mut self, now: u64, server: ServerIndex) {
        let entry = self.servers.get_mut(server);
        if !entry.leaving {
            entry.leaving = true;
            self.servers.update_sets();
            self.repair.request_now(now);
        }
    }

    /// A server is not needed any more: it leaves, and others have its pages.
    pub(super) fn dismiss(&mut self, now: u64, server: ServerIndex) {
        if self.servers.get(server).state != ServerState::Live {
            return;
        }
        self.end_session(now, server, ServerState::Dismissed);
        let entry = self.servers.get_mut(server);
        entry.control = Some(Kind::Detach);
        entry.control_due = now + self.config.limits.renew_interval;
    }

    /// The session of a server is over, and its memory is lost.
    pub(super) fn server_lost(&mut self, now: u64, server: ServerIndex) {
        if !self.servers.get(server).has_session() {
            return;
        }
        self.end_session(now, server, ServerState::Gone);
        self.counters.lost_servers += 1;
        self.repair.request_now(now);
        self.tick_state(now);
    }

    /// A server has taken back what it gave: this client was silent for the lease, or the server has
    /// ended at once. If blocks were nowhere else, the volume ends as a whole, so nothing mixes what was
    /// written before and after.
    pub(super) fn taken_back(&mut self, now: u64, server: ServerIndex) {
        let gone = self.servers.gone.or(ServerSet::only(server));
        if self.attaches() && self.volume.depends_on(gone) {
            self.goodbye = ClientState::TakenBack;
            self.say_goodbye(now, Failure::TakenBack);
        }
        self.server_lost(now, server);
    }

    /// A server asks whether a session is still this client's.
    pub(super) fn asked(&mut self, server: ServerIndex, session: u64) {
        let entry = self.servers.get_mut(server);
        if entry.has_session() && entry.session == session {
            entry.control = entry.control.or(Some(Kind::Renew));
        } else {
            entry.disowned = Some(session);
        }
    }

    fn end_session(&mut self, now: u64, server: ServerIndex, state: ServerState) {
        let entry = self.servers.get_mut(server);
        entry.state = state;
        entry.control = None;
        entry.waiting_since = None;
        self.servers.update_sets();
        for slot in self.active() {
            let leg = self.slots.get(slot).leg_of(server);
            if let Some(leg) = leg.filter(|_| self.slots.get(slot).phase == Phase::Active) {
                self.move_leg(now, slot, leg, server);
            }
        }
    }

    /// A server does not answer: its acknowledged blocks still count, other requests go to
    /// other servers.
    fn server_silent(&mut self, now: u64, server: ServerIndex) {
        self.servers.get_mut(server).state = ServerState::Silent;
        self.servers.update_sets();
        self.counters.silences += 1;
        for slot in self.active() {
            let request = self.slots.get(slot);
            let leg = request.leg_of(server);
            let leg = leg.filter(|leg| request.legs[*leg].is_some_and(|leg| !leg.acked));
            if let Some(leg) = leg.filter(|_| request.phase == Phase::Active) {
                self.move_leg(now, slot, leg, server);
            }
        }
        self.repair.request_now(now);
    }

    fn move_leg(&mut self, now: u64, slot: SlotIndex, leg: usize, server: ServerIndex) {
        let request = self.slots.get(slot);
        let block = request.block;
        match request.work.brings() {
            true => self.leg_failed(now, slot, leg, false),
            false => {
                self.ask_next(now, slot, Some(server));
                self.wake(now, block);
            }
        }
    }

    /// One more server takes pages: writes with too few servers use it.
    fn server_can_help(&mut self, now: u64) {
        for slot in self.active() {
            let request = self.slots.get(slot);
            if request.phase == Phase::Active && request.work == Work::Write {
                self.fill(now, slot);
            }
        }
        self.repair.request_now(now);
    }

    /// No block names a server that was gone as holder any more.
    pub(super) fn can_attach(&mut self, now: u64, server: ServerIndex) {
        let entry = self.servers.get_mut(server);
        if entry.state == ServerState::Gone {
            entry.state = ServerState::Detached;
            entry.control_due = now;
            self.servers.update_sets();
        }
    }

    /// Detaches from the servers; all requests fail. [`Client::state`] shows when that is over.
    pub fn detach(&mut self, now: u64) {
        let now = self.own_time(now);
        if self.attaches() {
            self.say_goodbye(now, Failure::Detached);
        }
    }

    /// Ends without telling the servers, because nothing can be sent any more. All requests fail.
    pub fn abandon(&mut self, now: u64) {
        self.detach(now);
        if matches!(self.state, ClientState::Detaching { .. }) {
            self.state = self.goodbye;
        }
    }

    /// Returns true if servers without a session are asked for one.
    pub(super) fn attaches(&self) -> bool {
        matches!(
            self.state,
            ClientState::Active | ClientState::Attaching { .. }
        )
    }

    fn say_goodbye(&mut self, now: u64, failure: Failure) {
        self.state = ClientState::Detaching { since: now };
        for slot in 0..self.slots.len() as SlotIndex {
            if matches!(self.slots.get(slot).phase, Phase::Active | Phase::Waiting) {
                _ = self.end(now, slot, Err(failure));
            }
        }
        for server in 0..self.servers.len() as ServerIndex {
            let entry = self.servers.get_mut(server);
            if entry.has_session() {
                entry.state = ServerState::Dismissed;
                entry.control = Some(Kind::Detach);
                entry.control_due = now + self.config.limits.renew_interval;
            }
        }
        self.servers.update_sets();
    }

    /// Does the work with servers that is due.
    pub(super) fn tick_sessions(&mut self, now: u64) {
        let limits = self.config.limits;
        let attaches = self.attaches();
        for server in 0..self.servers.len() as ServerIndex {
            let entry = self.servers.get_mut(server);
            let since = entry.waiting_since.unwrap_or(now);
            let silent = now.saturating_sub(since) >= limits.server_timeout;
            match entry.state {
                ServerState::Live if silent => self.server_silent(now, server),
                ServerState::Dismissed if silent => self.server_lost(now, server),
                _ => {}
            }
            let entry = self.servers.get_mut(server);
            let kind = match entry.state {
                ServerState::Detached if attaches => Kind::Attach,
                ServerState::Live if entry.wanted != entry.reserved => Kind::Reserve,
                ServerState::Live | ServerState::Silent => Kind::Renew,
                ServerState::Dismissed => Kind::Detach,
                _ => continue,
            };
            if now >= entry.control_due {
                entry.control = Some(kind);
                entry.control_due = now + limits.renew_interval;
            }
        }
        self.tick_state(now);
    }

    fn tick_state(&mut self, now: u64) {
        let limits = self.config.limits;
        if let ClientState::Attaching { since } = self.state {
            let in_use = Some(Reason::VolumeInUse);
            let waited = now.saturating_sub(since);
            let all = self.servers.iter().all(|(_, server)| server.answered);
            let used = self.servers.iter().any(|(_, it)| it.refusal == in_use);
            let enough = self.servers.live.count() >= self.config.replicas;
            let may_begin = enough && !used && (all || waited >= limits.server_timeout);
            if may_begin && self.has_reserved() {
                self.state = ClientState::Active;
            } else if self.too_few_can_attach()
                || waited >= limits.attach_timeout
                || self.shortage.is_some() && self.all_are_settled()
            {
                self.goodbye = ClientState::Failed(self.refusal());
                self.say_goodbye(now, Failure::Detached);
            }
        }
        if let ClientState::Detaching { since } = self.state {
            if now >= self.asked_until {
                self.asked_until = 0;
            }
            let asked = self.asked_until != 0;
            let waits = |server: &Server| server.has_session() || asked && !server.answered;
            let over = !self.servers.iter().any(|(_, server)| waits(server));
            if over || now.saturating_sub(since) >= limits.server_timeout {
                self.state = self.goodbye;
            }
        }
    }

    /// Returns true if each server has given memory or refused it. One that is silent, or has begun anew,
    /// may still bring the room that is missing.
    fn all_are_settled(&self) -> bool {
        let mut servers = self.servers.iter();
        servers.all(|(_, it)| it.state == ServerState::Live || it.refusal.is_some())
    }

    /// Returns true if so many servers have refused the volume that fewer than its replicas are left:
    /// attaching can fail at once.
    pub(super) fn too_few_can_attach(&self) -> bool {
        let others = self.servers.iter();
        let others = others.filter(|(_, server)| server.refusal.is_none());
        others.count() < self.config.replicas
    }

    /// The first refusal, in the order of the configuration; or that there is too little room.
    fn refusal(&self) -> Option<AttachRefusal> {
        let refused = self.servers.iter().find_map(|(_, server)| {
            let reason = server.refusal?;
            Some(AttachRefusal {
                server: server.address,
                reason,
                room: 0,
            })
        });
        let short = self.shortage.zip(self.servers.iter().next());
        let short = short.map(|(room, (_, server))| AttachRefusal {
            server: server.address,
            reason: Reason::NoRoom,
            room,
        });
        refused
            .filter(|_| self.too_few_can_attach())
            .or(short)
            .or(refused)
    }

    /// The requests that are active now; each is checked again before it is touched.
    fn active(&self) -> core::ops::Range<SlotIndex> {
        0..self.slots.len() as SlotIndex
    }
}
