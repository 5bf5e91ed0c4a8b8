//! Names of processes (Q14; docs/names.md): pairs of an application and a number, which every NIC
//! knows once they are registered.
//!
//! ```text
//!   names().register("solver", 3) ─► Name        its drop, or the end of the process, withdraws it
//!   names().find("solver", 3)     ─► (node, port): waits until the name appears
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//! use qnic::{Nic, Port};
//!
//! # fn main() -> qnic::Result<()> {
//! let endpoint = Nic::open()?.register(Port(7))?;
//! let name = endpoint.names().register("solver", 3)?;
//! let (node, port) = endpoint.names().find("solver", 0, Duration::from_secs(10))?;
//! println!("process 0 is on {node}, {port}");
//! # Ok(())
//! # }
//! ```
//! A name is known on the own node at once, and on the others when their NICs have been told: a
//! moment later, or as soon as they can be reached. Names prove nothing: any process of any node
//! can register one that is free. What a process lets others do, keys and
//! [`ExportOptions`](crate::ExportOptions) decide.

use std::time::Duration;

use qnic_abi::command::CommandBody;
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::process_names::{NameAction, NameCommand, ProcessName, MAX_TIMEOUT_MS};
use qnic_abi::{NodeId, Port, Status};

use crate::core::messages::Pending;
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, NameError, Result};

pub use qnic_abi::process_names::APPLICATION_BYTES;

/// A name that this process has. Dropped, it is withdrawn.
#[derive(Debug)]
#[must_use = "a name that is dropped is withdrawn"]
pub struct Name<'a> {
    core: &'a Core,
    name: ProcessName,
}

impl Name<'_> {
    /// The application.
    pub fn application(&self) -> &str {
        self.name.application()
    }

    /// Number of the process in the application.
    pub fn process(&self) -> u32 {
        self.name.process.get()
    }
}

/// The names of all processes, as this one asks for them ([`Endpoint::names`]).
#[derive(Debug, Clone, Copy)]
pub struct Names<'e> {
    core: &'e Core,
}

impl Endpoint {
    /// The names of processes.
    pub fn names(&self) -> Names<'_> {
        Names { core: self.core() }
    }
}

impl<'e> Names<'e> {
    /// Gives this process a name; it can have eight. Returns once the own NIC knows it.
    ///
    /// # Errors
    /// [`Error::BadName`]: `application` is empty, longer than 16 bytes, or has a zero in it.
    /// [`Error::Name`]: another process has the name, or this one has eight.
    /// [`Error::DeviceGone`], [`Error::QueueFailed`], [`Error::QueueReset`]
    pub fn register(&self, application: &str, process: u32) -> Result<Name<'e>> {
        let core = self.core;
        let name = checked(application, process)?;
        perform(core, command(NameAction::Register, name))?;
        Ok(Name { core, name })
    }

    /// Finds the process of a name: its node and port. Waits up to `timeout`, at most 10 minutes,
    /// until it is registered; not at all if that is zero.
    ///
    /// # Errors
    /// [`Error::Name`]: it was not. Otherwise those of [`Names::register`]
    pub fn find(
        &self,
        application: &str,
        process: u32,
        timeout: Duration,
    ) -> Result<(NodeId, Port)> {
        let name = checked(application, process)?;
        let mut command = command(NameAction::LookUp, name);
        // Rounded up: a short wait is one.
        let wait = timeout.as_nanos().div_ceil(1_000_000);
        command.timeout_ms = (wait.min(MAX_TIMEOUT_MS.into()) as u32).into();
        let entry = perform(self.core, command)?;
        Ok((NodeId(entry.node.get()), Port(entry.port.get())))
    }
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        let command = command(NameAction::Withdraw, self.name);
        // A drop cannot report. A device that is gone has no names.
        if let Ok(key) = self.core.post_command(command) {
            self.core.detach_request(key);
        }
    }
}

fn checked(application: &str, process: u32) -> Result<ProcessName> {
    ProcessName::new(application, process).ok_or_else(|| Error::BadName(application.to_owned()))
}

fn command(action: NameAction, name: ProcessName) -> NameCommand {
    let mut command = NameCommand::command();
    command.action = action as u8;
    command.name = name;
    command
}

/// Issues a command, and waits for its completion: the NIC bounds how long that takes.
fn perform(core: &Core, command: NameCommand) -> Result<CompletionEntry> {
    let end = Pending::new(core, core.post_command(command)?).wait(None)?;
    let (application, process) = (command.name.application(), command.name.process.get());
    match end.status(format_args!("name {application}/{process}"))? {
        (entry, Status::Ok) => Ok(entry),
        (entry, status) => Err(Error::Name(NameError {
            application: application.to_owned(),
            process,
            status,
            holder: (NodeId(entry.node.get()), Port(entry.port.get())),
        })),
    }
}
