//! Export and import maps: from addresses to segments in O(log segments) (N3).

use std::collections::BTreeMap;
use std::sync::{Mutex, Weak};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use crate::core::lock;

/// Segments by first address. Segments of one process do not overlap, except that several
/// may cover exactly the same range.
#[derive(Debug)]
pub(crate) struct Ranges<P, V> {
    /// (process, first address) to (length, segment), newest last.
    ranges: BTreeMap<(P, u64), Vec<(u64, V)>>,
}

impl<P, V> Default for Ranges<P, V> {
    fn default() -> Self {
        let ranges = BTreeMap::new();
        Ranges { ranges }
    }
}

impl<P: Ord + Copy, V> Ranges<P, V> {
    pub(crate) fn insert(&mut self, process: P, address: u64, length: u64, value: V) {
        let at = self.ranges.entry((process, address)).or_default();
        at.push((length, value));
    }

    /// Removes the segment at `address` that `matches`.
    pub(crate) fn remove(&mut self, process: P, address: u64, matches: impl Fn(&V) -> bool) {
        if let Some(at) = self.ranges.get_mut(&(process, address)) {
            at.retain(|(_, value)| !matches(value));
            if at.is_empty() {
                self.ranges.remove(&(process, address));
            }
        }
    }

    /// The newest segment that holds all of `address .. address + length`, and the
    /// offset in it.
    pub(crate) fn find(&self, process: P, address: u64, length: u64) -> Option<(&V, u64)> {
        let ((found, start), at) = self.ranges.range(..=(process, address)).next_back()?;
        let offset = address - start;
        let fits = |size: u64| offset < size && length <= size - offset;
        let (_, value) = at.iter().rev().find(|(size, _)| fits(*size))?;
        (*found == process).then_some((value, offset))
    }
}

/// What a command has to say about an exported segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) segment: u16,
    pub(crate) key: u64,
}

/// What the export map says of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExportEntry {
    pub(crate) exported: Exported,
    pub(crate) name: SegmentName,
    pub(crate) access: Access,
    /// Length in bytes.
    pub(crate) length: u64,
}

/// The segments that this process exports.
pub(crate) type Exports = Ranges<(), ExportEntry>;

/// The segments that this process has imported, by node and port.
pub(crate) type Imports = Ranges<(NodeId, Port), Weak<Remote>>;

/// The result of an import.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) imports: Weak<Mutex<Imports>>,
    pub(crate) node: NodeId,
    pub(crate) port: Port,
    pub(crate) name: SegmentName,
    pub(crate) segment: u16,
    pub(crate) access: Access,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) key: u64,
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(imports) = self.imports.upgrade() {
            let is_this = |other: &Weak<Remote>| std::ptr::eq(other.as_ptr(), self);
            lock(&imports).remove((self.node, self.port), self.address, is_this);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_ranges_stand_side_by_side() {
        let mut exports = Ranges::<(), Exported>::default();
        let segment = |segment| Exported { segment, key: 1 };
        let (first, second) = (segment(1), segment(2));
        exports.insert((), 100, 50, first);
        exports.insert((), 100, 50, second);
        assert_eq!(exports.find((), 120, 30), Some((&second, 20)));
        exports.remove((), 100, |other| *other == second);
        assert_eq!(exports.find((), 120, 30), Some((&first, 20)));
        assert_eq!(exports.find((), 120, 31), None);
        exports.remove((), 100, |other| *other == first);
        assert_eq!(exports.find((), 100, 0), None);
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
            let mut exports = Ranges::<(), Exported>::default();
            for start in &starts {
                exports.insert((), start * 10, 10, Exported { segment: *start as u16, key: 0 });
            }
            let expected = starts.iter().copied().find(|start| {
                start * 10 <= address && address < start * 10 + 10
                    && address + length <= start * 10 + 10
            });
            let found = exports.find((), address, length);
            prop_assert_eq!(found.map(|(e, _)| u64::from(e.segment)), expected);
            prop_assert_eq!(found.map(|(_, o)| o), expected.map(|start| address - start * 10));
        }
    }
}
