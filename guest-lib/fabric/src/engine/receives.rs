//! Receives of one message.

use qnic::message::{Completion, MultiReceive, Pattern, Request, Source, Tag};
use qnic::Part;

use super::long::Pull;
use super::mark::{Follows, Mark};
use super::{lock, Engine, Iovs, Operation, Operations, Peer, Process, Report, Running};
use crate::arena::Bounce;
use crate::cq::Event;
use crate::errno::{Errno, Result};
use crate::info::offer::WHOLE_MAX;
use crate::pointers::Context;
use crate::sys::{self, FI_ETRUNC};

/// A receive of the program that is under way.
struct Receive<'r, 'a> {
    request: Posted<'r, 'a>,
    context: Context,
    number: u64,
    cancelled: &'r mut bool,
}

enum Posted<'r, 'a> {
    One(&'r mut Request<'a>),
    Many(&'r mut MultiReceive<'a>),
}

impl<'r, 'a> Receive<'r, 'a> {
    fn of(running: &'r mut Running<'a>) -> Option<Self> {
        let (request, report, number, cancelled) = match running {
            Running::Operation(it) if it.room.is_some() => {
                let request = Posted::One(&mut it.request);
                (request, &it.report, it.number, &mut it.cancelled)
            }
            Running::Many(it) => {
                let request = Posted::Many(&mut it.request);
                (request, &it.report, it.number, &mut it.cancelled)
            }
            _ => return None,
        };
        Some(Receive {
            request,
            context: report.context,
            number,
            cancelled,
        })
    }
}

impl Engine {
    /// Posts a receive, from a sender or from any, with a tag and bits of it to ignore, or without.
    ///
    /// # Errors
    /// Those of [`Engine::send`]
    pub(crate) fn receive(
        &self,
        from: Option<u64>,
        tag: Option<(u64, u64)>,
        room: Iovs,
        report: Report,
    ) -> Result<()> {
        let pattern = self.pattern(from, tag)?;
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            self.begin_receive(own, operations, room, report, |_, part| {
                Ok(own.endpoint.receive(&pattern, part).quietly().post()?)
            })
        })
    }

    /// Begins a receive into bounce memory, which `post` posts once there is some.
    ///
    /// # Errors
    /// Those of `post`; no bounce memory.
    pub(super) fn begin_receive<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        room: Iovs,
        report: Report,
        post: impl FnOnce(&mut Operations<'a>, Part<'a>) -> Result<Request<'a>>,
    ) -> Result<()> {
        // No message of this provider, and no first piece of one, is longer. Of others, so much has come.
        let length = room.len().min(WHOLE_MAX);
        let bounce = own.arena.take(&own.endpoint, length)?;
        let part = own.arena.part(&bounce, length);
        match part.and_then(|part| post(operations, part)) {
            Ok(request) => {
                let operation = Operation {
                    request,
                    bounce: Some(bounce),
                    room: Some(room),
                    report,
                    number: operations.next_number(),
                    cancelled: false,
                    answer: None,
                };
                self.begin_operation(operations, operation);
                Ok(())
            }
            Err(error) => {
                own.arena.give_back(bounce);
                Err(error)
            }
        }
    }

    /// Takes back the first receive with this context that has not ended, and was not taken back before. Its end comes as
    /// a completion. It costs a look at each operation that is under way.
    ///
    /// # Errors
    /// -FI_ENOENT: there is none.
    pub(crate) fn cancel(&self, context: Context) -> Result<()> {
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            // One that has ended and was not told of is none to take back.
            self.complete(own, operations);
            let receives = operations.running.values_mut().filter_map(Receive::of);
            let same = receives.filter(|it| it.context == context && !*it.cancelled);
            let first = same.min_by_key(|it| it.number).ok_or(Errno(libc::ENOENT))?;
            match first.request {
                Posted::One(request) => request.cancel()?,
                Posted::Many(request) => request.cancel()?,
            }
            *first.cancelled = true;
            Ok(())
        })
    }

    /// What a receive takes.
    pub(super) fn pattern(&self, from: Option<u64>, tag: Option<(u64, u64)>) -> Result<Pattern> {
        let tag = tag.map(|(tag, ignore)| (Tag(tag), ignore));
        Ok(match (from, tag) {
            (Some(from), tag) => self.av.address(from)?.peer().pattern(tag),
            (None, Some((tag, ignore))) => Pattern::ignoring(Source::Any, tag, ignore),
            (None, None) => Pattern::untagged(Source::Any),
        })
    }

    /// A message has come into bounce memory: copies it, tells of it, and answers it. Of a long one, takes the further
    /// pieces first.
    pub(super) fn received<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        (bounce, room): (Option<&Bounce>, Iovs),
        report: Report,
        end: &Completion,
    ) {
        let mark = Mark::of(end.mark);
        let sent = usize::try_from(end.length).unwrap_or(usize::MAX);
        let fits = match sent > WHOLE_MAX {
            true => room.len().min(WHOLE_MAX),
            false => room.len(),
        };
        let length = sent.min(fits);
        let copied = room.scatter(0..length, |offset, bytes| match bounce {
            Some(bounce) => own.arena.read(bounce, offset, bytes),
            None => Ok(()),
        });
        let mut event = self.event_of(&report, end, fits);
        event.entry.buf = room.base();
        if let Err(Errno(number)) = copied {
            event.error = Some((number, 0));
        }
        match mark.follows {
            Follows::Pieces { .. } => {
                let pull = Pull::new((room, length), report, event, Peer::from(end), mark);
                operations.begin_pull(pull);
            }
            Follows::Nothing | Follows::Answer(_) => {
                report.tell(event);
                self.answer(operations, Peer::from(end), mark);
            }
        }
    }

    /// What is told of a message that has come into so much memory.
    pub(super) fn event_of(&self, report: &Report, end: &Completion, room: usize) -> Event {
        let mark = Mark::of(end.mark);
        let total = mark.total(usize::try_from(end.length).unwrap_or(usize::MAX));
        let mut event = Event::of(report.context, report.flags);
        event.entry.len = total.min(room);
        event.entry.tag = end.tag.0;
        if mark.has_data {
            event.entry.data = end.immediate;
            event.entry.flags |= sys::REMOTE_CQ_DATA;
        }
        event.source = self.source(Peer::from(end));
        if total > room {
            event.error = Some((FI_ETRUNC, 0));
            event.beyond = total - room;
        }
        event
    }
}
