//! What ends the common work of the ranks of a machine.

use std::time::Duration;

use qnic_abi::NodeId;

/// Why the ranks of a machine cannot go on ([`crate::parallel`]). All later calls fail for the
/// same reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A rank has ended, or cannot be reached any more.
    #[error("rank {rank} ({node}) has ended: {cause}")]
    RankEnded {
        /// The rank.
        rank: u32,
        /// Its node.
        node: NodeId,
        /// How that was noticed.
        cause: String,
    },
    /// A rank has not taken part within the time limit of a call.
    #[error(
        "rank {rank} ({node}) took no part within {limit:?}: it hangs, or computes for longer \
         (parallel::Options::timeout)"
    )]
    Silent {
        /// The rank.
        rank: u32,
        /// Its node.
        node: NodeId,
        /// The time limit.
        limit: Duration,
    },
    /// A rank calls something else than this one, or with other sizes.
    #[error("rank {rank} ({node}) does something else: {what}; all ranks make the same calls")]
    Differs {
        /// The rank.
        rank: u32,
        /// Its node.
        node: NodeId,
        /// The difference.
        what: String,
    },
    /// Not all ranks were there in time.
    #[error(
        "ranks {missing:?} were not there within {limit:?}: start them with the same machine and \
         key"
    )]
    Missing {
        /// The ranks that were not there.
        missing: Vec<u32>,
        /// The time limit.
        limit: Duration,
    },
    /// Arguments that make no sense; the ranks can go on.
    #[error("{0}")]
    Unfit(&'static str),
}
