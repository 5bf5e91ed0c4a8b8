//! Stages: how long the parts of an operation's life take, in histograms of fixed size.
//!
//! ```text
//!   requester    command ──► first ──► last ──► complete ──► counters in
//!                fetched     frame     frame                 the host area
//!                   └─queued──┘└─sending─┘└─answered─┘└─published─┘
//!                   └───────────completed────────────┘
//!   responder                  frame ──► in memory
//!                              └─delivered─┘
//! ```
//! | stage | ends | long, when |
//! |---|---|---|
//! | queued | the first frame goes to the wire | other operations have turns, a window is closed, a page of the source is absent, a session is being opened |
//! | sending | the last frame does | the transfer is long, or its window small |
//! | answered | all is acknowledged or answered | links are slow or lossy; the peer waits for pages, or for a receive |
//! | published | the process can see it | completions are written back in batches (N12) |
//! | completed | it ends: all that a command takes at its NIC | one of those above is, or nothing comes for a receive, a probe, a join |
//! | delivered | a frame is in memory here | pages are absent or being copied (N13, N14) |
//!
//! # Which operations
//! The first command of each queue is sampled, and every [`PERIOD`]th behind it; of the frames with a
//! protocol's data that a NIC receives, every [`PERIOD`]th. The number is a prime, so that commands
//! of all kinds are sampled where a program alternates between kinds. An operation that fails counts
//! for the stages that it has ended. A command that begins no operation, such as a receive, has the
//! stage completed only: of each process the newest of these that was chosen is watched until it ends.
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

/// Declares what times are of: each case with its name in counters and metrics.
macro_rules! kinds {
    ($($(#[doc = $doc:expr])* $kind:ident = $name:literal,)*) => {
        /// What a time is of: a command that begins an operation (X6), or, of frames that arrive, a
        /// protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind,)*
        }

        /// Number of kinds.
        pub const KINDS: usize = [$($name),*].len();

        impl Kind {
            /// All kinds.
            pub const ALL: [Kind; KINDS] = [$(Kind::$kind),*];

            /// Its name in counters and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// RDMA write, and its frames.
    Write = "write",
    /// RDMA read, and its frames.
    Read = "read",
    /// Fence for the sources of writes.
    Fence = "fence",
    /// Atomic operation, and its frames.
    Atomic = "atomic",
    /// Send of a message that the command describes.
    Send = "send",
    /// Send of a message that stands in a context.
    SendContext = "send_context",
    /// Receive, until its first message.
    Receive = "receive",
    /// Receive that stands in a context.
    ReceiveContext = "receive_context",
    /// Probe.
    Probe = "probe",
    /// Cancel, until what it cancels has ended.
    Cancel = "cancel",
    /// Frames of messages.
    Message = "message",
    /// Join of a group.
    JoinGroup = "join_group",
    /// Leave of a group.
    LeaveGroup = "leave_group",
    /// Collective: barrier.
    Barrier = "barrier",
    /// Collective: broadcast.
    Broadcast = "broadcast",
    /// Collective: reduce.
    Reduce = "reduce",
    /// Collective: allreduce.
    Allreduce = "allreduce",
    /// Message to members of a group, until all have it.
    Multicast = "multicast",
    /// Frames of collectives and groups.
    Collective = "collective",
    /// Send of a datagram, and its frames.
    Datagram = "datagram",
    /// Receive buffer for a datagram, until it comes back.
    DatagramPost = "datagram_post",
    /// Work of a queue pair of verbs until nothing of it is under way, and its frames.
    Verbs = "verbs",
    /// Names and imports.
    Names = "names",
}

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
    /// From the fetch of the command to its completion.
    Completed,
    /// At the responder: from the arrival of a frame until it is in memory.
    Delivered,
}

/// Number of stages.
pub const STAGES: usize = 6;

impl Stage {
    /// All stages.
    pub const ALL: [Stage; STAGES] = [
        Stage::Queued,
        Stage::Sending,
        Stage::Answered,
        Stage::Published,
        Stage::Completed,
        Stage::Delivered,
    ];

    /// Its name in counters and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Queued => "queued",
            Stage::Sending => "sending",
            Stage::Answered => "answered",
            Stage::Published => "published",
            Stage::Completed => "completed",
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
