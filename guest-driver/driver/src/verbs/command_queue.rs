//! The command queue of a context.

use qnic_shared::window::Doorbell;

/// The driver's state of the command queue of a context.
#[derive(Default)]
pub(super) struct Commands {
    /// Number of the next command.
    pub(super) next: u64,
    pub(super) doorbell: Doorbell,
}
