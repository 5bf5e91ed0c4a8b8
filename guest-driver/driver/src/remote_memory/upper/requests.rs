//! Requests of the user of a volume: the buffers of each, until it has ended.

use alloc::vec::Vec;

use super::page::{clear, copy, Page};
use crate::datagram::{Buffer, Handle};
use crate::platform::{table, NoMemory, Platform};
use crate::remote_memory::{Completion, Done, Failure};

/// How a read ends when its buffer is back.
enum Ending<P: Platform> {
    Failed(Failure),
    Zeros,
    /// The page has come in another buffer.
    Elsewhere(Buffer<P>),
}

/// One request.
struct Request<P: Platform> {
    token: u64,
    /// Steered buffer of a read that may still be posted.
    handle: Option<Handle>,
    /// The steered buffer, after another packet has taken it.
    wasted: Option<Buffer<P>>,
    ending: Option<Ending<P>>,
}

/// Work to be done without the lock.
pub(super) enum Action<P: Platform> {
    /// Tell the user.
    Tell {
        token: u64,
        result: Result<(), Failure>,
        page: Buffer<P>,
        /// A buffer of the port that the page was in.
        spare: Option<Buffer<P>>,
    },
    /// Take a steered buffer back.
    Withdraw(Handle),
    /// Let a buffer return to the port.
    Free(Buffer<P>),
}

/// All requests; the index of each is its token at the state machine.
pub(super) struct Requests<P: Platform> {
    all: Vec<Option<Request<P>>>,
    free: Vec<u16>,
    pub(super) pages_copied: u64,
}

impl<P: Platform> Requests<P> {
    /// No requests, with room for so many.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(count: usize) -> Result<Self, NoMemory> {
        let mut free = Vec::new();
        free.try_reserve_exact(count)?;
        free.extend((0..count as u16).rev());
        Ok(Requests {
            all: table(count)?,
            free,
            pages_copied: 0,
        })
    }

    /// Begins a request, with the steered buffer of a read.
    pub(super) fn begin(&mut self, token: u64, handle: Option<Handle>) -> Option<u64> {
        let index = self.free.pop()?;
        self.all[usize::from(index)] = Some(Request {
            token,
            handle,
            wasted: None,
            ending: None,
        });
        Some(index.into())
    }

    /// Returns true if one can begin.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Forgets a request that was not taken.
    pub(super) fn forget(&mut self, index: u64) {
        if self.take(index).is_some() {
            self.free.push(index as u16);
        }
    }

    fn take(&mut self, index: u64) -> Option<Request<P>> {
        self.all.get_mut(index as usize)?.take()
    }

    /// The state machine has ended a request.
    pub(super) fn complete(
        &mut self,
        completion: Completion<Option<Page<P>>>,
    ) -> Option<Action<P>> {
        let Completion {
            token: index,
            result,
            page,
        } = completion;
        let page = page.flatten();
        let own = match page {
            Some(page) if page.steered || result == Ok(Done::Written) || result.is_err() => {
                Ok(page.buffer)
            }
            other => Err(other),
        };
        match own {
            Ok(page) => self.end(index, result.map(|_| ()), page, None),
            Err(elsewhere) => {
                let ending = match (result, elsewhere) {
                    (Err(failure), _) => Ending::Failed(failure),
                    (Ok(_), Some(page)) => Ending::Elsewhere(page.buffer),
                    (Ok(_), None) => Ending::Zeros,
                };
                self.end_when_back(index, ending)
            }
        }
    }

    /// A read was not taken by the state machine.
    pub(super) fn fail(&mut self, index: u64, failure: Failure) -> Option<Action<P>> {
        self.end_when_back(index, Ending::Failed(failure))
    }

    /// Ends a read when it has its buffer.
    fn end_when_back(&mut self, index: u64, ending: Ending<P>) -> Option<Action<P>> {
        let request = self.all.get_mut(index as usize)?.as_mut()?;
        request.ending = Some(ending);
        match request.wasted.take() {
            Some(own) => self.conclude(index, own),
            None => request.handle.map(Action::Withdraw),
        }
    }

    /// A steered buffer is back without the page that it was for. No work is due until
    /// its read ends.
    pub(super) fn buffer_is_back(
        &mut self,
        handle: Handle,
        buffer: Buffer<P>,
    ) -> Option<Action<P>> {
        let waits = |request: &Option<Request<P>>| {
            let handle_of = request.as_ref().and_then(|request| request.handle);
            handle_of == Some(handle)
        };
        let Some(index) = self.all.iter().position(waits) else {
            return Some(Action::Free(buffer));
        };
        match &mut self.all[index] {
            Some(request) if request.ending.is_none() => {
                request.wasted = Some(buffer);
                None
            }
            _ => self.conclude(index as u64, buffer),
        }
    }

    fn conclude(&mut self, index: u64, own: Buffer<P>) -> Option<Action<P>> {
        let request = self.all.get_mut(index as usize)?.as_mut()?;
        match request.ending.take()? {
            Ending::Failed(failure) => self.end(index, Err(failure), own, None),
            Ending::Zeros => {
                clear(own.memory());
                self.end(index, Ok(()), own, None)
            }
            Ending::Elsewhere(spare) => {
                copy(spare.memory(), own.memory());
                self.pages_copied += 1;
                self.end(index, Ok(()), own, Some(spare))
            }
        }
    }

    fn end(
        &mut self,
        index: u64,
        result: Result<(), Failure>,
        page: Buffer<P>,
        spare: Option<Buffer<P>>,
    ) -> Option<Action<P>> {
        let request = self.take(index)?;
        self.free.push(index as u16);
        Some(Action::Tell {
            token: request.token,
            result,
            page,
            spare,
        })
    }
}
