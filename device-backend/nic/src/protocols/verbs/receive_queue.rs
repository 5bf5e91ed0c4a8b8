//! Receives that a program has posted: to the receive queue of a queue pair, or to one that several
//! share.
//!
//! A receive is copied and taken out of its ring when a message begins; its queue pair keeps the copy
//! until the completion.

use qnic_abi::verbs::requests::{CreateSharedReceiveQueue, ModifySharedReceiveQueue};
use qnic_abi::verbs::{Event, Outcome, MAX_SGES};
use qnic_abi::{Status, VniId};

use super::entry::{receive_bytes, Extents, Receive};
use super::ring::{RingMemory, Side};
use super::Context;
use crate::core::Pending;
use crate::env::{Host, HostMemory};

/// A receive, and why nothing can be received by it.
pub(super) type Taken = (Receive, Result<(), Outcome>);

/// A ring of receives.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    ring: RingMemory,
    /// Most pieces of a receive.
    sges: usize,
    /// Protection domain of the keys of its receives.
    domain: u32,
}

impl ReceiveQueue {
    pub(super) fn new(ring: RingMemory, sges: usize, domain: u32) -> Self {
        ReceiveQueue { ring, sges, domain }
    }

    /// Takes the oldest receive out. `None`: none is posted.
    pub(super) fn take<M: HostMemory>(&mut self, memory: &M) -> Option<Taken> {
        let own = self.ring.own();
        if self.ring.filled(memory, own) == 0 {
            return None;
        }
        let read = Receive::read(&self.ring, memory, own, self.sges, self.domain);
        let taken = match read {
            Ok(receive) => (receive, Ok(())),
            Err(outcome) => {
                let receive = Receive {
                    id: self.ring.identifier(memory, own),
                    extents: Extents::default(),
                    domain: self.domain,
                };
                (receive, Err(outcome))
            }
        };
        self.ring.publish(memory, self.ring.behind(own, 1));
        Some(taken)
    }

    /// Takes the oldest receive out: its identifier. `None`: none is posted.
    pub(super) fn pop_failed<M: HostMemory>(&mut self, memory: &M) -> Option<u64> {
        let own = self.ring.own();
        if self.ring.filled(memory, own) == 0 {
            return None;
        }
        let id = self.ring.identifier(memory, own);
        self.ring.publish(memory, self.ring.behind(own, 1));
        Some(id)
    }

    /// Receives that are posted.
    fn posted<M: HostMemory>(&self, memory: &M) -> u32 {
        self.ring.filled(memory, self.ring.own())
    }

    /// Forgets what was posted.
    pub(super) fn discard<M: HostMemory>(&mut self, memory: &M) {
        let producer = self.ring.other(memory);
        self.ring.publish(memory, producer);
    }
}

/// A receive queue that queue pairs share.
#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    queue: ReceiveQueue,
    token: u64,
    /// Zero, or how many receives there have to be: an event tells once that there are fewer.
    limit: u32,
}

impl SharedReceiveQueue {
    /// That of a request.
    ///
    /// # Errors
    /// Malformed, BadAddress.
    pub(super) fn new<M: HostMemory>(
        memory: &M,
        body: &CreateSharedReceiveQueue,
    ) -> Result<Self, Status> {
        let sges = usize::from(body.sges.get());
        if body.srq.get() == 0 || body.reserved.get() != 0 || sges > MAX_SGES {
            return Err(Status::Malformed);
        }
        let ring = RingMemory::new(memory, &body.ring, Side::Consumer, receive_bytes(sges))?;
        Ok(SharedReceiveQueue {
            queue: ReceiveQueue::new(ring, sges, body.domain.get()),
            token: body.token.get(),
            limit: body.limit.get(),
        })
    }

    /// Its token.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Has an event tell when fewer receives are left than that: at once, if there are.
    pub(super) fn modify<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        vni: VniId,
        body: &ModifySharedReceiveQueue,
    ) {
        self.limit = body.limit.get();
        self.tell(cx, vni);
    }

    /// Takes the oldest receive out. `None`: none is posted.
    pub(super) fn take<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) -> Option<Taken> {
        let taken = self.queue.take(cx.host.memory())?;
        self.tell(cx, vni);
        Some(taken)
    }

    fn tell<H: Host>(&mut self, cx: &mut Context<'_, H>, vni: VniId) {
        if self.limit != 0 && self.queue.posted(cx.host.memory()) < self.limit {
            self.limit = 0;
            let event = Event::LimitReached;
            cx.core.events.push(Pending::Verbs(vni, self.token, event));
        }
    }
}
