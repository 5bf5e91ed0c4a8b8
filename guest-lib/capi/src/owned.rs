//! Requests that own what they borrow from.
//!
//! In Rust a request borrows its endpoint and its memory. In C it is a handle of its own, which keeps
//! both. Other objects do the same with the crate `self_cell`; it has no way to wait for several of
//! them at once ([`wait_any`]), which takes requests that stand side by side.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use qnic::message::{Completion, Request};
use qnic::Endpoint;

use crate::border::Out;
use crate::failure::{Failure, Result};
use crate::memory::Local;

/// What requests borrow from.
pub(crate) struct Base {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Memory that the NIC reads or writes.
    pub(crate) locals: Vec<Local>,
    /// The remote word of an atomic operation.
    pub(crate) word: Option<Box<dyn Any + Send + Sync>>,
}

impl Base {
    /// Of an endpoint alone.
    pub(crate) fn new(endpoint: &Arc<Endpoint>) -> Self {
        Base {
            endpoint: endpoint.clone(),
            locals: Vec::new(),
            word: None,
        }
    }

    /// With memory of it, if it has any bytes.
    pub(crate) fn with(
        endpoint: &Arc<Endpoint>,
        memory: Out<c_void>,
        length: usize,
    ) -> Result<Self> {
        let mut base = Self::new(endpoint);
        if length > 0 {
            let local = Local::new(endpoint, memory.address(), length)?;
            base.locals.push(local);
        }
        Ok(base)
    }
}

/// A request, and what it borrows from.
///
/// # Invariants
/// `request` borrows from `_base` and from nothing else, and is dropped first: it stands in front.
pub(crate) struct Owned {
    /// `None` only while [`gathered`] runs.
    request: Option<Request<'static>>,
    _base: Arc<Base>,
}

impl Owned {
    /// Begins a request.
    pub(crate) fn new(
        base: Base,
        begin: impl for<'a> FnOnce(&'a Base) -> Result<Request<'a>>,
    ) -> Result<Self> {
        let base = Arc::new(base);
        let request = begin(&base)?;
        // SAFETY: it borrows from `base` alone, as `begin` knows no other lifetime. `base` stays where
        // it is, does not change, and is dropped behind the request. Nothing hands the request out:
        // `with` gives it any lifetime, so that nothing of it can be kept.
        let request = unsafe { std::mem::transmute::<Request<'_>, Request<'static>>(request) };
        let request = Some(request);
        let _base = base;
        Ok(Owned { request, _base })
    }

    /// Uses the request.
    pub(crate) fn with<R>(
        &mut self,
        work: impl for<'a> FnOnce(&mut Request<'a>) -> qnic::Result<R>,
    ) -> Result<R> {
        match &mut self.request {
            Some(request) => Ok(work(request)?),
            // A wait for several has panicked.
            None => Err(Failure::handle(false)),
        }
    }
}

/// Puts requests side by side, uses them, and puts each back to its base. `work` keeps their order.
fn gathered<R>(
    all: &mut [MutexGuard<'_, Owned>],
    work: impl for<'a> FnOnce(&mut [Request<'a>]) -> qnic::Result<R>,
) -> Result<R> {
    let mut requests = Vec::with_capacity(all.len());
    for one in all.iter_mut() {
        let taken = one.request.take().ok_or_else(|| Failure::handle(false));
        match taken {
            Ok(request) => requests.push(request),
            Err(failure) => {
                give_back(all, requests);
                return Err(failure);
            }
        }
    }
    let outcome = work(&mut requests);
    give_back(all, requests);
    Ok(outcome?)
}

fn give_back(all: &mut [MutexGuard<'_, Owned>], requests: Vec<Request<'static>>) {
    for (one, request) in all.iter_mut().zip(requests) {
        one.request = Some(request);
    }
}

/// Waits until one of several requests has ended; `None` if there are none.
pub(crate) fn wait_any(
    all: &mut [MutexGuard<'_, Owned>],
    timeout: Option<Duration>,
) -> Result<Option<usize>> {
    gathered(all, |requests| qnic::message::wait_any(requests, timeout))
}

/// Waits until all of several requests have ended.
pub(crate) fn wait_all(
    all: &mut [MutexGuard<'_, Owned>],
    timeout: Option<Duration>,
) -> Result<Vec<Completion>> {
    gathered(all, |requests| qnic::message::wait_all(requests, timeout))
}
