//! Reads, and the first half of copies: which server to ask, and which answer to accept.

use super::server_set::{ServerIndex, ServerSet};
use super::slots::{Phase, SlotIndex, Work};
use super::{Client, Failure};

impl<P> Client<P> {
    /// Asks a holder for the block of a read, or ends the read if there is none.
    pub(super) fn begin_read(&mut self, now: u64, slot: SlotIndex) {
        self.ask_next(now, slot, None);
    }

    /// Asks the next holder after `last`, or the first one if none was asked yet. Live holders
    /// come before silent ones. Without a holder a read ends.
    pub(super) fn ask_next(&mut self, now: u64, slot: SlotIndex, last: Option<ServerIndex>) {
        self.drop_legs(slot);
        let block = self.slots.get(slot).block;
        let holders = self.volume.holders(block);
        let live = holders.and(self.servers.live);
        let next = match last {
            // Each holder may be the one that answers, so each gets its turn.
            Some(last) => live.after(last),
            None => self.quickest(live),
        };
        let silent = holders.and(self.servers.silent);
        match next.or_else(|| silent.after(last.unwrap_or_default())) {
            Some(server) => {
                self.slots.get_mut(slot).tried.insert(server);
                self.add_leg(slot, server);
                if live.is_empty() {
                    self.wait_for_silent(slot, silent);
                }
            }
            None if self.volume.version(block) == 0 => _ = self.end(now, slot, Ok(())),
            None => _ = self.end(now, slot, Err(Failure::Lost)),
        }
    }

    /// The server of a set with the shortest round trip.
    fn quickest(&self, servers: ServerSet) -> Option<ServerIndex> {
        let round_trip = |server: &ServerIndex| self.servers.get(*server).on_the_way.round_trip();
        servers.iter().min_by_key(round_trip)
    }

    /// A server has sent the page of a block. Returns it if it is not the expected one.
    pub(super) fn page_read(
        &mut self,
        now: u64,
        slot: SlotIndex,
        server: ServerIndex,
        version: u64,
        page: P,
    ) -> Option<P> {
        let request = self.slots.get(slot);
        let (block, work) = (request.block, request.work);
        if !request.tried.has(server) || work.brings() {
            self.counters.stale_answers += 1;
            return Some(page);
        }
        if !self.believe(block, server, version) {
            self.not_there(now, slot, server);
            return Some(page);
        }
        self.slots.get_mut(slot).page = Some(page);
        match work {
            Work::Fetch => self.begin_store(now, slot, version),
            _ => self.finish(now, slot, Ok(())),
        }
        None
    }

    /// Returns true if reads may return this version of a block. If a write has
    /// failed and may have left its page at a holder, this answer may prove that it has: from
    /// then on that version counts.
    fn believe(&mut self, block: usize, server: ServerIndex, version: u64) -> bool {
        let newest = self.volume.version(block);
        let holds = self.volume.holders(block).has(server);
        if version == newest {
            return holds;
        }
        let later = version > newest && self.volume.is_known(version);
        if !later || !holds || !self.volume.is_uncertain(block) {
            return false;
        }
        self.settle(block, version, ServerSet::only(server));
        // An even later write may have failed, too.
        self.volume.set_uncertain(block);
        true
    }

    /// A holder does not have the block, or not its newest version: it is not a holder any more.
    pub(super) fn not_there(&mut self, now: u64, slot: SlotIndex, server: ServerIndex) {
        self.counters.bad_answers += 1;
        let block = self.slots.get(slot).block;
        self.volume.forget(block, ServerSet::only(server));
        self.repair.request();
        self.ask_next(now, slot, Some(server));
        self.wake(now, block);
    }

    /// The NIC has given the steered buffer of this handle back: no page can come there. Its request is sent
    /// anew, and takes any buffer.
    pub fn target_is_back(&mut self, now: u64, handle: u64) {
        let now = self.own_time(now);
        for slot in 0..self.slots.len() as SlotIndex {
            let request = self.slots.get_mut(slot);
            if request.work != (Work::Read { target: handle }) {
                continue;
            }
            request.work = Work::Read { target: 0 };
            if request.phase == Phase::Active {
                let block = request.block;
                self.ask_next(now, slot, None);
                self.wake(now, block);
            }
        }
    }

    /// The steered buffer of this handle was taken: the request that waits for it takes another.
    pub(super) fn lose_target(&mut self, handle: u64) {
        for slot in 0..self.slots.len() as SlotIndex {
            let request = self.slots.get_mut(slot);
            if request.work == (Work::Read { target: handle }) {
                request.work = Work::Read { target: 0 };
            }
        }
    }
}
