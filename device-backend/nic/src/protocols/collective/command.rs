//! From a descriptor to a checked command. Only the form is checked here.

use qnic_abi::collective::{
    Called, Collective, CollectiveCommand, CollectivePart, Element, JoinGroupCommand,
    LeaveGroupCommand, Opcode, Operator, PartFields, MAX_LENGTH, MAX_MEMBERS, MAX_TIMEOUT_MS,
};
use qnic_abi::command::{CommandHeader, INLINE_CAPACITY};
use qnic_abi::message::ENDPOINTS;
use qnic_abi::multicast::{self, MulticastCommand, MulticastFlags, MAX_BYTES, MAX_RANKS};
use qnic_abi::{Key, SegmentId, Status};

use super::reduction::Reduction;
use crate::core::{Fetched, LocalMemory};
use crate::env::Time;

/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// A process, as completions and frames name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Name {
    pub(super) node: u16,
    pub(super) port: u16,
}

/// What a collective is; the same at all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) collective: Collective,
    pub(super) reduction: Option<Reduction>,
    pub(super) length: u64,
    pub(super) root: u32,
    pub(super) label: u16,
}

/// Two calls that differ, as words of [`Called`] and labels; zeros if none do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Difference {
    /// That of the process that is the reason.
    pub(super) reason: (u64, u16),
    pub(super) others: (u64, u16),
}

impl Difference {
    pub(super) fn between(reason: &Shape, others: &Shape) -> Self {
        Difference {
            reason: (reason.called().word(), reason.label),
            others: (others.called().word(), others.label),
        }
    }
}

impl Shape {
    fn new(numbers: (u8, u8, u8), length: u64, root: u32, label: u16) -> Result<Self, Status> {
        let (collective, operator, element) = numbers;
        let collective = Collective::try_from(collective).map_err(|_| Status::Malformed)?;
        let reduces = matches!(collective, Collective::Reduce | Collective::Allreduce);
        let mut reduction = None;
        if reduces {
            let operator = Operator::try_from(operator).map_err(|_| Status::Malformed)?;
            let element = Element::try_from(element).map_err(|_| Status::Malformed)?;
            let known = Reduction::new(operator, element).ok_or(Status::Malformed)?;
            if length % element.bytes() != 0 {
                return Err(Status::BadLength);
            }
            reduction = Some(known);
        } else if operator != 0 || element != 0 {
            return Err(Status::Malformed);
        }
        let rooted = matches!(collective, Collective::Broadcast | Collective::Reduce);
        if !rooted && root != 0 {
            return Err(Status::Malformed);
        }
        if length > MAX_LENGTH || collective == Collective::Barrier && length != 0 {
            return Err(Status::BadLength);
        }
        Ok(Shape {
            collective,
            reduction,
            length,
            root,
            label,
        })
    }

    /// It, as the end of a group says it.
    fn called(&self) -> Called {
        let reduction = self.reduction;
        Called {
            collective: self.collective,
            reduction: reduction.map(|it| (it.operator(), it.element())),
            length: self.length,
            root: self.root,
            label: self.label,
        }
    }

    /// What a frame says of it.
    pub(super) fn of_part<const KIND: u8>(part: &CollectivePart<KIND>) -> Result<Self, Status> {
        let fields = &part.0;
        let numbers = (fields.collective, fields.operator, fields.element);
        let (length, root) = (fields.length.get(), fields.root.get());
        Shape::new(numbers, length, root, fields.label.get())
    }

    /// The fields of frames that say it.
    pub(super) fn fields(&self) -> PartFields {
        let reduction = self.reduction;
        PartFields {
            length: self.length.into(),
            root: self.root.into(),
            label: self.label.into(),
            collective: self.collective as u8,
            operator: reduction.map_or(0, |reduction| reduction.operator() as u8),
            element: reduction.map_or(0, |reduction| reduction.element() as u8),
            ..PartFields::default()
        }
    }

    /// Returns true if a member has bytes to give.
    pub(super) fn gives(&self, rank: u32) -> bool {
        match self.collective {
            Collective::Barrier => false,
            Collective::Broadcast => rank == self.root,
            Collective::Reduce | Collective::Allreduce => true,
        }
    }

    /// Returns true if a member gets bytes.
    pub(super) fn wants(&self, rank: u32) -> bool {
        match self.collective {
            Collective::Barrier => false,
            Collective::Broadcast => rank != self.root,
            Collective::Reduce => rank == self.root,
            Collective::Allreduce => true,
        }
    }
}

/// A join that is to be begun; the command's header names the home.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join {
    pub(super) handle: u64,
    pub(super) home: Name,
    pub(super) name: u64,
    pub(super) key: u64,
    pub(super) size: u32,
    pub(super) rank: u32,
    /// In nanoseconds.
    pub(super) timeout: u64,
}

/// The part of one member in a collective.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) handle: u64,
    pub(super) group: u64,
    pub(super) shape: Shape,
    pub(super) local: LocalMemory,
    pub(super) deadline: Time,
}

/// A message to members of a group that is to be sent.
#[derive(Debug, Clone)]
pub(super) struct Send {
    pub(super) handle: u64,
    pub(super) group: u64,
    pub(super) tag: u64,
    pub(super) immediate: u64,
    pub(super) endpoint: u8,
    pub(super) untagged: bool,
    pub(super) length: u32,
    pub(super) ranks: u16,
    /// The ranks, and the bytes of a short one.
    pub(super) inline: Box<[u8]>,
    /// The bytes of another one; empty if there are none.
    pub(super) local: LocalMemory,
}

impl Send {
    /// The ranks, two bytes each.
    pub(super) fn list(&self) -> &[u8] {
        &self.inline[..2 * usize::from(self.ranks)]
    }

    /// Where in memory a byte of the row is.
    pub(super) fn address(&self, place: u64) -> u64 {
        self.local.address + place - 2 * u64::from(self.ranks)
    }
}

/// A well-formed command.
#[derive(Debug)]
pub(super) enum Command {
    Join(Join),
    Leave { handle: u64, group: u64 },
    Call(Call),
    Send(Send),
}

fn nanoseconds(milliseconds: u32) -> Result<u64, Status> {
    match milliseconds {
        1..=MAX_TIMEOUT_MS => Ok(u64::from(milliseconds) * MILLISECOND),
        _ => Err(Status::Malformed),
    }
}

/// Checks the header of a command that has no inline payload and names no process.
fn check_header(header: &CommandHeader) -> Result<(), Status> {
    let names_none = header.remote_node.get() == 0 && header.remote_port.get() == 0;
    match names_none && header.inline_length == 0 {
        true => Ok(()),
        false => Err(Status::Malformed),
    }
}

fn check_join(raw: &JoinGroupCommand) -> Result<Join, Status> {
    let zero = raw.reserved0.get() == 0 && raw.reserved1.iter().all(|word| word.get() == 0);
    let (size, rank) = (raw.size.get(), raw.rank.get());
    if !zero || raw.header.inline_length != 0 || size > MAX_MEMBERS || rank >= size {
        return Err(Status::Malformed);
    }
    Ok(Join {
        handle: raw.handle.get(),
        home: Name {
            node: raw.header.remote_node.get(),
            port: raw.header.remote_port.get(),
        },
        name: raw.name.get(),
        key: raw.key.get(),
        size,
        rank,
        timeout: nanoseconds(raw.timeout_ms.get())?,
    })
}

fn check_leave(raw: &LeaveGroupCommand) -> Result<Command, Status> {
    check_header(&raw.header)?;
    if raw.reserved.iter().any(|word| word.get() != 0) {
        return Err(Status::Malformed);
    }
    Ok(Command::Leave {
        handle: raw.handle.get(),
        group: raw.group.get(),
    })
}

fn check_call(raw: &CollectiveCommand, now: Time) -> Result<Call, Status> {
    check_header(&raw.header)?;
    let numbers = (raw.collective, raw.operator, raw.element);
    let length = raw.length.get();
    if raw.reserved != 0 {
        return Err(Status::Malformed);
    }
    Ok(Call {
        handle: raw.handle.get(),
        group: raw.group.get(),
        shape: Shape::new(numbers, length, raw.root.get(), raw.label.get())?,
        local: LocalMemory {
            address: raw.local_address.get(),
            length,
            key: Key(raw.local_key.get()),
            segment: SegmentId(raw.local_segment.get()),
        },
        deadline: now.after(nanoseconds(raw.timeout_ms.get())?),
    })
}

fn check_send(raw: &MulticastCommand, fetched: &Fetched) -> Result<Send, Status> {
    let flags = MulticastFlags::from_bits(raw.flags).ok_or(Status::Malformed)?;
    let header = &raw.header;
    let untagged = flags.contains(MulticastFlags::UNTAGGED);
    let is_short = flags.contains(MulticastFlags::SHORT);
    let names_none = header.remote_node.get() == 0 && header.remote_port.get() == 0;
    let is_tagged = !untagged || raw.tag.get() == 0;
    if !names_none || !is_tagged || u16::from(raw.endpoint) >= ENDPOINTS {
        return Err(Status::Malformed);
    }
    let mut bytes = [0; INLINE_CAPACITY];
    for (to, word) in bytes.chunks_exact_mut(8).zip(fetched.inline) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    let inline = &bytes[..usize::from(header.inline_length)];
    let (ranks, inline) = match (flags.contains(MulticastFlags::RANKS), inline) {
        (false, inline) => (0, inline),
        (true, [first, second, inline @ ..]) => (u16::from_le_bytes([*first, *second]), inline),
        (true, _) => return Err(Status::Malformed),
    };
    let length = raw.length.get();
    let short = if is_short { length } else { 0 };
    let row = 2 * usize::from(ranks) + short as usize;
    let lists = flags.contains(MulticastFlags::RANKS) == (ranks > 0);
    if !lists || usize::from(ranks) > MAX_RANKS || row != inline.len() {
        return Err(Status::Malformed);
    }
    let local = LocalMemory {
        address: raw.local_address.get(),
        length: u64::from(length - short),
        key: Key(raw.local_key.get()),
        segment: SegmentId(raw.local_segment.get()),
    };
    if is_short && local != LocalMemory::default() {
        return Err(Status::Malformed);
    }
    if length > MAX_BYTES {
        return Err(Status::BadLength);
    }
    Ok(Send {
        handle: raw.handle.get(),
        group: raw.group.get(),
        tag: raw.tag.get(),
        immediate: raw.immediate.get(),
        endpoint: raw.endpoint,
        untagged,
        length,
        ranks,
        inline: inline.into(),
        local,
    })
}

impl Command {
    /// Reads one that is read from the queue `now`.
    pub(super) fn read(fetched: &Fetched, now: Time) -> Result<Self, Status> {
        let raw = &fetched.descriptor;
        if raw.header.opcode == multicast::OPCODE {
            return check_send(&raw.read(), fetched).map(Command::Send);
        }
        match Opcode::try_from(raw.header.opcode) {
            Ok(Opcode::JoinGroup) => check_join(&raw.read()).map(Command::Join),
            Ok(Opcode::LeaveGroup) => check_leave(&raw.read()),
            Ok(Opcode::Collective) => check_call(&raw.read(), now).map(Command::Call),
            Err(_) => Err(Status::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::INLINE_WORDS;
    use qnic_abi::command::CommandBody;

    fn parse(command: &impl CommandBody) -> Result<(), Status> {
        let fetched = Fetched {
            descriptor: command.descriptor(),
            peer: None,
            inline: [0; INLINE_WORDS],
        };
        Command::read(&fetched, Time(0)).map(drop)
    }

    #[test]
    fn the_form_of_a_join_and_a_leave_is_checked() {
        type Change = fn(&mut JoinGroupCommand);
        let cases: [(bool, Change); 8] = [
            (true, |_| {}),
            (false, |raw| raw.rank = 2.into()),
            (false, |raw| raw.size = 0.into()),
            (false, |raw| raw.size = (MAX_MEMBERS + 1).into()),
            (false, |raw| raw.timeout_ms = 0.into()),
            (false, |raw| raw.timeout_ms = (MAX_TIMEOUT_MS + 1).into()),
            (false, |raw| raw.reserved1[1] = 1.into()),
            (false, |raw| raw.header.inline_length = 1),
        ];
        for (valid, change) in cases {
            let mut raw = JoinGroupCommand::command();
            raw.size = 2.into();
            raw.timeout_ms = 1.into();
            change(&mut raw);
            assert_eq!(parse(&raw).is_ok(), valid, "{raw:?}");
        }
        let mut leave = LeaveGroupCommand::command();
        assert_eq!(parse(&leave), Ok(()));
        leave.header.remote_port = 1.into();
        assert_eq!(parse(&leave), Err(Status::Malformed));
    }

    #[test]
    fn the_form_of_a_collective_is_checked() {
        type Change = fn(&mut CollectiveCommand);
        let cases: [(Result<(), Status>, Change); 9] = [
            (Ok(()), |_| {}),
            (Err(Status::BadLength), |raw| raw.length = 9.into()),
            (Err(Status::BadLength), |raw| {
                raw.length = (MAX_LENGTH + 8).into();
            }),
            (Err(Status::Malformed), |raw| raw.operator = 0),
            (Err(Status::Malformed), |raw| {
                (raw.operator, raw.element) = (Operator::Xor as u8, Element::F32 as u8);
            }),
            (Err(Status::Malformed), |raw| raw.root = 1.into()),
            (Err(Status::Malformed), |raw| raw.collective = 5),
            (Err(Status::Malformed), |raw| {
                raw.collective = Collective::Broadcast as u8;
            }),
            (Err(Status::Malformed), |raw| raw.reserved = 1),
        ];
        for (expected, change) in cases {
            let mut raw = CollectiveCommand::command();
            raw.collective = Collective::Allreduce as u8;
            (raw.operator, raw.element) = (Operator::Sum as u8, Element::F64 as u8);
            raw.length = 8.into();
            raw.timeout_ms = 5.into();
            change(&mut raw);
            assert_eq!(parse(&raw), expected, "{raw:?}");
        }
        let mut barrier = CollectiveCommand::command();
        barrier.collective = Collective::Barrier as u8;
        barrier.timeout_ms = 1.into();
        assert_eq!(parse(&barrier), Ok(()));
        barrier.length = 8.into();
        assert_eq!(parse(&barrier), Err(Status::BadLength));
    }
}
