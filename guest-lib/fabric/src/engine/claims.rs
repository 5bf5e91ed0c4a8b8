//! Messages that are looked for before they are received: FI_PEEK, FI_CLAIM, FI_DISCARD.
//!
//! The answer of a peek comes as a completion, as if it came later: without a message it is the error -FI_ENOMSG.
//! A message that was claimed goes only to a receive with FI_CLAIM and the context of the peek.

use qnic::message::Envelope;

use super::mark::{Follows, Mark};
use super::{lock, Engine, Iovs, Operations, Peer, Pull, Report};
use crate::cq::Event;
use crate::errno::{Errno, Result};
use crate::sys;

/// What a peek does with the message that it finds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Search {
    /// It stays.
    Look,
    /// It goes only to a receive with this context.
    Claim,
    /// It is dropped.
    Discard,
}

impl Engine {
    /// Looks for a message that has arrived, and tells what it is.
    ///
    /// # Errors
    /// Those of [`Engine::receive`]
    pub(crate) fn peek(
        &self,
        search: Search,
        from: Option<u64>,
        tag: Option<(u64, u64)>,
        report: &Report,
    ) -> Result<()> {
        let pattern = self.pattern(from, tag)?;
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            let probe = own.endpoint.probe(&pattern);
            let found = match search {
                Search::Look => probe.test()?,
                Search::Discard => {
                    let found = probe.discard()?;
                    found
                        .iter()
                        .for_each(|found| self.drop_rest(operations, found));
                    found
                }
                Search::Claim => probe.try_claim()?.map(|claimed| {
                    let envelope = *claimed.envelope();
                    operations.claims.push((report.context, claimed));
                    envelope
                }),
            };
            report.tell(self.found(found, report));
            self.complete(own, operations);
            Ok(())
        })
    }

    /// Receives the message that a peek with the context of `report` has claimed, or drops it.
    ///
    /// # Errors
    /// -FI_ENOENT: no peek has claimed any. Those of [`Engine::receive`]: it stays claimed, unless the NIC is gone.
    pub(crate) fn take_claimed(&self, discards: bool, room: Iovs, report: Report) -> Result<()> {
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            let has_context = |(context, _): &(_, _)| *context == report.context;
            let place = operations
                .claims
                .iter()
                .position(has_context)
                .ok_or(Errno(libc::ENOENT))?;
            if discards {
                let (_, claimed) = operations.claims.remove(place);
                self.drop_rest(operations, claimed.envelope());
                claimed.discard();
                report.tell(Event::of(report.context, report.flags));
                self.complete(own, operations);
                return Ok(());
            }
            self.begin_receive(own, operations, room, report, |operations, part| {
                let (_, claimed) = operations.claims.remove(place);
                Ok(claimed.post_receive(part)?)
            })
        })
    }

    /// A message is dropped: its sender is answered, and what follows it is taken.
    fn drop_rest(&self, operations: &mut Operations<'_>, found: &Envelope) {
        let (peer, mark) = (Peer::from(found), Mark::of(found.mark));
        match mark.follows {
            Follows::Pieces { .. } => operations.begin_pull(Pull::discarding(peer, mark)),
            Follows::Nothing | Follows::Answer(_) => self.answer(operations, peer, mark),
        }
    }

    fn found(&self, found: Option<Envelope>, report: &Report) -> Event {
        let mut event = Event::of(report.context, report.flags);
        match found {
            None => event.error = Some((libc::ENOMSG, 0)),
            Some(found) => {
                let mark = Mark::of(found.mark);
                event.entry.len = mark.total(usize::try_from(found.length).unwrap_or(usize::MAX));
                event.entry.tag = found.tag.0;
                if mark.has_data {
                    event.entry.data = found.immediate;
                    event.entry.flags |= sys::REMOTE_CQ_DATA;
                }
                event.source = self.source(Peer::from(&found));
            }
        }
        event
    }
}
