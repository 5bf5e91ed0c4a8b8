//! The seeds that every test run has.

use qnic_simulator::campaign::{campaign, trace, Seeds};
use qnic_simulator::{Faults, Options};

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What workloads count, and how much of that a campaign must have for each seed.
const LEAST: [(&str, u64); 12] = [
    ("transfers", 20),
    ("notifications", 1),
    ("increments", 1),
    ("sync operations", 15),
    ("messages", 20),
    ("collectives", 2),
    ("names", 2),
    ("names found", 2),
    ("datagrams", 2),
    ("datagrams received", 1),
    ("memory requests", 2),
    ("stream bytes", 5_000),
];

/// Runs seeds and says which have failed, and how to repeat them.
fn all_pass(options: &Options, count: u64) {
    let summary = campaign(options, threads(), 3, &Seeds::new(0, count));
    for failure in &summary.failures {
        println!("{failure}\n    repeat it: {}", failure.replay());
    }
    assert!(summary.failures.is_empty());
    assert_eq!(summary.seeds, count);
    // The campaign was no idle one.
    assert!(summary.total.bounced > count, "{summary:?}");
    for (name, least) in LEAST {
        let found = summary.total.count(name);
        assert!(found > least * count, "{name}: {summary:?}");
    }
}

#[test]
fn a_thousand_seeds_with_all_faults_keep_every_promise() {
    all_pass(&Options::default(), 1000);
}

#[test]
fn seeds_on_the_wire_within_a_device_process_keep_every_promise() {
    let options = Options {
        lossless: true,
        ..Options::default()
    };
    all_pass(&options, 500);
}

#[test]
fn seeds_with_an_engine_for_each_nic_keep_every_promise() {
    let options = Options {
        lossless: true,
        engines: true,
        ..Options::default()
    };
    all_pass(&options, 500);
}

#[test]
fn without_faults_nothing_fails_either() {
    let options = Options {
        faults: Faults::empty(),
        ..Options::default()
    };
    all_pass(&options, 50);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in 0..10 {
        let first = trace(seed, &Options::default());
        assert!(first.1.len() > 1000);
        assert!(first == trace(seed, &Options::default()), "seed {seed}");
    }
}
