//! Marks: what endpoints tell each other of a message beside what the program has given it.
//!
//! ```text
//!   bit  15     14     13     12               0
//!       ┌──────┬──────┬──────┬──────────────────┐
//!       │ data │ 0    │ 0    │ 0                │   nothing
//!       │      │      │ 1    │ number           │   an answer is awaited
//!       │      │ 1    │ name │ count            │   pieces follow: 7 bits name the message, 7 count its further
//!       └──────┴──────┴──────┴──────────────────┘   pieces, which are a multiple of 4
//! ```
//! An answer is a message without bytes to the message endpoint [`ANSWERS`]. What asks for pieces goes there, too, and
//! the pieces to [`PIECES`] ([`super::long`]). Their tags have a token of the message that they are of:
//!
//! ```text
//!   bit  63      32   31               16        0
//!       ┌──────────┬────────────────────────────┐
//!       │ token    │ 0 │ mark, highest bit 0    │   answer
//!       │          │ 1 │ name                   │   goes on
//!       │          │ name │ number              │   piece
//!       └──────────┴────────────────────────────┘
//! ```
//! The token is made of the immediate data of the message: those of the program, or a number if there are none, which
//! begins at random and is another for each. So what comes late for the last process on a port matches nothing of the
//! next one. If the program's data are always the same, the numbers of answers and the names are all that differ; they
//! begin at random, too.

use qnic::message::{MessageEndpoint, Tag};

/// Where answers go.
pub(super) const ANSWERS: MessageEndpoint = endpoint(1);
/// Where the further pieces of long messages go.
pub(super) const PIECES: MessageEndpoint = endpoint(2);

/// Length of a further piece, in bytes.
pub(super) const PIECE: usize = 2 << 20;

/// How many answers can be awaited at a time.
pub(super) const MOST_ANSWERS: u16 = 1 << 13;
/// How many long messages can be on their way at a time.
pub(super) const MOST_LONG: u16 = 1 << 7;
/// The further pieces of a message are a multiple of this.
pub(super) const UNIT: usize = 4;
/// Most further pieces of a message.
pub(super) const MOST_PIECES: usize = COUNT as usize * UNIT;

const DATA: u16 = 1 << 15;
const LONG: u16 = 1 << 14;
const AWAITED: u16 = 1 << 13;
/// Bits of a count.
const COUNT: u16 = (1 << COUNT_BITS) - 1;
const COUNT_BITS: u16 = 7;

const fn endpoint(number: u16) -> MessageEndpoint {
    match MessageEndpoint::new(number) {
        Some(endpoint) => endpoint,
        None => panic!("a process has 16"),
    }
}

/// What follows a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follows {
    /// Nothing: its Send ends by itself.
    Nothing,
    /// Its sender waits for the answer of this number, which says that the program has its bytes.
    Answer(u16),
    /// So many pieces, and then the same.
    Pieces { long: u16, count: usize },
}

/// A mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The program has given data.
    pub(super) has_data: bool,
    pub(super) follows: Follows,
    /// Tells the message from others of its number or name.
    token: u32,
}

impl Mark {
    /// That of a message with these immediate data.
    pub(super) fn new(has_data: bool, follows: Follows, immediate: u64) -> Self {
        Mark {
            has_data,
            follows,
            token: (immediate ^ immediate >> 32) as u32,
        }
    }

    /// As a message carries it.
    pub(super) fn bits(self) -> u16 {
        let data = if self.has_data { DATA } else { 0 };
        data | match self.follows {
            Follows::Nothing => 0,
            Follows::Answer(number) => AWAITED | (number % MOST_ANSWERS),
            Follows::Pieces { long, count } => {
                let units = count.min(MOST_PIECES) / UNIT;
                LONG | (long % MOST_LONG) << COUNT_BITS | units as u16
            }
        }
    }

    /// What a message has carried with these immediate data.
    pub(super) fn of(bits: u16, immediate: u64) -> Self {
        let follows = if bits & LONG != 0 {
            Follows::Pieces {
                long: bits >> COUNT_BITS & (MOST_LONG - 1),
                count: usize::from(bits & COUNT) * UNIT,
            }
        } else if bits & AWAITED != 0 {
            Follows::Answer(bits % MOST_ANSWERS)
        } else {
            Follows::Nothing
        };
        Self::new(bits & DATA != 0, follows, immediate)
    }

    /// Bytes of a message of which so many are in its first piece.
    pub(super) fn total(self, first: usize) -> usize {
        match self.follows {
            Follows::Pieces { count, .. } => first.saturating_add(count * PIECE),
            _ => first,
        }
    }

    /// The tag of the answer that its sender waits for.
    pub(super) fn answer(self) -> Option<Tag> {
        let awaits = self.follows != Follows::Nothing;
        awaits.then(|| self.tag((self.bits() & !DATA).into()))
    }

    /// The tag of the message that asks for its further pieces.
    pub(super) fn go(self) -> Tag {
        self.tag(1 << 16 | u64::from(self.name()))
    }

    /// The tag of a further piece; they are numbered from 1.
    pub(super) fn piece(self, number: usize) -> Tag {
        self.tag(u64::from(self.name()) << 16 | number as u64 & 0xffff)
    }

    /// The name of a message that goes in pieces.
    pub(super) fn name(self) -> u16 {
        match self.follows {
            Follows::Pieces { long, .. } => long,
            _ => 0,
        }
    }

    fn tag(self, low: u64) -> Tag {
        Tag(u64::from(self.token) << 32 | low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_back() {
        for follows in [
            Follows::Nothing,
            Follows::Answer(0),
            Follows::Answer(MOST_ANSWERS - 1),
            Follows::Pieces {
                long: 0,
                count: UNIT,
            },
            Follows::Pieces {
                long: MOST_LONG - 1,
                count: MOST_PIECES,
            },
        ] {
            for has_data in [false, true] {
                let mark = Mark::new(has_data, follows, 7);
                assert_eq!(Mark::of(mark.bits(), 7), mark);
            }
        }
        assert_eq!(Mark::of(0, 0).bits(), 0);
        assert_eq!(Mark::of(0, 7).answer(), None);
    }

    #[test]
    fn tags_tell_messages_and_kinds_apart() {
        let answer = |has_data, follows| Mark::new(has_data, follows, 7).answer();
        let seven = Follows::Answer(7);
        assert_eq!(answer(true, seven), answer(false, seven));
        assert_ne!(answer(true, seven), Mark::new(true, seven, 8).answer());
        let long = Mark::new(false, Follows::Pieces { long: 7, count: 7 }, 7);
        assert_ne!(answer(false, seven), long.answer());
        assert_ne!(Some(long.go()), long.answer());
        let later = Mark::new(false, long.follows, 7 << 32 | 1);
        assert_ne!(long.go(), later.go());
        assert_ne!(long.piece(2), later.piece(2));
        assert_ne!(long.piece(2), long.piece(3));
        let other = Mark::new(false, Follows::Pieces { long: 8, count: 7 }, 7);
        assert_ne!(long.piece(2), other.piece(2));
    }

    #[test]
    fn pieces_count() {
        let follows = Follows::Pieces { long: 1, count: 3 };
        assert_eq!(Mark::new(false, follows, 0).total(5), 5 + 3 * PIECE);
    }
}
