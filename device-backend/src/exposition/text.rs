//! The text format of Prometheus, version 0.0.4.
//!
//! ```text
//! # HELP qnic_commands_total Commands read from queues.
//! # TYPE qnic_commands_total counter
//! qnic_commands_total{process="left",node="n0"} 17
//! ```
//!
//! All samples of a family stand together, below its two lines. In a help text, `\` and line
//! ends are escaped; in the value of a label, `"` too. Names and help texts are this program's own;
//! values of labels come from configurations and may be anything.
//!
//! No crate does this in fewer lines: `prometheus-client` writes OpenMetrics only, with other names in
//! the two lines, and wants samples by family; `metrics` holds values of its own, and keeps those of
//! processes and peers that are gone.

use std::collections::BTreeMap;
use std::fmt::Write;

use qnic_abi::counters::Table;

/// The `Content-Type` of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric with all its samples.
#[derive(Debug)]
pub(super) struct Family {
    /// With the unit, and `_total` if it is a counter.
    pub(super) name: &'static str,
    /// `counter`, `gauge` or `histogram`: times by their length.
    pub(super) kind: &'static str,
    /// The labels of each sample, besides `process`: tests compare samples and the page with them.
    #[cfg_attr(not(test), allow(dead_code))]
    pub(super) labels: Vec<&'static str>,
    /// One sentence.
    pub(super) help: &'static str,
}

/// Samples, by family.
#[derive(Debug)]
pub(super) struct Samples<'a> {
    /// The name of this process, which every sample gets as a label.
    process: Option<&'a str>,
    lines: BTreeMap<&'static str, String>,
}

impl<'a> Samples<'a> {
    pub(super) fn new(process: Option<&'a str>) -> Self {
        Samples {
            process,
            lines: BTreeMap::new(),
        }
    }

    /// Adds a sample to the family named `name`.
    pub(super) fn add(&mut self, name: &'static str, labels: &[(&str, &str)], value: u64) {
        self.sample(name, "", labels, format_args!("{value}"));
    }

    /// Adds the samples of a table. `labels` are those that all of them have.
    pub(super) fn add_table(&mut self, labels: &[(&str, &str)], table: &impl Table) {
        for (row, value) in table.rows().filter(|(row, _)| row.is_metric()) {
            let labels: Vec<_> = labels.iter().chain(row.labels).copied().collect();
            self.add(row.metric, &labels, value);
        }
    }

    /// Adds a histogram of times in nanoseconds to the family named `name`, in seconds. `buckets`
    /// are the longest time of each, in ascending order, and how many there are of it; `None` is
    /// the last one. The text has a bucket for each of `bounds`.
    pub(super) fn add_times(
        &mut self,
        name: &'static str,
        labels: &[(&str, &str)],
        (sum, buckets): (u64, &[(Option<u64>, u64)]),
        bounds: impl Iterator<Item = u64>,
    ) {
        let below = |bound: u64| -> u64 {
            let below = buckets
                .iter()
                .take_while(|(last, _)| last.is_some_and(|last| last <= bound));
            below.map(|(_, count)| count).sum()
        };
        let mut bucket = |bound: &str, count: u64| {
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound)]).collect();
            self.sample(name, "_bucket", &labels, format_args!("{count}"));
        };
        for bound in bounds {
            bucket(&seconds(bound), below(bound));
        }
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        bucket("+Inf", count);
        self.sample(name, "_sum", labels, format_args!("{}", seconds(sum)));
        self.sample(name, "_count", labels, format_args!("{count}"));
    }

    fn sample(
        &mut self,
        name: &'static str,
        suffix: &str,
        labels: &[(&str, &str)],
        value: std::fmt::Arguments<'_>,
    ) {
        let lines = self.lines.entry(name).or_default();
        lines.push_str(name);
        lines.push_str(suffix);
        let process = self.process.map(|process| ("process", process));
        let mut opening = '{';
        for (label, value) in process.iter().chain(labels) {
            lines.push(opening);
            lines.push_str(label);
            lines.push_str("=\"");
            escape(lines, value, true);
            lines.push('"');
            opening = ',';
        }
        if opening == ',' {
            lines.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(lines, " {value}");
    }

    /// The text: the families that have samples, in the order of `families`.
    pub(super) fn text(&self, families: &[Family]) -> String {
        let mut text = String::new();
        for family in families {
            let Some(lines) = self.lines.get(family.name) else {
                continue;
            };
            let (name, kind) = (family.name, family.kind);
            let _ = write!(text, "# HELP {name} ");
            escape(&mut text, family.help, false);
            let _ = write!(text, "\n# TYPE {name} {kind}\n{lines}");
        }
        text
    }

    /// The families that have samples.
    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.lines.keys().copied()
    }
}

/// Nanoseconds as seconds.
fn seconds(nanoseconds: u64) -> String {
    format!(
        "{}.{:09}",
        nanoseconds / 1_000_000_000,
        nanoseconds % 1_000_000_000
    )
}

fn escape(text: &mut String, value: &str, quotes: bool) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> [Family; 3] {
        [
            Family {
                name: "b_total",
                kind: "counter",
                labels: vec!["node"],
                help: "A \\ and\na \"line\".",
            },
            Family {
                name: "unused",
                kind: "gauge",
                labels: vec![],
                help: "",
            },
            Family {
                name: "a",
                kind: "gauge",
                labels: vec![],
                help: "Other.",
            },
        ]
    }

    #[test]
    fn families_stand_together_and_everything_is_escaped() {
        let mut samples = Samples::new(None);
        samples.add("b_total", &[("node", "a\"b\\c\nd}")], 1);
        samples.add("a", &[], u64::MAX);
        samples.add("b_total", &[("node", "é"), ("side", "")], 2);
        let expected = "# HELP b_total A \\\\ and\\na \"line\".\n# TYPE b_total counter\n\
                        b_total{node=\"a\\\"b\\\\c\\nd}\"} 1\nb_total{node=\"é\",side=\"\"} 2\n\
                        # HELP a Other.\n# TYPE a gauge\na 18446744073709551615\n";
        assert_eq!(samples.text(&families()), expected);
    }

    #[test]
    fn times_are_cumulative_and_in_seconds() {
        let mut samples = Samples::new(None);
        let buckets = [
            (Some(64), 2),
            (Some(80), 3),
            (Some(1_500_000_000), 1),
            (None, 1),
        ];
        let bounds = [64, 128, 2_000_000_000].into_iter();
        let sum = 7_000_000_001;
        samples.add_times("a", &[("x", "y")], (sum, &buckets), bounds);
        let expected = "a_bucket{x=\"y\",le=\"0.000000064\"} 2\n\
                        a_bucket{x=\"y\",le=\"0.000000128\"} 5\n\
                        a_bucket{x=\"y\",le=\"2.000000000\"} 6\n\
                        a_bucket{x=\"y\",le=\"+Inf\"} 7\n\
                        a_sum{x=\"y\"} 7.000000001\na_count{x=\"y\"} 7\n";
        assert!(samples.text(&families()).ends_with(expected));
    }

    #[test]
    fn the_name_of_the_process_is_on_every_sample() {
        let mut samples = Samples::new(Some("left"));
        samples.add("a", &[], 3);
        samples.add("a", &[("x", "y")], 4);
        let text = samples.text(&families());
        assert!(
            text.ends_with("a{process=\"left\"} 3\na{process=\"left\",x=\"y\"} 4\n"),
            "{text}"
        );
    }
}
