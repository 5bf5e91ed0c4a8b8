//! From a descriptor, a private copy, to a checked command by `TryFrom` (architecture, "Rules that
//! make it safe").
//!
//! Only the form is checked here. Keys, segments and addresses are checked where they are used: a
//! wrong one fails its transfer, and no other (N11).

use qnic_abi::command::{Descriptor, MAX_TRANSFER};
use qnic_abi::rdma::{Opcode, ReadCommand, WriteCommand};
use qnic_abi::{Key, SegmentId, Status};

/// Memory of one end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) key: Key,
    pub(super) segment: SegmentId,
}

/// A well-formed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) opcode: Opcode,
    /// The payload stands in the entry.
    pub(super) inline: bool,
    /// Number of a notification, counted or one-shot; not zero.
    pub(super) notification: Option<u32>,
    /// Bytes to transfer, at most [`MAX_TRANSFER`].
    pub(super) length: u64,
    pub(super) local: Memory,
    pub(super) remote: Memory,
    /// Zero, or the handle of its completion.
    pub(super) handle: u64,
}

impl Command {
    /// Returns true if it moves bytes from or to memory of its own process.
    pub(super) fn has_local(&self) -> bool {
        !self.inline && self.length > 0
    }

    /// Returns true if it sends a frame whatever others do. A notification without data has none but
    /// its own, which may have to wait.
    #[inline]
    pub(super) fn has_frame(&self) -> bool {
        self.length > 0 || self.notification.is_none()
    }

    /// What stands in the slot of an operation that does not run.
    pub(super) fn unused() -> Self {
        Command {
            opcode: Opcode::Write,
            inline: false,
            notification: None,
            length: 0,
            local: Memory::default(),
            remote: Memory::default(),
            handle: 0,
        }
    }

    fn write(raw: &WriteCommand) -> Result<Self, Status> {
        let inline = raw.header.inline_length > 0;
        let local = Memory {
            address: raw.local_address.get(),
            key: Key(raw.local_key.get()),
            segment: SegmentId(raw.local_segment.get()),
        };
        let length = raw.length.get();
        if inline && local != Memory::default() {
            return Err(Status::Malformed);
        }
        if length > MAX_TRANSFER || inline && length != u64::from(raw.header.inline_length) {
            return Err(Status::BadLength);
        }
        Ok(Command {
            opcode: Opcode::Write,
            inline,
            notification: Some(raw.notification.get()).filter(|number| *number != 0),
            length,
            local,
            remote: Memory {
                address: raw.remote_address.get(),
                key: Key(raw.remote_key.get()),
                segment: SegmentId(raw.remote_segment.get()),
            },
            handle: raw.handle.get(),
        })
    }

    fn read(raw: &ReadCommand) -> Result<Self, Status> {
        if raw.reserved.get() != 0 || raw.header.inline_length > 0 {
            return Err(Status::Malformed);
        }
        let length = raw.length.get();
        if length > MAX_TRANSFER {
            return Err(Status::BadLength);
        }
        Ok(Command {
            opcode: Opcode::Read,
            inline: false,
            notification: None,
            length,
            local: Memory {
                address: raw.local_address.get(),
                key: Key(raw.local_key.get()),
                segment: SegmentId(raw.local_segment.get()),
            },
            remote: Memory {
                address: raw.remote_address.get(),
                key: Key(raw.remote_key.get()),
                segment: SegmentId(raw.remote_segment.get()),
            },
            handle: raw.handle.get(),
        })
    }
}

impl TryFrom<&Descriptor> for Command {
    type Error = Status;

    fn try_from(raw: &Descriptor) -> Result<Self, Status> {
        match Opcode::try_from(raw.header.opcode) {
            Ok(Opcode::Write) => Command::write(&raw.read()),
            Ok(Opcode::Read) => Command::read(&raw.read()),
            // A fence is no transfer, and has its own form.
            Ok(Opcode::Fence) | Err(_) => Err(Status::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_abi::command::{CommandBody, DESCRIPTOR_BYTES};
    use zerocopy::IntoBytes;

    fn parse(command: &impl CommandBody) -> Result<Command, Status> {
        Command::try_from(&command.descriptor())
    }

    #[test]
    fn the_form_of_a_write_is_checked() {
        let changed = |change: fn(&mut WriteCommand)| {
            let mut raw = WriteCommand::command();
            raw.length = 8.into();
            change(&mut raw);
            parse(&raw).map(|_| ())
        };
        assert_eq!(changed(|_| {}), Ok(()));
        type Change = fn(&mut WriteCommand);
        let refused: [(Status, Change); 4] = [
            (Status::Malformed, |raw| raw.header.opcode = 0),
            (Status::BadLength, |raw| {
                raw.length = (MAX_TRANSFER + 1).into()
            }),
            (Status::BadLength, |raw| raw.header.inline_length = 7),
            (Status::Malformed, |raw| {
                raw.header.inline_length = 8;
                raw.local_key = 1.into();
            }),
        ];
        for (status, change) in refused {
            assert_eq!(changed(change), Err(status));
        }
    }

    #[test]
    fn a_read_has_neither_inline_payload_nor_more_fields() {
        let changed = |change: fn(&mut ReadCommand)| {
            let mut raw = ReadCommand::command();
            change(&mut raw);
            parse(&raw).map(|_| ())
        };
        assert_eq!(changed(|_| {}), Ok(()));
        let malformed: [fn(&mut ReadCommand); 2] = [
            |raw| raw.header.inline_length = 1,
            |raw| raw.reserved = 1.into(),
        ];
        for change in malformed {
            assert_eq!(changed(change), Err(Status::Malformed));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_either_refused_or_within_bounds(bytes: [u8; DESCRIPTOR_BYTES]) {
            let mut raw = WriteCommand::command().descriptor();
            raw.as_mut_bytes().copy_from_slice(&bytes);
            raw.header.opcode %= 3;
            if let Ok(command) = Command::try_from(&raw) {
                prop_assert!(command.length <= MAX_TRANSFER);
                prop_assert!(!command.inline || command.length <= 255);
                prop_assert!(command.notification != Some(0));
            }
        }
    }
}
