//! What a request does to registered memory, and what it tells at the target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use qnic::Port;

use super::atomics::{Datatype, Form, Operation};
use super::outgoing::GONE;
use super::wire::{Action, Request};
use crate::address::Peer;
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::{Cq, Event};
use crate::errno::{Errno, Result};
use crate::fence::Fences;
use crate::pointers::Context;
use crate::regions::{Region, Regions};
use crate::sys;

/// An endpoint that peers reach.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) incarnation: u32,
    pub(crate) av: Arc<Av>,
    /// Where data of writes are told.
    pub(crate) queue: Option<Arc<Cq>>,
    /// What counts peers' reads.
    pub(crate) reads: Option<Arc<Cntr>>,
    /// What counts peers' writes.
    pub(crate) writes: Option<Arc<Cntr>>,
    /// What waits for operations of the endpoint.
    pub(crate) fences: Arc<Fences>,
}

/// What requests work on.
pub(super) struct Served<'a> {
    pub(super) regions: &'a Regions,
    pub(super) endpoints: &'a Mutex<HashMap<Port, Arc<Reached>>>,
}

/// Does what a request asks for. Returns how it has ended, and the bytes of its reply.
pub(super) fn execute(
    served: &Served<'_>,
    peer: Peer,
    request: &Request,
    brought: &[u8],
) -> (Result<()>, Vec<u8>) {
    match perform(served, peer, request, brought) {
        Ok(bytes) => (Ok(()), bytes),
        Err(error) => (Err(error), Vec::new()),
    }
}

fn perform(served: &Served<'_>, peer: Peer, request: &Request, brought: &[u8]) -> Result<Vec<u8>> {
    let endpoints = served
        .endpoints
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let endpoint = endpoints.get(&request.to).cloned();
    drop(endpoints);
    let endpoint = endpoint.filter(|it| it.incarnation == request.incarnation);
    let endpoint = endpoint.ok_or(GONE)?;
    let region = served.regions.find(request.key)?;
    let range = (request.offset, request.length);
    let bytes = match request.action {
        Action::Read => region.with(range, sys::REMOTE_READ, |memory, at| {
            let mut bytes = vec![0; request.length];
            memory.read_registered(at, &mut bytes).map_err(|_| FAULT)?;
            Ok(bytes)
        })?,
        Action::Write => region.with(range, sys::REMOTE_WRITE, |memory, at| {
            memory.write_registered(at, brought).map_err(|_| FAULT)?;
            Ok(Vec::new())
        })?,
        Action::Atomic(form, operation, datatype) => {
            let old = change(&region, range, (form, operation, datatype), brought)?;
            match form {
                Form::Base => Vec::new(),
                Form::Fetch | Form::Compare => old,
            }
        }
    };
    if request.is_last {
        tell(&endpoint, &region, peer, request);
    }
    Ok(bytes)
}

/// Registered memory that is not there, or that the program itself may not write.
const FAULT: Errno = Errno(libc::EFAULT);

/// Held while memory is read and changed. Of the whole process: several domains may have registered the same memory.
static CHANGES: Mutex<()> = Mutex::new(());

/// Executes an atomic operation, and returns what was there.
fn change(
    region: &Region,
    range: (u64, usize),
    (form, operation, datatype): (Form, Operation, Datatype),
    brought: &[u8],
) -> Result<Vec<u8>> {
    let access = match form {
        Form::Base => sys::REMOTE_WRITE,
        _ if operation.is_read() => sys::REMOTE_READ,
        Form::Fetch | Form::Compare => sys::REMOTE_READ | sys::REMOTE_WRITE,
    };
    region.with(range, access, |memory, at| {
        let _change = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        let mut old = vec![0; range.1];
        memory.read_registered(at, &mut old).map_err(|_| FAULT)?;
        if operation.is_read() {
            return Ok(old);
        }
        let (operand, compared) = brought.split_at(range.1.min(brought.len()));
        let new = operation.apply(datatype, &old, operand, compared);
        let set = memory.set_registered(at, &new, datatype.size());
        set.map_err(|_| FAULT)?;
        Ok(old)
    })
}

/// Counts an operation that has ended, and tells the data that came with it.
fn tell(endpoint: &Reached, region: &Region, peer: Peer, request: &Request) {
    let (counter, writes) = match request.action {
        Action::Read | Action::Atomic(Form::Fetch | Form::Compare, ..) => (&endpoint.reads, false),
        Action::Write | Action::Atomic(Form::Base, ..) => (&endpoint.writes, true),
    };
    let reads_only = match request.action {
        Action::Atomic(_, operation, _) => operation.is_read(),
        Action::Read | Action::Write => !writes,
    };
    if let Some((data, queue)) = request.data.zip(endpoint.queue.as_ref()) {
        let kind = match request.action {
            Action::Atomic(..) => sys::ATOMIC,
            Action::Read | Action::Write => sys::RMA,
        };
        let flags = kind | sys::REMOTE_WRITE | sys::REMOTE_CQ_DATA;
        let mut event = Event::of(Context::NULL, flags);
        event.entry.data = data;
        event.entry.len = usize::try_from(request.total).unwrap_or(usize::MAX);
        // Its service has sent the request, from a port of its own.
        let from = Peer {
            node: peer.node,
            port: request.from,
            incarnation: request.source,
        };
        event.source = endpoint.av.number(from);
        queue.push(event);
    }
    if !reads_only {
        region.count();
    }
    if let Some(counter) = counter {
        counter.count(false);
    }
}
