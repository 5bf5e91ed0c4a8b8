//! Sessions, windows and acknowledgements, as the frames on the wire show them.
//!
//! | frame | must hold |
//! |---|---|
//! | sent, with a payload | no more fragments beyond what the peer has said to be delivered than the window that it has granted (N15, U6) |
//! | sent | what it says of the other direction never goes back within a session, and `delivered` is at most `acknowledge` |
//! | sent | the sender's session never becomes smaller (U10) |
//! | taken | it is not of an earlier session of its sender, as far as the receiver knows, nor for an earlier session of its receiver (U10): the receiver counts it as stale and drops it |

use std::collections::BTreeSet;

use qnic_abi::wire::{pieces, FrameHeader, FrameKind};

/// One direction between two NICs.
#[derive(Debug, Default)]
struct Direction {
    /// Sessions of sender and receiver.
    sessions: (u64, u64),
    /// Numbers of the fragments that are not known to be delivered.
    outstanding: BTreeSet<u64>,
    /// Window that the receiver has granted the sender.
    granted: u64,
    /// What the sender has last acknowledged of the other direction: as arrived, and as
    /// delivered.
    acked: (u64, u64),
    /// The largest session of the sender, whatever it has sent in it.
    own: u64,
    /// The largest session of the receiver that the sender has answered in its
    /// present incarnation.
    known: u64,
    /// The last of these that has said that it ends.
    ended: u64,
}

/// All directions of a cluster.
#[derive(Debug)]
pub(crate) struct SessionChecker {
    nodes: usize,
    directions: Vec<Direction>,
}

impl SessionChecker {
    pub(crate) fn new(nodes: usize) -> Self {
        let directions = (0..nodes * nodes).map(|_| Direction::default());
        SessionChecker {
            nodes,
            directions: directions.collect(),
        }
    }

    fn direction(&mut self, from: u16, to: u16) -> &mut Direction {
        let index = usize::from(from) * self.nodes + usize::from(to);
        &mut self.directions[index]
    }

    /// A NIC sends a frame.
    pub(crate) fn sent(&mut self, frame: &FrameHeader) {
        let (from, to) = (frame.source_node.get(), frame.destination_node.get());
        let kind = FrameKind::try_from(frame.kind).expect("a NIC sends known frames");
        let sessions = (frame.source_session.get(), frame.destination_session.get());
        let acked = (frame.acknowledge.get(), frame.delivered.get());
        assert!(
            acked.1 <= acked.0,
            "{from} -> {to}: delivered {} beyond acknowledged {}",
            acked.1,
            acked.0
        );
        let direction = self.direction(from, to);
        assert!(
            sessions.0 >= direction.own,
            "{from} -> {to}: session {} after {}",
            sessions.0,
            direction.own
        );
        direction.own = sessions.0;
        direction.known = direction.known.max(sessions.1);
        if matches!(
            kind,
            FrameKind::Hello | FrameKind::HelloReply | FrameKind::Gone
        ) {
            return;
        }
        if direction.sessions != sessions {
            direction.sessions = sessions;
            direction.outstanding.clear();
            direction.acked = (0, 0);
        }
        let before = std::mem::replace(&mut direction.acked, acked);
        assert!(
            before.0 <= acked.0 && before.1 <= acked.1,
            "{from} -> {to}: acknowledges {acked:?} after {before:?}"
        );
        if matches!(kind, FrameKind::Write | FrameKind::ReadReply) {
            let first = frame.sequence.get();
            let length = usize::from(frame.payload_length.get());
            let count = pieces(frame.address.get(), length);
            direction.outstanding.extend(first..first + count);
            let (count, granted) = (direction.outstanding.len() as u64, direction.granted);
            assert!(
                count <= granted,
                "{from} -> {to}: {count} fragments in a window of {granted}"
            );
        }
    }

    /// A NIC starts, and knows nothing of its peers any more.
    pub(crate) fn started(&mut self, node: usize) {
        let first = node * self.nodes;
        for direction in &mut self.directions[first..first + self.nodes] {
            direction.known = 0;
            direction.ended = 0;
        }
    }

    /// Returns true if a frame that arrives is certainly of another incarnation of its
    /// sender or receiver than the one that runs. More may be: not everything that a NIC
    /// knows can be seen on the wire.
    pub(crate) fn is_stale(&mut self, frame: &FrameHeader) -> bool {
        let (from, to) = (frame.source_node.get(), frame.destination_node.get());
        let kind = FrameKind::try_from(frame.kind);
        let answers = self.direction(to, from);
        // A sender that says hello, or that it leaves, may not know of this incarnation yet.
        let is_greeting = matches!(
            kind,
            Ok(FrameKind::Hello | FrameKind::HelloReply | FrameKind::Gone)
        );
        let (source, destination) = (frame.source_session.get(), frame.destination_session.get());
        source < answers.known
            || !is_greeting && (source <= answers.ended || destination < answers.own)
    }

    /// A frame arrives intact: its receiver learns what it says.
    pub(crate) fn arrived(&mut self, frame: &FrameHeader) {
        let (from, to) = (frame.source_node.get(), frame.destination_node.get());
        let kind = FrameKind::try_from(frame.kind);
        let direction = self.direction(to, from);
        if matches!(kind, Ok(FrameKind::Hello | FrameKind::HelloReply)) {
            direction.granted = frame.length.get();
            return;
        }
        // With a port, a process of the sender has ended; else the sender itself.
        if kind == Ok(FrameKind::Gone) && frame.source_port.get() == 0 {
            let sessions = (frame.destination_session.get(), frame.source_session.get());
            if sessions == (direction.own, direction.known) {
                direction.ended = direction.known;
            }
            return;
        }
        let sessions = (frame.destination_session.get(), frame.source_session.get());
        if direction.sessions == sessions {
            let delivered = frame.delivered.get();
            direction.outstanding = direction.outstanding.split_off(&(delivered + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn frame(from: u16, to: u16, kind: FrameKind) -> FrameHeader {
        let mut frame = FrameHeader::new_zeroed();
        frame.source_node = from.into();
        frame.destination_node = to.into();
        frame.source_session = 5.into();
        frame.destination_session = 5.into();
        frame.kind = kind as u8;
        frame
    }

    #[test]
    fn a_frame_of_another_life_is_known_by_either_session() {
        let mut session_checker = SessionChecker::new(2);
        let write = frame(0, 1, FrameKind::Write);
        assert!(!session_checker.is_stale(&write));
        session_checker.sent(&frame(1, 0, FrameKind::Hello));
        assert!(!session_checker.is_stale(&write));
        let mut answer = frame(1, 0, FrameKind::Hello);
        answer.destination_session = 6.into();
        session_checker.sent(&answer);
        assert!(session_checker.is_stale(&write), "its sender has session 6");
        session_checker.started(1);
        assert!(
            !session_checker.is_stale(&write),
            "node 1 does not know that any more"
        );
        answer.destination_session = 0.into();
        answer.source_session = 6.into();
        session_checker.sent(&answer);
        assert!(session_checker.is_stale(&write), "it is for session 5");
        assert!(!session_checker.is_stale(&frame(0, 1, FrameKind::Hello)));
    }

    #[test]
    fn a_frame_that_comes_after_the_end_of_its_session_is_of_another_life() {
        let mut session_checker = SessionChecker::new(2);
        let write = frame(0, 1, FrameKind::Write);
        let gone = frame(0, 1, FrameKind::Gone);
        session_checker.arrived(&gone);
        assert!(
            !session_checker.is_stale(&write),
            "the receiver knows neither"
        );
        session_checker.sent(&frame(1, 0, FrameKind::Ack));
        session_checker.arrived(&gone);
        assert!(session_checker.is_stale(&write));
        assert!(!session_checker.is_stale(&gone));
    }

    #[test]
    fn a_window_is_what_was_granted_beyond_what_was_delivered() {
        let mut session_checker = SessionChecker::new(2);
        let mut hello = frame(1, 0, FrameKind::Hello);
        hello.length = 2.into();
        session_checker.arrived(&hello);
        let mut write = frame(0, 1, FrameKind::Write);
        for number in 1..=2 {
            write.sequence = number.into();
            session_checker.sent(&write);
        }
        // The same again is no other.
        session_checker.sent(&write);
        let mut ack = frame(1, 0, FrameKind::Ack);
        (ack.acknowledge, ack.delivered) = (2.into(), 1.into());
        session_checker.arrived(&ack);
        write.sequence = 3.into();
        session_checker.sent(&write);
        write.sequence = 4.into();
        let beyond = std::panic::AssertUnwindSafe(|| session_checker.sent(&write));
        assert!(std::panic::catch_unwind(beyond).is_err());
    }
}
