//! Messages of a process on a simulated node.

use qnic_abi::command::CommandBody;
use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETIONS_WAITING, COMPLETION_TAIL,
};
use qnic_abi::message::{
    CancelCommand, ProbeCommand, ProbeFlags, ReceiveCommand, ReceiveFlags, SendCommand, SendFlags,
};
use qnic_abi::window::COMPLETION_HEAD;

use super::{Party, SimSegment};

/// A message that is to be sent from the segment of a party.
#[derive(Debug)]
#[must_use = "nothing is issued until `issue`"]
pub struct Sending<'a> {
    party: &'a Party,
    /// The command.
    pub command: SendCommand,
    payload: Vec<u8>,
}

impl Sending<'_> {
    /// Its tag.
    pub fn tag(mut self, tag: u64) -> Self {
        self.command.tag = tag.into();
        self
    }

    /// So many bytes of the segment, from this offset on.
    pub fn bytes(mut self, offset: u64, length: u64) -> Self {
        let local = self.party.segment.at(offset);
        self.command.local_address = local.address.into();
        self.command.local_key = local.key.0.into();
        self.command.local_segment = local.segment.0.into();
        self.command.length = length.into();
        self
    }

    /// These bytes, which stand in the command.
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.command.header.inline_length = bytes.len() as u8;
        self.command.length = (bytes.len() as u64).into();
        self.payload = bytes.to_vec();
        self
    }

    /// Immediate data.
    pub fn immediate(mut self, immediate: u64) -> Self {
        self.command.immediate = immediate.into();
        self
    }

    /// In the untagged space.
    pub fn untagged(mut self) -> Self {
        self.command.flags = SendFlags::UNTAGGED.bits().into();
        self
    }

    /// To that endpoint.
    pub fn endpoint(mut self, endpoint: u16) -> Self {
        self.command.endpoint = endpoint.into();
        self
    }

    /// Issues it; the queue has room.
    pub fn issue(self) {
        let descriptor = self.command.descriptor();
        self.party.post_with(&descriptor, &self.payload);
    }

    /// Issues it and runs all nodes.
    pub fn run(self) {
        let net = self.party.net.clone();
        self.issue();
        net.run();
    }
}

/// A receive that is to be posted, for any message; of no byte.
#[derive(Debug)]
#[must_use = "nothing is issued until `issue`"]
pub struct Receiving<'a> {
    party: &'a Party,
    /// The command.
    pub command: ReceiveCommand,
}

impl Receiving<'_> {
    fn flag(&mut self, flag: ReceiveFlags, on: bool) {
        let flags = self.command.flags.get() & !flag.bits();
        let flags = if on { flags | flag.bits() } else { flags };
        self.command.flags = flags.into();
    }

    /// Of that process only.
    pub fn from(mut self, source: impl Into<SimSegment>) -> Self {
        let source = source.into();
        self.flag(ReceiveFlags::ANY_PROC, false);
        self.command.header.remote_node = (source.node as u16).into();
        self.command.header.remote_port = source.port.0.into();
        self
    }

    /// With that tag only.
    pub fn tag(self, tag: u64) -> Self {
        self.tag_ignoring(tag, 0)
    }

    /// With a tag that differs at most in these bits.
    pub fn tag_ignoring(mut self, tag: u64, ignore: u64) -> Self {
        self.command.tag = tag.into();
        self.command.ignore = ignore.into();
        self
    }

    /// Into so many bytes of the segment, from this offset on.
    pub fn bytes(mut self, offset: u64, length: u64) -> Self {
        let local = self.party.segment.at(offset);
        self.command.local_address = local.address.into();
        self.command.local_key = local.key.0.into();
        self.command.local_segment = local.segment.0.into();
        self.command.length = length.into();
        self
    }

    /// As many messages as there is room for.
    pub fn many(mut self) -> Self {
        self.flag(ReceiveFlags::MANY, true);
        self
    }

    /// Drops a claimed message.
    pub fn discard(mut self) -> Self {
        self.flag(ReceiveFlags::DISCARD, true);
        self
    }

    /// In the untagged space.
    pub fn untagged(mut self) -> Self {
        self.flag(ReceiveFlags::UNTAGGED, true);
        self.tag_ignoring(0, 0)
    }

    /// At that endpoint.
    pub fn endpoint(mut self, endpoint: u16) -> Self {
        self.command.endpoint = endpoint.into();
        self
    }

    /// Issues it; the queue has room.
    pub fn issue(self) {
        self.party.post(&self.command.descriptor());
    }

    /// Issues it and runs all nodes.
    pub fn run(self) {
        let net = self.party.net.clone();
        self.issue();
        net.run();
    }
}

/// A message that is to be looked for, whichever it is.
#[derive(Debug)]
#[must_use = "nothing is issued until `issue`"]
pub struct Probing<'a> {
    party: &'a Party,
    /// The command.
    pub command: ProbeCommand,
}

impl Probing<'_> {
    fn flag(mut self, flag: ProbeFlags, on: bool) -> Self {
        let mut flags = ProbeFlags::from_bits_retain(self.command.flags.get());
        flags.set(flag, on);
        self.command.flags = flags.bits().into();
        self
    }

    /// Of that process only.
    pub fn from(self, source: impl Into<SimSegment>) -> Self {
        let source = source.into();
        let mut probe = self.flag(ProbeFlags::ANY_PROC, false);
        probe.command.header.remote_node = (source.node as u16).into();
        probe.command.header.remote_port = source.port.0.into();
        probe
    }

    /// With that tag only.
    pub fn tag(mut self, tag: u64) -> Self {
        self.command.tag = tag.into();
        self.command.ignore = 0.into();
        self
    }

    /// In the untagged space.
    pub fn untagged(self) -> Self {
        self.flag(ProbeFlags::UNTAGGED, true).tag(0)
    }

    /// At that endpoint.
    pub fn endpoint(mut self, endpoint: u16) -> Self {
        self.command.endpoint = endpoint.into();
        self
    }

    /// Waits for it.
    pub fn wait(self) -> Self {
        self.flag(ProbeFlags::WAIT, true)
    }

    /// Claims it.
    pub fn claim(self) -> Self {
        self.flag(ProbeFlags::CLAIM, true)
    }

    /// Discards it.
    pub fn discard(self) -> Self {
        self.flag(ProbeFlags::DISCARD, true)
    }

    /// Issues it; the queue has room.
    pub fn issue(self) {
        self.party.post(&self.command.descriptor());
    }

    /// Issues it and runs all nodes.
    pub fn run(self) {
        let net = self.party.net.clone();
        self.issue();
        net.run();
    }
}

impl Party {
    /// A probe for any message.
    pub fn probe(&self, handle: u64) -> Probing<'_> {
        let mut command = ProbeCommand::command();
        command.handle = handle.into();
        command.ignore = u64::MAX.into();
        command.flags = ProbeFlags::ANY_PROC.bits().into();
        Probing {
            party: self,
            command,
        }
    }

    /// A receive of a claimed message.
    pub fn receive_claimed(&self, handle: u64, message: u64) -> Receiving<'_> {
        let mut command = ReceiveCommand::command();
        command.handle = handle.into();
        command.tag = message.into();
        command.flags = ReceiveFlags::CLAIMED.bits().into();
        Receiving {
            party: self,
            command,
        }
    }

    /// A message of no byte to a process.
    pub fn send(&self, handle: u64, to: impl Into<SimSegment>) -> Sending<'_> {
        let to = to.into();
        let mut command = SendCommand::command();
        command.handle = handle.into();
        command.header.remote_node = (to.node as u16).into();
        command.header.remote_port = to.port.0.into();
        Sending {
            party: self,
            command,
            payload: Vec::new(),
        }
    }

    /// A receive for any message.
    pub fn receive(&self, handle: u64) -> Receiving<'_> {
        let mut command = ReceiveCommand::command();
        command.handle = handle.into();
        command.ignore = u64::MAX.into();
        command.flags = ReceiveFlags::ANY_PROC.bits().into();
        Receiving {
            party: self,
            command,
        }
    }

    /// Takes a receive or a probe back, and runs all nodes.
    pub fn cancel(&self, handle: u64) {
        let mut command = CancelCommand::command();
        command.handle = handle.into();
        self.post(&command.descriptor());
        self.net.run();
    }

    /// Reads the completions that have come; rings if more wait.
    pub fn completions(&self) -> Vec<CompletionEntry> {
        let head = self.window() + COMPLETION_HEAD;
        let (first, tail) = (self.net.load(self.node, head), self.word(COMPLETION_TAIL));
        let entry = |number| -> CompletionEntry {
            let offset = completion_offset(number);
            let words: [u64; 8] = std::array::from_fn(|word| self.word(offset + word * 8).to_le());
            zerocopy::transmute!(words)
        };
        let entries = (first..tail).map(entry).collect();
        self.net.store(self.node, head, tail);
        if self.word(COMPLETIONS_WAITING) > 0 {
            self.net.cluster().ring(self.node, self.vni);
        }
        entries
    }
}
