//! Messages whose operation stands in a context ([`crate::core::contexts`]): their requests are
//! those of all messages, a doorbell ends them instead of a completion.

use std::sync::atomic::Ordering;

use qnic_abi::command::INLINE_CAPACITY;
use qnic_abi::host_area::CompletionEntry;
use qnic_abi::Status;

use super::counted::Counted;
use super::outbox::Held;
use super::{Guard, RequestKey, State};
use crate::core::contexts::{any_ended, Contents, Direction};
use crate::core::pool::Run;
use crate::core::{lock, Core};
use crate::error::{Error, Result};

impl Guard<'_> {
    /// Hands the ends of contexts to their requests.
    pub(super) fn sweep(&mut self, core: &Core) {
        let (state, doorbells) = (&mut *self.state, &core.pages());
        if !any_ended(doorbells, state.contexts.held()) {
            return;
        }
        // Relaxed: ordered by the release stores of the doorbells behind it, and by the lock. In
        // this order a thread that finds no end finds the change, and waits for the lock.
        self.core.messages.changes.fetch_add(1, Ordering::Relaxed);
        let mut left = state.contexts.under_way();
        while let Some(ended) = state.contexts.sweep(doorbells, &mut left) {
            if let Some(pages) = ended.left {
                state.pool.give_back(pages);
            }
            match (ended.request, ended.entry) {
                (Some(key), entry) => {
                    if let Some(request) = state.requests.get_mut(key) {
                        request.context = None;
                    }
                    // What waits has asked for a notice: a NIC that gives none breaks the rules.
                    let entry = entry.unwrap_or_else(|| CompletionEntry {
                        status: Status::Malformed.code().into(),
                        ..CompletionEntry::default()
                    });
                    state.end(key, &entry);
                }
                (None, Some(entry)) => {
                    let failed = entry.status.get() != Status::Ok.code();
                    state.failed_sends += u64::from(failed);
                }
                (None, None) => {}
            }
        }
    }
}

impl State {
    /// Frees all contexts after a reset of the queue.
    pub(super) fn reset_contexts(&mut self, core: &Core) {
        let State { contexts, pool, .. } = self;
        contexts.reset(&core.pages(), |pages| pool.give_back(pages));
    }

    /// Puts an operation into a context. Returns `None` if the command queue has no room.
    fn post_context(
        &mut self,
        core: &Core,
        direction: Direction,
        contents: &Contents,
        key: Option<RequestKey>,
    ) -> Result<Option<()>> {
        let doorbells = &core.pages();
        let Some(context) = self.contexts.take(doorbells, direction, key) else {
            return Err(Error::NoContext {
                direction: match direction {
                    Direction::Send => "Send",
                    Direction::Receive => "Receive",
                },
                contexts: self.contexts.count(),
            });
        };
        context.fill(&core.window(), contents);
        let descriptor = context.command(contents);
        let sends = direction == Direction::Send;
        let to = sends.then(|| self.outbox.of(&descriptor.header));
        let posted = match to {
            Some(destination) if self.outbox.waits(destination) => Ok(false),
            _ => core.post(&descriptor, &[]),
        };
        match (posted, to) {
            (Ok(true), _) => self.contexts.note_posted(context),
            // It stands behind the Sends before it.
            (Ok(false), Some(destination)) => {
                let held = Held {
                    descriptor,
                    payload: [0; INLINE_CAPACITY],
                    context: Some(context),
                };
                self.outbox.hold(destination, held);
            }
            (other, _) => {
                self.contexts.put_back(doorbells, context);
                return other.map(|_| None);
            }
        }
        if let Some(request) = key.and_then(|key| self.requests.get_mut(key)) {
            request.context = Some(context);
        }
        Ok(Some(()))
    }
}

impl Core {
    /// Begins the operation of a context. Receives wait only while the command queue is full;
    /// Sends do not wait.
    ///
    /// # Errors
    /// [`Error::NoContext`]; [`Error::DeviceGone`], [`Error::QueueFailed`]
    pub(crate) fn post_context(
        &self,
        direction: Direction,
        contents: &Contents,
    ) -> Result<RequestKey> {
        self.post_when_room(None, |state| {
            let key = state.insert(Counted::Nowhere);
            let posted = state.post_context(self, direction, contents, Some(key));
            if !matches!(posted, Ok(Some(()))) {
                state.requests.remove(key);
            }
            posted.map(|posted| posted.map(|()| key))
        })
    }

    /// Begins a Send whose end nothing waits for: [`Core::failed_sends`] counts its failure.
    ///
    /// # Errors
    /// Those of [`Core::post_context`]
    pub(crate) fn post_unnoticed(&self, contents: &Contents) -> Result<()> {
        self.post_when_room(None, |state| {
            state.post_context(self, Direction::Send, contents, None)
        })
    }

    /// Sends of contexts that have failed while nothing waited for them, since registration.
    pub(crate) fn failed_sends(&self) -> u64 {
        self.progress_messages();
        lock(&self.messages.state).failed_sends
    }

    /// Takes a run of pages of the pool. Otherwise returns how many are free.
    pub(crate) fn take_pages(&self, pages: usize) -> std::result::Result<Run, usize> {
        self.progress_messages();
        let mut state = lock(&self.messages.state);
        let free = state.pool.free();
        state.pool.take(pages).ok_or(free)
    }

    /// Pages of the pool that are free.
    pub(crate) fn free_pages(&self) -> usize {
        self.progress_messages();
        lock(&self.messages.state).pool.free()
    }

    /// Gives pages back to the pool; the NIC has no use for them.
    pub(crate) fn give_pages_back(&self, pages: Run) {
        lock(&self.messages.state).pool.give_back(pages);
    }

    /// Gives the pages of a Send back to the pool, once it has ended.
    pub(crate) fn leave_pages(&self, key: RequestKey, pages: Run) {
        let mut state = lock(&self.messages.state);
        match state.requests.get(key).and_then(|it| it.context) {
            Some(context) => state.contexts.leave(context, pages),
            None => state.pool.give_back(pages),
        }
    }
}
