//! Marks: what endpoints tell each other of a message beside what the program has given it.
//!
//! ```text
//!   bit  15     14   13   12                  0
//!       ┌──────┬─────────┬─────────────────────┐
//!       │ data │ kind    │ by kind             │
//!       └──────┴─────────┴─────────────────────┘
//!   kind 0: nothing     1: an answer is awaited, and its number, 13 bits
//!   kind 2: pieces follow: 4 bits name the message, 9 count its further pieces
//! ```
//! An answer is a message without bytes to the message endpoint [`ANSWERS`], whose tag is the mark without its highest
//! bit. What asks for pieces goes there, too, and the pieces to [`PIECES`] ([`super::long`]).

use qnic::message::MessageEndpoint;

/// Where answers go.
pub(super) const ANSWERS: MessageEndpoint = endpoint(1);
/// Where the further pieces of long messages go.
pub(super) const PIECES: MessageEndpoint = endpoint(2);

/// Length of a further piece, in bytes.
pub(super) const PIECE: usize = 2 << 20;

/// How many answers can be awaited at a time.
pub(super) const MOST_ANSWERS: u16 = 1 << 13;
/// How many long messages can be on their way at a time.
pub(super) const MOST_LONG: u16 = 1 << 4;
/// Most further pieces of a message.
pub(super) const MOST_PIECES: usize = (1 << 9) - 1;

const DATA: u16 = 1 << 15;
const KIND: u16 = 3 << 13;
const AWAITED: u16 = 1 << 13;
const LONG: u16 = 2 << 13;

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
}

impl Mark {
    /// As a message carries it.
    pub(super) fn bits(self) -> u16 {
        let data = if self.has_data { DATA } else { 0 };
        data | match self.follows {
            Follows::Nothing => 0,
            Follows::Answer(number) => AWAITED | (number % MOST_ANSWERS),
            Follows::Pieces { long, count } => {
                LONG | (long % MOST_LONG) << 9 | count.min(MOST_PIECES) as u16
            }
        }
    }

    /// What a message has carried.
    pub(super) fn of(bits: u16) -> Self {
        let follows = match bits & KIND {
            AWAITED => Follows::Answer(bits % MOST_ANSWERS),
            LONG => Follows::Pieces {
                long: bits >> 9 & (MOST_LONG - 1),
                count: usize::from(bits) & MOST_PIECES,
            },
            _ => Follows::Nothing,
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
    pub(super) fn answer(self) -> Option<u64> {
        let awaits = self.follows != Follows::Nothing;
        awaits.then(|| (self.bits() & !DATA).into())
    }
}

/// The tag of the message that asks for the further pieces of a long one.
pub(super) fn go_tag(long: u16) -> u64 {
    1 << 32 | u64::from(long)
}

/// The tag of a further piece; they are numbered from 1.
pub(super) fn piece_tag(long: u16, number: usize) -> u64 {
    u64::from(long) << 32 | number as u64
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
            Follows::Pieces { long: 0, count: 1 },
            Follows::Pieces {
                long: MOST_LONG - 1,
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
    fn data_are_no_part_of_the_name_of_an_answer() {
        let mark = |has_data, follows| Mark { has_data, follows }.answer();
        let answer = Follows::Answer(7);
        assert_eq!(mark(true, answer), mark(false, answer));
        let long = Follows::Pieces { long: 7, count: 7 };
        assert_ne!(mark(false, answer), mark(false, long));
    }

    #[test]
    fn pieces_count() {
        let (long, count) = (1, 3);
        let follows = Follows::Pieces { long, count };
        let mark = Mark {
            has_data: false,
            follows,
        };
        assert_eq!(mark.total(5), 5 + 3 * PIECE);
        assert_ne!(piece_tag(1, 2), piece_tag(2, 1));
    }
}
