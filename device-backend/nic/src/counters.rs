//! Everything that a NIC counts: the one table of its counters.
//!
//! Core and transport have a [`Counters`] each and add to its fields where something happens;
//! protocols use that of the core. [`crate::Nic::counters`] adds the two and fills in the gauges. The
//! names reach the driver through the control queue, [`mod@qnic_abi::counters`], and Prometheus through
//! the report of the device process, so a new counter is a line here and the place where it happens.

use qnic_abi::Status;

qnic_abi::counters! {
    /// What a NIC holds, and what it has counted since it was started.
    #[derive(Debug, Default, Clone)]
    #[non_exhaustive]
    pub struct Counters: u64 {
        Gauge qnic_processes "Registered processes." = processes;
        Gauge qnic_segments "Exported segments of all processes." = segments;
        Gauge qnic_operations
            "Commands of local processes that are not complete: the depth of all queues." = operations;
        Gauge qnic_parked_imports "Imports of peers that wait here for a name." = parked_imports;
        Gauge qnic_faults_pending "Faults reported to the driver and not answered." = faults_pending;
        Gauge qnic_frames_held
            "Frames of peers that wait here, in bounce memory, for a page." = frames_held;
        Counter qnic_commands_total "Commands read from queues." = commands;
        Counter qnic_sent_bytes_total "Payload bytes sent." = bytes_sent;
        Counter qnic_received_bytes_total
            "Payload bytes delivered into local memory." = bytes_received;
        Counter qnic_notifications_total
            "Notifications delivered to local processes." = notifications;
        Counter qnic_atomics_total "Atomic operations executed on memory of this node." = atomics;
        Counter qnic_page_lookups_total
            "Lookups of a page, to be read from (source) or written to (destination), that found it (hit) or not (miss)." =
            source_hits { side: "source", result: "hit" },
            source_misses { side: "source", result: "miss" },
            destination_hits { side: "destination", result: "hit" },
            destination_misses { side: "destination", result: "miss" };
        Counter qnic_page_lookups_lost_total
            "Lookups that missed because the driver was taking the very page away." = lookups_lost;
        Counter qnic_restarts_total
            "Transfers that were put to work again after a page fault." = restarts;
        Counter qnic_bounces_total "Frames that went through bounce memory." = bounces;
        Counter qnic_bounced_bytes_total
            "Payload bytes that went through bounce memory." = bytes_bounced;
        Gauge qnic_bounce_memory_bytes "Bounce memory in use." = bounce_bytes;
        Gauge qnic_bounce_memory_peak_bytes
            "Most bounce memory that was in use at a time." = bounce_bytes_peak;
        Counter _ "Commands and frames refused for any of the four reasons below." = protection_errors;
        Counter qnic_protection_errors_total
            "Commands and frames refused for a wrong key, missing access, an address out of range, or a segment that is gone." =
            errors_key { reason: "key" },
            errors_access { reason: "access" },
            errors_range { reason: "range" },
            errors_gone { reason: "gone" };
        Counter qnic_malformed_commands_total "Commands that were no commands." = malformed_commands;
        Counter qnic_aborted_total "Transfers aborted by unexport, exit or reset." = aborted;
        Counter qnic_malformed_frames_total
            "Frames that were refused as malformed." = malformed_frames;
        Counter qnic_stale_frames_total
            "Frames of another session, which were dropped." = stale_frames;
        Counter qnic_frames_resent_total "Frames that were sent again." = frames_resent;
        Counter qnic_resend_timeouts_total
            "Frames that were not acknowledged in time." = resend_timeouts;
        Counter qnic_duplicate_frames_total
            "Frames that had arrived before, which were dropped." = duplicate_frames;
        Counter qnic_frames_outside_total
            "Frames with a number outside of the window, which were dropped." = frames_outside;
        Counter qnic_acknowledgements_total
            "Acknowledgements that no other frame carried." = acknowledgements;
        Counter qnic_peers_given_up_total
            "Peers that owed an answer and were silent for too long." = peers_given_up;
        Counter qnic_datagrams_total
            "Packets of datagrams: sent, received, dropped without a buffer, or late for a steered buffer." =
            datagrams_sent { outcome: "sent" },
            datagrams_received { outcome: "received" },
            datagrams_dropped { outcome: "dropped" },
            datagrams_late { outcome: "late" };
        Counter qnic_verbs_dropped_total
            "Frames of unreliable queue pairs that were dropped: for no queue pair that takes them, with another key, without a receive, too long, without memory, behind a lost piece, or without a route." =
            verbs_drops_queue_pair { reason: "queue_pair" },
            verbs_drops_key { reason: "key" },
            verbs_drops_receive { reason: "receive" },
            verbs_drops_length { reason: "length" },
            verbs_drops_memory { reason: "memory" },
            verbs_drops_gap { reason: "gap" },
            verbs_drops_route { reason: "route" };
    }
}

impl Counters {
    /// Counts a transfer that was refused, if it is one that protection refused (N11).
    pub(crate) fn refused(&mut self, status: Status) {
        let counter = match status {
            Status::BadKey => &mut self.errors_key,
            Status::AccessDenied | Status::ImportRefused => &mut self.errors_access,
            Status::BadAddress | Status::BadLength | Status::Misaligned => &mut self.errors_range,
            Status::NoSuchSegment | Status::NoSuchPort => &mut self.errors_gone,
            _ => return,
        };
        *counter += 1;
        self.protection_errors += 1;
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
        assert_eq!(counters.protection_errors, 8);
    }
}
