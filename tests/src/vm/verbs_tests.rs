//! The tests that come with libibverbs, for its Python bindings, on the device of a guest (X18). docs/verbs.md lists
//! those that fail or are left out, and why.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{ensure, Result};
use qnic_images::{Cache, Provisioner, Silent};
use qnic_trials::nodes::shell::shell;
use qnic_trials::nodes::vm::VmNodes;

/// Where a guest sees the directory with tests and Python.
pub(super) const PLACE: &str = "/verbs-tests";

/// What is asked for, in one process each: Python crashes when tests for devices of other kinds are left behind.
const RUNS: [&str; 2] = [
    "tests.test_addr tests.test_atomic tests.test_cq tests.test_cq_events tests.test_cqex tests.test_device \
     tests.test_mr tests.test_pd tests.test_qp tests.test_relaxed_ordering tests.test_shared_pd tests.test_srq",
    "-k qp_ex_rc -k qp_ex_ud -k test_qpex.QpExTestCase.test_full -k test_qpex.QpExTestCase.test_post",
];

/// Those that fail.
const FAIL: [&str; 1] = ["test_qpex.QpExTestCase.test_qp_ex_rc_atomic_write"];

/// How many pass.
const PASS: usize = 76;

/// How many say, at most, that the device cannot do what they need.
const SKIP: usize = 57;

/// The directory on the host.
pub(super) fn directory() -> Result<PathBuf> {
    Ok(Provisioner::new(Cache::of_user()?, Arc::new(Silent)).verbs_tests()?)
}

/// Runs them on a node that has the directory.
pub(super) fn pass(nodes: &VmNodes, node: usize) -> Result<()> {
    let mut verdicts = BTreeMap::new();
    let mut said = String::new();
    for run in RUNS {
        let script = format!(
            "cd {PLACE}/tests; export PYTHONHOME={PLACE}/usr PYTHONPATH={PLACE}/usr/lib/python3/dist-packages; \
             {PLACE}/usr/lib64/ld-linux-x86-64.so.2 --library-path {PLACE}/usr/lib/x86_64-linux-gnu \
             {PLACE}/usr/bin/python3 run_tests.py --dev qnic0 -v {run} 2>&1; true"
        );
        let output = shell(nodes, node, &script)?;
        ensure!(
            output.contains("\nRan "),
            "Python ended before its report: {output}"
        );
        verdicts.extend(verdicts_of(&output));
        said += &output;
    }
    let of = |wanted: &str| -> Vec<_> {
        let tests = verdicts.iter().filter(|(_, verdict)| *verdict == wanted);
        tests.map(|(test, _)| test.as_str()).collect()
    };
    let (passed, skipped) = (of("ok"), of("skipped"));
    let failed: Vec<_> = [of("FAIL"), of("ERROR")].concat();
    println!(
        "    {} tests passed, {} were skipped",
        passed.len(),
        skipped.len()
    );
    ensure!(failed == FAIL, "{failed:?} failed: {said}");
    ensure!(
        passed.len() >= PASS && skipped.len() <= SKIP,
        "{} of {PASS} passed, {} were skipped: {said}",
        passed.len(),
        skipped.len()
    );
    Ok(())
}

/// What is said of each test: `test_x (…)`, perhaps a line about it, and then ` ... ok`, on a line of its own if the
/// test has printed something.
fn verdicts_of(output: &str) -> BTreeMap<String, String> {
    let mut verdicts = BTreeMap::new();
    let mut test = None;
    for line in output.lines() {
        if let (true, Some((_, id))) = (line.starts_with("test_"), line.split_once(" (tests.")) {
            test = id.split_once(')').map(|(id, _)| id.to_owned());
        }
        let word = line
            .rsplit_once(" ... ")
            .map_or(line, |(_, verdict)| verdict);
        let word = word.split_whitespace().next().unwrap_or_default();
        if ["ok", "FAIL", "ERROR", "skipped"].contains(&word) {
            if let Some(test) = test.take() {
                verdicts.insert(test, word.to_owned());
            }
        }
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_stand_behind_tests() {
        let output = "test_a (tests.test_x.X.test_a) ... ok\ntest_b (tests.test_x.X.test_b)\nIt does ... skipped \
                      'no'\ntest_c (tests.test_x.X.test_c) ... Traceback (most recent call last):\n  x\nERROR\n\n\
                      ERROR: test_c (tests.test_x.X.test_c)\nok\n";
        let found = verdicts_of(output);
        let found: Vec<_> = found
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("test_x.X.test_a", "ok"),
                ("test_x.X.test_b", "skipped"),
                ("test_x.X.test_c", "ERROR")
            ]
        );
    }
}
