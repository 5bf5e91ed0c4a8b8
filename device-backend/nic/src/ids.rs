//! Names of operations, peers, faults and protocols, which all parts of the NIC use.

use qnic_abi::header::MAX_WINDOWS;
use qnic_abi::VniId;

/// Names an operation on its NIC, as frames carry it: a running number, the VNI and
/// the slot. Answers to an operation that has ended do not find it. Zero names none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OperationId(pub(crate) u64);

const _: () = assert!(MAX_WINDOWS <= 1 << 12);

impl OperationId {
    pub(crate) fn new(running: u64, vni: VniId, slot: u16) -> Self {
        OperationId(running << 24 | u64::from(vni.0) << 12 | u64::from(slot))
    }

    pub(crate) fn vni(self) -> VniId {
        VniId((self.0 >> 12 & 0xfff) as u16)
    }

    /// Number of its beginning at its NIC, from 1 on.
    pub(crate) fn running(self) -> u64 {
        self.0 >> 24
    }

    pub(crate) fn slot(self) -> u16 {
        (self.0 & 0xfff) as u16
    }
}

/// Index of a peer in the transport's table; it keeps it until the NIC is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct PeerIndex(pub(crate) u16);

/// Number of a page fault at its NIC, from 1 on. No other fault has it, not even after the
/// driver has reset the NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FaultNumber(pub(crate) u64);

/// Names a protocol: its index in the list of [`crate::protocols`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ProtocolId(pub(crate) u8);
