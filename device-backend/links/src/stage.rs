//! The impairment stage: one direction of one link, sans-IO (X4).
//!
//! ```text
//!   offer(now, image) ─► partition? loss? ─► copies ─► bits flip ─► rate ─► delay, jitter
//!                             │ gone                                  │ full queue: gone
//!                             ▼                                       ▼
//!                                          heap by release time ─► poll(now) ─► image
//! ```
//!
//! Time is passed in and chance comes from a seed, so the device process and the
//! simulator run the same code, and the same calls give the same result.
//!
//! - Order is kept, but for frames that `reorder` picks: each is held back by up to
//!   [`HOLD`] and overtaken by what comes meanwhile.
//! - `rate` sends frames one after the other; those that would wait longer than
//!   [`BACKLOG`] are dropped, as by a switch with so much buffer.
//! - A frame keeps the fate that it was given when it was offered: new settings
//!   hold for the frames after them. A partition stops those under way, too.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use qnic_nic::Time;
use serde::Serialize;

use crate::impairment::Impairments;

/// Longest time that a frame is held back so that others overtake it, in nanoseconds.
pub const HOLD: u64 = 100_000;

/// Longest time that a frame waits for those before it on a link with a rate, in nanoseconds.
pub const BACKLOG: u64 = 50_000_000;

/// Most bytes under way on one stage; what comes beyond is dropped.
pub const CAPACITY: usize = 64 << 20;

/// Most bits that flip in a frame that is corrupted.
const FLIPS: usize = 8;

/// What becomes of a frame that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It will arrive, once or more often, perhaps damaged.
    Passes,
    /// Lost by chance.
    Lost,
    /// Nothing passes.
    Cut,
    /// The queue is full.
    Overflowed,
}

/// What a stage has done, in frames but where it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct StageCounters {
    /// Offered.
    pub offered: u64,
    /// Bytes offered.
    pub offered_bytes: u64,
    /// Let out, copies counted.
    pub released: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Stopped by a partition.
    pub cut: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Held back for others to overtake.
    pub reordered: u64,
    /// Damaged.
    pub corrupted: u64,
}

/// A frame under way; the order is that of release.
#[derive(Debug)]
struct Held<T> {
    release: Time,
    /// Number of the frame: those of one instant keep their order.
    number: u64,
    image: Vec<u8>,
    tag: T,
}

impl<T> Held<T> {
    fn place(&self) -> (Time, u64) {
        (self.release, self.number)
    }
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<T> Eq for Held<T> {}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Held<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

/// A frame that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When it arrived, which may be before it was asked for.
    pub at: Time,
    /// The frame, perhaps damaged.
    pub image: Vec<u8>,
    /// As it was offered.
    pub tag: T,
}

/// One direction of one link. Each frame carries a tag of its sender's choice, which
/// nothing damages: where it goes on.
#[derive(Debug)]
pub struct Stage<T> {
    settings: Impairments,
    random: fastrand::Rng,
    held: BinaryHeap<Reverse<Held<T>>>,
    held_bytes: usize,
    next_number: u64,
    /// When the line has sent what was offered before.
    line_free: Time,
    /// Release of the last frame that keeps the order.
    last_release: Time,
    counters: StageCounters,
}

impl<T: Copy> Stage<T> {
    /// A stage without frames.
    pub fn new(settings: Impairments, seed: u64) -> Self {
        Stage {
            settings,
            random: fastrand::Rng::with_seed(seed),
            held: BinaryHeap::new(),
            held_bytes: 0,
            next_number: 0,
            line_free: Time(0),
            last_release: Time(0),
            counters: StageCounters::default(),
        }
    }

    /// What it does.
    pub fn settings(&self) -> &Impairments {
        &self.settings
    }

    /// Does something else from now on.
    pub fn set(&mut self, settings: Impairments) {
        self.settings = settings;
        self.line_free = Time(0);
    }

    /// Says whether frames pass unchanged and at once.
    pub fn is_clear(&self) -> bool {
        self.settings.is_none() && self.held.is_empty()
    }

    /// What it has done.
    pub fn counters(&self) -> &StageCounters {
        &self.counters
    }

    /// Number of frames under way.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes a frame.
    pub fn offer(&mut self, now: Time, image: Vec<u8>, tag: T) -> Fate {
        self.counters.offered += 1;
        self.counters.offered_bytes += image.len() as u64;
        if self.settings.partition {
            self.counters.cut += 1;
            return Fate::Cut;
        }
        if self.happens(self.settings.loss.get()) {
            self.counters.lost += 1;
            return Fate::Lost;
        }
        let twice = self.happens(self.settings.duplicate.get());
        self.counters.duplicated += u64::from(twice);
        let second = twice.then(|| image.clone());
        let fate = self.carry(now, image, tag);
        if let Some(second) = second {
            self.carry(now, second, tag);
        }
        fate
    }

    /// The next frame that has arrived.
    pub fn poll(&mut self, now: Time) -> Option<Arrival<T>> {
        self.poll_or_cut(now, |_, _| {})
    }

    /// The same; calls `cut` with the time and the image of each frame that a
    /// partition has stopped on its way.
    pub fn poll_or_cut(
        &mut self,
        now: Time,
        mut cut: impl FnMut(Time, &[u8]),
    ) -> Option<Arrival<T>> {
        loop {
            let next = self.held.peek()?;
            if next.0.release > now {
                return None;
            }
            let Reverse(held) = self.held.pop()?;
            self.held_bytes -= held.image.len();
            if self.settings.partition {
                self.counters.cut += 1;
                cut(held.release, &held.image);
                continue;
            }
            self.counters.released += 1;
            return Some(Arrival {
                at: held.release,
                image: held.image,
                tag: held.tag,
            });
        }
    }

    /// When the next frame arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        self.held.peek().map(|next| next.0.release)
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }

    /// Sends one copy.
    fn carry(&mut self, now: Time, mut image: Vec<u8>, tag: T) -> Fate {
        let Some(sent) = self.transmit(now, image.len()) else {
            self.counters.overflowed += 1;
            return Fate::Overflowed;
        };
        if self.happens(self.settings.corrupt.get()) {
            self.counters.corrupted += 1;
            self.corrupt(&mut image);
        }
        let release = self.release(sent);
        self.held_bytes += image.len();
        self.held.push(Reverse(Held {
            release,
            number: self.next_number,
            image,
            tag,
        }));
        self.next_number += 1;
        Fate::Passes
    }

    /// When the line has sent so many bytes; `None` if they do not fit into the queue.
    fn transmit(&mut self, now: Time, bytes: usize) -> Option<Time> {
        if self.held_bytes + bytes > CAPACITY {
            return None;
        }
        let Some(rate) = self.settings.rate else {
            return Some(now);
        };
        let start = self.line_free.max(now);
        if start.0 - now.0 > BACKLOG {
            return None;
        }
        self.line_free = start.after(rate.nanoseconds_for(bytes));
        Some(self.line_free)
    }

    /// When a frame that was sent at `sent` arrives.
    fn release(&mut self, sent: Time) -> Time {
        let delay = self.settings.delay.get();
        let jitter = self.settings.jitter.get();
        let mut release = sent.after(delay);
        if jitter > 0 {
            let shift = self.random.u64(0..=2 * jitter);
            release = sent.after((delay + shift).saturating_sub(jitter));
        }
        if self.happens(self.settings.reorder.get()) {
            self.counters.reordered += 1;
            return release.after(self.random.u64(1..=HOLD));
        }
        self.last_release = self.last_release.max(release);
        self.last_release
    }

    /// Flips at least one bit, and never so that all flips cancel out.
    fn corrupt(&mut self, image: &mut [u8]) {
        let bits = image.len() * 8;
        if bits == 0 {
            return;
        }
        let first = self.random.usize(0..bits);
        image[first / 8] ^= 1 << (first % 8);
        for _ in 0..self.random.usize(0..FLIPS) {
            let bit = self.random.usize(0..bits);
            if bit != first {
                image[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Probability, Rate, Span};
    use proptest::prelude::*;

    const FRAMES: u32 = 20_000;

    fn image(number: u32) -> Vec<u8> {
        let mut image = vec![0; 100];
        image[..4].copy_from_slice(&number.to_le_bytes());
        image
    }

    fn arrival(at: u64, number: u32) -> Arrival<()> {
        Arrival {
            at: Time(at),
            image: image(number),
            tag: (),
        }
    }

    fn number(image: &[u8]) -> u32 {
        u32::from_le_bytes(image[..4].try_into().unwrap())
    }

    /// Offers frames 1 µs apart and returns what comes out, with its time.
    fn run(settings: Impairments, seed: u64) -> (Stage<()>, Vec<(Time, Vec<u8>)>) {
        let mut stage = Stage::new(settings, seed);
        let mut out = Vec::new();
        for frame in 0..FRAMES {
            let now = Time(u64::from(frame) * 1000);
            stage.offer(now, image(frame), ());
            while let Some(arrival) = stage.poll(now) {
                out.push((now, arrival.image));
            }
        }
        while let Some(now) = stage.next_deadline() {
            out.extend(stage.poll(now).map(|arrival| (arrival.at, arrival.image)));
        }
        (stage, out)
    }

    fn percent(percent: f64) -> Probability {
        Probability::percent(percent)
    }

    /// Within five standard deviations of a binomial with [`FRAMES`] draws.
    fn close(count: u64, probability: f64) -> bool {
        let frames = f64::from(FRAMES);
        let deviation = (frames * probability * (1.0 - probability)).sqrt();
        (count as f64 - frames * probability).abs() <= 5.0 * deviation
    }

    #[test]
    fn without_impairments_everything_passes_at_once_in_order() {
        let (stage, out) = run(Impairments::NONE, 1);
        assert!(stage.is_clear());
        for (index, (at, image)) in out.iter().enumerate() {
            assert_eq!(at.0, index as u64 * 1000);
            assert_eq!(number(image), index as u32);
        }
        assert_eq!(out.len(), FRAMES as usize);
    }

    #[test]
    fn chance_keeps_to_its_probability() {
        for (seed, chance) in [(1, 1.0), (2, 5.0), (3, 20.0)] {
            let settings = Impairments {
                loss: percent(chance),
                duplicate: percent(chance),
                ..Impairments::NONE
            };
            let (stage, out) = run(settings, seed);
            let counters = stage.counters();
            let probability = chance / 100.0;
            assert!(close(counters.lost, probability), "{counters:?}");
            let twice = probability * (1.0 - probability);
            assert!(close(counters.duplicated, twice), "{counters:?}");
            let expected = u64::from(FRAMES) - counters.lost + counters.duplicated;
            assert_eq!(out.len() as u64, expected);
            assert_eq!(counters.released, expected);
        }
    }

    #[test]
    fn corruption_changes_a_frame_and_no_other() {
        let settings = Impairments {
            corrupt: percent(10.0),
            ..Impairments::NONE
        };
        let (stage, out) = run(settings, 4);
        let damaged = out
            .iter()
            .zip(0..)
            .filter(|((_, found), index)| *found != image(*index))
            .count() as u64;
        assert_eq!(damaged, stage.counters().corrupted);
        assert!(close(damaged, 0.1), "{damaged}");
    }

    #[test]
    fn delay_and_jitter_keep_the_order() {
        let settings = Impairments {
            delay: Span::nanoseconds(1_000_000),
            jitter: Span::nanoseconds(200_000),
            ..Impairments::NONE
        };
        let (_, out) = run(settings, 5);
        assert_eq!(out.len(), FRAMES as usize);
        let mut total = 0;
        for (index, (at, image)) in out.iter().enumerate() {
            assert_eq!(number(image), index as u32);
            let took = at.0 - index as u64 * 1000;
            assert!((800_000..=1_200_000).contains(&took), "{took}");
            total += took;
        }
        assert!(total / u64::from(FRAMES) > 900_000);
    }

    #[test]
    fn only_frames_held_back_are_overtaken() {
        let settings = Impairments {
            reorder: percent(5.0),
            ..Impairments::NONE
        };
        let (stage, out) = run(settings, 6);
        assert_eq!(out.len(), FRAMES as usize);
        let mut late = 0;
        let mut highest = 0;
        for (at, image) in &out {
            let number = number(image);
            late += u64::from(number < highest);
            highest = highest.max(number);
            assert!(at.0 - u64::from(number) * 1000 <= HOLD + 1000);
        }
        assert!(close(stage.counters().reordered, 0.05));
        assert!(late > stage.counters().reordered / 2, "{late}");
        assert!(late <= stage.counters().reordered, "{late}");
    }

    /// 100 bytes each µs are 800 Mbit/s; half of that passes, the rest does not fit.
    #[test]
    fn a_rate_lets_so_much_pass_and_no_more() {
        let settings = Impairments {
            rate: Some(Rate::bits_per_second(400_000_000)),
            ..Impairments::NONE
        };
        let mut stage = Stage::new(settings, 7);
        let mut passed = 0u64;
        for now in (0..200_000_000).step_by(1000).map(Time) {
            stage.offer(now, image(0), ());
            while stage.poll(now).is_some() {
                passed += 1;
            }
        }
        let expected = 100_000;
        assert!(passed.abs_diff(expected) < 10, "{passed}");
        assert!(stage.counters().overflowed > 0);
    }

    #[test]
    fn a_partition_stops_everything_until_it_heals() {
        let delay = Impairments {
            delay: Span::nanoseconds(1000),
            ..Impairments::NONE
        };
        let cut = Impairments {
            partition: true,
            ..delay
        };
        let mut stage = Stage::new(delay, 8);
        assert_eq!(stage.offer(Time(0), image(0), ()), Fate::Passes);
        stage.set(cut);
        assert_eq!(stage.offer(Time(1), image(1), ()), Fate::Cut);
        assert_eq!(stage.poll(Time(5000)), None);
        stage.set(delay);
        assert_eq!(stage.offer(Time(5000), image(2), ()), Fate::Passes);
        assert_eq!(stage.poll(Time(6000)), Some(arrival(6000, 2)));
        assert_eq!(stage.counters().cut, 2);
    }

    #[test]
    fn a_stage_that_nobody_empties_is_bounded() {
        let settings = Impairments {
            delay: Span::MAX,
            ..Impairments::NONE
        };
        let mut stage = Stage::new(settings, 9);
        let big = vec![0; 1 << 20];
        let fates: Vec<_> = (0..70)
            .map(|_| stage.offer(Time(0), big.clone(), ()))
            .collect();
        assert_eq!(
            fates.iter().filter(|fate| **fate == Fate::Passes).count(),
            64
        );
        assert_eq!(stage.counters().overflowed, 6);
    }

    fn impairments() -> impl Strategy<Value = Impairments> {
        let chance = || (0u32..=100).prop_map(|value| percent(f64::from(value)));
        let time = || (0u64..10_000_000).prop_map(Span::nanoseconds);
        let rate = prop::option::of((1u64..10_000_000_000).prop_map(Rate::bits_per_second));
        let chances = (chance(), chance(), chance(), chance());
        (chances, time(), time(), rate).prop_map(|(chances, delay, jitter, rate)| Impairments {
            loss: chances.0,
            reorder: chances.1,
            duplicate: chances.2,
            corrupt: chances.3,
            delay,
            jitter,
            rate,
            partition: false,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Every frame is accounted for, and the same seed gives the same run.
        #[test]
        fn frames_are_conserved_and_runs_repeat(settings in impairments(), seed: u64) {
            let go = || {
                let mut stage = Stage::new(settings, seed);
                let mut out = Vec::new();
                for frame in 0..300 {
                    stage.offer(Time(u64::from(frame) * 500), image(frame), ());
                    out.extend(stage.poll(Time(u64::from(frame) * 500)));
                }
                while let Some(now) = stage.next_deadline() {
                    out.extend(stage.poll(now));
                }
                (*stage.counters(), out)
            };
            let (counters, out) = go();
            prop_assert_eq!(
                counters.offered + counters.duplicated,
                counters.released + counters.lost + counters.cut + counters.overflowed
            );
            prop_assert_eq!(counters.released, out.len() as u64);
            prop_assert_eq!(go(), (counters, out));
        }
    }
}
