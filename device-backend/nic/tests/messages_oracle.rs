//! Random traffic of several processes against an oracle of MPI's rules (Q4), on bad wires and
//! with pages that come and go.

use std::collections::BTreeMap;

use proptest::prelude::*;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::Status;
use qnic_nic::testing::{pattern, LossyWire, Net, Party, PAGE};
use qnic_nic::Limits;

/// Bytes that each message has in its sender's segment, and each receive in its own.
const ROOM: u64 = 3 * PAGE;

/// Processes.
const PARTIES: usize = 4;

/// Sends of a process.
const MOST_SENDS: usize = 28;

/// Receives and probes of a process; some are left for the end.
const MOST_POSTED: usize = 44;
const MOST_RANDOM: usize = 34;

/// What is done with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Receive,
    /// A probe; true: it waits.
    Look(bool),
    Claim(bool),
    Discard(bool),
}

impl How {
    /// Ends with a message only.
    fn waits(self) -> bool {
        match self {
            How::Receive => true,
            How::Look(waits) | How::Claim(waits) | How::Discard(waits) => waits,
        }
    }
}

/// One step of the traffic.
#[derive(Debug, Clone)]
enum Step {
    /// From, to, tag, length.
    Send(usize, usize, u64, u64),
    /// At, source or any, tag or any.
    Receive(usize, Option<usize>, Option<u64>, How),
    /// A claimed message, or to discard it.
    Claimed(usize, bool),
    Pass(u64),
    Evict(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let party = 0..PARTIES;
    let length = prop_oneof![Just(0), 1u64..200, 200u64..ROOM];
    prop_oneof![
        4 => (party.clone(), party.clone(), 0u64..3, length)
            .prop_map(|(from, to, tag, length)| Step::Send(from, to, tag, length)),
        4 => (party.clone(), prop::option::of(party.clone()), prop::option::of(0u64..3), how())
            .prop_map(|(at, source, tag, how)| Step::Receive(at, source, tag, how)),
        1 => (party.clone(), any::<bool>()).prop_map(|(at, drop)| Step::Claimed(at, drop)),
        2 => (0u64..200_000).prop_map(Step::Pass),
        1 => (party, 0u64..60).prop_map(|(party, number)| Step::Evict(party, number)),
    ]
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        4 => Just(How::Receive),
        1 => any::<bool>().prop_map(How::Look),
        1 => any::<bool>().prop_map(How::Claim),
        1 => any::<bool>().prop_map(How::Discard),
    ]
}

/// A receive or a probe as the test has posted it.
#[derive(Debug, Clone, Copy)]
struct Posted {
    source: Option<usize>,
    tag: Option<u64>,
    how: How,
}

impl Posted {
    fn takes(&self, from: usize, tag: u64) -> bool {
        self.source.is_none_or(|own| own == from) && self.tag.is_none_or(|own| own == tag)
    }
}

/// A message as the test has sent it.
#[derive(Debug, Clone, Copy)]
struct Sent {
    from: usize,
    to: usize,
    tag: u64,
    length: u64,
}

/// What was issued and what has come of it.
struct Traffic {
    net: Net,
    parties: Vec<Party>,
    sent: Vec<Sent>,
    posted: Vec<Vec<Posted>>,
    /// Number of the message that a receive, claim or discard has taken: by process and receive.
    matched: BTreeMap<(usize, u64), u64>,
    /// The same of probes that look.
    seen: BTreeMap<(usize, u64), u64>,
    /// Claim and number at the NIC of what is claimed and not received.
    claimed: Vec<Vec<(u64, u64)>>,
    acknowledged: u64,
    /// Messages of which their senders know that nothing was taken.
    truncated: Vec<u64>,
}

impl Traffic {
    fn new(net: Net, nodes: usize) -> Self {
        let party = |number: usize| {
            let address = 0x10_0000 + number as u64 * 0x100_0000 + 0x123;
            net.party_at(number % nodes, number as u16 + 1, (address, 76 * ROOM))
        };
        Traffic {
            parties: (0..PARTIES).map(party).collect(),
            net,
            sent: Vec::new(),
            posted: vec![Vec::new(); PARTIES],
            matched: BTreeMap::new(),
            seen: BTreeMap::new(),
            claimed: vec![Vec::new(); PARTIES],
            acknowledged: 0,
            truncated: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(from, to, tag, length) => self.send(from, to, tag, length),
            Step::Receive(at, source, tag, how) => {
                if self.posted[at].len() < MOST_RANDOM {
                    self.post(at, Posted { source, tag, how });
                }
            }
            Step::Claimed(at, discard) => self.receive_claimed(at, discard),
            Step::Pass(time) => {
                self.net.advance(time);
                self.poll();
            }
            Step::Evict(party, number) => self.parties[party].evict(number * PAGE),
        }
        self.collect();
    }

    fn poll(&self) {
        let nodes = self.net.cluster().nodes.len();
        for _ in 0..4 {
            for node in 0..nodes {
                self.net.poll(node);
            }
        }
    }

    /// The lower half of a segment is for messages, the upper one for receives.
    fn send(&mut self, from: usize, to: usize, tag: u64, length: u64) {
        let number = self.sent.len() as u64;
        let mine = self.sent.iter().filter(|sent| sent.from == from).count() as u64;
        if mine >= MOST_SENDS as u64 {
            return;
        }
        let offset = mine * ROOM;
        let party = &self.parties[from];
        party.store(offset, &pattern(number, length as usize));
        let message = party.send(number, &self.parties[to]).tag(tag);
        let message = message.immediate(number).mark(number as u32);
        message.bytes(offset, length).issue();
        self.sent.push(Sent {
            from,
            to,
            tag,
            length,
        });
        self.poll();
    }

    fn post(&mut self, at: usize, posted: Posted) {
        let number = self.posted[at].len() as u64;
        match posted.how {
            How::Receive => self.receive(at, number, posted),
            _ => self.probe(at, number, posted),
        }
        self.posted[at].push(posted);
        self.poll();
    }

    fn receive(&self, at: usize, number: u64, posted: Posted) {
        let mut receive = self.parties[at].receive(number);
        receive = receive.bytes((30 + number) * ROOM, ROOM);
        if let Some(source) = posted.source {
            receive = receive.from(&self.parties[source]);
        }
        if let Some(tag) = posted.tag {
            receive = receive.tag(tag);
        }
        receive.issue();
    }

    fn probe(&self, at: usize, number: u64, posted: Posted) {
        let mut probe = self.parties[at].probe(number);
        if let Some(source) = posted.source {
            probe = probe.from(&self.parties[source]);
        }
        if let Some(tag) = posted.tag {
            probe = probe.tag(tag);
        }
        if posted.how.waits() {
            probe = probe.wait();
        }
        match posted.how {
            How::Claim(_) => probe.claim().issue(),
            How::Discard(_) => probe.discard().issue(),
            _ => probe.issue(),
        }
    }

    /// Receives or discards what was claimed last.
    fn receive_claimed(&mut self, at: usize, discard: bool) {
        let Some((claim, message)) = self.claimed[at].pop() else {
            return;
        };
        let receive = self.parties[at].receive_claimed(claim, message);
        match discard {
            true => {
                self.posted[at][claim as usize].how = How::Discard(self.waits(at, claim));
                receive.discard().issue();
            }
            false => receive.bytes((30 + claim) * ROOM, ROOM).issue(),
        }
        self.poll();
    }

    fn waits(&self, at: usize, number: u64) -> bool {
        self.posted[at][number as usize].how.waits()
    }

    fn collect(&mut self) {
        for at in 0..PARTIES {
            for entry in self.parties[at].completions() {
                match CompletionKind::try_from(entry.kind) {
                    Ok(CompletionKind::Send) => self.sent(&entry),
                    Ok(CompletionKind::Receive) => self.received(at, &entry),
                    _ => self.probed(at, &entry),
                }
            }
        }
    }

    fn sent(&mut self, entry: &CompletionEntry) {
        self.acknowledged += 1;
        if entry.status.get() == Status::Truncated.code() {
            return self.truncated.push(entry.handle.get());
        }
        assert_eq!(entry.status.get(), Status::Ok.code());
    }

    /// The message that an entry tells of, which is one that its command takes.
    fn told(&self, at: usize, entry: &CompletionEntry) -> (u64, Sent) {
        assert_eq!(entry.status.get(), Status::Ok.code());
        let (receive, number) = (entry.handle.get(), entry.immediate.get());
        let sent = self.sent[number as usize];
        let from = &self.parties[sent.from];
        assert_eq!(entry.mark.get(), number as u32);
        assert_eq!(
            (sent.to, sent.tag, sent.length),
            (at, entry.tag.get(), entry.length.get())
        );
        assert_eq!(
            (entry.node.get(), entry.port.get()),
            (from.node as u16, from.port.0)
        );
        assert!(self.posted[at][receive as usize].takes(sent.from, sent.tag));
        (number, sent)
    }

    fn received(&mut self, at: usize, entry: &CompletionEntry) {
        let (number, sent) = self.told(at, entry);
        let receive = entry.handle.get();
        let how = self.posted[at][receive as usize].how;
        if !matches!(how, How::Discard(_)) {
            let bytes = pattern(number, sent.length as usize);
            let there = self.parties[at].holds((30 + receive) * ROOM, &bytes);
            assert!(there, "bytes of {number}");
        }
        match how {
            How::Receive => self.take(at, receive, number),
            _ => assert_eq!(self.matched.get(&(at, receive)), Some(&number)),
        }
    }

    fn take(&mut self, at: usize, receive: u64, number: u64) {
        let twice = self.matched.insert((at, receive), number);
        assert_eq!(twice, None, "a receive takes one message");
    }

    fn probed(&mut self, at: usize, entry: &CompletionEntry) {
        let probe = entry.handle.get();
        let how = self.posted[at][probe as usize].how;
        if entry.status.get() == Status::NoMessage.code() {
            return assert!(!how.waits(), "{probe} waits");
        }
        let (number, _) = self.told(at, entry);
        match how {
            How::Look(_) => drop(self.seen.insert((at, probe), number)),
            _ => self.take(at, probe, number),
        }
        if let How::Claim(_) = how {
            self.claimed[at].push((probe, entry.offset.get()));
        }
    }

    /// Receives for what is left, then the rules.
    fn end(&mut self) {
        self.net.run();
        self.collect();
        for at in 0..PARTIES {
            self.look_at_what_is_left(at);
            for discard in [true, false].into_iter().cycle() {
                if self.claimed[at].is_empty() {
                    break;
                }
                self.receive_claimed(at, discard);
            }
            let to = self.sent.iter().filter(|sent| sent.to == at).count();
            let any = Posted {
                source: None,
                tag: None,
                how: How::Receive,
            };
            let most = MOST_POSTED.min(MOST_RANDOM + to);
            while self.posted[at].len() < most {
                self.post(at, any);
            }
        }
        self.net.run();
        self.collect();
        self.check_order();
        self.check_seen();
        self.check_met();
        let taken: std::collections::BTreeSet<_> = self.matched.values().collect();
        assert_eq!(taken.len(), self.matched.len(), "a message arrives once");
        for number in &self.truncated {
            let mut matched = self.matched.iter();
            let taker = matched.find(|(_, taken)| *taken == number);
            let ((at, receive), _) = taker.expect("it was taken");
            let how = self.posted[*at][*receive as usize].how;
            assert!(matches!(how, How::Discard(_)), "{number} by {how:?}");
        }
    }

    /// All is quiet: a probe finds a message if one is left.
    fn look_at_what_is_left(&mut self, at: usize) {
        let taken = |number: u64| self.matched.values().any(|taken| *taken == number);
        let sent = (0u64..).zip(&self.sent);
        let mut to = sent.filter(|(_, sent)| sent.to == at);
        let is_left = to.any(|(number, _)| !taken(number));
        let number = self.posted[at].len() as u64;
        let any = Posted {
            source: None,
            tag: None,
            how: How::Look(false),
        };
        self.post(at, any);
        self.net.run();
        self.collect();
        assert_eq!(self.seen.contains_key(&(at, number)), is_left);
    }

    /// Of two messages of one sender to one process, and two receives that take both, the earlier
    /// message has the earlier receive.
    fn check_order(&self) {
        for ((at, receive), number) in &self.matched {
            for ((other_at, other_receive), other_number) in &self.matched {
                let (one, other) = (
                    self.sent[*number as usize],
                    self.sent[*other_number as usize],
                );
                if at != other_at || one.from != other.from || number >= other_number {
                    continue;
                }
                let receives = [*receive, *other_receive].map(|it| self.posted[*at][it as usize]);
                let take = |sent: Sent| receives.iter().all(|it| it.takes(sent.from, sent.tag));
                // Receives are before probes that wait.
                let passed = receives[0].how == How::Receive
                    && receives[1].how != How::Receive
                    && receives[1].how.waits();
                let ordered = !(take(one) && take(other)) || receive < other_receive || passed;
                assert!(
                    ordered,
                    "{number} before {other_number}: {receive}, {other_receive}"
                );
            }
        }
    }

    /// What a probe has seen, no receive before it has taken; and of its sender nothing earlier,
    /// that it would have told of, was left for those behind it.
    fn check_seen(&self) {
        for ((at, look), number) in &self.seen {
            let taker_of = |number: u64| {
                let mut matched = self.matched.iter();
                let taker = matched.find(|(_, taken)| **taken == number);
                taker.map_or(u64::MAX, |((_, receive), _)| *receive)
            };
            assert!(taker_of(*number) > *look, "{number} was there");
            let posted = self.posted[*at][*look as usize];
            let sender = self.sent[*number as usize].from;
            for (earlier, sent) in (0..*number).zip(&self.sent) {
                let same = (sent.from, sent.to) == (sender, *at);
                if same && posted.takes(sent.from, sent.tag) && !posted.how.waits() {
                    assert!(taker_of(earlier) < *look, "{earlier} before {number}");
                }
            }
        }
    }

    /// No receive or probe that waits, and no message, that match are left behind.
    fn check_met(&self) {
        let taken: Vec<_> = self.matched.values().copied().collect();
        for (number, sent) in (0u64..).zip(&self.sent) {
            if taken.contains(&number) {
                continue;
            }
            for (receive, posted) in (0u64..).zip(&self.posted[sent.to]) {
                let key = (sent.to, receive);
                let ended = self.matched.contains_key(&key) || self.seen.contains_key(&key);
                let free = !ended && posted.how.waits();
                assert!(
                    !(free && posted.takes(sent.from, sent.tag)),
                    "{number} meets {receive}"
                );
            }
        }
        if taken.len() == self.sent.len() {
            assert_eq!(self.acknowledged, self.sent.len() as u64);
            let nodes = self.net.cluster().nodes.len();
            for node in 0..nodes {
                self.net.assert_holds_nothing(node);
            }
        }
        self.net.assert_unlocked();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn messages_keep_the_rules_of_mpi(
        seed: u64,
        // A node that is waited for and loses eight probes in a row is given up: at a loss of a
        // fifth, that happens within the minute that a run lasts.
        loss in prop_oneof![Just(None), Just(Some(0u64)), Just(Some(20)), Just(Some(60))],
        nodes in 2usize..4,
        staged in prop_oneof![Just(4u32 << 20), Just(8000)],
        steps in prop::collection::vec(step(), 1..90),
    ) {
        let limits = Limits { staged_bytes: staged, ..Limits::default() };
        let net = Net::new(nodes as u16, 4096, 8, &limits);
        if let Some(loss) = loss {
            net.cluster().set_lossy_wire(LossyWire::rough(loss), seed);
        }
        let mut traffic = Traffic::new(net, nodes);
        for step in &steps {
            traffic.step(step);
        }
        traffic.end();
    }
}
