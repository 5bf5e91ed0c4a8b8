//! The counters of the process.

use qnic_abi::control::Statistics;
use qnic_links::{CarrierReport, Fabric, LinkReport};
use qnic_nic::stages::StageReport;
use qnic_nic::{Budget, PeerReport, VniReport};
use serde::{Serialize, Serializer};

use super::node::Node;

/// All counters of the process.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Each NIC, in the order of the configuration.
    pub nics: Vec<NicReport>,
    /// The engine threads, together.
    pub engine: EngineReport,
    /// The links and other processes.
    pub network: NetworkReport,
}

impl Report {
    /// The counters of several engines as those of the process. NICs were dealt to the engines in
    /// turn.
    pub(super) fn merged(reports: Vec<Report>) -> Self {
        let mut reports = reports.into_iter();
        let Some(mut all) = reports.next() else {
            return Report::default();
        };
        let mut nics = vec![std::mem::take(&mut all.nics).into_iter()];
        for report in reports {
            nics.push(report.nics.into_iter());
            all.engine.add(&report.engine);
            all.network.add(report.network);
        }
        let count = nics.len();
        let dealt = (0..).map_while(|turn| nics[turn % count].next());
        all.nics = dealt.collect();
        all
    }
}

/// Counters of the links between NICs, and of the carriers to other processes.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NetworkReport {
    /// Each direction of each link that a frame of this process can take.
    pub links: Vec<LinkReport>,
    /// Frames that links damaged: their checksum did not match, and they were dropped.
    pub damaged: u64,
    /// Frames from other processes whose destination is no NIC here, or whose source is no
    /// NIC of theirs.
    pub misdirected: u64,
    /// The carriers to other processes.
    pub carriers: Vec<CarrierReport>,
}

impl NetworkReport {
    pub(super) fn of(fabric: &Fabric<Node>) -> Self {
        let carriers = fabric.carriers().iter();
        NetworkReport {
            links: fabric.network().report(),
            damaged: fabric.network().damaged(),
            misdirected: fabric.misdirected(),
            carriers: carriers.map(|carrier| carrier.report()).collect(),
        }
    }

    /// Adds what another engine of the process has counted: each emulates the links of what it
    /// sends.
    fn add(&mut self, other: NetworkReport) {
        for link in other.links {
            let hop = (link.from, link.to);
            match self
                .links
                .binary_search_by_key(&hop, |own| (own.from, own.to))
            {
                Ok(index) => self.links[index].add(&link),
                Err(index) => self.links.insert(index, link),
            }
        }
        self.damaged += other.damaged;
        self.misdirected += other.misdirected;
        self.carriers.extend(other.carriers);
    }
}

/// Counters of the engine threads, together.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EngineReport {
    /// Times that all NICs were given a turn that were due.
    pub rounds: u64,
    /// Times that a thread went to sleep.
    pub sleeps: u64,
    /// Times that a thread gave up its processor between two looks.
    pub yields: u64,
    /// Kicks taken, of all queues.
    pub kicks: u64,
}

impl EngineReport {
    fn add(&mut self, other: &EngineReport) {
        let EngineReport {
            rounds,
            sleeps,
            yields,
            kicks,
        } = other;
        self.rounds += rounds;
        self.sleeps += sleeps;
        self.yields += yields;
        self.kicks += kicks;
    }
}

/// The state of a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NicState {
    /// No driver has started it.
    Down,
    /// The driver has started it; the front end is mapping the SRAM.
    Mapping,
    /// The driver can use it.
    Running,
    /// The machine is paused, as was announced; the NIC continues to serve its peers.
    Paused,
    /// The machine has stopped the device, for a pause or a reset; the NIC stands still.
    Suspended,
}

/// One NIC.
#[derive(Debug, Clone, Serialize)]
pub struct NicReport {
    /// Its name.
    pub name: String,
    /// Number of its node.
    pub node: u16,
    /// Whether a front end is connected.
    pub connected: bool,
    /// Its state.
    pub state: NicState,
    /// Counters of its attachment.
    pub counters: NicCounters,
    /// Counters of the NIC itself.
    #[serde(serialize_with = "by_name")]
    pub statistics: Statistics,
    /// What guests and peers make it keep, and how much that may be.
    #[serde(serialize_with = "used_and_limit")]
    pub budgets: Vec<Budget>,
    /// How long operations and frames were in each stage, by samples.
    #[serde(serialize_with = "by_kind_and_stage")]
    pub stages: Vec<StageReport>,
    /// Its processes, by VNI: as many as it has windows at most.
    #[serde(serialize_with = "processes")]
    pub processes: Vec<VniReport>,
    /// The NICs that it talks to, by node: as many as `peers` of its limits at most.
    #[serde(serialize_with = "peers")]
    pub peers: Vec<PeerReport>,
}

/// Counters of the attachment of one NIC, since the process started.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NicCounters {
    /// Times that the driver was let in.
    pub starts: u64,
    /// Times that its machine went on after a pause.
    pub pauses: u64,
    /// Times that a running device was reset, by whatever cause.
    pub resets: u64,
    /// Turns that the engine gave to it.
    pub turns: u64,
    /// Doorbells taken.
    pub doorbells: u64,
    /// Requests of the driver.
    pub control_requests: u64,
    /// Descriptor chains that were neither a request nor an event buffer.
    pub malformed_chains: u64,
    /// Queues that were stopped because their rings were malformed.
    pub failed_queues: u64,
    /// Events given to the driver.
    pub events: u64,
    /// Interrupts raised.
    pub interrupts: u64,
}

/// The fields of a process.
#[derive(Serialize)]
#[serde(remote = "VniReport")]
struct VniFields {
    vni: u16,
    port: u16,
    pid: u32,
    name: Option<String>,
    queue: &'static str,
    commands: u64,
    posted: u64,
    operations: u64,
    bytes_sent: u64,
    bytes_received: u64,
    completions: u64,
    notifications: u64,
    faults: u64,
    requests: u64,
    receives: u64,
    messages: u64,
    staged_bytes: u64,
}

/// The fields of a peer.
#[derive(Serialize)]
#[serde(remote = "PeerReport")]
struct PeerFields {
    node: u16,
    session: &'static str,
    window: u64,
    under_way: u64,
    granted: u64,
    held: u64,
    requests: u64,
    waiting: u64,
    resent: u64,
}

fn processes<S: Serializer>(reports: &[VniReport], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Entry<'a>(#[serde(with = "VniFields")] &'a VniReport);
    serializer.collect_seq(reports.iter().map(Entry))
}

fn peers<S: Serializer>(reports: &[PeerReport], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Entry<'a>(#[serde(with = "PeerFields")] &'a PeerReport);
    serializer.collect_seq(reports.iter().map(Entry))
}

fn used_and_limit<S: Serializer>(budgets: &[Budget], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Use {
        used: u64,
        limit: u64,
    }
    serializer.collect_map(budgets.iter().map(|budget| {
        let Budget { name, used, limit } = *budget;
        (name, Use { used, limit })
    }))
}

fn by_kind_and_stage<S: Serializer>(
    stages: &[StageReport],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    /// Nanoseconds; each bucket is its bound, `null` in the last one, and the number of times.
    #[derive(Serialize)]
    struct Times<'a> {
        sum: u64,
        buckets: &'a [(Option<u64>, u64)],
    }
    serializer.collect_map(stages.iter().map(|report| {
        let StageReport {
            kind,
            stage,
            sum,
            buckets,
        } = report;
        (format!("{kind} {stage}"), Times { sum: *sum, buckets })
    }))
}

fn by_name<S: Serializer>(statistics: &Statistics, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(statistics.fields())
}
