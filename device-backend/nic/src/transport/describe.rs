//! What the transport has counted, what it keeps, and its peers, for people.

use qnic_abi::control::Statistics;

use super::{Transport, CONTROL_LIMIT, REQUEST_WINDOW};
use crate::budget::Budget;
use crate::occupants::PeerReport;

impl Transport {
    /// Adds what the transport counts.
    pub(crate) fn statistics(&self, statistics: &mut Statistics) {
        let counters = &self.counters;
        statistics.malformed_frames = counters.malformed_frames.into();
        statistics.stale_frames = counters.stale_frames.into();
        statistics.frames_resent = counters.frames_resent.into();
        statistics.resend_timeouts = counters.resend_timeouts.into();
        statistics.duplicate_frames = counters.duplicate_frames.into();
        statistics.frames_outside = counters.frames_outside.into();
        statistics.acknowledgements = counters.acknowledgements.into();
        statistics.peers_given_up = counters.peers_given_up.into();
    }

    /// What is kept for peers, and how much may be.
    pub(crate) fn budgets(&self) -> Vec<Budget> {
        let all = self.peers.all();
        let all = || all.iter().map(|index| &self.peers[*index]);
        let limits = &self.limits;
        let granted: u32 = all().map(|peer| peer.grant).sum();
        let control = all().map(|peer| peer.control.len());
        let requests = all().map(|peer| peer.requests);
        vec![
            Budget::new("peers", all().count(), limits.peers),
            Budget::new("windows", granted, limits.granted_windows()),
            Budget::most("control_frames_of_peer", control, CONTROL_LIMIT as u32),
            Budget::most("requests_of_peer", requests, REQUEST_WINDOW),
        ]
    }

    /// Every peer, by node.
    pub(crate) fn peer_reports(&self) -> Vec<PeerReport> {
        let peers = self.peers.present();
        let reports = peers.map(|(index, peer)| peer.report(self.peers.is_own(index)));
        let mut reports: Vec<_> = reports.collect();
        reports.sort_by_key(|report| report.node);
        reports
    }
}
