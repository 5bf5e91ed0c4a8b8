//! Messages on their way to a server, and which of them are lost.
//!
//! ```text
//!   sent ──► on its way ──┬── answered ──────────────────────────────► measured
//!                         ├── others that were sent later are answered ─┐
//!                         └── nothing is answered for a while ──────────┴─► lost, sent again
//! ```
//! A server answers in the order of requests, and its queue may be long. So a late answer alone is
//! no sign of a loss. A leg counts as lost when [`OVERTAKEN`] that were sent later are answered, and
//! it has been under way as long as most are, and as the one that was answered last (as in RACK, RFC 8985):
//! behind a peer that stood still, all have been under way for long. Where nothing was sent later, a
//! timer finds the loss: it runs for the oldest leg, and restarts with each answer (RFC 6298).
//! When it fires, one leg is sent again; its answer shows which of the others are lost.
//!
//! The number of a request says which of its transmissions it is, and answers carry it
//! ([`Slots::number`](super::slots::Slots::number)). So an answer that is only late is not taken for that to
//! the second transmission: it overtakes nothing. A peer that stands still for longer than the timeout, as an
//! emulated guest on a busy machine does again and again, costs a message each time the timer fires, and not all that are on their
//! way. The doubled timeout stays until a transmission is answered whose time is known (Karn's algorithm).
//! Otherwise the client would never learn that the round trip has become longer.
//!
//! [`Congestion`] limits the legs on their way by the time that they wait at the server. So a client does
//! not fill the queue of a server that serves others, too.

use qnic_shared::timing::{Acknowledged, Congestion, RetransmitLimits, RoundTrip, Time};

use super::slots::LegOf;
use crate::platform::NoMemory;
use crate::remote_memory::queue::Queue;

/// A leg may be lost when so many later ones are answered: fewer may be reordering.
const OVERTAKEN: u64 = 3;

/// Which transmission of a leg is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answered {
    /// The latest one.
    Latest,
    /// An earlier one, of this time.
    SentAt(u64),
    /// An earlier one.
    Earlier,
}

/// One transmission.
#[derive(Debug, Clone, Copy)]
struct Sent {
    leg: LegOf,
    number: u64,
    at: u64,
    /// Since when its answer may come; `None` while the NIC reads its page.
    left: Option<u64>,
}

/// All transmissions to a server that are neither answered nor lost, the oldest first.
#[derive(Debug)]
pub(super) struct OnTheWay {
    legs: Queue<Sent>,
    trip: RoundTrip,
    congestion: Congestion,
    /// Number of transmissions so far, and the latest one that was answered.
    count: u64,
    newest: u64,
    /// How long the leg was under way that was answered last.
    latest: u64,
    /// When a leg was answered last, or the timer fired.
    progress_at: u64,
}

impl OnTheWay {
    /// No transmissions, with room for so many.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(capacity: usize) -> Result<Self, NoMemory> {
        Ok(OnTheWay {
            legs: Queue::new(capacity)?,
            trip: RoundTrip::default(),
            congestion: Congestion::default(),
            count: 0,
            newest: 0,
            latest: 0,
            progress_at: 0,
        })
    }

    /// Smoothed round trip in nanoseconds; zero before the first one.
    pub(super) fn round_trip(&self) -> u64 {
        self.trip.smoothed()
    }

    /// Returns true if one more may be on its way.
    pub(super) fn has_room(&self) -> bool {
        self.congestion.room(self.legs.len() as u32) > 0
    }

    /// A leg is sent. With `reads` it leaves when the NIC has read its page.
    pub(super) fn send(&mut self, now: u64, leg: LegOf, reads: bool) {
        self.count += 1;
        // A leg is on its way once: there is room.
        let _ = self.legs.push(Sent {
            leg,
            number: self.count,
            at: now,
            left: (!reads).then_some(now),
        });
    }

    /// The NIC has read the page of a leg.
    pub(super) fn left(&mut self, now: u64, leg: LegOf) {
        let sent = self.legs.iter_mut().find(|sent| sent.leg == leg);
        if let Some(sent) = sent {
            sent.left = Some(now);
        }
    }

    /// A leg is not needed any more.
    pub(super) fn remove(&mut self, leg: LegOf) {
        self.legs.retain(|sent| sent.leg != leg);
    }

    /// A leg is answered. `queue_delay`: how long it may wait at the server, in nanoseconds.
    pub(super) fn answered(&mut self, now: u64, leg: LegOf, which: Answered, queue_delay: u64) {
        self.progress_at = now;
        let sent = self.legs.iter().find(|sent| sent.leg == leg).copied();
        self.remove(leg);
        let at = match (which, sent) {
            (Answered::Latest, Some(sent)) => {
                self.newest = self.newest.max(sent.number);
                Some(sent.at)
            }
            (Answered::SentAt(at), _) => Some(at),
            _ => None,
        };
        let took = at.map(|at| now.saturating_sub(at));
        if let Some(took) = took {
            self.trip.sample(took);
            self.latest = took;
        }
        let news = Acknowledged {
            frames: 1,
            trip: took.unwrap_or(u64::MAX),
        };
        let used = self.legs.len() as u32;
        self.congestion.sample(Time(now), news, used, queue_delay);
    }

    /// A lost leg. It is not on its way any more.
    pub(super) fn next_lost(&mut self, now: u64, limits: &RetransmitLimits) -> Option<LegOf> {
        let typical = self.typical();
        let is_over = |sent: &&Sent| sent.left.is_some() && sent.at.saturating_add(typical) <= now;
        let overtaken = self.overtaken().find(is_over).copied();
        let lost = match overtaken {
            Some(lost) => lost,
            None => {
                let (oldest, due) = self.timer(limits)?;
                if due > now {
                    return None;
                }
                self.trip.back_off();
                self.progress_at = now;
                // When this leg is answered, all others have been overtaken.
                self.count += OVERTAKEN;
                oldest
            }
        };
        self.congestion.lost(Time(now), typical);
        self.remove(lost.leg);
        Some(lost.leg)
    }

    /// When [`OnTheWay::next_lost`] may find a leg; [`u64::MAX`] if there is nothing to wait for.
    pub(super) fn deadline(&self, limits: &RetransmitLimits) -> u64 {
        let typical = self.typical();
        let left = self.overtaken().filter(|sent| sent.left.is_some());
        let overtaken = left.map(|sent| sent.at.saturating_add(typical)).min();
        let timer = self.timer(limits).map(|(_, due)| due);
        overtaken.into_iter().chain(timer).min().unwrap_or(u64::MAX)
    }

    /// How long a leg is under way whose answer is not late.
    fn typical(&self) -> u64 {
        let typical = self.trip.typical();
        let variation = typical - self.trip.smoothed();
        typical.max(self.latest.saturating_add(variation))
    }

    fn overtaken(&self) -> impl Iterator<Item = &Sent> {
        let newest = self.newest;
        let all = self.legs.iter();
        all.take_while(move |sent| sent.number + OVERTAKEN <= newest)
    }

    /// The oldest leg that has left, and when it counts as lost if no answer comes.
    fn timer(&self, limits: &RetransmitLimits) -> Option<(Sent, u64)> {
        let left = self.legs.iter().find_map(|sent| Some((*sent, sent.left?)));
        let (oldest, left) = left?;
        let since = left.max(self.progress_at);
        Some((
            oldest,
            since.saturating_add(self.trip.timeout(limits, true)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIMITS: RetransmitLimits = RetransmitLimits {
        initial: 100 * MS,
        floor: 10 * MS,
        floor_oldest: 10 * MS,
        ceiling: 400 * MS,
        ack_delay: MS,
    };

    /// Transmissions to a server that was measured to answer after a millisecond.
    fn measured() -> OnTheWay {
        let mut on_the_way = OnTheWay::new(16).unwrap();
        for slot in 0..8 {
            on_the_way.send(u64::from(slot) * MS, (slot, 0), false);
            on_the_way.answered(
                (u64::from(slot) + 1) * MS,
                (slot, 0),
                Answered::Latest,
                10 * MS,
            );
        }
        on_the_way
    }

    #[test]
    fn answers_that_come_one_by_one_keep_the_timer_from_ending() {
        let mut on_the_way = measured();
        (0..8).for_each(|slot| on_the_way.send(100 * MS, (slot, 0), false));
        for slot in 0..8 {
            let now = (105 + 5 * u64::from(slot)) * MS;
            assert_eq!(on_the_way.next_lost(now, &LIMITS), None, "at {now}");
            on_the_way.answered(now, (slot, 0), Answered::Latest, 10 * MS);
        }
        assert_eq!(on_the_way.deadline(&LIMITS), u64::MAX);
        assert!(on_the_way.round_trip() > 10 * MS, "all of it was measured");
    }

    #[test]
    fn what_three_later_ones_have_overtaken_is_lost() {
        let mut on_the_way = measured();
        (0..5).for_each(|slot| on_the_way.send(100 * MS, (slot, 0), false));
        for slot in [1, 2] {
            on_the_way.answered(101 * MS, (slot, 0), Answered::Latest, 10 * MS);
            assert_eq!(on_the_way.next_lost(105 * MS, &LIMITS), None);
        }
        on_the_way.answered(101 * MS, (3, 0), Answered::Latest, 10 * MS);
        let due = on_the_way.deadline(&LIMITS);
        assert!(due < 103 * MS, "long before the timer: {due}");
        assert_eq!(on_the_way.next_lost(due - 1, &LIMITS), None);
        assert_eq!(on_the_way.next_lost(due, &LIMITS), Some((0, 0)));
        assert_eq!(on_the_way.next_lost(due, &LIMITS), None, "4 was sent last");
    }

    #[test]
    fn the_timer_sends_one_again_whose_answer_tells_of_the_others() {
        let mut on_the_way = measured();
        (0..4).for_each(|slot| on_the_way.send(100 * MS, (slot, 0), false));
        let due = on_the_way.deadline(&LIMITS);
        assert!(due >= 110 * MS);
        assert_eq!(on_the_way.next_lost(due, &LIMITS), Some((0, 0)));
        assert_eq!(on_the_way.next_lost(due, &LIMITS), None);
        on_the_way.send(due, (0, 0), false);
        assert!(
            on_the_way.deadline(&LIMITS) >= due + 20 * MS,
            "twice as long"
        );
        on_the_way.answered(due + MS, (0, 0), Answered::Latest, 10 * MS);
        let lost = [(); 4].map(|()| on_the_way.next_lost(due + MS, &LIMITS));
        assert_eq!(lost, [Some((1, 0)), Some((2, 0)), Some((3, 0)), None]);
    }

    #[test]
    fn an_answer_that_was_only_late_tells_of_no_loss_and_is_measured() {
        for which in [Answered::SentAt(100 * MS), Answered::Earlier] {
            let mut on_the_way = measured();
            (0..4).for_each(|slot| on_the_way.send(100 * MS, (slot, 0), false));
            let due = on_the_way.deadline(&LIMITS);
            assert_eq!(on_the_way.next_lost(due, &LIMITS), Some((0, 0)));
            on_the_way.send(due, (0, 0), false);
            let before = on_the_way.round_trip();
            on_the_way.answered(due + 5 * MS, (0, 0), which, 10 * MS);
            assert_eq!(on_the_way.next_lost(due + 5 * MS, &LIMITS), None);
            let is_measured = on_the_way.round_trip() > before;
            assert_eq!(is_measured, which != Answered::Earlier);
        }
    }

    #[test]
    fn what_the_nic_still_has_is_not_lost() {
        let mut on_the_way = measured();
        on_the_way.send(100 * MS, (0, 0), true);
        assert_eq!(on_the_way.deadline(&LIMITS), u64::MAX);
        for slot in 1..6 {
            on_the_way.send(100 * MS, (slot, 0), false);
            on_the_way.answered(101 * MS, (slot, 0), Answered::Latest, 10 * MS);
        }
        assert_eq!(on_the_way.next_lost(1000 * MS, &LIMITS), None);
        on_the_way.left(1000 * MS, (0, 0));
        assert_eq!(on_the_way.next_lost(1000 * MS, &LIMITS), Some((0, 0)));
    }
}
