//! Answers: that a program has the bytes of a message in its own memory (FI_DELIVERY_COMPLETE).
//!
//! ```text
//!   Send ─ mark: answer 7 ──► receive ─► the program's memory ─► its completion
//!   its completion ◄── answer 7 ◄────────────────┘
//! ```
//! The end of a Send at the NIC says that the message is there, perhaps in bounce or staging memory. So a Send that is
//! to be told of delivery, and each long one, waits for a message without bytes of the process that it went to. If that
//! process ends, so does the wait.
//!
//! # Invariants
//! - A number is used again only when its answer has come, or its Send has failed; and after all others that are free
//!   ([`super::mark`]): so an answer that comes late is taken for none.
//! - An answer that comes late is discarded: nothing of it stays at the NIC.
//! - Each message that asks for an answer has one, also if it is truncated or discarded. An endpoint that is closed sends
//!   those that it owes before, for as long as a peer may be silent.
//! - A peer that takes no answers holds up none to others, and is owed no more than an endpoint of this provider waits
//!   for.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use qnic::message::{Pattern, Request, Source, Tag};
use qnic::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::mark::{Follows, Mark, ANSWERS, MOST_ANSWERS, MOST_LONG, NAMES, NUMBERS};
use super::{lock, Engine, Operations, Peer, Process, Report, Running};
use crate::cq::Event;
use crate::errno::{Result, AGAIN};
use crate::waiting;

/// How long a close sleeps at most before it looks again whether its answers are there.
const SOON: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Most answers that are owed to a peer.
const MOST_OWED: usize = MOST_ANSWERS + MOST_LONG;

/// Answers that are awaited, and those that are owed.
#[derive(Debug)]
pub(super) struct Answers {
    /// The next one has this number or name, unless that is in use: it is random at first.
    next: u32,
    /// Numbers that are in use: of answers, and of long messages.
    numbers: BTreeSet<u32>,
    long: BTreeSet<u32>,
    /// Answers of this endpoint that are to be posted to each peer, in order. None is empty.
    pub(super) owed: BTreeMap<Peer, VecDeque<Tag>>,
}

/// An answer that a Send waits for.
pub(super) struct Awaited<'a> {
    pub(super) request: Request<'a>,
    /// What its message says of it.
    pub(super) mark: Mark,
    /// What is told of the Send.
    report: Report,
}

impl Answers {
    /// None, of an endpoint that has this random number.
    pub(super) fn new(random: u32) -> Self {
        Answers {
            next: random,
            numbers: BTreeSet::new(),
            long: BTreeSet::new(),
            owed: BTreeMap::new(),
        }
    }

    /// Takes a number, or a name if so many pieces follow.
    ///
    /// # Errors
    /// [`AGAIN`]: as many are in use as may be.
    fn take(&mut self, (pieces, has_data): (usize, bool)) -> Result<Mark> {
        let (used, most, all) = match pieces {
            0 => (&mut self.numbers, MOST_ANSWERS, NUMBERS),
            _ => (&mut self.long, MOST_LONG, NAMES),
        };
        if used.len() >= most {
            return Err(AGAIN);
        }
        let mut free = self.next % all;
        while !used.insert(free) {
            free = (free + 1) % all;
        }
        self.next = free.wrapping_add(1);
        let follows = match pieces {
            0 => Follows::Answer(free),
            count => Follows::Pieces { long: free, count },
        };
        Ok(Mark { has_data, follows })
    }

    /// One more is owed, unless that are more than a peer can wait for.
    fn owe(&mut self, to: Peer, tag: Tag) {
        let owed = self.owed.entry(to).or_default();
        if owed.len() < MOST_OWED {
            owed.push_back(tag);
        }
    }

    /// The next answer to a peer.
    fn first(&self, to: Peer) -> Option<Tag> {
        self.owed.get(&to)?.front().copied()
    }

    /// It was posted.
    fn remove_first(&mut self, to: Peer) {
        if let Entry::Occupied(mut owed) = self.owed.entry(to) {
            owed.get_mut().pop_front();
            if owed.get().is_empty() {
                owed.remove();
            }
        }
    }

    fn give_back(&mut self, follows: Follows) {
        match follows {
            Follows::Nothing => false,
            Follows::Answer(number) => self.numbers.remove(&number),
            Follows::Pieces { long, .. } => self.long.remove(&long),
        };
    }
}

impl<'a> Operations<'a> {
    /// Posts the receive of an answer, for a message of which so many further pieces follow, and that has data of the program
    /// or none.
    ///
    /// # Errors
    /// [`AGAIN`]: there is no room for one more.
    pub(super) fn expect(
        &mut self,
        own: &'a Process,
        peer: Peer,
        message: (usize, bool),
        report: Report,
    ) -> Result<Awaited<'a>> {
        let nothing = own.arena.nothing()?;
        let mark = self.answers.take(message)?;
        let tag = mark.answer().unwrap_or_default();
        let pattern = peer.pattern(Some((tag, 0))).at(ANSWERS);
        match own.endpoint.receive(&pattern, nothing).post() {
            Ok(request) => Ok(Awaited {
                request,
                mark,
                report,
            }),
            Err(error) => {
                self.answers.give_back(mark.follows);
                Err(error.into())
            }
        }
    }

    /// An answer has come, or none will.
    pub(super) fn answered(&mut self, awaited: Awaited<'a>, error: Option<(i32, i32)>) {
        let Awaited {
            request,
            mark,
            report,
        } = awaited;
        drop(request);
        self.answers.give_back(mark.follows);
        if let Follows::Pieces { long, .. } = mark.follows {
            self.end_long(long);
        }
        match error {
            Some(error) => report.fail(None, error),
            None => report.tell(Event::of(report.context, report.flags)),
        }
    }

    /// The Send of an answer that is awaited was not posted: nothing is told.
    pub(super) fn forget(&mut self, awaited: Awaited<'a>) {
        self.answers.give_back(awaited.mark.follows);
    }
}

impl Engine {
    /// Answers a message, if that asks for it.
    pub(super) fn answer(&self, operations: &mut Operations<'_>, to: Peer, mark: Mark) {
        if let Some(tag) = mark.answer() {
            operations.serves = true;
            operations.answers.owe(to, tag);
        }
    }

    /// Waits until groups that were closed have ended, and until the answers that are owed are there, or will never be:
    /// that is known when their receivers have been
    /// silent for the peer timeout. A receiver that is not silent, but takes none, is waited for that long, too.
    pub(crate) fn settle(&self) {
        let patience = self.cell.borrow_owner().endpoint.peer_timeout();
        let start = Instant::now();
        loop {
            let prepared = waiting::Engine::prepare_to_wait(self);
            let is_settled = self.cell.with_dependent(|own, board| {
                let operations = &mut *lock(board);
                self.complete(own, operations);
                let is_answer = |it: &Running<'_>| matches!(it, Running::Answer(_));
                let answers = operations.answers.owed.is_empty()
                    && !operations.running.iter().any(|(_, it)| is_answer(it));
                answers && !operations.groups.last()
            });
            if is_settled || prepared.is_err() || start.elapsed() >= patience {
                return;
            }
            let descriptor = waiting::Engine::descriptor(self);
            // The helper may take the event, so it looks again soon; interrupted, at once.
            let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&SOON));
        }
    }

    /// Waits for an answer that no receive takes, as that of a Send that has failed: it comes late, and is discarded.
    /// Each answer that is awaited has its receive before its message is sent.
    pub(super) fn await_late<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        if operations.has_late {
            return;
        }
        let any = Pattern::any_tag(Source::Any).at(ANSWERS);
        // Without a place it is tried again; without a NIC nothing comes.
        if let Ok(late) = own.endpoint.probe(&any).post_discard() {
            operations.has_late = true;
            self.begin(operations, Running::Late(late));
        }
    }

    /// Posts the answers that are owed, as far as there is room for each peer.
    pub(super) fn post_answers<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        let peers: Vec<Peer> = operations.answers.owed.keys().copied().collect();
        for peer in peers {
            while let Some(tag) = operations.answers.first(peer) {
                let to = peer.tagged(tag).at(ANSWERS);
                match own.endpoint.send(&to, b"").post() {
                    Ok(request) => self.begin(operations, Running::Answer(request)),
                    Err(Error::WouldBlock) => break,
                    // The NIC is gone, or the process that waits for it: that ends without it.
                    Err(_) => {}
                }
                operations.answers.remove_first(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All messages may have the same data: what tells them apart is their mark.
    #[test]
    fn numbers_do_not_return_soon() {
        for pieces in [0, 4] {
            let mut answers = Answers::new(u32::MAX - 50_000);
            let mut take = |_| {
                let mark = answers.take((pieces, true)).unwrap();
                answers.give_back(mark.follows);
                mark.bits()
            };
            let marks: BTreeSet<u32> = (0..100_000).map(&mut take).collect();
            assert_eq!(marks.len(), 100_000);
        }
    }

    #[test]
    fn numbers_in_use_are_not_given_again() {
        let mut answers = Answers::new(NUMBERS - 2);
        let first = answers.take((0, false)).unwrap();
        answers.next = NUMBERS - 2;
        let second = answers.take((0, false)).unwrap();
        assert_ne!(first, second);
        for _ in 2..MOST_ANSWERS {
            answers.take((0, false)).unwrap();
        }
        assert_eq!(answers.take((0, false)), Err(AGAIN));
        answers.give_back(first.follows);
        assert!(answers.take((0, false)).is_ok());
    }
}
