//! Marks: what endpoints tell each other of a message beside what the program has given it.
//!
//! ```text
//!   bit  31     30     29     28               0
//!       ┌──────┬──────┬──────┬──────────────────┐
//!       │ data │ 0    │ 0    │ 0                │   nothing
//!       │      │      │ 1    │ number           │   an answer is awaited
//!       │      │ 1    │ name │ count            │   pieces follow: 23 bits name the message, 7 count its further
//!       └──────┴──────┴──────┴──────────────────┘   pieces, which are a multiple of 4
//! ```
//! An answer is a message without bytes to the message endpoint [`ANSWERS`]. What asks for pieces goes there, too, and
//! the pieces to [`PIECES`] ([`super::long`]). Their tags name the message that they are of:
//!
//! ```text
//!   bit  63    39    32   31               16        0
//!       ┌────────────────┬──────────────────────────┐
//!       │ 0              │ mark, highest bit 0      │   answer
//!       │ 1              │ name                     │   goes on
//!       │        name                │ number       │   piece
//!       └────────────────┴──────────────────────────┘
//! ```
//! All of them are for one incarnation of a process: what comes late for the last process on a port does not reach the
//! next one. Within a process, a number returns after 2^29 others, a name after 2^23. Before that, what comes late
//! has come, or its sender was given up.

use qnic::message::{MessageEndpoint, Tag};

/// Where answers go.
pub(super) const ANSWERS: MessageEndpoint = endpoint(1);
/// Where the further pieces of long messages go.
pub(super) const PIECES: MessageEndpoint = endpoint(2);

/// Length of a further piece, in bytes.
pub(super) const PIECE: usize = 2 << 20;

/// How many answers can be awaited at a time.
pub(super) const MOST_ANSWERS: usize = 1 << 13;
/// How many long messages can be on their way at a time.
pub(super) const MOST_LONG: usize = 1 << 7;
/// The further pieces of a message are a multiple of this.
pub(super) const UNIT: usize = 4;
/// Most further pieces of a message.
pub(super) const MOST_PIECES: usize = COUNT as usize * UNIT;

/// How many numbers of answers there are.
pub(super) const NUMBERS: u32 = 1 << 29;
/// How many names of long messages there are.
pub(super) const NAMES: u32 = 1 << 23;

const DATA: u32 = 1 << 31;
const LONG: u32 = 1 << 30;
const AWAITED: u32 = 1 << 29;
/// Bits of a count.
const COUNT: u32 = (1 << COUNT_BITS) - 1;
const COUNT_BITS: u32 = 7;

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
    Answer(u32),
    /// So many pieces, and then the same.
    Pieces { long: u32, count: usize },
}

/// A mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The program has given data.
    pub(super) has_data: bool,
    pub(super) follows: Follows,
}

impl Mark {
    /// As a message carries it.
    pub(super) fn bits(self) -> u32 {
        let data = if self.has_data { DATA } else { 0 };
        data | match self.follows {
            Follows::Nothing => 0,
            Follows::Answer(number) => AWAITED | (number % NUMBERS),
            Follows::Pieces { long, count } => {
                let units = count.min(MOST_PIECES) / UNIT;
                LONG | (long % NAMES) << COUNT_BITS | units as u32
            }
        }
    }

    /// What a message has carried.
    pub(super) fn of(bits: u32) -> Self {
        let follows = if bits & LONG != 0 {
            Follows::Pieces {
                long: bits >> COUNT_BITS & (NAMES - 1),
                count: (bits & COUNT) as usize * UNIT,
            }
        } else if bits & AWAITED != 0 {
            Follows::Answer(bits % NUMBERS)
        } else {
            Follows::Nothing
        };
        Mark {
            has_data: bits & DATA != 0,
            follows,
        }
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
        awaits.then(|| Tag((self.bits() & !DATA).into()))
    }

    /// The tag of the message that asks for its further pieces.
    pub(super) fn go(self) -> Tag {
        Tag(1 << 32 | u64::from(self.name()))
    }

    /// The tag of a further piece; they are numbered from 1.
    pub(super) fn piece(self, number: usize) -> Tag {
        Tag(u64::from(self.name()) << 16 | number as u64 & 0xffff)
    }

    /// The name of a message that goes in pieces.
    pub(super) fn name(self) -> u32 {
        match self.follows {
            Follows::Pieces { long, .. } => long,
            _ => 0,
        }
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
            Follows::Answer(NUMBERS - 1),
            Follows::Pieces {
                long: 0,
                count: UNIT,
            },
            Follows::Pieces {
                long: NAMES - 1,
                count: MOST_PIECES,
            },
        ] {
            for has_data in [false, true] {
                let mark = Mark { has_data, follows };
                assert_eq!(Mark::of(mark.bits()), mark);
            }
        }
        assert_eq!(Mark::of(0).bits(), 0);
        assert_eq!(Mark::of(0).answer(), None);
    }

    #[test]
    fn tags_tell_messages_and_kinds_apart() {
        let mark = |has_data, follows| Mark { has_data, follows };
        let (seven, eight) = (Follows::Answer(7), Follows::Answer(8));
        assert_eq!(mark(true, seven).answer(), mark(false, seven).answer());
        assert_ne!(mark(true, seven).answer(), mark(true, eight).answer());
        let long = mark(false, Follows::Pieces { long: 7, count: 7 });
        assert_ne!(mark(false, seven).answer(), long.answer());
        assert_ne!(Some(long.go()), long.answer());
        assert_ne!(long.piece(2), long.piece(3));
        let other = mark(false, Follows::Pieces { long: 8, count: 7 });
        assert_ne!(long.go(), other.go());
        assert_ne!(long.piece(2), other.piece(2));
    }

    #[test]
    fn pieces_count() {
        let follows = Follows::Pieces { long: 1, count: 3 };
        let has_data = false;
        assert_eq!(Mark { has_data, follows }.total(5), 5 + 3 * PIECE);
    }
}
