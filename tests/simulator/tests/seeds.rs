//! The seeds that every test run has.

use qnic_sim::campaign::{campaign, trace, Seeds};
use qnic_sim::{Faults, Options};

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs seeds and says which have failed, and how to repeat them.
fn all_pass(options: &Options, count: u64) {
    let summary = campaign(options, threads(), 3, &Seeds::new(0, count));
    for failure in &summary.failures {
        println!("{failure}\n    repeat it: {}", failure.replay());
    }
    assert!(summary.failures.is_empty());
    assert_eq!(summary.seeds, count);
    // The campaign was no idle one.
    assert!(summary.total.complete > 20 * count, "{summary:?}");
    assert!(summary.total.notifications > count, "{summary:?}");
    assert!(summary.total.bounced > count, "{summary:?}");
    assert!(summary.total.increments > count, "{summary:?}");
    assert!(summary.total.sync_operations > 15 * count, "{summary:?}");
    assert!(summary.total.messages > 20 * count, "{summary:?}");
    assert!(summary.total.collectives > 2 * count, "{summary:?}");
    assert!(summary.total.names > 2 * count, "{summary:?}");
    assert!(summary.total.names_found > 2 * count, "{summary:?}");
    assert!(summary.total.datagrams > 2 * count, "{summary:?}");
    assert!(summary.total.datagrams_received > count, "{summary:?}");
    assert!(summary.total.memory_requests > 2 * count, "{summary:?}");
    assert!(summary.total.stream_bytes > 5_000 * count, "{summary:?}");
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
