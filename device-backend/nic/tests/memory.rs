//! What one process does over and over, beside a node that has stopped, makes nothing grow
//! (X8). One test in a process of its own: it looks at the memory of the process.

use qnic_abi::{Port, VniId};
use qnic_nic::testing::{Net, Pair, Party, ALL, PAGE};
use qnic_nic::Limits;

/// Bytes that a loop may take beyond what its first rounds have taken: what the allocator
/// keeps in reserve.
const SLACK: u64 = 3 << 20;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = statm.split(' ').nth(1).expect("a second field");
    pages.parse::<u64>().expect("a number") * PAGE
}

/// What the harness keeps for tests to look at.
fn forget(net: &Net) {
    for node in &mut net.cluster().nodes {
        node.replies.clear();
        node.events.clear();
        node.faults.clear();
    }
}

/// Runs a loop, first so that all lists have their size, then `rounds` times.
#[track_caller]
fn stays(net: &Net, what: &str, rounds: u32, mut round: impl FnMut(u32)) {
    let mut run = |rounds| {
        for number in 0..rounds {
            round(number);
            if number % 64 == 0 {
                forget(net);
            }
        }
    };
    run(rounds / 4);
    let before = resident();
    run(rounds);
    let grown = resident().saturating_sub(before);
    assert!(grown < SLACK, "{what}: {grown} bytes in {rounds} rounds");
}

/// Node 1 is not polled any more: it takes frames, and does nothing.
#[test]
fn hostile_loops_take_no_memory() {
    let pair = Pair::present(Net::new(2, 512, 8, &Limits::default()));
    let net = &pair.net;
    pair.a.write(&pair.b).run();
    stays(net, "issue and reset", 20_000, |_| {
        for _ in 0..8 {
            pair.a.write(&pair.b).issue();
            pair.a.read(&pair.b).issue();
        }
        net.poll(0);
        pair.a.reset_queue();
        pair.a.clear_queue();
    });
    stays(net, "issue and revoke", 20_000, |_| {
        let range = (0x800_0000, 16 * PAGE);
        let segment = pair.a.export(9, 9, range, ALL).expect("a segment");
        let mut write = pair.a.write(&pair.b).bytes(PAGE);
        write.command.local = segment.at(0);
        write.issue();
        net.poll(0);
        pair.a.unexport(segment);
        net.poll(0);
    });
    stays(net, "export and unexport", 40_000, |_| {
        let range = (0x900_0000, 16 * PAGE);
        let segment = pair.a.export(8, 8, range, ALL).expect("a segment");
        pair.a.unexport(segment);
    });
    stays(net, "processes that import and end", 20_000, |number| {
        let port = Port(1000 + number as u16 % 5000);
        let process = Party::register(net, 0, VniId(3), port, 0).expect("a process");
        for name in 0..8 {
            let _full = process.import(1, pair.b.port, 1000 + name, 60_000);
        }
        net.poll(0);
        process.end();
    });
    stays(net, "processes that read and end", 20_000, |number| {
        let port = Port(1000 + number as u16 % 5000);
        let process = Party::register(net, 0, VniId(3), port, 0).expect("a process");
        process.inline_write(&pair.b, &[1; 8]).issue();
        net.poll(0);
        process.end();
        net.poll(0);
    });
}
