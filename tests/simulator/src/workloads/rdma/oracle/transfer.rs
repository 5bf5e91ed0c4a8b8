//! Transfers that processes plan, issue and have under way, and the exports that
//! they go to.

use qnic_abi::Status;

use crate::expected_bytes::ExpectedByte;

/// What a transfer does.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Write {
        data: Vec<u8>,
        notification: Option<u32>,
    },
    Read {
        expected: Vec<ExpectedByte>,
        /// Start in the local segment.
        local: u64,
    },
    /// Increments the word of the target.
    Increment {
        /// Number of the result record.
        record: usize,
    },
}

impl Kind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Kind::Write { .. } => "write",
            Kind::Read { .. } => "read",
            Kind::Increment { .. } => "increment",
        }
    }

    /// The notification that it causes.
    pub(crate) fn notification(&self) -> Option<u32> {
        match self {
            Kind::Write { notification, .. } => *notification,
            Kind::Read { .. } | Kind::Increment { .. } => None,
        }
    }
}

/// What a segment's key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExportState {
    Live,
    /// The call that revokes it runs.
    Revoking,
    /// No transfer may use it any more.
    Revoked,
}

/// An export of a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Export {
    pub(super) incarnation: u32,
    pub(super) state: ExportState,
}

/// A transfer that is about to be issued.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) id: u64,
    pub(crate) target: usize,
    /// Key of the target's segment.
    pub(crate) key: u64,
    /// Start in the section.
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) kind: Kind,
    /// It has a completion of its own, whose handle is `id`.
    pub(crate) tells: bool,
    /// The error that it must end with.
    pub(crate) wrong: Option<Status>,
}

/// A transfer under way.
#[derive(Debug)]
pub(super) struct Op {
    /// Number of the command at its process.
    pub(super) command: u64,
    /// Number among the writes, or all others, of its process to that target.
    pub(super) number: u64,
    pub(super) issued: u64,
    /// What was lost on its route before.
    pub(super) losses: u64,
    pub(super) incarnation: u32,
    /// The key was revoked before it was issued.
    pub(super) stale: bool,
    pub(super) disturbed: bool,
    pub(super) failed: Option<Status>,
    /// What its completion has said: status and value.
    pub(super) told: Option<(Status, u64)>,
    pub(super) plan: Plan,
}

impl Op {
    pub(super) fn is_write(&self) -> bool {
        matches!(self.plan.kind, Kind::Write { .. })
    }

    pub(super) fn must_succeed(&self) -> bool {
        self.plan.wrong.is_none() && !self.stale && !self.disturbed && self.failed.is_none()
    }
}
