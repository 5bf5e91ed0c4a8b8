//! Receives and probes that are posted and have not ended: the NIC refuses more than some number of each
//! of a process, so the library posts no more (Q12).
//!
//! Receives match in the order in which they are posted, and a probe finds what no posted receive takes.
//! So none is kept in the library while later ones go on: the call itself waits, or has not begun.

use qnic_abi::context::CONTEXTS;
use qnic_abi::message::{PROBES, RECEIVES};

use super::outbox::Place;
use super::{RequestKey, Requesting, RoomWait};
use crate::core::quiet::Urgency;
use crate::core::Core;
use crate::error::Result;

/// The operations of a group that are counted together: the NIC's name for the group, and their opcode.
pub(super) type CallsOf = (u64, u8);

/// What a request counts as until it has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Counted {
    /// It is not counted.
    #[default]
    Nowhere,
    /// A Send that has taken a place at the NIC, or will.
    Send(Place),
    Receive,
    /// A probe that waits.
    Probe,
    /// A call of a group.
    Call(CallsOf),
}

/// How many have not ended.
#[derive(Debug, Default)]
pub(super) struct Posted {
    pub(super) receives: usize,
    pub(super) probes: usize,
}

/// Receives without a context: there are places for all contexts beside these.
const MOST_RECEIVES: usize = RECEIVES as usize - CONTEXTS;

impl Core {
    /// Posts a receive.
    ///
    /// # Errors
    /// As of [`Core::post_send`]
    pub(crate) fn post_receive(
        &self,
        command: impl Requesting,
        payload: &[u8],
        room_wait: RoomWait,
        urgency: Urgency,
    ) -> Result<RequestKey> {
        self.post_when_room(room_wait.deadline(), |state| {
            if state.posted.receives >= MOST_RECEIVES {
                return room_wait.no_room();
            }
            let key = state.begin_with(self, command, payload, urgency)?;
            if let Some(key) = key {
                state.posted.receives += 1;
                state.requests[key].counts = Counted::Receive;
            }
            Ok(key)
        })
    }

    /// Posts a probe that waits for a message.
    ///
    /// # Errors
    /// As of [`Core::post_send`]
    pub(crate) fn post_probe(
        &self,
        command: impl Requesting,
        room_wait: RoomWait,
    ) -> Result<RequestKey> {
        self.post_when_room(room_wait.deadline(), |state| {
            if state.posted.probes >= PROBES as usize {
                return room_wait.no_room();
            }
            let key = state.begin(self, command)?;
            if let Some(key) = key {
                state.posted.probes += 1;
                state.requests[key].counts = Counted::Probe;
            }
            Ok(key)
        })
    }
}
