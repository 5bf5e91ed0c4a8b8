//! How many commands, machines and ranks there can be.

/// Commands that can run on one node at the same time.
pub const COMMAND_SLOTS: usize = 8;

/// Most machines of a cluster.
pub const MAX_MACHINES: usize = 64;

/// Most ranks of a run: as many commands as the guests of the largest cluster can run.
pub const MAX_RANKS: usize = 512;
