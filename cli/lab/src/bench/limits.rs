//! Bounds of what suites start.

use std::time::Duration;

/// Memory of a node in this process.
pub(super) const MEMORY: usize = 16 << 20;

/// Longest time for one size.
pub(super) const LIMIT: Duration = Duration::from_secs(300);
