//! Writes and reads as commands.

use qnic_abi::command::{CommandBody, CommandFlags, INLINE_CAPACITY};
use qnic_abi::rdma::{Opcode, ReadCommand, WriteCommand};

use crate::core::tracker::{Issued, Summary};
use crate::core::{lock, Core, IssueOptions};
use crate::error::{Error, Operation, Result};
use crate::memory::{LocalMemory, Part, Range, RemoteSegment, Target};
use crate::notification::Signal;

/// Where the bytes of a write or a message come from.
///
/// A part of a segment travels in the command itself up to
/// [`inline_max`](crate::Endpoint::inline_max) bytes, and ordinary bytes do as far as the NIC
/// takes them, 96 at least (N10): their source is reusable when the call returns. More bytes are
/// fetched by the NIC from an exported segment: their source must not change until the write is
/// complete.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Source<'a> {
    /// Ordinary bytes; if they are too many to travel inline, they must lie in memory that this
    /// endpoint exports.
    Bytes(&'a [u8]),
    /// Bytes of an exported segment.
    Part(Part<'a>),
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Source::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Source::Bytes(bytes)
    }
}

impl<'a> From<Part<'a>> for Source<'a> {
    #[inline]
    fn from(part: Part<'a>) -> Self {
        Source::Part(part)
    }
}

/// A write, as the caller describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) to: &'a RemoteSegment,
    /// Offset there, in bytes.
    pub(crate) offset: u64,
    pub(crate) source: Source<'a>,
    pub(crate) signal: Option<Signal>,
}

/// A read, as the caller describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read<'a> {
    pub(crate) from: &'a RemoteSegment,
    /// Offset there, in bytes.
    pub(crate) offset: u64,
    pub(crate) destination: Part<'a>,
}

impl<'a> Write<'a> {
    #[inline]
    pub(crate) fn new(
        to: &'a RemoteSegment,
        offset: u64,
        source: Source<'a>,
        signal: Option<Signal>,
    ) -> Self {
        Write {
            to,
            offset,
            source,
            signal,
        }
    }
}

/// Local side of a transfer or message, checked.
pub(crate) enum Local<'a> {
    Inline(&'a [u8]),
    Memory(Range),
}

impl Target {
    /// A write to it, without its source.
    pub(crate) fn write(&self, length: u64, notification: Option<u32>) -> WriteCommand {
        let mut command = WriteCommand::command();
        command.header = self.header;
        command.header.opcode = Opcode::Write as u8;
        command.length = length.into();
        command.remote_address = self.address.into();
        command.remote_key = self.key.into();
        command.remote_segment = self.segment.into();
        command.notification = notification.unwrap_or(0).into();
        command
    }
}

impl Core {
    /// Issues a write.
    pub(crate) fn write(
        &self,
        write: &Write<'_>,
        flags: CommandFlags,
        options: IssueOptions,
    ) -> Result<Issued> {
        let mut copy = [0; INLINE_CAPACITY];
        let (mut command, payload, summary) = self.write_command(write, &mut copy)?;
        command.header.flags = flags.bits();
        self.issue(&command.descriptor(), payload, summary, options)
    }

    /// A write as a command, its payload, and what is said of it if it fails.
    #[inline]
    pub(super) fn write_command<'a>(
        &self,
        write: &Write<'a>,
        copy: &'a mut [u8; INLINE_CAPACITY],
    ) -> Result<(WriteCommand, &'a [u8], Summary)> {
        let Write {
            to,
            offset,
            source,
            signal,
        } = *write;
        let local = self.local(source, copy)?;
        let length = match &local {
            Local::Inline(bytes) => bytes.len() as u64,
            Local::Memory(range) => range.length,
        };
        let (target, summary) = to.describe(Operation::Write, offset, length)?;
        let mut command = target.write(length, signal.map(|signal| signal.number()));
        let mut payload: &[u8] = &[];
        match local {
            Local::Inline(bytes) => {
                command.header.inline_length = bytes.len() as u8;
                payload = bytes;
            }
            Local::Memory(range) => {
                command.set_local(&range);
            }
        }
        Ok((command, payload, summary))
    }

    /// Issues a read.
    pub(crate) fn read(
        &self,
        read: &Read<'_>,
        flags: CommandFlags,
        options: IssueOptions,
    ) -> Result<Issued> {
        let (mut command, summary) = self.read_command(read)?;
        command.header.flags = flags.bits();
        self.issue(&command.descriptor(), &[], summary, options)
    }

    /// A read as a command, and what is said of it if it fails.
    pub(super) fn read_command(&self, read: &Read<'_>) -> Result<(ReadCommand, Summary)> {
        let Read {
            from,
            offset,
            destination,
        } = *read;
        let range = destination.range(self)?;
        let (target, summary) = from.describe(Operation::Read, offset, range.length)?;
        let mut command = ReadCommand::command();
        command.header = target.header;
        command.header.opcode = Opcode::Read as u8;
        command.length = range.length.into();
        command.set_local(&range);
        command.remote_address = target.address.into();
        command.remote_key = target.key.into();
        command.remote_segment = target.segment.into();
        Ok((command, summary))
    }

    /// Decides how the source of a write or message travels. `copy` takes the bytes of a part that
    /// travels inline.
    pub(crate) fn local<'a>(
        &self,
        source: Source<'a>,
        copy: &'a mut [u8; INLINE_CAPACITY],
    ) -> Result<Local<'a>> {
        self.local_within(source, copy, INLINE_CAPACITY)
    }

    /// The same if the entry has room for so many bytes.
    pub(crate) fn local_within<'a>(
        &self,
        source: Source<'a>,
        copy: &'a mut [u8; INLINE_CAPACITY],
        room: usize,
    ) -> Result<Local<'a>> {
        let inline_room = self.inline_room.min(room);
        match source {
            Source::Bytes(bytes) if bytes.len() <= inline_room => Ok(Local::Inline(bytes)),
            Source::Bytes(bytes) => {
                let (address, length) = (bytes.as_ptr() as u64, bytes.len() as u64);
                let exports = lock(&self.exports);
                let (entry, _) =
                    exports
                        .find((), address, length)
                        .next()
                        .ok_or(Error::NotExported {
                            address,
                            length,
                            inline_max: inline_room as u64,
                        })?;
                Ok(Local::Memory(Range {
                    address,
                    length,
                    exported: entry.exported,
                }))
            }
            Source::Part(part) => {
                let range = part.range(self)?;
                if part.length > self.inline_max.min(room) {
                    return Ok(Local::Memory(range));
                }
                let bytes = &mut copy[..part.length];
                match part.read(bytes) {
                    true => Ok(Local::Inline(bytes)),
                    false => Ok(Local::Memory(range)),
                }
            }
        }
    }
}
