//! A first-in first-out queue with a fixed capacity.

use alloc::collections::VecDeque;

use crate::platform::NoMemory;

/// A queue that never grows, so putting an entry in never allocates.
#[derive(Debug)]
pub(super) struct Queue<T> {
    entries: VecDeque<T>,
    capacity: usize,
}

impl<T> Queue<T> {
    /// An empty queue with room for `capacity` entries.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(capacity: usize) -> Result<Self, NoMemory> {
        let mut entries = VecDeque::new();
        entries.try_reserve_exact(capacity)?;
        Ok(Queue { entries, capacity })
    }

    /// Puts an entry at the end; gives it back if there is no room.
    pub(super) fn push(&mut self, entry: T) -> Result<(), T> {
        if self.entries.len() == self.capacity {
            return Err(entry);
        }
        self.entries.push_back(entry);
        Ok(())
    }

    /// Takes the first entry.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.entries.pop_front()
    }

    /// Removes the entries that are equal to one.
    pub(super) fn remove(&mut self, entry: &T)
    where
        T: PartialEq,
    {
        self.retain(|other| other != entry);
    }

    /// Keeps the entries that have a property.
    pub(super) fn retain(&mut self, has: impl FnMut(&T) -> bool) {
        self.entries.retain(has);
    }

    /// All entries, from the first one on.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    /// All entries, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_order_and_its_bound() {
        let mut queue = Queue::new(2).unwrap();
        assert_eq!(queue.push(1), Ok(()));
        assert_eq!(queue.push(2), Ok(()));
        assert_eq!(queue.push(3), Err(3));
        assert_eq!(queue.pop(), Some(1));
        assert_eq!(queue.push(3), Ok(()));
        queue.remove(&2);
        assert_eq!(queue.pop(), Some(3));
        assert!(queue.is_empty());
    }
}
