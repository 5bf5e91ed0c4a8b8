//! What an oracle keeps of each slot of its workload.

use std::ops::{Index, IndexMut, Range};

/// One value for each of some slots in a row, found by the number of the slot.
pub(crate) struct PerSlot<T> {
    first: usize,
    values: Vec<T>,
}

impl<T> PerSlot<T> {
    pub(crate) fn new(slots: Range<usize>, value: impl FnMut(usize) -> T) -> Self {
        PerSlot {
            first: slots.start,
            values: slots.map(value).collect(),
        }
    }

    /// Slot and value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        (self.first..).zip(&self.values)
    }

    pub(crate) fn values(&self) -> std::slice::Iter<'_, T> {
        self.values.iter()
    }

    pub(crate) fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.values.iter_mut()
    }

    /// The value of a slot, if it is one of these.
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        let index = slot.checked_sub(self.first)?;
        self.values.get_mut(index)
    }
}

impl<T> Index<usize> for PerSlot<T> {
    type Output = T;

    fn index(&self, slot: usize) -> &T {
        &self.values[slot - self.first]
    }
}

impl<T> IndexMut<usize> for PerSlot<T> {
    fn index_mut(&mut self, slot: usize) -> &mut T {
        &mut self.values[slot - self.first]
    }
}
