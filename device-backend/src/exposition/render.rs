//! From a snapshot of the process to the text of its metrics.

use qnic_links::{CarrierReport, LinkReport};

use super::catalog::families;
use super::text::Samples;
use crate::engine::{NicReport, NicState};
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
    samples(stats, process).text(&families())
}

fn samples<'a>(stats: &Stats, process: Option<&'a str>) -> Samples<'a> {
    let mut samples = Samples::new(process);
    for nic in &stats.report.nics {
        add_nic(&mut samples, nic);
    }
    samples.add_table(&[], &stats.report.engine);
    let network = &stats.report.network;
    for link in &network.links {
        add_link(&mut samples, link);
    }
    samples.add_table(&[], network);
    for carrier in &network.carriers {
        add_carrier(&mut samples, carrier);
    }
    samples.add_table(&[], stats);
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
    samples.add_table(&[node], &nic.statistics);
    samples.add_table(&[node], &nic.counters);
    if let Some(port) = &nic.ethernet {
        samples.add_table(&[node], port);
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
    // A process is named by its VNI only: a port, a process number and a name are what its guest
    // chooses, and each new one would be another time series.
    for process in &nic.processes {
        let vni = process.vni.to_string();
        let labels = [node, ("vni", vni.as_str())];
        let state = [labels[0], labels[1], ("queue", process.queue)];
        samples.add("qnic_vni_info", &state, 1);
        samples.add("qnic_vni_port", &labels, process.port.into());
        samples.add_table(&labels, process);
    }
    for peer in &nic.peers {
        let number = peer.node.to_string();
        let labels = [node, ("peer", number.as_str())];
        let state = [labels[0], labels[1], ("state", peer.session)];
        samples.add("qnic_session_info", &state, 1);
        samples.add_table(&labels, peer);
    }
}

fn add_link(samples: &mut Samples<'_>, link: &LinkReport) {
    let name = format!("{}:{}", link.from, link.to);
    let label = ("link", name.as_str());
    samples.add_table(&[label], &link.counters);
    samples.add_table(&[label], link);
}

fn add_carrier(samples: &mut Samples<'_>, carrier: &CarrierReport) {
    let kind = ("carrier", carrier.kind);
    samples.add_table(&[kind], carrier);
    for process in &carrier.processes {
        let labels = [kind, ("peer", process.name.as_str())];
        samples.add("qnic_peer_connected", &labels, process.connected.into());
        samples.add_table(&labels, process);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use qnic_abi::counters::{Row, Table};
    use qnic_links::{Impairments, ProcessReport};
    use qnic_nic::stages::StageReport;
    use qnic_nic::{Budget, Counters, PeerReport, VniReport};

    use super::super::text::Family;
    use super::*;
    use crate::engine::{EngineReport, NetworkReport, NicCounters, Report};
    use qnic_links::ethernet::PortCounters;

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
        let mut statistics = Counters::default();
        statistics.processes = 77;
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
            ethernet: Some(PortCounters::default()),
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

    #[test]
    fn every_metric_has_samples_and_no_other_has() {
        let stats = full();
        let given: BTreeSet<_> = samples(&stats, None).names().collect();
        let all = families();
        let listed: BTreeSet<_> = all.iter().map(|family| family.name).collect();
        assert_eq!(given, listed);
        assert_eq!(listed.len(), all.len(), "a name is there twice");
    }

    /// Only these lines of tables are no metrics: the sum of others, and one for people.
    #[test]
    fn every_counter_is_shown() {
        let rows = Counters::ROWS.iter().chain(VniReport::ROWS);
        let hidden = rows.filter(|row| !row.is_metric()).map(|row| row.name);
        assert_eq!(
            hidden.collect::<Vec<_>>(),
            ["protection_errors", "staged_bytes"]
        );
        for rows in [PeerReport::ROWS, NicCounters::ROWS, LinkReport::ROWS] {
            assert!(rows.iter().all(Row::is_metric));
        }
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
        for family in families() {
            let is_counter = family.name.ends_with("_total");
            assert_eq!(family.kind == "counter", is_counter);
            let expected: Vec<_> = std::iter::once(&"process").chain(&family.labels).collect();
            let is_histogram = family.kind == "histogram";
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
            "qnic_processes{process=\"left\",node=\"n\\\"0\\\\\\n\"} 77",
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
        let rows = families().into_iter().map(|family| {
            let labels = family.labels.join(", ");
            let Family {
                name, kind, help, ..
            } = family;
            format!("| `{name}` | {kind} | {labels} | {help} |\n")
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
