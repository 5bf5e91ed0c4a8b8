//! Entries of the rings of a queue pair: copied once, checked, and used from the copy.

use qnic_abi::verbs::requests::MAX_ENTRY_BYTES;
use qnic_abi::verbs::rings::{
    AtomicOperands, DatagramOperands, MemoryOperands, ReceiveEntry, SendEntry, SendFlags, Sge,
    SGE_BYTES,
};
use qnic_abi::verbs::{Outcome, Request, Transport, MAX_DATAGRAM, MAX_MESSAGE};
use zerocopy::little_endian::U64;
use zerocopy::FromBytes;

use super::memory::Extent;
use super::ring::RingMemory;
use crate::env::HostMemory;

/// Bytes of a work request of a send queue with so many extents, or inline bytes.
pub(super) const fn send_bytes(sges: usize, inline: usize) -> usize {
    let extents = sges * SGE_BYTES;
    size_of::<SendEntry>() + if extents > inline { extents } else { inline }
}

/// Bytes of a receive with so many extents.
pub(super) const fn receive_bytes(sges: usize) -> usize {
    size_of::<ReceiveEntry>() + sges * SGE_BYTES
}

/// Bytes of the word of an atomic operation.
pub(super) const WORD_BYTES: u64 = 8;

/// What a work request of a queue pair can be.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Most extents.
    pub(super) sges: usize,
    /// Most bytes in the entry.
    pub(super) inline: usize,
    pub(super) transport: Transport,
}

impl Bounds {
    /// Most bytes of a message.
    fn longest(&self) -> u64 {
        match self.transport {
            Transport::Datagram => MAX_DATAGRAM as u64,
            _ => MAX_MESSAGE,
        }
    }

    /// Returns true if there is such a request.
    fn has(&self, request: Request) -> bool {
        match self.transport {
            Transport::Reliable => true,
            Transport::Unreliable => !is_asking(request),
            Transport::Datagram => matches!(request, Request::Send | Request::SendImmediate),
        }
    }
}

/// Where the bytes of a work request are.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In the entry.
    Inline(Box<[u8]>),
    /// In memory of the process, in this order.
    Extents(Extents),
}

/// Extents of memory, one behind the other.
#[derive(Debug, Default, Clone)]
pub(super) struct Extents {
    extents: Box<[Extent]>,
    length: u64,
}

impl Extents {
    fn new(bytes: &[u8]) -> Self {
        let (sges, _) = bytes.as_chunks::<SGE_BYTES>();
        let extents = sges.iter().map(|sge| {
            let sge: Sge = zerocopy::transmute!(*sge);
            Extent {
                address: sge.address.get(),
                length: sge.length.get().into(),
                key: sge.key.get(),
            }
        });
        let extents: Box<[Extent]> = extents.collect();
        // Few extents of 32 bits each: no sum overflows.
        let length = extents.iter().map(|piece| piece.length).sum();
        Extents { extents, length }
    }

    /// All bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// What of one piece stands at an offset, up to so many bytes; empty behind the last one.
    pub(super) fn at(&self, mut offset: u64, most: u64) -> Extent {
        for piece in &self.extents {
            if offset < piece.length {
                return piece.part(offset, most.min(piece.length - offset));
            }
            offset -= piece.length;
        }
        Extent::default()
    }
}

/// A work request of a send queue.
#[derive(Debug)]
pub(super) struct WorkRequest {
    pub(super) id: u64,
    pub(super) request: Request,
    pub(super) flags: SendFlags,
    pub(super) immediate: zerocopy::little_endian::U32,
    /// The memory at the peer; of a Send, zero.
    pub(super) remote: Extent,
    /// Of an atomic operation: what is compared or added, and what replaces the word.
    pub(super) operands: [U64; 2],
    /// Where a datagram goes; of others, not looked at.
    pub(super) to: DatagramOperands,
    pub(super) bytes: Bytes,
    pub(super) length: u64,
}

impl WorkRequest {
    /// Returns true if the peer sends something back.
    pub(super) fn is_asking(&self) -> bool {
        is_asking(self.request)
    }

    /// Copies an entry of a send queue with so many extents and inline bytes at most.
    ///
    /// # Errors
    /// Why it cannot be executed.
    pub(super) fn read<M: HostMemory>(
        ring: &RingMemory,
        memory: &M,
        index: u32,
        bounds: &Bounds,
    ) -> Result<Self, Outcome> {
        let mut bytes = [0; MAX_ENTRY_BYTES as usize];
        let bytes = &mut bytes[..send_bytes(bounds.sges, bounds.inline).min(ring.entry_bytes())];
        let wrong = Outcome::LocalOperation;
        let copied = ring.copy(memory, index, bytes);
        let (entry, rest) = SendEntry::read_from_prefix(bytes)
            .ok()
            .filter(|_| copied.is_ok())
            .ok_or(wrong)?;
        let id = entry.id.get();
        let request = u8::try_from(entry.opcode.get()).map(Request::try_from);
        let Ok(Ok(request)) = request else {
            return Err(wrong);
        };
        let flags = SendFlags::from_bits_truncate(entry.flags.get());
        let (bytes, length) = bytes_of(&entry, rest, flags, bounds).ok_or(wrong)?;
        if length > bounds.longest() {
            return Err(Outcome::LocalLength);
        }
        let is_inline = matches!(bytes, Bytes::Inline(_));
        let possible = match request {
            Request::Read => !is_inline,
            Request::CompareSwap | Request::FetchAdd => !is_inline && length == WORD_BYTES,
            _ => true,
        };
        if !possible || !bounds.has(request) {
            return Err(wrong);
        }
        let (remote, operands) = operands_of(&entry, request, length);
        Ok(WorkRequest {
            id,
            request,
            flags,
            immediate: entry.immediate,
            remote,
            operands,
            to: entry.operands(),
            bytes,
            length,
        })
    }
}

/// The bytes that a work request is about, and their number.
fn bytes_of(
    entry: &SendEntry,
    rest: &[u8],
    flags: SendFlags,
    bounds: &Bounds,
) -> Option<(Bytes, u64)> {
    if flags.contains(SendFlags::INLINE) {
        let length = entry.gather.length.get() as usize;
        let bytes = rest.get(..length).filter(|_| length <= bounds.inline)?;
        return Some((Bytes::Inline(bytes.into()), length as u64));
    }
    let count = entry.gather.sges.get() as usize;
    let bytes = rest.get(..count.saturating_mul(SGE_BYTES))?;
    let extents = (count <= bounds.sges).then(|| Extents::new(bytes))?;
    let length = extents.length;
    Some((Bytes::Extents(extents), length))
}

/// The memory at the peer, and the operands of an atomic operation.
fn operands_of(entry: &SendEntry, request: Request, length: u64) -> (Extent, [U64; 2]) {
    match request {
        Request::Send | Request::SendImmediate => (Extent::default(), [U64::ZERO; 2]),
        Request::Write | Request::WriteImmediate | Request::Read => {
            let memory: MemoryOperands = entry.operands();
            let remote = Extent {
                address: memory.address.get(),
                length,
                key: memory.key.get(),
            };
            (remote, [U64::ZERO; 2])
        }
        Request::CompareSwap | Request::FetchAdd => {
            let atomic: AtomicOperands = entry.operands();
            let remote = Extent {
                address: atomic.address.get(),
                length,
                key: atomic.key.get(),
            };
            (remote, [atomic.operand, atomic.swap])
        }
    }
}

/// Returns true if the peer sends something back.
pub(super) fn is_asking(request: Request) -> bool {
    matches!(
        request,
        Request::Read | Request::CompareSwap | Request::FetchAdd
    )
}

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) extents: Extents,
    /// Protection domain of its keys.
    pub(super) domain: u32,
}

impl Receive {
    /// Copies an entry of a receive queue with so many extents at most.
    ///
    /// # Errors
    /// Why nothing can be received by it.
    pub(super) fn read<M: HostMemory>(
        ring: &RingMemory,
        memory: &M,
        index: u32,
        sges: usize,
        domain: u32,
    ) -> Result<Self, Outcome> {
        let mut bytes = [0; MAX_ENTRY_BYTES as usize];
        let bytes = &mut bytes[..receive_bytes(sges).min(ring.entry_bytes())];
        let copied = ring.copy(memory, index, bytes);
        let wrong = Outcome::LocalOperation;
        let (entry, rest) = ReceiveEntry::read_from_prefix(bytes)
            .ok()
            .filter(|_| copied.is_ok())
            .ok_or(wrong)?;
        let id = entry.id.get();
        let count = entry.gather.sges.get() as usize;
        let extents = rest
            .get(..count.saturating_mul(SGE_BYTES))
            .filter(|_| count <= sges)
            .map(Extents::new)
            .ok_or(wrong)?;
        Ok(Receive {
            id,
            extents,
            domain,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn bytes_of_pieces_are_found_by_their_offset() {
        let sge = |address: u64, length: u32, key: u32| Sge {
            address: address.into(),
            length: length.into(),
            key: key.into(),
        };
        let sges = [sge(100, 10, 1), sge(0, 0, 2), sge(u64::MAX, 5, 3)];
        let extents = Extents::new(sges.as_bytes());
        assert_eq!(extents.length(), 15);
        for (offset, most, address, length, key) in [
            (0, 4, 100, 4, 1),
            (3, 100, 103, 7, 1),
            (10, 9, u64::MAX, 5, 3),
            (12, 2, 1, 2, 3),
            (15, 1, 0, 0, 0),
        ] {
            let piece = extents.at(offset, most);
            assert_eq!(
                (piece.address, piece.length, piece.key),
                (address, length, key)
            );
        }
    }
}
