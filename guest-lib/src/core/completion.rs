//! The process's side of the host area: completion counters and error records.

use qnic_abi::host_area::{
    reads_done_offset, writes_done_offset, ErrorRecord, ERRORS, ERROR_RECORDS, ERROR_RING, HEAD,
    QUEUE_STATUS,
};
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, Status};

use crate::error::Operation;

/// Loads how many operations of a kind are complete in a lane.
///
/// Acquire: a process that sees the number sees the data and the error records behind it
/// (partner: the NIC's release store).
pub(crate) fn done<M: SharedMemory + ?Sized>(host_area: &M, lane: u8, operation: Operation) -> u64 {
    let offset = match operation {
        Operation::Write => writes_done_offset(lane),
        Operation::Read | Operation::Atomic => reads_done_offset(lane),
    };
    host_area.load_u64(offset, Ordering::Acquire)
}

/// Loads how many operations of each kind are complete in a lane ([`done`]).
pub(crate) fn all_done<M: SharedMemory + ?Sized>(host_area: &M, lane: u8) -> [u64; 2] {
    [Operation::Write, Operation::Read].map(|operation| done(host_area, lane, operation))
}

/// Loads how many commands the NIC has read; their slots are free.
///
/// Acquire: the slot is written only after the NIC has zeroed it (partner: the
/// NIC's release store of the head).
pub(crate) fn head<M: SharedMemory + ?Sized>(host_area: &M) -> u64 {
    host_area.load_u64(HEAD, Ordering::Acquire)
}

/// The status that stopped the command queue, if it is stopped.
#[inline]
pub(crate) fn queue_failure<M: SharedMemory + ?Sized>(host_area: &M) -> Option<Status> {
    match host_area.load_u64(QUEUE_STATUS, Ordering::Acquire) {
        0 => None,
        code => Some(failure_of(code)),
    }
}

#[cold]
fn failure_of(code: u64) -> Status {
    let status = u32::try_from(code).map(Status::try_from);
    status
        .ok()
        .and_then(Result::ok)
        .unwrap_or(Status::QueueFailed)
}

/// Hands the error records behind the first `seen` to `take` as (command number, lane,
/// status), and returns how many there are now.
///
/// The caller keeps at most [`ERROR_RECORDS`] commands incomplete from one call to the
/// next, so no record is overwritten before it is read.
pub(crate) fn drain_errors<M: SharedMemory + ?Sized>(
    host_area: &M,
    seen: u64,
    mut take: impl FnMut(u64, u8, Status),
) -> u64 {
    // Acquire: the records stand before the count (partner: the NIC's release).
    let written = host_area.load_u64(ERRORS, Ordering::Acquire);
    let oldest = written.saturating_sub(ERROR_RECORDS as u64);
    for record in seen.max(oldest)..written {
        let index = (record % ERROR_RECORDS as u64) as usize;
        let offset = ERROR_RING + index * size_of::<ErrorRecord>();
        let command = host_area.load_u64(offset, Ordering::Relaxed);
        let reason = host_area.load_u64(offset + 8, Ordering::Relaxed);
        let status = Status::try_from(reason as u32).unwrap_or(Status::Malformed);
        take(command, (reason >> 32) as u8, status);
    }
    written
}
