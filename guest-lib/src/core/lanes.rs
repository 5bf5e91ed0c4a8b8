//! The lane of each destination, and what is under way there ([`qnic_abi::host_area`],
//! "Completion").
//!
//! ```text
//!   destination (node, port) ──► lane: slots of its writes ─ its reads, oldest first
//!                                        ▲ issued          ▼ retired when the lane's counter passes
//!   pool of slots: up to 1,024 ─────────┘ ◄────────────────┘
//! ```
//! # Invariants
//! - Operations of one lane and kind complete in the order of issue; those of different lanes do not
//!   wait for each other (N12, N15).
//! - A destination that has fewer than its share under way (16, or less if there are many
//!   destinations) finds room whatever others have under way.
//! - A lane whose destination has nothing under way may get another one, once all are taken. Marks
//!   of the old one stay right: it is complete up to them. While all 256 are in use, further
//!   destinations share lanes: they wait for each other, and nothing else is wrong.

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::host_area::LANES;
use qnic_abi::{NodeId, Port};

/// A process.
pub(crate) type Destination = (NodeId, Port);

/// Operations of each destination for which there is room whatever others have under way.
const SHARE: usize = 16;

/// Entries of the table that says which lane a destination had last.
const CACHED: usize = 64;

/// One lane.
#[derive(Debug)]
pub(crate) struct Lane {
    destination: Destination,
    /// How many were issued, of each kind.
    pub(crate) issued: [u64; 2],
    /// How many were complete at the last poll.
    pub(crate) done: [u64; 2],
    /// Ordinal of the last write that is not the library's own.
    pub(crate) program_writes: u64,
    /// Slots of those that were not complete, oldest first.
    under_way: [VecDeque<u16>; 2],
    /// Stands in [`Lanes::busy`].
    busy: bool,
}

impl Lane {
    fn count(&self) -> usize {
        self.under_way[0].len() + self.under_way[1].len()
    }
}

/// The lanes of a process.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
    by_destination: BTreeMap<Destination, u8>,
    /// Some destination has had a lane of another one.
    shared: bool,
    cache: [u8; CACHED],
    /// Lanes with operations under way.
    busy: Vec<u8>,
    /// Operations that may be under way, and those that are.
    most: usize,
    count: usize,
    /// Operations that every lane may have.
    share: usize,
    /// How many more they may have, all lanes together.
    reserved: usize,
}

impl Lanes {
    /// Of at most so many operations.
    pub(crate) fn new(most: usize) -> Self {
        Lanes {
            lanes: Vec::new(),
            by_destination: BTreeMap::new(),
            shared: false,
            cache: [0; CACHED],
            busy: Vec::new(),
            most,
            count: 0,
            share: SHARE,
            reserved: 0,
        }
    }

    /// The lane of a destination.
    #[inline]
    pub(crate) fn of(&mut self, destination: Destination) -> u8 {
        let place = usize::from(destination.0 .0 ^ destination.1 .0 << 3) % CACHED;
        let lane = self.cache[place];
        let found = self.lanes.get(usize::from(lane));
        if found.is_some_and(|found| found.destination == destination) {
            return lane;
        }
        let lane = self.find(destination);
        self.cache[place] = lane;
        lane
    }

    /// Returns true if operations of a destination may be under way in a lane: in its own one, and in that which it
    /// shared while it had none.
    pub(crate) fn may_have(&self, lane: u8, destination: Destination) -> bool {
        self.by_destination.get(&destination) == Some(&lane)
            || self.shared && lane == shared_lane(destination)
    }

    /// Returns true if operations of several destinations may be under way in one lane.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    #[cold]
    fn find(&mut self, destination: Destination) -> u8 {
        if let Some(lane) = self.by_destination.get(&destination) {
            return *lane;
        }
        let number = self.lanes.len();
        let lane = match number < LANES {
            true => {
                self.lanes.push(Lane {
                    destination,
                    issued: [0; 2],
                    done: [0; 2],
                    program_writes: 0,
                    under_way: Default::default(),
                    busy: false,
                });
                self.share = SHARE.min(self.most / self.lanes.len());
                let left = |lane: &Lane| self.share.saturating_sub(lane.count());
                self.reserved = self.lanes.iter().map(left).sum();
                number
            }
            false => match self.lanes.iter().position(|lane| !lane.busy) {
                Some(idle) => {
                    let before = self.lanes[idle].destination;
                    self.by_destination.remove(&before);
                    self.lanes[idle].destination = destination;
                    idle
                }
                None => {
                    self.shared = true;
                    return shared_lane(destination);
                }
            },
        };
        self.by_destination.insert(destination, lane as u8);
        lane as u8
    }

    /// Slots of the operations of a lane, if there is one, that were not complete: of each kind, the
    /// oldest first.
    pub(crate) fn under_way(&self, lane: u8) -> &[VecDeque<u16>] {
        let lane = self.lanes.get(usize::from(lane));
        lane.map_or(&[], |lane| &lane.under_way)
    }

    /// A lane that was returned by [`Lanes::of`].
    #[inline]
    pub(crate) fn get_mut(&mut self, lane: u8) -> &mut Lane {
        &mut self.lanes[usize::from(lane)]
    }

    /// The destination that a lane has now.
    pub(crate) fn destination(&self, lane: u8) -> Destination {
        self.lanes[usize::from(lane)].destination
    }

    /// All lanes, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, &Lane)> {
        (0u8..=u8::MAX).zip(&self.lanes)
    }

    /// How many operations may be under way.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns true if another operation of a lane fits.
    #[inline]
    pub(crate) fn has_room(&self, lane: u8) -> bool {
        let free = self.most.saturating_sub(self.count);
        let reserved = match self.lanes[usize::from(lane)].count() < self.share {
            true => 0,
            false => self.reserved,
        };
        free > reserved
    }

    /// Enters an operation in a slot; there must be room. Returns its ordinal.
    #[inline]
    pub(crate) fn enter(&mut self, number: u8, kind: usize, slot: u16) -> u64 {
        let lane = &mut self.lanes[usize::from(number)];
        self.reserved -= usize::from(lane.count() < self.share);
        self.count += 1;
        lane.under_way[kind].push_back(slot);
        lane.issued[kind] += 1;
        let ordinal = lane.issued[kind];
        if !std::mem::replace(&mut lane.busy, true) {
            self.busy.push(number);
        }
        ordinal
    }

    /// Has `look` say how many are complete, of each kind, in each lane with operations under way.
    #[inline]
    pub(crate) fn look(&mut self, look: impl Fn(u8) -> [u64; 2]) {
        for number in &self.busy {
            self.lanes[usize::from(*number)].done = look(*number);
        }
    }

    /// Gives back the slots of those that are complete.
    #[inline]
    pub(crate) fn retire(&mut self, mut free: impl FnMut(u16)) {
        let Lanes {
            lanes,
            busy,
            count,
            share,
            reserved,
            ..
        } = self;
        busy.retain(|number| {
            let lane = &mut lanes[usize::from(*number)];
            for kind in 0..2 {
                let open = lane.issued[kind].saturating_sub(lane.done[kind]) as usize;
                while lane.under_way[kind].len() > open {
                    lane.under_way[kind].pop_front().map(&mut free);
                    *count -= 1;
                    *reserved += usize::from(lane.count() < *share);
                }
            }
            lane.busy = lane.count() > 0;
            lane.busy
        });
    }
}

/// The lane of a destination for which there is none of its own.
fn shared_lane((node, port): Destination) -> u8 {
    (node.0 ^ port.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: Destination = (NodeId(1), Port(7));
    const C: Destination = (NodeId(2), Port(7));

    fn fill(lanes: &mut Lanes, destination: Destination) -> usize {
        let lane = lanes.of(destination);
        (0..)
            .take_while(|_| {
                let room = lanes.has_room(lane);
                if room {
                    lanes.enter(lane, 0, 0);
                }
                room
            })
            .count()
    }

    #[test]
    fn one_destination_fills_the_pool_but_for_the_shares_of_others() {
        let mut lanes = Lanes::new(1024);
        assert_eq!(fill(&mut lanes, B), 1024);
        lanes.look(|_| [1024, 0]);
        lanes.retire(drop);
        lanes.of(C);
        assert_eq!(fill(&mut lanes, B), 1024 - SHARE);
        assert_eq!(fill(&mut lanes, C), SHARE);
        assert_eq!(fill(&mut lanes, B), 0);
        let (b, c) = (lanes.of(B), lanes.of(C));
        assert!(!lanes.has_room(b) && !lanes.has_room(c));
        lanes.look(|lane| match lane == c {
            true => [SHARE as u64, 0],
            false => [1024, 0],
        });
        lanes.retire(drop);
        assert!(!lanes.has_room(b) && lanes.has_room(c));
    }

    #[test]
    fn a_lower_bound_is_shared_as_well() {
        let mut lanes = Lanes::new(40);
        lanes.of(C);
        assert_eq!(fill(&mut lanes, B), 40 - SHARE);
        assert_eq!(fill(&mut lanes, C), SHARE);
    }

    #[test]
    fn every_destination_finds_room() {
        let mut lanes = Lanes::new(1024);
        for node in 0..200 {
            lanes.of((NodeId(node), Port(1)));
        }
        fill(&mut lanes, (NodeId(0), Port(1)));
        for node in 1..200 {
            assert!(fill(&mut lanes, (NodeId(node), Port(1))) >= 5, "{node}");
        }
        let count: usize = lanes.lanes.iter().map(Lane::count).sum();
        assert_eq!((count, lanes.count), (1024, 1024));
    }

    #[test]
    fn a_lane_that_is_idle_gets_another_destination() {
        let mut lanes = Lanes::new(1024);
        for node in 0..256 {
            let lane = lanes.of((NodeId(node), Port(1)));
            assert_eq!(u16::from(lane), node);
            if node != 9 {
                lanes.enter(lane, 1, node);
            }
        }
        assert_eq!(lanes.of((NodeId(300), Port(1))), 9);
        assert_eq!(lanes.of((NodeId(8), Port(1))), 8);
        lanes.enter(9, 0, 9);
        let shared = lanes.of((NodeId(301), Port(1)));
        assert!(lanes.has_room(shared));
        let mut freed = Vec::new();
        lanes.look(|_| [1, 1]);
        lanes.retire(|slot| freed.push(slot));
        freed.sort_unstable();
        assert!(freed.into_iter().eq(0..256));
        assert_eq!((lanes.count, lanes.busy.len()), (0, 0));
        assert_eq!(lanes.of((NodeId(9), Port(1))), 0, "the first that is idle");
    }

    /// A destination without a lane of its own, and what it has under way when it gets one.
    #[test]
    fn what_is_under_way_in_a_shared_lane_is_found() {
        let mut lanes = Lanes::new(1024);
        for node in 0..LANES as u16 {
            let lane = lanes.of((NodeId(node), Port(1)));
            lanes.enter(lane, 0, node);
        }
        assert!(!lanes.is_shared());
        let late = (NodeId(LANES as u16), Port(1));
        let lane = lanes.of(late);
        lanes.enter(lane, 0, 1000);
        assert!(lanes.is_shared() && lanes.may_have(lane, late));
        // Another lane has nothing under way.
        lanes.look(|number| [u64::from(number == lane + 1), 0]);
        lanes.retire(|_| ());
        let own = lanes.of(late);
        assert_ne!(own, lane);
        let may_have = (0..=u8::MAX).filter(|lane| lanes.may_have(*lane, late));
        assert_eq!(may_have.collect::<Vec<_>>(), [lane.min(own), lane.max(own)]);
    }
}
