//! Work requests of libibverbs on a simulated node, as librxe stores them.

use qnic_abi::verbs::rings::{
    AtomicOperands, DatagramOperands, MemoryOperands, SendEntry, SendFlags, Sge,
};
use qnic_abi::verbs::{PathAddress, Request};
use zerocopy::{FromZeros, IntoBytes};

use super::{ProgramRing, VerbsParty};

/// A work request that is to be posted.
#[derive(Debug, Clone)]
#[must_use = "nothing is posted until `post`"]
pub struct WorkPosting<'a> {
    context: &'a VerbsParty,
    qp: u32,
    /// Its entry.
    pub entry: SendEntry,
    sges: Vec<Sge>,
    inline: Vec<u8>,
}

impl VerbsParty {
    /// A Send.
    pub fn send(&self, qp: u32, id: u64, sges: &[Sge]) -> WorkPosting<'_> {
        let mut entry = SendEntry::new_zeroed();
        entry.id = id.into();
        entry.opcode = (Request::Send as u32).into();
        entry.gather.sges = (sges.len() as u32).into();
        WorkPosting {
            context: self,
            qp,
            entry,
            sges: sges.to_vec(),
            inline: Vec::new(),
        }
    }
}

impl WorkPosting<'_> {
    /// With another opcode.
    pub fn request(mut self, request: Request) -> Self {
        self.entry.opcode = (request as u32).into();
        self
    }

    /// A write to that address, with that key.
    pub fn write_to(mut self, address: u64, key: u32) -> Self {
        let operands = MemoryOperands {
            address: address.into(),
            key: key.into(),
            unused: 0.into(),
        };
        self.entry.operands.as_mut_bytes()[..size_of::<MemoryOperands>()]
            .copy_from_slice(operands.as_bytes());
        self.request(Request::Write)
    }

    /// A read from that address, with that key.
    pub fn read_from(self, address: u64, key: u32) -> Self {
        self.write_to(address, key).request(Request::Read)
    }

    /// An atomic operation on the word at that address, with that key.
    pub fn atomic(
        mut self,
        request: Request,
        (address, key): (u64, u32),
        operands: [u64; 2],
    ) -> Self {
        let operands = AtomicOperands {
            address: address.into(),
            operand: operands[0].into(),
            swap: operands[1].into(),
            key: key.into(),
            unused: 0.into(),
        };
        self.entry.operands.as_mut_bytes()[..size_of::<AtomicOperands>()]
            .copy_from_slice(operands.as_bytes());
        self.request(request)
    }

    /// As a datagram to a queue pair at that path.
    pub fn datagram(mut self, path: PathAddress, qp: u32, qkey: u32) -> Self {
        let operands = DatagramOperands {
            qp: qp.into(),
            qkey: qkey.into(),
            unused: 0.into(),
            path: path.0.into(),
        };
        self.entry.operands.as_mut_bytes()[..size_of::<DatagramOperands>()]
            .copy_from_slice(operands.as_bytes());
        self
    }

    /// With an immediate.
    pub fn immediate(mut self, immediate: u32) -> Self {
        let request = match self.entry.opcode.get() {
            0 => Request::WriteImmediate,
            _ => Request::SendImmediate,
        };
        self.entry.immediate = immediate.into();
        self.request(request)
    }

    /// With these flags as well.
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.entry.flags = (self.entry.flags.get() | flags.bits()).into();
        self
    }

    /// With other pieces.
    pub fn sges(mut self, sges: &[Sge]) -> Self {
        self.sges = sges.to_vec();
        self.entry.gather.sges = (sges.len() as u32).into();
        self
    }

    /// These bytes, which stand in the entry.
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.inline = bytes.to_vec();
        self.entry.gather.length = (bytes.len() as u32).into();
        self.flags(SendFlags::INLINE)
    }

    /// Stores the entry, and tells nothing. Returns false if there is no room.
    pub fn store(&self) -> bool {
        self.store_in(&self.context.queue_pair(self.qp).send)
    }

    /// Stores the entry in some ring.
    pub fn store_in(&self, ring: &ProgramRing) -> bool {
        let rest = match self.inline.is_empty() {
            true => self.sges.as_bytes(),
            false => &self.inline,
        };
        let bytes = [self.entry.as_bytes(), rest].concat();
        ring.post(&self.context.party, &bytes)
    }

    /// Posts it.
    ///
    /// # Panics
    /// If there is no room.
    pub fn post(&self) {
        assert!(self.store(), "room in the send queue");
        self.context.ring(self.qp);
    }
}
