//! Registered processes (N1), and the table of all.
//!
//! ```text
//!   slots ──► state
//! ```

pub(crate) mod slots;
pub(crate) mod state;
