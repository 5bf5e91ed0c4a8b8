//! The wire within a device process: frames arrive once and in order, or come back.
//!
//! With one engine a frame arrives within the call that sends it: here, at the same time, and a
//! NIC does nothing in between. With an engine for each NIC there is a ring for each pair: a frame
//! arrives later, and what lies in pages of its sender stays there until then, or until the NIC
//! recalls it.

use std::collections::VecDeque;
use std::sync::Arc;

use qnic_abi::wire::{Class, Frame};
use qnic_nic::testing::KeptPayload;
use qnic_nic::{Payload, Sent, Ticket};

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

/// The frames from one node to another.
#[derive(Default)]
struct Ring {
    frames: VecDeque<Passing>,
    /// How many have arrived.
    arrived: u64,
    /// When the last of them arrives.
    last: u64,
}

/// All frames that are under way.
pub(crate) struct Direct {
    schedule: Arc<Schedule>,
    nodes: usize,
    /// Each NIC has an engine of its own.
    engines: bool,
    /// By sender and receiver.
    rings: Vec<Ring>,
}

impl Direct {
    pub(crate) fn new(schedule: Arc<Schedule>, nodes: usize, engines: bool) -> Self {
        Direct {
            schedule,
            nodes,
            engines,
            rings: (0..nodes * nodes).map(|_| Ring::default()).collect(),
        }
    }

    /// Takes a frame.
    pub(crate) fn send(&mut self, frame: &Frame, payload: &Payload<'_, Memory>) -> Sent {
        let (from, to) = ends(frame);
        let windowed = Class::of(frame.envelope.kind) == Class::Windowed;
        let content = KeptPayload::take(payload, self.engines && windowed);
        let kept = content.is_in_pages();
        let place = self.push(
            from * self.nodes + to,
            Passing {
                frame: *frame,
                content,
                returned: false,
            },
        );
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

    fn push(&mut self, number: usize, passing: Passing) -> u64 {
        let now = self.schedule.now();
        let at = match self.engines {
            true => now + self.schedule.delay(TRANSIT),
            false => now,
        };
        let ring = &mut self.rings[number];
        ring.last = ring.last.max(at);
        ring.frames.push_back(passing);
        self.schedule.at(ring.last, Event::Direct(number));
        ring.arrived + ring.frames.len() as u64 - 1
    }

    /// The oldest frame of a ring arrives.
    pub(crate) fn arrive(&mut self, number: usize) -> Option<Passing> {
        let ring = &mut self.rings[number];
        let passing = ring.frames.pop_front()?;
        ring.arrived += 1;
        Some(passing)
    }

    /// A frame of a node needs its pages no longer.
    pub(crate) fn is_done(&self, from: usize, ticket: Ticket) -> bool {
        let ring = &self.rings[from * self.nodes + ticket.way as usize];
        let place = ticket.place.checked_sub(ring.arrived);
        let passing = place.and_then(|place| ring.frames.get(place as usize));
        !passing.is_some_and(|passing| passing.content.is_in_pages())
    }

    /// Copies all that lies in pages of a node.
    pub(crate) fn recall(&mut self, from: usize, memory: &Memory) {
        let first = from * self.nodes;
        let rings = &mut self.rings[first..first + self.nodes];
        let frames = rings.iter_mut().flat_map(|ring| &mut ring.frames);
        for passing in frames {
            passing.content.recall(memory);
        }
    }
}
