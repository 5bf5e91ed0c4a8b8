//! The receiving half of a session: which frames have arrived, and which of
//! them are delivered.
//!
//! ```text
//!   sequence    1 2 3 4 5 6 7 8 …
//!   arrived     ■ ■ ■ ■ □ ■ ■        received = 4;  ahead: 6, 7
//!   unsacked               ├─┤        6 to 7: the peer may not know that they have arrived
//!   open            ○     ○          open: 3, 6     delivered = 2
//!   notifications             N   N        of 4 and 7: wait until `delivered` is there
//! ```
//! Invariants: `delivered <= received`; `open` and `notifications` rise and hold only
//! numbers that have arrived, above `delivered`; `ahead` holds only numbers from
//! `received + 2` on. A number arrives once.

use std::collections::VecDeque;

use qnic_abi::VniId;

use super::refused::RefusedWrites;
use super::REACH;

const WORDS: usize = (REACH / 64) as usize;

/// Frames that one Ack speaks of beyond the first that is missing.
pub(super) const SACK_BITS: u64 = 256;

/// Where a frame stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// It is the next in order.
    Next,
    /// Others before it are missing.
    Ahead,
    /// It has arrived before.
    Old,
    /// It cannot be of a peer that keeps to its window.
    Outside,
}

/// A notification that waits for frames before its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingNotification {
    sequence: u64,
    /// The write that it belongs to.
    operation: u64,
    pub(crate) vni: VniId,
    pub(crate) notification: u32,
}

/// What has arrived from a peer.
#[derive(Debug, Default)]
pub(crate) struct ReceiveWindow {
    received: u64,
    /// Numbers that have arrived above `received`: bit `n % REACH`. Made when needed.
    ahead: Option<Box<[u64; WORDS]>>,
    /// How many there are.
    ahead_count: u32,
    /// The highest that there was.
    ahead_end: u64,
    /// First and last of the numbers ahead of which the peer may not know; only an Ack
    /// can tell it.
    unsacked: Option<(u64, u64)>,
    /// Numbers that have arrived and are not delivered.
    undelivered: VecDeque<u64>,
    notifications: VecDeque<PendingNotification>,
    refused: RefusedWrites,
    /// Refusals that were sent: the number of the Nak, and of what it refuses.
    refusals: VecDeque<(u64, u64)>,
    /// What the last acknowledgement said.
    last_acked: (u64, u64),
}

impl ReceiveWindow {
    /// Everything up to this number has arrived.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The highest number that has arrived.
    pub(crate) fn highest(&self) -> u64 {
        self.received.max(self.ahead_end)
    }

    /// Everything up to this number is delivered.
    #[inline]
    pub(crate) fn delivered(&self) -> u64 {
        match self.undelivered.front() {
            Some(open) => self.received.min(open - 1),
            None => self.received,
        }
    }

    /// Number of frames that have arrived and are not delivered.
    pub(crate) fn undelivered_count(&self) -> usize {
        self.undelivered.len()
    }

    /// Says where a frame stands that has just come.
    #[inline]
    pub(crate) fn position(&self, sequence: u64) -> Position {
        match sequence.wrapping_sub(self.received) {
            1 => Position::Next,
            distance if distance > 1 && distance <= REACH => match self.is_ahead(sequence) {
                true => Position::Old,
                false => Position::Ahead,
            },
            _ if sequence == 0 || sequence > self.received => Position::Outside,
            _ => Position::Old,
        }
    }

    fn is_ahead(&self, sequence: u64) -> bool {
        let bit = (sequence % REACH) as usize;
        let ahead = self.ahead.as_ref();
        ahead.is_some_and(|words| words[bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// Notes that a frame has arrived whose place is [`Position::Next`] or
    /// [`Position::Ahead`]. It counts as delivered unless it is held.
    #[inline]
    pub(crate) fn accept(&mut self, sequence: u64) {
        if sequence == self.received + 1 {
            self.received = sequence;
            if self.ahead_count > 0 {
                self.close_gap();
            }
        } else {
            self.accept_ahead(sequence);
        }
    }

    /// Returns true if all numbers from `first` to `last` are missing, and may come.
    #[inline]
    pub(crate) fn are_missing(&self, first: u64, last: u64) -> bool {
        let may_come = self.received < first && first <= last && last - self.received <= REACH;
        may_come && (!self.has_gap() || (first..=last).all(|number| !self.is_ahead(number)))
    }

    /// Notes that the next `count` numbers have arrived, which were all missing.
    pub(crate) fn accept_span(&mut self, count: u64) {
        self.received += count;
        if self.ahead_count > 0 {
            self.close_gap();
        }
    }

    #[cold]
    fn accept_ahead(&mut self, sequence: u64) {
        let bit = (sequence % REACH) as usize;
        let words = self.ahead.get_or_insert_with(|| Box::new([0; WORDS]));
        words[bit / 64] |= 1 << (bit % 64);
        self.ahead_count += 1;
        self.ahead_end = self.ahead_end.max(sequence);
        self.sack_again(sequence);
    }

    /// Notes that the peer does not know that a number has arrived, if that is ahead.
    #[cold]
    pub(crate) fn sack_again(&mut self, sequence: u64) {
        if sequence > self.received {
            let (first, last) = self.unsacked.unwrap_or((sequence, sequence));
            self.unsacked = Some((first.min(sequence), last.max(sequence)));
        }
    }

    /// Notes that the peer may know of nothing that has arrived ahead.
    pub(crate) fn sack_all_again(&mut self) {
        if self.has_gap() {
            self.unsacked = Some((self.received + 2, self.ahead_end));
        }
    }

    /// Returns true if an Ack has to tell what has arrived ahead.
    #[inline]
    pub(crate) fn sack_pending(&self) -> bool {
        self.ahead_count > 0 && self.unsacked.is_some_and(|(_, last)| last > self.received)
    }

    #[cold]
    fn close_gap(&mut self) {
        let Some(words) = &mut self.ahead else {
            return;
        };
        while self.ahead_count > 0 {
            let bit = ((self.received + 1) % REACH) as usize;
            let (word, mask) = (bit / 64, 1 << (bit % 64));
            if words[word] & mask == 0 {
                break;
            }
            words[word] &= !mask;
            self.ahead_count -= 1;
            self.received += 1;
        }
    }

    /// Returns true if frames are missing before others that have arrived.
    #[inline]
    pub(crate) fn has_gap(&self) -> bool {
        self.ahead_count > 0
    }

    /// What has arrived beyond the first that is missing, if anything has, from the first
    /// of which the peer may not know; it does then. The offset says where: bit *i* stands
    /// for `received + 2 + offset + i`.
    pub(crate) fn take_sack(&mut self) -> Option<(u64, [u64; 4])> {
        if !self.has_gap() {
            self.unsacked = None;
            return None;
        }
        let base = self.received + 2;
        let (first, last) = self.unsacked.take().unwrap_or((base, base));
        let first = first.max(base);
        let end = first + SACK_BITS;
        if last >= end {
            self.unsacked = Some((end, last));
        }
        let mut bits = [0; 4];
        for bit in 0..SACK_BITS.min((self.ahead_end + 1).saturating_sub(first)) {
            let arrived = self.is_ahead(first + bit);
            bits[bit as usize / 64] |= u64::from(arrived) << (bit % 64);
        }
        Some((first - base, bits))
    }

    /// Frames delivered that no acknowledgement has told the peer of.
    pub(crate) fn unacked(&self) -> u64 {
        self.delivered().saturating_sub(self.last_acked.1)
    }

    /// Notes that a frame that has arrived is not delivered yet.
    pub(crate) fn hold(&mut self, sequence: u64) {
        let index = self.undelivered.partition_point(|open| *open < sequence);
        if self.undelivered.get(index) != Some(&sequence) {
            self.undelivered.insert(index, sequence);
        }
    }

    /// Notes that a frame that was held is delivered. Without effect if it was not held.
    pub(crate) fn deliver(&mut self, sequence: u64) {
        if self.undelivered.front() == Some(&sequence) {
            self.undelivered.pop_front();
        } else if let Ok(index) = self.undelivered.binary_search(&sequence) {
            self.undelivered.remove(index);
        }
        self.refused.close(sequence, self.received);
    }

    /// Notes that a frame of a write is refused: the write does not notify any more.
    pub(crate) fn refuse(&mut self, sequence: u64, operation: u64) {
        self.refused.refuse(sequence, operation);
        self.notifications
            .retain(|notice| notice.operation != operation);
    }

    /// Returns true if a frame of a write was refused, of which more frames may come.
    #[inline]
    pub(crate) fn is_refused(&mut self, operation: u64) -> bool {
        self.refused.contains(operation, self.received)
    }

    /// Notes that the refusal of a frame that is held was sent.
    pub(crate) fn refusal_sent(&mut self, nak: u64, sequence: u64) {
        self.refusals.push_back((nak, sequence));
    }

    /// The peer has everything up to `acknowledge`: the next frame that it knows to
    /// be refused.
    #[inline]
    pub(crate) fn pop_refusal(&mut self, acknowledge: u64) -> Option<u64> {
        let (nak, sequence) = *self.refusals.front()?;
        (nak <= acknowledge).then(|| {
            self.refusals.pop_front();
            sequence
        })
    }

    /// Lets a notification wait for the frames before its own.
    pub(crate) fn defer(
        &mut self,
        (sequence, operation): (u64, u64),
        vni: VniId,
        notification: u32,
    ) {
        let notifications = &mut self.notifications;
        let index = notifications.partition_point(|notice| notice.sequence < sequence);
        let notice = PendingNotification {
            sequence,
            operation,
            vni,
            notification,
        };
        notifications.insert(index, notice);
    }

    /// The next notification that has waited long enough.
    #[inline]
    pub(crate) fn pop_notification(&mut self) -> Option<PendingNotification> {
        let due = self.notifications.front()?.sequence <= self.delivered();
        due.then(|| self.notifications.pop_front()).flatten()
    }

    /// Drops the notifications of a process that has ended.
    pub(crate) fn forget_notifications(&mut self, vni: VniId) {
        self.notifications.retain(|notice| notice.vni != vni);
    }

    /// Returns true if the peer knows less than it could.
    #[inline]
    pub(crate) fn ack_pending(&self) -> bool {
        self.last_acked.0 != self.received || self.last_acked.1 != self.delivered()
    }

    /// Notes that the peer learns `received` and `delivered` as they are now.
    #[inline]
    pub(crate) fn take_ack(&mut self) -> (u64, u64) {
        self.last_acked = (self.received, self.delivered());
        self.last_acked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn refused_frames_are_delivered_once_the_refusal_has_arrived() {
        let mut window = ReceiveWindow::default();
        for sequence in 1..=4 {
            assert_eq!(window.position(sequence), Position::Next);
            window.accept(sequence);
        }
        window.hold(2);
        window.hold(3);
        assert_eq!((window.received(), window.delivered()), (4, 1));
        window.refusal_sent(17, 2);
        assert_eq!(window.pop_refusal(16), None);
        assert_eq!(window.pop_refusal(17), Some(2));
        assert_eq!(window.pop_refusal(17), None);
        window.deliver(2);
        assert_eq!(window.delivered(), 2);
        window.deliver(3);
        window.deliver(3);
        assert_eq!(window.delivered(), 4);
    }

    #[test]
    fn a_write_of_which_a_frame_was_refused_does_not_notify() {
        let mut window = ReceiveWindow::default();
        for sequence in 1..=4 {
            window.accept(sequence);
        }
        window.hold(1);
        window.defer((2, 77), VniId(0), 5);
        window.defer((3, 78), VniId(0), 6);
        window.refuse(1, 77);
        assert!(window.is_refused(77) && !window.is_refused(78));
        assert_eq!(window.pop_notification(), None);
        window.deliver(1);
        assert_eq!(window.pop_notification().unwrap().notification, 6);
        assert_eq!(window.pop_notification(), None);
        // Its issuer knows of it; what it sent before may still be under way.
        assert!(window.is_refused(77));
        for sequence in 5..REACH + 4 {
            window.accept(sequence);
        }
        assert!(window.is_refused(77));
        window.accept(REACH + 4);
        assert!(!window.is_refused(77));
    }

    #[test]
    fn numbers_that_no_peer_would_send_are_outside() {
        let mut window = ReceiveWindow::default();
        window.accept(1);
        assert_eq!(window.position(0), Position::Outside);
        assert_eq!(window.position(1), Position::Old);
        assert_eq!(window.position(1 + REACH), Position::Ahead);
        assert_eq!(window.position(2 + REACH), Position::Outside);
        assert_eq!(window.position(u64::MAX), Position::Outside);
    }

    #[test]
    fn the_peer_is_told_of_each_number_ahead_until_it_must_know() {
        let mut window = ReceiveWindow::default();
        for sequence in [3, 4, 700] {
            window.accept(sequence);
        }
        assert!(window.sack_pending());
        assert_eq!(window.take_sack(), Some((1, [0b11, 0, 0, 0])));
        assert_eq!(window.take_sack(), Some((257, [0; 4])));
        let (offset, bits) = window.take_sack().unwrap();
        assert_eq!(
            (offset, bits[(698 - offset as usize) / 64].count_ones()),
            (513, 1)
        );
        assert!(!window.sack_pending());
        // Nothing new: from the first gap on, as the sender that asks knows nothing.
        assert_eq!(window.take_sack(), Some((0, [0b110, 0, 0, 0])));
        assert_eq!(window.position(4), Position::Old);
        window.sack_again(4);
        assert_eq!(window.take_sack(), Some((2, [0b1, 0, 0, 0])));
        window.sack_all_again();
        let parts = std::iter::from_fn(|| window.sack_pending().then(|| window.take_sack()));
        assert_eq!(parts.count(), 3);
        window.accept(1);
        window.sack_again(1);
        window.accept(2);
        assert!(!window.sack_pending(), "what is received needs no map");
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Arrive(u64, bool, bool),
        Deliver(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..70, prop::bool::weighted(0.3), any::<bool>())
                .prop_map(|(ahead, held, notice)| Step::Arrive(ahead, held, notice)),
            1 => any::<prop::sample::Index>().prop_map(Step::Deliver),
        ]
    }

    proptest! {
        #[test]
        fn the_window_agrees_with_sets(
            start in prop_oneof![Just(0u64), REACH - 40..REACH + 40],
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let mut window = ReceiveWindow::default();
            for sequence in 1..=start {
                window.accept(sequence);
            }
            let mut arrived: BTreeSet<u64> = (1..=start).collect();
            let mut received = start;
            let mut held = BTreeSet::new();
            let mut known = BTreeSet::new();
            let mut waiting = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Arrive(ahead, hold, notice) => {
                        let sequence = window.received() + ahead;
                        let expected = match ahead {
                            _ if arrived.contains(&sequence) => Position::Old,
                            0 => Position::Outside,
                            1 => Position::Next,
                            _ => Position::Ahead,
                        };
                        prop_assert_eq!(window.position(sequence), expected);
                        if matches!(expected, Position::Old | Position::Outside) {
                            continue;
                        }
                        arrived.insert(sequence);
                        window.accept(sequence);
                        if hold {
                            held.insert(sequence);
                            window.hold(sequence);
                        }
                        if notice {
                            waiting.insert(sequence);
                            window.defer((sequence, 0), VniId(0), sequence as u32);
                        }
                    }
                    Step::Deliver(index) if !held.is_empty() => {
                        let sequence = *held.iter().nth(index.index(held.len())).unwrap();
                        held.remove(&sequence);
                        window.deliver(sequence);
                    }
                    Step::Deliver(_) => {}
                }
                while arrived.contains(&(received + 1)) {
                    received += 1;
                }
                let delivered = held.first().map_or(received, |held| received.min(held - 1));
                prop_assert_eq!(window.received(), received);
                prop_assert_eq!(window.delivered(), delivered);
                prop_assert_eq!(window.undelivered_count(), held.len());
                known.retain(|sequence| *sequence > received);
                while window.sack_pending() {
                    let (offset, bits) = window.take_sack().unwrap();
                    for bit in 0..SACK_BITS {
                        let sequence = received + 2 + offset + bit;
                        let set = bits[bit as usize / 64] >> (bit % 64) & 1 == 1;
                        prop_assert_eq!(set, arrived.contains(&sequence));
                        if set {
                            known.insert(sequence);
                        }
                    }
                }
                prop_assert!(arrived.range(received + 1..).eq(&known), "all that is ahead is acknowledged");
                while let Some(notice) = window.pop_notification() {
                    let first = waiting.pop_first().unwrap();
                    prop_assert_eq!(u64::from(notice.notification), first);
                    prop_assert!(first <= delivered, "too early");
                }
                prop_assert!(waiting.first().is_none_or(|first| *first > delivered), "too late");
            }
        }
    }
}
