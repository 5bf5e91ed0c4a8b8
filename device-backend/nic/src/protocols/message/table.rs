//! Entries in the order in which they came, each also in a fixed number of bins: what waits to be
//! matched, and posted receives by the names that a Cancel gives.
//!
//! ```text
//!   order   1 ⇄ 2 ⇄ 3 ⇄ 4 ⇄ 5        the slots of the entries link them
//!
//!   bins    A: 1 ⇄ 4                 hashed; each has its first and its last entry
//!           B: 2 ⇄ 3 ⇄ 5
//! ```
//! - Every list is in the order of the sequence numbers, so the first of a bin came first.
//! - An entry that is removed leaves all its lists at once, and its slot is used again. No bin
//!   is empty. So the table has as many slots as it had entries at most since it was last empty.
//! - No id is given twice: the id of a removed entry finds nothing.
//! - No choice of bins makes them collide: the hash has random keys. Nothing is
//!   ever read in the order of the hash table.

#[cfg(test)]
use std::cell::Cell;
use std::collections::hash_map::{Entry as HashEntry, HashMap};
use std::hash::Hash;

use ahash::RandomState;

/// How many entries an empty table keeps memory for.
const KEPT: usize = 64;

const NONE: u32 = u32::MAX;

/// What stands in a table.
pub(super) trait Entry<const BINS: usize>: Copy {
    /// Names a bin.
    type Bin: Eq + Hash;

    /// The bins of an entry; no two are the same.
    fn bins(&self) -> [Self::Bin; BINS];
}

/// Names an entry of a table. The one that came earlier is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId {
    sequence: u64,
    index: u32,
}

/// First and last entry; both or neither are `NONE`.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

/// The neighbours of an entry in one list.
#[derive(Debug, Clone, Copy)]
struct Link {
    previous: u32,
    next: u32,
}

const UNLINKED: Link = Link {
    previous: NONE,
    next: NONE,
};

/// One of the lists in which an entry stands.
#[derive(Debug, Clone, Copy)]
enum Which {
    Order,
    Bin(usize),
}

#[derive(Debug)]
struct Slot<T, const BINS: usize> {
    /// Number of its entry; 0 if it is free.
    sequence: u64,
    entry: T,
    order: Link,
    bins: [Link; BINS],
}

impl<T, const BINS: usize> Slot<T, BINS> {
    fn link(&mut self, which: Which) -> &mut Link {
        match which {
            Which::Order => &mut self.order,
            Which::Bin(number) => &mut self.bins[number],
        }
    }
}

/// The slots, and the lists through them.
#[derive(Debug)]
struct Slots<T, const BINS: usize> {
    slots: Vec<Slot<T, BINS>>,
    #[cfg(test)]
    looks: Cell<u64>,
}

impl<T, const BINS: usize> Slots<T, BINS> {
    fn at(&self, index: u32) -> Option<&Slot<T, BINS>> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.slots.get(index as usize)
    }

    fn at_mut(&mut self, index: u32) -> &mut Slot<T, BINS> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        &mut self.slots[index as usize]
    }

    fn append(&mut self, list: &mut List, which: Which, index: u32) {
        *self.at_mut(index).link(which) = Link {
            previous: list.last,
            next: NONE,
        };
        match list.last {
            NONE => list.first = index,
            last => self.at_mut(last).link(which).next = index,
        }
        list.last = index;
    }

    fn unlink(&mut self, list: &mut List, which: Which, index: u32) {
        let Link { previous, next } = *self.at_mut(index).link(which);
        match previous {
            NONE => list.first = next,
            previous => self.at_mut(previous).link(which).next = next,
        }
        match next {
            NONE => list.last = previous,
            next => self.at_mut(next).link(which).previous = previous,
        }
    }
}

/// Entries by id, in order, and by bin.
#[derive(Debug)]
pub(super) struct Table<T: Entry<BINS>, const BINS: usize> {
    slots: Slots<T, BINS>,
    /// Slots without an entry.
    free: Vec<u32>,
    order: List,
    bins: HashMap<T::Bin, List, RandomState>,
    /// Number of the entry that came last.
    last: u64,
}

impl<T: Entry<BINS>, const BINS: usize> Table<T, BINS> {
    pub(super) fn new() -> Self {
        Table {
            slots: Slots {
                slots: Vec::new(),
                #[cfg(test)]
                looks: Cell::new(0),
            },
            free: Vec::new(),
            order: EMPTY,
            bins: HashMap::default(),
            last: 0,
        }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.slots.slots.len() - self.free.len()
    }

    /// Appends an entry, which is made with its id; there are less than `u32::MAX`.
    pub(super) fn insert(&mut self, entry: impl FnOnce(EntryId) -> T) -> EntryId {
        self.last += 1;
        let fresh = self.slots.slots.len() as u32;
        let id = EntryId {
            sequence: self.last,
            index: self.free.pop().unwrap_or(fresh),
        };
        let entry = entry(id);
        let slot = Slot {
            sequence: id.sequence,
            entry,
            order: UNLINKED,
            bins: [UNLINKED; BINS],
        };
        match id.index == fresh {
            true => self.slots.slots.push(slot),
            false => *self.slots.at_mut(id.index) = slot,
        }
        self.slots.append(&mut self.order, Which::Order, id.index);
        for (number, bin) in entry.bins().into_iter().enumerate() {
            let list = self.bins.entry(bin).or_insert(EMPTY);
            self.slots.append(list, Which::Bin(number), id.index);
        }
        id
    }

    /// The entry of that id, unless it was removed.
    pub(super) fn get(&self, id: EntryId) -> Option<&T> {
        let slot = self.slots.at(id.index)?;
        (slot.sequence == id.sequence).then_some(&slot.entry)
    }

    /// The entry of that id, unless it was removed. Its bins stay what they are.
    pub(super) fn get_mut(&mut self, id: EntryId) -> Option<&mut T> {
        let slot = self.slots.slots.get_mut(id.index as usize)?;
        (slot.sequence == id.sequence).then_some(&mut slot.entry)
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, id: EntryId) -> Option<T> {
        let entry = *self.get(id)?;
        self.slots.unlink(&mut self.order, Which::Order, id.index);
        for (number, bin) in entry.bins().into_iter().enumerate() {
            if let HashEntry::Occupied(mut list) = self.bins.entry(bin) {
                let which = Which::Bin(number);
                self.slots.unlink(list.get_mut(), which, id.index);
                if list.get().first == NONE {
                    list.remove();
                }
            }
        }
        self.slots.at_mut(id.index).sequence = 0;
        self.free.push(id.index);
        if self.len() == 0 {
            self.release();
        }
        Some(entry)
    }

    /// Gives memory back that the empty table does not need.
    fn release(&mut self) {
        self.slots.slots.clear();
        self.slots.slots.shrink_to(KEPT);
        self.free.clear();
        self.free.shrink_to(KEPT);
        self.bins.shrink_to(KEPT);
    }

    /// The first entry of a bin.
    pub(super) fn first(&self, bin: &T::Bin) -> Option<EntryId> {
        let index = self.list(bin).first;
        let sequence = self.slots.at(index)?.sequence;
        Some(EntryId { sequence, index })
    }

    /// All entries, the first first.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &T> {
        self.entries().map(|(_, entry)| entry)
    }

    /// All entries with their ids, the first first.
    pub(super) fn entries(&self) -> impl Iterator<Item = (EntryId, &T)> {
        self.walk(self.order.first, |slot| slot.order.next)
    }

    /// The entries of a bin that stands at `number` in what their `bins` return.
    pub(super) fn in_bin(&self, number: usize, bin: &T::Bin) -> impl Iterator<Item = &T> {
        let entries = self.walk(self.list(bin).first, move |slot| slot.bins[number].next);
        entries.map(|(_, entry)| entry)
    }

    fn list(&self, bin: &T::Bin) -> List {
        #[cfg(test)]
        self.slots.looks.set(self.slots.looks.get() + 1);
        self.bins.get(bin).copied().unwrap_or(EMPTY)
    }

    fn walk(
        &self,
        first: u32,
        next: impl Fn(&Slot<T, BINS>) -> u32,
    ) -> impl Iterator<Item = (EntryId, &T)> {
        let mut index = first;
        std::iter::from_fn(move || {
            let slot = self.slots.at(index)?;
            let sequence = slot.sequence;
            let id = EntryId { sequence, index };
            index = next(slot);
            Some((id, &slot.entry))
        })
    }
}

#[cfg(test)]
impl<T: Entry<BINS>, const BINS: usize> Table<T, BINS> {
    /// How often an entry or a bin was looked at.
    pub(super) fn looks(&self) -> u64 {
        self.slots.looks.get()
    }

    /// How many entries there is memory for.
    pub(super) fn capacity(&self) -> usize {
        let slots = self.slots.slots.capacity().max(self.free.capacity());
        slots.max(self.bins.capacity())
    }

    /// How many slots there are, used or free.
    pub(super) fn slots(&self) -> usize {
        self.slots.slots.len()
    }

    /// Asserts that each entry stands in its bins, in order, and nothing else does.
    pub(super) fn check(&self) {
        let order: Vec<_> = self.sequences(self.order, |slot| slot.order);
        assert!(order.is_sorted() && order.len() == self.len());
        let mut linked = 0;
        for (bin, list) in &self.bins {
            let first = self.slots.at(list.first).expect("no bin is empty");
            let number = first.entry.bins().iter().position(|own| own == bin);
            let number = number.expect("a bin of its entries");
            assert!(self.in_bin(number, bin).all(|it| it.bins()[number] == *bin));
            let sequences = self.sequences(*list, |slot| slot.bins[number]);
            assert!(sequences.is_sorted());
            linked += sequences.len();
        }
        assert_eq!(linked, BINS * self.len());
    }

    /// The sequence numbers of a list, whose links back are checked.
    fn sequences(&self, list: List, link: impl Fn(&Slot<T, BINS>) -> Link) -> Vec<u64> {
        let (mut sequences, mut previous, mut index) = (Vec::new(), NONE, list.first);
        while let Some(slot) = self.slots.at(index) {
            assert_eq!(link(slot).previous, previous);
            sequences.push(slot.sequence);
            (previous, index) = (index, link(slot).next);
        }
        assert_eq!(list.last, previous);
        sequences
    }
}
