//! A command of a party that is being built: what the commands of messages and groups have in common.

use qnic_abi::collective::CollectiveCommand;
use qnic_abi::command::CommandBody;
use qnic_abi::message::{ProbeCommand, ProbeFlags, ReceiveCommand, ReceiveFlags, SendCommand};

use super::{Party, SimSegment};

/// A command that is to be issued.
#[derive(Debug)]
#[must_use = "nothing is issued until `issue`"]
pub struct Posting<'a, C> {
    pub(super) party: &'a Party,
    /// The command.
    pub command: C,
    /// Bytes that stand behind it.
    pub(super) payload: Vec<u8>,
}

impl<'a, C: CommandBody> Posting<'a, C> {
    pub(super) fn new(party: &'a Party, command: C) -> Self {
        Posting {
            party,
            command,
            payload: Vec::new(),
        }
    }

    /// With another change.
    pub(super) fn with(mut self, change: impl FnOnce(&mut C)) -> Self {
        change(&mut self.command);
        self
    }

    /// Issues it; the queue has room.
    pub fn issue(self) {
        let descriptor = self.command.descriptor();
        self.party.post_with(&descriptor, &self.payload);
    }

    /// Issues it without a doorbell; the queue has room.
    pub fn issue_quietly(self) {
        let descriptor = self.command.descriptor();
        self.party.store_with(&descriptor, &self.payload);
    }

    /// Issues it and runs all nodes.
    pub fn run(self) {
        let net = self.party.net.clone();
        self.issue();
        net.run();
    }
}

/// Memory of commands that name some.
macro_rules! names_memory {
    ($($command:ty),*) => {$(
        impl Posting<'_, $command> {
            /// So many bytes of the segment, from this offset on.
            pub fn bytes(self, offset: u64, length: u64) -> Self {
                let local = self.party.segment.at(offset);
                self.with(|command| {
                    command.local_address = local.address.into();
                    command.local_key = local.key.0.into();
                    command.local_segment = local.segment.0.into();
                    command.length = length.into();
                })
            }
        }
    )*};
}
names_memory!(SendCommand, ReceiveCommand, CollectiveCommand);

/// What commands look for that take a message.
macro_rules! looks_for {
    ($($command:ty, $flags:ident;)*) => {$(
        impl Posting<'_, $command> {
            pub(super) fn flag(self, flag: $flags, on: bool) -> Self {
                self.with(|command| {
                    let mut flags = $flags::from_bits_retain(command.flags.get());
                    flags.set(flag, on);
                    command.flags = flags.bits().into();
                })
            }

            /// Of that process only.
            pub fn from(self, source: impl Into<SimSegment>) -> Self {
                let source = source.into();
                self.flag($flags::ANY_PROC, false).with(|command| {
                    command.header.remote_node = (source.node as u16).into();
                    command.header.remote_port = source.port.0.into();
                })
            }

            /// With that tag only.
            pub fn tag(self, tag: u64) -> Self {
                self.tag_ignoring(tag, 0)
            }

            /// With a tag that differs at most in these bits.
            pub fn tag_ignoring(self, tag: u64, ignore: u64) -> Self {
                self.with(|command| {
                    command.tag = tag.into();
                    command.ignore = ignore.into();
                })
            }

            /// In the untagged space.
            pub fn untagged(self) -> Self {
                self.flag($flags::UNTAGGED, true).tag(0)
            }

            /// At that endpoint.
            pub fn endpoint(self, endpoint: u16) -> Self {
                self.with(|command| command.endpoint = endpoint.into())
            }
        }
    )*};
}
looks_for! {
    ReceiveCommand, ReceiveFlags;
    ProbeCommand, ProbeFlags;
}
