//! Names of processes (Q14; docs/names.md): pairs of an application and a number, which every NIC
//! knows once they are registered.
//!
//! ```text
//!   names().register("solver", 3) ─► Name        the drop of the last one, or the end of the process,
//!                                                withdraws it
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
//! can register one that is free. Use keys and [`ExportOptions`](crate::ExportOptions) to decide
//! what others may do.

use std::time::Duration;

use qnic_abi::command::CommandBody;
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::process_names::{NameAction, NameCommand, ProcessName, MAX_TIMEOUT_MS};
use qnic_abi::{NodeId, Port, Status};

use crate::core::messages::{Pending, RequestKey};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, NameError, Result};

pub use qnic_abi::process_names::APPLICATION_BYTES;

/// How long a registration waits for a name that another process has, unless the program says
/// otherwise: if that process has just ended, its withdrawal is still on its way.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(1);

/// A name that this process has. When the last value for a name is dropped, the name is withdrawn.
#[derive(Debug)]
#[must_use = "a name of which the last one is dropped is withdrawn"]
pub struct Name<'a> {
    core: &'a Core,
    name: ProcessName,
}

impl Name<'_> {
    /// Leaves the name to the endpoint: it is withdrawn when that ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }

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
    timeout: Duration,
}

impl Endpoint {
    /// The names of processes.
    pub fn names(&self) -> Names<'_> {
        Names {
            core: self.core(),
            timeout: TAKEN_TIMEOUT,
        }
    }
}

impl<'e> Names<'e> {
    /// The same, with a limit for how long [`Names::register`] waits for a name that another process
    /// has: 1 s at first, at most 10 minutes; not at all if it is zero.
    pub fn timeout(self, timeout: Duration) -> Self {
        Names { timeout, ..self }
    }

    /// Gives this process a name; it can have eight, each as often as it likes. Returns once the own
    /// NIC knows it. While another process has the name, it [waits](Names::timeout): a process that
    /// lives keeps its name, and the own NIC learns a moment later of one that has ended. If
    /// processes on several nodes wait for the same name, more than one may get it, as when they
    /// register a free name at the same time.
    ///
    /// # Errors
    /// [`Error::BadName`]: `application` is empty, longer than 16 bytes, or has a zero in it.
    /// [`Error::Name`]: another process has the name, or this one has eight.
    /// [`Error::DeviceGone`], [`Error::QueueFailed`], [`Error::QueueReset`]
    pub fn register(&self, application: &str, process: u32) -> Result<Name<'e>> {
        let (core, name) = (self.core, checked(application, process)?);
        let mut command = command(NameAction::Register, name);
        command.timeout_ms = milliseconds(self.timeout).into();
        let key = core.names.add(&name, || core.post_command(command))?;
        let registered = end_of(core, command, key);
        match registered {
            Ok(_) => Ok(Name { core, name }),
            Err(error) => {
                core.names.remove(&name, || ());
                Err(error)
            }
        }
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
        command.timeout_ms = milliseconds(timeout).into();
        let key = self.core.post_command(command)?;
        let entry = end_of(self.core, command, key)?;
        Ok((NodeId(entry.node.get()), Port(entry.port.get())))
    }
}

impl Drop for Name<'_> {
    fn drop(&mut self) {
        let core = self.core;
        core.names.remove(&self.name, || {
            // A drop cannot report. A device that is gone has no names.
            if let Ok(key) = core.post_command(command(NameAction::Withdraw, self.name)) {
                core.detach_request(key);
            }
        });
    }
}

/// How long a command waits. Rounded up: a short wait is one.
fn milliseconds(wait: Duration) -> u32 {
    let wait = wait.as_nanos().div_ceil(1_000_000);
    wait.min(MAX_TIMEOUT_MS.into()) as u32
}

pub(crate) fn checked(application: &str, process: u32) -> Result<ProcessName> {
    ProcessName::new(application, process).ok_or_else(|| Error::BadName(application.to_owned()))
}

fn command(action: NameAction, name: ProcessName) -> NameCommand {
    let mut command = NameCommand::command();
    command.action = action as u8;
    command.name = name;
    command
}

/// Waits for the completion of a command: the NIC bounds how long that takes.
fn end_of(core: &Core, command: NameCommand, key: RequestKey) -> Result<CompletionEntry> {
    let end = Pending::new(core, key).wait(None)?;
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
