//! Random traffic of several processes against an oracle of MPI's rules (Q4), on bad wires and
//! with pages that come and go.

use std::collections::BTreeMap;

use proptest::prelude::*;
use qnic_abi::host_area::CompletionKind;
use qnic_abi::Status;
use qnic_nic::testing::{pattern, LossyWire, Net, Party, PAGE};
use qnic_nic::Limits;

/// Bytes that each message has in its sender's segment, and each receive in its own.
const ROOM: u64 = 3 * PAGE;

/// Processes.
const PARTIES: usize = 4;

/// One step of the traffic.
#[derive(Debug, Clone)]
enum Step {
    /// From, to, tag, length.
    Send(usize, usize, u64, u64),
    /// At, source or any, tag or any.
    Receive(usize, Option<usize>, Option<u64>),
    Pass(u64),
    Evict(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let party = 0..PARTIES;
    let length = prop_oneof![Just(0), 1u64..200, 200u64..ROOM];
    prop_oneof![
        4 => (party.clone(), party.clone(), 0u64..3, length)
            .prop_map(|(from, to, tag, length)| Step::Send(from, to, tag, length)),
        4 => (party.clone(), prop::option::of(party.clone()), prop::option::of(0u64..3))
            .prop_map(|(at, source, tag)| Step::Receive(at, source, tag)),
        2 => (0u64..200_000).prop_map(Step::Pass),
        1 => (party, 0u64..60).prop_map(|(party, number)| Step::Evict(party, number)),
    ]
}

/// A receive as the test has posted it.
#[derive(Debug, Clone, Copy)]
struct Posted {
    source: Option<usize>,
    tag: Option<u64>,
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
    /// Number of the message that a receive has taken: by process and receive.
    matched: BTreeMap<(usize, u64), u64>,
    acknowledged: u64,
}

impl Traffic {
    fn new(net: Net, nodes: usize) -> Self {
        let party = |number: usize| {
            let address = 0x10_0000 + number as u64 * 0x100_0000 + 0x123;
            net.party_at(number % nodes, number as u16 + 1, (address, 60 * ROOM))
        };
        Traffic {
            parties: (0..PARTIES).map(party).collect(),
            net,
            sent: Vec::new(),
            posted: vec![Vec::new(); PARTIES],
            matched: BTreeMap::new(),
            acknowledged: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(from, to, tag, length) => self.send(from, to, tag, length),
            Step::Receive(at, source, tag) => {
                let source = source.filter(|_| self.posted[at].len() < 25);
                self.receive(at, Posted { source, tag });
            }
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
        if mine >= 28 {
            return;
        }
        let offset = mine * ROOM;
        let party = &self.parties[from];
        party.store(offset, &pattern(number, length as usize));
        let message = party.send(number, &self.parties[to]).tag(tag);
        message.bytes(offset, length).immediate(number).issue();
        self.sent.push(Sent {
            from,
            to,
            tag,
            length,
        });
        self.poll();
    }

    fn receive(&mut self, at: usize, posted: Posted) {
        let number = self.posted[at].len() as u64;
        if number >= 28 {
            return;
        }
        let mut receive = self.parties[at].receive(number);
        receive = receive.bytes((30 + number) * ROOM, ROOM);
        if let Some(source) = posted.source {
            receive = receive.from(&self.parties[source]);
        }
        if let Some(tag) = posted.tag {
            receive = receive.tag(tag);
        }
        receive.issue();
        self.posted[at].push(posted);
        self.poll();
    }

    fn collect(&mut self) {
        for (at, party) in self.parties.iter().enumerate() {
            for entry in party.completions() {
                assert_eq!(entry.status.get(), Status::Ok.code());
                if entry.kind == CompletionKind::Send as u8 {
                    self.acknowledged += 1;
                    continue;
                }
                let (receive, number) = (entry.handle.get(), entry.immediate.get());
                let sent = self.sent[number as usize];
                let from = &self.parties[sent.from];
                assert_eq!(
                    (sent.to, sent.tag, sent.length),
                    (at, entry.tag.get(), entry.length.get())
                );
                assert_eq!(
                    (entry.node.get(), entry.port.get()),
                    (from.node as u16, from.port.0)
                );
                assert!(self.posted[at][receive as usize].takes(sent.from, sent.tag));
                let bytes = pattern(number, sent.length as usize);
                assert!(
                    party.holds((30 + receive) * ROOM, &bytes),
                    "bytes of {number}"
                );
                let twice = self.matched.insert((at, receive), number);
                assert_eq!(twice, None, "a receive takes one message");
            }
        }
    }

    /// Receives for what is left, then the rules.
    fn end(&mut self) {
        self.net.run();
        self.collect();
        for at in 0..PARTIES {
            let to = self.sent.iter().filter(|sent| sent.to == at).count();
            let any = Posted {
                source: None,
                tag: None,
            };
            while self.posted[at].len() < 28 && self.posted[at].len() < to + 25 {
                self.receive(at, any);
            }
        }
        self.net.run();
        self.collect();
        self.check_order();
        self.check_met();
        let taken: std::collections::BTreeSet<_> = self.matched.values().collect();
        assert_eq!(taken.len(), self.matched.len(), "a message arrives once");
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
                let ordered = !(take(one) && take(other)) || receive < other_receive;
                assert!(
                    ordered,
                    "{number} before {other_number}: {receive}, {other_receive}"
                );
            }
        }
    }

    /// No receive and no message that match are left behind.
    fn check_met(&self) {
        let taken: Vec<_> = self.matched.values().copied().collect();
        for (number, sent) in (0u64..).zip(&self.sent) {
            if taken.contains(&number) {
                continue;
            }
            for (receive, posted) in (0u64..).zip(&self.posted[sent.to]) {
                let free = !self.matched.contains_key(&(sent.to, receive));
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
