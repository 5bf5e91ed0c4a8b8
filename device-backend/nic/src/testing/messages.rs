//! Messages of a process on a simulated node.

use qnic_abi::command::CommandBody;
use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETIONS_WAITING, COMPLETION_TAIL,
};
use qnic_abi::message::{
    CancelCommand, Label, ProbeCommand, ProbeFlags, ReceiveCommand, ReceiveFlags, SendCommand,
    SendFlags,
};
use qnic_abi::window::COMPLETION_HEAD;
use zerocopy::IntoBytes;

use super::posting::Posting;
use super::{Party, SimSegment};

/// A message from the segment of a party.
impl Posting<'_, SendCommand> {
    /// Its tag.
    pub fn tag(self, tag: u64) -> Self {
        self.with(|command| command.tag = tag.into())
    }

    /// These bytes, which stand in the command.
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self.with(|command| {
            command.header.inline_length = bytes.len() as u8;
            command.length = (bytes.len() as u64).into();
        })
    }

    /// Immediate data.
    pub fn immediate(self, immediate: u64) -> Self {
        self.with(|command| command.immediate = immediate.into())
    }

    /// Its mark, for a process of any incarnation.
    pub fn mark(self, mark: u32) -> Self {
        self.label(0, mark)
    }

    /// For the process of an incarnation, and its mark. Called behind [`Self::inline`].
    pub fn label(mut self, incarnation: u32, mark: u32) -> Self {
        let (incarnation, mark) = (incarnation.into(), mark.into());
        let label = Label { incarnation, mark };
        self.payload.splice(0..0, label.as_bytes().iter().copied());
        let length = self.payload.len() as u8;
        self.with(|command| {
            command.header.inline_length = length;
            command.flags = (command.flags.get() | SendFlags::LABEL.bits()).into();
        })
    }

    /// In the untagged space.
    pub fn untagged(self) -> Self {
        self.with(|command| {
            command.flags = (command.flags.get() | SendFlags::UNTAGGED.bits()).into();
        })
    }

    /// To that endpoint.
    pub fn endpoint(self, endpoint: u16) -> Self {
        self.with(|command| command.endpoint = endpoint.into())
    }
}

impl Posting<'_, ReceiveCommand> {
    /// As many messages as there is room for.
    pub fn many(self) -> Self {
        self.flag(ReceiveFlags::MANY, true)
    }

    /// As many untagged messages as there is room for, and for each so many bytes at least.
    pub fn many_untagged(self, least: u64) -> Self {
        let many = self.flag(ReceiveFlags::MANY | ReceiveFlags::UNTAGGED, true);
        many.with(|command| command.ignore = least.into())
    }

    /// Drops a claimed message.
    pub fn discard(self) -> Self {
        self.flag(ReceiveFlags::DISCARD, true)
    }

    /// Of that incarnation of the process that it names.
    pub fn incarnation(mut self, incarnation: u32) -> Self {
        let label = Label {
            incarnation: incarnation.into(),
            mark: 0.into(),
        };
        self.payload = label.as_bytes().to_vec();
        let length = self.payload.len() as u8;
        self.flag(ReceiveFlags::LABEL, true)
            .with(|command| command.header.inline_length = length)
    }
}

impl Posting<'_, ProbeCommand> {
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

    /// Of that incarnation of the process that it names.
    pub fn incarnation(self, incarnation: u32) -> Self {
        self.with(|command| command.incarnation = incarnation.into())
    }
}

impl Party {
    /// A probe for any message.
    pub fn probe(&self, handle: u64) -> Posting<'_, ProbeCommand> {
        let mut command = ProbeCommand::command();
        command.handle = handle.into();
        command.ignore = u64::MAX.into();
        command.flags = ProbeFlags::ANY_PROC.bits().into();
        Posting::new(self, command)
    }

    /// A receive of a claimed message.
    pub fn receive_claimed(&self, handle: u64, message: u64) -> Posting<'_, ReceiveCommand> {
        let mut command = ReceiveCommand::command();
        command.handle = handle.into();
        command.tag = message.into();
        command.flags = ReceiveFlags::CLAIMED.bits().into();
        Posting::new(self, command)
    }

    /// A message of no byte to a process.
    pub fn send(&self, handle: u64, to: impl Into<SimSegment>) -> Posting<'_, SendCommand> {
        let to = to.into();
        let mut command = SendCommand::command();
        command.handle = handle.into();
        command.header.remote_node = (to.node as u16).into();
        command.header.remote_port = to.port.0.into();
        Posting::new(self, command)
    }

    /// A receive of no byte for any message.
    pub fn receive(&self, handle: u64) -> Posting<'_, ReceiveCommand> {
        let mut command = ReceiveCommand::command();
        command.handle = handle.into();
        command.ignore = u64::MAX.into();
        command.flags = ReceiveFlags::ANY_PROC.bits().into();
        Posting::new(self, command)
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
