//! Routes between nodes: which were disturbed a short time ago, and what was lost on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::schedule::lock;

/// What is known of one route.
#[derive(Debug, Default)]
struct Route {
    disturbed_until: u64,
    /// Frames of sessions that were lost, both ways.
    losses: u64,
}

/// The routes of a cluster: a handle, which its wires and the workloads of a simulation share.
#[derive(Debug, Default, Clone)]
pub(crate) struct Routes(Arc<Mutex<BTreeMap<(usize, usize), Route>>>);

/// The route between two nodes, in both directions.
pub(crate) fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Routes {
    /// The route between two nodes is disturbed until a point in time.
    pub(crate) fn disturb(&self, a: usize, b: usize, until: u64) {
        lock(&self.0).entry(pair(a, b)).or_default().disturbed_until = until;
    }

    /// Since when all NICs have noticed that the route is whole, or until when they will have; a
    /// point in time that never comes if it is disturbed now.
    pub(crate) fn whole_since(&self, a: usize, b: usize) -> u64 {
        lock(&self.0)
            .get(&pair(a, b))
            .map_or(0, |route| route.disturbed_until)
    }

    /// Returns true if NICs may still learn that the route was disturbed.
    pub(crate) fn are_unsettled(&self, a: usize, b: usize, now: u64) -> bool {
        now < self.whole_since(a, b)
    }

    /// A frame of a session is lost on the route.
    pub(crate) fn lose(&self, a: usize, b: usize) {
        lock(&self.0).entry(pair(a, b)).or_default().losses += 1;
    }

    /// How many were lost so far.
    pub(crate) fn losses(&self, a: usize, b: usize) -> u64 {
        lock(&self.0)
            .get(&pair(a, b))
            .map_or(0, |route| route.losses)
    }
}
