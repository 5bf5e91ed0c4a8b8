//! The driver of one NIC: its entry points.
//!
//! ```text
//!   verbs ──► register ──► handle ──► events ──► remote_memory ──► datagrams ──► lifecycle
//! ```

mod datagrams;
mod events;
mod handle;
mod lifecycle;
mod register;
mod remote_memory;
mod verbs;

pub use events::Handled;
pub use handle::Process;
pub use lifecycle::Driver;
pub use verbs::VerbsContext;
