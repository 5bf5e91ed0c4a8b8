//! How many commands, machines and ranks there can be, and how memory is added.

use qnic_config::ByteSize;

/// Memory is added to a guest in multiples of this, which Linux calls a memory block.
pub(crate) const MEMORY_STEP: ByteSize = ByteSize::mib(128);

/// How often memory can be added to a guest: QEMU shares 8 ranges with a device process, and two are there from the
/// beginning.
pub(crate) const MEMORY_SLOTS: usize = 6;

/// Commands that can run on one node at the same time.
pub const COMMAND_SLOTS: usize = 8;

/// Most machines of a cluster.
pub const MAX_MACHINES: usize = 64;

/// Most ranks of a run: as many commands as the guests of the largest cluster can run.
pub const MAX_RANKS: usize = 512;
