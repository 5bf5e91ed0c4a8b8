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
    /// Reads whose buffer is being posted: its handle is not known yet, and the NIC may have refused it
    /// already. Such buffers wait here.
    posting: u16,
    early: Vec<(Handle, Buffer<P>)>,
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
        let mut early = Vec::new();
        early.try_reserve_exact(count)?;
        Ok(Requests {
            all: table(count)?,
            free,
            posting: 0,
            early,
            pages_copied: 0,
        })
    }

    /// Begins a request.
    pub(super) fn begin(&mut self, token: u64) -> Option<u64> {
        let index = self.free.pop()?;
        self.all[usize::from(index)] = Some(Request {
            token,
            handle: None,
            wasted: None,
            ending: None,
        });
        Some(index.into())
    }

    /// Begins a read, whose buffer is posted next: [`Requests::posted`] or [`Requests::not_posted`]
    /// follows.
    pub(super) fn begin_read(&mut self, token: u64) -> Option<u64> {
        let index = self.begin(token)?;
        self.posting += 1;
        Some(index)
    }

    /// The buffer of a read is posted. Returns the handle for its page to be sent to; zero if the buffer is
    /// back already.
    pub(super) fn posted(&mut self, index: u64, handle: Handle) -> u64 {
        self.posting = self.posting.saturating_sub(1);
        let early = self.early.iter().position(|(early, _)| *early == handle);
        let wasted = early.map(|early| self.early.swap_remove(early).1);
        let target = if wasted.is_some() { 0 } else { handle.0 };
        if let Some(Some(request)) = self.all.get_mut(index as usize) {
            request.handle = Some(handle);
            request.wasted = wasted;
        }
        target
    }

    /// The buffer of a read could not be posted.
    pub(super) fn not_posted(&mut self, index: u64) {
        self.posting = self.posting.saturating_sub(1);
        self.forget(index);
    }

    /// Returns true if a read that has not ended waits for this buffer.
    pub(super) fn waits_for(&self, handle: Handle) -> bool {
        let mut requests = self.all.iter().flatten();
        requests.any(|it| it.handle == Some(handle) && it.ending.is_none())
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
            if self.posting > 0 && self.early.len() < self.early.capacity() {
                self.early.push((handle, buffer));
                return None;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fake;

    /// The NIC may refuse a buffer before its request knows its handle. The request has it all the same, names
    /// no target, and ends.
    #[test]
    fn a_buffer_that_is_back_before_its_request_knows_it_is_not_lost() {
        let platform = Fake::new();
        let buffer = || Buffer::new(platform.new_page().unwrap());
        let mut requests = Requests::<Fake>::new(2).unwrap();
        let (handle, other) = (Handle(7), Handle(8));
        let index = requests.begin_read(1).unwrap();
        assert!(requests.buffer_is_back(handle, buffer()).is_none());
        assert_eq!(requests.posted(index, handle), 0);
        assert!(requests.waits_for(handle));
        let second = requests.begin_read(2).unwrap();
        assert_eq!(requests.posted(second, other), other.0);
        assert!(requests.begin_read(3).is_none());
        for (index, ends_at_once) in [(index, true), (second, false)] {
            let ended = requests.fail(index, Failure::TimedOut);
            let ended = match ends_at_once {
                true => ended,
                false => {
                    assert!(matches!(ended, Some(Action::Withdraw(it)) if it == other));
                    requests.buffer_is_back(other, buffer())
                }
            };
            assert!(matches!(ended, Some(Action::Tell { .. })));
        }
        let unknown = requests.buffer_is_back(handle, buffer());
        assert!(matches!(unknown, Some(Action::Free(_))));
        let third = requests.begin_read(4).unwrap();
        requests.not_posted(third);
        assert!(requests.begin_read(5).is_some() && requests.begin_read(6).is_some());
    }
}
