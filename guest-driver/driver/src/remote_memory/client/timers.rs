//! Timers: messages that are sent again, requests that have taken too long.
//!
//! Each server has a time at which its messages on their way must be checked, and the table of
//! requests has one. When the earliest of these may have passed, all are checked.

use super::server_set::{ServerIndex, ServerSet};
use super::servers::ServerState;
use super::slots::{Phase, SlotIndex, Work};
use super::{Client, ClientState, Failure};

/// A write is sent at least so often before a server that answers other requests is blamed for it: a
/// wire that loses two of five messages loses so many in a row once in ten thousand times.
const LEAST_TRANSMISSIONS: u32 = 10;

/// A client that was not called for so long stood still, in nanoseconds.
const STOOD_STILL: u64 = 1_000_000_000;

impl<P> Client<P> {
    /// Does the work that is due.
    pub fn tick(&mut self, now: u64) {
        let now = self.own_time(now);
        self.tick_sessions(now);
        if now >= self.scan_due {
            self.scan(now);
        }
        if self.state == ClientState::Active {
            self.sweep(now);
        }
    }

    /// The time that this client lives by: that of its node without the times in which it stood still. While it
    /// takes requests it is called once in a `renew_interval`. If it was not called for much longer, its node
    /// was paused, and servers had no time to answer.
    pub(super) fn own_time(&mut self, now: u64) -> u64 {
        let interval = self.config.limits.renew_interval;
        let since = now.saturating_sub(self.called_at);
        if self.attaches() && since > STOOD_STILL.max(2 * interval) {
            self.stood_still += since - interval;
            self.counters.pauses += 1;
        }
        self.called_at = self.called_at.max(now);
        now.saturating_sub(self.stood_still)
    }

    /// When work is due next, if nothing happens before; perhaps too early.
    pub fn deadline(&self) -> Option<u64> {
        Some(self.own_deadline()?.saturating_add(self.stood_still))
    }

    fn own_deadline(&self) -> Option<u64> {
        let limits = &self.config.limits;
        let servers = self.servers.iter().filter_map(|(_, server)| {
            let silent = server.waiting_since.map(|it| it + limits.server_timeout);
            let control = server.control_due;
            match server.state {
                ServerState::Gone => None,
                ServerState::Detached => self.attaches().then_some(control),
                ServerState::Silent => Some(control),
                _ => Some(silent.map_or(control, |silent| silent.min(control))),
            }
        });
        let state = match self.state {
            ClientState::Attaching { .. } => None,
            ClientState::Active => self.repair.deadline(),
            ClientState::Detaching { since } => {
                let asked = (self.asked_until != 0).then_some(self.asked_until);
                Some(asked.unwrap_or(since + limits.server_timeout))
            }
            ClientState::Detached | ClientState::TakenBack | ClientState::Failed(_) => return None,
        };
        let scan = (self.scan_due != u64::MAX).then_some(self.scan_due);
        servers.chain(state).chain(scan).min()
    }

    /// Checks all servers and requests.
    fn scan(&mut self, now: u64) {
        self.scan_due = u64::MAX;
        for server in 0..self.servers.len() as ServerIndex {
            self.resend_lost(now, server);
        }
        for slot in 0..self.slots.len() as SlotIndex {
            let request = self.slots.get(slot);
            match request.phase {
                Phase::Free | Phase::Draining(_) => continue,
                _ if request.deadline <= now => self.time_out(now, slot),
                Phase::Active if request.work == Work::Write && request.servers().is_empty() => {
                    self.fill(now, slot);
                    self.write_acked(now, slot);
                }
                Phase::Active | Phase::Waiting => {}
            }
            let request = self.slots.get(slot);
            if matches!(request.phase, Phase::Active | Phase::Waiting) {
                self.scan_due = self.scan_due.min(request.deadline);
            }
        }
    }

    /// Sends lost messages to a server again.
    fn resend_lost(&mut self, now: u64, server: ServerIndex) {
        loop {
            let limits = &self.config.limits.retransmit;
            let on_the_way = &mut self.servers.get_mut(server).on_the_way;
            let Some((slot, leg)) = on_the_way.next_lost(now, limits) else {
                break;
            };
            self.leg_lost(now, slot, usize::from(leg));
        }
        self.note_deadline(server);
    }

    /// The messages on their way have changed: they may have to be checked earlier.
    pub(super) fn note_deadline(&mut self, server: ServerIndex) {
        let limits = &self.config.limits.retransmit;
        let deadline = self.servers.get(server).on_the_way.deadline(limits);
        self.scan_due = self.scan_due.min(deadline);
    }

    /// A leg was sent and seems lost.
    fn leg_lost(&mut self, now: u64, slot: SlotIndex, leg: usize) {
        let request = self.slots.get(slot);
        let (block, work) = (request.block, request.work);
        let Some(lost) = request.legs[leg].filter(|leg| !leg.acked && !leg.queued) else {
            return;
        };
        let patience = 2 * self.config.limits.server_timeout;
        if !work.brings() {
            self.counters.retransmissions += 1;
            self.ask_next(now, slot, Some(lost.server));
            self.wake(now, block);
        } else if lost.transmissions >= LEAST_TRANSMISSIONS
            && now.saturating_sub(lost.first_sent) >= patience
        {
            // The server answers other requests, but not this one.
            self.counters.bad_answers += 1;
            self.leg_failed(now, slot, leg, true);
        } else {
            self.resend(slot, leg);
        }
    }

    /// All servers that a request waits for are silent. The request waits until the one that answered
    /// last has owed an answer for as long as a request may take. So a user with one request after the
    /// other, as a kernel that swaps, waits once, and not once for each request.
    pub(super) fn wait_for_silent(&mut self, slot: SlotIndex, silent: ServerSet) {
        let since = silent
            .iter()
            .filter_map(|it| self.servers.get(it).waiting_since);
        let (Some(since), false) = (since.max(), self.slots.get(slot).work.is_copy()) else {
            return;
        };
        let limit = since.saturating_add(self.config.limits.request_timeout);
        let request = self.slots.get_mut(slot);
        request.deadline = request.deadline.min(limit);
        self.scan_due = self.scan_due.min(request.deadline);
    }

    fn time_out(&mut self, now: u64, slot: SlotIndex) {
        self.counters.timed_out += 1;
        match self.slots.get(slot).work {
            Work::Write => self.fail_write(now, slot, Failure::TimedOut),
            _ => self.finish(now, slot, Err(Failure::TimedOut)),
        }
    }

    /// The NIC does not read the page of a leg any more.
    pub(super) fn page_is_read(&mut self, now: u64, slot: SlotIndex, leg: usize) {
        if let Some(sent) = self.slots.get(slot).legs[leg] {
            let on_the_way = &mut self.servers.get_mut(sent.server).on_the_way;
            on_the_way.left(now, (slot, leg as u8));
            self.note_deadline(sent.server);
        }
        if self.slots.get(slot).work == Work::Write {
            self.write_acked(now, slot);
        }
    }
}
