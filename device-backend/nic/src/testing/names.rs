//! Names of a process on a simulated node.

use qnic_abi::command::CommandBody;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::process_names::{NameAction, NameCommand, ProcessName};
use qnic_abi::Status;

use super::Party;

/// What a command about a name has come to: handle, status, node and port.
pub type NameEnd = (u64, Status, (u16, u16));

impl Party {
    /// A command about a name.
    ///
    /// # Panics
    /// If it is none.
    pub fn name_command(
        &self,
        handle: u64,
        action: NameAction,
        (application, process): (&str, u32),
    ) -> NameCommand {
        let mut command = NameCommand::command();
        command.handle = handle.into();
        command.name = ProcessName::new(application, process).expect("a name");
        command.action = action as u8;
        command
    }

    /// Registers a name that is free.
    pub fn register_name(&self, handle: u64, name: (&str, u32)) {
        self.register_name_within(handle, name, 0);
    }

    /// Registers a name, and waits so many milliseconds until it is free.
    pub fn register_name_within(&self, handle: u64, name: (&str, u32), timeout_ms: u32) {
        let mut command = self.name_command(handle, NameAction::Register, name);
        command.timeout_ms = timeout_ms.into();
        self.post(&command.descriptor());
    }

    /// Withdraws a name.
    pub fn withdraw_name(&self, handle: u64, name: (&str, u32)) {
        let command = self.name_command(handle, NameAction::Withdraw, name);
        self.post(&command.descriptor());
    }

    /// Looks a name up, and waits so many milliseconds for it.
    pub fn look_up(&self, handle: u64, name: (&str, u32), timeout_ms: u32) {
        let mut command = self.name_command(handle, NameAction::LookUp, name);
        command.timeout_ms = timeout_ms.into();
        self.post(&command.descriptor());
    }

    /// What commands about names have come to since the last look.
    ///
    /// # Panics
    /// If others have completed.
    pub fn name_ends(&self) -> Vec<NameEnd> {
        let end = |entry: &CompletionEntry| {
            assert_eq!(entry.kind, CompletionKind::Name as u8);
            let status = Status::try_from(entry.status.get()).expect("a known status");
            let place = (entry.node.get(), entry.port.get());
            (entry.handle.get(), status, place)
        };
        self.completions().iter().map(end).collect()
    }
}
