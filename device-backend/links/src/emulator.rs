//! The link emulator: one direction of one link, sans-IO (X4).
//!
//! ```text
//!   offer(now, channel, image) ─► partition? loss? ─► copies ─► bits flip ─► rate ─┐
//!                                      │ dropped                              │ queue full:
//!                                      ▼                                      ▼ dropped
//!           image ◄─ poll(now) ◄─ queue by arrival time ◄─ delay, jitter ◄────────┘
//! ```
//!
//! Time is passed in and randomness comes from a seed, so the device process and the
//! simulator run the same code, and the same calls give the same result.
//!
//! - Order is kept, but for two cases. A frame that `reorder` picks is delayed by up to
//!   [`REORDER_DELAY`], and later frames overtake it. On a link with a rate, frames of the
//!   priority channel overtake those of the data channel (U4).
//! - `rate` sends frames one after the other (the module `line`); the bytes of both channels count. A
//!   frame that would wait longer than [`BACKLOG`] is dropped, as by a switch with a buffer of
//!   that size. A small frame waits for the frame that is being sent and for other small frames, as
//!   the module `turns` says. These are few, because a window bounds the small frames under way
//!   between two NICs.
//! - The verdict on a frame is given when it is offered: new settings hold for the
//!   frames after it. Only a partition also drops frames in transit.

mod counters;

use std::collections::BTreeMap;

use qnic_config::plan::Impairments;
use qnic_nic::env::Channel;
use qnic_nic::Time;

use crate::line::Line;
pub use counters::LinkCounters;

/// Longest extra delay of a frame that is reordered, in nanoseconds.
pub const REORDER_DELAY: u64 = 100_000;

/// Longest time that a frame waits for those before it on a link with a rate, in nanoseconds.
pub const BACKLOG: u64 = 50_000_000;

/// Most bytes in transit on one link; what exceeds it is dropped.
pub const CAPACITY: usize = 64 << 20;

/// Most bits that flip in a frame that is corrupted.
const FLIPS: usize = 8;

/// What becomes of a frame that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It will arrive, once or more often, perhaps damaged.
    Passes,
    /// Lost by chance.
    Lost,
    /// Dropped by a partition.
    Cut,
    /// Dropped: the queue is full.
    Overflowed,
}

/// A frame that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When it arrived; this may be before the call that returns it.
    pub at: Time,
    /// The frame, perhaps damaged.
    pub image: Vec<u8>,
    /// The tag that it was offered with.
    pub tag: T,
}

/// A frame on its way, and how it will travel once it is sent.
#[derive(Debug)]
struct Passing<T> {
    image: Vec<u8>,
    tag: T,
    /// In nanoseconds, jitter included.
    delay: u64,
    /// What `reorder` adds: later frames overtake it.
    late: u64,
}

/// One direction of one link. Each frame carries a tag of the caller's choice, which
/// no impairment damages.
#[derive(Debug)]
pub struct LinkEmulator<T> {
    settings: Impairments,
    random: fastrand::Rng,
    /// Frames in transit, by arrival time; those of one instant keep their order.
    in_transit: BTreeMap<(Time, u64), (Vec<u8>, T)>,
    /// Frames that wait until those before them are sent, on a link with a rate.
    line: Line<Passing<T>>,
    /// Bytes of all of them.
    bytes_in_transit: usize,
    next_number: u64,
    /// Arrival of the last frame that keeps the order.
    last_arrival: Time,
    counters: LinkCounters,
}

impl<T: Copy> LinkEmulator<T> {
    /// A link without frames.
    pub fn new(settings: Impairments, seed: u64) -> Self {
        LinkEmulator {
            settings,
            random: fastrand::Rng::with_seed(seed),
            in_transit: BTreeMap::new(),
            line: Line::default(),
            bytes_in_transit: 0,
            next_number: 0,
            last_arrival: Time(0),
            counters: LinkCounters::default(),
        }
    }

    /// What it does to frames.
    pub fn settings(&self) -> &Impairments {
        &self.settings
    }

    /// Replaces the settings for the frames that are offered from now on.
    pub fn set(&mut self, settings: Impairments) {
        // Those before keep their rate.
        self.send_waiting(Time(u64::MAX));
        self.line = Line::default();
        self.settings = settings;
    }

    /// Begins the random decisions anew: what happens to frames from now on depends on this seed,
    /// and not on earlier frames.
    pub fn reseed(&mut self, seed: u64) {
        self.random = fastrand::Rng::with_seed(seed);
    }

    /// Returns true if frames pass unchanged and at once.
    pub fn is_clear(&self) -> bool {
        self.settings.is_none() && self.in_transit() == 0
    }

    /// What it has done.
    pub fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// Number of frames in transit.
    pub fn in_transit(&self) -> usize {
        self.in_transit.len() + self.line.len()
    }

    /// Takes a frame.
    pub fn offer(&mut self, now: Time, channel: Channel, image: Vec<u8>, tag: T) -> Verdict {
        self.counters.offered += 1;
        self.counters.offered_bytes += image.len() as u64;
        if self.settings.partition {
            self.counters.cut += 1;
            return Verdict::Cut;
        }
        if self.happens(self.settings.loss.get()) {
            self.counters.lost += 1;
            return Verdict::Lost;
        }
        let twice = self.happens(self.settings.duplicate.get());
        self.counters.duplicated += u64::from(twice);
        let second = twice.then(|| image.clone());
        let verdict = self.send_copy(now, channel, image, tag);
        if let Some(second) = second {
            self.send_copy(now, channel, second, tag);
        }
        verdict
    }

    /// The next frame that has arrived.
    pub fn poll(&mut self, now: Time) -> Option<Arrival<T>> {
        self.poll_or_cut(now, |_, _| {})
    }

    /// As [`LinkEmulator::poll`]; calls `cut` with the arrival time and the image of each
    /// frame that a partition has dropped in transit.
    pub fn poll_or_cut(
        &mut self,
        now: Time,
        mut cut: impl FnMut(Time, &[u8]),
    ) -> Option<Arrival<T>> {
        self.send_waiting(now);
        loop {
            let next = self.in_transit.first_entry()?;
            let at = next.key().0;
            if at > now {
                return None;
            }
            let (image, tag) = next.remove();
            self.bytes_in_transit -= image.len();
            if self.settings.partition {
                self.counters.cut += 1;
                cut(at, &image);
                continue;
            }
            self.counters.released += 1;
            return Some(Arrival { at, image, tag });
        }
    }

    /// When [`LinkEmulator::poll`] must be called at the latest: a frame arrives, or the next
    /// one is sent.
    pub fn next_deadline(&self) -> Option<Time> {
        let arrival = self.in_transit.first_key_value().map(|((at, _), _)| *at);
        arrival.into_iter().chain(self.line.next()).min()
    }

    fn happens(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }

    fn send_copy(&mut self, now: Time, channel: Channel, mut image: Vec<u8>, tag: T) -> Verdict {
        self.send_waiting(now);
        let rate = self.settings.rate;
        let bytes = image.len();
        let waits_too_long = rate.is_some() && self.line.wait(now, channel) > BACKLOG;
        if waits_too_long || self.bytes_in_transit + bytes > CAPACITY {
            self.counters.overflowed += 1;
            return Verdict::Overflowed;
        }
        if self.happens(self.settings.corrupt.get()) {
            self.counters.corrupted += 1;
            self.corrupt(&mut image);
        }
        let frame = self.travelling(image, tag);
        self.bytes_in_transit += bytes;
        match rate {
            None => self.sent(now, frame),
            Some(rate) => {
                let takes = rate.nanoseconds_for(bytes);
                self.line.push(now, channel, takes, frame);
                self.send_waiting(now);
            }
        }
        Verdict::Passes
    }

    /// Draws how a frame will travel.
    fn travelling(&mut self, image: Vec<u8>, tag: T) -> Passing<T> {
        let jitter = self.settings.jitter.get();
        let mut delay = self.settings.delay.get();
        if jitter > 0 {
            let shift = self.random.u64(0..=2 * jitter);
            delay = (delay + shift).saturating_sub(jitter);
        }
        let mut late = 0;
        if self.happens(self.settings.reorder.get()) {
            self.counters.reordered += 1;
            late = self.random.u64(1..=REORDER_DELAY);
        }
        Passing {
            image,
            tag,
            delay,
            late,
        }
    }

    /// Sends what has its turn on the line until `now`.
    fn send_waiting(&mut self, now: Time) {
        while let Some((sent, frame)) = self.line.pop(now) {
            self.sent(sent, frame);
        }
    }

    /// A frame was sent at `at`.
    fn sent(&mut self, at: Time, frame: Passing<T>) {
        let mut arrival = at.after(frame.delay);
        if frame.late > 0 {
            arrival = arrival.after(frame.late);
        } else {
            self.last_arrival = self.last_arrival.max(arrival);
            arrival = self.last_arrival;
        }
        let key = (arrival, self.next_number);
        self.in_transit.insert(key, (frame.image, frame.tag));
        self.next_number += 1;
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
    use crate::testing::impairments;
    use proptest::prelude::*;
    use qnic_config::plan::units::{Probability, Rate, Span};

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

    /// Offers [`FRAMES`] frames 1 µs apart and returns what arrives.
    fn run(settings: Impairments, seed: u64) -> (LinkEmulator<()>, Vec<Arrival<()>>) {
        run_some(settings, seed, FRAMES, 1000)
    }

    fn run_some(
        settings: Impairments,
        seed: u64,
        frames: u32,
        interval: u64,
    ) -> (LinkEmulator<()>, Vec<Arrival<()>>) {
        let mut link = LinkEmulator::new(settings, seed);
        let mut out = Vec::new();
        for frame in 0..frames {
            let now = Time(u64::from(frame) * interval);
            link.offer(now, Channel::Data, image(frame), ());
            out.extend(std::iter::from_fn(|| link.poll(now)));
        }
        while let Some(now) = link.next_deadline() {
            out.extend(link.poll(now));
        }
        (link, out)
    }

    /// Within five standard deviations of a binomial with [`FRAMES`] draws.
    fn close(count: u64, probability: f64) -> bool {
        let frames = f64::from(FRAMES);
        let deviation = (frames * probability * (1.0 - probability)).sqrt();
        (count as f64 - frames * probability).abs() <= 5.0 * deviation
    }

    #[test]
    fn without_impairments_everything_passes_at_once_in_order() {
        let (link, out) = run(Impairments::NONE, 1);
        assert!(link.is_clear());
        for (index, arrival) in out.iter().enumerate() {
            assert_eq!(arrival.at.0, index as u64 * 1000);
            assert_eq!(number(&arrival.image), index as u32);
        }
        assert_eq!(out.len(), FRAMES as usize);
    }

    /// Loss and duplication (X4).
    #[test]
    fn chance_keeps_to_its_probability() {
        for (seed, chance) in [(1, 1.0), (2, 5.0), (3, 20.0)] {
            let settings = impairments(&format!("loss {chance}% duplicate {chance}%"));
            let (link, out) = run(settings, seed);
            let counters = link.counters();
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
        let (link, out) = run(impairments("corrupt 10.0%"), 4);
        let damaged = out
            .iter()
            .zip(0..)
            .filter(|(arrival, index)| arrival.image != image(*index))
            .count() as u64;
        assert_eq!(damaged, link.counters().corrupted);
        assert!(close(damaged, 0.1), "{damaged}");
    }

    #[test]
    fn delay_and_jitter_keep_the_order() {
        let (_, out) = run(impairments("delay 1000us jitter 200us"), 5);
        assert_eq!(out.len(), FRAMES as usize);
        let mut total = 0;
        for (index, arrival) in out.iter().enumerate() {
            assert_eq!(number(&arrival.image), index as u32);
            let took = arrival.at.0 - index as u64 * 1000;
            assert!((800_000..=1_200_000).contains(&took), "{took}");
            total += took;
        }
        assert!(total / u64::from(FRAMES) > 900_000);
    }

    #[test]
    fn only_reordered_frames_are_overtaken() {
        let (link, out) = run(impairments("reorder 5.0%"), 6);
        assert_eq!(out.len(), FRAMES as usize);
        let mut late = 0;
        let mut highest = 0;
        for Arrival { at, image, .. } in &out {
            let number = number(image);
            late += u64::from(number < highest);
            highest = highest.max(number);
            assert!(at.0 - u64::from(number) * 1000 <= REORDER_DELAY + 1000);
        }
        assert!(close(link.counters().reordered, 0.05));
        assert!(late > link.counters().reordered / 2, "{late}");
        assert!(late <= link.counters().reordered, "{late}");
    }

    /// 100 bytes each µs are 800 Mbit/s; half of that passes, the rest does not fit.
    #[test]
    fn a_rate_lets_so_much_pass_and_no_more() {
        let mut link = LinkEmulator::new(impairments("rate 400Mbit"), 7);
        let mut passed = 0u64;
        for now in (0..200_000_000).step_by(1000).map(Time) {
            link.offer(now, Channel::Data, image(0), ());
            while link.poll(now).is_some() {
                passed += 1;
            }
        }
        let expected = 100_000;
        assert!(passed.abs_diff(expected) < 10, "{passed}");
        assert!(link.counters().overflowed > 0);
    }

    /// Offers frames to a link of 8 Mbit/s at one instant (a byte takes 1 µs) and returns the
    /// numbers and times of what arrives.
    fn over_a_slow_line(frames: &[(Channel, u32, usize)]) -> Vec<(u32, u64)> {
        let mut link = LinkEmulator::new(impairments("rate 8Mbit"), 7);
        for (channel, number, length) in frames {
            let mut image = image(*number);
            image.resize(*length, 0);
            assert_eq!(link.offer(Time(0), *channel, image, ()), Verdict::Passes);
        }
        let landed = std::iter::from_fn(|| {
            let now = link.next_deadline()?;
            Some(link.poll(now))
        });
        let landed = landed.flatten();
        landed
            .map(|it| (number(&it.image), it.at.0 / 1000))
            .collect()
    }

    /// U4: it waits for the frame that is being sent, and takes its time on the line.
    #[test]
    fn a_small_frame_does_not_wait_behind_bulk() {
        use Channel::{Data, Priority};
        let frames = [(Data, 1, 4000), (Data, 2, 4000), (Priority, 3, 100)];
        let landed = over_a_slow_line(&frames);
        assert_eq!(landed, [(1, 4000), (3, 4100), (2, 8100)]);
        let frames = frames.map(|(_, number, length)| (Data, number, length));
        let one_queue = over_a_slow_line(&frames);
        assert_eq!(one_queue, [(1, 4000), (2, 8000), (3, 8100)]);
    }

    /// Nor does bulk wait for all small frames that ever come.
    #[test]
    fn small_frames_leave_turns_to_bulk() {
        let first = (Channel::Priority, 0, 100);
        let bulk = (Channel::Data, 1, 4000);
        let small = (2..100).map(|number| (Channel::Priority, number, 100));
        let frames: Vec<_> = [first, bulk].into_iter().chain(small).collect();
        let landed = over_a_slow_line(&frames);
        let turn = landed.iter().position(|(number, _)| *number == 1);
        assert_eq!(turn, Some(crate::turns::RUN as usize));
    }

    /// The frames before it keep their turn; those after it arrive behind them, at once.
    #[test]
    fn a_rate_that_is_taken_away_holds_no_later_frame_back() {
        let mut link = LinkEmulator::new(impairments("rate 8Mbit"), 7);
        assert_eq!(
            link.offer(Time(0), Channel::Data, image(0), ()),
            Verdict::Passes
        );
        link.set(impairments("none"));
        assert_eq!(
            link.offer(Time(0), Channel::Data, image(1), ()),
            Verdict::Passes
        );
        assert_eq!(link.poll(Time(99_999)), None);
        assert_eq!(link.poll(Time(100_000)), Some(arrival(100_000, 0)));
        assert_eq!(link.poll(Time(100_000)), Some(arrival(100_000, 1)));
        link.offer(Time(100_001), Channel::Data, image(2), ());
        assert_eq!(link.poll(Time(100_001)), Some(arrival(100_001, 2)));
    }

    /// A partition is changed while frames are in transit (X4).
    #[test]
    fn a_partition_drops_everything_until_it_heals() {
        let delay = impairments("delay 1us");
        let cut = impairments("delay 1us partition");
        let mut link = LinkEmulator::new(delay, 8);
        assert_eq!(
            link.offer(Time(0), Channel::Data, image(0), ()),
            Verdict::Passes
        );
        link.set(cut);
        assert_eq!(
            link.offer(Time(1), Channel::Data, image(1), ()),
            Verdict::Cut
        );
        assert_eq!(link.poll(Time(5000)), None);
        link.set(delay);
        assert_eq!(
            link.offer(Time(5000), Channel::Data, image(2), ()),
            Verdict::Passes
        );
        assert_eq!(link.poll(Time(6000)), Some(arrival(6000, 2)));
        assert_eq!(link.counters().cut, 2);
    }

    #[test]
    fn bytes_in_transit_are_bounded() {
        let mut link = LinkEmulator::new(impairments("delay 10m"), 9);
        let big = vec![0; 1 << 20];
        let verdicts = (0..70).map(|_| link.offer(Time(0), Channel::Data, big.clone(), ()));
        let passed = verdicts.filter(|verdict| *verdict == Verdict::Passes);
        assert_eq!(passed.count(), 64);
        assert_eq!(link.counters().overflowed, 6);
    }

    fn any_impairments() -> impl Strategy<Value = Impairments> {
        let chance = || (0u32..=100).prop_map(|value| Probability::percent(f64::from(value)));
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
        fn frames_are_conserved_and_runs_repeat(settings in any_impairments(), seed: u64) {
            let go = || run_some(settings, seed, 300, 500);
            let (link, out) = go();
            let counters = *link.counters();
            prop_assert_eq!(
                counters.offered + counters.duplicated,
                counters.released + counters.lost + counters.cut + counters.overflowed
            );
            prop_assert_eq!(counters.released, out.len() as u64);
            let (again, out_again) = go();
            prop_assert_eq!((*again.counters(), out_again), (counters, out));
        }
    }
}
