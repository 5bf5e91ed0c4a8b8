//! From what stands in a slot of a command queue to a command that can be trusted
//! to be one: private copy first, then `TryFrom` (architecture, "Rules that make
//! it safe").
//!
//! Only the form is checked here. Whether keys, segments and addresses are right
//! concerns that one transfer, and is checked where they are used (N11).

use qnic_abi::atomic::Function;
use qnic_abi::command::{
    CommandFlags, Descriptor, Opcode, DESCRIPTOR_BYTES, INLINE_CAPACITY, MAX_TRANSFER,
};
use qnic_abi::host_area::RESULT_RECORDS;
use qnic_abi::{Key, NodeId, Port, SegmentId, Status};

/// Words of the descriptor.
pub(crate) const DESCRIPTOR_WORDS: usize = DESCRIPTOR_BYTES / 8;

/// Words of the inline payload.
pub(crate) const INLINE_WORDS: usize = INLINE_CAPACITY / 8;

/// Memory of the process that issued the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) address: u64,
    pub(crate) key: Key,
    pub(crate) segment: SegmentId,
}

/// Memory of the process at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: Key,
    pub(crate) node: NodeId,
    pub(crate) port: Port,
    pub(crate) segment: SegmentId,
}

/// What an atomic command does with the memory at the other end (N20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Atomic {
    pub(crate) function: Function,
    pub(crate) operands: [u64; 2],
    /// Number of the result record.
    pub(crate) record: u16,
}

impl Atomic {
    /// What the fields of a descriptor mean if the command is atomic.
    fn parse(raw: &Descriptor, flags: CommandFlags) -> Result<Self, Status> {
        let function = Function::try_from(u32::from(raw.function.get()));
        let record = raw.local_segment.get();
        if flags.intersects(WRITES_ONLY) || usize::from(record) >= RESULT_RECORDS {
            return Err(Status::Malformed);
        }
        let atomic = Atomic {
            function: function.map_err(|_| Status::Malformed)?,
            operands: [raw.local_address.get(), raw.local_key.get()],
            record,
        };
        match atomic.function.takes(raw.length.get()) {
            true => Ok(atomic),
            false => Err(Status::BadLength),
        }
    }
}

/// Flags that only writes may have.
const WRITES_ONLY: CommandFlags = CommandFlags::NOTIFY.union(CommandFlags::INLINE);

/// A well-formed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) opcode: Opcode,
    /// The payload stands in the slot.
    pub(crate) inline: bool,
    /// Publish the completion counter when this command is complete.
    pub(crate) publish: bool,
    /// Number of a notification, counted or one-shot; not zero.
    pub(crate) notification: Option<u32>,
    /// Bytes to transfer, at most [`MAX_TRANSFER`]; at most [`INLINE_CAPACITY`] if inline.
    pub(crate) length: u64,
    pub(crate) local: Local,
    pub(crate) remote: Remote,
    /// What it does if it is atomic; then it has no local memory.
    pub(crate) atomic: Option<Atomic>,
}

impl Command {
    /// Says whether it moves bytes from or to memory of its own process.
    pub(crate) fn has_local(&self) -> bool {
        !self.inline && self.length > 0 && self.atomic.is_none()
    }

    /// What stands in the slot of an operation that does not run.
    pub(crate) const fn unused() -> Self {
        Command {
            opcode: Opcode::Write,
            inline: false,
            publish: false,
            notification: None,
            length: 0,
            local: Local {
                address: 0,
                key: Key(0),
                segment: SegmentId(0),
            },
            remote: Remote {
                address: 0,
                key: Key(0),
                node: NodeId(0),
                port: Port(0),
                segment: SegmentId(0),
            },
            atomic: None,
        }
    }
}

impl TryFrom<&Descriptor> for Command {
    type Error = Status;

    fn try_from(raw: &Descriptor) -> Result<Self, Status> {
        let opcode = Opcode::try_from(raw.opcode).map_err(|_| Status::Malformed)?;
        let flags = CommandFlags::from_bits(raw.flags).ok_or(Status::Malformed)?;
        let atomic = match opcode {
            Opcode::Atomic => Some(Atomic::parse(raw, flags)?),
            Opcode::Write | Opcode::Read if raw.function.get() != 0 => {
                return Err(Status::Malformed);
            }
            Opcode::Read if flags.intersects(WRITES_ONLY) => return Err(Status::Malformed),
            Opcode::Write | Opcode::Read => None,
        };
        if raw.reserved1.get() != 0 {
            return Err(Status::Malformed);
        }
        let length = raw.length.get();
        let inline = flags.contains(CommandFlags::INLINE);
        if length > MAX_TRANSFER || inline && length > INLINE_CAPACITY as u64 {
            return Err(Status::BadLength);
        }
        let local = match atomic {
            Some(_) => Command::unused().local,
            None => Local {
                address: raw.local_address.get(),
                key: Key(raw.local_key.get()),
                segment: SegmentId(raw.local_segment.get()),
            },
        };
        if inline && local != Command::unused().local {
            return Err(Status::Malformed);
        }
        let notification = match raw.notification.get() {
            number if flags.contains(CommandFlags::NOTIFY) => {
                Some(notification(number).ok_or(Status::BadNotification)?)
            }
            0 => None,
            _ => return Err(Status::Malformed),
        };
        Ok(Command {
            opcode,
            inline,
            publish: flags.contains(CommandFlags::PUBLISH),
            notification,
            length,
            local,
            remote: Remote {
                address: raw.remote_address.get(),
                key: Key(raw.remote_key.get()),
                node: NodeId(raw.remote_node.get()),
                port: Port(raw.remote_port.get()),
                segment: SegmentId(raw.remote_segment.get()),
            },
            atomic,
        })
    }
}

/// The number, if it is that of a notification (N16).
pub(crate) fn notification(number: u32) -> Option<u32> {
    (number != 0).then_some(number)
}

/// The descriptor that these words of a slot make.
pub(crate) fn descriptor(words: [u64; DESCRIPTOR_WORDS]) -> Descriptor {
    zerocopy::transmute!(words.map(u64::to_le))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn good() -> Descriptor {
        let mut raw = descriptor([0; DESCRIPTOR_WORDS]);
        raw.opcode = Opcode::Write as u8;
        raw.length = 8.into();
        raw
    }

    #[test]
    fn the_form_is_checked() {
        let refused = |change: fn(&mut Descriptor)| {
            let mut raw = good();
            change(&mut raw);
            Command::try_from(&raw).unwrap_err()
        };
        assert!(Command::try_from(&good()).is_ok());
        assert_eq!(refused(|raw| raw.opcode = 0), Status::Malformed);
        assert_eq!(refused(|raw| raw.opcode = 4), Status::Malformed);
        assert_eq!(refused(|raw| raw.flags = 8), Status::Malformed);
        assert_eq!(refused(|raw| raw.function = 1.into()), Status::Malformed);
        assert_eq!(refused(|raw| raw.reserved1 = 1.into()), Status::Malformed);
        assert_eq!(
            refused(|raw| raw.length = (MAX_TRANSFER + 1).into()),
            Status::BadLength
        );
        assert_eq!(
            refused(|raw| raw.notification = 5.into()),
            Status::Malformed
        );
        assert_eq!(refused(|raw| raw.flags = 1), Status::BadNotification);
        assert_eq!(
            refused(|raw| {
                raw.flags = 2;
                raw.length = (INLINE_CAPACITY as u64 + 1).into();
            }),
            Status::BadLength
        );
        assert_eq!(
            refused(|raw| {
                raw.flags = 2;
                raw.local_key = 1.into();
            }),
            Status::Malformed
        );
        for flag in [1, 2] {
            let mut raw = good();
            raw.opcode = Opcode::Read as u8;
            raw.flags = flag;
            raw.notification = 1.into();
            assert_eq!(Command::try_from(&raw), Err(Status::Malformed));
        }
    }

    #[test]
    fn atomic_commands_have_a_function_operands_and_a_record() {
        let atomic = || {
            let mut raw = good();
            raw.opcode = Opcode::Atomic as u8;
            raw.function = (Function::CompareSwap as u16).into();
            raw.local_address = 5.into();
            raw.local_key = 6.into();
            raw.local_segment = 63.into();
            raw
        };
        let command = Command::try_from(&atomic()).unwrap();
        let expected = Atomic {
            function: Function::CompareSwap,
            operands: [5, 6],
            record: 63,
        };
        assert_eq!(command.atomic, Some(expected));
        assert!(!command.has_local());
        let refused = |change: fn(&mut Descriptor)| {
            let mut raw = atomic();
            change(&mut raw);
            Command::try_from(&raw).unwrap_err()
        };
        for malformed in [
            (|raw| raw.function = 0.into()) as fn(&mut Descriptor),
            |raw| raw.function = 12.into(),
            |raw| raw.local_segment = 64.into(),
            |raw| raw.flags = 2,
            |raw| raw.reserved1 = 1.into(),
            |raw| raw.notification = 1.into(),
        ] {
            assert_eq!(refused(malformed), Status::Malformed);
        }
        for length in [0, 1, 16, 32] {
            let mut raw = atomic();
            raw.length = length.into();
            assert_eq!(Command::try_from(&raw), Err(Status::BadLength));
        }
        assert_eq!(
            refused(|raw| raw.function = (Function::Enqueue as u16).into()),
            Status::BadLength
        );
    }

    proptest! {
        #[test]
        fn any_words_are_either_refused_or_within_bounds(words: [u64; DESCRIPTOR_WORDS]) {
            if let Ok(command) = Command::try_from(&descriptor(words)) {
                prop_assert!(command.length <= MAX_TRANSFER);
                prop_assert!(!command.inline || command.length <= INLINE_CAPACITY as u64);
                if let Some(atomic) = command.atomic {
                    prop_assert!(usize::from(atomic.record) < RESULT_RECORDS);
                    prop_assert!(atomic.function.takes(command.length));
                }
                prop_assert!(command.notification != Some(0));
            }
        }
    }
}
