//! The boot of a trial, with a case for each node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use qnic_cluster::{BootOptions, Cluster, ClusterSpec, Error, Progress};

use crate::cases::Case;

/// Passes on what it is told, and remembers which node was ready when.
struct Recorder {
    to: Arc<dyn Progress>,
    /// When the first guest was started.
    booting: Mutex<Option<Instant>>,
    ready: Mutex<BTreeMap<String, Duration>>,
}

impl Progress for Recorder {
    fn step(&self, message: &str) {
        self.to.step(message);
    }

    fn bytes(&self, done: u64, total: u64) {
        self.to.bytes(done, total);
    }

    fn part(&self, part: &str, state: &str) {
        self.to.part(part, state);
    }

    fn node(&self, node: &str, state: &str) {
        let mut booting = self.booting.lock().unwrap_or_else(PoisonError::into_inner);
        booting.get_or_insert_with(Instant::now);
        drop(booting);
        self.to.node(node, state);
    }

    fn ready(&self, node: &str, release: &str, took: Duration) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.insert(node.to_owned(), took);
        drop(ready);
        self.to.ready(node, release, took);
    }
}

/// Boots `spec`. Returns also the cases of the boot, named after the cluster `name` of the file.
pub(crate) fn boot(
    spec: &ClusterSpec,
    mut options: BootOptions,
    name: &str,
) -> (Result<Cluster, Error>, Vec<Case>) {
    let recorder = Arc::new(Recorder {
        to: options.progress,
        booting: Mutex::default(),
        ready: Mutex::default(),
    });
    options.progress = Arc::clone(&recorder) as Arc<dyn Progress>;
    let start = Instant::now();
    let booted = Cluster::boot(spec, &options);
    let end = Instant::now();
    let booting = recorder
        .booting
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let ready = recorder
        .ready
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let nodes: Vec<_> = spec.nodes.iter().map(|node| node.name.as_str()).collect();
    let times = Times {
        prepared: booting.unwrap_or(end) - start,
        booted: booting.map_or(Duration::ZERO, |booting| end - booting),
        ready: &ready,
    };
    let cases = cases(name, &nodes, &times, booted.as_ref().err());
    (booted, cases)
}

struct Times<'a> {
    /// Until the first guest was started.
    prepared: Duration,
    /// From then on.
    booted: Duration,
    ready: &'a BTreeMap<String, Duration>,
}

fn cases(name: &str, nodes: &[&str], times: &Times<'_>, error: Option<&Error>) -> Vec<Case> {
    let prepared = Case::passed(name, "prepare", times.prepared);
    if times.booted.is_zero() {
        return vec![match error {
            None => prepared,
            Some(error) => prepared.failing(first_line(error), error.to_string()),
        }];
    }
    let guilty = error.and_then(|error| nodes.iter().find(|node| is_about(error, node)));
    let case = |node: &&str| {
        let class = format!("{name}.{node}");
        match (times.ready.get(*node), error) {
            (Some(took), _) => Case::passed(class, "boot", *took),
            (None, None) => Case::passed(class, "boot", times.booted),
            (None, Some(error)) if guilty.is_none_or(|guilty| guilty == node) => {
                let case = Case::passed(class, "boot", times.booted);
                case.failing(first_line(error), error.to_string())
            }
            (None, Some(_)) => {
                Case::passed(class, "boot", times.booted).skipped("another node has failed")
            }
        }
    };
    std::iter::once(prepared)
        .chain(nodes.iter().map(case))
        .collect()
}

fn is_about(error: &Error, node: &str) -> bool {
    match error {
        Error::Failed { subject, .. } => *subject == format!("node {node}"),
        Error::Timeout { what, .. } => what.starts_with(&format!("node {node}:")),
        _ => false,
    }
}

fn first_line(error: &Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Ended;

    fn of(ready: &[&str], error: Option<&Error>) -> Vec<String> {
        let second = Duration::from_secs(1);
        let ready = ready.iter().map(|node| ((*node).to_owned(), second));
        let times = Times {
            prepared: second,
            booted: 2 * second,
            ready: &ready.collect(),
        };
        let cases = cases("c", &["a", "b"], &times, error);
        let shown = |case: &Case| {
            let ended = match &case.ended {
                Ended::Passed => "passed".to_owned(),
                Ended::Skipped(why) => why.clone(),
                Ended::Failed { message, details } => {
                    format!("{message}; {} more lines", details.lines().count() - 1)
                }
            };
            let seconds = case.took.as_secs();
            format!("{} {} {seconds} {ended}", case.class, case.name)
        };
        cases.iter().map(shown).collect()
    }

    #[test]
    fn each_node_has_a_case_and_the_guilty_one_fails() {
        assert_eq!(
            of(&["a", "b"], None),
            [
                "c prepare 1 passed",
                "c.a boot 1 passed",
                "c.b boot 1 passed"
            ]
        );
        let panic = Error::Failed {
            subject: "node b".into(),
            what: "its kernel has panicked".into(),
            log: "one\ntwo".into(),
        };
        assert_eq!(
            of(&["a"], Some(&panic))[1..],
            [
                "c.a boot 1 passed",
                "c.b boot 2 node b: its kernel has panicked; 4 more lines"
            ]
        );
        assert_eq!(
            of(&[], Some(&panic))[1],
            "c.a boot 2 another node has failed"
        );
        let device = Error::Failed {
            subject: "device".into(),
            what: "the device process has ended".into(),
            log: String::new(),
        };
        let all = of(&[], Some(&device));
        assert!(
            all[1..].iter().all(|case| case.contains("device: the")),
            "{all:?}"
        );
    }
}
