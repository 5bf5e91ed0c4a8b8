//! What the core counts. The transport and the protocols count for themselves.

use qnic_abi::control::Statistics;
use qnic_abi::page_table::PageAccess;
use qnic_abi::Status;

/// Lookups of pages on one side.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

/// What a page is looked up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupSide {
    /// To be read from.
    Source,
    /// To be written to.
    Destination,
}

impl LookupSide {
    /// The access that this side needs.
    pub(crate) fn access(self) -> PageAccess {
        match self {
            LookupSide::Source => PageAccess::Read,
            LookupSide::Destination => PageAccess::Write,
        }
    }
}

/// What was counted since the NIC was started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commands: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) notifications: u64,
    pub(crate) source: Lookups,
    pub(crate) destination: Lookups,
    pub(crate) lookups_lost: u64,
    pub(crate) restarts: u64,
    pub(crate) errors_key: u64,
    pub(crate) errors_access: u64,
    pub(crate) errors_range: u64,
    pub(crate) errors_gone: u64,
    pub(crate) malformed_commands: u64,
    pub(crate) aborted: u64,
}

impl Counters {
    /// The lookups on a side.
    pub(crate) fn lookups(&mut self, side: LookupSide) -> &mut Lookups {
        match side {
            LookupSide::Source => &mut self.source,
            LookupSide::Destination => &mut self.destination,
        }
    }

    /// Counts a transfer that was refused, if it is one that protection refused (N11).
    pub(crate) fn refused(&mut self, status: Status) {
        match status {
            Status::BadKey => self.errors_key += 1,
            Status::AccessDenied | Status::ImportRefused => self.errors_access += 1,
            Status::BadAddress | Status::BadLength | Status::Misaligned => self.errors_range += 1,
            Status::NoSuchSegment | Status::NoSuchPort => self.errors_gone += 1,
            _ => {}
        }
    }
}

impl Counters {
    /// What was counted, in the words of the driver.
    pub(crate) fn statistics(&self) -> Statistics {
        let errors = [
            self.errors_key,
            self.errors_access,
            self.errors_range,
            self.errors_gone,
        ];
        Statistics {
            commands: self.commands.into(),
            bytes_sent: self.bytes_sent.into(),
            bytes_received: self.bytes_received.into(),
            notifications: self.notifications.into(),
            source_hits: self.source.hits.into(),
            source_misses: self.source.misses.into(),
            destination_hits: self.destination.hits.into(),
            destination_misses: self.destination.misses.into(),
            lookups_lost: self.lookups_lost.into(),
            restarts: self.restarts.into(),
            protection_errors: errors.iter().sum::<u64>().into(),
            errors_key: self.errors_key.into(),
            errors_access: self.errors_access.into(),
            errors_range: self.errors_range.into(),
            errors_gone: self.errors_gone.into(),
            malformed_commands: self.malformed_commands.into(),
            aborted: self.aborted.into(),
            ..Statistics::default()
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
        assert_eq!(counters.errors_access, 2);
        assert_eq!(counters.errors_range, 3);
        assert_eq!(counters.errors_gone, 2);
    }
}
