//! Lanes: in each, writes complete in the order of issue, and so do reads; lanes do not wait for
//! each other (N12, N15). The library gives each destination a lane; the NIC attaches no meaning to
//! them, so a process can disturb the order of its own completions only.
//!
//! ```text
//!   end ──► lane: Writes, Reads ── changed ──► publish: counters of the lane in the host area
//!                                     │           when a command asked, or the lane has nothing left,
//!                                     └──────     or 32 completions of the process have come together
//! ```
//! # Invariants
//! - A lane with completions that are not published stands in `changed`, once.
//! - There are as many lanes as the process has used, at most [`LANES`]: what they take is bounded,
//!   and freed with the queue of the process.

use qnic_abi::host_area::{reads_done_offset, writes_done_offset, LANES};
use qnic_abi::window::{Changes, COMPLETION_STEP};

use super::host_pages::Pages;
use super::order::{Completion, Counter};
use crate::env::HostMemory;

const _: () = assert!(LANES == 1 << u8::BITS);

/// One lane of a process.
#[derive(Debug, Default)]
struct Lane {
    /// Of writes, of reads.
    counters: [Completion; 2],
    /// What the process was told of them.
    published: [u64; 2],
    /// Stands in [`Lanes::changed`].
    changed: bool,
    /// A command asked for its counter, and is complete.
    due: bool,
    /// How many writes and reads must be visible before all that a trace shows is; 0: it is.
    traced: [u64; 2],
}

impl Lane {
    fn done(&self) -> [u64; 2] {
        self.counters.each_ref().map(Completion::done)
    }

    fn is_idle(&self) -> bool {
        self.counters.iter().all(Completion::is_idle)
    }
}

/// The lanes of one process.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    /// Lanes with completions that the process cannot see.
    changed: Vec<u8>,
    /// How many completions these are, or more.
    unpublished: u64,
    /// A trace waits for one of them to be published.
    traced: bool,
}

/// The place of a counter in its lane.
fn index(counter: Counter) -> Option<usize> {
    match counter {
        Counter::Writes => Some(0),
        Counter::Reads => Some(1),
        Counter::Own => None,
    }
}

impl Lanes {
    /// Returns true if another operation can start in a lane.
    #[inline]
    pub(crate) fn has_room(&self, lane: u8) -> bool {
        let lane = self.lanes.get(usize::from(lane));
        lane.is_none_or(|lane| lane.counters.iter().all(Completion::has_room))
    }

    /// Starts an operation; returns its number at its counter. There must be room.
    #[inline]
    pub(crate) fn start(&mut self, lane: u8, counter: Counter, publish: bool) -> u64 {
        let Some(index) = index(counter) else {
            return 0;
        };
        if usize::from(lane) >= self.lanes.len() {
            self.lanes.resize_with(usize::from(lane) + 1, Lane::default);
        }
        self.lanes[usize::from(lane)].counters[index].start(publish)
    }

    /// Completes the operation of that number.
    #[inline]
    pub(crate) fn end(&mut self, number: u8, counter: Counter, order: u64) {
        let lane = self.lanes.get_mut(usize::from(number));
        let Some((lane, index)) = lane.zip(index(counter)) else {
            return;
        };
        lane.due |= lane.counters[index].end(order);
        self.unpublished += 1;
        if !std::mem::replace(&mut lane.changed, true) {
            self.changed.push(number);
        }
    }

    /// Publishes the counters that are due; `all`: those that have changed. Returns which.
    pub(super) fn publish<M: HostMemory>(
        &mut self,
        memory: &M,
        pages: &Pages,
        all: bool,
    ) -> Changes {
        let all = all || self.unpublished >= COMPLETION_STEP;
        let mut published = Changes::empty();
        let lanes = &mut self.lanes;
        self.changed.retain(|number| {
            let lane = &mut lanes[usize::from(*number)];
            if !(all || lane.due || lane.is_idle()) {
                return true;
            }
            (lane.changed, lane.due) = (false, false);
            let done = lane.done();
            let before = std::mem::replace(&mut lane.published, done);
            if before[0] != done[0] {
                pages.store(memory, writes_done_offset(*number), done[0]);
            }
            if before[1] != done[1] {
                pages.store(memory, reads_done_offset(*number), done[1]);
            }
            if before != done {
                published |= Changes::of_lane(*number);
            }
            false
        });
        if self.changed.is_empty() {
            self.unpublished = 0;
        }
        published
    }

    /// Returns true if the process can see that the operation of that number is complete.
    pub(super) fn is_published(&self, lane: u8, counter: Counter, order: u64) -> bool {
        let lane = self.lanes.get(usize::from(lane));
        let published = lane.zip(index(counter));
        published.is_some_and(|(lane, index)| order < lane.published[index])
    }

    /// An operation of a trace has ended: the trace is told when the process can see it.
    pub(super) fn trace_waits(&mut self, lane: u8, counter: Counter, order: u64) {
        let lane = self.lanes.get_mut(usize::from(lane));
        if let Some((lane, index)) = lane.zip(index(counter)) {
            lane.traced[index] = lane.traced[index].max(order + 1);
            self.traced = true;
        }
    }

    /// Returns true if a trace waits for an operation to be published.
    pub(super) fn is_traced(&self) -> bool {
        self.traced
    }

    /// The lanes that a trace waits for, with how many writes and reads the process can see.
    #[cold]
    pub(super) fn take_traced(&mut self) -> Vec<(u8, [u64; 2])> {
        let mut found = Vec::new();
        self.traced = false;
        for (number, lane) in (0..).zip(&mut self.lanes) {
            if lane.traced == [0; 2] {
                continue;
            }
            found.push((number, lane.published));
            for (waits, published) in lane.traced.iter_mut().zip(lane.published) {
                if *waits <= published {
                    *waits = 0;
                }
            }
            self.traced |= lane.traced != [0; 2];
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::host_area::HOST_PAGES;
    use qnic_abi::PAGE_SIZE;

    use super::*;
    use crate::testing::Memory;

    struct Area {
        memory: Memory,
        pages: Pages,
        lanes: Lanes,
    }

    impl Area {
        fn new() -> Self {
            Area {
                memory: Memory::new(HOST_PAGES * PAGE_SIZE),
                pages: Pages(std::array::from_fn(|page| (page * PAGE_SIZE) as u64)),
                lanes: Lanes::default(),
            }
        }

        fn start(&mut self, lane: u8, count: u64) {
            for _ in 0..count {
                self.lanes.start(lane, Counter::Writes, false);
            }
        }

        /// Publishes what is due; returns the writes of two lanes that the process sees then.
        fn seen(&mut self, lanes: [u8; 2]) -> [u64; 2] {
            self.lanes.publish(&self.memory, &self.pages, false);
            lanes.map(|lane| self.memory.word(writes_done_offset(lane) as u64))
        }
    }

    #[test]
    fn a_lane_does_not_wait_for_another() {
        let mut area = Area::new();
        area.start(3, 1);
        area.start(255, 2);
        area.lanes.end(255, Counter::Writes, 1);
        assert_eq!(area.seen([3, 255]), [0, 0], "in the order of the lane");
        area.lanes.end(255, Counter::Writes, 0);
        assert_eq!(area.seen([3, 255]), [0, 2], "it has nothing left");
        area.lanes.end(3, Counter::Writes, 0);
        assert_eq!(area.seen([3, 255]), [1, 2]);
        let offset = reads_done_offset(3) as u64;
        area.lanes.start(3, Counter::Reads, true);
        area.lanes.end(3, Counter::Reads, 0);
        area.seen([3, 255]);
        assert_eq!(area.memory.word(offset), 1);
    }

    #[test]
    fn completions_are_published_when_asked_for_and_every_thirty_two() {
        let mut area = Area::new();
        area.start(1, 2);
        area.lanes.start(1, Counter::Writes, true);
        area.start(1, 100);
        area.start(2, 100);
        (0..2).for_each(|order| area.lanes.end(1, Counter::Writes, order));
        assert_eq!(area.seen([1, 2]), [0, 0]);
        area.lanes.end(1, Counter::Writes, 2);
        assert_eq!(area.seen([1, 2]), [3, 0], "one has asked");
        (3..20).for_each(|order| area.lanes.end(1, Counter::Writes, order));
        (0..14).for_each(|order| area.lanes.end(2, Counter::Writes, order));
        assert_eq!(area.seen([1, 2]), [3, 0], "31 have come together");
        area.lanes.end(2, Counter::Writes, 14);
        assert_eq!(area.seen([1, 2]), [20, 15]);
    }

    #[test]
    fn a_trace_hears_what_its_process_can_see() {
        let mut area = Area::new();
        area.start(9, 2);
        area.lanes.end(9, Counter::Writes, 0);
        area.lanes.trace_waits(9, Counter::Writes, 0);
        assert!(area.lanes.is_traced());
        assert_eq!(area.lanes.take_traced(), [(9, [0, 0])]);
        assert!(!area.lanes.is_published(9, Counter::Writes, 0));
        area.lanes.end(9, Counter::Writes, 1);
        assert_eq!(area.seen([9, 9]), [2, 2]);
        assert!(area.lanes.is_published(9, Counter::Writes, 0));
        assert_eq!(area.lanes.take_traced(), [(9, [2, 0])]);
        assert!(!area.lanes.is_traced() && area.lanes.take_traced().is_empty());
    }
}
