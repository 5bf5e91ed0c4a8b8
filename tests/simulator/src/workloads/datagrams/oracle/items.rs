//! Packets and buffers as the oracle knows them.

use qnic_abi::Status;

use crate::machine::memory::Memory;

/// A packet that was sent.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) handle: u64,
    /// The sequence number in its frame: all packets of a simulation have different ones.
    pub(crate) number: u32,
    /// Node and port that have sent it.
    pub(crate) from: (u16, u16),
    /// Node and port that it goes to.
    pub(crate) to: (u16, u16),
    /// The steered buffer that it names, or zero.
    pub(crate) target: u64,
    pub(crate) fragment: u16,
    pub(crate) flags: u8,
    pub(crate) header: Vec<u8>,
    pub(crate) address: u64,
    pub(crate) length: u16,
    /// Its address is.
    pub(crate) wrong: bool,
    /// Nothing breaks any more.
    pub(crate) opens: bool,
    pub(crate) issued: u64,
    /// How it has ended.
    pub(crate) end: Option<Status>,
    /// How often it has arrived.
    pub(crate) arrived: u32,
}

impl Packet {
    /// Returns true if its data is lent to the NIC while it is sent.
    pub(crate) fn is_lent(&self) -> bool {
        !self.wrong && self.length > 0
    }

    /// Its data is the driver's again.
    pub(super) fn take_back(&self, memory: &Memory) {
        if self.is_lent() {
            memory.take_back(self.address);
        }
    }
}

/// A buffer that is posted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) handle: u64,
    pub(crate) address: u64,
    pub(crate) record: u64,
    pub(crate) length: u16,
    pub(crate) port: u16,
    pub(crate) steered: bool,
    /// An address of it is.
    pub(crate) wrong: bool,
    /// It is being taken back.
    pub(crate) withdrawn: bool,
}

impl Buffer {
    /// It is the driver's again.
    pub(super) fn take_back(&self, memory: &Memory) {
        if !self.wrong {
            memory.take_back(self.address);
            memory.take_back(self.record);
        }
    }
}

/// Bytes that follow from the number of a packet: its data and its header.
pub(crate) fn bytes_of(number: u32, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number.into());
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}
