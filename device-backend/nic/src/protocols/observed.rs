//! What kind of operation commands and frames belong to, for [`mod@crate::stages`] and
//! [`mod@crate::trace`].

use qnic_abi::atomic::AtomicCommand;
use qnic_abi::command::CommandBody;
use qnic_abi::message::SendCommand;
use qnic_abi::rdma::{ReadCommand, WriteCommand};
use qnic_abi::{atomic, collective, context, datagram, message, rdma};

use crate::core::{Described, Fetched};
use crate::stages::Kind;

/// The kind of the operations of an opcode.
pub(crate) fn kind_of_opcode(opcode: u8) -> Kind {
    if let Ok(opcode) = rdma::Opcode::try_from(opcode) {
        return match opcode {
            rdma::Opcode::Write => Kind::Write,
            rdma::Opcode::Read => Kind::Read,
        };
    }
    let is_message =
        message::Opcode::try_from(opcode).is_ok() || context::Opcode::try_from(opcode).is_ok();
    match opcode {
        atomic::OPCODE => Kind::Atomic,
        _ if is_message => Kind::Message,
        _ if collective::Opcode::try_from(opcode).is_ok() => Kind::Collective,
        _ if datagram::Opcode::try_from(opcode).is_ok() => Kind::Datagram,
        _ => Kind::Names,
    }
}

/// What a trace says of a command. Nothing of it is checked.
#[cold]
pub(crate) fn describe(command: &Fetched) -> Described {
    let descriptor = &command.descriptor;
    let opcode = descriptor.header.opcode;
    let inline = u64::from(descriptor.header.inline_length);
    let (bytes, detail) = match opcode {
        WriteCommand::OPCODE => {
            let write = descriptor.read::<WriteCommand>();
            (write.length.get(), 0)
        }
        ReadCommand::OPCODE => {
            let read = descriptor.read::<ReadCommand>();
            (read.length.get(), 0)
        }
        SendCommand::OPCODE => {
            let send = descriptor.read::<SendCommand>();
            (send.length.get(), send.tag.get())
        }
        AtomicCommand::OPCODE => {
            let atomic = descriptor.read::<AtomicCommand>();
            let length = u64::from(atomic.length.get());
            (length, u64::from(atomic.function.get()))
        }
        _ => (inline, 0),
    };
    Described {
        opcode,
        node: descriptor.header.remote_node.get(),
        bytes,
        detail,
    }
}

/// The kind of the operations that a kind of frame belongs to.
pub(crate) fn kind_of_frame(frame: u8) -> Kind {
    use atomic::kind::{ATOMIC_REQUEST, ATOMIC_RESPONSE};
    use collective::kind as group;
    use datagram::kind::DATAGRAM;
    use message::kind as message;
    use rdma::kind::{READ_REQUEST, READ_RESPONSE, WRITE};
    match frame {
        WRITE => Kind::Write,
        READ_REQUEST | READ_RESPONSE => Kind::Read,
        ATOMIC_REQUEST | ATOMIC_RESPONSE => Kind::Atomic,
        message::MESSAGE
        | message::MESSAGE_DATA
        | message::MESSAGE_REQUEST
        | message::MESSAGE_PERMIT
        | message::MESSAGE_END => Kind::Message,
        group::COLLECTIVE_UP
        | group::COLLECTIVE_DOWN
        | group::GROUP_FORM
        | group::GROUP_END
        | group::GROUP_JOIN
        | group::GROUP_REFUSED
        | group::GROUP_FORMED
        | group::GROUP_START
        | group::GROUP_GREET => Kind::Collective,
        DATAGRAM => Kind::Datagram,
        _ => Kind::Names,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NOBODY, TABLES};
    use super::*;

    /// What the list of protocols says agrees: a protocol has its kind of operations, and no
    /// other has that one, but for reads and writes, and for names and imports.
    #[test]
    fn protocols_have_their_kinds() {
        let of = |numbers: &[u8; 256], kind: fn(u8) -> Kind| -> Vec<(u8, Kind)> {
            let numbers = (0..=u8::MAX).zip(numbers);
            let known = numbers.filter(|(_, protocol)| **protocol != NOBODY);
            known
                .map(|(number, protocol)| (*protocol, kind(number)))
                .collect()
        };
        let mut all = of(&TABLES.opcodes, kind_of_opcode);
        all.extend(of(&TABLES.kinds, kind_of_frame));
        for (protocol, kind) in &all {
            let is_pair = |other: Kind| {
                let reads = [Kind::Read, Kind::Write];
                other == *kind || reads.contains(kind) && reads.contains(&other)
            };
            for (other, its) in &all {
                match other == protocol {
                    true => assert!(is_pair(*its), "{protocol}: {kind:?}, {its:?}"),
                    false => assert!(*kind == Kind::Names || its != kind, "{kind:?}"),
                }
            }
        }
        assert!(all.len() > 30);
    }
}
