//! What reads, writes and atomic operations have in common.

use qnic::Port;

use crate::cntr::Cntr;
use crate::engine::Report;
use crate::errno::{Errno, Result, BAD_FLAGS, NO_CQ, TOO_LONG, UNSUPPORTED};
use crate::fence::{Deferred, Ticket};
use crate::info::offer::{INJECT_MAX, MESSAGE_MAX};
use crate::memory::Memory;
use crate::object;
use crate::pointers::{Context, Fid};
use crate::service::{Action, Brought, Form, Member, Operation, Running};
use crate::sys::{
    FidEp, ATOMIC, COMPLETION, DELIVERY_COMPLETE, FENCE, INJECT, INJECT_COMPLETE, MORE, READ,
    REMOTE_CQ_DATA, RMA, TRANSMIT_COMPLETE, WRITE,
};

use std::sync::Arc;

use super::messages::{is_told, Flags};
use super::{Binding, Ep};

/// Flags that these operations may have.
const FLAGS: u64 = COMPLETION
    | INJECT
    | INJECT_COMPLETE
    | TRANSMIT_COMPLETE
    | DELIVERY_COMPLETE
    | MORE
    | FENCE
    | REMOTE_CQ_DATA;

/// What an endpoint has that reaches the memory of others.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) service: Arc<crate::service::Service>,
    _member: Member,
    pub(super) counters: Counters,
}

/// Counters of operations on memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    /// Of this endpoint's operations.
    pub(super) reads: Option<Arc<Cntr>>,
    pub(super) writes: Option<Arc<Cntr>>,
    /// Of those of peers.
    pub(super) remote_reads: Option<Arc<Cntr>>,
    pub(super) remote_writes: Option<Arc<Cntr>>,
}

/// Memory of a peer, as calls name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Number of the peer.
    pub(super) peer: u64,
    pub(super) offset: u64,
    pub(super) key: u64,
}

/// An operation that a program calls for.
pub(super) struct Call {
    pub(super) action: Action,
    pub(super) place: Place,
    /// Bytes of the peer's memory.
    pub(super) length: usize,
    pub(super) data: Option<u64>,
    /// Bytes that it brings; of atomic operations they are copied.
    pub(super) brought: Brought,
    pub(super) result: Memory,
    pub(super) context: Context,
    pub(super) flags: Flags,
}

impl Remote {
    /// Lets peers reach an endpoint, and it them.
    pub(super) fn new(
        running: &Running,
        port: Port,
        reached: crate::service::Reached,
        counters: Counters,
    ) -> Self {
        let service = running.service.clone();
        let _member = service.join(port, reached);
        Remote {
            service,
            _member,
            counters,
        }
    }
}

impl Counters {
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Cntr>> {
        let remote = [&self.remote_reads, &self.remote_writes];
        [&self.reads, &self.writes]
            .into_iter()
            .chain(remote)
            .flatten()
    }
}

/// Begins an operation.
///
/// # Errors
/// [`UNSUPPORTED`]: the endpoint has no such capability. [`BAD_FLAGS`], [`NO_CQ`], [`TOO_LONG`]; those of
/// [`crate::service::Service::post`].
pub(super) fn begin(ep: Fid<FidEp>, call: Call) -> Result<usize> {
    let ep = object::state::<Ep, _>(ep)?;
    let running = ep.running()?;
    let remote = running.remote.as_ref().ok_or(UNSUPPORTED)?;
    let (counter, kind) = match call.action {
        Action::Read => (&remote.counters.reads, RMA | READ),
        Action::Write => (&remote.counters.writes, RMA | WRITE),
        Action::Atomic(Form::Base, ..) => (&remote.counters.writes, ATOMIC | WRITE),
        Action::Atomic(..) => (&remote.counters.reads, ATOMIC | READ),
    };
    let binding: &Binding = &running.tx;
    if binding.queue.is_none() && counter.is_none() {
        return Err(NO_CQ);
    }
    let (flags, told) = match call.flags {
        Flags::Default => (ep.tx_flags, is_told(binding, ep.tx_flags)),
        Flags::These(flags) => (flags, is_told(binding, flags)),
        Flags::Inject => (INJECT, false),
    };
    if flags & !FLAGS != 0 {
        return Err(BAD_FLAGS);
    }
    // A read brings nothing that could be copied.
    let is_copied = flags & INJECT != 0 && call.action != Action::Read;
    let most = if is_copied { INJECT_MAX } else { MESSAGE_MAX };
    if call.length > most {
        return Err(TOO_LONG);
    }
    let brought = match call.brought {
        Brought::Memory(memory) if is_copied => {
            let mut bytes = vec![0; memory.len()];
            memory.read(0, &mut bytes)?;
            Brought::Copied(bytes)
        }
        brought => brought,
    };
    let report = Report {
        context: call.context,
        flags: kind,
        told,
        queue: binding.queue.clone(),
        counter: counter.clone(),
        ticket: None,
    };
    let peer = call.place.peer;
    let operation = Operation {
        action: call.action,
        to: running.engine.address_of(call.place.peer)?,
        from: running.engine.address().peer(),
        key: call.place.key,
        offset: call.place.offset,
        length: call.length,
        data: call.data,
        brought,
        result: call.result,
        report,
    };
    let access = Access {
        service: remote.service.clone(),
        operation,
    };
    ep.defer(running, peer, flags, access)?;
    Ok(0)
}

/// An operation that may have to wait for earlier ones.
struct Access {
    service: Arc<crate::service::Service>,
    operation: Operation,
}

impl Deferred for Access {
    fn begin(&self, ticket: Option<Arc<Ticket>>) -> Result<()> {
        let mut operation = self.operation.clone();
        operation.report.ticket = ticket;
        self.service.post(operation)
    }

    fn fail(&self, Errno(number): Errno) {
        self.operation.report.fail(None, (number, 0));
    }

    /// What an inject brings is copied.
    fn is_inject(&self) -> bool {
        false
    }
}
