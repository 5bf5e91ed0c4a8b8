//! Groups and collectives of a process on a simulated node.

use qnic_abi::collective::{
    Collective, CollectiveCommand, Element, JoinGroupCommand, LeaveGroupCommand, Operator,
};
use qnic_abi::command::CommandBody;
use qnic_abi::multicast::{MulticastCommand, MulticastFlags};

use super::posting::Posting;
use super::Party;

/// The longest time that a command may be given, in milliseconds.
const LONG: u32 = 600_000;

/// A collective that a party takes part in, with memory of its segment.
impl Posting<'_, CollectiveCommand> {
    /// The root has what all get.
    pub fn broadcast(mut self, root: u32) -> Self {
        self.command.collective = Collective::Broadcast as u8;
        self.command.root = root.into();
        self
    }

    /// The root gets the reduction.
    pub fn reduce(mut self, root: u32, operator: Operator, element: Element) -> Self {
        self = self.allreduce(operator, element);
        self.command.collective = Collective::Reduce as u8;
        self.command.root = root.into();
        self
    }

    /// All get the reduction.
    pub fn allreduce(mut self, operator: Operator, element: Element) -> Self {
        self.command.collective = Collective::Allreduce as u8;
        self.command.operator = operator as u8;
        self.command.element = element as u8;
        self
    }

    /// What the process itself calls it.
    pub fn label(mut self, label: u16) -> Self {
        self.command.label = label.into();
        self
    }

    /// How long it may take, in milliseconds.
    pub fn timeout(mut self, milliseconds: u32) -> Self {
        self.command.timeout_ms = milliseconds.into();
        self
    }
}

/// A message to members of a group.
impl Posting<'_, MulticastCommand> {
    fn flag(mut self, flag: MulticastFlags) -> Self {
        self.command.flags |= flag.bits();
        self
    }

    /// To these members only, instead of all others. Comes before [`Self::short`].
    pub fn ranks(mut self, ranks: &[u16]) -> Self {
        self = self.flag(MulticastFlags::RANKS);
        let count = ranks.len() as u16;
        let words = std::iter::once(&count).chain(ranks);
        self.append(words.flat_map(|word| word.to_le_bytes()))
    }

    /// With these bytes, which stand in the entry.
    pub fn short(mut self, bytes: &[u8]) -> Self {
        self.command.length = (bytes.len() as u32).into();
        self.flag(MulticastFlags::SHORT)
            .append(bytes.iter().copied())
    }

    /// With so many bytes of the segment, from this offset on.
    pub fn bytes(mut self, offset: u64, length: u32) -> Self {
        let local = self.party.segment.at(offset);
        self.command.local_address = local.address.into();
        self.command.local_key = local.key.0.into();
        self.command.local_segment = local.segment.0.into();
        self.command.length = length.into();
        self
    }

    /// In the untagged space, at that endpoint.
    pub fn untagged(mut self, endpoint: u8) -> Self {
        self.command.tag = 0.into();
        self.command.endpoint = endpoint;
        self.flag(MulticastFlags::UNTAGGED)
    }

    fn append(mut self, bytes: impl IntoIterator<Item = u8>) -> Self {
        self.payload.extend(bytes);
        self.command.header.inline_length = self.payload.len() as u8;
        self
    }
}

impl Party {
    /// A message to all other members of a group, with a tag.
    pub fn multicast(&self, handle: u64, group: u64, tag: u64) -> Posting<'_, MulticastCommand> {
        let mut command = MulticastCommand::command();
        command.handle = handle.into();
        command.group = group.into();
        command.tag = tag.into();
        command.immediate = (tag + 1000).into();
        Posting::new(self, command)
    }

    /// A join of the group of that name, with key 0, at a home process.
    pub fn join_command(
        &self,
        handle: u64,
        home: &Party,
        name: u64,
        (rank, size): (u32, u32),
    ) -> JoinGroupCommand {
        let mut command = JoinGroupCommand::command();
        command.header.remote_node = (home.node as u16).into();
        command.header.remote_port = home.port.0.into();
        command.handle = handle.into();
        command.name = name.into();
        command.rank = rank.into();
        command.size = size.into();
        command.timeout_ms = LONG.into();
        command
    }

    /// Joins a group.
    pub fn join(&self, handle: u64, home: &Party, name: u64, place: (u32, u32)) {
        self.post(&self.join_command(handle, home, name, place).descriptor());
    }

    /// Leaves a group.
    pub fn leave(&self, handle: u64, group: u64) {
        let mut command = LeaveGroupCommand::command();
        command.handle = handle.into();
        command.group = group.into();
        self.post(&command.descriptor());
    }

    /// A barrier of a group.
    pub fn barrier(&self, handle: u64, group: u64) -> Posting<'_, CollectiveCommand> {
        let mut command = CollectiveCommand::command();
        command.handle = handle.into();
        command.group = group.into();
        command.collective = Collective::Barrier as u8;
        command.timeout_ms = LONG.into();
        Posting::new(self, command)
    }
}
