//! What is noted of an operation that was chosen (module `sampling`).

use super::order::Counter;
use crate::env::Time;
use crate::stages::Kind;

/// When an operation that was chosen passed from stage to stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(super) kind: Kind,
    pub(super) fetched: Time,
    /// The first and the last frame.
    pub(super) sent: Option<(Time, Time)>,
    /// Its times go into histograms.
    pub(super) counted: bool,
    /// It is part of a trace.
    pub(super) traced: bool,
}

/// What a trace says of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Described {
    pub(crate) opcode: u8,
    /// The node that it names.
    pub(crate) node: u16,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its tag or function.
    pub(crate) detail: u64,
}

/// A complete operation that its process cannot see yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unpublished {
    pub(super) kind: Kind,
    pub(super) ended: Time,
    pub(super) counter: Counter,
    pub(super) order: u64,
}
