//! Congestion control (U1): senders that meet at a link that is slower than they are. It is
//! full, its queue is short, they have equal shares, and hardly anything is sent in vain.
//! The table is a golden file ([`golden.rs`](golden.rs) says how it is written anew).

use std::fmt::Write;

use expect_test::expect_file;
use qnic_links::units::Rate;
use qnic_simulator::throughput::{measure, Case};

/// Bytes of each write, and writes of each sender.
const SIZE: u64 = 65_536;
const WRITES: u32 = 300;

/// Queue that senders keep a link below, once they know it, in milliseconds; a frame that
/// finds it at its longest, and each sender's first frames, which come all at once, add
/// to it.
const LONGEST_QUEUE: f64 = 10.0;

/// The row of the table for so many senders, checked.
fn row(rate: Rate, senders: usize) -> String {
    let found = measure(&Case {
        loss: 0.0,
        window: 1024,
        size: SIZE,
        writes: WRITES,
        senders,
        rate: Some(rate),
    });
    let bytes = SIZE as usize * WRITES as usize * senders;
    let (first, last) = (found.times[0], found.times[senders - 1]);
    let used = rate.nanoseconds_for(bytes) as f64 / last as f64;
    let shares = first as f64 / last as f64;
    let queue = found.longest_transit as f64 / 1e6;
    let first_frames = rate.nanoseconds_for(32 * 4224 * senders) as f64 / 1e6;
    let name = format!("{rate}, {senders} senders");
    assert!(used > 0.9, "{name}: {used} of the link is used");
    assert!(shares > 0.7, "{name}: the first needs {shares} of the last");
    assert!(
        queue < LONGEST_QUEUE + first_frames,
        "{name}: {queue} ms on the link"
    );
    assert!(found.resent * 50 < found.frames, "{name}: {found:?}");
    format!(
        "{:>8} {senders:>8} {used:>8.2} {shares:>8.2} {queue:>10.1} {:>8} {:>8}\n",
        rate.to_string(),
        found.frames,
        found.resent,
    )
}

#[test]
fn senders_share_a_slow_link() {
    let rates = ["10Gbit", "1Gbit", "100Mbit"].map(|rate| rate.parse::<Rate>().expect("a rate"));
    let tables = std::thread::scope(|scope| {
        let rows = |rate| [1, 2, 4].map(|senders| row(rate, senders)).concat();
        let threads = rates.map(|rate| scope.spawn(move || rows(rate)));
        threads.map(|thread| thread.join().expect("rows"))
    });
    let mut text = String::new();
    writeln!(
        text,
        "Writes of 64 KiB from several nodes to one, over one link, in virtual time.\n\n\
         {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {:>8}",
        "rate", "senders", "used", "shares", "queue ms", "frames", "resent"
    )
    .expect("memory");
    text += &tables.join("\n");
    expect_file!["golden/congestion.txt"].assert_eq(&text);
}
