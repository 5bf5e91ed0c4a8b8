//! Export and import maps: from addresses to segments in O(log segments) (N3).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::memory::remote::Remote;

/// Segments by first address. Segments of one space do not overlap, except that several
/// may cover exactly the same range.
#[derive(Debug)]
struct Ranges<S, V> {
    /// (space, first address) to (length, segment), newest last.
    ranges: BTreeMap<(S, u64), Vec<(u64, V)>>,
}

impl<S: Ord + Copy, V> Ranges<S, V> {
    fn insert(&mut self, space: S, address: u64, length: u64, value: V) {
        let at = self.ranges.entry((space, address)).or_default();
        at.push((length, value));
    }

    /// Removes the segment at `address` that `matches`.
    fn remove(&mut self, space: S, address: u64, matches: impl Fn(&V) -> bool) {
        if let Some(at) = self.ranges.get_mut(&(space, address)) {
            at.retain(|(_, value)| !matches(value));
            if at.is_empty() {
                self.ranges.remove(&(space, address));
            }
        }
    }

    /// The newest segment that holds all of `address .. address + length`, and the
    /// offset in it.
    fn find(&self, space: S, address: u64, length: u64) -> Option<(&V, u64)> {
        let ((found, start), at) = self.ranges.range(..=(space, address)).next_back()?;
        let offset = address - start;
        let fits = |size: u64| offset < size && length <= size - offset;
        let (_, value) = at.iter().rev().find(|(size, _)| fits(*size))?;
        (*found == space).then_some((value, offset))
    }
}

impl<S, V> Default for Ranges<S, V> {
    fn default() -> Self {
        Ranges {
            ranges: BTreeMap::new(),
        }
    }
}

/// What a command has to say about an exported segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) segment: u16,
    pub(crate) key: u64,
}

/// The segments that this process exports.
#[derive(Debug, Default)]
pub(crate) struct Exports(Ranges<(), Exported>);

impl Exports {
    pub(crate) fn insert(&mut self, address: u64, length: u64, segment: Exported) {
        self.0.insert((), address, length, segment);
    }

    pub(crate) fn remove(&mut self, address: u64, segment: Exported) {
        self.0.remove((), address, |other| *other == segment);
    }

    pub(crate) fn find(&self, address: u64, length: u64) -> Option<(Exported, u64)> {
        let (segment, offset) = self.0.find((), address, length)?;
        Some((*segment, offset))
    }
}

/// The segments that this process has imported, by node and port.
#[derive(Debug, Default)]
pub(crate) struct Imports(Ranges<(u16, u16), Weak<Remote>>);

impl Imports {
    pub(crate) fn insert(&mut self, remote: &Arc<Remote>) {
        let (process, weak) = (remote.process(), Arc::downgrade(remote));
        self.0.insert(process, remote.address, remote.length, weak);
    }

    pub(crate) fn remove(&mut self, remote: &Remote) {
        let is_this = |other: &Weak<Remote>| std::ptr::eq(other.as_ptr(), remote);
        self.0.remove(remote.process(), remote.address, is_this);
    }

    pub(crate) fn find(&self, process: (u16, u16), address: u64) -> Option<(Arc<Remote>, u64)> {
        let (remote, offset) = self.0.find(process, address, 1)?;
        Some((remote.upgrade()?, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_ranges_stand_side_by_side() {
        let mut exports = Exports::default();
        let segment = |segment| Exported { segment, key: 1 };
        exports.insert(100, 50, segment(1));
        exports.insert(100, 50, segment(2));
        assert_eq!(exports.find(120, 30), Some((segment(2), 20)));
        exports.remove(100, segment(2));
        assert_eq!(exports.find(120, 30), Some((segment(1), 20)));
        assert_eq!(exports.find(120, 31), None);
        exports.remove(100, segment(1));
        assert_eq!(exports.find(100, 0), None);
    }

    #[test]
    fn processes_do_not_mix() {
        let mut ranges = Ranges::default();
        ranges.insert((1, 1), 1000, 100, 'a');
        ranges.insert((1, 2), 500, 10, 'b');
        assert_eq!(ranges.find((1, 1), 1099, 1), Some((&'a', 99)));
        assert_eq!(ranges.find((1, 2), 1000, 1), None);
        assert_eq!(ranges.find((2, 1), 1000, 1), None);
        ranges.remove((1, 1), 1000, |value| *value == 'a');
        assert_eq!(ranges.find((1, 1), 1000, 1), None);
    }

    proptest! {
        /// Disjoint segments of ten addresses each, against a linear search.
        #[test]
        fn lookup_agrees_with_a_linear_search(
            starts in proptest::collection::btree_set(0u64..100, 0..20),
            address in 0u64..1100,
            length in 0u64..12,
        ) {
            let mut exports = Exports::default();
            for start in &starts {
                exports.insert(start * 10, 10, Exported { segment: *start as u16, key: 0 });
            }
            let expected = starts.iter().copied().find(|start| {
                start * 10 <= address && address < start * 10 + 10
                    && address + length <= start * 10 + 10
            });
            let found = exports.find(address, length);
            prop_assert_eq!(found.map(|(e, _)| u64::from(e.segment)), expected);
            prop_assert_eq!(found.map(|(_, o)| o), expected.map(|start| address - start * 10));
        }
    }
}
