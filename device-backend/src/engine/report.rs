//! The counters of the process: tables ([`mod@qnic_abi::counters`]), by NIC, engine and link.
//!
//! Sockets get them as JSON, Prometheus as text; both take them from the tables.

use qnic_abi::counters::Table;
use qnic_links::ethernet::PortCounters;
use qnic_links::{CarrierReport, Fabric, LinkReport};
use qnic_nic::stages::StageReport;
use qnic_nic::{Budget, Counters, PeerReport, VniReport};
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
            all.network.merge(report.network);
        }
        let count = nics.len();
        let dealt = (0..).map_while(|turn| nics[turn % count].next());
        all.nics = dealt.collect();
        all
    }
}

qnic_abi::counters! {
    /// Counters of the links between NICs, and of the carriers to other processes.
    #[derive(Debug, Clone, Default, Serialize)]
    pub struct NetworkReport: u64 {
        {
            /// Each direction of each link that a frame of this process can take.
            pub links: Vec<LinkReport>,
            /// The carriers to other processes.
            pub carriers: Vec<CarrierReport>,
        }
        Counter qnic_network_damaged_frames_total
            "Frames that links damaged: their checksum did not match, and they were dropped." = damaged;
        Counter qnic_network_misdirected_frames_total
            "Frames of other processes whose destination is no NIC here, or whose source is no NIC of theirs." =
            misdirected;
    }
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
    fn merge(&mut self, other: NetworkReport) {
        self.add(&other);
        for link in other.links {
            let hop = (link.from, link.to);
            match self
                .links
                .binary_search_by_key(&hop, |own| (own.from, own.to))
            {
                Ok(index) => self.links[index].merge(&link),
                Err(index) => self.links.insert(index, link),
            }
        }
        self.carriers.extend(other.carriers);
    }
}

qnic_abi::counters! {
    /// Counters of the engine threads, together.
    #[derive(Debug, Clone, Default, Serialize)]
    pub struct EngineReport: u64 {
        Counter qnic_engine_rounds_total
            "Times that all NICs were given a turn that were due." = rounds;
        Counter qnic_engine_sleeps_total "Times that an engine thread went to sleep." = sleeps;
        Counter qnic_engine_yields_total
            "Times that an engine thread gave up its processor between two looks." = yields;
        Counter qnic_engine_kicks_total "Kicks taken, of all queues." = kicks;
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
    /// Its Ethernet port, if its node has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<PortCounters>,
    /// Counters of the NIC itself.
    #[serde(serialize_with = "by_name")]
    pub statistics: Counters,
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

qnic_abi::counters! {
    /// Counters of the attachment of one NIC, since the process started.
    #[derive(Debug, Clone, Default, Serialize)]
    pub struct NicCounters: u64 {
        Counter qnic_nic_starts_total "Times that the driver was let in." = starts;
        Counter qnic_nic_pauses_total "Times that the machine went on after a pause." = pauses;
        Counter qnic_nic_resets_total
            "Times that a running device was reset, by whatever cause." = resets;
        Counter qnic_nic_turns_total "Turns that the engine gave to the NIC." = turns;
        Counter qnic_doorbells_total "Doorbells taken." = doorbells;
        Counter qnic_control_requests_total "Requests of the driver." = control_requests;
        Counter qnic_malformed_chains_total
            "Descriptor chains that were neither a request nor an event buffer." = malformed_chains;
        Counter qnic_failed_queues_total
            "Queues that were stopped because their rings were malformed." = failed_queues;
        Counter qnic_events_total "Events given to the driver." = events;
        Counter qnic_interrupts_total "Interrupts raised." = interrupts;
    }
}

fn processes<S: Serializer>(reports: &[VniReport], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Entry<'a> {
        vni: u16,
        port: u16,
        pid: u32,
        name: &'a Option<String>,
        queue: &'static str,
        #[serde(flatten)]
        counters: ByName<'a, VniReport>,
    }
    serializer.collect_seq(reports.iter().map(|report| Entry {
        vni: report.vni,
        port: report.port,
        pid: report.pid,
        name: &report.name,
        queue: report.queue,
        counters: ByName(report),
    }))
}

fn peers<S: Serializer>(reports: &[PeerReport], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Entry<'a> {
        node: u16,
        session: &'static str,
        #[serde(flatten)]
        counters: ByName<'a, PeerReport>,
    }
    serializer.collect_seq(reports.iter().map(|report| Entry {
        node: report.node,
        session: report.session,
        counters: ByName(report),
    }))
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

/// The lines of a table, as a map.
struct ByName<'a, T>(&'a T);

impl<T: Table> Serialize for ByName<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.rows().map(|(row, value)| (row.name, value)))
    }
}

fn by_name<S: Serializer>(counters: &Counters, serializer: S) -> Result<S::Ok, S::Error> {
    ByName(counters).serialize(serializer)
}
