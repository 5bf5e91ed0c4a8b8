//! Names of things: nodes, ports, windows, segments, keys.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use qnic_limits::NodeId;

/// Port of a process on its node; (node, port) names a process in the network
/// (N1). Port 0 is never used by a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Port(pub u16);

/// Index of a Virtual Network Interface on its NIC (Q1): the number of the
/// process's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VniId(pub u16);

/// Index of an exported segment within its process, from 0 up to
/// [`crate::header::SramHeader::segments_per_process`] (exclusive).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentId(pub u16);

/// 64-bit name under which a process exports a segment (N2); chosen by the
/// application, unique within its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentName(pub u64);

/// Random 64-bit protection key of a segment (N2, N11).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Key(pub u64);

impl core::fmt::Debug for Key {
    /// Keys are capabilities: logs and error messages do not show them.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// What a process has to present to import a segment (N2); travels between processes by other
/// means than the NIC. All zeroes: no secret.
///
/// The NIC of the exporter compares it in a time that does not depend on it. `==` does not.
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Secret(pub [u8; 16]);

impl Secret {
    /// Returns true if it is one.
    pub fn is_some(&self) -> bool {
        self.0 != [0; 16]
    }
}

impl core::fmt::Debug for Secret {
    /// As keys: logs and error messages do not show it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.is_some() {
            "Secret(…)"
        } else {
            "Secret(none)"
        })
    }
}

bitflags! {
    /// What a peer may do with an exported segment (N2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Peers may read.
        const READ = 1;
        /// Peers may write.
        const WRITE = 2;
    }
}

impl core::fmt::Display for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "port {}", self.0)
    }
}

impl core::fmt::Display for VniId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "VNI {}", self.0)
    }
}
