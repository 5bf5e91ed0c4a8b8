//! The dashboard of ci/grafana.json is one, and asks only for what the endpoint gives.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::catalog::families;

/// Labels that a sample gets besides its own: that of its process, and those of Prometheus.
const COMMON: [&str; 3] = ["process", "instance", "job"];

/// Words of PromQL that are no metrics.
const WORDS: [&str; 9] = [
    "rate",
    "topk",
    "sum",
    "by",
    "without",
    "max",
    "avg",
    "label_values",
    "histogram_quantile",
];

/// What an expression names.
#[derive(Debug, Default)]
struct Names {
    /// Metrics, each with the labels of its selector.
    metrics: Vec<(String, Vec<String>)>,
    /// Labels by which it aggregates.
    groups: Vec<String>,
}

/// Identifiers in `text`, which has no strings in it.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .filter(|word| word.starts_with(|first: char| first.is_ascii_alphabetic()))
}

/// `text` without strings and ranges, in which names mean nothing.
fn without_strings(text: &str) -> String {
    let mut result = String::new();
    let (mut in_string, mut in_range) = (false, false);
    for character in text.chars() {
        match character {
            '"' => in_string = !in_string,
            '[' if !in_string => in_range = true,
            ']' if !in_string => in_range = false,
            _ if in_string || in_range => {}
            other => result.push(other),
        }
    }
    assert!(!in_string && !in_range, "{text}");
    result
}

/// What `expression` names: its structure is that of the dashboard, a part of PromQL.
fn names(expression: &str) -> Names {
    let text = without_strings(expression);
    let mut names = Names::default();
    let mut rest = text.as_str();
    while let Some(word) = identifiers(rest).next() {
        let start = rest.find(word).unwrap() + word.len();
        rest = rest[start..].trim_start();
        let braces = rest
            .strip_prefix('{')
            .and_then(|inside| inside.split_once('}'));
        let group = rest
            .strip_prefix('(')
            .and_then(|inside| inside.split_once(')'));
        match (word, braces, group) {
            ("by" | "without", _, Some((labels, after))) => {
                names.groups.extend(identifiers(labels).map(str::to_owned));
                rest = after;
            }
            (metric, _, _) if WORDS.contains(&metric) => {}
            (metric, Some((labels, after)), _) => {
                let labels = identifiers(labels).map(str::to_owned).collect();
                names.metrics.push((metric.to_owned(), labels));
                rest = after;
            }
            (metric, None, _) => names.metrics.push((metric.to_owned(), Vec::new())),
        }
    }
    names
}

/// Expects that the endpoint has all that `expression` names, and that the legend, if any, shows
/// labels of each metric.
fn check(expression: &str, legend: &str) -> Result<(), String> {
    let names = names(expression);
    if names.metrics.is_empty() {
        return Err(format!("{expression}: no metric"));
    }
    let shown = legend.split("{{").skip(1);
    let shown: Vec<_> = shown
        .filter_map(|part| Some(part.split_once("}}")?.0.trim().to_owned()))
        .collect();
    for (metric, labels) in &names.metrics {
        let family = families().into_iter().find(|family| match family.kind {
            "histogram" => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| metric.strip_suffix(suffix) == Some(family.name)),
            _ => family.name == metric,
        });
        let family = family.ok_or_else(|| format!("{expression}: no metric {metric}"))?;
        for label in labels.iter().chain(&names.groups).chain(&shown) {
            let is_bound = label == "le" && family.kind == "histogram";
            let is_common = COMMON.contains(&label.as_str());
            if !family.labels.contains(&label.as_str()) && !is_common && !is_bound {
                return Err(format!("{expression}: {metric} has no label {label}"));
            }
        }
        let counts = family.name.ends_with("_total") || family.kind == "histogram";
        if counts && !without_strings(expression).contains("rate(") {
            return Err(format!("{expression}: a counter without rate()"));
        }
    }
    Ok(())
}

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/grafana.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn list<'a>(value: &'a Value, what: &str) -> &'a [Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {what}"))
}

fn text<'a>(value: &'a Value, what: &str) -> &'a str {
    value.as_str().unwrap_or_else(|| panic!("no text: {what}"))
}

#[test]
fn every_expression_names_what_the_endpoint_gives() {
    let dashboard = dashboard();
    let mut checked = 0;
    for panel in list(&dashboard["panels"], "panels") {
        let title = text(&panel["title"], "title");
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${source}", "{title}");
        let mut ids = BTreeSet::new();
        for target in list(&panel["targets"], title) {
            assert!(ids.insert(text(&target["refId"], title)), "{title}");
            let legend = text(&target["legendFormat"], title);
            if let Err(error) = check(text(&target["expr"], title), legend) {
                panic!("{title}: {error}");
            }
            checked += 1;
        }
        assert!(!ids.is_empty(), "{title}");
    }
    assert!(checked >= 20, "{checked}");
    let expressions: Vec<_> = list(&dashboard["panels"], "panels")
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| text(&target["expr"], "expression"))
        .collect();
    for shown in ["qnic_vni_", "qnic_session_"] {
        let all = families()
            .into_iter()
            .filter(|one| one.name.starts_with(shown));
        let all = all.filter(|one| expressions.iter().any(|text| text.contains(one.name)));
        assert!(all.count() >= 3, "{shown}: processes and peers have panels");
    }
    let variables = list(&dashboard["templating"]["list"], "variables");
    let names: Vec<_> = variables
        .iter()
        .map(|variable| text(&variable["name"], "variable"))
        .collect();
    assert_eq!(names, ["source", "node"]);
    assert_eq!(variables[0]["type"], "datasource");
    let query = text(&variables[1]["query"], "query");
    assert_eq!(query, "label_values(qnic_nic_info, node)");
    let info = families()
        .into_iter()
        .find(|one| one.name == "qnic_nic_info");
    assert!(info.unwrap().labels.contains(&"node"));
}

/// What Grafana wants of a file that it imports.
#[test]
fn the_file_has_the_shape_of_a_dashboard() {
    let dashboard = dashboard();
    text(&dashboard["title"], "title");
    assert!(text(&dashboard["uid"], "uid").len() <= 40);
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    assert!(
        dashboard.get("id").is_none(),
        "an import must not replace another dashboard"
    );
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard["panels"], "panels") {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        let [x, y, width, height] =
            ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(width > 0 && x + width <= 24);
        for place in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            assert!(places.insert(place), "panels overlap at {place:?}");
        }
    }
}

#[test]
fn wrong_expressions_are_found() {
    for (expression, legend, part) in [
        (
            "rate(qnic_frames_total[1m])",
            "",
            "no metric qnic_frames_total",
        ),
        ("qnic_operations{side=\"x\"}", "", "has no label side"),
        ("sum by (peer) (qnic_operations)", "", "has no label peer"),
        ("qnic_operations", "{{link}}", "has no label link"),
        ("qnic_commands_total{node=\"rate(\"}", "", "without rate"),
        ("sum(rate())", "", "no metric"),
    ] {
        let error = check(expression, legend).expect_err(expression);
        assert!(error.contains(part), "{error}");
    }
    let good = "sum by (node) (rate(qnic_commands_total{node=~\"a{b\"}[1m])) / 2";
    check(good, "{{node}} {{instance}}").unwrap();
}
