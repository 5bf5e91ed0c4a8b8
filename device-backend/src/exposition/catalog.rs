//! All metrics of the endpoint, with their labels: those of the tables of counters, and few others.
//!
//! A test compares them with docs/metrics.md. `METRICS_BLESS=1` renews the list there.

use qnic_abi::counters::Table;
use qnic_links::emulator::LinkCounters;
use qnic_links::ethernet::PortCounters;
use qnic_links::{CarrierReport, LinkReport, ProcessReport};
use qnic_nic::{Counters, PeerReport, VniReport};

use super::text::Family;
use crate::engine::{EngineReport, NetworkReport, NicCounters};
use crate::metrics::Stats;

/// All metrics, in the order of the text.
pub(super) fn families() -> Vec<Family> {
    let mut all = vec![
        family(
            ("qnic_nic_info", "gauge"),
            &["node", "number", "state"],
            "1 for the state that the NIC is in, with the number of its node.",
        ),
        family(
            ("qnic_nic_connected", "gauge"),
            &["node"],
            "1 if a front end is connected, otherwise 0.",
        ),
    ];
    add::<Counters>(&mut all, &["node"]);
    all.extend([
        family(
            ("qnic_budget_used", "gauge"),
            &["node", "budget"],
            "How much guests and peers make the NIC keep; of one of many processes or peers, that of the one that uses most.",
        ),
        family(
            ("qnic_budget_limit", "gauge"),
            &["node", "budget"],
            "How much that may be.",
        ),
        family(
            ("qnic_stage_seconds", "histogram"),
            &["node", "kind", "stage"],
            "How long sampled operations and frames were in a stage (docs/observing.md).",
        ),
        family(
            ("qnic_vni_info", "gauge"),
            &["node", "vni", "queue"],
            "1 for what the command queue of a process does: active, idle, asleep, stalled or failed.",
        ),
        family(
            ("qnic_vni_port", "gauge"),
            &["node", "vni"],
            "Port of a process.",
        ),
    ]);
    add::<VniReport>(&mut all, &["node", "vni"]);
    all.push(family(
        ("qnic_session_info", "gauge"),
        &["node", "peer", "state"],
        "1 for the state of the session with the NIC of another node, by its number: own, open, opening or closed.",
    ));
    add::<PeerReport>(&mut all, &["node", "peer"]);
    add::<NicCounters>(&mut all, &["node"]);
    add::<PortCounters>(&mut all, &["node"]);
    add::<EngineReport>(&mut all, &[]);
    add::<LinkCounters>(&mut all, &["link"]);
    add::<LinkReport>(&mut all, &["link"]);
    add::<NetworkReport>(&mut all, &[]);
    add::<CarrierReport>(&mut all, &["carrier"]);
    all.push(family(
        ("qnic_peer_connected", "gauge"),
        &["carrier", "peer"],
        "1 if the other process is connected, otherwise 0.",
    ));
    add::<ProcessReport>(&mut all, &["carrier", "peer"]);
    add::<Stats>(&mut all, &[]);
    all
}

fn family(
    (name, kind): (&'static str, &'static str),
    labels: &[&'static str],
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        labels: labels.to_vec(),
        help,
    }
}

/// Adds the metrics of a table whose samples all have these labels.
fn add<T: Table>(all: &mut Vec<Family>, labels: &[&'static str]) {
    for row in T::ROWS.iter().filter(|row| row.is_metric()) {
        if all.last().is_none_or(|last| last.name != row.metric) {
            let own = row.labels.iter().map(|(label, _)| *label);
            let labels: Vec<_> = labels.iter().copied().chain(own).collect();
            all.push(family((row.metric, row.kind.word()), &labels, row.help));
        }
    }
}
