//! Processes that behave, and what must hold beside others that do not.

use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_nic::testing::{Cluster, Net, Party, PAGE};
use qnic_nic::{Counters, Limits, SMALLEST_WINDOW};

/// Windows of each NIC.
pub(crate) const WINDOWS: u32 = 8;

/// Pages of a segment.
pub(crate) const PAGES: u64 = 12;

/// Bytes of a segment.
pub(crate) const BYTES: u64 = PAGES * PAGE;

/// Virtual time in which honest data has to arrive, in steps of [`STEP`].
const MOST_STEPS: u32 = 20_000;

/// Most polls while time passes.
const MOST_POLLS: usize = 100_000;

/// A step of virtual time in nanoseconds.
const STEP: u64 = 1_000_000;

/// Bounds that an input can reach.
pub(crate) fn limits() -> Limits {
    Limits {
        operations: 16,
        sends: 16,
        window: 32,
        held_frames: 96,
        responses: 32,
        faults: 4,
        imports: 2,
        parked_imports: 2,
        parked_imports_per_peer: 3,
        receives: 8,
        probes: 3,
        masks: 4,
        staged_bytes: 9000,
        staged_bytes_per_peer: 12_000,
        staged_bytes_per_sender: 3000,
        envelopes_per_peer: 6,
        completions: 4,
        datagram_buffers: 6,
        peers: 8,
        ..Limits::default()
    }
}

/// A process with a segment that starts off a page border.
pub(crate) fn party(net: &Net, node: usize, vni: u16) -> Party {
    let address = 0x10_0000 + u64::from(vni) * 0x100_0000 + 0x123;
    net.party_at(node, vni, (address, BYTES))
}

/// Two processes on two nodes that behave, and the nodes whose drivers do.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) a: Party,
    pub(crate) b: Party,
    pub(crate) drivers: Vec<usize>,
    rounds: u64,
}

impl Pair {
    pub(crate) fn new(a: Party, b: Party, drivers: &[usize]) -> Self {
        Pair {
            a,
            b,
            drivers: drivers.to_vec(),
            rounds: 0,
        }
    }

    /// Answers the faults that honest drivers were told of.
    pub(crate) fn serve(&self) {
        for node in &self.drivers {
            self.a.net.answer_all(*node, u32::MAX);
        }
    }

    /// Writes from `a` to `b` and reads back: every byte arrives, no command fails.
    pub(crate) fn exchange(&mut self) {
        self.rounds += 1;
        let (a, b) = (&self.a, &self.b);
        let (done, errors) = (a.done(), a.errors());
        let bytes = a.fill(40, 9000, self.rounds);
        a.write(b).from(40).to(500).bytes(9000).issue();
        self.wait("a write", |a| a.done().0 == done.0 + 1);
        assert!(self.b.holds(500, &bytes), "bytes of an honest write");
        let (a, b) = (&self.a, &self.b);
        a.read(b).from(500).to(20_000).bytes(9000).issue();
        self.wait("a read", |a| a.done().1 == done.1 + 1);
        let a = &self.a;
        assert!(a.holds(20_000, &bytes), "bytes of an honest read");
        assert_eq!(a.errors(), errors, "honest commands do not fail");
    }

    fn wait(&self, what: &str, arrived: impl Fn(&Party) -> bool) {
        let net = &self.a.net;
        for _ in 0..MOST_STEPS {
            net.run();
            self.serve();
            if arrived(&self.a) {
                return;
            }
            pass(net, STEP);
        }
        panic!("{what} of an honest process never ends");
    }
}

/// Lets time pass, in nanoseconds: each NIC is polled when it wants to be.
pub(crate) fn pass(net: &Net, nanoseconds: u64) {
    let end = net.cluster().now.after(nanoseconds);
    for _ in 0..MOST_POLLS {
        let deadlines = |cluster: &Cluster| {
            let nodes = cluster.nodes.iter();
            nodes.filter_map(|node| node.nic.next_deadline()).min()
        };
        let next = deadlines(&net.cluster()).filter(|next| *next <= end);
        let Some(next) = next else { break };
        let mut cluster = net.cluster();
        cluster.now = cluster.now.max(next);
        cluster.run();
    }
    net.cluster().now = end;
}

/// No list of a NIC is longer than its limits say; between two calls no page is locked of
/// those nodes whose `drivers` are honest.
pub(crate) fn check_bounds(net: &Net, limits: &Limits, drivers: &[usize]) {
    for node in drivers {
        let node = &net.cluster().nodes[*node];
        assert!(node.driver.all_unlocked(&node.host), "a page is locked");
    }
    let nodes = net.cluster().nodes.len();
    for node in 0..nodes {
        let counters = net.counters(node);
        check(&counters, limits);
        for budget in net.cluster().nodes[node].nic.budgets() {
            assert!(budget.used <= budget.limit, "{budget:?}");
        }
    }
}

fn check(counters: &Counters, limits: &Limits) {
    let held = u64::from(limits.held_frames) + u64::from(SMALLEST_WINDOW * limits.peers);
    let processes = u32::try_from(counters.processes).unwrap();
    for (what, value, bound) in [
        ("processes", counters.processes, WINDOWS),
        (
            "segments",
            counters.segments,
            processes * SEGMENTS_PER_PROCESS,
        ),
        (
            "operations",
            counters.operations,
            processes * (limits.operations + limits.sends),
        ),
        (
            "parked imports",
            counters.parked_imports,
            limits.parked_imports_per_peer * limits.peers,
        ),
        ("faults", counters.faults_pending, processes * limits.faults),
        ("frames held", counters.frames_held, held as u32),
    ] {
        assert!(value <= bound.into(), "{value} {what}, at most {bound}");
    }
    let (bytes, bound) = (counters.bounce_bytes, held * PAGE);
    assert!(bytes <= bound, "{bytes} of bounce memory, at most {bound}");
}

/// Resets a NIC: it holds nothing any more.
pub(crate) fn reset(net: &Net, node: usize) {
    net.cluster().reset(node);
    net.assert_holds_nothing(node);
    let counters = net.counters(node);
    for value in [
        counters.processes,
        counters.segments,
        counters.operations,
        counters.parked_imports,
        counters.faults_pending,
    ] {
        assert_eq!(value, 0, "held after a reset");
    }
}
