//! Atomic operations (N20, N22, N24): exact whoever asks, whatever the wire does and
//! whichever pages are absent.

mod common;

use common::{process, ALL};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::atomic::{split_detail, Function, NOBODY};
use qnic_abi::{Access, Status};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, LossyWire, SimProcess, SimSegment};
use qnic_nic::Limits;

type Party = (SimProcess, SimSegment);

/// The first place in a segment of [`process`] that is aligned for every operand.
fn aligned(segment: &SimSegment) -> u64 {
    segment.address.next_multiple_of(4096) - segment.address
}

fn parties(cluster: &mut Cluster, nodes: u16) -> Vec<Party> {
    (0..nodes)
        .map(|node| process(cluster, usize::from(node), node + 1))
        .collect()
}

/// Runs one atomic command to its end, and returns what it brought.
fn run(
    cluster: &mut Cluster,
    issuer: &mut SimProcess,
    function: Function,
    to: (&SimSegment, u64),
    length: u64,
    operands: [u64; 2],
) -> (u64, u64) {
    let record = (issuer.queue.tail() % 64) as u16;
    let command = Command::atomic(function, to.0.to(to.1), length, operands, record);
    let done = issuer.done(cluster).1;
    issuer.issue(cluster, &command, &[]).unwrap();
    cluster.run();
    assert_eq!(issuer.done(cluster).1, done + 1);
    issuer.result(cluster, record)
}

/// What the functions on words say of themselves, in the narrowest words of Rust.
fn oracle(function: Function, length: u64, word: u64, [x, y]: [u64; 2]) -> u64 {
    let cut = |value: u64| {
        if length == 4 {
            value & 0xffff_ffff
        } else {
            value
        }
    };
    match function {
        Function::TestAndSet if word == 0 => 1,
        Function::Increment => cut(word.wrapping_add(1)),
        Function::Decrement => cut(word.wrapping_sub(1)),
        Function::Swap => cut(x),
        Function::CompareSwap if word == cut(y) => cut(x),
        Function::FetchAdd => cut(word.wrapping_add(x)),
        _ => word,
    }
}

fn small() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..3, Just(u64::from(u32::MAX)), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]

    /// Words of either width on the own and on another node, in pages that come
    /// and go, against plain arithmetic.
    #[test]
    fn words_change_as_the_functions_say(
        steps in prop::collection::vec(
            (0usize..6, any::<bool>(), 0u64..4, [small(), small()], 0usize..2, any::<bool>()),
            1..60,
        ),
    ) {
        let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
        let mut parties = parties(&mut cluster, 2);
        let segment = parties[1].1;
        let start = aligned(&segment);
        let mut memory = [0u8; 64];
        for (function, wide, place, operands, issuer, evict) in steps {
            let function = Function::ALL[function];
            let length = if wide { 8 } else { 4 };
            if evict {
                let owner = parties[1].0.vni;
                cluster.evict(1, owner, segment.address + start);
            }
            let at = (place * length) as usize;
            let mut word = [0; 8];
            word[..length as usize].copy_from_slice(&memory[at..at + length as usize]);
            let word = u64::from_le_bytes(word);
            let to = (&segment, start + place * length);
            let issuer = &mut parties[issuer].0;
            let got = run(&mut cluster, issuer, function, to, length, operands);
            prop_assert_eq!(got, (word, 0));
            let after = oracle(function, length, word, operands).to_le_bytes();
            memory[at..at + length as usize].copy_from_slice(&after[..length as usize]);
        }
        let now = parties[1].0.read(&cluster, segment.address + start, 64);
        prop_assert_eq!(&now[..], &memory[..]);
    }

    /// Every node adds to one word over a bad wire, many commands at a time, while
    /// its page comes and goes: the sum is exact, and each value is seen once.
    #[test]
    fn nothing_is_lost_or_doubled_on_a_bad_wire(
        seed: u64, loss in prop_oneof![Just(0u64), Just(50), Just(200)], per_node in 1usize..60,
    ) {
        let mut cluster = Cluster::new(3, 512, 8, &Limits::default());
        cluster.set_lossy_wire(
            LossyWire { loss, duplication: loss, delay: 10_000, jitter: 40_000 },
            seed,
        );
        let mut parties = parties(&mut cluster, 3);
        let segment = parties[0].1;
        let start = aligned(&segment);
        let owner = parties[0].0.vni;
        for round in 0..per_node {
            for (issuer, _) in &mut parties {
                let command = Command::atomic(Function::Increment, segment.to(start), 8, [0; 2], round as u16);
                issuer.issue(&mut cluster, &command, &[]).unwrap();
            }
            if round % 7 == 0 {
                cluster.evict(0, owner, segment.address + start);
            }
            for node in 0..3 {
                cluster.poll(node);
            }
            cluster.advance(20_000);
        }
        cluster.settle();
        let mut seen = Vec::new();
        for (issuer, _) in &parties {
            prop_assert_eq!(issuer.done(&cluster).1, per_node as u64);
            prop_assert_eq!(issuer.errors(&cluster), []);
            seen.extend((0..per_node as u16).map(|record| issuer.result(&cluster, record).0));
        }
        seen.sort_unstable();
        let expected: Vec<u64> = (0..3 * per_node as u64).collect();
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(cluster.statistics(0).atomics.get(), 3 * per_node as u64);
    }
}

#[test]
fn queues_and_semaphores_work_over_the_wire() {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let mut parties = parties(&mut cluster, 2);
    let segment = parties[1].1;
    let start = aligned(&segment);
    let issuer = &mut parties[0].0;
    let mut call = |function, entry| {
        let to = (&segment, start);
        let (value, detail) = run(&mut cluster, issuer, function, to, 32, [entry, 0]);
        let (first, second) = split_detail(detail);
        (value, first, second)
    };
    assert_eq!(call(Function::Dequeue, 0), (0, NOBODY, 0));
    assert_eq!(call(Function::Enqueue, 11), (0, 1, 0));
    assert_eq!(call(Function::Enqueue, 12), (11, 2, 0));
    assert_eq!(call(Function::Enqueue, 13), (12, 3, 0));
    assert_eq!(call(Function::Dequeue, 0), (11, 2, 0));
    assert_eq!(
        call(Function::Dequeue, 0),
        (0, 2, 0),
        "its successor is not known"
    );
    assert_eq!(call(Function::NewHead, 12), (1, 1, 0), "it leaves as well");
    assert_eq!(call(Function::NewHead, 13), (0, 1, 0));
    assert_eq!(call(Function::SemaphoreV, 0), (13, 0, 0));
    assert_eq!(call(Function::SemaphoreV, 0), (0, 0, 1));
    assert_eq!(call(Function::SemaphoreP, 14), (0, 0, 1), "it took one");
    assert_eq!(call(Function::SemaphoreP, 14), (0, 1, 0), "it waits");
}

#[test]
fn an_operation_on_an_absent_page_waits_for_it_and_is_executed_once() {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let mut parties = parties(&mut cluster, 2);
    let segment = parties[1].1;
    let start = aligned(&segment);
    cluster.answer_faults = false;
    let add = |record| {
        let to = (&segment, start);
        Command::atomic(Function::FetchAdd, to.0.to(to.1), 8, [5, 0], record)
    };
    for record in 0..3 {
        parties[0].0.issue(&mut cluster, &add(record), &[]).unwrap();
    }
    cluster.run();
    assert_eq!(cluster.nodes[1].faults.len(), 1, "they share a fault");
    assert_eq!(parties[0].0.done(&cluster).1, 0);
    cluster.answer_fault(1, 0, 1);
    cluster.run();
    assert_eq!(parties[0].0.done(&cluster).1, 3);
    // They had turns in no particular order.
    let mut results = [0, 1, 2].map(|record| parties[0].0.result(&cluster, record).0);
    results.sort_unstable();
    assert_eq!(results, [0, 5, 10]);
    // Dirty: an eviction keeps the value.
    let owner = parties[1].0.vni;
    cluster.evict(1, owner, segment.address + start);
    let bytes = parties[1].0.read(&cluster, segment.address + start, 8);
    assert_eq!(bytes, 15u64.to_le_bytes());
    assert_eq!(cluster.statistics(1).atomics.get(), 3);
    assert_eq!(cluster.statistics(1).restarts.get(), 3);
}

#[test]
fn what_waits_for_a_page_ends_with_its_segment_its_issuer_or_its_page() {
    for case in 0..3 {
        let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
        let mut parties = parties(&mut cluster, 2);
        let segment = parties[1].1;
        let start = aligned(&segment);
        cluster.answer_faults = false;
        let to = (&segment, start);
        let add = Command::atomic(Function::FetchAdd, to.0.to(to.1), 8, [5, 0], 0);
        parties[0].0.issue(&mut cluster, &add, &[]).unwrap();
        cluster.run();
        assert_eq!(cluster.nodes[1].faults.len(), 1);
        let (owner, _) = parties.pop().unwrap();
        let (issuer, _) = parties.pop().unwrap();
        match case {
            0 => {
                assert_eq!(owner.unexport(&mut cluster, segment.id), Status::Ok);
                cluster.run();
                assert_eq!(issuer.errors(&cluster), [(0, Status::NoSuchSegment)]);
            }
            1 => {
                issuer.end(&mut cluster);
                cluster.run();
                cluster.answer_fault(1, 0, 1);
                cluster.run();
            }
            _ => {
                owner.end(&mut cluster);
                cluster.run();
                assert_eq!(issuer.errors(&cluster), [(0, Status::PeerGone)]);
            }
        }
        assert_eq!(cluster.statistics(1).atomics.get(), 0, "case {case}");
        assert_eq!(cluster.statistics(0).operations.get(), 0);
    }
}

#[test]
fn what_is_not_allowed_is_refused_and_touches_nothing() {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let mut parties = parties(&mut cluster, 2);
    let (owner, segment) = parties[1].clone();
    let start = aligned(&segment);
    let export = |cluster: &mut Cluster, id, name, access| {
        let range = (0x4000_0000 + u64::from(id) * 0x1_0000, 4096);
        owner.export(cluster, id, name, range, access).unwrap()
    };
    let read_only = export(&mut cluster, 1, 100, Access::READ);
    let write_only = export(&mut cluster, 2, 101, Access::WRITE);
    let short = owner
        .export(&mut cluster, 3, 102, (0x5000_0000, 12), ALL)
        .unwrap();
    let forged = SimSegment {
        key: segment.key ^ 1,
        ..segment
    };
    let add = |to: &SimSegment, offset, length| {
        Command::atomic(Function::FetchAdd, to.to(offset), length, [1, 0], 0)
    };
    let enqueue = |offset| Command::atomic(Function::Enqueue, segment.to(offset), 32, [1, 0], 0);
    let cases = [
        (add(&forged, start, 8), Status::BadKey),
        (add(&read_only, 0, 8), Status::AccessDenied),
        (add(&write_only, 0, 8), Status::AccessDenied),
        (add(&short, 8, 8), Status::BadAddress),
        (add(&segment, start + 4, 8), Status::Misaligned),
        (add(&segment, start + 2, 4), Status::Misaligned),
        (enqueue(start + 16), Status::Misaligned),
    ];
    let protection = cluster.statistics(1).protection_errors.get();
    for (number, (command, status)) in cases.iter().enumerate() {
        let issued = parties[0].0.issue(&mut cluster, command, &[]).unwrap();
        cluster.run();
        let errors = parties[0].0.errors(&cluster);
        assert_eq!(errors.len(), number + 1);
        assert_eq!(errors[number], (issued, *status));
    }
    assert_eq!(parties[0].0.done(&cluster).1, cases.len() as u64);
    let refused = cluster.statistics(1).protection_errors.get() - protection;
    assert_eq!(refused, cases.len() as u64);
    assert_eq!(cluster.statistics(1).atomics.get(), 0);
    // The end of the short segment is within reach of four bytes.
    let got = run(
        &mut cluster,
        &mut parties[0].0,
        Function::Swap,
        (&short, 8),
        4,
        [9, 0],
    );
    assert_eq!(got, (0, 0));
}

#[test]
fn completions_count_atomic_commands_among_the_reads_in_their_order() {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let mut parties = parties(&mut cluster, 2);
    let segment = parties[1].1;
    let local = parties[0].1;
    let start = aligned(&segment);
    let owner = parties[1].0.vni;
    let read = Command::read(local.at(0), segment.to(start), 64);
    let to = (&segment, start + 4096);
    let add = Command::atomic(Function::Increment, to.0.to(to.1), 8, [0; 2], 0);
    for command in [&read, &add] {
        parties[0].0.issue(&mut cluster, command, &[]).unwrap();
        cluster.run();
    }
    assert_eq!(parties[0].0.done(&cluster).1, 2);
    cluster.evict(1, owner, segment.address + start);
    cluster.answer_faults = false;
    for command in [&read, &add] {
        parties[0].0.issue(&mut cluster, command, &[]).unwrap();
    }
    cluster.run();
    assert_eq!(parties[0].0.result(&cluster, 0).0, 1, "it was executed");
    assert_eq!(
        parties[0].0.done(&cluster).1,
        2,
        "it counts behind the read"
    );
    cluster.answer_fault(1, 0, 1);
    cluster.run();
    assert_eq!(parties[0].0.done(&cluster).1, 4);
}

#[test]
fn the_end_of_a_peer_ends_its_operations() {
    let mut cluster = Cluster::new(2, 512, 8, &Limits::default());
    let steady = LossyWire {
        loss: 0,
        duplication: 0,
        delay: 10_000,
        jitter: 0,
    };
    cluster.set_lossy_wire(steady, 3);
    let mut parties = parties(&mut cluster, 2);
    let segment = parties[1].1;
    let start = aligned(&segment);
    let issuer = &mut parties[0].0;
    run(
        &mut cluster,
        issuer,
        Function::Increment,
        (&segment, start),
        8,
        [0; 2],
    );
    cluster.cut.insert(1);
    let to = (&segment, start);
    let add = Command::atomic(Function::Increment, to.0.to(to.1), 8, [0; 2], 1);
    issuer.issue(&mut cluster, &add, &[]).unwrap();
    let before = cluster.now;
    cluster.run();
    let timeout = Limits::default().peer_timeout;
    assert!(cluster.now.0 - before.0 < timeout * 5 / 4);
    assert_eq!(issuer.errors(&cluster), [(1, Status::PeerGone)]);
}
