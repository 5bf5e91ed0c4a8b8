//! What runs, by the request that it is of.
//!
//! # Invariants
//! - A request stands at its own place ([`RequestId::place`]), so that nothing is hashed or searched.

use qnic::message::RequestId;

/// Values by request.
pub(super) struct Table<T> {
    /// By place.
    slots: Vec<Option<(RequestId, T)>>,
    count: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        let slots = Vec::new();
        Table { slots, count: 0 }
    }
}

impl<T> Table<T> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Takes the value of a request that has none.
    #[inline]
    pub(super) fn insert(&mut self, id: RequestId, value: T) {
        *self.place(id) = Some((id, value));
    }

    /// Where the value of a request is to be put that has none.
    #[inline]
    pub(super) fn place(&mut self, id: RequestId) -> &mut Option<(RequestId, T)> {
        let place = id.place();
        if place >= self.slots.len() {
            self.slots.resize_with(place + 1, || None);
        }
        // The request before it there has ended.
        let slot = &mut self.slots[place];
        self.count += usize::from(slot.is_none());
        slot
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.place())?.as_mut();
        slot.and_then(|(other, value)| (*other == id).then_some(value))
    }

    #[inline]
    pub(super) fn remove(&mut self, id: RequestId) -> Option<T> {
        let slot = self.slots.get_mut(id.place())?;
        let removed = slot.take_if(|(other, _)| *other == id)?;
        self.count -= 1;
        Some(removed.1)
    }

    /// Drops a value where it stands.
    #[inline]
    pub(super) fn clear(&mut self, id: RequestId) {
        if let Some(slot) = self.slots.get_mut(id.place()) {
            if slot.as_ref().is_some_and(|(other, _)| *other == id) {
                *slot = None;
                self.count -= 1;
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestId, &T)> {
        let slots = self.slots.iter().flatten();
        slots.map(|(id, value)| (*id, value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten().map(|(_, value)| value)
    }
}
