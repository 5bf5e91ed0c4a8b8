//! How long work reports what it is doing.

/// Receives what the provisioner does, as it does it.
///
/// Called from the thread that provisions; implementations must not block.
pub trait Progress: Send + Sync {
    /// A new step begins; the one before it is over.
    fn step(&self, message: &str);

    /// The current step has handled `done` of `total` bytes.
    fn bytes(&self, done: u64, total: u64);
}

/// Progress that goes nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _message: &str) {}
    fn bytes(&self, _done: u64, _total: u64) {}
}
