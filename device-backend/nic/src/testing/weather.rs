//! A wire that loses, doubles, delays and reorders frames, by a seed.

use std::collections::BTreeMap;

use qnic_abi::wire::FrameHeader;

use super::Memory;
use crate::{Channel, Payload, Time};

/// What a wire does to frames.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Frames lost, of 1,000.
    pub loss: u64,
    /// Frames doubled, of 1,000.
    pub duplication: u64,
    /// Shortest way, in nanoseconds.
    pub delay: u64,
    /// Longest further delay of a frame on the data channel, in nanoseconds. On the
    /// priority channel it is half of that, so frames overtake each other within
    /// and between channels.
    pub jitter: u64,
}

/// A frame under way.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    pub(super) frame: FrameHeader,
    pub(super) payload: Vec<u8>,
}

/// The frames under way in a weather.
#[derive(Debug)]
pub(super) struct Air {
    weather: Weather,
    state: u64,
    flights: BTreeMap<(Time, u64), Flight>,
    count: u64,
}

impl Air {
    pub(super) fn new(weather: Weather, seed: u64) -> Self {
        Air {
            weather,
            state: seed,
            flights: BTreeMap::new(),
            count: 0,
        }
    }

    /// splitmix64.
    fn random(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % below.max(1)
    }

    /// Takes a frame.
    pub(super) fn take(
        &mut self,
        now: Time,
        frame: &FrameHeader,
        payload: &Payload<'_, Memory>,
        channel: Channel,
    ) {
        let mut bytes = vec![0; payload.len()];
        payload.read(&mut bytes).expect("a locked page");
        let copies = 1 + u64::from(self.random(1000) < self.weather.duplication);
        for _ in 0..copies {
            if self.random(1000) < self.weather.loss {
                continue;
            }
            let jitter = match channel {
                Channel::Data => self.weather.jitter,
                Channel::Priority => self.weather.jitter / 2,
            };
            let delay = self.weather.delay + self.random(jitter + 1);
            let flight = Flight {
                frame: *frame,
                payload: bytes.clone(),
            };
            self.count += 1;
            self.flights.insert((now.after(delay), self.count), flight);
        }
    }

    /// When the next frame arrives.
    pub(super) fn next(&self) -> Option<Time> {
        self.flights.keys().next().map(|key| key.0)
    }

    /// The next frame that has arrived by `now`.
    pub(super) fn arrival(&mut self, now: Time) -> Option<Flight> {
        let first = self.flights.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
