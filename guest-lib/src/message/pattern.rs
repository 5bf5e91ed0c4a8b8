//! Where a message goes, and what a receive takes.

use qnic_abi::command::CommandHeader;
use qnic_abi::message::{Label, ENDPOINTS};
use qnic_abi::{NodeId, Port};

use crate::error::{MessageError, MessageOperation};
use crate::request::Tag;

/// One of the 16 endpoints of a process. Receives of one never meet messages of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MessageEndpoint(u16);

impl MessageEndpoint {
    /// The endpoint of that number, 0 to 15.
    pub const fn new(number: u16) -> Option<Self> {
        if number < ENDPOINTS {
            Some(MessageEndpoint(number))
        } else {
            None
        }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Whose messages a receive takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Those of every process.
    Any,
    /// Those of the process on a port of a node.
    Process(NodeId, Port),
}

/// Where a message goes, and what is said of it there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    pub(super) node: NodeId,
    pub(super) port: Port,
    pub(super) tag: Tag,
    pub(super) untagged: bool,
    pub(super) endpoint: MessageEndpoint,
    pub(super) immediate: u64,
    pub(super) mark: u32,
    pub(super) incarnation: u32,
}

impl Destination {
    /// The tagged space of endpoint 0 of a process.
    pub const fn tagged(node: NodeId, port: Port, tag: Tag) -> Self {
        Destination {
            node,
            port,
            tag,
            untagged: false,
            endpoint: MessageEndpoint(0),
            immediate: 0,
            mark: 0,
            incarnation: 0,
        }
    }

    /// The untagged space of endpoint 0 of a process.
    pub const fn untagged(node: NodeId, port: Port) -> Self {
        Destination {
            untagged: true,
            ..Self::tagged(node, port, Tag(0))
        }
    }

    /// The same space of another endpoint.
    pub const fn at(self, endpoint: MessageEndpoint) -> Self {
        Destination { endpoint, ..self }
    }

    /// With 64 bits that the receiver gets with the message.
    pub const fn immediate(self, immediate: u64) -> Self {
        Destination { immediate, ..self }
    }

    /// With 32 bits more: for a library between this one and the program, which says by them how it has sent the
    /// message, beside the 64 bits that are the program's.
    pub const fn mark(self, mark: u32) -> Self {
        Destination { mark, ..self }
    }

    /// For the process alone that has said this of itself ([`set_incarnation`](super::set_incarnation)):
    /// if it has ended, the Send fails with PeerGone, and the next process on its port has nothing of it. 0, as at
    /// first: for any process there.
    pub const fn incarnation(self, incarnation: u32) -> Self {
        Destination {
            incarnation,
            ..self
        }
    }
}

/// What a receive takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    pub(super) source: Source,
    pub(super) tag: Tag,
    pub(super) ignore: u64,
    pub(super) untagged: bool,
    pub(super) endpoint: MessageEndpoint,
    pub(super) incarnation: u32,
}

impl Pattern {
    /// Messages with exactly this tag, in the tagged space of endpoint 0.
    pub const fn tagged(source: Source, tag: Tag) -> Self {
        Pattern {
            source,
            tag,
            ignore: 0,
            untagged: false,
            endpoint: MessageEndpoint(0),
            incarnation: 0,
        }
    }

    /// Messages with any tag, in the tagged space of endpoint 0.
    pub const fn any_tag(source: Source) -> Self {
        Self::ignoring(source, Tag(0), u64::MAX)
    }

    /// Messages whose tag is this one but for the bits that are set in `ignore`.
    pub const fn ignoring(source: Source, tag: Tag, ignore: u64) -> Self {
        Pattern {
            ignore,
            ..Self::tagged(source, tag)
        }
    }

    /// Messages in the untagged space of endpoint 0.
    pub const fn untagged(source: Source) -> Self {
        Pattern {
            untagged: true,
            ..Self::tagged(source, Tag(0))
        }
    }

    /// The same space of another endpoint.
    pub const fn at(self, endpoint: MessageEndpoint) -> Self {
        Pattern { endpoint, ..self }
    }

    /// Of the process alone that has said this of itself ([`set_incarnation`](super::set_incarnation)): nothing of
    /// the next one on its port is taken. Nothing with [`Source::Any`]. 0, as at first: of any process there.
    pub const fn incarnation(self, incarnation: u32) -> Self {
        Pattern {
            incarnation,
            ..self
        }
    }

    /// The process whose messages it takes, unless any will do.
    pub(super) fn process(&self) -> Option<(NodeId, Port)> {
        match self.source {
            Source::Any => None,
            Source::Process(node, port) => Some((node, port)),
        }
    }
}

/// What commands and contexts say of a destination or a pattern.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    /// `None`: any process.
    pub(super) peer: Option<(NodeId, Port)>,
    pub(super) tag: u64,
    /// Ignored bits of a pattern, immediate data of a destination.
    pub(super) ignore_or_immediate: u64,
    /// Of a destination; 0 of a pattern.
    pub(super) mark: u32,
    /// Of the other process; 0: of any.
    pub(super) incarnation: u32,
    pub(super) untagged: bool,
    pub(super) endpoint: u16,
}

impl From<&Destination> for Fields {
    fn from(to: &Destination) -> Self {
        Fields {
            peer: Some((to.node, to.port)),
            tag: to.tag.0,
            ignore_or_immediate: to.immediate,
            mark: to.mark,
            incarnation: to.incarnation,
            untagged: to.untagged,
            endpoint: to.endpoint.0,
        }
    }
}

impl From<&Pattern> for Fields {
    fn from(pattern: &Pattern) -> Self {
        Fields {
            peer: pattern.process(),
            tag: pattern.tag.0,
            ignore_or_immediate: pattern.ignore,
            mark: 0,
            incarnation: pattern.process().map_or(0, |_| pattern.incarnation),
            untagged: pattern.untagged,
            endpoint: pattern.endpoint.0,
        }
    }
}

impl Fields {
    /// Puts the other process into a header.
    pub(super) fn name_peer(&self, header: &mut CommandHeader) {
        if let Some((node, port)) = self.peer {
            header.remote_node = node.0.into();
            header.remote_port = port.0.into();
        }
    }

    /// What stands in front of the inline payload of a Send, and is that of a Receive, if there is anything to say.
    pub(super) fn label(&self) -> Option<Label> {
        let label = Label {
            incarnation: self.incarnation.into(),
            mark: self.mark.into(),
        };
        (label != Label::default()).then_some(label)
    }

    /// What is said of the operation if it fails.
    pub(super) fn what(&self, operation: MessageOperation, length: u64) -> MessageError {
        MessageError::new(operation, self.peer, self.tag, length)
    }
}
