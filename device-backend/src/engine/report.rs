//! What the process is doing: counters for metrics.
//!
//! | name | of |
//! |---|---|
//! | `rounds`, `sleeps`, `kicks` | the engine thread |
//! | `starts`, `pauses`, `resets`, `doorbells`, `control_requests`, `malformed_chains`, `failed_queues`, `events`, `interrupts` | one NIC's attachment |
//! | `network` | the links: [`LinkReport`], one for each direction; `damaged` frames, caught by their checksum; `misdirected` frames of other processes; [`CarrierReport`] for each way to other processes |
//! | `statistics` | its control program: the fields of [`qnic_abi::control::Statistics`] |

use qnic_abi::control::Statistics;
use qnic_links::{CarrierReport, Fabric, LinkReport};
use serde::Serialize;

use super::node::Node;

/// What the process is doing.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Each NIC, in the order of the configuration.
    pub nics: Vec<NicReport>,
    /// The engine thread.
    pub engine: EngineReport,
    /// The links and other processes.
    pub network: NetworkReport,
}

/// The links between NICs and the ways to other processes.
#[derive(Debug, Clone, Serialize)]
pub struct NetworkReport {
    /// Each direction of each link that a frame of this process can take.
    pub links: Vec<LinkReport>,
    /// Frames that links damaged: caught by the checksum, and dropped.
    pub damaged: u64,
    /// Frames from other processes that were for no NIC here, or not from one of theirs.
    pub misdirected: u64,
    /// The ways to other processes.
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
}

/// Counters of the engine thread.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EngineReport {
    /// Times that all NICs were given a turn.
    pub rounds: u64,
    /// Times that the thread went to sleep.
    pub sleeps: u64,
    /// Kicks taken, of all queues.
    pub kicks: u64,
}

/// Where a NIC stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NicState {
    /// No driver has started it.
    Down,
    /// The driver has started it; the front end is mapping the SRAM.
    Mapping,
    /// The driver can use it.
    Running,
    /// The machine is paused; the NIC serves its peers.
    Paused,
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
    /// Where it stands.
    pub state: NicState,
    /// Counters of its attachment.
    pub counters: NicCounters,
    /// Counters of its control program.
    pub statistics: NicStatistics,
}

/// Counters of the attachment of one NIC, since the process started.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NicCounters {
    /// Times that the driver was let in.
    pub starts: u64,
    /// Times that its machine was paused.
    pub pauses: u64,
    /// Times that a running device was reset, by whatever cause.
    pub resets: u64,
    /// Doorbells taken.
    pub doorbells: u64,
    /// Requests of the driver.
    pub control_requests: u64,
    /// Descriptor chains that were neither a request nor an event buffer.
    pub malformed_chains: u64,
    /// Queues that were stopped because their rings made no sense.
    pub failed_queues: u64,
    /// Events given to the driver.
    pub events: u64,
    /// Interrupts raised.
    pub interrupts: u64,
}

macro_rules! statistics {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// The fields of [`Statistics`], for serde.
        #[derive(Debug, Clone, Serialize)]
        #[allow(missing_docs)]
        pub struct NicStatistics {
            $(pub $field: u64,)*
        }

        impl From<Statistics> for NicStatistics {
            fn from(from: Statistics) -> Self {
                NicStatistics { $($field: u64::from(from.$field),)* }
            }
        }
    };
}

statistics!(
    processes,
    segments,
    operations,
    parked_imports,
    faults_pending,
    frames_held,
    commands,
    bytes_sent,
    bytes_received,
    notifications,
    atomics,
    source_hits,
    source_misses,
    destination_hits,
    destination_misses,
    lookups_lost,
    restarts,
    bounces,
    bytes_bounced,
    bounce_bytes,
    bounce_bytes_peak,
    protection_errors,
    errors_key,
    errors_access,
    errors_range,
    errors_gone,
    malformed_commands,
    aborted,
    malformed_frames,
    stale_frames,
    frames_resent,
    resend_timeouts,
    duplicate_frames,
    frames_outside,
    acknowledgements,
    peers_given_up,
);
