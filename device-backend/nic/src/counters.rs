//! What a NIC counts, and what it tells of it ([`Statistics`]).

use qnic_abi::control::Statistics;
use qnic_abi::Status;

use crate::nic::Nic;

/// Lookups of pages in one role.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// What a page is looked up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// To be read from.
    Source,
    /// To be written to.
    Destination,
}

/// What was counted since the NIC was started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commands: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) notifications: u64,
    pub(crate) atomics: u64,
    source: Lookups,
    destination: Lookups,
    pub(crate) lookups_lost: u64,
    pub(crate) restarts: u64,
    errors_key: u64,
    errors_access: u64,
    errors_range: u64,
    errors_gone: u64,
    pub(crate) malformed_commands: u64,
    pub(crate) aborted: u64,
    pub(crate) malformed_frames: u64,
    pub(crate) stale_frames: u64,
    pub(crate) frames_resent: u64,
    pub(crate) resend_timeouts: u64,
    pub(crate) duplicate_frames: u64,
    pub(crate) frames_outside: u64,
    pub(crate) acknowledgements: u64,
    pub(crate) peers_given_up: u64,
}

impl Counters {
    /// The lookups in a role.
    pub(crate) fn lookups(&mut self, role: Role) -> &mut Lookups {
        match role {
            Role::Source => &mut self.source,
            Role::Destination => &mut self.destination,
        }
    }

    /// Counts a transfer that was refused, if it is one that protection refused (N11).
    pub(crate) fn refused(&mut self, status: Status) {
        match status {
            Status::BadKey => self.errors_key += 1,
            Status::AccessDenied => self.errors_access += 1,
            Status::BadAddress | Status::BadLength | Status::Misaligned => self.errors_range += 1,
            Status::NoSuchSegment | Status::NoSuchPort => self.errors_gone += 1,
            _ => {}
        }
    }
}

impl Nic {
    /// What the NIC holds, and what it has counted since it was started.
    pub fn statistics(&self) -> Statistics {
        let mut processes = 0;
        let (mut segments, mut operations, mut faults) = (0, 0, 0);
        for process in self.processes.iter().flatten() {
            processes += 1;
            segments += process.segments.count();
            operations += process.operations.count();
            faults += process.faults.count();
        }
        let counters = &self.counters;
        let errors = [
            counters.errors_key,
            counters.errors_access,
            counters.errors_range,
            counters.errors_gone,
        ];
        Statistics {
            processes: processes.into(),
            segments: segments.into(),
            operations: operations.into(),
            parked_imports: self.parked.count().into(),
            faults_pending: faults.into(),
            frames_held: self.bounced.frames.into(),
            commands: counters.commands.into(),
            bytes_sent: counters.bytes_sent.into(),
            bytes_received: counters.bytes_received.into(),
            notifications: counters.notifications.into(),
            atomics: counters.atomics.into(),
            source_hits: counters.source.hits.into(),
            source_misses: counters.source.misses.into(),
            destination_hits: counters.destination.hits.into(),
            destination_misses: counters.destination.misses.into(),
            lookups_lost: counters.lookups_lost.into(),
            restarts: counters.restarts.into(),
            bounces: self.bounced.total.into(),
            bytes_bounced: self.bounced.total_bytes.into(),
            bounce_bytes: self.bounced.bytes.into(),
            bounce_bytes_peak: self.bounced.peak.into(),
            protection_errors: errors.iter().sum::<u64>().into(),
            errors_key: counters.errors_key.into(),
            errors_access: counters.errors_access.into(),
            errors_range: counters.errors_range.into(),
            errors_gone: counters.errors_gone.into(),
            malformed_commands: counters.malformed_commands.into(),
            aborted: counters.aborted.into(),
            malformed_frames: counters.malformed_frames.into(),
            stale_frames: counters.stale_frames.into(),
            frames_resent: counters.frames_resent.into(),
            resend_timeouts: counters.resend_timeouts.into(),
            duplicate_frames: counters.duplicate_frames.into(),
            frames_outside: counters.frames_outside.into(),
            acknowledgements: counters.acknowledgements.into(),
            peers_given_up: counters.peers_given_up.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_kind() {
        let mut counters = Counters::default();
        for status in Status::ALL {
            counters.refused(status);
        }
        assert_eq!(counters.errors_key, 1);
        assert_eq!(counters.errors_access, 1);
        assert_eq!(counters.errors_range, 3);
        assert_eq!(counters.errors_gone, 2);
    }
}
