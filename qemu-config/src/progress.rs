//! How a boot tells what it is doing.

use std::sync::Arc;

/// Receives what happens while a cluster boots, as it happens.
///
/// Called from several threads; implementations must not block.
pub trait Progress: Send + Sync {
    /// A step common to all nodes begins; the one before it is over.
    fn step(&self, message: &str);

    /// The current step has handled `done` of `total` bytes.
    fn bytes(&self, done: u64, total: u64);

    /// `node` is in a new state.
    fn node(&self, node: &str, state: &str);
}

/// Progress that is not shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _message: &str) {}
    fn bytes(&self, _done: u64, _total: u64) {}
    fn node(&self, _node: &str, _state: &str) {}
}

/// Hands the provisioner's progress on.
pub(crate) struct Provisioning(pub(crate) Arc<dyn Progress>);

impl qnic_images::Progress for Provisioning {
    fn step(&self, message: &str) {
        self.0.step(message);
    }

    fn bytes(&self, done: u64, total: u64) {
        self.0.bytes(done, total);
    }
}
