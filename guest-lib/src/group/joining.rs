//! Joins that do not wait.

use std::time::Duration;

use qnic_abi::collective::{JoinGroupCommand, MAX_MEMBERS};
use qnic_abi::command::CommandBody;

use super::{milliseconds, Call, Group, Membership};
use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::ends::RequestId;
use crate::error::{Error, GroupError, GroupOperation, Result};

/// A join that is under way. It ends within the time that it was given.
///
/// One that is dropped goes on. The process is then a member of a group that it does not know, until its endpoint ends:
/// a program that changes its mind keeps it, and drops the group.
#[derive(Debug)]
#[must_use = "a group that forms without its program knowing is of no use"]
pub struct Joining<'a> {
    core: &'a Core,
    call: Option<Call<'a>>,
    id: RequestId,
    membership: Membership,
}

impl<'a> Joining<'a> {
    pub(super) fn new(core: &'a Core, call: Call<'a>, membership: Membership) -> Self {
        Joining {
            core,
            id: call.id(),
            call: Some(call),
            membership,
        }
    }

    /// What [`Ends`](crate::message::Ends) calls it.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the group if it has formed; never blocks. Returns `None` while it has not, and once it was returned.
    ///
    /// # Errors
    /// Those of [`Group::join`]
    pub fn test(&mut self) -> Result<Option<Group<'a>>> {
        let Some(call) = &mut self.call else {
            return Ok(None);
        };
        self.core.progress_messages();
        let Some(end) = call.look()? else {
            return Ok(None);
        };
        let joined = call.result(&end);
        self.call = None;
        Ok(Some(self.group(joined?.immediate.get())))
    }

    /// Waits until the group has formed.
    pub(super) fn wait(mut self) -> Result<Group<'a>> {
        let Some(call) = self.call.take() else {
            return Err(Error::WouldBlock);
        };
        let joined = call.finish()?;
        Ok(self.group(joined.immediate.get()))
    }

    fn group(&self, number: u64) -> Group<'a> {
        Group {
            core: self.core,
            number,
            membership: self.membership,
        }
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            call.detach();
        }
    }
}

impl Membership {
    /// The command of a process that joins, and what is said if it fails.
    pub(super) fn command(&self, timeout: Duration) -> Result<(JoinGroupCommand, GroupError)> {
        let mut command = JoinGroupCommand::command();
        command.header.remote_node = self.home.0 .0.into();
        command.header.remote_port = self.home.1 .0.into();
        command.name = self.name.into();
        command.key = self.key.into();
        command.size = self.size.into();
        command.rank = self.rank.into();
        command.timeout_ms = milliseconds(timeout).into();
        // The NIC would take it for a malformed command, and stop the queue.
        if self.size > MAX_MEMBERS || self.rank >= self.size {
            let message = "a group has 1 to 4096 members, and their ranks are below its size";
            return Err(Error::BadCollective(message));
        }
        Ok((command, GroupError::new(GroupOperation::Join, self.name)))
    }
}

impl<'a> Group<'a> {
    /// Begins to join a group: as [`Group::join`], but does not wait until it has formed.
    ///
    /// # Errors
    /// [`Error::WouldBlock`]: there is no room for the command now. Those of [`Group::join`]
    pub fn begin_join(
        endpoint: &'a Endpoint,
        membership: &Membership,
        timeout: Duration,
    ) -> Result<Joining<'a>> {
        let core = endpoint.core();
        let (command, what) = membership.command(timeout)?;
        let key = core.try_command(command)?.ok_or(Error::WouldBlock)?;
        Ok(Joining::new(core, Call::new(core, key, what), *membership))
    }
}
