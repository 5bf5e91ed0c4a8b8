//! The messages of one source of a group at one NIC: what has come of them, and which members and
//! neighbours have taken it.
//!
//! ```text
//!   parts ──► coming ──► pieces:  │ 7 │ 8 │ 9 │      first = 7
//!                                   ▲       ▲
//!                                   │       past: a member here has taken those before it
//!                                   taken: those on the side of a neighbour have
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use qnic_abi::multicast::{kept_bytes, piece_bytes, Multicast, PartFlags, MAX_RANKS};
use qnic_abi::Status;

use super::outbox::{Content, Outbox};
use super::place::Relatives;
use crate::letter::Letter;

/// What a message costs beside its bytes and ranks: so many messages of no byte are bounded, too.
pub(super) const OVERHEAD: u64 = 64;

/// Most bytes of a source that are under way in a group of that size: one message of one piece fits.
pub(super) const fn window(size: u32) -> u64 {
    kept_bytes(size) as u64 + 2 * MAX_RANKS as u64 + OVERHEAD
}

/// Bytes of the piece of a message that begins there.
pub(super) fn piece_at(size: u32, fields: &Multicast) -> u64 {
    let left = fields.row() - u64::from(fields.offset.get());
    left.min(piece_bytes(size, fields.length.get()))
}

/// The messages of one source.
#[derive(Debug)]
pub(super) struct Stream {
    /// The neighbour towards the source; none, if that is here.
    pub(super) from: Option<u16>,
    /// Those that a member here has not taken, and how many were before them.
    pub(super) letters: VecDeque<Letter>,
    first: u64,
    /// How many each member here is past. The source is past all.
    pub(super) past: Vec<u64>,
    /// How many were taken on the side of each other neighbour.
    pub(super) taken: Vec<(u16, u64)>,
    /// How many the source, or the neighbour towards it, knows to be taken.
    pub(super) told: u64,
    /// The next one, as far as it is here. One without bytes is a later piece of a message that has begun.
    coming: Option<Letter>,
}

impl Stream {
    pub(super) fn new(from: Option<u16>, members: usize, relatives: &Relatives) -> Self {
        let others = relatives.all().filter(|node| Some(*node) != from);
        Stream {
            from,
            letters: VecDeque::new(),
            first: 0,
            past: vec![0; members],
            taken: others.map(|node| (node, 0)).collect(),
            told: 0,
            coming: None,
        }
    }

    /// How many have come as a whole.
    pub(super) fn whole(&self) -> u64 {
        self.first + self.letters.len() as u64
    }

    /// How many were taken by all.
    pub(super) fn done(&self) -> u64 {
        let taken = self.taken.iter().map(|(_, taken)| *taken);
        let all = taken.chain(self.past.iter().copied());
        all.fold(self.whole(), u64::min)
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        let coming = self.coming.iter().filter(|letter| !letter.row.is_empty());
        let letters = self.letters.iter().chain(coming);
        letters
            .map(|letter| letter.row.len() as u64 + OVERHEAD)
            .sum()
    }

    /// Sends a part on.
    pub(super) fn pass_on(&self, fields: &Multicast, part: &Arc<[u8]>, outbox: &mut Outbox) {
        for (node, _) in &self.taken {
            outbox.push(*node, Content::Multicast(*fields), Some(part.clone()));
        }
    }

    /// Takes a part of a neighbour, in a group of that size. Returns true if a piece is here as a whole.
    pub(super) fn receive(
        &mut self,
        fields: &Multicast,
        part: &[u8],
        size: u32,
    ) -> Result<bool, Status> {
        let coming = self.coming.take();
        let has_begun = coming.is_some();
        let mut letter = coming.unwrap_or_else(|| Letter {
            fields: Multicast {
                offset: 0.into(),
                flags: fields.flags & !PartFlags::GIVEN_UP.bits(),
                ..*fields
            },
            ranks: Arc::default(),
            row: Vec::new(),
        });
        let given_up = fields.flags & PartFlags::GIVEN_UP.bits();
        let begun = letter.row.len();
        let expected = Multicast {
            offset: (letter.fields.offset.get() + begun as u32).into(),
            flags: letter.fields.flags | given_up,
            ..letter.fields
        };
        if *fields != expected {
            return Err(Status::Malformed);
        }
        if given_up != 0 {
            if !has_begun || begun > 0 || !part.is_empty() {
                return Err(Status::Malformed);
            }
            letter.fields.flags |= given_up;
            self.letters.push_back(letter);
            return Ok(true);
        }
        let piece = piece_at(size, &letter.fields);
        let is_too_much = begun == 0 && self.kept_bytes() + piece + OVERHEAD > window(size);
        letter.row.extend_from_slice(part);
        let length = letter.row.len() as u64;
        if is_too_much || length > piece || part.is_empty() && piece > 0 {
            return Err(Status::Malformed);
        }
        if length < piece {
            self.coming = Some(letter);
            return Ok(false);
        }
        if letter.is_first() {
            letter.ranks = letter.row[..2 * usize::from(fields.ranks.get())].into();
        }
        if !letter.is_last() {
            self.coming = Some(Letter {
                fields: Multicast {
                    offset: (letter.fields.offset.get() + length as u32).into(),
                    ..letter.fields
                },
                ranks: letter.ranks.clone(),
                row: Vec::new(),
            });
        }
        self.letters.push_back(letter);
        Ok(true)
    }

    /// Gives a member what has come for it. Returns true if it has taken all.
    pub(super) fn deliver(
        &mut self,
        index: usize,
        rank: u32,
        mut take: impl FnMut(&Letter) -> bool,
    ) -> bool {
        let Some(past) = self.past.get_mut(index) else {
            return true;
        };
        while let Some(letter) = self.letters.get((*past - self.first) as usize) {
            if letter.is_for(rank) && !take(letter) {
                return false;
            }
            *past += 1;
        }
        true
    }

    /// Forgets what all members here are past.
    pub(super) fn forget_past(&mut self) {
        let past = self.past.iter().copied().fold(self.whole(), u64::min);
        while self.first < past {
            self.letters.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::GroupId;
    use super::*;

    /// Of the size of the group.
    const SIZE: u32 = 2;

    fn stream() -> Stream {
        Stream::new(
            Some(1),
            1,
            &Relatives::new(GroupId::default(), 1, Vec::new()),
        )
    }

    fn message(length: u32, offset: u32) -> Multicast {
        Multicast {
            length: length.into(),
            offset: offset.into(),
            ..Multicast::default()
        }
    }

    fn given_up(fields: Multicast) -> Multicast {
        Multicast {
            flags: PartFlags::GIVEN_UP.bits(),
            ..fields
        }
    }

    /// A neighbour that sends more than the window, of messages of any length, spoils its group and takes no
    /// more memory here.
    #[test]
    fn no_more_than_the_window_is_kept_of_a_source() {
        let most = window(SIZE);
        let kept = kept_bytes(SIZE);
        for length in [0, 1, 4000, kept, kept + 1, 1_000_000] {
            let mut stream = stream();
            let piece = piece_at(SIZE, &message(length, 0));
            let mut offset = 0;
            let refused = loop {
                let part = vec![7; piece.min(u64::from(length - offset)) as usize];
                match stream.receive(&message(length, offset), &part, SIZE) {
                    Ok(is_whole) => assert!(is_whole),
                    Err(status) => break status,
                }
                assert!(stream.kept_bytes() <= most, "{length}");
                offset += part.len() as u32;
                offset = if offset == length { 0 } else { offset };
            };
            assert_eq!(refused, Status::Malformed);
            assert!(
                stream.kept_bytes() + piece + OVERHEAD > most,
                "{length}: {}",
                stream.kept_bytes()
            );
        }
    }

    #[test]
    fn parts_that_are_none_of_the_message_are_refused() {
        let fields = |offset: u32, tag: u64| Multicast {
            tag: tag.into(),
            ..message(100, offset)
        };
        let begun = || {
            let mut stream = stream();
            assert_eq!(stream.receive(&fields(0, 1), &[0; 64], SIZE), Ok(false));
            stream
        };
        assert_eq!(begun().receive(&fields(64, 1), &[0; 36], SIZE), Ok(true));
        for (offset, tag, length) in [
            (0, 1, 36),
            (65, 1, 35),
            (64, 2, 36),
            (64, 1, 37),
            (64, 1, 0),
        ] {
            let received = begun().receive(&fields(offset, tag), &vec![0; length], SIZE);
            assert_eq!(
                received,
                Err(Status::Malformed),
                "{offset}, {tag}, {length}"
            );
        }
        let first = stream().receive(&fields(64, 1), &[0; 36], SIZE);
        assert_eq!(first, Err(Status::Malformed));
        let first = stream().receive(&given_up(fields(0, 1)), &[], SIZE);
        assert_eq!(first, Err(Status::Malformed), "none has begun");
        let within = begun().receive(&given_up(fields(64, 1)), &[], SIZE);
        assert_eq!(within, Err(Status::Malformed), "a piece has begun");
    }

    /// A long message comes in pieces; a part is within one. Behind a piece it may be given up.
    #[test]
    fn a_long_message_comes_in_pieces() {
        let length = kept_bytes(SIZE) + 1;
        let piece = piece_at(SIZE, &message(length, 0)) as u32;
        let begun = || {
            let mut stream = stream();
            let first = vec![1; piece as usize];
            let received = stream.receive(&message(length, 0), &first, SIZE);
            assert_eq!(received, Ok(true));
            stream
        };
        let mut stream = stream();
        let received = stream.receive(&message(length, 0), &vec![1; piece as usize + 1], SIZE);
        assert_eq!(received, Err(Status::Malformed), "longer than a piece");
        let mut stream = begun();
        for (offset, bytes) in [(piece, 100), (piece + 100, piece - 100)] {
            let part = vec![1; bytes as usize];
            let received = stream.receive(&message(length, offset), &part, SIZE);
            assert_eq!(received, Ok(offset > piece));
        }
        assert_eq!(stream.letters.len(), 2);
        let mut stream = begun();
        let end = given_up(message(length, piece));
        assert_eq!(stream.receive(&end, &[1], SIZE), Err(Status::Malformed));
        let mut stream = begun();
        assert_eq!(stream.receive(&end, &[], SIZE), Ok(true));
        assert!(stream.letters[1].is_given_up() && stream.letters[1].is_last());
        // The next message begins anew.
        assert_eq!(stream.receive(&message(3, 0), &[0; 3], SIZE), Ok(true));
    }
}
