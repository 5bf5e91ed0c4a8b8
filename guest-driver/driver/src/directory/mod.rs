//! What a process offers to its peers, and what it finds of theirs: segments under
//! names (N2, N3).
//!
//! ```text
//!   export ──► segment        import
//! ```

pub(crate) mod export;
pub(crate) mod import;
mod segment;
