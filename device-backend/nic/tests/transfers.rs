//! Writes, reads and notifications between processes, one thing at a time.

use qnic_abi::client::Command;
use qnic_abi::event::Kind;
use qnic_abi::rdma::Opcode;
use qnic_abi::{Access, Key, NodeId, Port, SegmentId, Status};
use qnic_nic::testing::{page, pattern, Net, Pair, ALL, SEGMENT};
use qnic_nic::{Limits, Progress};

const BOTH: [Opcode; 2] = [Opcode::Write, Opcode::Read];

/// Offsets at destination and source, and lengths.
const EVERY_LENGTH_AND_ALIGNMENT: [(u64, u64, u64); 9] = [
    (0, 0, 0),
    (0, 0, 1),
    (5, 9, 4096),
    (9, 5, 4096),
    (4000, 17, 10_000),
    (17, 4000, 10_000),
    (0xedd, 0xedd, 8192),
    (0, 3, SEGMENT - 3),
    (3, 0, SEGMENT - 3),
];

#[test]
fn writes_of_every_length_and_alignment_arrive() {
    let Pair { net, a, b } = Pair::lossless();
    for (number, (to, from, length)) in (0..).zip(EVERY_LENGTH_AND_ALIGNMENT) {
        let bytes = a.fill(from, length, number);
        a.write(&b).from(from).to(to).bytes(length).run();
        assert_eq!(a.done(), (number + 1, 0));
        assert!(b.holds(to, &bytes));
    }
    assert_eq!(a.errors(), []);
    let received = net.counters(1).bytes_received;
    let lengths = EVERY_LENGTH_AND_ALIGNMENT.map(|case| case.2);
    assert_eq!(received, lengths.iter().sum::<u64>());
    let sent = net.counters(0).bytes_sent;
    assert!(sent >= received, "refused frames count too");
    assert_eq!(net.counters(0).operations, 0);
}

#[test]
fn reads_of_every_length_and_alignment_arrive() {
    let Pair { a, b, .. } = Pair::lossless();
    for (number, (to, from, length)) in (0..).zip(EVERY_LENGTH_AND_ALIGNMENT) {
        let bytes = b.fill(from, length, number);
        a.read(&b).from(from).to(to).bytes(length).run();
        assert_eq!(a.done(), (0, number + 1));
        assert!(a.holds(to, &bytes));
    }
    assert_eq!(a.errors(), []);
}

#[test]
fn an_inline_write_crosses_a_page_border_and_notifies() {
    let Pair { net, a, b } = Pair::lossless();
    let bytes = pattern(1, 96);
    let to = page(0) - 10;
    let write = a.inline_write(&b, &bytes).to(to).notify(1023);
    b.request_wake();
    write.run();
    assert!(b.holds(to, &bytes));
    assert_eq!(b.signals(1023), 1);
    assert_eq!(a.done(), (1, 0));
    let wakes = net.cluster().nodes[1].events.clone();
    assert_eq!(wakes.len(), 1, "one wake for one request");
    assert_eq!(wakes[0].kind.get(), Kind::Wake as u32);
    assert_eq!(wakes[0].vni.get(), 2);
    write.run();
    assert_eq!(b.signals(1023), 2);
    let wakes = net.cluster().nodes[1].events.len();
    assert_eq!(wakes, 1, "not asked for again");
}

#[test]
fn a_process_can_write_to_its_own_node_and_to_itself() {
    let net = Net::new(1, 512, 4, &Limits::default());
    let (a, b) = (net.party(0, 0), net.party(0, 1));
    let bytes = a.fill(7, 9000, 3);
    for target in [&b, &a] {
        let write = a.write(target).from(7).to(20_000);
        write.bytes(9000).notify(5).run();
        a.read(&b).from(20_000).to(40_000).bytes(9000).run();
        assert!(a.holds(40_000, &bytes));
    }
    assert!(a.holds(20_000, &bytes));
    assert!(b.holds(20_000, &bytes));
    assert_eq!((a.signals(5), b.signals(5)), (1, 1));
    // Within one page, from it to it: locks nest.
    a.write(&a).from(7).to(107).bytes(100).run();
    assert!(a.holds(107, &bytes[..100]));
    net.assert_unlocked();
    assert_eq!(a.errors(), []);
}

#[test]
fn wrong_transfers_fail_alone_and_touch_nothing() {
    let Pair { net, a, b } = Pair::lossless();
    let read_only = b.export(1, 8, (0x900_0000, 4096), Access::READ).unwrap();
    let write_only = b.export(2, 9, (0xa00_0000, 4096), Access::WRITE).unwrap();
    let before_b = b.segment.address - 1;
    let end_of_a = a.segment.address + SEGMENT - 63;
    type Change<'a> = &'a dyn Fn(&mut Command);
    let changes: [(Status, Change<'_>); 10] = [
        (Status::BadKey, &|c| c.remote.memory.key = Key(1)),
        (Status::BadKey, &|c| c.local.key = Key(1)),
        (Status::NoSuchSegment, &|c| {
            c.remote.memory.segment = SegmentId(9);
        }),
        (Status::NoSuchSegment, &|c| c.local.segment = SegmentId(9)),
        (Status::BadAddress, &|c| c.remote.memory.address = before_b),
        (Status::BadAddress, &|c| c.remote.memory.address = u64::MAX),
        (Status::BadAddress, &|c| c.local.address = end_of_a),
        (Status::NoSuchPort, &|c| c.remote.port = Port(0)),
        (Status::NoSuchPort, &|c| c.remote.port = Port(999)),
        (Status::NoSuchNode, &|c| c.remote.node = NodeId(77)),
    ];
    let mut cases = Vec::new();
    for opcode in BOTH {
        let wrong = |change| a.transfer(opcode, &b).bytes(64).with(change);
        cases.extend(changes.map(|(status, change)| (wrong(change), status)));
    }
    cases.push((a.write(read_only).bytes(64), Status::AccessDenied));
    cases.push((a.read(write_only).bytes(64), Status::AccessDenied));
    let before = b.memory();
    for (command, _) in &cases {
        command.issue();
    }
    net.run();
    let expected: Vec<_> = (0..).zip(cases.iter().map(|case| case.1)).collect();
    assert_eq!(a.sorted_errors(), expected);
    assert_eq!(a.done(), (11, 11));
    assert!(b.memory() == before);
    // Each end counts what it refused: key, access, range, gone.
    let counted = |node| {
        let counters = net.counters(node);
        let kinds = [
            counters.errors_key,
            counters.errors_access,
            counters.errors_range,
            counters.errors_gone,
        ];
        assert_eq!(counters.protection_errors, kinds.iter().sum());
        kinds
    };
    assert_eq!(counted(0), [2, 0, 4, 2]);
    assert_eq!(counted(1), [2, 2, 2, 6]);
    a.write(&b).bytes(64).run();
    assert_eq!(a.done(), (12, 11), "the process goes on");
    assert_eq!(a.errors().len(), expected.len());
}

#[test]
fn a_transfer_across_the_end_of_a_segment_touches_nothing() {
    let Pair { net, a, b } = Pair::lossless();
    let before = (a.fill(0, 30_000, 1), b.fill(0, SEGMENT, 2));
    let beyond = SEGMENT - 9000;
    a.write(&b).to(beyond).bytes(9001).issue();
    a.read(&b).from(beyond).bytes(9001).issue();
    net.run();
    let expected = [(0, Status::BadAddress), (1, Status::BadAddress)];
    assert_eq!(a.sorted_errors(), expected);
    assert!((a.bytes(0, 30_000), b.memory()) == before);
}

#[test]
fn a_page_that_cannot_be_brought_in_fails_the_transfer() {
    let Pair { net, a, b } = Pair::lossless();
    let both = || {
        a.write(&b).issue();
        a.read(&b).issue();
        net.run();
    };
    b.set_available(10 * 4096, false);
    both();
    assert_eq!(a.done(), (1, 1));
    let expected = [(0, Status::PageUnavailable), (1, Status::PageUnavailable)];
    assert_eq!(a.sorted_errors(), expected);
    b.set_available(10 * 4096, true);
    a.set_available(0, false);
    a.evict(0);
    both();
    assert_eq!(a.done(), (2, 2));
    let own = [2, 3].map(|number| (number, Status::OwnPageUnavailable));
    assert_eq!(a.sorted_errors()[2..], own);
    assert_eq!(net.counters(0).faults_pending, 0);
    assert_eq!(net.counters(1).faults_pending, 0);
}

#[test]
fn imports_wait_for_the_name_the_deadline_or_the_node() {
    let Pair { net, a, b } = Pair::lossless();
    let found = a.import(1, b.port, 7, 0).unwrap();
    let missing = a.import(1, b.port, 99, 0).unwrap();
    let nobody = a.import(1, Port(5), 99, 50).unwrap();
    let later = a.import(1, b.port, 42, 1000).unwrap();
    assert_eq!(a.import(9, b.port, 42, 0), Err(Status::NoSuchNode));
    let down = a.import(9, b.port, 42, 30).unwrap();
    net.run();
    let reply = |token| net.import_reply(0, token);
    assert_eq!(reply(found), Some(Ok(b.segment.key)));
    assert_eq!(reply(missing), Some(Err(Status::NameNotFound)));
    assert_eq!(reply(nobody), None);
    assert_eq!(net.counters(1).parked_imports, 2);
    let deadline = net.cluster().nodes[1].nic.next_deadline().unwrap();
    net.cluster().now = deadline;
    net.run();
    assert_eq!(reply(nobody), Some(Err(Status::NameNotFound)));
    assert_eq!(reply(down), Some(Err(Status::NoSuchNode)));
    let segment = b.export(3, 42, (0x5000_0001, 77), Access::READ).unwrap();
    net.run();
    let reply = net.cluster().import_reply(0, later).unwrap().unwrap();
    assert_eq!(reply.key.get(), segment.key);
    assert_eq!((reply.address.get(), reply.length.get()), (0x5000_0001, 77));
    assert_eq!((reply.segment.get(), reply.access.get()), (3, 1));
    assert_eq!(net.counters(1).parked_imports, 0);
    assert_eq!(net.cluster().nodes[0].nic.next_deadline(), None);
}

#[test]
fn a_process_imports_from_its_own_node() {
    let Pair { net, a, .. } = Pair::lossless();
    let c = net.party(0, 3);
    let missing = Err(Status::NameNotFound);
    for (name, wait_ms, expected) in [
        (7, 0, Ok(c.segment.key)),
        (7, 1000, Ok(c.segment.key)),
        (8, 0, missing),
    ] {
        let token = a.import(0, c.port, name, wait_ms).unwrap();
        net.run();
        assert_eq!(net.import_reply(0, token), Some(expected));
    }
}

#[test]
fn an_import_survives_a_node_that_comes_up_late_or_again() {
    let Pair { net, a, b } = Pair::lossless();
    net.cluster().reset(1);
    let token = a.import(1, b.port, 7, 60_000).unwrap();
    net.run();
    net.advance(20_000_000);
    net.cluster().start(1);
    net.run();
    assert_eq!(net.import_reply(0, token), None);
    net.cluster().reset(1);
    net.cluster().start(1);
    net.advance(20_000_000);
    net.run();
    let b = net.party(1, 2);
    net.run();
    assert_eq!(net.import_reply(0, token), Some(Ok(b.segment.key)));
    assert_eq!(net.import_reply(0, token), None, "one reply");
}

#[test]
fn an_unexported_segment_is_not_touched_any_more() {
    let Pair { net, a, b } = Pair::lossless();
    net.answer_faults(false);
    a.write(&b).issue();
    a.read(&b).run();
    assert_eq!(net.counters(0).operations, 2);
    // Bring in the source only: the transfers now wait at the destination.
    net.answer_all(0, 64);
    assert!(net.faults(1) > 0);
    assert_eq!(b.unexport(&b), Status::Ok);
    assert_eq!(b.unexport(&b), Status::NoSuchSegment);
    assert_eq!(net.counters(1).faults_pending, 0);
    net.run();
    let expected = [(0, Status::NoSuchSegment), (1, Status::NoSuchSegment)];
    assert_eq!(a.sorted_errors(), expected);
    // And the local one, while a transfer waits for its pages.
    let again = b.export(0, 7, (b.segment.address, SEGMENT), ALL).unwrap();
    a.evict(0);
    a.write(again).run();
    assert_eq!(a.unexport(&a), Status::Ok);
    net.run();
    assert_eq!(a.errors().last(), Some(&(2, Status::Aborted)));
    assert_eq!(net.counters(0).operations, 0);
}

#[test]
fn the_end_of_a_process_ends_transfers_on_both_sides() {
    let Pair { net, a, b } = Pair::lossless();
    net.answer_faults(false);
    a.write(&b).issue();
    b.read(&a).issue();
    let token = b.import(0, a.port, 1234, 5000).unwrap();
    net.run();
    b.end();
    net.run();
    assert_eq!(a.errors(), [(0, Status::PeerGone)]);
    assert_eq!(net.import_reply(1, token), Some(Err(Status::Aborted)));
    for node in 0..2 {
        assert_eq!(net.counters(node).operations, 0);
        assert_eq!(net.counters(node).parked_imports, 0);
    }
    let counters = net.counters(1);
    assert_eq!(counters.processes, 0);
    assert_eq!(counters.segments, 0);
    assert_eq!(counters.faults_pending, 0);
    // Port and VNI are free again.
    net.party(1, 2);
}

#[test]
fn a_reset_node_is_forgotten_and_comes_back() {
    let Pair { net, a, b } = Pair::lossless();
    net.answer_faults(false);
    a.write(&b).run();
    net.answer(0, 0, 1);
    net.run();
    net.cluster().reset(1);
    net.run();
    assert_eq!(a.done().0, 1);
    assert_eq!(a.errors(), [(0, Status::PeerGone)]);
    net.answer_faults(true);
    a.write(&b).run();
    assert_eq!(a.errors().last(), Some(&(1, Status::NoSuchNode)));
    net.cluster().start(1);
    let b = net.party(1, 2);
    let bytes = a.fill(0, 5000, 8);
    a.write(&b).bytes(5000).run();
    assert_eq!(a.errors().len(), 2);
    assert_eq!(a.done().0, 3);
    assert!(b.holds(0, &bytes));
}

#[test]
fn a_window_that_is_full_delays_and_loses_nothing() {
    let limits = Limits {
        window: 256,
        ..Limits::default()
    };
    let Pair { net, a, b } = Pair::on(Net::new(2, 512, 8, &limits));
    let bytes = a.fill(0, SEGMENT, 4);
    a.write(&b).run();
    for _ in 0..40 {
        a.write(&b).issue();
    }
    let before = net.counters(0).bytes_sent;
    // The other side does not answer for a while.
    for _ in 0..100 {
        net.poll(0);
    }
    let sent = net.counters(0).bytes_sent - before;
    let window = u64::from(limits.window);
    assert!(sent <= window * 4096, "the window bounds what is under way");
    assert_eq!(net.poll(0), Progress::Idle, "nothing to do but to wait");
    for _ in 0..20 {
        a.read(&b).issue();
    }
    for _ in 0..100 {
        net.poll(0);
    }
    net.run();
    assert_eq!(a.done(), (41, 20));
    assert_eq!(a.errors(), []);
    assert!(b.holds(0, &bytes));
}

#[test]
fn a_node_that_is_cut_off_fails_transfers_and_can_be_reached_again() {
    let Pair { net, a, b } = Pair::lossless();
    for _ in 0..4 {
        a.write(&b).issue();
    }
    net.poll_both(1);
    net.poll(0);
    net.cut(1);
    net.run();
    assert_eq!(a.done().0, 4);
    let lost = [Status::PeerGone, Status::NoSuchNode];
    let errors = a.errors();
    assert!(errors.iter().all(|error| lost.contains(&error.1)));
    assert!(!errors.is_empty());
    net.heal();
    let bytes = a.fill(0, 9000, 6);
    a.write(&b).bytes(9000).run();
    assert_eq!(a.done().0, 5);
    assert_eq!(a.errors(), errors);
    assert!(b.holds(0, &bytes));
}
