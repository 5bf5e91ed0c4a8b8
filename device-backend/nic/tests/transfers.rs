//! Writes, reads and notifications between processes, one thing at a time.

mod common;

use common::{pair, pattern, process, ALL, SEGMENT};
use qnic_abi::event::Kind;
use qnic_abi::rdma::Opcode;
use qnic_abi::{Access, Key, NodeId, Port, SegmentId, Status};
use qnic_abi_client::Command;
use qnic_nic::testing::Cluster;
use qnic_nic::{Limits, Progress};

#[test]
fn writes_of_every_length_and_alignment_arrive() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    let cases = [
        (0, 0, 1),
        (5, 9, 4096),
        (4000, 17, 10_000),
        (0xedd, 0xedd, 8192),
        (3, 0, SEGMENT - 3),
    ];
    for (number, (from, to, length)) in cases.into_iter().enumerate() {
        let bytes = pattern(number as u64, length as usize);
        a.write(&mut cluster, sa.address + from, &bytes);
        let command = Command::write(sa.at(from), sb.to(to), length);
        a.issue(&mut cluster, &command, &[]).unwrap();
        cluster.run();
        assert_eq!(a.done(&cluster).0, number as u64 + 1);
        assert!(b.read(&cluster, sb.address + to, length as usize) == bytes);
    }
    assert_eq!(a.errors(&cluster), []);
    let statistics = cluster.statistics(0);
    let received = cluster.statistics(1).bytes_received.get();
    assert_eq!(received, cases.iter().map(|case| case.2).sum::<u64>());
    assert!(
        statistics.bytes_sent.get() >= received,
        "refused frames count too"
    );
    assert_eq!(statistics.operations.get(), 0);
}

#[test]
fn reads_of_every_length_and_alignment_arrive() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    let cases = [
        (0, 0, 0),
        (0, 0, 1),
        (5, 9, 4096),
        (4000, 17, 10_000),
        (3, 0, SEGMENT - 3),
    ];
    for (number, (to, from, length)) in cases.into_iter().enumerate() {
        let bytes = pattern(number as u64, length as usize);
        b.write(&mut cluster, sb.address + from, &bytes);
        let command = Command::read(sa.at(to), sb.to(from), length);
        a.issue(&mut cluster, &command, &[]).unwrap();
        cluster.run();
        assert_eq!(a.done(&cluster), (0, number as u64 + 1));
        assert!(a.read(&cluster, sa.address + to, length as usize) == bytes);
    }
    assert_eq!(a.errors(&cluster), []);
}

#[test]
fn an_inline_write_crosses_a_page_border_and_notifies() {
    let (mut cluster, (mut a, _), (mut b, sb)) = pair();
    let bytes = pattern(1, 96);
    let to = 4096 - 0x123 - 10;
    b.request_wake(&cluster);
    let mut command = Command::inline_write(sb.to(to), 96);
    command.notification = Some(1023);
    a.issue(&mut cluster, &command, &bytes).unwrap();
    cluster.run();
    assert!(b.read(&cluster, sb.address + to, 96) == bytes);
    assert_eq!(b.signals(&cluster, 1023), 1);
    assert_eq!(a.done(&cluster), (1, 0));
    let wakes = &cluster.nodes[1].events;
    assert_eq!(wakes.len(), 1, "one wake for one request");
    assert_eq!(wakes[0].kind.get(), Kind::Wake as u32);
    assert_eq!(wakes[0].vni.get(), 2);
    a.issue(&mut cluster, &command, &bytes).unwrap();
    cluster.run();
    assert_eq!(b.signals(&cluster, 1023), 2);
    assert_eq!(cluster.nodes[1].events.len(), 1, "nobody asked again");
}

#[test]
fn a_process_can_write_to_its_own_node_and_to_itself() {
    let mut cluster = Cluster::new(1, 512, 4, &Limits::default());
    let (mut a, sa) = process(&mut cluster, 0, 0);
    let (b, sb) = process(&mut cluster, 0, 1);
    let bytes = pattern(3, 9000);
    a.write(&mut cluster, sa.address + 7, &bytes);
    for target in [&sb, &sa] {
        let mut command = Command::write(sa.at(7), target.to(20_000), 9000);
        command.notification = Some(5);
        a.issue(&mut cluster, &command, &[]).unwrap();
        let read = Command::read(sa.at(40_000), sb.to(20_000), 9000);
        cluster.run();
        a.issue(&mut cluster, &read, &[]).unwrap();
        cluster.run();
        assert!(a.read(&cluster, sa.address + 40_000, 9000) == bytes);
    }
    assert!(a.read(&cluster, sa.address + 20_000, 9000) == bytes);
    assert!(b.read(&cluster, sb.address + 20_000, 9000) == bytes);
    assert_eq!((a.signals(&cluster, 5), b.signals(&cluster, 5)), (1, 1));
    // Within one page, from it to it: locks nest.
    let command = Command::write(sa.at(7), sa.to(107), 100);
    a.issue(&mut cluster, &command, &[]).unwrap();
    cluster.run();
    assert!(a.read(&cluster, sa.address + 107, 100) == bytes[..100]);
    assert!(cluster.nodes[0].driver.all_unlocked(&cluster.nodes[0].host));
    assert_eq!(a.errors(&cluster), []);
}

#[test]
fn wrong_transfers_fail_alone_and_touch_nothing() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    let read_only = b
        .export(&mut cluster, 1, 8, (0x900_0000, 4096), Access::READ)
        .unwrap();
    let write_only = b
        .export(&mut cluster, 2, 9, (0xa00_0000, 4096), Access::WRITE)
        .unwrap();
    let write = Command::write(sa.at(0), sb.to(0), 64);
    let read = Command::read(sa.at(0), sb.to(0), 64);
    let mut cases = Vec::new();
    for good in [write, read] {
        let mut add = |status: Status, change: &dyn Fn(&mut Command)| {
            let mut command = good;
            change(&mut command);
            cases.push((command, status));
        };
        add(Status::BadKey, &|c| c.remote.memory.key = Key(1));
        add(Status::BadKey, &|c| c.local.key = Key(1));
        add(Status::NoSuchSegment, &|c| {
            c.remote.memory.segment = SegmentId(9)
        });
        add(Status::NoSuchSegment, &|c| c.local.segment = SegmentId(9));
        add(Status::BadAddress, &|c| {
            c.remote.memory.address = sb.address - 1;
        });
        add(Status::BadAddress, &|c| c.remote.memory.address = u64::MAX);
        add(Status::BadAddress, &|c| {
            c.local.address = sa.address + SEGMENT - 63;
        });
        add(Status::NoSuchPort, &|c| c.remote.port = Port(0));
        add(Status::NoSuchPort, &|c| c.remote.port = Port(999));
        add(Status::NoSuchNode, &|c| c.remote.node = NodeId(77));
    }
    cases.push((
        Command::write(sa.at(0), read_only.to(0), 64),
        Status::AccessDenied,
    ));
    cases.push((
        Command::read(sa.at(0), write_only.to(0), 64),
        Status::AccessDenied,
    ));
    let before = b.read(&cluster, sb.address, SEGMENT as usize);
    let expected: Vec<_> = (0..).zip(cases.iter().map(|case| case.1)).collect();
    for (command, _) in &cases {
        a.issue(&mut cluster, command, &[]).unwrap();
    }
    cluster.run();
    let mut errors = a.errors(&cluster);
    errors.sort_by_key(|error| error.0);
    assert_eq!(errors, expected);
    assert_eq!(a.done(&cluster), (11, 11));
    assert!(b.read(&cluster, sb.address, SEGMENT as usize) == before);
    // Each end counts what it refused: key, access, range, gone.
    let counted = |node| {
        let statistics = cluster.statistics(node);
        let kinds = [
            statistics.errors_key.get(),
            statistics.errors_access.get(),
            statistics.errors_range.get(),
            statistics.errors_gone.get(),
        ];
        assert_eq!(statistics.protection_errors.get(), kinds.iter().sum());
        kinds
    };
    assert_eq!(counted(0), [2, 0, 4, 2]);
    assert_eq!(counted(1), [2, 2, 2, 6]);
    let good = Command::write(sa.at(0), sb.to(0), 64);
    a.issue(&mut cluster, &good, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster), (12, 11), "the process goes on");
    assert_eq!(a.errors(&cluster).len(), expected.len());
}

#[test]
fn a_transfer_across_the_end_of_a_segment_touches_nothing() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    a.write(&mut cluster, sa.address, &pattern(1, 30_000));
    b.write(&mut cluster, sb.address, &pattern(2, SEGMENT as usize));
    let before = (
        a.read(&cluster, sa.address, 30_000),
        b.read(&cluster, sb.address, 30_000),
    );
    for opcode in [Opcode::Write, Opcode::Read] {
        let command = Command::transfer(opcode, sa.at(0), sb.to(SEGMENT - 9000), 9001);
        a.issue(&mut cluster, &command, &[]).unwrap();
    }
    cluster.run();
    let mut errors = a.errors(&cluster);
    errors.sort_by_key(|error| error.0);
    assert_eq!(errors, [(0, Status::BadAddress), (1, Status::BadAddress)]);
    let after = (
        a.read(&cluster, sa.address, 30_000),
        b.read(&cluster, sb.address, 30_000),
    );
    assert!(before == after);
}

#[test]
fn a_page_that_cannot_be_brought_in_fails_the_transfer() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    let page = sb.address + 10 * 4096;
    cluster.nodes[1].driver.set_available(b.vni, page, false);
    for opcode in [Opcode::Write, Opcode::Read] {
        let command = Command::transfer(opcode, sa.at(0), sb.to(0), SEGMENT);
        a.issue(&mut cluster, &command, &[]).unwrap();
    }
    cluster.run();
    assert_eq!(a.done(&cluster), (1, 1));
    let mut errors = a.errors(&cluster);
    errors.sort_by_key(|error| error.0);
    let expected = [(0, Status::PageUnavailable), (1, Status::PageUnavailable)];
    assert_eq!(errors, expected);
    cluster.nodes[1].driver.set_available(b.vni, page, true);
    cluster.nodes[0]
        .driver
        .set_available(a.vni, sa.address, false);
    cluster.evict(0, a.vni, sa.address);
    for opcode in [Opcode::Write, Opcode::Read] {
        let command = Command::transfer(opcode, sa.at(0), sb.to(0), SEGMENT);
        a.issue(&mut cluster, &command, &[]).unwrap();
    }
    cluster.run();
    assert_eq!(a.done(&cluster), (2, 2));
    assert_eq!(a.errors(&cluster).len(), 4);
    assert_eq!(cluster.statistics(0).faults_pending.get(), 0);
    assert_eq!(cluster.statistics(1).faults_pending.get(), 0);
}

#[test]
fn imports_wait_for_the_name_the_deadline_or_the_node() {
    let (mut cluster, (a, _), (b, _)) = pair();
    let found = a.import(&mut cluster, 1, b.port, 7, 0).unwrap();
    let missing = a.import(&mut cluster, 1, b.port, 99, 0).unwrap();
    let nobody = a.import(&mut cluster, 1, Port(5), 99, 50).unwrap();
    let later = a.import(&mut cluster, 1, b.port, 42, 1000).unwrap();
    assert_eq!(
        a.import(&mut cluster, 9, b.port, 42, 0),
        Err(Status::NoSuchNode)
    );
    let down = a.import(&mut cluster, 9, b.port, 42, 30).unwrap();
    cluster.run();
    assert!(cluster.import_reply(0, found).unwrap().is_ok());
    let reply = cluster.import_reply(0, missing).unwrap();
    assert_eq!(reply, Err(Status::NameNotFound));
    assert_eq!(cluster.import_reply(0, nobody), None);
    assert_eq!(cluster.statistics(1).parked_imports.get(), 2);
    let deadline = cluster.nodes[1].nic.next_deadline().unwrap();
    cluster.now = deadline;
    cluster.run();
    let reply = cluster.import_reply(0, nobody).unwrap();
    assert_eq!(reply, Err(Status::NameNotFound));
    assert_eq!(
        cluster.import_reply(0, down).unwrap(),
        Err(Status::NoSuchNode)
    );
    let segment = b
        .export(&mut cluster, 3, 42, (0x5000_0001, 77), Access::READ)
        .unwrap();
    cluster.run();
    let reply = cluster.import_reply(0, later).unwrap().unwrap();
    assert_eq!(reply.key.get(), segment.key);
    assert_eq!((reply.address.get(), reply.length.get()), (0x5000_0001, 77));
    assert_eq!((reply.segment.get(), reply.access.get()), (3, 1));
    assert_eq!(cluster.statistics(1).parked_imports.get(), 0);
    assert_eq!(cluster.nodes[0].nic.next_deadline(), None);
}

#[test]
fn a_process_imports_from_its_own_node() {
    let (mut cluster, (a, _), _) = pair();
    let (c, sc) = process(&mut cluster, 0, 3);
    for wait_ms in [0, 1000] {
        let token = a.import(&mut cluster, 0, c.port, 7, wait_ms).unwrap();
        cluster.run();
        let reply = cluster.import_reply(0, token).unwrap().unwrap();
        assert_eq!(reply.key.get(), sc.key);
    }
    let token = a.import(&mut cluster, 0, c.port, 8, 0).unwrap();
    cluster.run();
    let reply = cluster.import_reply(0, token).unwrap();
    assert_eq!(reply, Err(Status::NameNotFound));
}

#[test]
fn an_import_survives_a_node_that_comes_up_late_or_again() {
    let (mut cluster, (a, _), (b, _)) = pair();
    cluster.reset(1);
    let token = a.import(&mut cluster, 1, b.port, 7, 60_000).unwrap();
    cluster.run();
    cluster.advance(20_000_000);
    cluster.start(1);
    cluster.run();
    assert_eq!(cluster.import_reply(0, token), None);
    cluster.reset(1);
    cluster.start(1);
    cluster.advance(20_000_000);
    cluster.run();
    let (_b, segment) = process(&mut cluster, 1, 2);
    cluster.run();
    let reply = cluster.import_reply(0, token).unwrap().unwrap();
    assert_eq!(reply.key.get(), segment.key);
    assert_eq!(cluster.import_reply(0, token), None, "one reply");
}

#[test]
fn an_unexported_segment_is_not_touched_any_more() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    cluster.answer_faults = false;
    for opcode in [Opcode::Write, Opcode::Read] {
        let command = Command::transfer(opcode, sa.at(0), sb.to(0), SEGMENT);
        a.issue(&mut cluster, &command, &[]).unwrap();
    }
    cluster.run();
    assert_eq!(cluster.statistics(0).operations.get(), 2);
    // Bring in the source only: the transfers now wait at the destination.
    while !cluster.nodes[0].faults.is_empty() {
        cluster.answer_fault(0, 0, 64);
        cluster.run();
    }
    assert!(!cluster.nodes[1].faults.is_empty());
    assert_eq!(b.unexport(&mut cluster, sb.id), Status::Ok);
    assert_eq!(b.unexport(&mut cluster, sb.id), Status::NoSuchSegment);
    assert_eq!(cluster.statistics(1).faults_pending.get(), 0);
    cluster.run();
    let mut errors = a.errors(&cluster);
    errors.sort_by_key(|error| error.0);
    let expected = [(0, Status::NoSuchSegment), (1, Status::NoSuchSegment)];
    assert_eq!(errors, expected);
    // And the local one, while a transfer waits for its pages.
    let sb = b
        .export(&mut cluster, 0, 7, (sb.address, SEGMENT), ALL)
        .unwrap();
    cluster.evict(0, a.vni, sa.address);
    let command = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &command, &[]).unwrap();
    cluster.run();
    assert_eq!(a.unexport(&mut cluster, sa.id), Status::Ok);
    cluster.run();
    assert_eq!(a.errors(&cluster).last(), Some(&(2, Status::Aborted)));
    assert_eq!(cluster.statistics(0).operations.get(), 0);
}

#[test]
fn the_end_of_a_process_ends_transfers_on_both_sides() {
    let (mut cluster, (mut a, sa), (mut b, sb)) = pair();
    cluster.answer_faults = false;
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    let back = Command::read(sb.at(0), sa.to(0), SEGMENT);
    a.issue(&mut cluster, &write, &[]).unwrap();
    b.issue(&mut cluster, &back, &[]).unwrap();
    let token = b.import(&mut cluster, 0, a.port, 1234, 5000).unwrap();
    cluster.run();
    b.end(&mut cluster);
    cluster.run();
    assert_eq!(a.errors(&cluster), [(0, Status::PeerGone)]);
    assert_eq!(
        cluster.import_reply(1, token).unwrap(),
        Err(Status::Aborted)
    );
    for node in 0..2 {
        let statistics = cluster.statistics(node);
        assert_eq!(statistics.operations.get(), 0);
        assert_eq!(statistics.parked_imports.get(), 0);
    }
    assert_eq!(cluster.statistics(1).processes.get(), 0);
    assert_eq!(cluster.statistics(1).segments.get(), 0);
    assert_eq!(cluster.statistics(1).faults_pending.get(), 0);
    // Port and VNI are free again.
    process(&mut cluster, 1, 2);
}

#[test]
fn a_reset_node_is_forgotten_and_comes_back() {
    let (mut cluster, (mut a, sa), (_, sb)) = pair();
    cluster.answer_faults = false;
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    cluster.answer_fault(0, 0, 1);
    cluster.run();
    cluster.reset(1);
    cluster.run();
    assert_eq!(a.done(&cluster).0, 1);
    assert_eq!(a.errors(&cluster), [(0, Status::PeerGone)]);
    cluster.answer_faults = true;
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    assert_eq!(a.errors(&cluster).last(), Some(&(1, Status::NoSuchNode)));
    cluster.start(1);
    let (b, sb) = process(&mut cluster, 1, 2);
    let bytes = pattern(8, 5000);
    a.write(&mut cluster, sa.address, &bytes);
    let write = Command::write(sa.at(0), sb.to(0), 5000);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    assert_eq!(a.errors(&cluster).len(), 2);
    assert_eq!(a.done(&cluster).0, 3);
    assert!(b.read(&cluster, sb.address, 5000) == bytes);
}

#[test]
fn a_window_that_is_full_delays_and_loses_nothing() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    let bytes = pattern(4, SEGMENT as usize);
    a.write(&mut cluster, sa.address, &bytes);
    let whole = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &whole, &[]).unwrap();
    cluster.run();
    for _ in 0..40 {
        a.issue(&mut cluster, &whole, &[]).unwrap();
    }
    let before = cluster.statistics(0).bytes_sent.get();
    // The other side does not answer for a while.
    for _ in 0..100 {
        cluster.poll(0);
    }
    let sent = cluster.statistics(0).bytes_sent.get() - before;
    let window = u64::from(Limits::default().window);
    assert!(sent <= window * 4096, "the window bounds what is under way");
    assert_eq!(cluster.poll(0), Progress::Idle, "nothing to do but to wait");
    for _ in 0..20 {
        let read = Command::read(sa.at(0), sb.to(0), SEGMENT);
        a.issue(&mut cluster, &read, &[]).unwrap();
    }
    for _ in 0..100 {
        cluster.poll(0);
    }
    cluster.run();
    assert_eq!(a.done(&cluster), (41, 20));
    assert_eq!(a.errors(&cluster), []);
    assert!(b.read(&cluster, sb.address, SEGMENT as usize) == bytes);
}

#[test]
fn a_node_that_is_cut_off_fails_transfers_and_can_be_reached_again() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair();
    let whole = Command::write(sa.at(0), sb.to(0), SEGMENT);
    for _ in 0..4 {
        a.issue(&mut cluster, &whole, &[]).unwrap();
    }
    cluster.poll(0);
    cluster.poll(1);
    cluster.poll(0);
    cluster.cut.insert(1);
    cluster.run();
    assert_eq!(a.done(&cluster).0, 4);
    let lost = [Status::PeerGone, Status::NoSuchNode];
    assert!(a.errors(&cluster).iter().all(|e| lost.contains(&e.1)));
    assert!(!a.errors(&cluster).is_empty());
    cluster.cut.clear();
    let bytes = pattern(6, 9000);
    a.write(&mut cluster, sa.address, &bytes);
    let errors = a.errors(&cluster).len();
    let short = Command::write(sa.at(0), sb.to(0), 9000);
    a.issue(&mut cluster, &short, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster).0, 5);
    assert_eq!(a.errors(&cluster).len(), errors);
    assert!(b.read(&cluster, sb.address, 9000) == bytes);
}
