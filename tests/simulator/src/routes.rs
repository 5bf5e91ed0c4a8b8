//! Routes between nodes that were disturbed a short time ago.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::schedule::lock;

/// Until when routes count as disturbed: a handle, which the workloads of a simulation share.
#[derive(Debug, Default, Clone)]
pub(crate) struct Routes(Arc<Mutex<BTreeMap<(usize, usize), u64>>>);

/// The route between two nodes, in both directions.
pub(crate) fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Routes {
    /// The route between two nodes is disturbed until a point in time.
    pub(crate) fn disturb(&self, a: usize, b: usize, until: u64) {
        lock(&self.0).insert(pair(a, b), until);
    }

    /// Since when all NICs have noticed that the route is whole, or until when they will have; a
    /// point in time that never comes if it is disturbed now.
    pub(crate) fn whole_since(&self, a: usize, b: usize) -> u64 {
        lock(&self.0).get(&pair(a, b)).copied().unwrap_or(0)
    }

    /// Returns true if NICs may still learn that the route was disturbed.
    pub(crate) fn are_unsettled(&self, a: usize, b: usize, now: u64) -> bool {
        now < self.whole_since(a, b)
    }
}
