//! One session with another NIC: which incarnation of either side a frame belongs to.
//!
//! ```text
//!              ┌────────── Hello, HelloReply or a frame for `own` ─────────┐
//!              │           from a session that is not too old              ▼
//!    ┌─────────┴──┐                                               ┌───────────────┐
//!    │ not known  │◄── Goodbye (its session has ended) ───────────┤ known: `peer` │
//!    │ `peer`: no │◄── given up (`own` grows) ────────────────────┤               │
//!    └────────────┘                                               └──┬─────────▲──┘
//!                                                a larger session: ──┴─────────┘
//!                                                everything starts over
//! ```
//! # Invariants
//! - `own` grows with each session of the two NICs, also while the peer has no place in the table.
//!   If the peer knows a larger number, `own` grows beyond it.
//! - A session of the peer below `floor` is never accepted again.
//! - A numbered frame is taken only if it carries both numbers of this session.
//! - A frame that carries `own` as its destination proves that the peer has received `own` in its
//!   present incarnation, so such a frame can begin a session. A floor that a peer is told is
//!   therefore never a session that it takes later: `own` is even, and the number that follows an
//!   ended session is odd.

use qnic_abi::wire::kind;

/// What to make of a frame, by its two sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It belongs to the session.
    Accept,
    /// It begins a session: start over, then accept it.
    Begin,
    /// It is of another incarnation: drop it.
    Stale,
    /// The same, and its sender has to learn the session of this side.
    Stranger,
    /// The peer knows a larger number of this side than the one it uses.
    Outgrown,
}

/// The two numbers of a session, as one side knows them.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// This side's.
    own: u64,
    /// The other side's, while it is known.
    peer: u64,
    /// The smallest that the other side may begin with.
    floor: u64,
}

impl Session {
    /// A session that has not begun. `own` is not zero.
    pub(crate) fn new(own: u64) -> Self {
        Session {
            own,
            peer: 0,
            floor: 1,
        }
    }

    /// A session of a NIC with itself: always known.
    pub(crate) fn with_itself(own: u64) -> Self {
        Session {
            own,
            peer: own,
            floor: own,
        }
    }

    /// This side's session.
    pub(crate) fn own(&self) -> u64 {
        self.own
    }

    /// The other side's session, or zero.
    pub(crate) fn peer(&self) -> u64 {
        self.peer
    }

    /// Returns true if the other side's session is known.
    pub(crate) fn is_known(&self) -> bool {
        self.peer != 0
    }

    /// What the other side is told that it must begin with at least.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Says what a frame is, by its kind and its two sessions.
    #[inline]
    pub(crate) fn classify(&self, frame_kind: u8, source: u64, destination: u64) -> Verdict {
        if source == self.peer && destination == self.own && source != 0 {
            return Verdict::Accept;
        }
        self.classify_other(frame_kind, source, destination)
    }

    #[cold]
    fn classify_other(&self, frame_kind: u8, source: u64, destination: u64) -> Verdict {
        if source < self.floor {
            return match frame_kind {
                kind::HELLO | kind::LEAVE if source != 0 => Verdict::Stranger,
                _ => Verdict::Stale,
            };
        }
        match frame_kind {
            kind::HELLO if source == self.peer => Verdict::Accept,
            kind::HELLO => Verdict::Begin,
            kind::HELLO_REPLY if destination > self.own => Verdict::Outgrown,
            _ if destination == self.own => Verdict::Begin,
            kind::HELLO_REPLY => Verdict::Stale,
            _ => Verdict::Stranger,
        }
    }

    /// Begins a session with that number of the other side.
    pub(crate) fn begin(&mut self, peer: u64) {
        self.peer = peer;
        self.floor = peer;
    }

    /// The other side says that its session `source` has ended: it goes on with a
    /// larger one. `false`: that has nothing to do with this session.
    ///
    /// The side that ends may not have heard of this one; that its session is over
    /// is true whatever it knows.
    pub(crate) fn end_peer(&mut self, source: u64, destination: u64) -> bool {
        let current = source == self.peer && source != 0;
        let unknown = self.peer == 0 && source >= self.floor && destination == self.own;
        if current || unknown {
            self.floor = source.saturating_add(1);
            self.peer = 0;
        }
        current || unknown
    }

    /// This side goes on with a larger session, of at least `next`, whatever it knows of the
    /// other.
    pub(crate) fn renew_own(&mut self, next: u64) {
        let next = next.max(self.own.saturating_add(2));
        self.own = next.saturating_add(next % 2);
    }

    /// This side ends the session, and goes on with a larger one, of at least `next`.
    pub(crate) fn end_own(&mut self, next: u64) {
        self.renew_own(next);
        self.peer = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use qnic_abi::rdma::kind::WRITE;
    use qnic_abi::wire::kind::{ACK, GOODBYE, HELLO, HELLO_REPLY};

    #[test]
    fn frames_of_the_session_pass_and_no_others() {
        let mut session = Session::new(10);
        assert_eq!(session.classify(WRITE, 0, 10), Verdict::Stale);
        assert_eq!(session.classify(WRITE, 7, 9), Verdict::Stranger);
        assert_eq!(session.classify(WRITE, 7, 10), Verdict::Begin);
        assert_eq!(session.classify(HELLO, 7, 0), Verdict::Begin);
        assert_eq!(session.classify(HELLO_REPLY, 7, 9), Verdict::Stale);
        assert_eq!(session.classify(HELLO_REPLY, 7, 11), Verdict::Outgrown);
        session.begin(7);
        assert_eq!(session.classify(WRITE, 7, 10), Verdict::Accept);
        assert_eq!(session.classify(HELLO, 7, 0), Verdict::Accept);
        for (source, destination) in [(7, 9), (7, 11), (7, 0), (8, 9)] {
            let verdict = session.classify(ACK, source, destination);
            assert_eq!(verdict, Verdict::Stranger, "{source} {destination}");
        }
        assert_eq!(session.classify(WRITE, 6, 10), Verdict::Stale);
        assert_eq!(session.classify(HELLO, 6, 10), Verdict::Stranger);
        assert_eq!(session.classify(WRITE, 8, 10), Verdict::Begin);
    }

    #[test]
    fn what_has_ended_does_not_come_back() {
        let mut session = Session::new(10);
        session.begin(7);
        assert!(!session.end_peer(6, 10));
        assert!(session.end_peer(7, 0));
        assert!(!session.is_known());
        assert_eq!(session.classify(WRITE, 7, 10), Verdict::Stale);
        assert_eq!(session.classify(HELLO, 8, 0), Verdict::Begin);
        session.begin(8);
        session.end_own(3);
        assert_eq!(session.own(), 12);
        session.renew_own(12);
        assert_eq!(session.own(), 14, "it is another session");
        assert_eq!(session.classify(WRITE, 8, 10), Verdict::Stranger);
        assert_eq!(session.classify(HELLO_REPLY, 8, 14), Verdict::Begin);
    }

    /// Two sides that restart, give up and send HELLO over a wire that loses,
    /// doubles and reorders: no frame is taken by another life than the one it was
    /// meant for, and they come together once they are left alone.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Hello(usize),
        Write(usize),
        GiveUp(usize),
        Restart(usize),
        Leave(usize),
        Deliver(prop::sample::Index, bool),
        Lose(prop::sample::Index),
    }

    #[derive(Debug, Clone, Copy)]
    struct Sent {
        from: usize,
        kind: u8,
        source: u64,
        destination: u64,
    }

    struct Side {
        session: Session,
        next: u64,
    }

    fn step() -> impl Strategy<Value = Step> {
        let side = 0usize..2;
        prop_oneof![
            2 => side.clone().prop_map(Step::Hello),
            3 => side.clone().prop_map(Step::Write),
            1 => side.clone().prop_map(Step::GiveUp),
            1 => side.clone().prop_map(Step::Restart),
            1 => side.prop_map(Step::Leave),
            8 => (any::<prop::sample::Index>(), prop::bool::weighted(0.2))
                .prop_map(|(index, keep)| Step::Deliver(index, keep)),
            1 => any::<prop::sample::Index>().prop_map(Step::Lose),
        ]
    }

    struct Pair {
        sides: [Side; 2],
        wire: Vec<Sent>,
    }

    impl Pair {
        fn send(&mut self, from: usize, kind: u8) {
            let session = &self.sides[from].session;
            self.wire.push(Sent {
                from,
                kind,
                source: session.own(),
                destination: session.peer(),
            });
        }

        fn take(&mut self, frame: Sent) {
            let other = self.sides[frame.from].session.own();
            let to = 1 - frame.from;
            let next = self.sides[to].next;
            let session = &mut self.sides[to].session;
            if frame.kind == GOODBYE {
                let before = session.peer();
                let ended = session.end_peer(frame.source, frame.destination);
                assert!(!ended || before == 0 || before == frame.source);
                assert!(frame.source < other, "it has ended");
                return;
            }
            let verdict = session.classify(frame.kind, frame.source, frame.destination);
            match verdict {
                Verdict::Begin => session.begin(frame.source),
                Verdict::Outgrown => session.end_own(frame.destination + 1),
                _ => {}
            }
            self.sides[to].next = next.max(self.sides[to].session.own() + 2);
            let taken = matches!(verdict, Verdict::Accept | Verdict::Begin);
            if taken && frame.kind == WRITE {
                assert_eq!(frame.destination, self.sides[to].session.own());
                assert!(frame.source <= other, "from the future");
            }
            match (frame.kind, verdict) {
                (HELLO, Verdict::Accept | Verdict::Begin) => self.send(to, HELLO_REPLY),
                (HELLO, Verdict::Stranger) => {
                    let session = &self.sides[to].session;
                    let answer = Sent {
                        from: to,
                        kind: HELLO_REPLY,
                        source: session.own(),
                        destination: session.floor(),
                    };
                    self.wire.push(answer);
                }
                (_, Verdict::Stranger | Verdict::Outgrown) => self.send(to, HELLO),
                _ => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn lives_do_not_mix_and_sides_find_each_other(
            steps in prop::collection::vec(step(), 0..120),
        ) {
            let side = |next| Side { session: Session::new(next), next: next + 2 };
            let mut pair = Pair { sides: [side(6), side(4)], wire: Vec::new() };
            for step in steps {
                match step {
                    Step::Hello(side) => pair.send(side, HELLO),
                    Step::Write(side) if pair.sides[side].session.is_known() => {
                        pair.send(side, WRITE);
                    }
                    Step::Write(_) => {}
                    Step::GiveUp(side) => {
                        let this = &mut pair.sides[side];
                        this.session.end_own(this.next);
                        this.next = this.session.own() + 2;
                    }
                    Step::Restart(side) | Step::Leave(side) => {
                        if matches!(step, Step::Leave(_)) {
                            pair.send(side, GOODBYE);
                        }
                        let this = &mut pair.sides[side];
                        this.session = Session::new(this.next);
                        this.next += 2;
                    }
                    Step::Deliver(index, keep) if !pair.wire.is_empty() => {
                        let place = index.index(pair.wire.len());
                        let frame = pair.wire[place];
                        if !keep {
                            pair.wire.remove(place);
                        }
                        pair.take(frame);
                    }
                    Step::Lose(index) if !pair.wire.is_empty() => {
                        pair.wire.remove(index.index(pair.wire.len()));
                    }
                    Step::Deliver(..) | Step::Lose(_) => {}
                }
            }
            // From here on the wire works, and HELLO is sent until it is answered.
            for _ in 0..8 {
                pair.send(0, HELLO);
                let mut frames = 0;
                while !pair.wire.is_empty() {
                    let frame = pair.wire.remove(0);
                    pair.take(frame);
                    frames += 1;
                    prop_assert!(frames < 1000, "they never stop answering");
                }
            }
            for side in 0..2 {
                let other = pair.sides[1 - side].session.own();
                prop_assert_eq!(pair.sides[side].session.peer(), other);
            }
        }
    }
}
