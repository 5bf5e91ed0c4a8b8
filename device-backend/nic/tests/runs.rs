//! Runs of pieces in one frame (docs/wire.md, "Long transfers"): each piece is
//! delivered, held, refused and counted by itself.

mod common;

use common::{pattern, process, SEGMENT};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::rdma::Opcode;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, SimProcess, SimSegment};
use qnic_nic::Limits;

const PAGE: u64 = PAGE_SIZE as u64;

/// The address of page `number` of those that a segment touches.
fn page(segment: &SimSegment, number: u64) -> u64 {
    segment.address / PAGE * PAGE + number * PAGE
}

/// Answers one fault after the other, in an order that `choice` says, until there
/// are none.
fn answer_all(cluster: &mut Cluster, mut choice: usize) {
    for _ in 0..10_000 {
        cluster.run();
        let waiting: Vec<_> = (0..cluster.nodes.len())
            .filter(|node| !cluster.nodes[*node].faults.is_empty())
            .collect();
        let Some(node) = waiting.get(choice % waiting.len().max(1)) else {
            return;
        };
        let place = choice % cluster.nodes[*node].faults.len();
        cluster.answer_fault(*node, place, 1 + (choice % 3) as u32);
        choice = choice.wrapping_mul(31).wrapping_add(7);
    }
    panic!("faults without end");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]

    /// Any alignment, any pages absent at either end, any window: every byte arrives
    /// once, nothing around it changes, the notification comes last, all is given back.
    #[test]
    fn every_piece_arrives_whatever_is_absent(
        (from, to, length) in (0u64..9000, 0u64..9000, 1u64..120_000),
        absent in prop::collection::vec((0usize..2, 0u64..66), 0..12),
        (window, in_flight, requests) in (1u32..40, 1u32..40, 1u32..40),
        (fragments_per_poll, max_payload) in (1u32..70, prop_oneof![Just(32_768u32), 500u32..33_000]),
        same_node: bool,
        choice: usize,
        reads: bool,
    ) {
        let limits = Limits {
            window,
            fragments_per_write: in_flight,
            requests_per_read: requests,
            fragments_per_poll,
            ..Limits::default()
        };
        let mut cluster = Cluster::new(2, 512, 8, &limits);
        cluster.max_payload = max_payload;
        let (mut a, sa) = process(&mut cluster, 0, 1);
        let (b, sb) = process(&mut cluster, usize::from(!same_node), 2);
        let opcode = if reads { Opcode::Read } else { Opcode::Write };
        for opcode in [Opcode::Write, Opcode::Read] {
            let all = Command::transfer(opcode, sa.at(0), sb.to(0), SEGMENT);
            a.issue(&mut cluster, &all, &[]).unwrap();
            cluster.run();
        }
        let before = pattern(99, SEGMENT as usize);
        let bytes = pattern(7, length as usize);
        let (source, target) = if reads { ((&b, &sb), (&a, &sa)) } else { ((&a, &sa), (&b, &sb)) };
        target.0.write(&mut cluster, target.1.address, &before);
        let (read_at, placed_at) = if reads { (to, from) } else { (from, to) };
        source.0.write(&mut cluster, source.1.address + read_at, &bytes);
        cluster.answer_faults = false;
        for (side, number) in &absent {
            let (process, segment) = [(&a, &sa), (&b, &sb)][*side];
            if page(segment, *number) < segment.address + SEGMENT {
                cluster.evict(process.node, process.vni, page(segment, *number));
            }
        }
        let mut command = Command::transfer(opcode, sa.at(from), sb.to(to), length);
        if !reads {
            command.notification = Some(5);
        }
        let done = a.done(&cluster);
        a.issue(&mut cluster, &command, &[]).unwrap();
        cluster.run();
        if b.signals(&cluster, 5) == 1 {
            prop_assert!(b.read(&cluster, sb.address + to, bytes.len()) == bytes);
        }
        answer_all(&mut cluster, choice);
        cluster.settle();
        let expected = (done.0 + u64::from(!reads), done.1 + u64::from(reads));
        prop_assert_eq!(a.done(&cluster), expected);
        prop_assert_eq!(a.errors(&cluster), []);
        prop_assert_eq!(b.signals(&cluster, 5), u64::from(!reads));
        let mut wanted = before;
        wanted[placed_at as usize..][..bytes.len()].copy_from_slice(&bytes);
        let (process, segment) = if reads { (&a, &sa) } else { (&b, &sb) };
        prop_assert!(process.read(&cluster, segment.address, SEGMENT as usize) == wanted);
        for node in 0..2 {
            let statistics = cluster.statistics(node);
            prop_assert_eq!(statistics.frames_held.get(), 0);
            prop_assert_eq!(statistics.operations.get(), 0);
            prop_assert_eq!(statistics.frames_outside.get(), 0);
            let node = &cluster.nodes[node];
            prop_assert!(node.driver.all_unlocked(&node.host));
        }
    }
}

/// A sender and a receiver, everything resident but these pages of the receiver.
fn absent_at_receiver(
    pages: &[u64],
) -> (Cluster, (SimProcess, SimSegment), (SimProcess, SimSegment)) {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let (mut a, sa) = process(&mut cluster, 0, 1);
    let (b, sb) = process(&mut cluster, 1, 2);
    let all = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &all, &[]).unwrap();
    cluster.run();
    cluster.answer_faults = false;
    for number in pages {
        cluster.evict(1, b.vni, page(&sb, *number));
    }
    (cluster, (a, sa), (b, sb))
}

#[test]
fn a_page_that_cannot_be_brought_in_refuses_its_piece_alone() {
    let (mut cluster, (mut a, sa), (b, sb)) = absent_at_receiver(&[2, 4]);
    let bytes = pattern(3, 6 * PAGE_SIZE);
    let start = page(&sb, 1) - sb.address;
    a.write(&mut cluster, sa.address, &bytes);
    let unavailable = page(&sb, 4);
    let driver = &mut cluster.nodes[1].driver;
    driver.set_available(b.vni, unavailable, false);
    let mut command = Command::write(sa.at(0), sb.to(start), 6 * PAGE);
    command.notification = Some(9);
    let number = a.done(&cluster).0;
    a.issue(&mut cluster, &command, &[]).unwrap();
    cluster.run();
    assert_eq!(cluster.statistics(1).frames_held.get(), 2);
    answer_all(&mut cluster, 0);
    cluster.settle();
    assert_eq!(a.errors(&cluster), [(number, Status::PageUnavailable)]);
    assert_eq!(b.signals(&cluster, 9), 0, "part of the write is missing");
    for (piece, there) in [true, true, true, false, true, true]
        .into_iter()
        .enumerate()
    {
        let at = piece * PAGE_SIZE;
        let seen = b.read(&cluster, sb.address + start + at as u64, PAGE_SIZE);
        assert_eq!(seen == bytes[at..at + PAGE_SIZE], there, "piece {piece}");
    }
    assert_eq!(cluster.statistics(1).frames_held.get(), 0);
    // Its places in the window are back: a whole window of pieces passes.
    let all = Command::write(sa.at(0), sb.to(6 * PAGE), SEGMENT - 6 * PAGE);
    a.issue(&mut cluster, &all, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster).0, number + 2);
}

#[test]
fn a_run_that_is_refused_touches_nothing_and_fails_once() {
    let (mut cluster, (mut a, sa), (b, sb)) = absent_at_receiver(&[]);
    let before = b.read(&cluster, sb.address, SEGMENT as usize);
    a.write(&mut cluster, sa.address, &pattern(4, 9 * PAGE_SIZE));
    let mut command = Command::write(sa.at(0), sb.to(0), 8 * PAGE);
    command.remote.memory.key.0 ^= 1;
    let number = a.done(&cluster).0;
    a.issue(&mut cluster, &command, &[]).unwrap();
    cluster.run();
    assert_eq!(a.errors(&cluster), [(number, Status::BadKey)]);
    assert!(b.read(&cluster, sb.address, SEGMENT as usize) == before);
    assert_eq!(cluster.statistics(0).operations.get(), 0);
}

#[test]
fn eight_pages_go_in_one_frame_and_lock_nothing_afterwards() {
    let (mut cluster, (mut a, sa), (b, sb)) = absent_at_receiver(&[]);
    let bytes = pattern(5, 8 * PAGE_SIZE);
    a.write(&mut cluster, sa.address, &bytes);
    let before = cluster.statistics(1).acknowledgements.get();
    let command = Command::write(sa.at(0), sb.to(0), 7 * PAGE);
    a.issue(&mut cluster, &command, &[]).unwrap();
    // One poll of each: fetched and sent, acknowledged as a whole.
    cluster.poll(0);
    assert!(b.read(&cluster, sb.address, 7 * PAGE_SIZE) == bytes[..7 * PAGE_SIZE]);
    cluster.poll(1);
    cluster.poll(0);
    assert_eq!(cluster.statistics(0).operations.get(), 0);
    assert_eq!(cluster.statistics(1).acknowledgements.get(), before + 1);
    for node in &cluster.nodes {
        assert!(node.driver.all_unlocked(&node.host));
    }
}
