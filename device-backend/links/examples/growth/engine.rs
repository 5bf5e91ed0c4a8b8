//! One engine and the processes of its nodes, by a clock that goes on with each round.

use qnic_links::fabric::Fabric;
use qnic_nic::{Progress, Time};

use super::node::Node;

/// What a round takes by the clock of the NICs, in nanoseconds.
const ROUND: u64 = 100;

/// Rounds between the end of a write and the next one, if it is fenced.
const REACTION: u64 = 2;

/// NICs at rest that a round looks at which finds nothing, as in the device process.
const LOOKS: usize = 2;

/// Rounds that find nothing after which something is wrong.
const LIMIT: u64 = 1_000_000;

/// The doorbell of each process: a NIC has one.
const DOORBELL: u32 = 0;

/// Which NICs write, and in which way.
pub(crate) struct Run {
    pub(crate) peers: usize,
    pub(crate) endpoints: usize,
    pub(crate) fenced: bool,
    pub(crate) writes: u64,
}

impl Run {
    pub(crate) fn parse(arguments: &[String]) -> Option<Self> {
        let [grows, count, way, writes] = arguments else {
            return None;
        };
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=1000).contains(count))?;
        let (peers, endpoints) = match grows.as_str() {
            "peers" => (count, 1),
            "endpoints" => (1, count),
            _ => return None,
        };
        let fenced = match way.as_str() {
            "fenced" => true,
            "streamed" => false,
            _ => return None,
        };
        let writes = writes.parse().ok().filter(|writes| *writes > 0)?;
        Some(Run {
            peers,
            endpoints,
            fenced,
            writes,
        })
    }
}

/// One engine, whose first NIC is that of the processes that write.
pub(crate) struct Engine {
    fabric: Fabric<Node>,
    now: Time,
    pub(crate) rounds: u64,
    pub(crate) turns: u64,
}

impl Engine {
    pub(crate) fn new(run: &Run) -> Self {
        let mut fabric = Fabric::default();
        for number in 0..=run.peers {
            let (nic, host) = Node::new(number, if number == 0 { run.endpoints } else { 1 });
            fabric.add(nic, host).expect("one of its number");
            fabric.with(number, Time(1), |now, nic, host, wire| {
                host.start(now, nic, wire)
            });
        }
        Engine {
            fabric,
            now: Time(1),
            rounds: 0,
            turns: 0,
        }
    }

    /// A round, as the engine of the device process has it.
    fn round(&mut self) {
        self.rounds += 1;
        self.now = self.now.after(ROUND);
        let mut busy = self.fabric.receive(self.now);
        let mut from = 0;
        while let Some(slot) = self.fabric.next_due(from) {
            from = slot + 1;
            self.turns += 1;
            match self.fabric.poll(slot, self.now) {
                Progress::Busy => busy = true,
                Progress::Idle => self.fabric.rest(slot),
            }
        }
        self.fabric.flush(self.now);
        if !busy {
            self.fabric.look(self.now, LOOKS);
        }
    }

    /// Has a process post up to `writes` in all, to all peers in turn.
    fn post(&mut self, endpoint: usize, writes: u64, target: impl Fn(u64) -> usize) {
        let host = self.fabric.host(0);
        if host.post(endpoint, writes, |_, number| target(number)) {
            self.fabric.nic_mut(0).handle_doorbell(DOORBELL);
        }
    }

    /// Has one write after the other.
    fn fenced(&mut self, run: &Run, writes: u64) {
        let (peers, endpoints) = (run.peers as u64, run.endpoints as u64);
        let before = (0..run.endpoints).map(|it| self.fabric.host(0).done(it));
        let before: Vec<u64> = before.collect();
        for number in 0..writes {
            let endpoint = (number % endpoints) as usize;
            let wanted = before[endpoint] + number / endpoints + 1;
            self.post(endpoint, wanted, |number| 1 + (number % peers) as usize);
            let limit = self.rounds + LIMIT;
            while self.fabric.host(0).done(endpoint) < wanted {
                assert!(self.rounds < limit, "a write does not end");
                self.round();
            }
            for _ in 0..REACTION {
                self.round();
            }
        }
    }

    /// Has processes post all the time, so many writes each, in turn.
    fn streamed(&mut self, run: &Run, writes: u64) {
        let peers = run.peers as u64;
        let all = writes / run.endpoints as u64;
        let wanted = (0..run.endpoints).map(|it| self.fabric.host(0).done(it) + all);
        let wanted: Vec<u64> = wanted.collect();
        let limit = self.rounds + LIMIT + writes;
        let done = |engine: &Self, it: usize| engine.fabric.host(0).done(it);
        while (0..run.endpoints).any(|it| done(self, it) < wanted[it]) {
            assert!(self.rounds < limit, "writes do not end");
            for (endpoint, wanted) in wanted.iter().enumerate() {
                self.post(endpoint, *wanted, |number| 1 + (number % peers) as usize);
            }
            self.round();
        }
    }

    pub(crate) fn run(&mut self, run: &Run, writes: u64) {
        match run.fenced {
            true => self.fenced(run, writes),
            false => self.streamed(run, writes),
        }
    }

    /// Writes that have failed.
    pub(crate) fn errors(&self, run: &Run) -> u64 {
        let host = self.fabric.host(0);
        (0..run.endpoints).map(|it| host.errors(it)).sum()
    }

    /// Acks that all NICs have sent.
    pub(crate) fn acks(&self, run: &Run) -> u64 {
        let acks = |slot| self.fabric.nic(slot).counters().acknowledgements;
        (0..=run.peers).map(acks).sum()
    }
}
