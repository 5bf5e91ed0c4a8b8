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
//! - A number is used again only when its answer has come, or its Send has failed; and after all others that are free.
//!   An answer has a token of its message as well ([`super::mark`]).
//! - Each message that asks for an answer has one, also if it is truncated or discarded. An endpoint that is closed sends
//!   those that it owes before, for as long as a peer may be silent.
//! - A peer that takes no answers holds up none to others, and is owed no more than an endpoint of this provider waits
//!   for.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use qnic::message::{Destination, Pattern, Request, Source, Tag};
use qnic::Error;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use super::mark::{Follows, Mark, ANSWERS, MOST_ANSWERS, MOST_LONG};
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
const MOST_OWED: usize = MOST_ANSWERS as usize + MOST_LONG as usize;

/// Answers that are awaited, and those that are owed.
#[derive(Debug)]
pub(super) struct Answers {
    /// The next message without data of the program has this: it is random at first. Numbers and names are looked for
    /// from it on.
    next: u64,
    /// Numbers that are in use: of answers, and of long messages.
    numbers: BTreeSet<u16>,
    long: BTreeSet<u16>,
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
    pub(super) fn new(random: u64) -> Self {
        Answers {
            next: random,
            numbers: BTreeSet::new(),
            long: BTreeSet::new(),
            owed: BTreeMap::new(),
        }
    }

    /// Takes a number, or a name if so many pieces follow; and the immediate data of the message, which are those of the
    /// program if it gives any.
    ///
    /// # Errors
    /// [`AGAIN`]: all are in use.
    fn take(&mut self, (pieces, data): (usize, Option<u64>)) -> Result<(Mark, u64)> {
        let (used, most) = match pieces {
            0 => (&mut self.numbers, MOST_ANSWERS),
            _ => (&mut self.long, MOST_LONG),
        };
        let first = self.next as u16 % most;
        let free = (first..most)
            .chain(0..first)
            .find(|number| !used.contains(number))
            .ok_or(AGAIN)?;
        used.insert(free);
        let immediate = data.unwrap_or(self.next);
        self.next = self.next.wrapping_add(1);
        let follows = match pieces {
            0 => Follows::Answer(free),
            count => Follows::Pieces { long: free, count },
        };
        Ok((Mark::new(data.is_some(), follows, immediate), immediate))
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
    /// Posts the receive of an answer, for a message of which so many further pieces follow, and with these data of the
    /// program. Returns the immediate data of the message, too.
    ///
    /// # Errors
    /// [`AGAIN`]: there is no room for one more.
    pub(super) fn expect(
        &mut self,
        own: &'a Process,
        (node, port): Peer,
        message: (usize, Option<u64>),
        report: Report,
    ) -> Result<(Awaited<'a>, u64)> {
        let nothing = own.arena.nothing()?;
        let (mark, immediate) = self.answers.take(message)?;
        let tag = mark.answer().unwrap_or_default();
        let pattern = Pattern::tagged(Source::Process(node, port), tag).at(ANSWERS);
        match own.endpoint.receive(&pattern, nothing).post() {
            Ok(request) => {
                let awaited = Awaited {
                    request,
                    mark,
                    report,
                };
                Ok((awaited, immediate))
            }
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
                    && !operations.running.values().any(is_answer);
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

    /// Posts the answers that are owed, as far as there is room for each peer.
    pub(super) fn post_answers<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        let peers: Vec<Peer> = operations.answers.owed.keys().copied().collect();
        for (node, port) in peers {
            while let Some(tag) = operations.answers.first((node, port)) {
                let to = Destination::tagged(node, port, tag).at(ANSWERS);
                match own.endpoint.send(&to, b"").post() {
                    Ok(request) => self.begin(operations, Running::Answer(request)),
                    Err(Error::WouldBlock) => break,
                    // The NIC is gone, or the process that waits for it: that ends without it.
                    Err(_) => {}
                }
                operations.answers.remove_first((node, port));
            }
        }
    }
}
