//! What must be in memory, and which transfers are under way.

use qnic_abi::Status;

/// Bytes of a receiving area that one sender writes to and reads from.
pub(crate) const LANE: u64 = 3 * 4096 + 700;

/// What one lane must hold; `None` where a transfer under way, or one that
/// failed, leaves it open.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    bytes: Vec<Option<u8>>,
    /// Ranges of transfers under way, by number of the operation.
    reserved: Vec<(u64, u64, u64)>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Lane {
            bytes: vec![Some(0); LANE as usize],
            reserved: Vec::new(),
        }
    }

    /// Reserves a range for a transfer unless another one uses a part of it.
    pub(crate) fn reserve(&mut self, start: u64, length: u64, op: u64) -> bool {
        let end = start + length;
        if self.reserved.iter().any(|r| r.0 < end && start < r.1) {
            return false;
        }
        self.reserved.push((start, end, op));
        true
    }

    pub(crate) fn release(&mut self, op: u64) {
        self.reserved.retain(|range| range.2 != op);
    }

    pub(crate) fn open(&mut self, start: u64, length: u64) {
        self.bytes[start as usize..(start + length) as usize].fill(None);
    }

    pub(crate) fn set(&mut self, start: u64, bytes: &[u8]) {
        for (place, byte) in self.bytes[start as usize..].iter_mut().zip(bytes) {
            *place = Some(*byte);
        }
    }

    pub(crate) fn get(&self, start: u64, length: u64) -> Vec<Option<u8>> {
        self.bytes[start as usize..(start + length) as usize].to_vec()
    }
}

/// Says whether memory holds what it must.
pub(crate) fn agrees(memory: &[u8], expected: &[Option<u8>]) -> bool {
    memory.len() == expected.len()
        && memory
            .iter()
            .zip(expected)
            .all(|(byte, expected)| expected.is_none_or(|expected| expected == *byte))
}

/// What a transfer does.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Write {
        data: Vec<u8>,
        notification: Option<u32>,
    },
    Read {
        expected: Vec<Option<u8>>,
        local: u64,
    },
}

/// A transfer under way.
#[derive(Debug, Clone)]
pub(crate) struct Op {
    /// Running number over all processes.
    pub(crate) id: u64,
    /// Number of the command at its process.
    pub(crate) command: u64,
    /// Number among the writes, or reads, of its process.
    pub(crate) number: u64,
    /// Place of the process at the other end, and which life of it.
    pub(crate) target: (usize, u32),
    pub(crate) node: usize,
    /// Start in the lane.
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) kind: Kind,
    /// The error that it must end with.
    pub(crate) wrong: Option<Status>,
    /// Something happened that may make it fail.
    pub(crate) disturbed: bool,
    pub(crate) failed: Option<Status>,
}

impl Op {
    pub(crate) fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Write { .. })
    }

    pub(crate) fn notification(&self) -> Option<u32> {
        match self.kind {
            Kind::Write { notification, .. } => notification,
            Kind::Read { .. } => None,
        }
    }
}
