//! Sends.

use qnic::message::{Destination, MessageEndpoint, Tag};

use super::bounced::{post_part, Sent};
use super::long::LongSend;
use super::mark::{Follows, Mark, MOST_PIECES, PIECE, UNIT};
use super::{lock, Engine, Iovs, Operation, Operations, Process, Report, Running};
use crate::errno::{Result, INVALID, TOO_LONG};
use crate::info::offer::{MESSAGE_MAX, WHOLE_MAX};

/// Longest command payload that is looked for: bytes of a message that need no bounce memory.
const INLINE_MAX: usize = 256;

const _: () = assert!(MESSAGE_MAX == (MOST_PIECES + UNIT) * PIECE && UNIT * PIECE <= WHOLE_MAX);

/// A message of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Letter<'f> {
    /// The number of an address.
    pub(crate) to: u64,
    /// `None`: of the untagged space.
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) from: &'f Iovs,
    /// It has ended only when the program that receives it has its bytes.
    pub(crate) delivered: bool,
}

/// How many bytes stand in the first piece of a message, and how many pieces follow.
fn pieces(length: usize) -> (usize, usize) {
    if length <= WHOLE_MAX {
        return (length, 0);
    }
    let count = (length.div_ceil(UNIT * PIECE) - 1) * UNIT;
    (length - count * PIECE, count)
}

impl Engine {
    /// Posts a Send. Its memory may change as soon as this has returned, unless it is longer than [`WHOLE_MAX`].
    ///
    /// # Errors
    /// [`crate::errno::AGAIN`]: there is no room for it now. [`TOO_LONG`], [`INVALID`]
    pub(crate) fn send(&self, letter: Letter<'_>, report: Report) -> Result<()> {
        let (from, length) = (letter.from, letter.from.len());
        if length > MESSAGE_MAX {
            return Err(TOO_LONG);
        }
        let to = self.av.address(letter.to)?;
        let at = MessageEndpoint::new(to.endpoint).ok_or(INVALID)?;
        let peer = to.peer();
        let destination = match letter.tag {
            Some(tag) => peer.tagged(Tag(tag)),
            None => peer.untagged(),
        };
        let has_data = letter.data.is_some();
        let destination = destination.at(at).immediate(letter.data.unwrap_or(0));
        let (first, count) = pieces(length);
        self.cell.with_dependent(|own, board| {
            let operations = &mut *lock(board);
            if count > 0 && !from.is_there() {
                return Err(INVALID);
            }
            if count == 0 && !letter.delivered {
                let follows = Follows::Nothing;
                let destination = destination.mark(Mark { has_data, follows }.bits());
                let sent = post(own, &destination, (from, first))?;
                self.begin_send(operations, sent, report, None);
                return Ok(());
            }
            let awaited = operations.expect(own, peer, (count, has_data), report)?;
            let mark = awaited.mark;
            let destination = destination.mark(mark.bits());
            let go = match mark.follows {
                Follows::Pieces { .. } => Some(operations.await_go(own, peer, mark)),
                _ => None,
            };
            let go = go.transpose();
            let posted = go.and_then(|go| Ok((go, post(own, &destination, (from, first))?)));
            let (go, sent) = match posted {
                Ok(posted) => posted,
                Err(error) => {
                    operations.forget(awaited);
                    return Err(error);
                }
            };
            let answer = awaited.request.id();
            if let Some(go) = go {
                let ends = (answer, go.request.id());
                let name = (operations.next_number(), mark);
                let message = LongSend::new(name, (from.clone(), peer), (first, count), ends);
                operations.long.insert(mark.name(), message);
                self.begin(operations, Running::Go(go));
            }
            self.begin(operations, Running::Awaited(awaited));
            self.begin_send(operations, sent, Report::silent(), Some(answer));
            Ok(())
        })
    }

    fn begin_send<'a>(
        &self,
        operations: &mut Operations<'a>,
        (request, bounce): Sent<'a>,
        report: Report,
        answer: Option<qnic::message::RequestId>,
    ) {
        let operation = Operation {
            request,
            bounce,
            room: None,
            report,
            number: operations.next_number(),
            cancelled: false,
            answer,
        };
        self.begin_operation(operations, operation);
    }
}

/// Posts a message with the first bytes of `from`.
fn post<'a>(
    own: &'a Process,
    destination: &Destination,
    (from, length): (&Iovs, usize),
) -> Result<Sent<'a>> {
    let mut copy = [0; INLINE_MAX];
    let inline = own.endpoint.inline_max().min(INLINE_MAX);
    let Some(copy) = copy.get_mut(..length).filter(|_| length <= inline) else {
        return post_part(own, destination, from, 0..length);
    };
    from.gather(0..length, |offset, bytes| {
        let place = copy.get_mut(offset..offset + bytes.len()).ok_or(INVALID)?;
        place.copy_from_slice(bytes);
        Ok(())
    })?;
    Ok((own.endpoint.send(destination, &*copy).post()?, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_long_as_their_message() {
        for length in [
            0,
            1,
            WHOLE_MAX,
            WHOLE_MAX + 1,
            10 * PIECE,
            MESSAGE_MAX - 1,
            MESSAGE_MAX,
        ] {
            let (first, count) = pieces(length);
            assert_eq!(first + count * PIECE, length);
            assert!(count <= MOST_PIECES && (count == 0 || (1..=UNIT * PIECE).contains(&first)));
            assert_eq!(count % UNIT, 0);
        }
    }
}
