//! The bounds of the transport, `[network.transport]` of both kinds of file (U1, U2, N18).
//!
//! ```toml
//! [network.transport]           # every key is optional; these are the values without it
//! window = 4096                 # fragments under way to a peer; one of 4 KiB at most
//! bounce_memory = "256MiB"      # what all windows of a NIC take together at the very worst
//! ack_delay = "50us"            # an acknowledgement waits so long for a frame to ride on
//! retransmit_initial = "100ms"  # first timeout, before a round trip was measured
//! retransmit_min = "5ms"        # shortest and longest timeout later; the oldest frame
//! retransmit_max = "1s"         # may be sent again after a tenth of the shortest
//! queue_delay = "5ms"           # frames may wait so long in queues of the network
//! idle_after = "10s"            # while windows are shared, a peer with nothing under way
//!                               # leaves after one to two times this
//! channels = 2                  # of a link; with 1, small frames wait behind bulk
//! ```
//! A [`Limits`] that breaks a rule is never made: what is left out counts in the rules with
//! its default.

use crate::plan::units::Span;
use qnic_limits::PAGE_SIZE;
use qnic_limits::{Limits, MAX_WINDOW, SMALLEST_WINDOW};
use serde::{Deserialize, Serialize};

use crate::check::require;
use crate::{ByteSize, ConfigError};

/// The oldest frame is sent again after this part of the shortest timeout.
const OLDEST: u64 = 10;

/// Fewest and most bytes of bounce memory: the smallest window for each of
/// [`Limits::peers`], and what a NIC can count.
const BOUNCE_MEMORY: [ByteSize; 2] = [ByteSize::mib(96), ByteSize(1 << 40)];

/// Bounds of the transport; `None`: the NIC's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportSettings {
    /// Fragments under way to one peer, in either direction.
    pub window: Option<u32>,
    /// Windows that are granted to all peers together, in bytes.
    pub bounce_memory: Option<ByteSize>,
    /// How long an acknowledgement waits for a frame that carries it.
    pub ack_delay: Option<Span>,
    /// Timeout of the first frames to a peer.
    pub retransmit_initial: Option<Span>,
    /// Shortest timeout.
    pub retransmit_min: Option<Span>,
    /// Longest timeout.
    pub retransmit_max: Option<Span>,
    /// How long frames may wait in queues of the network before fewer are sent.
    pub queue_delay: Option<Span>,
    /// How long a peer stays with which nothing is under way.
    pub idle_after: Option<Span>,
    /// Channels of a link, one or two (U4); one is for comparison.
    pub channels: Option<u8>,
}

impl TransportSettings {
    /// Returns true if nothing is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if all frames of a link wait in one queue.
    pub fn has_one_channel(&self) -> bool {
        self.channels == Some(1)
    }

    /// Puts the bounds into `limits`.
    pub fn apply(&self, limits: &mut Limits) {
        let set = |value: Option<Span>, limit: &mut u64| {
            if let Some(time) = value {
                *limit = time.get();
            }
        };
        limits.window = self.window.unwrap_or(limits.window);
        if let Some(size) = self.bounce_memory {
            let frames = size.0 / PAGE_SIZE as u64;
            limits.held_frames = u32::try_from(frames).unwrap_or(u32::MAX);
        }
        set(self.ack_delay, &mut limits.ack_delay);
        set(self.retransmit_initial, &mut limits.retransmit_initial);
        set(self.retransmit_min, &mut limits.retransmit_floor);
        if let Some(least) = self.retransmit_min {
            limits.retransmit_floor_oldest = (least.get() / OLDEST).max(1);
        }
        set(self.retransmit_max, &mut limits.retransmit_ceiling);
        set(self.queue_delay, &mut limits.queue_delay);
        set(self.idle_after, &mut limits.idle_peer);
    }

    /// Checks the bounds, alone and beside each other.
    ///
    /// # Errors
    /// Returns an error for the first that breaks a rule.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut limits = Limits::default();
        self.apply(&mut limits);
        let key = |name: &str| format!("network.transport.{name}");
        let window = limits.window;
        let message =
            format!("expected {SMALLEST_WINDOW} to {MAX_WINDOW} fragments, found {window}");
        let fits = (SMALLEST_WINDOW..=MAX_WINDOW).contains(&window);
        require(fits, key("window"), message)?;
        if let Some(size) = self.bounce_memory {
            let [least, most] = BOUNCE_MEMORY;
            let message = format!("expected {least} to {most}, found {size}");
            require(least <= size && size <= most, key("bounce_memory"), message)?;
        }
        if let Some(channels) = self.channels {
            let message = format!("expected 1 or 2, found {channels}");
            require((1..=2).contains(&channels), key("channels"), message)?;
        }
        let second = 1_000_000_000;
        let times = [
            (
                "retransmit_max",
                limits.retransmit_ceiling,
                [1_000_000, 60 * second],
            ),
            (
                "retransmit_min",
                limits.retransmit_floor,
                [10_000, limits.retransmit_ceiling],
            ),
            (
                "retransmit_initial",
                limits.retransmit_initial,
                [10_000, limits.retransmit_ceiling],
            ),
            // A peer that acknowledges later than this side waits has each frame sent twice.
            (
                "ack_delay",
                limits.ack_delay,
                [0, limits.retransmit_floor / 2],
            ),
            ("queue_delay", limits.queue_delay, [10_000, second]),
            (
                "idle_after",
                limits.idle_peer,
                [second / 10, Span::MAX.get()],
            ),
        ];
        for (name, found, [least, most]) in times {
            let [shown, from, to] = [found, least, most].map(Span::nanoseconds);
            let message = format!("expected {from} to {to}, found {shown}");
            require((least..=most).contains(&found), key(name), message)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::assert_errors;
    use crate::Config;
    use std::path::Path;

    /// The bounds begin on line 6.
    const WHOLE: &str = "\
[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"/tmp/a\"\nram = \"256MiB\"
[network.transport]\nwindow = 64\nbounce_memory = \"128MiB\"\nack_delay = \"20us\"
retransmit_initial = \"7ms\"\nretransmit_min = \"2ms\"\nretransmit_max = \"40ms\"\nqueue_delay = \"3ms\"\nidle_after = \"3s\"
channels = 1\n";

    fn bounds(text: &str) -> Limits {
        let config = Config::parse(text, Path::new("q.toml")).unwrap();
        let mut limits = Limits::default();
        config.network.unwrap().transport.apply(&mut limits);
        limits
    }

    #[test]
    fn bounds_reach_the_limits_of_a_nic() {
        let limits = bounds(WHOLE);
        assert_eq!((limits.window, limits.held_frames), (64, 32_768));
        let times = [
            limits.ack_delay,
            limits.retransmit_initial,
            limits.retransmit_floor_oldest,
            limits.retransmit_floor,
            limits.retransmit_ceiling,
            limits.queue_delay,
            limits.idle_peer,
        ];
        let expected = [
            20_000,
            7_000_000,
            200_000,
            2_000_000,
            40_000_000,
            3_000_000,
            3_000_000_000,
        ];
        assert_eq!(times, expected);
        let config = Config::parse(WHOLE, Path::new("q.toml")).unwrap();
        assert!(config.network_plan().unwrap().one_channel);
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(
            Config::parse(&printed, Path::new("q.toml")).unwrap(),
            config
        );
    }

    #[test]
    fn what_is_left_out_has_the_defaults_of_the_nic() {
        let (text, _) = WHOLE.split_once("window").unwrap();
        let (found, expected) = (bounds(text), Limits::default());
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        assert_eq!(expected.window, 4096, "fragments (N18)");
    }

    #[test]
    fn errors_name_the_line_the_key_and_the_range() {
        let table = r#"
            64 => 15 | 7 | network.transport.window: expected 16 to 4096 fragments, found 15
            64 => 4097 | 7 | network.transport.window: expected 16 to 4096
            64 => "64" | 7 | network.transport.window: invalid type
            128MiB => 95MiB | 8 | network.transport.bounce_memory: expected 96MiB to 1TiB
            128MiB => 2TiB | 8 | network.transport.bounce_memory: expected 96MiB to 1TiB
            20us => 1100us | 9 | network.transport.ack_delay: expected 0s to 1ms
            20us => 20 | 9 | expected a time such as
            7ms => 41ms | 10 | network.transport.retransmit_initial: expected 10us to 40ms
            2ms => 41ms | 11 | network.transport.retransmit_min: expected 10us to 40ms
            40ms => 61s | 12 | network.transport.retransmit_max: expected 1ms to 1m, found 1m 1s
            3ms => 9us | 13 | network.transport.queue_delay: expected 10us to 1s, found 9us
            3ms => 2s | 13 | network.transport.queue_delay: expected 10us to 1s
            3s => 99ms | 14 | network.transport.idle_after: expected 100ms to 10m
            channels = 1 => channels = 3 | 15 | network.transport.channels: expected 1 or 2, found 3
            idle_after => idle | 14 | unknown field `idle`
        "#;
        assert_errors(WHOLE, table);
    }
}
