//! Stages: how long the parts of an operation's life take, in histograms of fixed size.
//!
//! ```text
//!   requester    command ──► first ──► last ──► complete ──► counters in
//!                fetched     frame     frame                 the host area
//!                   └─queued──┘└─sending─┘└─answered─┘└─published─┘
//!   responder                  frame ──► in memory
//!                              └─delivered─┘
//! ```
//! | stage | ends | long, when |
//! |---|---|---|
//! | queued | the first frame goes to the wire | other operations have turns, a window is closed, a page of the source is absent, a session is being opened |
//! | sending | the last frame does | the transfer is long, or its window small |
//! | answered | all is acknowledged or answered | links are slow or lossy; the peer waits for pages, or for a receive |
//! | published | the process can see it | completions are written back in batches (N12) |
//! | delivered | a frame is in memory here | pages are absent or being copied (N13, N14) |
//!
//! # Which operations
//! The first command of each queue is sampled, and every [`PERIOD`]th behind it; of the frames with a
//! protocol's data that a NIC receives, every [`PERIOD`]th. The number is a prime, so that commands
//! of all kinds are sampled where a program alternates between kinds. An operation that fails counts
//! for the stages that it has ended.
//!
//! # Bounds
//! A NIC has [`KINDS`] × [`STAGES`] histograms, however many operations, processes and peers there
//! are, and one sample for each slot of an operation. Nothing that a guest or a peer does makes it
//! grow.
//!
//! # The clock
//! [`crate::Host::clock`] gives the time of a sample; nothing else in a NIC depends on it. It goes
//! on within a round of the engine, while the `now` of the entry points does not.

pub use qnic_shared::timing::{Histogram, PERIOD};

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Atomic operation.
    Atomic,
    /// Tagged message.
    Message,
    /// Collective.
    Collective,
    /// Datagram.
    Datagram,
    /// Names and imports.
    Names,
}

/// Number of kinds.
pub const KINDS: usize = 7;

/// A part of an operation's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the fetch of the command to its first frame.
    Queued,
    /// From its first frame to its last.
    Sending,
    /// From its last frame to its completion.
    Answered,
    /// From its completion to the counters that its process sees.
    Published,
    /// At the responder: from the arrival of a frame until it is in memory.
    Delivered,
}

/// Number of stages.
pub const STAGES: usize = 5;

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; KINDS] = [
        Kind::Write,
        Kind::Read,
        Kind::Atomic,
        Kind::Message,
        Kind::Collective,
        Kind::Datagram,
        Kind::Names,
    ];

    /// Its name in counters and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::Read => "read",
            Kind::Atomic => "atomic",
            Kind::Message => "message",
            Kind::Collective => "collective",
            Kind::Datagram => "datagram",
            Kind::Names => "names",
        }
    }
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; STAGES] = [
        Stage::Queued,
        Stage::Sending,
        Stage::Answered,
        Stage::Published,
        Stage::Delivered,
    ];

    /// Its name in counters and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Queued => "queued",
            Stage::Sending => "sending",
            Stage::Answered => "answered",
            Stage::Published => "published",
            Stage::Delivered => "delivered",
        }
    }
}

/// The histogram of one kind of operation and one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageReport {
    /// [`Kind::name`]
    pub kind: &'static str,
    /// [`Stage::name`]
    pub stage: &'static str,
    /// Sum of all times in nanoseconds.
    pub sum: u64,
    /// As [`Histogram::buckets`]: bound in nanoseconds, number of times.
    pub buckets: Vec<(Option<u64>, u64)>,
}

/// All histograms of a NIC, stage by stage of each kind.
#[derive(Debug)]
pub(crate) struct Histograms(Vec<Histogram>);

impl Histograms {
    pub(crate) fn new() -> Self {
        // One after the other: models run on stacks that do not hold all.
        let mut histograms = Vec::new();
        histograms.resize_with(KINDS * STAGES, Histogram::default);
        Histograms(histograms)
    }

    /// Forgets all times.
    pub(crate) fn clear(&mut self) {
        self.0.fill(Histogram::default());
    }

    /// Counts a time.
    pub(crate) fn record(&mut self, kind: Kind, stage: Stage, nanoseconds: u64) {
        self.0[kind as usize * STAGES + stage as usize].record(nanoseconds);
    }

    /// Those that have any times.
    pub(crate) fn report(&self) -> Vec<StageReport> {
        let kinds = Kind::ALL.into_iter().zip(self.0.chunks(STAGES));
        let all = kinds.flat_map(|(kind, stages)| {
            let stages = Stage::ALL.into_iter().zip(stages);
            stages.map(move |(stage, histogram)| StageReport {
                kind: kind.name(),
                stage: stage.name(),
                sum: histogram.sum(),
                buckets: histogram.buckets().collect(),
            })
        });
        all.filter(|report| !report.buckets.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_stages_stand_at_their_indices() {
        let indices = Kind::ALL.map(|kind| kind as usize);
        assert!(indices.into_iter().eq(0..KINDS));
        let indices = Stage::ALL.map(|stage| stage as usize);
        assert!(indices.into_iter().eq(0..STAGES));
    }

    #[test]
    fn a_report_has_what_was_counted() {
        let mut histograms = Histograms::new();
        assert_eq!(histograms.report(), []);
        for time in [0, 64, 65, u64::MAX] {
            histograms.record(Kind::Read, Stage::Answered, time);
        }
        let report = &histograms.report()[..];
        let expected = StageReport {
            kind: "read",
            stage: "answered",
            sum: u64::MAX,
            buckets: vec![(Some(64), 2), (Some(80), 1), (None, 1)],
        };
        assert_eq!(report, [expected]);
        histograms.clear();
        assert_eq!(histograms.report(), []);
    }
}
