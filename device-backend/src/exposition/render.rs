//! From a snapshot of the process to the text of its metrics.

use qnic_links::{CarrierReport, LinkReport};
use qnic_nic::{PeerReport, VniReport};

use super::catalog::{FAMILIES, STATISTICS};
use super::text::Samples;
use crate::engine::{EngineReport, NicReport, NicState};
use crate::metrics::Stats;

/// Bounds of the buckets of stages: every second power of two, from 64 ns to 4.3 s.
const STAGE_BOUNDS: [u64; 14] = {
    let mut bounds = [1 << 6; 14];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] << 2;
        index += 1;
    }
    bounds
};

/// The text. `process` is the name of this process, if it has one.
pub(super) fn render(stats: &Stats, process: Option<&str>) -> String {
    samples(stats, process).text(FAMILIES)
}

fn samples<'a>(stats: &Stats, process: Option<&'a str>) -> Samples<'a> {
    let mut samples = Samples::new(process);
    for nic in &stats.report.nics {
        add_nic(&mut samples, nic);
    }
    add_engine(&mut samples, &stats.report.engine);
    let network = &stats.report.network;
    for link in &network.links {
        add_link(&mut samples, link);
    }
    samples.add("qnic_network_damaged_frames_total", &[], network.damaged);
    samples.add(
        "qnic_network_misdirected_frames_total",
        &[],
        network.misdirected,
    );
    for carrier in &network.carriers {
        add_carrier(&mut samples, carrier);
    }
    samples.add("process_resident_memory_bytes", &[], stats.rss_bytes);
    samples.add("qnic_process_own_memory_bytes", &[], stats.rss_anon_bytes);
    samples
}

fn add_nic(samples: &mut Samples<'_>, nic: &NicReport) {
    let node = ("node", nic.name.as_str());
    let state = match nic.state {
        NicState::Down => "down",
        NicState::Mapping => "mapping",
        NicState::Running => "running",
        NicState::Paused => "paused",
        NicState::Suspended => "suspended",
    };
    let number = nic.node.to_string();
    let labels = [node, ("number", &number), ("state", state)];
    samples.add("qnic_nic_info", &labels, 1);
    samples.add("qnic_nic_connected", &[node], nic.connected.into());
    let fields = nic.statistics.fields();
    for (field, value) in fields {
        let place = STATISTICS.iter().find(|(name, ..)| *name == field);
        if let Some((_, family, labels)) = place {
            let labels: Vec<_> = std::iter::once(node)
                .chain(labels.iter().copied())
                .collect();
            samples.add(family, &labels, value);
        }
    }
    for budget in &nic.budgets {
        let labels = [node, ("budget", budget.name)];
        samples.add("qnic_budget_used", &labels, budget.used);
        samples.add("qnic_budget_limit", &labels, budget.limit);
    }
    for times in &nic.stages {
        let labels = [node, ("kind", times.kind), ("stage", times.stage)];
        let times = (times.sum, &times.buckets[..]);
        samples.add_times(
            "qnic_stage_seconds",
            &labels,
            times,
            STAGE_BOUNDS.into_iter(),
        );
    }
    for process in &nic.processes {
        add_process(samples, node, process);
    }
    for peer in &nic.peers {
        add_peer(samples, node, peer);
    }
    let counters = &nic.counters;
    for (name, value) in [
        ("qnic_nic_starts_total", counters.starts),
        ("qnic_nic_pauses_total", counters.pauses),
        ("qnic_nic_resets_total", counters.resets),
        ("qnic_nic_turns_total", counters.turns),
        ("qnic_doorbells_total", counters.doorbells),
        ("qnic_control_requests_total", counters.control_requests),
        ("qnic_malformed_chains_total", counters.malformed_chains),
        ("qnic_failed_queues_total", counters.failed_queues),
        ("qnic_events_total", counters.events),
        ("qnic_interrupts_total", counters.interrupts),
    ] {
        samples.add(name, &[node], value);
    }
}

/// A process is named by its VNI only: a port, a process number and a name are what its guest
/// chooses, and each new one would be another time series.
fn add_process(samples: &mut Samples<'_>, node: (&str, &str), process: &VniReport) {
    let vni = process.vni.to_string();
    let labels = [node, ("vni", vni.as_str())];
    let with = |name, value| [labels[0], labels[1], (name, value)];
    samples.add("qnic_vni_info", &with("queue", process.queue), 1);
    samples.add("qnic_vni_port", &labels, process.port.into());
    samples.add("qnic_vni_commands_total", &labels, process.commands);
    samples.add("qnic_vni_operations", &labels, process.operations);
    for (direction, value) in [
        ("sent", process.bytes_sent),
        ("received", process.bytes_received),
    ] {
        let labels = with("direction", direction);
        samples.add("qnic_vni_bytes_total", &labels, value);
    }
    for (queue, value) in [
        ("commands", process.posted),
        ("completions", process.completions),
        ("notifications", process.notifications),
        ("requests", process.requests),
        ("faults", process.faults),
        ("receives", process.receives),
        ("messages", process.messages),
    ] {
        samples.add("qnic_vni_queue_depth", &with("queue", queue), value);
    }
}

fn add_peer(samples: &mut Samples<'_>, node: (&str, &str), peer: &PeerReport) {
    let number = peer.node.to_string();
    let labels = [node, ("peer", number.as_str())];
    let state = [labels[0], labels[1], ("state", peer.session)];
    samples.add("qnic_session_info", &state, 1);
    for (name, value) in [
        ("qnic_session_window_fragments", peer.window),
        ("qnic_session_under_way_fragments", peer.under_way),
        ("qnic_session_granted_fragments", peer.granted),
        ("qnic_session_frames_held", peer.held),
        ("qnic_session_requests", peer.requests),
        ("qnic_session_waiting", peer.waiting),
        ("qnic_session_frames_resent_total", peer.resent),
    ] {
        samples.add(name, &labels, value);
    }
}

fn add_engine(samples: &mut Samples<'_>, engine: &EngineReport) {
    for (name, value) in [
        ("qnic_engine_rounds_total", engine.rounds),
        ("qnic_engine_sleeps_total", engine.sleeps),
        ("qnic_engine_yields_total", engine.yields),
        ("qnic_engine_kicks_total", engine.kicks),
    ] {
        samples.add(name, &[], value);
    }
}

fn add_link(samples: &mut Samples<'_>, link: &LinkReport) {
    let name = format!("{}:{}", link.from, link.to);
    let label = ("link", name.as_str());
    let counters = &link.counters;
    for (outcome, value) in [
        ("offered", counters.offered),
        ("released", counters.released),
        ("lost", counters.lost),
        ("cut", counters.cut),
        ("overflowed", counters.overflowed),
        ("duplicated", counters.duplicated),
        ("reordered", counters.reordered),
        ("corrupted", counters.corrupted),
    ] {
        let labels = [label, ("outcome", outcome)];
        samples.add("qnic_link_frames_total", &labels, value);
    }
    let bytes = counters.offered_bytes;
    samples.add("qnic_link_offered_bytes_total", &[label], bytes);
    let in_transit = link.in_transit as u64;
    samples.add("qnic_link_frames_in_transit", &[label], in_transit);
}

fn add_carrier(samples: &mut Samples<'_>, carrier: &CarrierReport) {
    let kind = ("carrier", carrier.kind);
    samples.add("qnic_carrier_rejected_total", &[kind], carrier.rejected);
    for process in &carrier.processes {
        let labels = [kind, ("peer", process.name.as_str())];
        for (name, value) in [
            ("qnic_peer_connected", process.connected.into()),
            ("qnic_peer_mtu_bytes", process.mtu),
            ("qnic_peer_sessions_total", process.sessions),
            ("qnic_peer_replayed_total", process.replayed),
            ("qnic_peer_malformed_total", process.malformed),
        ] {
            samples.add(name, &labels, value);
        }
        for (outcome, value) in [
            ("sent", process.frames_sent),
            ("fragmented", process.fragmented),
            ("received", process.frames_received),
            ("dropped", process.dropped),
        ] {
            let labels = [labels[0], labels[1], ("outcome", outcome)];
            samples.add("qnic_peer_frames_total", &labels, value);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use qnic_abi::control::Statistics;
    use qnic_links::{Impairments, ProcessReport};
    use qnic_nic::stages::StageReport;
    use qnic_nic::Budget;
    use zerocopy::IntoBytes;

    use super::super::catalog::SUM;
    use super::super::text::Family;
    use super::*;
    use crate::engine::{NetworkReport, NicCounters, Report};

    fn process() -> VniReport {
        VniReport {
            vni: 3,
            port: 700,
            name: Some("guest's\n choice".to_owned()),
            queue: "active",
            notifications: 6,
            ..VniReport::default()
        }
    }

    fn peer() -> PeerReport {
        PeerReport {
            node: 8,
            session: "open",
            window: 256,
            ..PeerReport::default()
        }
    }

    /// A snapshot that has something for every metric; names are as nasty as they may be.
    fn full() -> Stats {
        let mut statistics = Statistics::default();
        statistics.as_mut_bytes().fill(1);
        let budget = Budget {
            name: "peers",
            used: 3,
            limit: 1024,
        };
        let nic = NicReport {
            name: "n\"0\\\n".to_owned(),
            node: 7,
            connected: true,
            state: NicState::Running,
            counters: NicCounters {
                turns: 17,
                ..NicCounters::default()
            },
            statistics,
            budgets: vec![budget],
            stages: vec![StageReport {
                kind: "write",
                stage: "queued",
                sum: 100,
                buckets: vec![(Some(64), 1), (Some(80), 1)],
            }],
            processes: vec![process()],
            peers: vec![peer()],
        };
        let mut link = LinkReport {
            from: 7,
            to: 8,
            impairments: Impairments::default(),
            in_transit: 5,
            counters: Default::default(),
        };
        link.counters.lost = 9;
        let carrier = CarrierReport {
            kind: "shm",
            address: "/x".to_owned(),
            rejected: 0,
            processes: vec![ProcessReport {
                name: "right".to_owned(),
                connected: true,
                ..ProcessReport::default()
            }],
        };
        Stats {
            report: Report {
                nics: vec![nic],
                engine: EngineReport::default(),
                network: NetworkReport {
                    links: vec![link],
                    damaged: 0,
                    misdirected: 0,
                    carriers: vec![carrier],
                },
            },
            rss_bytes: 1,
            rss_anon_bytes: 1,
        }
    }

    /// The families, each with samples.
    pub(in super::super) fn families() -> &'static [Family] {
        FAMILIES
    }

    #[test]
    fn every_metric_has_samples_and_no_other_has() {
        let stats = full();
        let given: BTreeSet<_> = samples(&stats, None).names().collect();
        let listed: BTreeSet<_> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(given, listed);
        assert_eq!(listed.len(), FAMILIES.len(), "a name is there twice");
    }

    #[test]
    fn every_counter_of_a_nic_is_shown() {
        let fields = Statistics::default().fields();
        let fields: BTreeSet<_> = fields.iter().map(|(name, _)| *name).collect();
        let mut shown: BTreeSet<_> = STATISTICS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(shown.len(), STATISTICS.len(), "a field is there twice");
        assert!(shown.insert(SUM));
        assert_eq!(shown, fields);
    }

    /// What a guest chooses is no label: it could make time series without end.
    #[test]
    fn samples_of_a_process_are_named_by_its_vni_alone() {
        let text = render(&full(), None);
        assert!(!text.contains("choice"), "{text}");
        let mut other = full();
        other.report.nics[0].processes[0].port += 1;
        other.report.nics[0].processes[0].pid += 1;
        let names = |text: &str| {
            let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
            lines.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&render(&other, None)), names(&text));
    }

    /// Labels of a line, as a reader of the format finds them.
    fn labels(line: &str) -> Vec<String> {
        let Some((_, labels)) = line.split_once('{') else {
            return Vec::new();
        };
        let (mut names, mut name, mut in_value, mut escaped) =
            (Vec::new(), String::new(), false, false);
        for character in labels.chars() {
            match character {
                _ if escaped => escaped = false,
                '\\' if in_value => escaped = true,
                '"' => in_value = !in_value,
                _ if in_value => {}
                '=' => names.push(std::mem::take(&mut name)),
                ',' => {}
                '}' => break,
                other => name.push(other),
            }
        }
        assert!(!in_value, "{line}");
        names
    }

    #[test]
    fn samples_have_the_labels_that_are_listed_and_names_their_units() {
        let text = render(&full(), Some("left"));
        let mut samples = 0;
        for family in FAMILIES {
            let is_counter = family.name.ends_with("_total");
            assert_eq!(family.kind == super::super::text::Kind::Counter, is_counter);
            let expected: Vec<_> = std::iter::once(&"process").chain(family.labels).collect();
            let is_histogram = family.kind == super::super::text::Kind::Histogram;
            let suffixes: &[&str] = match is_histogram {
                true => &["_bucket", "_sum", "_count"],
                false => &[""],
            };
            for suffix in suffixes {
                let opening = format!("{}{suffix}{{", family.name);
                for line in text.lines().filter(|line| line.starts_with(&opening)) {
                    let mut found = labels(line);
                    if *suffix == "_bucket" {
                        assert_eq!(found.pop().as_deref(), Some("le"));
                    }
                    assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{line}");
                    samples += 1;
                }
            }
        }
        let lines = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, lines, "{text}");
        for line in [
            "qnic_link_frames_total{process=\"left\",link=\"7:8\",outcome=\"lost\"} 9",
            "qnic_nic_turns_total{process=\"left\",node=\"n\\\"0\\\\\\n\"} 17",
            "qnic_processes{process=\"left\",node=\"n\\\"0\\\\\\n\"} 16843009",
            "qnic_vni_port{process=\"left\",node=\"n\\\"0\\\\\\n\",vni=\"3\"} 700",
            "qnic_vni_queue_depth{process=\"left\",node=\"n\\\"0\\\\\\n\",vni=\"3\",\
             queue=\"notifications\"} 6",
            "qnic_session_window_fragments{process=\"left\",node=\"n\\\"0\\\\\\n\",peer=\"8\"} 256",
            "qnic_stage_seconds_bucket{process=\"left\",node=\"n\\\"0\\\\\\n\",kind=\"write\",\
             stage=\"queued\",le=\"0.000000064\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    /// The table of docs/metrics.md.
    fn table() -> String {
        let rows = FAMILIES.iter().map(|family| {
            let labels = family.labels.join(", ");
            let Family {
                name, kind, help, ..
            } = family;
            format!("| `{name}` | {} | {labels} | {help} |\n", kind.word())
        });
        rows.collect()
    }

    #[test]
    fn the_page_lists_every_metric() {
        const HEAD: &str = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = page.split_once(HEAD).unwrap();
        let (listed, after) = rest.split_once("\n\n").unwrap();
        if std::env::var_os("METRICS_BLESS").is_some() {
            std::fs::write(&path, format!("{before}{HEAD}{}\n{after}", table())).unwrap();
            return;
        }
        assert_eq!(
            format!("{listed}\n"),
            table(),
            "METRICS_BLESS=1 renews the page"
        );
    }
}
