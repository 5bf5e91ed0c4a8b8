//! Export and import maps: from addresses to segments in O(log segments) (N3).

use std::collections::BTreeMap;
use std::sync::{Mutex, Weak};

use qnic_abi::{Access, NodeId, Port, SegmentName};

use crate::core::lock;

/// Segments of each process by address. They may overlap.
///
/// ```text
///   segments   |──── first ─────────────────────|
///                        |──── second ────|
///   pieces     [ first   [ first, second  [ first [ none
/// ```
/// A piece begins at its key, and ends where the next one of its process begins. It lists the
/// segments that cover it, in the order in which they were inserted.
#[derive(Debug)]
pub(crate) struct Ranges<P, V> {
    pieces: BTreeMap<(P, u64), Vec<Entry<V>>>,
    /// Number of the next segment.
    next: u64,
}

#[derive(Debug, Clone)]
struct Entry<V> {
    number: u64,
    address: u64,
    length: u64,
    value: V,
}

impl<P, V> Default for Ranges<P, V> {
    fn default() -> Self {
        let pieces = BTreeMap::new();
        Ranges { pieces, next: 0 }
    }
}

impl<P: Ord + Copy, V: Clone> Ranges<P, V> {
    pub(crate) fn insert(&mut self, process: P, address: u64, length: u64, value: V) {
        let end = address.saturating_add(length);
        self.cut(process, address);
        self.cut(process, end);
        let entry = Entry {
            number: self.next,
            address,
            length,
            value,
        };
        self.next += 1;
        let covered = self.pieces.range_mut((process, address)..(process, end));
        covered.for_each(|(_, piece)| piece.push(entry.clone()));
    }

    /// Removes the segment over this range that `matches`.
    pub(crate) fn remove(
        &mut self,
        process: P,
        (address, length): (u64, u64),
        matches: impl Fn(&V) -> bool,
    ) {
        let end = address.saturating_add(length);
        let covered = self.pieces.range_mut((process, address)..(process, end));
        covered.for_each(|(_, piece)| piece.retain(|entry| !matches(&entry.value)));
        self.join(process, address);
        self.join(process, end);
    }

    /// The segments that hold all of `address .. address + length`, with the offset in each;
    /// newest first.
    pub(crate) fn find(
        &self,
        process: P,
        address: u64,
        length: u64,
    ) -> impl Iterator<Item = (&V, u64)> {
        let entries = self.piece(process, address).iter().rev();
        entries.filter_map(move |entry| {
            let offset = address - entry.address;
            let fits = offset < entry.length && length <= entry.length - offset;
            fits.then_some((&entry.value, offset))
        })
    }

    /// The segments that cover an address.
    fn piece(&self, process: P, address: u64) -> &[Entry<V>] {
        let piece = self.pieces.range(..=(process, address)).next_back();
        let own = piece.filter(|((owner, _), _)| *owner == process);
        own.map_or(&[], |(_, entries)| entries)
    }

    /// Lets a piece begin at this address.
    fn cut(&mut self, process: P, address: u64) {
        if !self.pieces.contains_key(&(process, address)) {
            let entries = self.piece(process, address).to_vec();
            self.pieces.insert((process, address), entries);
        }
    }

    /// Lets no piece begin at this address if the one before has the same segments.
    fn join(&mut self, process: P, address: u64) {
        let Some(piece) = self.pieces.remove(&(process, address)) else {
            return;
        };
        let numbers = |entries: &[Entry<V>]| entries.iter().map(|entry| entry.number).collect();
        let [before, own]: [Vec<u64>; 2] = [self.piece(process, address), &piece].map(numbers);
        if before != own {
            self.pieces.insert((process, address), piece);
        }
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
            let range = (self.address, self.length);
            lock(&imports).remove((self.node, self.port), range, is_this);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn newest<P: Ord + Copy, V: Clone + Copy>(
        ranges: &Ranges<P, V>,
        process: P,
        address: u64,
        length: u64,
    ) -> Option<(V, u64)> {
        let found = ranges.find(process, address, length).next();
        found.map(|(value, offset)| (*value, offset))
    }

    #[test]
    fn equal_ranges_stand_side_by_side() {
        let mut ranges = Ranges::<(), char>::default();
        ranges.insert((), 100, 50, 'a');
        ranges.insert((), 100, 50, 'b');
        assert_eq!(newest(&ranges, (), 120, 30), Some(('b', 20)));
        ranges.remove((), (100, 50), |other| *other == 'b');
        assert_eq!(newest(&ranges, (), 120, 30), Some(('a', 20)));
        assert_eq!(newest(&ranges, (), 120, 31), None);
        ranges.remove((), (100, 50), |other| *other == 'a');
        assert_eq!(newest(&ranges, (), 100, 0), None);
        assert!(ranges.pieces.is_empty());
    }

    #[test]
    fn processes_do_not_mix() {
        let mut ranges = Ranges::default();
        ranges.insert((1, 1), 1000, 100, 'a');
        ranges.insert((1, 2), 500, 10, 'b');
        assert_eq!(newest(&ranges, (1, 1), 1099, 1), Some(('a', 99)));
        assert_eq!(newest(&ranges, (1, 2), 1000, 1), None);
        assert_eq!(newest(&ranges, (2, 1), 1000, 1), None);
        ranges.remove((1, 1), (1000, 100), |value| *value == 'a');
        assert_eq!(newest(&ranges, (1, 1), 1000, 1), None);
    }

    /// A segment of a hostile peer may end behind every address.
    #[test]
    fn the_end_of_the_address_space_is_no_trap() {
        let mut ranges = Ranges::default();
        ranges.insert((), u64::MAX - 5, 100, 'a');
        ranges.insert((), u64::MAX, 1, 'b');
        assert_eq!(newest(&ranges, (), u64::MAX - 1, 50), Some(('a', 4)));
        ranges.remove((), (u64::MAX - 5, 100), |value| *value == 'a');
        assert_eq!(newest(&ranges, (), u64::MAX - 1, 1), None);
    }

    proptest! {
        /// Segments that overlap, come and go, against a linear search (N2, N3).
        #[test]
        fn lookup_agrees_with_a_linear_search(
            steps in proptest::collection::vec((0u64..60, 1u64..30, any::<bool>()), 1..40),
            lookups in proptest::collection::vec((0u64..100, 0u64..12), 20),
        ) {
            let mut ranges = Ranges::<u16, usize>::default();
            let mut model: Vec<(u64, u64, usize)> = Vec::new();
            for (number, (address, length, goes)) in steps.into_iter().enumerate() {
                ranges.insert(7, address, length, number);
                model.push((address, length, number));
                if goes {
                    let (address, length, gone) = model.remove(number % model.len());
                    ranges.remove(7, (address, length), |other| *other == gone);
                }
            }
            for (address, length) in lookups {
                let holds = |(start, size, _): &&(u64, u64, usize)| {
                    *start <= address && address < start + size && address + length <= start + size
                };
                let expected = model.iter().rev().filter(holds);
                let expected: Vec<_> = expected.map(|(start, _, number)| (*number, address - start)).collect();
                let found: Vec<_> = ranges.find(7, address, length).map(|(n, o)| (*n, o)).collect();
                prop_assert_eq!(found, expected);
            }
            for (address, length, number) in model {
                ranges.remove(7, (address, length), |other| *other == number);
            }
            prop_assert!(ranges.pieces.is_empty());
        }
    }
}
