//! What a write of 8 bytes costs the NICs while 1,024 of a process are under way, to few destinations or
//! to many (P9, N15).
//!
//! ```text
//!   node 0 ── 1,024 writes, to one after the other ──► nodes 1 to DESTINATIONS    10 µs on the wire
//!                                                      nodes up to 63: idle
//! ```
//! `spread DESTINATIONS COUNT` has 64 NICs in one thread, whatever the destinations, so that runs
//! differ by them alone; COUNT is rounded down to whole rounds of 1,024. `qnic bench engine` runs it
//! under callgrind, twice, so that what is not of a write drops out.

use qnic_abi::client::Command;
use qnic_abi::host_area::OPERATIONS;
use qnic_abi::window::COMMAND_ENTRIES;
use qnic_abi::PAGE_SIZE;
use qnic_nic::testing::{LossyWire, Net, Party};
use qnic_nic::{Limits, Progress};

/// NICs beside the one that writes.
const OTHERS: u16 = 63;

/// Where segments begin.
const ADDRESS: u64 = 0x100_0000;

/// Time of a frame on the wire, in nanoseconds.
const DELAY: u64 = 10_000;

/// How often every NIC is polled in a round, whatever the destinations: the window to a single one
/// opens several times until all are done.
const POLLS: u32 = 24;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = match &arguments[..] {
        [destinations, count] => destinations.parse().ok().zip(count.parse::<u64>().ok()),
        _ => None,
    };
    let Some((destinations @ 1..=OTHERS, count)) = wanted else {
        eprintln!("usage: spread DESTINATIONS COUNT, with 1 to {OTHERS} destinations");
        std::process::exit(2);
    };
    let limits = Limits::default();
    let net = Net::new(OTHERS + 1, 256, 8, &limits);
    net.cluster().set_lossy_wire(LossyWire::steady(DELAY), 1);
    let party = |node: u16| {
        let range = (ADDRESS, PAGE_SIZE as u64);
        net.party_at(node.into(), 1, range).present()
    };
    let source = party(0);
    let targets: Vec<_> = (1..=OTHERS).map(party).collect();
    let used = &targets[..usize::from(destinations)];
    let writes: Vec<_> = used
        .iter()
        .map(|target| Command::inline_write(target.segment.to(64), 8))
        .collect();
    // Known to each other, caches warm.
    source.issue(&writes[0], &[]).expect("room");
    net.run();
    run(&source, &writes, 1);
    run(&source, &writes, count / u64::from(OPERATIONS));
}

/// Runs so many rounds: all writes are issued before the first frame arrives.
fn run(source: &Party, writes: &[Command], rounds: u64) {
    let late = Limits::default().ack_delay + DELAY;
    for _ in 0..rounds {
        for number in 0..OPERATIONS as usize {
            let write = &writes[number % writes.len()];
            source.issue(write, &[]).expect("room");
            if (number + 1) % COMMAND_ENTRIES == 0 {
                while source.net.poll(0) == Progress::Busy {}
            }
        }
        for _ in 0..POLLS {
            source.net.advance(late);
            for node in (0..=OTHERS).chain([0]) {
                source.net.poll(node.into());
            }
        }
        assert_eq!(source.done().0, source.issued(), "not complete");
    }
}
