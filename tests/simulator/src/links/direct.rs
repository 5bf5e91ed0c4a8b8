//! The wire within a device process: frames arrive once and in order, or come back.
//!
//! With one engine a frame arrives within the call that sends it: here, at the same time, and a
//! NIC does nothing in between. With an engine for each NIC there are two rings for each pair: a frame
//! arrives later, and what lies in pages of its sender stays there until then, or until the NIC
//! recalls it. Small frames overtake others as far as they may (U4).

use std::collections::VecDeque;
use std::sync::Arc;

use qnic_abi::wire::{Class, Frame};
use qnic_nic::testing::KeptPayload;
use qnic_nic::{order_of, Channel, Order, Payload, Sent, Ticket};

use crate::links::sessions::ends;
use crate::machine::memory::Memory;
use crate::schedule::{Event, Schedule};

/// How long a frame is in a ring, in nanoseconds.
const TRANSIT: std::ops::Range<u64> = 50..20_000;

/// A frame on its way.
pub(crate) struct Passing {
    pub(crate) frame: Frame,
    pub(crate) content: KeptPayload,
    /// It found no route, and goes back to its sender.
    pub(crate) returned: bool,
}

/// The frames of a channel from one node to another.
#[derive(Default)]
struct Ring {
    frames: VecDeque<Passing>,
    /// How many have arrived.
    arrived: u64,
    /// When the last of them arrives.
    last: u64,
}

/// The frames from one node to another.
#[derive(Default)]
struct Pair {
    small: Ring,
    long: Ring,
    /// When the last frame arrives that must not be overtaken.
    between: u64,
}

/// All frames that are under way.
pub(crate) struct Direct {
    schedule: Arc<Schedule>,
    nodes: usize,
    /// Each NIC has an engine of its own.
    engines: bool,
    /// By sender and receiver.
    ways: Vec<Pair>,
}

impl Direct {
    pub(crate) fn new(schedule: Arc<Schedule>, nodes: usize, engines: bool) -> Self {
        Direct {
            schedule,
            nodes,
            engines,
            ways: (0..nodes * nodes).map(|_| Pair::default()).collect(),
        }
    }

    /// Takes a frame.
    pub(crate) fn send(
        &mut self,
        frame: &Frame,
        payload: &Payload<'_, Memory>,
        channel: Channel,
    ) -> Sent {
        let (from, to) = ends(frame);
        let order = order_of(frame.envelope.kind);
        let is_small = self.engines && channel == Channel::Priority && order == Order::Free;
        let windowed = Class::of(frame.envelope.kind) == Class::Windowed;
        let content = KeptPayload::take(payload, self.engines && windowed && !is_small);
        let kept = content.is_in_pages();
        let passing = Passing {
            frame: *frame,
            content,
            returned: false,
        };
        let way = from * self.nodes + to;
        if is_small {
            self.push_small(way, passing);
            return Sent::Taken;
        }
        let place = self.push(way, passing);
        if order == Order::Between {
            self.ways[way].between = self.ways[way].long.last;
        }
        match kept {
            true => Sent::Kept(Ticket {
                way: to as u32,
                place,
            }),
            false => Sent::Taken,
        }
    }

    /// A frame has found that its destination does not run. A call would have said so.
    pub(crate) fn give_back(&mut self, frame: &Frame) {
        if !self.engines {
            return;
        }
        let (from, to) = ends(frame);
        let passing = Passing {
            frame: *frame,
            content: KeptPayload::Bytes(Vec::new()),
            returned: true,
        };
        self.push(to * self.nodes + from, passing);
    }

    /// When a frame arrives that is sent now.
    fn arrival(&self) -> u64 {
        let now = self.schedule.now();
        match self.engines {
            true => now + self.schedule.delay(TRANSIT),
            false => now,
        }
    }

    /// Behind all that was sent before.
    fn push(&mut self, number: usize, passing: Passing) -> u64 {
        let at = self.arrival();
        let Pair { small, long, .. } = &mut self.ways[number];
        long.last = long.last.max(small.last).max(at);
        long.frames.push_back(passing);
        self.schedule.at(long.last, Event::Direct(number, false));
        long.arrived + long.frames.len() as u64 - 1
    }

    /// Behind small ones, and what must not be overtaken.
    fn push_small(&mut self, number: usize, passing: Passing) {
        let at = self.arrival();
        let Pair { small, between, .. } = &mut self.ways[number];
        small.last = small.last.max(*between).max(at);
        small.frames.push_back(passing);
        self.schedule.at(small.last, Event::Direct(number, true));
    }

    /// The oldest frame of a ring arrives.
    pub(crate) fn arrive(&mut self, number: usize, is_small: bool) -> Option<Passing> {
        let Pair { small, long, .. } = &mut self.ways[number];
        let ring = if is_small { small } else { long };
        let passing = ring.frames.pop_front()?;
        ring.arrived += 1;
        Some(passing)
    }

    /// A frame of a node needs its pages no longer.
    pub(crate) fn is_done(&self, from: usize, ticket: Ticket) -> bool {
        let ring = &self.ways[from * self.nodes + ticket.way as usize].long;
        let place = ticket.place.checked_sub(ring.arrived);
        let passing = place.and_then(|place| ring.frames.get(place as usize));
        !passing.is_some_and(|passing| passing.content.is_in_pages())
    }

    /// Copies all that lies in pages of a node.
    pub(crate) fn recall(&mut self, from: usize, memory: &Memory) {
        let first = from * self.nodes;
        let ways = &mut self.ways[first..first + self.nodes];
        let frames = ways.iter_mut().flat_map(|way| &mut way.long.frames);
        for passing in frames {
            passing.content.recall(memory);
        }
    }
}
