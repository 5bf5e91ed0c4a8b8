//! The configuration of an endpoint.

use qnic_abi::pool::MAX_FRAME_BYTES;
use qnic_abi::stream::{MAX_WINDOW, MIN_FRAME_BYTES};
use qnic_abi::PAGE_SIZE;
use qnic_shared::timing::RetransmitLimits;

/// Most connections of an endpoint.
pub const MAX_CONNECTIONS: usize = 4096;

/// Bounds of everything that an endpoint keeps, and its times, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Config {
    /// Connections at the same time, including those that the program has not accepted and those that
    /// linger; 1 to [`MAX_CONNECTIONS`]. Each has one frame of either kind that no other can take.
    pub connections: usize,
    /// Connections that peers have opened and the program has not accepted; further ones are refused.
    pub backlog: usize,
    /// The same for one node, so that a node leaves room for others.
    pub backlog_per_node: usize,
    /// Most bytes of a frame, the header included; [`MIN_FRAME_BYTES`] to [`MAX_FRAME_BYTES`].
    pub frame_bytes: usize,
    /// Frames that have come and are not read, or may still come, of all connections together; at
    /// least as many as connections.
    pub receive_frames: usize,
    /// Frames that are written and not acknowledged, of all connections together; at least as many
    /// as connections.
    pub send_frames: usize,
    /// The most of either that one connection gets; 1 to [`MAX_WINDOW`].
    pub window: u32,
    /// When frames that are not acknowledged are sent again. `ack_delay` is also how long this side holds
    /// an acknowledgement back.
    pub retransmission: RetransmitLimits,
    /// How long frames may wait in queues of the network before fewer are sent.
    pub queue_delay: u64,
    /// A peer that is silent for this long is asked.
    pub keep_alive: u64,
    /// A peer that is silent for this long is given up; several times `keep_alive`.
    pub peer_timeout: u64,
    /// A peer that does not answer an Open for this long is given up, and so is one that does not
    /// confirm an Accept.
    pub open_timeout: u64,
    /// How long a connection that has ended answers late frames, and how long one that the program
    /// has closed waits for the peer's end.
    pub linger: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            connections: 64,
            backlog: 32,
            backlog_per_node: 16,
            frame_bytes: PAGE_SIZE,
            receive_frames: 192,
            send_frames: 192,
            window: 128,
            retransmission: RetransmitLimits {
                initial: 100_000_000,
                floor: 5_000_000,
                floor_oldest: 2_000_000,
                ceiling: 1_000_000_000,
                ack_delay: 1_000_000,
            },
            queue_delay: 5_000_000,
            keep_alive: 1_000_000_000,
            peer_timeout: 5_000_000_000,
            open_timeout: 10_000_000_000,
            linger: 2_000_000_000,
        }
    }
}

/// A [`Config`] whose numbers do not fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the limits of a stream endpoint do not fit together")]
pub struct BadConfig;

impl Config {
    /// Checks the ranges, and that the numbers fit together.
    pub(crate) fn check(&self) -> Result<(), BadConfig> {
        let good = (1..=MAX_CONNECTIONS).contains(&self.connections)
            && (MIN_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&self.frame_bytes)
            && self.receive_frames >= self.connections
            && self.send_frames >= self.connections
            && (1..=MAX_WINDOW).contains(&self.window)
            && self.keep_alive > 0
            && self.peer_timeout > self.keep_alive;
        good.then_some(()).ok_or(BadConfig)
    }
}
