//! Calls of groups that are under way: as many as the NIC takes, and others wait for a place (Q14).

use std::collections::BTreeMap;
use std::time::Duration;

use qnic_abi::collective::{CollectiveCommand, COLLECTIVES};

use super::RequestKey;
use crate::core::Core;
use crate::error::Result;

/// How many calls have not ended, by the NIC's name for their group.
#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<u64, u32>);

impl Calls {
    fn of(&self, group: u64) -> u32 {
        self.0.get(&group).copied().unwrap_or(0)
    }

    fn begun(&mut self, group: u64) {
        *self.0.entry(group).or_default() += 1;
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, group: u64) {
        let calls = self.0.remove(&group).unwrap_or(0);
        if calls > 1 {
            self.0.insert(group, calls - 1);
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
        let group = command.group.get();
        let limit = Duration::from_millis(command.timeout_ms.get().into());
        let until = self.now() + limit;
        let mut begin = |most: u32| {
            let mut guard = self.messages.progress(self)?;
            let state = &mut *guard.state;
            if state.calls.of(group) < most {
                let left = until.saturating_duration_since(self.now());
                command.timeout_ms = (left.as_millis().max(1) as u32).into();
                if let Some(key) = state.begin(self, command)? {
                    state.calls.begun(group);
                    state.requests[key].group = Some(group);
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
}
