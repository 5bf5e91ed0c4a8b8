//! Numbers of nodes, the virtio identity, and how many there can be of what a configuration counts.

/// Number of a node (one NIC) in its network, unique in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub u16);

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Size of a page, in bytes, on both sides and on the wire.
pub const PAGE_SIZE: usize = 4096;

/// Virtio device id under which the NIC appears (PCI id 1af4:1067).
pub const VIRTIO_ID: u16 = 39;

/// Size of the virtio configuration space in bytes.
pub const CONFIG_SIZE: usize = 64;

/// First of the virtqueues that serve as doorbells.
pub const FIRST_DOORBELL: usize = 2;

/// Number of doorbells unless configured otherwise.
pub const DEFAULT_DOORBELLS: u32 = 14;

/// Most doorbells that a device can have: 64 virtqueues less the first two.
pub const MAX_DOORBELLS: u32 = 62;

/// Windows on a NIC unless configured otherwise (Q1).
pub const DEFAULT_WINDOWS: u32 = 128;

/// Most windows that the layout allows: a tag of the page table has 15 bits for the VNI.
pub const MAX_WINDOWS: u32 = 1 << 12;

/// Writes, reads and atomic commands of one process that can be under way together, over all
/// destinations (N12).
pub const OPERATIONS: u32 = 1024;

/// Messages of one process that a NIC sends at the same time, waits for receivers counted. While
/// there are fewer, no message holds up the commands behind it.
pub const SENDS: u32 = 2048;

/// Receives of one process that are posted at the same time.
pub const RECEIVES: u32 = 16_384;

/// Probes of one process that wait at the same time.
pub const PROBES: u32 = 256;

/// Collectives of one group that a process has under way at its NIC; the library lets others wait.
pub const COLLECTIVES: u32 = 64;

/// Volumes of a NIC (H9).
pub const MAX_VOLUMES: usize = 8;

/// Servers of a volume.
pub const MAX_SERVERS: usize = 16;

/// How much of its window and of its host area a process can use (Q1).
///
/// Their layout has room for [`Counts::MOST`]. A NIC can have less of each; its header says how
/// much, and what uses a NIC goes by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Entries of a command queue: N of Q2. A power of two, 16 at least and twice the contexts.
    pub command_entries: u32,
    /// Contexts of each direction: M of Q4.
    pub contexts: u32,
    /// Page descriptors in the region of a context: K of Q5.
    pub context_pages: u32,
    /// Pages of the buffer pool: Q of Q7.
    pub pool_pages: u32,
}

impl Counts {
    /// As much as the layout has room for.
    pub const MOST: Counts = Counts {
        command_entries: 64,
        contexts: 32,
        context_pages: 8,
        pool_pages: 16,
    };

    /// The counts, if a NIC can have them.
    ///
    /// # Errors
    /// The name of the first that is out of range.
    pub const fn check(self) -> Result<Self, &'static str> {
        const fn in_range(value: u32, most: u32) -> bool {
            value >= 1 && value <= most
        }
        let (most, entries) = (Counts::MOST, self.command_entries);
        if !in_range(self.contexts, most.contexts) {
            return Err("contexts");
        }
        // A queue of 8 entries would stand still until its head is published (Q2).
        let has_room = entries >= 16 && entries >= 2 * self.contexts;
        if !has_room || !entries.is_power_of_two() || entries > most.command_entries {
            return Err("command_entries");
        }
        if !in_range(self.context_pages, most.context_pages) {
            return Err("context_pages");
        }
        if !in_range(self.pool_pages, most.pool_pages) {
            return Err("pool_pages");
        }
        Ok(self)
    }

    /// The place in its queue of the command with that number.
    #[inline]
    pub const fn place(self, number: u64) -> u64 {
        number & (self.command_entries as u64).wrapping_sub(1)
    }
}
