//! From a descriptor to a checked command. Only the form is checked here.

use qnic_abi::command::{CommandHeader, Descriptor, MAX_TRANSFER};
use qnic_abi::context::{self, ContextCommand, CONTEXTS};
use qnic_abi::message::{
    CancelCommand, CancelFlags, Label, Opcode, ProbeCommand, ProbeFlags, ReceiveCommand,
    ReceiveFlags, SendCommand, SendFlags, ENDPOINTS,
};
use qnic_abi::{Key, SegmentId, Status};

use super::matching::{Pattern, Sender, Takes};
use crate::core::{Fetched, LocalMemory, INLINE_WORDS};

/// A process that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Name {
    pub(super) node: u16,
    pub(super) port: u16,
}

/// How receives name a process that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Source {
    pub(super) name: Name,
    /// Zero: any process there, in a receive; none, in a message.
    pub(super) incarnation: u32,
}

impl Sender for Source {
    fn general(self) -> Self {
        Source {
            incarnation: 0,
            ..self
        }
    }
}

impl Pattern<Source> {
    /// The process that it names, of whatever incarnation; none: any will do.
    pub(super) fn process(&self) -> Option<Name> {
        self.source().map(|source| source.name)
    }
}

/// Where messages and receives of a process meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Space {
    pub(super) endpoint: u16,
    pub(super) untagged: bool,
}

/// How a process is told of the end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handle {
    /// The completion queue, with this number of the process.
    Command(u64),
    /// The doorbell of a context; only of a failure unless it wants to be notified.
    Context { index: u8, notify: bool },
}

impl Handle {
    /// What a Cancel names: whether it is a context, and a number.
    pub(super) fn name(&self) -> HandleName {
        match *self {
            Handle::Command(handle) => (false, handle),
            Handle::Context { index, .. } => (true, index.into()),
        }
    }
}

/// How a Cancel names a receive or a probe.
pub(super) type HandleName = (bool, u64);

/// Memory of a receive.
#[derive(Debug, Clone, Copy)]
pub(super) enum Memory {
    /// In one piece.
    Range(LocalMemory),
    /// The pages of a context, which its inbox keeps.
    Context { index: u8, length: u64 },
}

impl Memory {
    /// Its size in bytes.
    pub(super) fn length(&self) -> u64 {
        match self {
            Memory::Range(local) => local.length,
            Memory::Context { length, .. } => *length,
        }
    }
}

/// A message that is to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Send {
    pub(super) handle: Handle,
    pub(super) tag: u64,
    pub(super) immediate: u64,
    pub(super) mark: u32,
    /// Of the process that it is for; zero: of any.
    pub(super) incarnation: u32,
    pub(super) space: Space,
    pub(super) length: u64,
    /// It stands in the entry.
    pub(super) inline: bool,
    /// Empty if it does.
    pub(super) local: LocalMemory,
}

/// A receive that is to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receive {
    pub(super) handle: Handle,
    pub(super) pattern: Pattern<Source>,
    pub(super) takes: Takes,
    /// Least bytes that a receive of many messages has left for the next one.
    pub(super) least: u64,
    pub(super) space: Space,
    pub(super) memory: Memory,
}

/// A claimed message that is to be received; discarded, if there is no memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveClaimed {
    pub(super) handle: u64,
    /// Number of the message.
    pub(super) message: u64,
    pub(super) local: Option<LocalMemory>,
}

/// What becomes of the message that a probe finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Stays,
    Claimed,
    Discarded,
}

/// A message that is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    pub(super) handle: u64,
    pub(super) pattern: Pattern<Source>,
    pub(super) space: Space,
    pub(super) found: Found,
    /// Waits for one.
    pub(super) waits: bool,
    /// A frame of this number of the process that it names had arrived when it was posted.
    pub(super) newest: u64,
}

/// A well-formed command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Command {
    Send(Send),
    Receive(Receive),
    ReceiveClaimed(ReceiveClaimed),
    /// Of the receive or probe of this name.
    Cancel(HandleName),
    Probe(Probe),
    /// Of the Send context of this number.
    SendContext(u8),
    /// Of the Receive context of this number.
    ReceiveContext(u8),
}

fn check_space(endpoint: u16, untagged: bool, tag: u64) -> Result<Space, Status> {
    match endpoint >= ENDPOINTS || untagged && tag != 0 {
        true => Err(Status::Malformed),
        false => Ok(Space { endpoint, untagged }),
    }
}

/// Inline bytes of a command that are its message's, behind a label if it has one.
fn inline_length(raw: &SendCommand, flags: SendFlags) -> Result<u64, Status> {
    let label = match flags.contains(SendFlags::LABEL) {
        true => size_of::<Label>() as u64,
        false => 0,
    };
    let length = u64::from(raw.header.inline_length);
    length.checked_sub(label).ok_or(Status::Malformed)
}

fn check_send(raw: &SendCommand) -> Result<Send, Status> {
    let flags = SendFlags::from_bits(raw.flags.get()).filter(|_| raw.reserved.get() == 0);
    let flags = flags.ok_or(Status::Malformed)?;
    let untagged = flags.contains(SendFlags::UNTAGGED);
    let space = check_space(raw.endpoint.get(), untagged, raw.tag.get())?;
    let inline_length = inline_length(raw, flags)?;
    let inline = inline_length > 0;
    let length = raw.length.get();
    let mut local = LocalMemory {
        address: raw.local_address.get(),
        length,
        key: Key(raw.local_key.get()),
        segment: SegmentId(raw.local_segment.get()),
    };
    if inline {
        local.length = 0;
        if local != LocalMemory::default() {
            return Err(Status::Malformed);
        }
        if length != inline_length {
            return Err(Status::BadLength);
        }
    }
    if length > MAX_TRANSFER {
        return Err(Status::BadLength);
    }
    Ok(Send {
        handle: Handle::Command(raw.handle.get()),
        tag: raw.tag.get(),
        immediate: raw.immediate.get(),
        mark: 0,
        incarnation: 0,
        space,
        length,
        inline,
        local,
    })
}

/// The message of a command, and its bytes as far as they stand in the entry.
pub(super) fn unlabelled(mut command: Send, fetched: &Fetched) -> (Send, [u64; INLINE_WORDS]) {
    let raw: SendCommand = fetched.descriptor.read();
    let mut inline = fetched.inline.map(u64::to_le);
    if raw.flags.get() & SendFlags::LABEL.bits() != 0 {
        let label: Label = zerocopy::transmute!(inline[0]);
        (command.mark, command.incarnation) = (label.mark.get(), label.incarnation.get());
        inline.rotate_left(1);
    }
    (command, inline)
}

/// The source that a header names, of any incarnation; none: any will do.
fn check_source(header: &CommandHeader, any: bool) -> Result<Option<Source>, Status> {
    let name = Name {
        node: header.remote_node.get(),
        port: header.remote_port.get(),
    };
    if any && name != Name::default() {
        return Err(Status::Malformed);
    }
    Ok((!any).then_some(Source {
        name,
        incarnation: 0,
    }))
}

/// The receive of a command with its label.
///
/// # Errors
/// Malformed: the label has a mark, or names the incarnation of any process.
pub(super) fn labelled(mut command: Receive, fetched: &Fetched) -> Result<Receive, Status> {
    let raw: ReceiveCommand = fetched.descriptor.read();
    if raw.flags.get() & ReceiveFlags::LABEL.bits() != 0 {
        let label: Label = zerocopy::transmute!(fetched.inline[0].to_le());
        let incarnation = label.incarnation.get();
        let pattern = command.pattern;
        let source = pattern.source().filter(|_| label.mark.get() == 0);
        let source = source.ok_or(Status::Malformed)?;
        let source = Source {
            incarnation,
            ..source
        };
        command.pattern = Pattern::new(Some(source), pattern.tag(), pattern.ignore());
    }
    Ok(command)
}

fn check_receive(raw: &ReceiveCommand) -> Result<Command, Status> {
    let flags = ReceiveFlags::from_bits(raw.flags.get()).ok_or(Status::Malformed)?;
    let local = LocalMemory {
        address: raw.local_address.get(),
        length: raw.length.get(),
        key: Key(raw.local_key.get()),
        segment: SegmentId(raw.local_segment.get()),
    };
    if flags.intersects(ReceiveFlags::CLAIMED | ReceiveFlags::DISCARD) {
        return check_receive_claimed(raw, flags, local).map(Command::ReceiveClaimed);
    }
    let label = match flags.contains(ReceiveFlags::LABEL) {
        true => size_of::<Label>(),
        false => 0,
    };
    if usize::from(raw.header.inline_length) != label {
        return Err(Status::Malformed);
    }
    let untagged = flags.contains(ReceiveFlags::UNTAGGED);
    let many = flags.contains(ReceiveFlags::MANY);
    let (ignore, least) = match many && untagged {
        true => (0, raw.ignore.get()),
        false => (raw.ignore.get(), 0),
    };
    let space = check_space(raw.endpoint.get(), untagged, raw.tag.get() | ignore)?;
    let source = check_source(&raw.header, flags.contains(ReceiveFlags::ANY_PROC))?;
    if raw.length.get() > MAX_TRANSFER {
        return Err(Status::BadLength);
    }
    let takes = match many {
        true => Takes::Many,
        false => Takes::One,
    };
    Ok(Command::Receive(Receive {
        handle: Handle::Command(raw.handle.get()),
        pattern: Pattern::new(source, raw.tag.get(), ignore),
        takes,
        least,
        space,
        memory: Memory::Range(local),
    }))
}

fn check_receive_claimed(
    raw: &ReceiveCommand,
    flags: ReceiveFlags,
    local: LocalMemory,
) -> Result<ReceiveClaimed, Status> {
    let discarded = flags.contains(ReceiveFlags::DISCARD);
    let flags = flags - ReceiveFlags::DISCARD;
    let formed = flags == ReceiveFlags::CLAIMED
        && raw.header.inline_length == 0
        && check_source(&raw.header, true)?.is_none()
        && raw.ignore.get() == 0
        && raw.endpoint.get() == 0
        && (!discarded || local == LocalMemory::default());
    if !formed {
        return Err(Status::Malformed);
    }
    if local.length > MAX_TRANSFER {
        return Err(Status::BadLength);
    }
    Ok(ReceiveClaimed {
        handle: raw.handle.get(),
        message: raw.tag.get(),
        local: (!discarded).then_some(local),
    })
}

fn check_probe(raw: &ProbeCommand) -> Result<Probe, Status> {
    let flags = ProbeFlags::from_bits(raw.flags.get()).ok_or(Status::Malformed)?;
    let untagged = flags.contains(ProbeFlags::UNTAGGED);
    let bits = raw.tag.get() | raw.ignore.get();
    let space = check_space(raw.endpoint.get(), untagged, bits)?;
    let source = check_source(&raw.header, flags.contains(ProbeFlags::ANY_PROC))?;
    let claim = flags.contains(ProbeFlags::CLAIM);
    let found = match (claim, flags.contains(ProbeFlags::DISCARD)) {
        (false, false) => Found::Stays,
        (true, false) => Found::Claimed,
        (false, true) => Found::Discarded,
        (true, true) => return Err(Status::Malformed),
    };
    let zero = raw.header.inline_length == 0
        && raw.reserved0.get() == 0
        && raw.reserved1.iter().all(|word| word.get() == 0)
        && raw.reserved2.get() == 0;
    let incarnation = raw.incarnation.get();
    if !zero || source.is_none() && incarnation != 0 {
        return Err(Status::Malformed);
    }
    let source = source.map(|source| Source {
        incarnation,
        ..source
    });
    Ok(Probe {
        handle: raw.handle.get(),
        pattern: Pattern::new(source, raw.tag.get(), raw.ignore.get()),
        space,
        found,
        waits: flags.contains(ProbeFlags::WAIT),
        newest: 0,
    })
}

fn check_cancel(raw: &CancelCommand) -> Result<HandleName, Status> {
    let header = &raw.header;
    let zero = header.inline_length == 0
        && header.remote_node.get() == 0
        && header.remote_port.get() == 0
        && raw.reserved0.get() == 0
        && raw.reserved1.iter().all(|word| word.get() == 0);
    let flags = CancelFlags::from_bits(raw.flags.get()).filter(|_| zero);
    let flags = flags.ok_or(Status::Malformed)?;
    Ok((flags.contains(CancelFlags::CONTEXT), raw.handle.get()))
}

/// The number of the context that a command names.
fn check_context(raw: &Descriptor) -> Result<u8, Status> {
    let raw: ContextCommand = zerocopy::transmute!(*raw);
    let header = &raw.header;
    let zero = header.inline_length == 0
        && raw.reserved0.get() == 0
        && raw.reserved1.iter().all(|word| word.get() == 0);
    match raw.context.get() {
        context if zero && (context as usize) < CONTEXTS => Ok(context as u8),
        _ => Err(Status::Malformed),
    }
}

impl TryFrom<&Descriptor> for Command {
    type Error = Status;

    fn try_from(raw: &Descriptor) -> Result<Self, Status> {
        match Opcode::try_from(raw.header.opcode) {
            Ok(Opcode::Send) => check_send(&raw.read()).map(Command::Send),
            Ok(Opcode::Receive) => check_receive(&raw.read()),
            Ok(Opcode::Cancel) => check_cancel(&raw.read()).map(Command::Cancel),
            Ok(Opcode::Probe) => check_probe(&raw.read()).map(Command::Probe),
            Err(_) => match context::Opcode::try_from(raw.header.opcode) {
                Ok(context::Opcode::SendContext) => check_context(raw).map(Command::SendContext),
                Ok(context::Opcode::ReceiveContext) => {
                    check_context(raw).map(Command::ReceiveContext)
                }
                Err(_) => Err(Status::Malformed),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::command::CommandBody;

    fn parse(command: &impl CommandBody) -> Result<(), Status> {
        Command::try_from(&command.descriptor()).map(drop)
    }

    #[test]
    fn the_form_of_a_send_is_checked() {
        type Change = fn(&mut SendCommand);
        let cases: [(Result<(), Status>, Change); 8] = [
            (Ok(()), |_| {}),
            (Err(Status::Malformed), |raw| raw.flags = 2.into()),
            (Err(Status::Malformed), |raw| raw.endpoint = 16.into()),
            (Err(Status::Malformed), |raw| {
                raw.flags = 1.into();
                raw.tag = 1.into();
            }),
            (Ok(()), |raw| raw.flags = 1.into()),
            (Err(Status::BadLength), |raw| raw.header.inline_length = 7),
            (Err(Status::Malformed), |raw| {
                raw.header.inline_length = 8;
                raw.local_key = 1.into();
            }),
            (Err(Status::BadLength), |raw| {
                raw.length = (MAX_TRANSFER + 1).into()
            }),
        ];
        for (expected, change) in cases {
            let mut raw = SendCommand::command();
            raw.length = 8.into();
            change(&mut raw);
            assert_eq!(parse(&raw), expected);
        }
    }

    #[test]
    fn the_form_of_a_receive_and_a_cancel_is_checked() {
        type Change = fn(&mut ReceiveCommand);
        let malformed: [Change; 6] = [
            |raw| raw.flags = ReceiveFlags::LABEL.bits().into(),
            |raw| raw.flags = 64.into(),
            |raw| raw.endpoint = 16.into(),
            |raw| raw.header.inline_length = 1,
            |raw| {
                raw.flags = ReceiveFlags::ANY_PROC.bits().into();
                raw.header.remote_port = 1.into();
            },
            |raw| {
                raw.flags = ReceiveFlags::UNTAGGED.bits().into();
                raw.ignore = 1.into();
            },
        ];
        assert_eq!(parse(&ReceiveCommand::command()), Ok(()));
        for change in malformed {
            let mut raw = ReceiveCommand::command();
            change(&mut raw);
            assert_eq!(parse(&raw), Err(Status::Malformed));
        }
        let mut raw = CancelCommand::command();
        assert_eq!(parse(&raw), Ok(()));
        raw.reserved1[4] = 1.into();
        assert_eq!(parse(&raw), Err(Status::Malformed));
    }
    #[test]
    fn the_form_of_a_receive_of_a_claimed_message_is_checked() {
        type Change = fn(&mut ReceiveCommand);
        const DISCARD: ReceiveFlags = ReceiveFlags::CLAIMED.union(ReceiveFlags::DISCARD);
        let cases: [(Result<(), Status>, Change); 9] = [
            (Ok(()), |_| {}),
            (Ok(()), |raw| raw.flags = DISCARD.bits().into()),
            (Err(Status::Malformed), |raw| {
                raw.flags = ReceiveFlags::DISCARD.bits().into()
            }),
            (Err(Status::Malformed), |raw| {
                raw.flags = (ReceiveFlags::CLAIMED | ReceiveFlags::MANY).bits().into()
            }),
            (Err(Status::Malformed), |raw| {
                raw.flags = DISCARD.bits().into();
                raw.local_key = 1.into();
            }),
            (Err(Status::Malformed), |raw| raw.endpoint = 1.into()),
            (Err(Status::Malformed), |raw| raw.ignore = 1.into()),
            (Err(Status::Malformed), |raw| {
                raw.header.remote_port = 1.into()
            }),
            (Err(Status::BadLength), |raw| {
                raw.length = (MAX_TRANSFER + 1).into()
            }),
        ];
        for (expected, change) in cases {
            let mut raw = ReceiveCommand::command();
            raw.tag = 7.into();
            raw.flags = ReceiveFlags::CLAIMED.bits().into();
            change(&mut raw);
            assert_eq!(parse(&raw), expected);
        }
    }

    #[test]
    fn the_form_of_a_probe_is_checked() {
        type Change = fn(&mut ProbeCommand);
        let malformed: [Change; 8] = [
            |raw| raw.flags = 32.into(),
            |raw| raw.flags = (ProbeFlags::CLAIM | ProbeFlags::DISCARD).bits().into(),
            |raw| raw.endpoint = 16.into(),
            |raw| raw.header.inline_length = 1,
            |raw| raw.reserved1[1] = 1.into(),
            |raw| raw.reserved2 = 1.into(),
            |raw| {
                raw.flags = ProbeFlags::ANY_PROC.bits().into();
                raw.incarnation = 1.into();
            },
            |raw| {
                raw.flags = ProbeFlags::ANY_PROC.bits().into();
                raw.header.remote_port = 1.into();
            },
        ];
        assert_eq!(parse(&ProbeCommand::command()), Ok(()));
        for change in malformed {
            let mut raw = ProbeCommand::command();
            change(&mut raw);
            assert_eq!(parse(&raw), Err(Status::Malformed));
        }
    }
}
