//! The plan of all messages: made from a seed, the same in all processes.

use qnic::message::{Pattern, Source, Tag};
use qnic::{NodeId, Port};
use qnic_apps::demo::pattern;

/// Most messages of a process that are longer than a frame. A process has no more Sends at its
/// NIC: if all of these wait for receives, the others go on nevertheless.
pub(super) const LONG_MESSAGES: usize = 40;
/// Longest of those, in bytes.
const LONGEST: usize = 30_000;
/// Longest of the others.
const SHORT: usize = 4096;
/// Tags of each class.
const TAGS: u64 = 3;

/// A message that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    /// Index of the receiver among all processes.
    pub(super) to: usize,
    pub(super) tag: Tag,
    pub(super) length: usize,
    /// Names it among all: index of the sender, and its number there.
    pub(super) id: u64,
}

impl Planned {
    pub(super) fn bytes(&self) -> Vec<u8> {
        pattern::bytes(self.id, self.length)
    }

    /// The receive that is posted for it, by the class of its tag.
    pub(super) fn pattern(&self, sender: (NodeId, Port)) -> Pattern {
        let process = Source::Process(sender.0, sender.1);
        let low = u32::MAX.into();
        let class = self.tag.0 >> 32;
        match class {
            0 => Pattern::ignoring(Source::Any, Tag(class << 32), low),
            1 => Pattern::ignoring(process, Tag(class << 32), low),
            2 => Pattern::tagged(Source::Any, self.tag),
            _ => Pattern::tagged(process, self.tag),
        }
    }
}

/// What the process with that index sends, in this order.
pub(super) fn plan(seed: u64, sender: usize, processes: usize, count: usize) -> Vec<Planned> {
    let mut random = fastrand::Rng::with_seed(seed ^ (sender as u64) << 32);
    let every = count.div_ceil(LONG_MESSAGES).max(1);
    let message = |number: usize| Planned {
        to: random.usize(..processes),
        tag: Tag(random.u64(..4) << 32 | random.u64(..TAGS)),
        length: match number % every {
            0 => random.usize(SHORT + 1..=LONGEST),
            _ => random.usize(..=SHORT),
        },
        id: (sender as u64) << 32 | number as u64,
    };
    (0..count).map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_can_be_made_again_and_bounds_long_messages() {
        for count in [1, 39, 40, 41, 320] {
            let first = plan(7, 3, 5, count);
            assert_eq!(first, plan(7, 3, 5, count));
            let long = first.iter().filter(|message| message.length > SHORT);
            assert!(long.count() <= LONG_MESSAGES);
            assert!(first.iter().all(|message| message.to < 5));
        }
        assert_ne!(plan(7, 3, 5, 10), plan(7, 4, 5, 10));
    }
}
