//! Groups and collectives of a process on a simulated node.

use qnic_abi::collective::{
    Collective, CollectiveCommand, Element, JoinGroupCommand, LeaveGroupCommand, Operator,
};
use qnic_abi::command::CommandBody;

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

    /// How long it may take, in milliseconds.
    pub fn timeout(mut self, milliseconds: u32) -> Self {
        self.command.timeout_ms = milliseconds.into();
        self
    }
}

impl Party {
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
