//! The driver of one NIC: its entry points.
//!
//! ```text
//!   register ──► handle ──► events ──► lifecycle
//! ```

mod events;
mod handle;
mod lifecycle;
mod register;

pub use events::Handled;
pub use handle::Process;
pub use lifecycle::Driver;
