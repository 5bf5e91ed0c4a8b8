//! Export and import maps: from addresses to segments in O(log segments) (N3).

use std::collections::BTreeMap;

/// Segments by where they start. Segments of one space do not overlap, except
/// that several may stand for exactly the same range.
#[derive(Debug)]
struct Ranges<S, V> {
    /// (space, first address) to (length, segment), newest last.
    ranges: BTreeMap<(S, u64), Vec<(u64, V)>>,
}

impl<S: Ord + Copy, V: Copy + PartialEq> Ranges<S, V> {
    fn insert(&mut self, space: S, address: u64, length: u64, value: V) {
        let at = self.ranges.entry((space, address)).or_default();
        at.push((length, value));
    }

    fn remove(&mut self, space: S, address: u64, value: V) {
        if let Some(at) = self.ranges.get_mut(&(space, address)) {
            at.retain(|(_, other)| *other != value);
            if at.is_empty() {
                self.ranges.remove(&(space, address));
            }
        }
    }

    /// The newest segment that holds all of `address .. address + length`, and
    /// the offset in it.
    fn find(&self, space: S, address: u64, length: u64) -> Option<(V, u64)> {
        let ((found, start), at) = self.ranges.range(..=(space, address)).next_back()?;
        let offset = address - start;
        let fits = |size: u64| offset < size && length <= size - offset;
        let (_, value) = at.iter().rev().find(|(size, _)| fits(*size))?;
        (*found == space).then_some((*value, offset))
    }
}

impl<S, V> Default for Ranges<S, V> {
    fn default() -> Self {
        Ranges {
            ranges: BTreeMap::new(),
        }
    }
}

/// What a command needs to know of an exported segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exported {
    pub(crate) segment: u16,
    pub(crate) key: u64,
}

/// Segments that this process exports.
#[derive(Debug, Default)]
pub(crate) struct Exports(Ranges<(), Exported>);

impl Exports {
    pub(crate) fn insert(&mut self, address: u64, length: u64, segment: Exported) {
        self.0.insert((), address, length, segment);
    }

    pub(crate) fn remove(&mut self, address: u64, segment: Exported) {
        self.0.remove((), address, segment);
    }

    pub(crate) fn find(&self, address: u64, length: u64) -> Option<(Exported, u64)> {
        self.0.find((), address, length)
    }
}

/// Segments that this process has imported, by (node, port) and a number that the
/// endpoint gave them.
#[derive(Debug)]
pub(crate) struct Imports<V> {
    ranges: Ranges<(u16, u16), u64>,
    handles: BTreeMap<u64, V>,
    next: u64,
}

impl<V> Imports<V> {
    /// A number for a segment, never given before.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn insert(
        &mut self,
        process: (u16, u16),
        address: u64,
        length: u64,
        number: u64,
        handle: V,
    ) {
        self.ranges.insert(process, address, length, number);
        self.handles.insert(number, handle);
    }

    pub(crate) fn remove(&mut self, process: (u16, u16), address: u64, number: u64) {
        self.ranges.remove(process, address, number);
        self.handles.remove(&number);
    }

    pub(crate) fn find(&self, process: (u16, u16), address: u64) -> Option<(&V, u64)> {
        let (number, offset) = self.ranges.find(process, address, 1)?;
        Some((self.handles.get(&number)?, offset))
    }
}

impl<V> Default for Imports<V> {
    fn default() -> Self {
        Imports {
            ranges: Ranges::default(),
            handles: BTreeMap::new(),
            next: 0,
        }
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
        let mut imports = Imports::default();
        imports.insert((1, 1), 1000, 100, 7, 'a');
        imports.insert((1, 2), 500, 10, 8, 'b');
        assert_eq!(imports.find((1, 1), 1099), Some((&'a', 99)));
        assert_eq!(imports.find((1, 2), 1000), None);
        assert_eq!(imports.find((2, 1), 1000), None);
        imports.remove((1, 1), 1000, 7);
        assert_eq!(imports.find((1, 1), 1000), None);
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
