//! Messages that are longer than fit into bounce memory at a time: they go in pieces.
//!
//! ```text
//!   Send ─ first piece, mark: long 3, 20 more ─► matched as any message; its length is known
//!        ◄── go on with long 3 ────────────────── receives are posted for the next pieces, from this sender alone
//!        ─ pieces 1, 2, … to PIECES ───────────► the program's memory
//!   completion ◄── answer of long 3 ◄──────────── all of them are there
//! ```
//! The first piece is the message: it is matched, found by peeks and claimed as others are, and it stands in their
//! order.
//!
//! # Invariants
//! - Of each message at most [`WINDOW`] pieces have bounce memory at a side, beside the first.
//! - A name is used again only after the answer, or when the Send has failed. Pieces of the message before that still run
//!   have its number, and are not taken for those of the next.
//! - Every piece is received, also of a message that is discarded or truncated: nothing of it stays at the NIC.
//! - Of each sender one message of a name is received at a time. The next one of that name ends it: its sender has given
//!   it up, or is no endpoint of this provider.
//! - A side that ends, ends the message. The NIC ends receives of a process that ends later; whether it has ended before
//!   is seen by what asks it to go on, which is posted behind the receives.

use qnic::message::{Request, RequestId};
use qnic::Error;

use super::bounced::post_part;
use super::mark::{Follows, Mark, ANSWERS, PIECE, PIECES};
use super::{reason, Engine, Iovs, Operations, Peer, Process, Report, Running};
use crate::arena::Bounce;
use crate::cq::Event;
use crate::errno::{Errno, Result, AGAIN};

/// Pieces of a message that are under way at a time.
const WINDOW: usize = 2;

/// Which pieces of a message are under way.
#[derive(Debug, Clone, Copy)]
struct Course {
    /// Bytes in front of the first of them.
    first: usize,
    count: usize,
    /// How many were posted, and how many have ended.
    posted: usize,
    ended: usize,
}

/// A long message that is sent.
#[derive(Debug)]
pub(super) struct LongSend {
    /// Its number, which no other operation has: a name is used again while pieces of a message that has failed end.
    number: u64,
    mark: Mark,
    from: Iovs,
    to: Peer,
    course: Course,
    /// What its end waits for.
    answer: RequestId,
    /// The receive of what asks for its pieces; none once that has come.
    go: Option<RequestId>,
}

/// A long message that comes.
#[derive(Debug)]
pub(super) struct Pull {
    room: Iovs,
    report: Report,
    event: Event,
    from: Peer,
    mark: Mark,
    course: Course,
    /// Its sender was asked to go on.
    asked: bool,
    /// Why a piece has not come.
    failed: Option<(i32, i32)>,
}

/// Which message a piece is of.
#[derive(Debug, Clone, Copy)]
enum Of {
    /// By its name and its number.
    Sent(u32, u64),
    /// Its bytes belong into this part of the program's memory.
    Pulled(u64, usize, usize),
}

impl Of {
    fn is_pulled(self, number: u64) -> bool {
        matches!(self, Of::Pulled(of, ..) if of == number)
    }
}

/// A piece that is under way.
pub(super) struct LongPart<'a> {
    // In front: dropped before the bounce memory is used again.
    pub(super) request: Request<'a>,
    bounce: Option<Bounce>,
    of: Of,
}

/// What asks for pieces: on its way to the sender, or awaited by it.
pub(super) struct Go<'a> {
    pub(super) request: Request<'a>,
    of: GoOf,
}

/// Which message it is of.
enum GoOf {
    Sent(u32),
    Pulled(u64),
}

impl Course {
    fn new(first: usize, count: usize) -> Self {
        Course {
            first,
            count,
            posted: 0,
            ended: 0,
        }
    }

    /// The number of the next piece, if one may be posted, and where it begins.
    fn next(&self) -> Option<(usize, usize)> {
        let may = self.posted < self.count && self.posted - self.ended < WINDOW;
        may.then(|| (self.posted + 1, self.first + self.posted * PIECE))
    }

    fn is_done(&self) -> bool {
        self.ended == self.count
    }
}

impl LongSend {
    /// A message whose first piece, and so many more, are as long as this.
    pub(super) fn new(
        (number, mark): (u64, Mark),
        (from, to): (Iovs, Peer),
        (first, count): (usize, usize),
        (answer, go): (RequestId, RequestId),
    ) -> Self {
        let course = Course::new(first, count);
        LongSend {
            number,
            mark,
            from,
            to,
            course,
            answer,
            go: Some(go),
        }
    }
}

impl Pull {
    /// Of a message whose first piece has come: the memory of the program has so much of it.
    pub(super) fn new(
        (room, first): (Iovs, usize),
        report: Report,
        event: Event,
        from: Peer,
        mark: Mark,
    ) -> Self {
        let count = match mark.follows {
            Follows::Pieces { count, .. } => count,
            _ => 0,
        };
        Pull {
            room,
            report,
            event,
            from,
            mark,
            course: Course::new(first, count),
            asked: false,
            failed: None,
        }
    }

    /// Of a message that nothing is to be told of.
    pub(super) fn discarding(from: Peer, mark: Mark) -> Self {
        let report = Report::silent();
        let event = Event::of(report.context, 0);
        Self::new((Iovs::none(), 0), report, event, from, mark)
    }

    /// No more of it comes.
    fn fail(&mut self, reason: (i32, i32)) {
        self.failed.get_or_insert(reason);
        self.course.count = self.course.posted;
    }
}

impl<'a> Operations<'a> {
    /// Posts the receive of what asks for the pieces of a message.
    ///
    /// # Errors
    /// [`AGAIN`]: there is no room for one more.
    pub(super) fn await_go(&mut self, own: &'a Process, peer: Peer, mark: Mark) -> Result<Go<'a>> {
        let pattern = peer.pattern(Some((mark.go(), 0))).at(ANSWERS);
        let posted = own.endpoint.receive(&pattern, own.arena.nothing()?);
        Ok(Go {
            request: posted.post()?,
            of: GoOf::Sent(mark.name()),
        })
    }

    /// A long message has ended.
    pub(super) fn end_long(&mut self, long: u32) {
        if let Some(go) = self.long.remove(&long).and_then(|it| it.go) {
            self.remove(go);
        }
    }

    /// What asks for pieces has come, has gone, or has failed.
    pub(super) fn end_go(&mut self, go: Go<'a>, error: Option<&Error>) {
        match (go.of, error) {
            (GoOf::Sent(long), None) => {
                if let Some(message) = self.long.get_mut(&long) {
                    message.go = None;
                }
            }
            // So has the receive of its answer, which tells of it.
            (GoOf::Sent(_), Some(_)) | (GoOf::Pulled(_), None) => {}
            (GoOf::Pulled(number), Some(error)) => {
                if let Some(pull) = self.pulls.get_mut(&number) {
                    pull.fail(reason(error));
                }
                self.cancel_pieces(number);
            }
        }
    }

    /// Begins to take the further pieces of a message.
    pub(super) fn begin_pull(&mut self, pull: Pull) {
        self.serves = true;
        let name = |it: &Pull| (it.from, it.mark.name());
        let mut pulls = self.pulls.iter();
        let same = pulls.find(|(_, other)| name(other) == name(&pull));
        if let Some(older) = same.map(|(number, _)| *number) {
            self.give_up(older);
        }
        let number = self.next_number();
        self.pulls.insert(number, pull);
    }

    /// Ends a message that comes, of which its sender has said no more.
    fn give_up(&mut self, number: u64) {
        self.cancel_pieces(number);
        if let Some(mut pull) = self.pulls.remove(&number) {
            let given_up = (libc::ECONNABORTED, 0);
            pull.event.error = pull.failed.or(Some(given_up));
            pull.report.tell(pull.event);
        }
    }

    /// Takes back the receives of pieces.
    fn cancel_pieces(&mut self, number: u64) {
        for running in self.running.values_mut() {
            match running {
                Running::LongPart(piece) if piece.of.is_pulled(number) => {
                    // An error says that the NIC is gone: it ends all the same.
                    let _ = piece.request.cancel();
                }
                _ => {}
            }
        }
    }
}

impl Engine {
    /// Posts pieces, as far as there is room; ends messages of which all have come.
    pub(super) fn post_pieces<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        let names: Vec<u32> = operations.long.keys().copied().collect();
        for name in names {
            while let Some(message) = operations.long.get_mut(&name) {
                let Some(next) = message.course.next().filter(|_| message.go.is_none()) else {
                    break;
                };
                match post_sent(own, message, name, next) {
                    Ok(piece) => self.begin(operations, Running::LongPart(piece)),
                    Err(AGAIN) => break,
                    Err(Errno(error)) => {
                        let number = message.number;
                        end_sent(operations, (name, number), Some((error, 0)));
                    }
                }
            }
        }
        let numbers: Vec<u64> = operations.pulls.keys().copied().collect();
        for number in numbers {
            self.post_pulled(own, operations, number);
        }
    }

    fn post_pulled<'a>(&self, own: &'a Process, operations: &mut Operations<'a>, number: u64) {
        while let Some(pull) = operations.pulls.get_mut(&number) {
            let Some(next) = pull.course.next() else {
                break;
            };
            match post_pulled(own, pull, number, next) {
                Ok(piece) => self.begin(operations, Running::LongPart(piece)),
                Err(AGAIN) => break,
                Err(Errno(error)) => pull.fail((error, 0)),
            }
        }
        if let Some(pull) = operations.pulls.get_mut(&number).filter(|it| !it.asked) {
            match ask(own, pull, number) {
                Ok(go) => self.begin(operations, Running::Go(go)),
                Err(AGAIN) => {}
                Err(Errno(error)) => pull.fail((error, 0)),
            }
        }
        let is_done = |pull: &Pull| pull.course.is_done();
        if operations.pulls.get(&number).is_some_and(is_done) {
            if let Some(mut pull) = operations.pulls.remove(&number) {
                pull.event.error = pull.failed.or(pull.event.error);
                pull.report.tell(pull.event);
                self.answer(operations, pull.from, pull.mark);
                self.post_answers(own, operations);
            }
        }
    }

    /// A piece has been sent, or has come, or has failed.
    pub(super) fn end_piece<'a>(
        &self,
        own: &'a Process,
        operations: &mut Operations<'a>,
        piece: LongPart<'a>,
        error: Option<&Error>,
    ) {
        let LongPart {
            request,
            bounce,
            of,
        } = piece;
        drop(request);
        match of {
            Of::Sent(name, number) => end_sent(operations, (name, number), error.map(reason)),
            Of::Pulled(number, begin, length) => {
                if let Some(pull) = operations.pulls.get_mut(&number) {
                    pull.course.ended += 1;
                    let copied = pull.room.scatter(begin..begin + length, |offset, bytes| {
                        match (&bounce, error) {
                            (Some(bounce), None) => own.arena.read(bounce, offset, bytes),
                            _ => Ok(()),
                        }
                    });
                    match (error, copied) {
                        (Some(error), _) => pull.fail(reason(error)),
                        (None, Err(Errno(number))) => pull.fail((number, 0)),
                        (None, Ok(())) => {}
                    }
                }
            }
        }
        if let Some(bounce) = bounce {
            own.arena.give_back(bounce);
        }
    }
}

/// A piece of a message has ended. If another message has the name by now, it is not told.
fn end_sent(
    operations: &mut Operations<'_>,
    (name, number): (u32, u64),
    error: Option<(i32, i32)>,
) {
    let message = operations.long.get_mut(&name);
    let Some(message) = message.filter(|it| it.number == number) else {
        return;
    };
    message.course.ended += 1;
    let answer = message.answer;
    if let Some(error) = error {
        operations.end_long(name);
        if let Some(Running::Awaited(awaited)) = operations.remove(answer) {
            operations.answered(awaited, Some(error));
        }
    }
}

fn post_sent<'a>(
    own: &'a Process,
    message: &mut LongSend,
    name: u32,
    (number, begin): (usize, usize),
) -> Result<LongPart<'a>> {
    let to = message.to.tagged(message.mark.piece(number)).at(PIECES);
    let (request, bounce) = post_part(own, &to, &message.from, begin..begin + PIECE)?;
    message.course.posted += 1;
    Ok(LongPart {
        request,
        bounce,
        of: Of::Sent(name, message.number),
    })
}

/// Asks the sender of a message to go on.
fn ask<'a>(own: &'a Process, pull: &mut Pull, number: u64) -> Result<Go<'a>> {
    let to = pull.from.tagged(pull.mark.go()).at(ANSWERS);
    let request = own.endpoint.send(&to, b"").post()?;
    pull.asked = true;
    Ok(Go {
        request,
        of: GoOf::Pulled(number),
    })
}

fn post_pulled<'a>(
    own: &'a Process,
    pull: &mut Pull,
    number: u64,
    (piece, begin): (usize, usize),
) -> Result<LongPart<'a>> {
    let from = pull.from.pattern(Some((pull.mark.piece(piece), 0)));
    let from = from.at(PIECES);
    let begin = begin.min(pull.room.len());
    let length = PIECE.min(pull.room.len() - begin);
    let bounce = own.arena.take(&own.endpoint, length)?;
    let posted = own.arena.part(&bounce, length).and_then(|part| {
        let posted = own.endpoint.receive(&from, part).post();
        posted.map_err(Errno::from)
    });
    match posted {
        Ok(request) => {
            pull.course.posted += 1;
            Ok(LongPart {
                request,
                bounce: Some(bounce),
                of: Of::Pulled(number, begin, length),
            })
        }
        Err(error) => {
            own.arena.give_back(bounce);
            Err(error)
        }
    }
}
