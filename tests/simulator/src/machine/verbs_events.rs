//! What the driver core has told of objects of verbs.

use std::sync::Mutex;

use qnic_abi::verbs::Event;

use crate::schedule::{lock, Signal};

/// Events that no worker has taken, with the owners of their objects.
#[derive(Default)]
pub(crate) struct VerbsEvents {
    events: Mutex<Vec<(u64, Event)>>,
    /// There is a new one.
    pub(crate) told: Signal,
}

impl VerbsEvents {
    pub(super) fn push(&self, owner: u64, event: Event) {
        lock(&self.events).push((owner, event));
    }

    /// Takes those of some owners, in their order.
    pub(crate) fn take(&self, mut is_own: impl FnMut(u64) -> bool) -> Vec<(u64, Event)> {
        let mut events = lock(&self.events);
        let all = std::mem::take(&mut *events);
        let (own, others) = all.into_iter().partition(|(owner, _)| is_own(*owner));
        *events = others;
        own
    }
}
