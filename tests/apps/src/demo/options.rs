//! Names that the two ends of a program agree on, and waiting limits.

use std::time::Duration;

use qnic::{NotificationId, Port, SegmentName};

/// Port of the side that answers.
pub const TARGET_PORT: Port = Port(10);
/// Port of the side that asks.
pub const INITIATOR_PORT: Port = Port(11);

/// Segment of the answering side: what is written and read.
pub const DATA: SegmentName = SegmentName(1);
/// Segment of the answering side: requests.
pub const REQUESTS: SegmentName = SegmentName(2);
/// Segment of the asking side: results.
pub const RESULTS: SegmentName = SegmentName(3);
/// Segment of the asking side: what is written back in a ping-pong.
pub const PONG: SegmentName = SegmentName(4);
/// Segment of either side: source of its writes.
pub const SOURCE: SegmentName = SegmentName(5);
/// Segment of the asking side: destination of its reads.
pub const BACK: SegmentName = SegmentName(6);

/// Longest time for the peer to start and export.
pub const START_LIMIT: Duration = Duration::from_secs(60);
/// Longest time for the peer to answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(40);

/// A notification whose number is known to be valid.
pub const fn notification(number: u32) -> NotificationId {
    match NotificationId::new(number) {
        Some(id) => id,
        None => panic!("not a counted notification"),
    }
}

/// A request waits in [`REQUESTS`].
pub const REQUEST: NotificationId = notification(1);
/// A result waits in [`RESULTS`].
pub const RESULT: NotificationId = notification(2);
/// A long ping or pong has arrived.
pub const BALL: NotificationId = notification(3);
