//! What a page is looked up for.

use qnic_abi::page_table::PageAccess;

use crate::counters::Counters;

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

    /// The counter of lookups that found their page.
    pub(crate) fn hits(self, counters: &mut Counters) -> &mut u64 {
        match self {
            LookupSide::Source => &mut counters.source_hits,
            LookupSide::Destination => &mut counters.destination_hits,
        }
    }

    /// The counter of those that did not.
    pub(crate) fn misses(self, counters: &mut Counters) -> &mut u64 {
        match self {
            LookupSide::Source => &mut counters.source_misses,
            LookupSide::Destination => &mut counters.destination_misses,
        }
    }
}
