//! Parts to messages. Parts come in any order, perhaps twice, perhaps never, and from senders that
//! lie: what is kept has a bound for each sender and in all, and a time limit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use qnic_abi::pool::{DatagramPart, MAX_DATAGRAM};
use qnic_abi::NodeId;
use zerocopy::FromBytes;

use super::{Datagram, SocketStatistics, PART};
use crate::pool::InputFrame;

/// Messages that are being joined: in all (4 MiB at the very most), and of one sender.
const MESSAGES: usize = 64;
const MESSAGES_OF_SENDER: usize = 16;

/// The sender of a message: node and datagram port.
type Sender = (NodeId, u16);

/// A message of which parts are missing.
#[derive(Debug)]
struct Partial {
    bytes: Vec<u8>,
    part_bytes: usize,
    has_come: Vec<bool>,
    missing: usize,
    began: Instant,
}

/// Messages that are being joined.
#[derive(Debug)]
pub(super) struct Joiner {
    timeout: Duration,
    partial: BTreeMap<(Sender, u32), Partial>,
}

/// A part that agrees with itself.
#[derive(Debug, Clone, Copy)]
struct Part {
    message: u32,
    length: usize,
    part_bytes: usize,
    number: usize,
    start: usize,
}

impl Part {
    fn check(header: &DatagramPart, bytes: usize) -> Option<Self> {
        let length = header.length.get() as usize;
        let part_bytes = usize::from(header.part_bytes.get());
        let number = usize::from(header.part.get());
        if length > MAX_DATAGRAM || part_bytes == 0 || header.reserved.get() != 0 {
            return None;
        }
        let start = number * part_bytes;
        let is_part = number < length.div_ceil(part_bytes).max(1);
        let expected = length.checked_sub(start)?.min(part_bytes);
        (is_part && bytes == expected).then_some(Part {
            message: header.message.get(),
            length,
            part_bytes,
            number,
            start,
        })
    }
}

impl Joiner {
    pub(super) fn new(timeout: Duration) -> Self {
        Joiner {
            timeout,
            partial: BTreeMap::new(),
        }
    }

    /// Takes a packet; returns the message if it is whole with it.
    pub(super) fn take(
        &mut self,
        now: Instant,
        frame: &InputFrame,
        counters: &mut SocketStatistics,
    ) -> Option<Datagram> {
        let sender = (frame.node(), frame.port());
        let bytes = frame.to_vec();
        let whole = self.join(now, sender, &bytes, counters)?;
        Some(Datagram {
            bytes: whole,
            node: sender.0,
            port: sender.1,
        })
    }

    fn join(
        &mut self,
        now: Instant,
        sender: Sender,
        bytes: &[u8],
        counters: &mut SocketStatistics,
    ) -> Option<Vec<u8>> {
        self.drop_late(now, counters);
        let part = DatagramPart::read_from_prefix(bytes).ok();
        let part = part.and_then(|(header, rest)| Part::check(&header, rest.len()));
        let Some(part) = part else {
            counters.malformed += 1;
            return None;
        };
        let piece = &bytes[PART..];
        if piece.len() == part.length {
            return Some(piece.to_vec());
        }
        let key = (sender, part.message);
        if !self.partial.contains_key(&key) {
            self.make_room(sender, counters);
        }
        let partial = self.partial.entry(key).or_insert_with(|| {
            let parts = part.length.div_ceil(part.part_bytes);
            Partial {
                bytes: vec![0; part.length],
                part_bytes: part.part_bytes,
                has_come: vec![false; parts],
                missing: parts,
                began: now,
            }
        });
        if partial.bytes.len() != part.length || partial.part_bytes != part.part_bytes {
            counters.malformed += 1;
            return None;
        }
        if std::mem::replace(&mut partial.has_come[part.number], true) {
            counters.repeated += 1;
            return None;
        }
        partial.bytes[part.start..part.start + piece.len()].copy_from_slice(piece);
        partial.missing -= 1;
        if partial.missing > 0 {
            return None;
        }
        self.partial.remove(&key).map(|partial| partial.bytes)
    }

    fn drop_late(&mut self, now: Instant, counters: &mut SocketStatistics) {
        let before = self.partial.len();
        let timeout = self.timeout;
        self.partial
            .retain(|_, partial| now.duration_since(partial.began) < timeout);
        counters.expired += (before - self.partial.len()) as u64;
    }

    /// Drops the oldest message of a sender that has too many, or the oldest of all.
    fn make_room(&mut self, sender: Sender, counters: &mut SocketStatistics) {
        let of_sender = || self.partial.range((sender, 0)..=(sender, u32::MAX));
        let oldest = match of_sender().count() >= MESSAGES_OF_SENDER {
            true => of_sender().min_by_key(|(_, partial)| partial.began),
            false if self.partial.len() >= MESSAGES => {
                self.partial.iter().min_by_key(|(_, partial)| partial.began)
            }
            false => None,
        };
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.partial.remove(&key);
            counters.crowded_out += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    const SENDER: Sender = (NodeId(1), 2000);

    fn parts(message: u32, bytes: &[u8], part_bytes: usize) -> Vec<Vec<u8>> {
        let pieces = bytes.chunks(part_bytes);
        let header = |part: usize| DatagramPart {
            message: message.into(),
            length: (bytes.len() as u32).into(),
            part: (part as u16).into(),
            part_bytes: (part_bytes as u16).into(),
            ..DatagramPart::default()
        };
        let pieces = pieces.enumerate();
        let frame = |(part, piece)| [header(part).as_bytes(), piece].concat();
        pieces.map(frame).collect()
    }

    #[test]
    fn a_message_that_stays_in_part_is_dropped_and_counted() {
        let mut joiner = Joiner::new(Duration::from_secs(1));
        let mut counters = SocketStatistics::default();
        let start = Instant::now();
        let all = parts(1, &[7; 100], 30);
        for part in &all[1..] {
            assert_eq!(joiner.join(start, SENDER, part, &mut counters), None);
        }
        assert_eq!(joiner.join(start, SENDER, &all[1], &mut counters), None);
        let late = start + Duration::from_secs(2);
        assert_eq!(joiner.join(late, SENDER, &all[0], &mut counters), None);
        assert_eq!((counters.repeated, counters.expired), (1, 1));
    }

    #[test]
    fn a_sender_that_never_ends_a_message_crowds_out_only_itself() {
        let mut joiner = Joiner::new(Duration::from_secs(1));
        let mut counters = SocketStatistics::default();
        let now = Instant::now();
        let good = parts(7, &[1; 100], 60);
        assert_eq!(joiner.join(now, SENDER, &good[0], &mut counters), None);
        for message in 0..1000 {
            let bad = &parts(message, &[1; 100], 60)[0];
            joiner.join(now, (NodeId(9), 1), bad, &mut counters);
        }
        assert_eq!(counters.crowded_out, 1000 - MESSAGES_OF_SENDER as u64);
        let whole = joiner.join(now, SENDER, &good[1], &mut counters);
        assert_eq!(whole, Some(vec![1; 100]));
    }

    proptest! {
        #[test]
        fn parts_join_in_any_order(
            lengths in prop::collection::vec((0usize..3000, 100usize..900), 1..10),
            order in any::<u64>(),
        ) {
            let mut joiner = Joiner::new(Duration::from_secs(1));
            let mut counters = SocketStatistics::default();
            let mut all = Vec::new();
            for (message, (length, part_bytes)) in (0..).zip(&lengths) {
                let bytes = vec![message as u8; *length];
                match bytes.is_empty() {
                    true => all.push([DatagramPart { part_bytes: 1.into(), ..Default::default() }.as_bytes(), &[]].concat()),
                    false => all.extend(parts(message, &bytes, *part_bytes)),
                }
            }
            all.sort_by_key(|part| part.iter().fold(order, |mixed, byte| {
                (mixed ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            }));
            let now = Instant::now();
            let mut found: Vec<_> = all.iter()
                .filter_map(|part| joiner.join(now, SENDER, part, &mut counters))
                .map(|whole| whole.len())
                .collect();
            found.sort_unstable();
            let mut expected: Vec<_> = lengths.iter().map(|(length, _)| *length).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(counters, SocketStatistics::default());
        }

        #[test]
        fn any_bytes_are_taken_or_counted(
            frames in prop::collection::vec((any::<[u8; 16]>(), 0usize..50, 0u8..4), 0..100),
        ) {
            let mut joiner = Joiner::new(Duration::from_secs(1));
            let mut counters = SocketStatistics::default();
            let now = Instant::now();
            for (mut header, length, plausible) in frames {
                if plausible > 0 {
                    header[1..4].fill(0);
                    header[5..8].fill(0);
                    header[9] = 0;
                    header[11..].fill(0);
                }
                let bytes = [&header[..], &vec![0; length]].concat();
                let _ = joiner.join(now, SENDER, &bytes, &mut counters);
                prop_assert!(joiner.partial.len() <= MESSAGES_OF_SENDER);
            }
        }
    }
}
