//! `qnic-rmem status --prometheus`: the report in the text format of Prometheus.
//!
//! Every number of the report is a sample, so none is left out that it has:
//!
//! | in the report | sample |
//! |---|---|
//! | `volumes[].degraded` | `qnic_rmem_volume_degraded{volume="/dev/qnicmem0"}` |
//! | `volumes[].repair.missing` | `qnic_rmem_volume_repair_missing{…}` |
//! | `volumes[].servers[].full` | `qnic_rmem_server_full{volume=…,server="2"}`: 0 or 1 |
//! | `volumes[].servers[].state` | `qnic_rmem_server_state{…,state="live"}`: 1 |
//! | `volumes[].counters.failed` | `qnic_rmem_volume_requests_total{…,counter="failed"}` |
//! | `memory.used` | `qnic_rmem_memory_used` |
//! | `volumes[].retransmissions` | `qnic_rmem_volume_retransmissions_total{…}` |
//! | `…_ms`, `…_us` | `…_seconds` |
//!
//! Values that a server chooses are numbers, and stand in no label.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

/// What the names of all samples begin with.
const PREFIX: &str = "qnic_rmem";

/// Samples by the names of their metrics: type, and lines.
#[derive(Default)]
struct Exposition(BTreeMap<String, (&'static str, Vec<String>)>);

/// The report, as JSON, in the text format 0.0.4.
pub(super) fn exposition(report: &Value) -> String {
    let mut all = Exposition::default();
    for volume in report["volumes"].as_array().into_iter().flatten() {
        let device = volume["device"].as_str().unwrap_or_default();
        all.object("volume", &format!("volume=\"{device}\""), volume);
    }
    all.object("memory", "", &report["memory"]);
    let mut text = String::new();
    for (name, (kind, lines)) in all.0 {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE {name} {kind}");
        text.extend(lines);
    }
    text
}

impl Exposition {
    fn object(&mut self, what: &str, labels: &str, of: &Value) {
        let none = Map::new();
        for (key, value) in of.as_object().unwrap_or(&none) {
            match (key.as_str(), value) {
                ("counters", Value::Object(counters)) => {
                    for (counter, value) in counters {
                        let labels = join(labels, &format!("counter=\"{counter}\""));
                        self.add(&format!("{what}_requests_total"), "counter", &labels, value);
                    }
                }
                ("servers", Value::Array(servers)) => {
                    for server in servers {
                        let labels = join(labels, &format!("server=\"{}\"", server["node"]));
                        self.object("server", &labels, server);
                    }
                }
                ("state", Value::String(state)) => {
                    let labels = join(labels, &format!("state=\"{state}\""));
                    self.add(&format!("{what}_state"), "gauge", &labels, &true.into());
                }
                (_, Value::Object(_)) => self.object(&format!("{what}_{key}"), labels, value),
                ("node", _) => {}
                ("retransmissions" | "copied", _) => {
                    self.add(&format!("{what}_{key}_total"), "counter", labels, value);
                }
                _ => self.add(&format!("{what}_{key}"), "gauge", labels, value),
            }
        }
    }

    /// Adds a number or a truth; anything else is no sample.
    fn add(&mut self, name: &str, kind: &'static str, labels: &str, value: &Value) {
        let number = value
            .as_f64()
            .or_else(|| value.as_bool().map(u8::from).map(f64::from));
        let Some(number) = number else { return };
        let units = [("_ms", 1e3), ("_us", 1e6)];
        let unit = units
            .iter()
            .find_map(|(unit, parts)| Some((name.strip_suffix(unit)?, parts)));
        let (name, number) = match unit {
            Some((name, parts)) => (format!("{PREFIX}_{name}_seconds"), number / parts),
            None => (format!("{PREFIX}_{name}"), number),
        };
        let labels = match labels {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        };
        let line = format!("{name}{labels} {number}\n");
        let (_, lines) = self.0.entry(name).or_insert((kind, Vec::new()));
        lines.push(line);
    }
}

fn join(labels: &str, more: &str) -> String {
    match labels {
        "" => more.to_owned(),
        labels => format!("{labels},{more}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_sample() {
        let report = serde_json::json!({
            "volumes": [{
                "device": "/dev/qnicmem0", "full": true, "degraded": 7, "request_timeout_ms": 20_000,
                "repair": { "missing": 3, "copied": 9 },
                "servers": [
                    { "node": 1, "state": "live", "full": false, "round_trip_us": 250 },
                    { "node": 2, "state": "silent", "full": true, "round_trip_us": 0 },
                ],
                "counters": { "failed": 4 },
                "reads": { "median_us": 64, "histogram": [0, 1] },
            }],
            "memory": { "used": 5, "leaving": false, "counters": { "writes": 6 } },
        });
        let expected = "\
# TYPE qnic_rmem_memory_leaving gauge
qnic_rmem_memory_leaving 0
# TYPE qnic_rmem_memory_requests_total counter
qnic_rmem_memory_requests_total{counter=\"writes\"} 6
# TYPE qnic_rmem_memory_used gauge
qnic_rmem_memory_used 5
# TYPE qnic_rmem_server_full gauge
qnic_rmem_server_full{volume=\"/dev/qnicmem0\",server=\"1\"} 0
qnic_rmem_server_full{volume=\"/dev/qnicmem0\",server=\"2\"} 1
# TYPE qnic_rmem_server_round_trip_seconds gauge
qnic_rmem_server_round_trip_seconds{volume=\"/dev/qnicmem0\",server=\"1\"} 0.00025
qnic_rmem_server_round_trip_seconds{volume=\"/dev/qnicmem0\",server=\"2\"} 0
# TYPE qnic_rmem_server_state gauge
qnic_rmem_server_state{volume=\"/dev/qnicmem0\",server=\"1\",state=\"live\"} 1
qnic_rmem_server_state{volume=\"/dev/qnicmem0\",server=\"2\",state=\"silent\"} 1
# TYPE qnic_rmem_volume_degraded gauge
qnic_rmem_volume_degraded{volume=\"/dev/qnicmem0\"} 7
# TYPE qnic_rmem_volume_full gauge
qnic_rmem_volume_full{volume=\"/dev/qnicmem0\"} 1
# TYPE qnic_rmem_volume_reads_median_seconds gauge
qnic_rmem_volume_reads_median_seconds{volume=\"/dev/qnicmem0\"} 0.000064
# TYPE qnic_rmem_volume_repair_copied_total counter
qnic_rmem_volume_repair_copied_total{volume=\"/dev/qnicmem0\"} 9
# TYPE qnic_rmem_volume_repair_missing gauge
qnic_rmem_volume_repair_missing{volume=\"/dev/qnicmem0\"} 3
# TYPE qnic_rmem_volume_request_timeout_seconds gauge
qnic_rmem_volume_request_timeout_seconds{volume=\"/dev/qnicmem0\"} 20
# TYPE qnic_rmem_volume_requests_total counter
qnic_rmem_volume_requests_total{volume=\"/dev/qnicmem0\",counter=\"failed\"} 4
";
        assert_eq!(exposition(&report), expected);
    }
}
