//! Receives of many messages into one buffer (FI_MULTI_RECV).
//!
//! ```text
//!   ┌───────────┬──────┬───────────────┬ ─ ─ ─ ─ ─ ┐
//!   │ message 1 │ 2    │ message 3     │ free      │   released by the completion of a message with FI_MULTI_RECV,
//!   └───────────┴──────┴───────────────┴ ─ ─ ─ ─ ─ ┘   when less is free than FI_OPT_MIN_MULTI_RECV says
//! ```
//! The NIC puts one message behind the other into bounce memory; each is copied to the same place of the buffer.

use qnic::message::MultiReceive;
use qnic::Error;

use super::mark::{Follows, Mark};
use super::{lock, reason, Engine, Iovs, Operations, Peer, Process, Pull, Report, Running};
use crate::arena::Bounce;
use crate::cq::Event;
use crate::errno::{Errno, Result, INVALID};
use crate::sys::{FI_ETRUNC, MULTI_RECV};

/// A receive of many messages that is posted.
pub(super) struct Many<'a> {
    // In front: dropped before the bounce memory is used again.
    pub(super) request: MultiReceive<'a>,
    pub(super) bounce: Bounce,
    room: Iovs,
    /// Of each of its messages.
    pub(super) report: Report,
    pub(super) number: u64,
    /// The program has taken it back; its end has not come.
    pub(super) cancelled: bool,
}

impl Engine {
    /// Posts a receive of many messages of the untagged space, until less than `least` bytes are left.
    ///
    /// # Errors
    /// [`INVALID`]: the buffer is in several pieces. Those of [`Engine::send`].
    pub(crate) fn receive_many(
        &self,
        from: Option<u64>,
        room: Iovs,
        least: usize,
        report: Report,
    ) -> Result<()> {
        if !room.is_one() {
            return Err(INVALID);
        }
        let pattern = self.pattern(from, None)?;
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            let bounce = own.arena.take(&own.endpoint, room.len())?;
            let posted = own.arena.part(&bounce, room.len()).and_then(|part| {
                let receive = own.endpoint.receive(&pattern, part);
                receive.least(least as u64).many().map_err(Errno::from)
            });
            match posted {
                Ok(request) => {
                    let many = Many {
                        request,
                        bounce,
                        room,
                        report,
                        number: operations.next_number(),
                        cancelled: false,
                    };
                    self.begin(operations, Running::Many(many));
                    Ok(())
                }
                Err(error) => {
                    own.arena.give_back(bounce);
                    Err(error)
                }
            }
        })
    }

    /// Tells of the messages that have come; returns true if it was the last one.
    pub(super) fn look_at_many<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        many: &mut Many<'a>,
    ) -> bool {
        loop {
            let event = match many.request.test() {
                Ok(Some(end)) => self.arrived(own, operations, many, &end),
                Ok(None) if many.request.has_ended() => many.failed((libc::ECANCELED, 0)),
                Ok(None) => return false,
                Err(error) => {
                    let event = many.failed(reason(&error));
                    if !many.request.has_ended() && !matches!(error, Error::Message(_)) {
                        // The NIC is gone: no more comes.
                        many.tell(event, true);
                        return true;
                    }
                    event
                }
            };
            let is_last = many.request.has_ended();
            many.tell(event, is_last);
            if is_last {
                return true;
            }
        }
    }

    /// Copies a message to its place.
    fn arrived(
        &self,
        own: &Process,
        operations: &mut Operations<'_>,
        many: &Many<'_>,
        end: &qnic::message::Completion,
    ) -> Event {
        let mark = Mark::of(end.mark);
        let all = many.room.len();
        let begin = usize::try_from(end.offset).unwrap_or(all).min(all);
        let mut event = self.event_of(&many.report, end, all - begin);
        let first = usize::try_from(end.length).unwrap_or(usize::MAX);
        let length = event.entry.len.min(first);
        let copied = many.room.scatter(begin..begin + length, |offset, bytes| {
            own.arena.read(&many.bounce, begin + offset, bytes)
        });
        event.entry.buf = many.room.base().behind(begin);
        if let Err(Errno(number)) = copied {
            event.error = Some((number, 0));
        }
        let peer = Peer::from(end);
        match mark.follows {
            // Other messages may stand behind its first piece: there is no place for the rest.
            Follows::Pieces { .. } => {
                event.beyond = mark.total(first) - length;
                event.entry.len = length;
                event.error = Some((FI_ETRUNC, 0));
                operations.begin_pull(Pull::discarding(peer, mark));
            }
            Follows::Nothing | Follows::Answer(_) => self.answer(operations, peer, mark),
        }
        event
    }
}

impl Many<'_> {
    fn failed(&self, reason: (i32, i32)) -> Event {
        let mut event = Event::of(self.report.context, self.report.flags);
        event.entry.buf = self.room.base();
        event.error = Some(reason);
        event
    }

    /// Tells of a message, and that the buffer is the program's again.
    fn tell(&self, mut event: Event, is_last: bool) {
        if is_last {
            event.entry.flags |= MULTI_RECV;
        }
        self.report.tell(event);
    }
}
