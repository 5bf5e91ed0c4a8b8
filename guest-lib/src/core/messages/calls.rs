//! Calls and multicasts of groups that are under way: as many of each as the NIC takes, and others wait
//! for a place (Q14).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use qnic_abi::collective::{CollectiveCommand, COLLECTIVES};
use qnic_abi::multicast::MulticastCommand;

use super::counted::{CallsOf, Counted};
use super::guard::Guard;
use super::RequestKey;
use crate::core::quiet::Urgency;
use crate::core::Core;
use crate::error::Result;

/// How many operations of groups have not ended.
#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<CallsOf, u32>);

impl Calls {
    fn of(&self, calls: CallsOf) -> u32 {
        self.0.get(&calls).copied().unwrap_or(0)
    }

    fn begun(&mut self, calls: CallsOf) {
        *self.0.entry(calls).or_default() += 1;
    }

    /// One of them has ended.
    pub(super) fn ended(&mut self, calls: CallsOf) {
        let count = self.0.remove(&calls).unwrap_or(0);
        if count > 1 {
            self.0.insert(calls, count - 1);
        }
    }
}

impl Core {
    /// Posts a call of a group. Waits while [`COLLECTIVES`] of the group are under way, but no longer
    /// than the call may take. Then the NIC refuses the call, which ends the group.
    ///
    /// # Errors
    /// As [`Core::post_send`]
    pub(crate) fn post_call(&self, mut command: CollectiveCommand) -> Result<RequestKey> {
        let calls = (command.group.get(), command.header.opcode);
        let limit = Duration::from_millis(command.timeout_ms.get().into());
        let until = self.now() + limit;
        let mut begin = |most: u32| {
            let mut guard = Guard::progress(self)?;
            let state = &mut *guard.state;
            if state.calls.of(calls) < most {
                let left = until.saturating_duration_since(self.now());
                command.timeout_ms = (left.as_millis().max(1) as u32).into();
                if let Some(key) = state.begin(self, command)? {
                    state.calls.begun(calls);
                    state.requests[key].counts = Counted::Call(calls);
                    return Ok(Some(key));
                }
            }
            self.check_running().map(|()| None)
        };
        match self.wait_until(until, || begin(COLLECTIVES))? {
            Some(key) => Ok(key),
            None => self.wait_for(None, || begin(u32::MAX)),
        }
    }

    /// Posts a call of a group if there is a place for it.
    ///
    /// # Errors
    /// As [`Core::post_command`]
    pub(crate) fn try_call(&self, command: CollectiveCommand) -> Result<Option<RequestKey>> {
        let calls = (command.group.get(), command.header.opcode);
        let mut guard = Guard::progress(self)?;
        let state = &mut *guard.state;
        if state.calls.of(calls) >= COLLECTIVES {
            return self.check_running().map(|()| None);
        }
        let Some(key) = state.begin(self, command)? else {
            return self.check_running().map(|()| None);
        };
        state.calls.begun(calls);
        state.requests[key].counts = Counted::Call(calls);
        Ok(Some(key))
    }

    /// Posts a multicast. Waits while [`COLLECTIVES`] of the group are under way, until the deadline.
    ///
    /// # Errors
    /// [`Error::TimedOut`](crate::Error::TimedOut), and as [`Core::post_command`]
    pub(crate) fn post_multicast(
        &self,
        command: MulticastCommand,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<RequestKey> {
        let calls = (command.group.get(), command.header.opcode);
        self.post_when_room(deadline, |state| {
            if state.calls.of(calls) >= COLLECTIVES {
                return Ok(None);
            }
            let key = state.begin_with(self, command, payload, Urgency::Usual)?;
            if let Some(key) = key {
                state.calls.begun(calls);
                state.requests[key].counts = Counted::Call(calls);
            }
            Ok(key)
        })
    }
}
