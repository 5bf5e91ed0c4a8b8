//! Writes, reads, fences (N9).

use qnic_abi::command::{CommandFlags, Descriptor, Opcode, INLINE_CAPACITY};
use zerocopy::FromZeros;

use crate::core::tracker::{Issued, Summary};
use crate::core::{lock, Core};
use crate::error::{Error, Operation, Result};
use crate::memory::segment::{Part, RemoteSegment};
use crate::notification::Signal;

/// Where the bytes of a write come from.
///
/// Up to `inline_max` bytes travel in the command itself (N10): their source is
/// reusable when the call returns. More bytes are fetched by the NIC from an
/// exported segment: their source must not change until the write is complete.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Ordinary bytes; more than `inline_max` of them must lie in memory that
    /// this endpoint exports.
    Bytes(&'a [u8]),
    /// Bytes of an exported segment.
    Part(Part<'a>),
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Source::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Source::Bytes(bytes)
    }
}

impl<'a> From<Part<'a>> for Source<'a> {
    fn from(part: Part<'a>) -> Self {
        Source::Part(part)
    }
}

/// Local side of a transfer, checked.
enum Local {
    Inline([u8; INLINE_CAPACITY], usize),
    Memory {
        address: u64,
        length: usize,
        segment: u16,
        key: u64,
    },
}

impl Core {
    /// Issues a write.
    pub(crate) fn write(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: Source<'_>,
        notification: Option<Signal>,
        flags: CommandFlags,
        claimed: bool,
    ) -> Result<Issued> {
        let local = self.local(source)?;
        let mut descriptor = remote(to, offset, local.length())?;
        descriptor.opcode = Opcode::Write as u8;
        let mut flags = flags;
        if let Some(signal) = notification {
            flags |= CommandFlags::NOTIFY;
            descriptor.notification = signal.number().into();
        }
        let payload = match &local {
            Local::Inline(bytes, length) => {
                flags |= CommandFlags::INLINE;
                &bytes[..*length]
            }
            Local::Memory { .. } => {
                local.describe(&mut descriptor);
                &[]
            }
        };
        descriptor.flags = flags.bits();
        let summary = summary(Operation::Write, to, offset, local.length());
        self.issue(&descriptor, payload, summary, claimed)
    }

    /// Issues a read.
    pub(crate) fn read(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
        flags: CommandFlags,
        claimed: bool,
    ) -> Result<Issued> {
        destination.check(self)?;
        let local = Local::part(&destination);
        let mut descriptor = remote(from, offset, local.length())?;
        descriptor.opcode = Opcode::Read as u8;
        descriptor.flags = flags.bits();
        local.describe(&mut descriptor);
        let summary = summary(Operation::Read, from, offset, local.length());
        self.issue(&descriptor, &[], summary, claimed)
    }

    /// Waits for an operation and all earlier ones of its kind, then reports what
    /// failed among those without a ticket.
    pub(crate) fn fence(&self, issued: &Issued) -> Result<()> {
        self.wait_complete(issued.operation, issued.ordinal, issued.generation)?;
        self.collect(issued.operation)
    }

    /// Waits for all operations of a kind that were issued before the call.
    pub(crate) fn flush(&self, operation: Operation) -> Result<()> {
        let (ordinal, generation) = {
            let ledger = self.ledger();
            (ledger.issued(operation), ledger.generation())
        };
        self.wait_complete(operation, ordinal, generation)?;
        self.collect(operation)
    }

    /// Waits for all writes that the program has issued before the call. Failures stay
    /// with whom they belong to.
    pub(crate) fn publish(&self) -> Result<()> {
        let (ordinal, generation) = {
            let ledger = self.ledger();
            (ledger.published(), ledger.generation())
        };
        self.wait_complete(Operation::Write, ordinal, generation)
    }

    /// Waits for all writes, those of the library too.
    pub(crate) fn settle_writes(&self) -> Result<()> {
        let (ordinal, generation) = {
            let ledger = self.ledger();
            (ledger.issued(Operation::Write), ledger.generation())
        };
        self.wait_complete(Operation::Write, ordinal, generation)
    }

    /// Decides how the source of a write travels.
    fn local(&self, source: Source<'_>) -> Result<Local> {
        let inline_max = self.inline_max().min(INLINE_CAPACITY);
        let mut bytes = [0; INLINE_CAPACITY];
        match source {
            Source::Bytes(source) if source.len() <= inline_max => {
                bytes[..source.len()].copy_from_slice(source);
                Ok(Local::Inline(bytes, source.len()))
            }
            Source::Part(part) if part.length <= inline_max => {
                part.check(self)?;
                let memory = part.segment.memory();
                memory.read_bytes(part.offset, &mut bytes[..part.length]);
                Ok(Local::Inline(bytes, part.length))
            }
            Source::Part(part) => {
                part.check(self)?;
                Ok(Local::part(&part))
            }
            Source::Bytes(source) => {
                let (address, length) = (source.as_ptr() as u64, source.len());
                let found = lock(&self.exports).find(address, length as u64);
                let Some((exported, _)) = found else {
                    return Err(Error::NotExported {
                        address,
                        length: length as u64,
                        inline_max: inline_max as u64,
                    });
                };
                Ok(Local::Memory {
                    address,
                    length,
                    segment: exported.segment,
                    key: exported.key,
                })
            }
        }
    }
}

impl Local {
    fn part(part: &Part<'_>) -> Self {
        let exported = part.segment.exported();
        Local::Memory {
            address: part.segment.address() + part.offset as u64,
            length: part.length,
            segment: exported.segment,
            key: exported.key,
        }
    }

    fn length(&self) -> u64 {
        match self {
            Local::Inline(_, length) | Local::Memory { length, .. } => *length as u64,
        }
    }

    fn describe(&self, descriptor: &mut Descriptor) {
        if let Local::Memory {
            address,
            segment,
            key,
            ..
        } = self
        {
            descriptor.local_address = (*address).into();
            descriptor.local_segment = (*segment).into();
            descriptor.local_key = (*key).into();
        }
    }
}

/// The remote side of a descriptor.
pub(crate) fn remote(segment: &RemoteSegment, offset: u64, length: u64) -> Result<Descriptor> {
    segment.check(offset, length)?;
    let mut descriptor = Descriptor::new_zeroed();
    descriptor.length = length.into();
    descriptor.remote_address = (segment.0.address + offset).into();
    descriptor.remote_key = segment.0.key.into();
    descriptor.remote_node = segment.0.node.0.into();
    descriptor.remote_port = segment.0.port.0.into();
    descriptor.remote_segment = segment.0.segment.into();
    Ok(descriptor)
}

/// What a failure message will say.
pub(crate) fn summary(
    operation: Operation,
    segment: &RemoteSegment,
    offset: u64,
    length: u64,
) -> Summary {
    Summary {
        operation,
        node: segment.node(),
        port: segment.port(),
        segment: segment.name(),
        offset,
        length,
        silent: false,
    }
}
