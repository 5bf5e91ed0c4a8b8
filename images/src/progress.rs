//! How long work reports what it is doing.

use std::time::Duration;

/// Receives what happens while artefacts are provisioned or a cluster boots, as it happens.
///
/// Called from several threads; implementations must not block.
pub trait Progress: Send + Sync {
    /// A new step begins; the one before it is over.
    fn step(&self, message: &str);

    /// The current step has handled `done` of `total` bytes.
    fn bytes(&self, done: u64, total: u64);

    /// `part` of the preparations, which goes on beside the steps, is in a new state.
    fn part(&self, part: &str, state: &str) {
        self.step(&format!("{part}: {state}"));
    }

    /// `node` of a cluster that boots is in a new state.
    fn node(&self, _node: &str, _state: &str) {}

    /// `node` is up, with the kernel `release`, so long after all guests were started.
    fn ready(&self, node: &str, release: &str, _took: Duration) {
        self.node(node, &format!("ready, {release}"));
    }
}

/// Progress that goes nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _message: &str) {}
    fn bytes(&self, _done: u64, _total: u64) {}
}
