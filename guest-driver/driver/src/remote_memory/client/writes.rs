//! Writes: which servers a page goes to, and when the write is complete.

use super::server_set::{ServerIndex, ServerSet};
use super::slots::{SlotIndex, Work};
use super::{Client, Failure};

/// How long a write that no server takes waits before it looks for one again, in nanoseconds.
const LOOK_AGAIN: u64 = 100_000_000;

impl<P> Client<P> {
    /// Sends a write to the servers that are to hold its block.
    pub(super) fn begin_write(&mut self, now: u64, slot: SlotIndex) {
        self.fill(now, slot);
        if self.finds_all_full(now, slot) {
            // `wake`, which calls this, begins the next one.
            self.counters.full += 1;
            _ = self.end(now, slot, Err(Failure::Full));
        }
    }

    /// Sends a write to more servers, until there are enough or no more.
    /// Servers that hold the block already come first: there it takes no room.
    pub(super) fn fill(&mut self, now: u64, slot: SlotIndex) {
        loop {
            let request = self.slots.get(slot);
            let have = request.servers();
            if have.count() >= self.config.replicas {
                return;
            }
            let excluded = have.or(request.tried);
            let holders = self.volume.holders(request.block).without(excluded);
            let holder = holders.and(self.servers.staying()).iter().next();
            let Some(server) = holder.or_else(|| self.roomiest(now, excluded)) else {
                break;
            };
            if !self.add_leg(slot, server) {
                break;
            }
        }
        // A leaving server is better than none, if it has room or the block.
        let request = self.slots.get(slot);
        if request.servers().is_empty() {
            let holders = self.volume.holders(request.block);
            let full = self.servers.full(now).without(holders);
            let live = self.servers.live.without(request.tried);
            match live.without(full).iter().next() {
                Some(server) => _ = self.add_leg(slot, server),
                None => self.scan_due = self.scan_due.min(now + LOOK_AGAIN),
            }
            if self.servers.live.is_empty() {
                self.wait_for_silent(slot, self.servers.silent);
            }
        }
    }

    /// The server with the most room that is live, neither leaves nor is full, and is not in a set.
    pub(super) fn roomiest(&self, now: u64, excluded: ServerSet) -> Option<ServerIndex> {
        let staying = self.servers.staying().without(excluded);
        let usable = staying.without(self.servers.full(now));
        let room = |server: &ServerIndex| {
            let held = self.volume.pages(*server);
            self.servers.get(*server).room(held)
        };
        // Among servers with equal room, the first one.
        usable
            .iter()
            .max_by_key(|server| (room(server), u8::MAX - server))
    }

    /// A server has acknowledged a write.
    pub(super) fn write_acked(&mut self, now: u64, slot: SlotIndex) {
        self.fill(now, slot);
        let request = self.slots.get(slot);
        let (acked, block, version) = (request.acked(), request.block, request.version);
        if self.finds_all_full(now, slot) {
            self.counters.full += 1;
            return self.fail_write(now, slot, Failure::Full);
        }
        if acked.is_empty() || acked != request.servers() {
            return;
        }
        self.counters.degraded += u64::from(acked.count() < self.config.replicas);
        self.settle(block, version, acked);
        self.finish(now, slot, Ok(()));
    }

    /// Returns true if a write has to fail because servers are full. If no server has taken it, none is
    /// silent, and each is full. If some have, all servers are there, and those that it lacks are full: while
    /// a server is missing, fewer copies are better than none.
    fn finds_all_full(&self, now: u64, slot: SlotIndex) -> bool {
        let request = self.slots.get(slot);
        let (servers, acked) = (request.servers(), request.acked());
        let full = request.full.or(self.servers.full(now)).without(servers);
        let live = self.servers.live.without(servers);
        let others = live.without(full.or(request.tried));
        let is_short = acked == servers && servers.count() < self.config.replicas;
        if !is_short || full.and(live).is_empty() || !others.is_empty() {
            return false;
        }
        let all_stay = self.servers.staying().count() == self.servers.len();
        match servers.is_empty() {
            true => self.servers.silent.is_empty(),
            false => all_stay,
        }
    }

    /// A write has not completed in time. The servers that have acknowledged it have it; if none
    /// has, a server may have it without the client's knowledge.
    pub(super) fn fail_write(&mut self, now: u64, slot: SlotIndex, failure: Failure) {
        let request = self.slots.get(slot);
        let (acked, block, version) = (request.acked(), request.block, request.version);
        if !acked.is_empty() {
            self.settle(block, version, acked);
        } else if request.attempts > 0 {
            self.volume.set_uncertain(block);
        }
        self.finish(now, slot, Err(failure));
    }

    /// Notes the holders of the newest version of a block.
    pub(super) fn settle(&mut self, block: usize, version: u64, holders: ServerSet) {
        self.volume.settle(block, version, holders);
        if holders.and(self.servers.staying()).count() < self.config.replicas {
            self.repair.request();
        }
    }

    /// A server does not carry out a write or the second half of a copy: others have to.
    pub(super) fn leg_failed(&mut self, now: u64, slot: SlotIndex, leg: usize, for_good: bool) {
        let request = self.slots.get_mut(slot);
        let (work, Some(failed)) = (request.work, request.legs[leg]) else {
            return;
        };
        if for_good {
            request.tried.insert(failed.server);
        }
        self.drop_leg(slot, leg);
        match work {
            Work::Write => self.write_acked(now, slot),
            _ => self.store_acked(now, slot),
        }
    }
}
