//! Completion queues: the NIC fills their rings, and tells the driver once when it has been asked to
//! ([`qnic_abi::verbs::commands`]).

use qnic_abi::verbs::rings::WorkCompletion;
use qnic_abi::verbs::{Event, Outcome};
use qnic_abi::VniId;
use zerocopy::IntoBytes;

use super::ring::RingMemory;
use super::Context;
use crate::core::Pending;
use crate::env::Host;

/// A completion queue takes nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overrun;

/// Which completion its process is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Armed {
    /// The next one.
    Any,
    /// The next one that is solicited, or of work that has failed.
    Solicited,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct CompletionQueue {
    ring: RingMemory,
    token: u64,
    armed: Option<Armed>,
    overrun: bool,
}

impl CompletionQueue {
    pub(super) fn new(ring: RingMemory, token: u64) -> Self {
        CompletionQueue {
            ring,
            token,
            armed: None,
            overrun: false,
        }
    }

    /// Its token.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Adds a completion. `solicited`: a program waits for it.
    ///
    /// # Errors
    /// [`Overrun`] if there is no room now, or was none before: an event has said so.
    pub(super) fn push<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        completion: &WorkCompletion,
        solicited: bool,
    ) -> Result<(), Overrun> {
        let memory = cx.host.memory();
        if self.overrun {
            return Err(Overrun);
        }
        if !self.ring.has_room(memory) {
            self.overrun = true;
            let event = Event::CompletionQueueError;
            cx.core.events.push(Pending::Verbs(vni, self.token, event));
            return Err(Overrun);
        }
        let mut words = [0u64; size_of::<WorkCompletion>() / 8];
        words.as_mut_bytes().copy_from_slice(completion.as_bytes());
        self.ring.push(memory, &words.map(u64::from_le));
        let failed = completion.status.get() != Outcome::Success as u32;
        if self.armed == Some(Armed::Any) || solicited || failed {
            self.fire(cx, vni);
        }
        Ok(())
    }

    /// Arms it: an event tells of the next completion, or at once if one was added since the index
    /// `seen` was loaded. A completion of that time counts as solicited.
    pub(super) fn arm<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        armed: Armed,
        seen: u32,
    ) {
        self.armed = match (self.armed, armed) {
            (Some(Armed::Any), _) => Some(Armed::Any),
            (_, armed) => Some(armed),
        };
        if self.ring.own() != self.ring.behind(seen, 0) {
            self.fire(cx, vni);
        }
    }

    fn fire<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        if self.armed.take().is_some() {
            let event = Event::Completion;
            cx.core.events.push(Pending::Verbs(vni, self.token, event));
        }
    }
}
