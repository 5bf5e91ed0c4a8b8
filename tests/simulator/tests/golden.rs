//! What the NICs do on the wire, as files in `tests/golden`: a change of behaviour under
//! loss shows in a diff.
//!
//! ```text
//! UPDATE_EXPECT=1 cargo test -p qnic-simulator --test golden --test congestion
//! ```
//! writes them anew; look at the diff before it is committed.

use std::fmt::Write;

use expect_test::expect_file;
use qnic_simulator::campaign::trace;
use qnic_simulator::throughput::{measure, Case, DELAY};
use qnic_simulator::{Faults, Options};

/// Lines of a trace that a person reads in one go.
const MOST_LINES: usize = 200;

/// A run of two nodes with these faults: what processes do, each frame that is sent and
/// what the wire does with it, and each that arrives over a lossy wire.
fn check_trace(name: &str, seed: u64, faults: Faults, lossless: bool, operations: u32) {
    let options = Options {
        nodes: 2,
        operations,
        faults,
        lossless,
        engines: false,
    };
    let (report, trace) = trace(seed, &options);
    report.expect("every promise is kept");
    let wire = if lossless { "lossless" } else { "lossy" };
    let mut text = format!("seed {seed}, {wire} wire, {}\n\n", faults.names());
    for line in trace.lines() {
        let (_, what) = line.split_once("] ").expect("a time");
        // The settings, and what the driver says of its geometry, are not behaviour.
        if !what.starts_with("seed") && !what.contains(": driver Info") {
            let (shown, _details) = line.split_once(" | ").unwrap_or((line, ""));
            text += shown;
            text.push('\n');
        }
    }
    assert!(text.lines().count() < MOST_LINES, "too long to be read");
    expect_file![format!("golden/{name}.txt")].assert_eq(&text);
}

#[test]
fn what_is_lost_is_sent_again() {
    check_trace("loss", 212, Faults::LOSS, false, 8);
}

#[test]
fn any_wire_delivers_once() {
    let delayed = Faults::DELAY | Faults::REORDER;
    let faults = delayed | Faults::LOSS | Faults::DUPLICATE | Faults::CORRUPT;
    check_trace("any-wire", 65, faults, false, 8);
}

#[test]
fn writes_to_absent_pages_wait_for_them() {
    check_trace("absent-pages", 15, Faults::EVICT, true, 8);
}

#[test]
fn peers_learn_of_deaths() {
    check_trace("deaths", 149, Faults::KILL | Faults::REVOKE, true, 12);
}

#[test]
fn sessions_begin_anew_after_a_reset() {
    check_trace("resets", 92, Faults::LOSS | Faults::RESET, false, 8);
}

#[test]
fn a_cut_route_is_found_dead() {
    check_trace(
        "cut-routes",
        64,
        Faults::PARTITION | Faults::CRASH,
        false,
        8,
    );
}

/// Bytes of each write, and how many writes: some thousand frames each.
const SIZES: [(u64, u32); 3] = [(8, 3000), (4096, 3000), (65_536, 200)];

/// Rows of the table for one size.
fn rows(size: u64, writes: u32) -> String {
    let mut rows = String::new();
    for window in [16, 64, 1024] {
        for loss in [0.0, 0.1, 1.0, 5.0, 20.0] {
            let found = measure(&Case {
                loss,
                window,
                size,
                writes,
                senders: 1,
                rate: None,
            });
            let time = found.times[0] as f64;
            let each = time / 1e3 / f64::from(writes);
            let rate = (size * u64::from(writes)) as f64 * 1e3 / time;
            writeln!(
                rows,
                "{size:>8} {window:>8} {loss:>8} {each:>10.3} {rate:>12.3} {:>8} {:>8}",
                found.frames, found.resent,
            )
            .expect("memory");
        }
    }
    rows
}

#[test]
fn throughput_under_loss_is_as_before() {
    let tables = std::thread::scope(|scope| {
        let threads = SIZES.map(|(size, writes)| scope.spawn(move || rows(size, writes)));
        threads.map(|thread| thread.join().expect("rows"))
    });
    let mut text = format!(
        "Writes from one node to another in virtual time; a frame takes {} us.\n\n\
         {:>8} {:>8} {:>8} {:>10} {:>12} {:>8} {:>8}\n",
        DELAY / 1000,
        "bytes",
        "window",
        "loss %",
        "us/write",
        "MB/s",
        "frames",
        "resent"
    );
    text += &tables.join("\n");
    expect_file!["golden/throughput.txt"].assert_eq(&text);
}
