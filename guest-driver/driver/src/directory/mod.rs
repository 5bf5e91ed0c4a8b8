//! Names: the segments that a process offers to its peers, and the segments of peers that it
//! finds (N2, N3).
//!
//! ```text
//!   export ──► segment        import
//! ```

pub(crate) mod export;
pub(crate) mod import;
mod regions;
mod segment;
