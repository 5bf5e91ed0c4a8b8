//! The regions of one process, by their pages. Regions may share pages.
//!
//! A fault asks for the region that holds a page and reaches furthest. It is found in two steps, however many
//! regions there are:
//! ```text
//!   first page     10     12     40     44
//!   end            20     90     42     50
//!   furthest        0      1      1      1   ◄── the last that begins at page 45 or before says: 1
//! ```

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range as Pages;

use super::segment::{Exported, FIRST_ROOM};
use crate::memory::MemoryManager;
use crate::platform::NoMemory;

/// A region with its pages, and which of those up to it reaches furthest: its index.
///
/// The numbers stand here, so that a walk under the spin lock reads this table alone.
struct Placed<P: MemoryManager> {
    exported: Arc<Exported<P>>,
    first: u64,
    end: u64,
    furthest: usize,
}

/// Regions in order of their first pages.
pub(super) struct Regions<P: MemoryManager>(Vec<Placed<P>>);

impl<P: MemoryManager> Regions<P> {
    pub(super) fn new() -> Self {
        Regions(Vec::new())
    }

    /// None, and room for so many.
    ///
    /// # Errors
    /// NoMemory.
    pub(super) fn with_room(room: usize) -> Result<Self, NoMemory> {
        let mut regions = Vec::new();
        regions.try_reserve_exact(room)?;
        Ok(Regions(regions))
    }

    /// The room to have before another one is inserted. `None`: that is there.
    pub(super) fn wants_room(&self) -> Option<usize> {
        let (used, room) = (self.0.len(), self.0.capacity());
        (used == room).then(|| (2 * room).max(FIRST_ROOM))
    }

    /// Moves all to a larger table; returns this one, which is to be dropped where memory may be freed.
    pub(super) fn move_to(&mut self, mut larger: Self) -> Self {
        larger.0.append(&mut self.0);
        core::mem::replace(self, larger)
    }

    /// Inserts a region. There is room for it.
    pub(super) fn insert(&mut self, exported: Arc<Exported<P>>) {
        let Pages { start: first, end } = exported.region.page_numbers();
        let index = self.0.partition_point(|it| it.first < first);
        let placed = Placed {
            exported,
            first,
            end,
            furthest: index,
        };
        self.0.insert(index, placed);
        self.place(index);
    }

    /// Takes a region out.
    pub(super) fn remove(&mut self, exported: &Arc<Exported<P>>) -> Option<Arc<Exported<P>>> {
        let first = exported.region.page_numbers().start;
        let from = self.0.partition_point(|it| it.first < first);
        let mut others = self.0[from..].iter();
        let index = from + others.position(|it| Arc::ptr_eq(&it.exported, exported))?;
        let removed = self.0.remove(index);
        self.place(index);
        Some(removed.exported)
    }

    /// Takes one out, whichever.
    pub(super) fn pop(&mut self) -> Option<Arc<Exported<P>>> {
        self.0.pop().map(|it| it.exported)
    }

    /// The region with exactly these pages.
    pub(super) fn over(&self, pages: &Pages<u64>) -> Option<Arc<Exported<P>>> {
        let first = self.0.partition_point(|it| it.first < pages.start);
        let begin_there = self.0[first..].iter();
        let mut begin_there = begin_there.take_while(|it| it.first == pages.start);
        let same = begin_there.find(|it| it.end == pages.end);
        same.map(|it| it.exported.clone())
    }

    /// Of the regions with a page, the one that reaches furthest.
    pub(super) fn furthest(&self, page: u64) -> Option<Arc<Exported<P>>> {
        let after = self.0.partition_point(|it| it.first <= page);
        let last = self.0[..after].last()?;
        let found = &self.0[last.furthest];
        (page < found.end).then(|| found.exported.clone())
    }

    /// Finds again which reach furthest, from an index on.
    fn place(&mut self, from: usize) {
        for index in from..self.0.len() {
            let before = index.checked_sub(1).map(|before| self.0[before].furthest);
            let reaches = |other: &usize| self.0[*other].end >= self.0[index].end;
            self.0[index].furthest = before.filter(reaches).unwrap_or(index);
        }
    }
}
