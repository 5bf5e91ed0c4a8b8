//! Repair: a sweep over all blocks that finds those with too few holders, and has them copied.
//!
//! A sweep begins when a holder is lost, or when a server becomes available as one. It
//! looks at a bounded number of blocks at a time, and pauses while the number of copies under way is
//! at its bound. A sweep that has begun a copy is followed by another. A sweep has two more duties:
//!
//! - It removes servers that are gone from every block. Only then can they attach again.
//! - It dismisses a leaving server when no block depends on it any more.

use super::server_set::ServerSet;
use super::slots::Work;
use super::Client;

/// Blocks that a step of a sweep looks at.
const STEP_BLOCKS: usize = 1024;
/// Pause between two steps of a sweep, in nanoseconds.
const STEP_PAUSE: u64 = 100_000;
/// Pause between a sweep that has begun copies and the next, in nanoseconds.
const SWEEP_PAUSE: u64 = 20_000_000;
/// Pause between sweeps while blocks have too few holders and no server has room, in nanoseconds.
const RETRY_PAUSE: u64 = 2_000_000_000;

/// The progress of repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Repair {
    /// A sweep is under way, or will be.
    pub running: bool,
    /// Blocks that the sweep has looked at.
    pub position: u64,
    /// Blocks with too few holders that no server could take, in the last whole sweep.
    pub missing: u64,
    /// Blocks without a holder, in the last whole sweep.
    pub lost: u64,
}

/// The findings of a sweep.
#[derive(Debug, Default)]
struct Found {
    missing: u64,
    lost: u64,
    /// A block has a copy or a write under way.
    unsettled: bool,
    /// Servers that leave and are still needed.
    needed: ServerSet,
}

/// The sweep.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    wanted: bool,
    running: bool,
    cursor: usize,
    due: u64,
    found: Found,
    /// Servers that it removes from all blocks.
    forgotten: ServerSet,
    /// Servers that were already leaving when it began.
    leaving: ServerSet,
    missing: u64,
    lost: u64,
}

impl Sweep {
    /// Requests a sweep over all blocks.
    pub(super) fn request(&mut self) {
        self.wanted = true;
    }

    /// Requests a sweep soon, even if the last one has found nothing to do.
    pub(super) fn request_now(&mut self, now: u64) {
        self.wanted = true;
        self.due = self.due.min(now);
    }

    /// There may be room for a copy again.
    pub(super) fn resume(&mut self, now: u64) {
        if self.running {
            self.due = self.due.min(now);
        }
    }

    /// When it continues.
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.running || self.wanted).then_some(self.due)
    }

    /// Its progress.
    pub(super) fn status(&self) -> Repair {
        Repair {
            running: self.running || self.wanted,
            position: self.cursor as u64,
            missing: self.missing,
            lost: self.lost,
        }
    }

    fn start(&mut self, gone: ServerSet, leaving: ServerSet) {
        self.wanted = false;
        self.running = true;
        self.cursor = 0;
        self.found = Found::default();
        self.forgotten = gone;
        self.leaving = leaving;
    }
}

impl<P> Client<P> {
    /// Continues the sweep if it is time.
    pub(super) fn sweep(&mut self, now: u64) {
        if self.repair.deadline().is_none_or(|due| now < due) {
            return;
        }
        if !self.repair.running {
            let leaving = self.servers.leaving.and(self.servers.live);
            self.repair.start(self.servers.gone, leaving);
        }
        self.repair.due = now + STEP_PAUSE;
        for _ in 0..STEP_BLOCKS {
            if self.repair.cursor == self.volume.blocks() {
                self.end_sweep(now);
                return;
            }
            if !self.sweep_block(now, self.repair.cursor) {
                // The end of a copy resumes it earlier.
                self.repair.due = now + SWEEP_PAUSE;
                return;
            }
            self.repair.cursor += 1;
        }
    }

    /// Looks at a block. Returns false if it has to be copied and no copy can begin.
    fn sweep_block(&mut self, now: u64, block: usize) -> bool {
        self.volume.forget(block, self.repair.forgotten);
        if self.volume.version(block) == 0 {
            return true;
        }
        let holders = self.volume.holders(block);
        let (live, silent) = (self.servers.live, self.servers.silent);
        if holders.and(live.or(silent)).is_empty() {
            self.repair.found.lost += 1;
            return true;
        }
        let staying = self.servers.staying();
        let settled = holders.and(staying).count();
        if settled < self.config.replicas {
            let at_work = |work: Work| work == Work::Write || work.is_copy();
            if self.slots.any_of(block, |slot| at_work(slot.work)) {
                self.repair.found.unsettled = true;
            } else if holders.and(live).is_empty() || self.roomiest(now, holders).is_none() {
                self.repair.found.missing += 1;
            } else if self.slots.has_free_copy() && self.pages.is_empty() {
                self.repair.found.unsettled = true;
                self.begin_copy(now, block);
            } else {
                return false;
            }
        }
        if settled < self.config.replicas.min(staying.count()).max(1) {
            let found = &mut self.repair.found;
            found.needed = found.needed.or(holders.and(self.servers.leaving));
        }
        true
    }

    fn end_sweep(&mut self, now: u64) {
        let repair = &mut self.repair;
        repair.running = false;
        (repair.missing, repair.lost) = (repair.found.missing, repair.found.lost);
        let forgotten = core::mem::take(&mut repair.forgotten);
        let idle = repair.leaving.without(repair.found.needed);
        if repair.found.unsettled {
            repair.wanted = true;
            repair.due = now + SWEEP_PAUSE;
        } else if repair.wanted {
            repair.due = now + STEP_PAUSE;
        } else {
            if repair.missing > 0 {
                repair.wanted = true;
                repair.due = now + RETRY_PAUSE;
            }
            for server in idle.iter() {
                self.dismiss(now, server);
            }
        }
        for server in forgotten.iter() {
            self.can_attach(now, server);
        }
    }
}
