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

/// Collectives of one group that a process has under way at its NIC; the library lets others wait.
pub const COLLECTIVES: u32 = 64;

/// Volumes of a NIC (H9).
pub const MAX_VOLUMES: usize = 8;

/// Servers of a volume.
pub const MAX_SERVERS: usize = 16;
