//! From a descriptor to a checked command, and the packets that wait for their turn.
//!
//! Only the form is checked here; a malformed command stops the queue. Addresses are checked where
//! they are used: a wrong one costs that one packet or buffer.

use qnic_abi::command::CommandHeader;
use qnic_abi::datagram::{
    Datagram, DatagramPostCommand, DatagramSendCommand, DatagramWithdrawCommand, Opcode,
    PacketFlags, PostFlags, WithdrawFlags, HEADER_CAPACITY, MAX_DATA,
};
use qnic_abi::Status;

use super::buffers::Buffer;
use crate::core::{Fetched, INLINE_WORDS, OPERATION_SLOTS};
use crate::ids::OperationId;

/// A packet that is to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub(super) handle: u64,
    /// Guest-physical address of its data.
    pub(super) address: u64,
    /// Bytes of its data.
    pub(super) length: usize,
    pub(super) source_port: u16,
    pub(super) node: u16,
    pub(super) port: u16,
    pub(super) body: Datagram,
}

/// Which buffers are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdraw {
    /// That of a handle and a port.
    One(u64, u16),
    /// All of a port.
    All(u16),
}

/// A well-formed command.
#[derive(Debug)]
pub(super) enum Command {
    Send(Packet),
    Post(Buffer),
    Withdraw(Withdraw),
}

/// The header of a packet as it stood in the entry, and zero behind it.
fn header_words(inline: &[u64; INLINE_WORDS], length: usize) -> [u64; HEADER_CAPACITY / 8] {
    std::array::from_fn(|word| match length.saturating_sub(word * 8) {
        0 => 0,
        bytes @ 1..8 => inline[word] & ((1 << (bytes * 8)) - 1),
        _ => inline[word],
    })
}

fn check_send(raw: &DatagramSendCommand, inline: &[u64; INLINE_WORDS]) -> Result<Packet, Status> {
    let header = &raw.header;
    let length = usize::from(raw.length.get());
    let (source_port, port) = (raw.source_port.get(), header.remote_port.get());
    let zero = raw.reserved0 == 0
        && raw.reserved1.get() == 0
        && raw.reserved2.iter().all(|word| word.get() == 0);
    let nothing = length > 0 || raw.address.get() == 0;
    let formed = zero && nothing && source_port != 0 && port != 0;
    let sent = PacketFlags::LAST | PacketFlags::ASK;
    if !formed || raw.flags & !sent.bits() != 0 {
        return Err(Status::Malformed);
    }
    let header_length = usize::from(header.inline_length);
    if header_length > HEADER_CAPACITY || length > MAX_DATA {
        return Err(Status::BadLength);
    }
    Ok(Packet {
        handle: raw.handle.get(),
        address: raw.address.get(),
        length,
        source_port,
        node: header.remote_node.get(),
        port,
        body: Datagram {
            target: raw.target,
            sequence: raw.sequence,
            fragment: raw.fragment,
            flags: raw.flags,
            header_length: header.inline_length,
            header: header_words(inline, header_length).map(Into::into),
        },
    })
}

/// Returns true if a header names no process and has no payload.
fn is_plain(header: &CommandHeader) -> bool {
    header.inline_length == 0 && header.remote_node.get() == 0 && header.remote_port.get() == 0
}

fn check_post(raw: &DatagramPostCommand) -> Result<Buffer, Status> {
    let zero = is_plain(&raw.header)
        && raw.reserved0.get() == 0
        && raw.reserved1.iter().all(|word| word.get() == 0);
    let flags = PostFlags::from_bits(raw.flags.get()).filter(|_| zero);
    let flags = flags.ok_or(Status::Malformed)?;
    if raw.handle.get() == 0 || raw.port.get() == 0 {
        return Err(Status::Malformed);
    }
    let length = raw.length.get();
    if length == 0 || usize::from(length) > MAX_DATA {
        return Err(Status::BadLength);
    }
    Ok(Buffer {
        handle: raw.handle.get(),
        address: raw.address.get(),
        record: raw.record.get(),
        length,
        port: raw.port.get(),
        steered: flags.contains(PostFlags::STEERED),
    })
}

fn check_withdraw(raw: &DatagramWithdrawCommand) -> Result<Withdraw, Status> {
    let (handle, port) = (raw.handle.get(), raw.port.get());
    let zero = is_plain(&raw.header)
        && raw.reserved0.get() == 0
        && raw.reserved1.iter().all(|word| word.get() == 0);
    let flags = WithdrawFlags::from_bits(raw.flags.get()).filter(|_| zero && port != 0);
    let all = flags.ok_or(Status::Malformed)?.contains(WithdrawFlags::ALL);
    match (all, handle) {
        (true, 0) => Ok(Withdraw::All(port)),
        (false, 1..) => Ok(Withdraw::One(handle, port)),
        _ => Err(Status::Malformed),
    }
}

impl TryFrom<&Fetched> for Command {
    type Error = Status;

    fn try_from(fetched: &Fetched) -> Result<Self, Status> {
        let raw = &fetched.descriptor;
        match Opcode::try_from(raw.header.opcode) {
            Ok(Opcode::DatagramSend) => check_send(&raw.read(), &fetched.inline).map(Command::Send),
            Ok(Opcode::DatagramPost) => check_post(&raw.read()).map(Command::Post),
            Ok(Opcode::DatagramWithdraw) => check_withdraw(&raw.read()).map(Command::Withdraw),
            Err(_) => Err(Status::Malformed),
        }
    }
}

/// The packets, from the first slot of a message on, as many as were needed.
#[derive(Debug, Default)]
pub(super) struct Sends(Vec<Option<Packet>>);

impl Sends {
    /// Keeps a packet until its operation ends.
    pub(super) fn put(&mut self, id: OperationId, packet: Packet) {
        let index = usize::from(id.slot()).saturating_sub(OPERATION_SLOTS);
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(packet);
    }

    fn slot(&mut self, id: OperationId) -> Option<&mut Option<Packet>> {
        let index = usize::from(id.slot()).checked_sub(OPERATION_SLOTS)?;
        self.0.get_mut(index)
    }

    /// The packet of an operation.
    pub(super) fn get(&mut self, id: OperationId) -> Option<&Packet> {
        self.slot(id)?.as_ref()
    }

    /// Takes the packet of an operation out, which ends.
    pub(super) fn take(&mut self, id: OperationId) -> Option<Packet> {
        self.slot(id)?.take()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qnic_abi::command::{CommandBody, DESCRIPTOR_BYTES};
    use qnic_abi::wire::Body;
    use zerocopy::IntoBytes;

    use super::*;

    fn parse(command: &impl CommandBody) -> Result<Command, Status> {
        Command::try_from(&Fetched {
            descriptor: command.descriptor(),
            ..Fetched::default()
        })
    }

    fn send() -> DatagramSendCommand {
        let mut raw = DatagramSendCommand::command();
        raw.header.remote_port = 5.into();
        raw.source_port = 6.into();
        raw
    }

    fn post() -> DatagramPostCommand {
        let mut raw = DatagramPostCommand::command();
        raw.handle = 1.into();
        raw.length = 4096.into();
        raw.port = 5.into();
        raw
    }

    fn withdraw() -> DatagramWithdrawCommand {
        let mut raw = DatagramWithdrawCommand::command();
        raw.handle = 1.into();
        raw.port = 5.into();
        raw
    }

    #[test]
    fn the_form_of_a_send_is_checked() {
        type Change = fn(&mut DatagramSendCommand);
        let refused: [(Status, Change); 9] = [
            (Status::Malformed, |raw| raw.header.remote_port = 0.into()),
            (Status::Malformed, |raw| raw.source_port = 0.into()),
            (Status::Malformed, |raw| raw.flags = 4),
            (Status::Malformed, |raw| raw.address = 0x1000.into()),
            (Status::Malformed, |raw| raw.reserved0 = 1),
            (Status::Malformed, |raw| raw.reserved1 = 1.into()),
            (Status::Malformed, |raw| raw.reserved2[1] = 1.into()),
            (Status::BadLength, |raw| raw.header.inline_length = 41),
            (Status::BadLength, |raw| raw.length = 32_769.into()),
        ];
        assert!(parse(&send()).is_ok());
        for (status, change) in refused {
            let mut raw = send();
            change(&mut raw);
            assert_eq!(parse(&raw).err(), Some(status));
        }
    }

    #[test]
    fn the_form_of_a_post_is_checked() {
        type Change = fn(&mut DatagramPostCommand);
        let refused: [(Status, Change); 10] = [
            (Status::Malformed, |raw| raw.handle = 0.into()),
            (Status::Malformed, |raw| raw.port = 0.into()),
            (Status::Malformed, |raw| raw.flags = 2.into()),
            (Status::Malformed, |raw| raw.reserved0 = 1.into()),
            (Status::Malformed, |raw| raw.reserved1[2] = 1.into()),
            (Status::Malformed, |raw| raw.header.remote_node = 1.into()),
            (Status::Malformed, |raw| raw.header.remote_port = 1.into()),
            (Status::Malformed, |raw| raw.header.inline_length = 8),
            (Status::BadLength, |raw| raw.length = 0.into()),
            (Status::BadLength, |raw| raw.length = 32_769.into()),
        ];
        assert!(parse(&post()).is_ok());
        for (status, change) in refused {
            let mut raw = post();
            change(&mut raw);
            assert_eq!(parse(&raw).err(), Some(status));
        }
    }

    #[test]
    fn the_form_of_a_withdraw_is_checked() {
        type Change = fn(&mut DatagramWithdrawCommand);
        let malformed: [Change; 7] = [
            |raw| raw.handle = 0.into(),
            |raw| raw.port = 0.into(),
            |raw| raw.flags = 1.into(),
            |raw| raw.flags = 2.into(),
            |raw| raw.reserved0 = 1.into(),
            |raw| raw.reserved1[4] = 1.into(),
            |raw| raw.header.remote_port = 1.into(),
        ];
        assert!(parse(&withdraw()).is_ok());
        for change in malformed {
            let mut raw = withdraw();
            change(&mut raw);
            assert_eq!(parse(&raw).err(), Some(Status::Malformed));
        }
        let mut all = withdraw();
        (all.handle, all.flags) = (0.into(), 1.into());
        assert!(matches!(
            parse(&all),
            Ok(Command::Withdraw(Withdraw::All(5)))
        ));
    }

    proptest! {
        /// Whatever stands in the entry, the body is one that every NIC takes.
        #[test]
        fn a_header_of_any_length_makes_a_valid_body(length in 0..=40u8, words: [u64; INLINE_WORDS]) {
            let mut raw = send();
            raw.header.inline_length = length;
            let packet = check_send(&raw, &words).unwrap();
            prop_assert!(packet.body.is_valid());
            let expected = words.map(u64::to_le);
            let length = usize::from(length);
            let header = packet.body.header;
            prop_assert_eq!(&header.as_bytes()[..length], &expected.as_bytes()[..length]);
        }

        #[test]
        fn any_bytes_are_either_refused_or_within_bounds(bytes: [u8; DESCRIPTOR_BYTES]) {
            let mut fetched = Fetched::default();
            fetched.descriptor.as_mut_bytes().copy_from_slice(&bytes);
            let header = &mut fetched.descriptor.header;
            header.opcode = 16 + header.opcode % 3;
            match Command::try_from(&fetched) {
                Ok(Command::Send(packet)) => {
                    prop_assert!(packet.length <= MAX_DATA && packet.body.is_valid());
                }
                Ok(Command::Post(buffer)) => {
                    prop_assert!((1..=MAX_DATA).contains(&buffer.length.into()));
                }
                Ok(Command::Withdraw(_)) | Err(_) => {}
            }
        }
    }
}
