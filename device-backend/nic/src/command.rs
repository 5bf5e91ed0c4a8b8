//! From what stands in a slot of a command queue to a command that can be trusted
//! to be one: private copy first, then `TryFrom` (architecture, "Rules that make
//! it safe").
//!
//! Only the form is checked here. Whether keys, segments and addresses are right
//! concerns that one transfer, and is checked where they are used (N11).

use qnic_abi::command::{
    CommandFlags, Descriptor, Opcode, DESCRIPTOR_BYTES, INLINE_CAPACITY, MAX_TRANSFER,
};
use qnic_abi::host_area::SIGNAL_COUNTERS;
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

/// A well-formed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) opcode: Opcode,
    /// The payload stands in the slot.
    pub(crate) inline: bool,
    /// Publish the completion counter when this command is complete.
    pub(crate) publish: bool,
    /// Number of a counted notification, 1 to 1,023.
    pub(crate) notification: Option<u32>,
    /// Bytes to transfer, at most [`MAX_TRANSFER`]; at most [`INLINE_CAPACITY`] if inline.
    pub(crate) length: u64,
    pub(crate) local: Local,
    pub(crate) remote: Remote,
}

impl Command {
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
        }
    }
}

impl TryFrom<&Descriptor> for Command {
    type Error = Status;

    fn try_from(raw: &Descriptor) -> Result<Self, Status> {
        let opcode = Opcode::try_from(raw.opcode).map_err(|_| Status::Malformed)?;
        let flags = CommandFlags::from_bits(raw.flags).ok_or(Status::Malformed)?;
        if raw.reserved0.get() != 0 || raw.reserved1.get() != 0 {
            return Err(Status::Malformed);
        }
        let writes_only = CommandFlags::NOTIFY | CommandFlags::INLINE;
        if opcode == Opcode::Read && flags.intersects(writes_only) {
            return Err(Status::Malformed);
        }
        let length = raw.length.get();
        let inline = flags.contains(CommandFlags::INLINE);
        if length > MAX_TRANSFER || inline && length > INLINE_CAPACITY as u64 {
            return Err(Status::BadLength);
        }
        let local = Local {
            address: raw.local_address.get(),
            key: Key(raw.local_key.get()),
            segment: SegmentId(raw.local_segment.get()),
        };
        if inline && local != Command::unused().local {
            return Err(Status::Malformed);
        }
        let notification = match raw.notification.get() {
            number if flags.contains(CommandFlags::NOTIFY) => {
                Some(counted(number).ok_or(Status::BadNotification)?)
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
        })
    }
}

/// The number, if it is that of a counted notification (N16).
pub(crate) fn counted(number: u32) -> Option<u32> {
    (1..SIGNAL_COUNTERS).contains(&number).then_some(number)
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
        assert_eq!(refused(|raw| raw.opcode = 3), Status::Malformed);
        assert_eq!(refused(|raw| raw.flags = 8), Status::Malformed);
        assert_eq!(refused(|raw| raw.reserved0 = 1.into()), Status::Malformed);
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
                raw.flags = 1;
                raw.notification = SIGNAL_COUNTERS.into();
            }),
            Status::BadNotification
        );
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

    proptest! {
        #[test]
        fn any_words_are_either_refused_or_within_bounds(words: [u64; DESCRIPTOR_WORDS]) {
            if let Ok(command) = Command::try_from(&descriptor(words)) {
                prop_assert!(command.length <= MAX_TRANSFER);
                prop_assert!(!command.inline || command.length <= INLINE_CAPACITY as u64);
                if let Some(number) = command.notification {
                    prop_assert!(counted(number).is_some());
                }
            }
        }
    }
}
