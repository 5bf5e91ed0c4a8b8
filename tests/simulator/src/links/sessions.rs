//! Sessions, windows and acknowledgements, as the frames on the wire show them.
//!
//! | frame | must hold |
//! |---|---|
//! | sent, with a payload | no more fragments beyond what the peer has said to be delivered than the window that it has granted (N15, U6) |
//! | sent | what it says of the other direction never goes back within a session, and `delivered` is at most `acknowledge` |
//! | sent | the sender's session never becomes smaller (U10) |
//! | taken | it is not of an earlier session of its sender, as far as the receiver knows, nor for an earlier session of its receiver (U10): the receiver counts it as stale and drops it |

use std::collections::BTreeSet;

use qnic_abi::names::kind_name;
use qnic_abi::wire::{kind, Class, Frame, Hello, Window};

/// One direction between two NICs.
#[derive(Debug, Default)]
struct Direction {
    /// Sessions of sender and receiver.
    sessions: (u64, u64),
    /// Numbers of the fragments that are not known to be delivered.
    outstanding: BTreeSet<u64>,
    /// Window that the receiver has granted the sender.
    granted: u64,
    /// The last frame that has renewed it: its sessions and its number.
    renewed: ((u64, u64), u64),
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

    fn direction(&mut self, from: usize, to: usize) -> &mut Direction {
        &mut self.directions[from * self.nodes + to]
    }

    pub(crate) fn sent(&mut self, frame: &Frame) {
        let envelope = &frame.envelope;
        let ((from, to), sessions) = (ends(frame), sessions(frame));
        let known = kind_name(envelope.kind).is_some();
        assert!(known, "a NIC sends known frames");
        let acked = (envelope.acknowledge.get(), envelope.delivered.get());
        let (acknowledged, delivered) = acked;
        assert!(
            delivered <= acknowledged,
            "{from} -> {to}: delivered {delivered} beyond acknowledged {acknowledged}"
        );
        let direction = self.direction(from, to);
        let before = std::mem::replace(&mut direction.own, sessions.0);
        assert!(
            sessions.0 >= before,
            "{from} -> {to}: session {} after {before}",
            sessions.0
        );
        direction.known = direction.known.max(sessions.1);
        if is_handshake(frame) {
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
        if Class::of(envelope.kind) == Class::Windowed {
            let first = envelope.sequence.get();
            let numbers = first..first + u64::from(envelope.fragments);
            // What is sent again was allowed when the window was larger.
            let mut new = false;
            for number in numbers {
                new |= direction.outstanding.insert(number);
            }
            let (count, granted) = (direction.outstanding.len() as u64, direction.granted);
            assert!(
                !new || count <= granted,
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

    /// Returns true if a frame that arrives is certainly of another incarnation of its sender
    /// or receiver than the one that runs. More may be, as not everything that a NIC
    /// knows can be seen on the wire.
    pub(crate) fn is_stale(&mut self, frame: &Frame) -> bool {
        let (from, to) = ends(frame);
        let answers = self.direction(to, from);
        // A NIC that says Hello or Goodbye may not know of this incarnation yet.
        let is_handshake = is_handshake(frame);
        let (source, destination) = sessions(frame);
        source < answers.known
            || !is_handshake && (source <= answers.ended || destination < answers.own)
    }

    /// A frame arrives intact: its receiver knows what it says.
    pub(crate) fn arrived(&mut self, frame: &Frame) {
        let envelope = &frame.envelope;
        let ((from, to), (source, destination)) = (ends(frame), sessions(frame));
        let sessions = (destination, source);
        let direction = self.direction(to, from);
        if matches!(envelope.kind, kind::HELLO | kind::HELLO_REPLY) {
            let hello: Hello<{ kind::HELLO }> = frame.body();
            // A Hello of before a renewal may be late; one that knows no session yet, too.
            let renewed = match destination {
                0 => (direction.own, source),
                _ => sessions,
            };
            if direction.renewed.0 != renewed {
                direction.granted = hello.window.get().into();
            }
            return;
        }
        let renewed = (sessions, envelope.sequence.get());
        let later = direction.renewed.0 != sessions || direction.renewed.1 < renewed.1;
        if envelope.kind == kind::WINDOW && later {
            let renewal: Window<{ kind::WINDOW }> = frame.body();
            direction.granted = renewal.window.get().into();
            direction.renewed = renewed;
        }
        if envelope.kind == kind::GOODBYE {
            if sessions == (direction.own, direction.known) {
                direction.ended = direction.known;
            }
            return;
        }
        if direction.sessions == sessions {
            let delivered = envelope.delivered.get();
            direction.outstanding = direction.outstanding.split_off(&(delivered + 1));
        }
    }
}

/// Sender and receiver of a frame.
pub(crate) fn ends(frame: &Frame) -> (usize, usize) {
    let envelope = &frame.envelope;
    let nodes = (envelope.source_node.get(), envelope.destination_node.get());
    (nodes.0.into(), nodes.1.into())
}

/// The sessions of sender and receiver that a frame names.
fn sessions(frame: &Frame) -> (u64, u64) {
    let envelope = &frame.envelope;
    let (source, destination) = (envelope.source_session, envelope.destination_session);
    (source.get(), destination.get())
}

fn is_handshake(frame: &Frame) -> bool {
    matches!(
        frame.envelope.kind,
        kind::HELLO | kind::HELLO_REPLY | kind::GOODBYE
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::rdma::Write;
    use qnic_abi::wire::{Ack, Body, Goodbye};

    type HelloFrame = Hello<{ kind::HELLO }>;

    fn frame<B: Body>(from: u16, to: u16) -> Frame {
        let mut frame = Frame::new(&B::new_zeroed());
        frame.envelope.source_node = from.into();
        frame.envelope.destination_node = to.into();
        frame.envelope.source_session = 5.into();
        frame.envelope.destination_session = 5.into();
        frame
    }

    #[test]
    fn a_frame_of_another_life_is_known_by_either_session() {
        let mut session_checker = SessionChecker::new(2);
        let write = frame::<Write>(0, 1);
        assert!(!session_checker.is_stale(&write));
        session_checker.sent(&frame::<HelloFrame>(1, 0));
        assert!(!session_checker.is_stale(&write));
        let mut answer = frame::<HelloFrame>(1, 0);
        answer.envelope.destination_session = 6.into();
        session_checker.sent(&answer);
        assert!(session_checker.is_stale(&write), "its sender has session 6");
        session_checker.started(1);
        assert!(!session_checker.is_stale(&write), "no NIC knows that here");
        answer.envelope.destination_session = 0.into();
        answer.envelope.source_session = 6.into();
        session_checker.sent(&answer);
        assert!(session_checker.is_stale(&write), "it is for session 5");
        assert!(!session_checker.is_stale(&frame::<HelloFrame>(0, 1)));
    }

    #[test]
    fn a_frame_that_comes_after_the_end_of_its_session_is_of_another_life() {
        let mut session_checker = SessionChecker::new(2);
        let write = frame::<Write>(0, 1);
        let gone = frame::<Goodbye>(0, 1);
        session_checker.arrived(&gone);
        assert!(
            !session_checker.is_stale(&write),
            "the receiver knows neither"
        );
        session_checker.sent(&frame::<Ack>(1, 0));
        session_checker.arrived(&gone);
        assert!(session_checker.is_stale(&write));
        assert!(!session_checker.is_stale(&gone));
    }

    #[test]
    fn a_late_hello_takes_no_window_back() {
        let mut session_checker = SessionChecker::new(2);
        session_checker.sent(&frame::<Ack>(0, 1));
        let mut hello = frame::<HelloFrame>(1, 0);
        hello.envelope.destination_session = 0.into();
        hello.set_body(&HelloFrame {
            window: 1.into(),
            leaves: 0.into(),
        });
        let mut renewal = frame::<Window<{ kind::WINDOW }>>(1, 0);
        renewal.set_body(&Window::<{ kind::WINDOW }> {
            window: 2.into(),
            reserved: 0.into(),
        });
        renewal.envelope.sequence = 1.into();
        for frame in [&hello, &renewal, &hello] {
            session_checker.arrived(frame);
        }
        let mut write = frame::<Write>(0, 1);
        for number in 1..=2 {
            write.envelope.sequence = number.into();
            session_checker.sent(&write);
        }
    }

    #[test]
    fn a_window_is_what_was_granted_beyond_what_was_delivered() {
        let mut session_checker = SessionChecker::new(2);
        let mut hello = frame::<HelloFrame>(1, 0);
        hello.set_body(&HelloFrame {
            window: 2.into(),
            leaves: 0.into(),
        });
        session_checker.arrived(&hello);
        let mut write = frame::<Write>(0, 1);
        for number in 1..=2 {
            write.envelope.sequence = number.into();
            session_checker.sent(&write);
        }
        // The same again is no other.
        session_checker.sent(&write);
        let mut ack = frame::<Ack>(1, 0);
        ack.envelope.acknowledge = 2.into();
        ack.envelope.delivered = 1.into();
        session_checker.arrived(&ack);
        write.envelope.sequence = 3.into();
        session_checker.sent(&write);
        write.envelope.sequence = 4.into();
        let beyond = std::panic::AssertUnwindSafe(|| session_checker.sent(&write));
        assert!(std::panic::catch_unwind(beyond).is_err());
    }
}
