//! A wire that loses, doubles, delays and reorders frames, by a seed.

use std::collections::BTreeMap;

use qnic_abi::wire::Frame;

use super::Memory;
use crate::{Channel, Payload, Time};

/// What a wire does to frames.
#[derive(Debug, Clone)]
pub struct LossyWire {
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

impl LossyWire {
    /// A wire that loses and doubles so many frames of 1,000, and keeps no order.
    pub fn rough(loss: u64) -> Self {
        LossyWire {
            loss,
            duplication: loss,
            delay: 10_000,
            jitter: 40_000,
        }
    }

    /// A wire that loses nothing and keeps the order, with this delay in nanoseconds.
    pub fn steady(delay: u64) -> Self {
        LossyWire {
            loss: 0,
            duplication: 0,
            delay,
            jitter: 0,
        }
    }
}

/// A frame under way.
#[derive(Debug, Clone)]
pub(super) struct FrameInTransit {
    pub(super) frame: Frame,
    pub(super) payload: Vec<u8>,
}

/// The frames under way in a lossy_wire.
#[derive(Debug)]
pub(super) struct InTransit {
    lossy_wire: LossyWire,
    /// How long a frame of the data channel waits behind others, in nanoseconds.
    pub(super) backlog: u64,
    state: u64,
    frames: BTreeMap<(Time, u64), FrameInTransit>,
    count: u64,
}

impl InTransit {
    pub(super) fn new(lossy_wire: LossyWire, seed: u64) -> Self {
        InTransit {
            lossy_wire,
            backlog: 0,
            state: seed,
            frames: BTreeMap::new(),
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
        frame: &Frame,
        payload: &Payload<'_, Memory>,
        channel: Channel,
    ) {
        let mut bytes = vec![0; payload.len()];
        payload.read(&mut bytes).expect("a locked page");
        let copies = 1 + u64::from(self.random(1000) < self.lossy_wire.duplication);
        for _ in 0..copies {
            if self.random(1000) < self.lossy_wire.loss {
                continue;
            }
            let (waits, jitter) = match channel {
                Channel::Data => (self.backlog, self.lossy_wire.jitter),
                Channel::Priority => (0, self.lossy_wire.jitter / 2),
            };
            let delay = self.lossy_wire.delay + waits + self.random(jitter + 1);
            let flight = FrameInTransit {
                frame: *frame,
                payload: bytes.clone(),
            };
            self.count += 1;
            self.frames.insert((now.after(delay), self.count), flight);
        }
    }

    /// When the next frame arrives.
    pub(super) fn next(&self) -> Option<Time> {
        self.frames.keys().next().map(|key| key.0)
    }

    /// The next frame that has arrived by `now`.
    pub(super) fn arrival(&mut self, now: Time) -> Option<FrameInTransit> {
        let first = self.frames.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
