//! Page faults of one process that its driver was told of, and who waits for
//! them (N13, N14).
//!
//! A fault covers a run of pages; a transfer that misses one of them waits for
//! the fault that is under way instead of making another. The driver promises
//! only the first page of the run: whoever waits for a later one tries again and,
//! if need be, makes a fault of its own. When the table is full, a transfer waits
//! for any fault and then tries again: it is delayed, not refused.

use qnic_abi::event::MAX_FAULT_PAGES;
use qnic_abi::{PAGE_SHIFT, PAGE_SIZE};

use crate::atomic::AtomicJob;
use crate::bounce::Bounced;
use crate::operation::OperationId;
use crate::read::ReplyJob;
use crate::transport::PeerIndex;

/// Who waits for a page.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// An operation of the process itself.
    Local(OperationId),
    /// A read of a peer.
    Reply(ReplyJob),
    /// An atomic operation of a peer.
    Atomic(Box<AtomicJob>),
    /// A frame in bounce memory.
    Bounced(Box<Bounced>),
}

impl Waiter {
    fn peer(&self) -> Option<PeerIndex> {
        match self {
            Waiter::Local(_) => None,
            Waiter::Reply(job) => Some(job.peer),
            Waiter::Atomic(job) => Some(job.peer),
            Waiter::Bounced(bounced) => Some(bounced.peer()),
        }
    }
}

/// Pages that a transfer needs: the first, and the run that it will need next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// Address of the first page.
    pub(crate) page: u64,
    pub(crate) pages: u32,
}

impl Need {
    /// The pages of `length` bytes from `address`, as many as one fault asks for.
    pub(crate) fn new(address: u64, length: u64) -> Self {
        let page = address & !(PAGE_SIZE as u64 - 1);
        let last = address.saturating_add(length.saturating_sub(1));
        let pages = ((last - page) >> PAGE_SHIFT).saturating_add(1);
        Need {
            page,
            pages: pages.min(u64::from(MAX_FAULT_PAGES)) as u32,
        }
    }
}

/// A fault that the driver has not answered.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) need: Need,
    /// Who waits, and for which page.
    pub(crate) waiters: Vec<(u64, Waiter)>,
}

impl Fault {
    fn covers(&self, need: &Need) -> bool {
        let run = u64::from(self.need.pages) << PAGE_SHIFT;
        need.page.wrapping_sub(self.need.page) < run
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        let run = u64::from(self.need.pages) << PAGE_SHIFT;
        self.need.page < end && self.need.page.saturating_add(run) > start
    }
}

/// The faults of one process.
#[derive(Debug, Default)]
pub(crate) struct FaultTable {
    faults: Vec<Fault>,
    /// How many waiters are reads and atomic operations of peers.
    replies: usize,
}

impl FaultTable {
    /// Number of faults.
    pub(crate) fn count(&self) -> u32 {
        self.faults.len() as u32
    }

    /// Number of reads and atomic operations of peers that wait.
    pub(crate) fn replies(&self) -> usize {
        self.replies
    }

    /// Puts `waiter` behind the fault that covers `need`, or else behind a new one.
    /// Says whether the driver must be told.
    pub(crate) fn wait(&mut self, need: Need, waiter: Waiter, limit: u32) -> bool {
        let covering = self.faults.iter().position(|fault| fault.covers(&need));
        let full = self.faults.len() >= limit.max(1) as usize;
        let place = covering.or(full.then(|| self.faults.len() - 1));
        let told = place.is_none();
        let place = place.unwrap_or_else(|| {
            self.faults.push(Fault {
                need,
                waiters: Vec::new(),
            });
            self.faults.len() - 1
        });
        self.replies += usize::from(is_request(&waiter));
        self.faults[place].waiters.push((need.page, waiter));
        told
    }

    /// Takes out who waits and is chosen; their faults stay.
    pub(crate) fn take_waiters(&mut self, chosen: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let mut taken = Vec::new();
        for fault in &mut self.faults {
            let waiters = std::mem::take(&mut fault.waiters);
            for (page, waiter) in waiters {
                match chosen(&waiter) {
                    true => taken.push(waiter),
                    false => fault.waiters.push((page, waiter)),
                }
            }
        }
        self.replies -= count_replies(taken.iter());
        taken
    }

    /// The frames in bounce memory that wait.
    pub(crate) fn bounced(&mut self) -> impl Iterator<Item = &mut Bounced> {
        let waiters = self.faults.iter_mut().flat_map(|fault| &mut fault.waiters);
        waiters.filter_map(|(_, waiter)| match waiter {
            Waiter::Bounced(bounced) => Some(&mut **bounced),
            Waiter::Local(_) | Waiter::Reply(_) | Waiter::Atomic(_) => None,
        })
    }

    /// [`FaultTable::take_waiters`] of those that came from a peer.
    pub(crate) fn take_waiters_of(&mut self, index: PeerIndex) -> Vec<Waiter> {
        self.take_waiters(|waiter| waiter.peer() == Some(index))
    }

    fn remove(&mut self, place: usize) -> Fault {
        let fault = self.faults.remove(place);
        self.replies -= count_replies(fault.waiters.iter().map(|waiter| &waiter.1));
        fault
    }

    /// Takes out the fault that the driver answers.
    pub(crate) fn answer(&mut self, address: u64) -> Option<Fault> {
        let place = self.faults.iter().position(|f| f.need.page == address)?;
        Some(self.remove(place))
    }

    /// Takes out a fault that touches this range, if there is one.
    pub(crate) fn forget(&mut self, start: u64, end: u64) -> Option<Fault> {
        let place = self.faults.iter().position(|f| f.overlaps(start, end))?;
        Some(self.remove(place))
    }
}

fn count_replies<'a>(waiters: impl Iterator<Item = &'a Waiter>) -> usize {
    waiters.filter(|waiter| is_request(waiter)).count()
}

/// Says whether a peer waits for an answer.
fn is_request(waiter: &Waiter) -> bool {
    matches!(waiter, Waiter::Reply(_) | Waiter::Atomic(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(id: u64) -> Waiter {
        Waiter::Local(OperationId(id))
    }

    fn name(waiter: &Waiter) -> u64 {
        match waiter {
            Waiter::Local(id) => id.0,
            _ => panic!("only operations wait here"),
        }
    }

    #[test]
    fn needs_are_runs_of_pages() {
        let need = Need::new(0x1fff, 2);
        assert_eq!((need.page, need.pages), (0x1000, 2));
        assert_eq!(Need::new(0x1000, 0).pages, 1);
        assert_eq!(Need::new(0x1000, u64::MAX).pages, MAX_FAULT_PAGES);
        assert_eq!(Need::new(0x1000, 4097).pages, 2);
    }

    #[test]
    fn transfers_share_a_fault_that_covers_their_page() {
        let mut table = FaultTable::default();
        let run = Need::new(0x1000, 0x3000);
        assert!(table.wait(run, local(1), 8));
        let inside = Need::new(0x3000, 1);
        assert!(!table.wait(inside, local(2), 8));
        let behind = Need::new(0x4000, 1);
        assert!(table.wait(behind, local(3), 8));
        let before = Need::new(0x0000, 0x3000);
        assert!(table.wait(before, local(4), 8));
        let fault = table.answer(0x1000).unwrap();
        let waiters: Vec<_> = fault.waiters.iter().map(|w| name(&w.1)).collect();
        assert_eq!(waiters, [1, 2]);
        assert!(table.answer(0x1000).is_none());
        assert_eq!(table.count(), 2);
    }

    #[test]
    fn a_full_table_delays_and_revoked_ranges_are_forgotten() {
        let mut table = FaultTable::default();
        let need = |page| Need::new(page, 1);
        assert!(table.wait(need(0x1000), local(1), 1));
        assert!(!table.wait(need(0x9000), local(2), 1));
        assert!(table.forget(0x2000, 0x9000).is_none());
        assert!(table.forget(0x0, 0x1000).is_none());
        assert_eq!(table.forget(0x1fff, 0x2000).unwrap().waiters.len(), 2);
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn waiters_can_be_taken_out_and_their_fault_stays() {
        let mut table = FaultTable::default();
        for number in 1..=4 {
            table.wait(Need::new(number << 12, 1), local(number), 8);
        }
        let taken = table.take_waiters(|waiter| name(waiter) % 2 == 0);
        let taken: Vec<_> = taken.iter().map(name).collect();
        assert_eq!(taken, [2, 4]);
        assert_eq!(table.count(), 4);
        assert_eq!(table.answer(0x2000).unwrap().waiters.len(), 0);
        assert_eq!(table.answer(0x3000).unwrap().waiters.len(), 1);
        assert!(table.take_waiters_of(PeerIndex::default()).is_empty());
    }
}
