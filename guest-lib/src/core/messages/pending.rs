//! A request that a handle of the program stands for, and the commands that begin one.

use std::fmt::Display;
use std::time::Instant;

use qnic_abi::atomic::AtomicCommand;
use qnic_abi::collective::{CollectiveCommand, JoinGroupCommand, LeaveGroupCommand};
use qnic_abi::command::{CommandBody, Descriptor};
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::message::{ProbeCommand, ReceiveCommand, SendCommand};
use qnic_abi::multicast::MulticastCommand;
use qnic_abi::process_names::NameCommand;
use qnic_abi::rdma::{FenceCommand, ReadCommand, WriteCommand};
use qnic_abi::Status;

use super::{End, RequestKey, Seen};
use crate::core::Core;
use crate::error::{Error, Result};

/// A command that a completion ends.
pub(crate) trait Requesting: CommandBody {
    /// Its bytes with the handle of its request.
    fn descriptor_of(self, handle: u64) -> Descriptor;
}

macro_rules! requesting {
    ($($command:ty),* $(,)?) => {
        $(impl Requesting for $command {
            fn descriptor_of(mut self, handle: u64) -> Descriptor {
                self.handle = handle.into();
                self.descriptor()
            }
        })*
    };
}

requesting! {
    SendCommand,
    ReceiveCommand,
    ProbeCommand,
    JoinGroupCommand,
    CollectiveCommand,
    MulticastCommand,
    LeaveGroupCommand,
    NameCommand,
    WriteCommand,
    ReadCommand,
    FenceCommand,
    AtomicCommand,
}

impl End {
    /// The completion, and its status. `what` names the operation.
    ///
    /// # Errors
    /// [`Error::QueueReset`], [`Error::Incompatible`]
    pub(crate) fn status(self, what: impl Display) -> Result<(CompletionEntry, Status)> {
        let entry = match self {
            End::Completed(entry) => entry,
            End::Reset => return Err(Error::QueueReset),
        };
        match Status::try_from(entry.status.get()) {
            Ok(status) => Ok((entry, status)),
            Err(unknown) => Err(Error::Incompatible(format!(
                "{what}: unknown status {}",
                unknown.0
            ))),
        }
    }
}

/// A request whose end one handle waits for.
#[derive(Debug)]
pub(crate) struct Pending<'a> {
    pub(crate) core: &'a Core,
    pub(crate) key: RequestKey,
    pub(crate) seen: Seen,
    end: Option<End>,
}

impl<'a> Pending<'a> {
    pub(crate) fn new(core: &'a Core, key: RequestKey) -> Self {
        Pending {
            core,
            key,
            seen: Seen::default(),
            end: None,
        }
    }

    /// Returns true if its end has been seen.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Its end, if it has ended.
    pub(crate) fn look(&mut self) -> Result<Option<End>> {
        match self.end {
            None => self.end = self.core.take_end(self.key, &mut self.seen)?,
            Some(_) => self.core.check_own()?,
        }
        Ok(self.end)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> Result<End> {
        let core = self.core;
        core.wait_for_entry(deadline, || self.look())
    }
}
