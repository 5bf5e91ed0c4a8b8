//! Atomic operations (N20, N22, N24): exact, whatever the process, the wire
//! and the pages do.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::atomic::{split_detail, Function, EMPTY_QUEUE};
use qnic_abi::{Access, Status};
use qnic_nic::testing::{page, LossyWire, Net, Pair, Party, SimSegment, Transfer, ALL, PAGE};
use qnic_nic::Limits;

/// Runs one atomic command to its end, and returns what it brought.
fn execute(issuer: &Party, command: Transfer<'_>) -> (u64, u64) {
    let record = (issuer.issued() % 64) as u16;
    let done = issuer.done().1;
    command.record(record).run();
    assert_eq!(issuer.done().1, done + 1);
    issuer.result(record)
}

/// What the functions on words say of themselves, in a type of Rust.
macro_rules! oracle {
    ($name:ident, $word:ty, $signed:ty, $float:ty) => {
        fn $name(function: Function, word: u64, operands: [u64; 4]) -> u64 {
            let [x, y, z, t] = operands.map(|operand| operand as $word);
            let word = word as $word;
            let float = |bits: $word| <$float>::from_bits(bits);
            let number = |value: $float| match value.is_nan() {
                true => <$float>::NAN.to_bits(),
                false => value.to_bits(),
            };
            let after = match function {
                Function::TestAndSet if word == 0 => 1,
                Function::Increment => word.wrapping_add(1),
                Function::Decrement => word.wrapping_sub(1),
                Function::Swap => x,
                Function::CompareSwap if word == y => x,
                Function::FetchAdd => word.wrapping_add(x),
                Function::And => word & x,
                Function::Or => word | x,
                Function::Xor => word ^ x,
                Function::Min => word.min(x),
                Function::Max => word.max(x),
                Function::MinSigned => (word as $signed).min(x as $signed) as $word,
                Function::MaxSigned => (word as $signed).max(x as $signed) as $word,
                Function::AddFloat => number(float(word) + float(x)),
                Function::MinFloat if float(x) < float(word) => x,
                Function::MaxFloat if float(x) > float(word) => x,
                Function::MinFloat | Function::MaxFloat
                    if float(word).is_nan() && !float(x).is_nan() =>
                {
                    x
                }
                Function::MaskedCompareSwap if word & z == y & z => word & !t | x & t,
                _ => word,
            };
            after.into()
        }
    };
}

oracle!(after_u32, u32, i32, f32);
oracle!(after_u64, u64, i64, f64);

fn after(function: Function, length: u64, word: u64, operands: [u64; 4]) -> u64 {
    match length {
        4 => after_u32(function, word, operands),
        _ => after_u64(function, word, operands),
    }
}

/// The functions on words.
fn of_words() -> impl Strategy<Value = Function> {
    let words = Function::ALL.into_iter();
    prop::sample::select(
        words
            .filter(|function| !function.is_on_queue())
            .collect::<Vec<_>>(),
    )
}

fn small() -> impl Strategy<Value = u64> {
    let floats = (-3i8..4, any::<bool>()).prop_map(|(number, wide)| match wide {
        true => f64::from(number).to_bits(),
        false => f32::from(number).to_bits().into(),
    });
    let others = [
        u64::from(u32::MAX),
        f64::NAN.to_bits(),
        f64::INFINITY.to_bits(),
    ];
    let others = [
        others[0],
        others[1],
        others[2],
        f32::NAN.to_bits().into(),
        u64::MAX,
    ];
    prop_oneof![
        0u64..3,
        floats,
        prop::sample::select(others.to_vec()),
        any::<u64>()
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        ..ProptestConfig::with_failure_persistence(WithSource("proptest-regressions"))
    })]

    /// Words of either width on the own and on another node, in pages that come
    /// and go, against plain arithmetic (N20).
    #[test]
    fn words_change_as_the_functions_say(
        steps in prop::collection::vec(
            (of_words(), any::<bool>(), 0u64..4, [small(), small(), small(), small()], 0usize..2, any::<bool>()),
            1..60,
        ),
    ) {
        let Pair { a, b, .. } = Pair::lossless();
        let mut memory = [0u8; 64];
        for (function, wide, index, operands, issuer, evict) in steps {
            let length = if wide { 8 } else { 4 };
            if evict {
                b.evict(page(0));
            }
            let at = (index * length) as usize;
            let mut word = [0; 8];
            word[..length as usize].copy_from_slice(&memory[at..at + length as usize]);
            let word = u64::from_le_bytes(word);
            let issuer = [&a, &b][issuer];
            let [x, y, z, t] = operands;
            let command = issuer.atomic(function, &b, [x, y]);
            let command = match function.inline_length() {
                0 => command,
                _ => command.masks([z, t]),
            };
            let got = execute(issuer, command.to(page(0) + index * length).bytes(length));
            prop_assert_eq!(got, (word, 0));
            let after = after(function, length, word, operands).to_le_bytes();
            memory[at..at + length as usize].copy_from_slice(&after[..length as usize]);
        }
        prop_assert_eq!(&b.bytes(page(0), 64)[..], &memory[..]);
    }

    /// Every node adds to one word over a bad wire, many commands at a time, while
    /// its page comes and goes: the sum is exact, and each value is seen once.
    #[test]
    fn nothing_is_lost_or_doubled_on_a_bad_wire(
        seed: u64, loss in prop_oneof![Just(0u64), Just(50), Just(200)], per_node in 1usize..60,
    ) {
        let net = Net::new(3, 512, 8, &Limits::default());
        net.cluster().set_lossy_wire(LossyWire::rough(loss), seed);
        let parties = [0, 1, 2].map(|node| net.party(node, node as u16 + 1));
        let target = &parties[0];
        for round in 0..per_node {
            for issuer in &parties {
                let add = issuer.atomic(Function::Increment, target, [0; 2]);
                add.record(round as u16).issue();
            }
            if round % 7 == 0 {
                target.evict(page(0));
            }
            for node in 0..3 {
                net.poll(node);
            }
            net.advance(20_000);
        }
        net.settle();
        let mut seen = Vec::new();
        for issuer in &parties {
            prop_assert_eq!(issuer.done().1, per_node as u64);
            prop_assert_eq!(issuer.errors(), []);
            seen.extend((0..per_node as u16).map(|record| issuer.result(record).0));
        }
        seen.sort_unstable();
        let expected: Vec<u64> = (0..3 * per_node as u64).collect();
        prop_assert_eq!(seen, expected);
        prop_assert_eq!(net.counters(0).atomics, 3 * per_node as u64);
    }
}

#[test]
fn queues_and_semaphores_work_over_the_wire() {
    let Pair { a, b, .. } = Pair::lossless();
    let call = |function, entry| {
        let (value, detail) = execute(&a, a.atomic(function, &b, [entry, 0]).bytes(32));
        let (first, second) = split_detail(detail);
        (value, first, second)
    };
    assert_eq!(call(Function::Dequeue, 0), (0, EMPTY_QUEUE, 0));
    assert_eq!(call(Function::Enqueue, 11), (0, 1, 0));
    assert_eq!(call(Function::Enqueue, 12), (11, 2, 0));
    assert_eq!(call(Function::Enqueue, 13), (12, 3, 0));
    assert_eq!(call(Function::Dequeue, 0), (11, 2, 0));
    // Its successor is not known.
    assert_eq!(call(Function::Dequeue, 0), (0, 2, 0));
    assert_eq!(call(Function::NewHead, 12), (1, 1, 0), "it leaves as well");
    assert_eq!(call(Function::NewHead, 13), (0, 1, 0));
    assert_eq!(call(Function::SemaphoreV, 0), (13, 0, 0));
    assert_eq!(call(Function::SemaphoreV, 0), (0, 0, 1));
    assert_eq!(call(Function::SemaphoreP, 14), (0, 0, 1), "it took one");
    assert_eq!(call(Function::SemaphoreP, 14), (0, 1, 0), "it waits");
}

#[test]
fn an_operation_on_an_absent_page_waits_for_it_and_is_executed_once() {
    let Pair { net, a, b } = Pair::lossless();
    net.answer_faults(false);
    for record in 0..3 {
        let add = a.atomic(Function::FetchAdd, &b, [5, 0]);
        add.record(record).issue();
    }
    net.run();
    assert_eq!(net.faults(1), 1, "they share a fault");
    assert_eq!(a.done().1, 0);
    net.answer(1, 0, 1);
    net.run();
    assert_eq!(a.done().1, 3);
    // They had turns in no particular order.
    let mut results = [0, 1, 2].map(|record| a.result(record).0);
    results.sort_unstable();
    assert_eq!(results, [0, 5, 10]);
    // Dirty: an eviction keeps the value.
    b.evict(page(0));
    assert!(b.holds(page(0), &15u64.to_le_bytes()));
    assert_eq!(net.counters(1).atomics, 3);
    assert_eq!(net.counters(1).restarts, 3);
}

#[test]
fn what_waits_for_a_page_ends_with_its_segment_its_issuer_or_its_page() {
    for case in 0..3 {
        let Pair { net, a, b } = Pair::lossless();
        net.answer_faults(false);
        a.atomic(Function::FetchAdd, &b, [5, 0]).run();
        assert_eq!(net.faults(1), 1);
        match case {
            0 => {
                assert_eq!(b.unexport(&b), Status::Ok);
                net.run();
                assert_eq!(a.errors(), [(0, Status::NoSuchSegment)]);
            }
            1 => {
                a.end();
                net.run();
                net.answer(1, 0, 1);
                net.run();
            }
            _ => {
                b.end();
                net.run();
                assert_eq!(a.errors(), [(0, Status::PeerGone)]);
            }
        }
        assert_eq!(net.counters(1).atomics, 0, "case {case}");
        assert_eq!(net.counters(0).operations, 0);
    }
}

#[test]
fn what_is_not_allowed_is_refused_and_touches_nothing() {
    let Pair { net, a, b } = Pair::lossless();
    let read_only = b.export(1, 100, (0x4001_0000, 4096), Access::READ).unwrap();
    let write_only = b
        .export(2, 101, (0x4002_0000, 4096), Access::WRITE)
        .unwrap();
    let short = b.export(3, 102, (0x5000_0000, 12), ALL).unwrap();
    let forged = SimSegment {
        key: b.segment.key ^ 1,
        ..b.segment
    };
    let add = |to: SimSegment, offset| {
        let add = a.atomic(Function::FetchAdd, to, [1, 0]);
        add.to(offset)
    };
    let enqueue = a.atomic(Function::Enqueue, &b, [1, 0]);
    let cases = [
        (add(forged, page(0)), Status::BadKey),
        (add(read_only, 0), Status::AccessDenied),
        (add(write_only, 0), Status::AccessDenied),
        (add(short, 8), Status::BadAddress),
        (add(b.segment, page(0) + 4), Status::Misaligned),
        (add(b.segment, page(0) + 2).bytes(4), Status::Misaligned),
        (enqueue.to(page(0) + 16).bytes(32), Status::Misaligned),
    ];
    let protection = net.counters(1).protection_errors;
    for (number, (command, status)) in cases.iter().enumerate() {
        let issued = command.run();
        let errors = a.errors();
        assert_eq!(errors.len(), number + 1);
        assert_eq!(errors[number], (issued, *status));
    }
    assert_eq!(a.done().1, cases.len() as u64);
    let refused = net.counters(1).protection_errors - protection;
    assert_eq!(refused, cases.len() as u64);
    assert_eq!(net.counters(1).atomics, 0);
    // The end of the short segment is within reach of four bytes.
    let swap = a.atomic(Function::Swap, short, [9, 0]).to(8).bytes(4);
    assert_eq!(execute(&a, swap), (0, 0));
}

#[test]
fn completions_count_atomic_commands_among_the_reads_in_their_order() {
    let Pair { net, a, b } = Pair::lossless();
    let read = a.read(&b).from(page(0)).bytes(64);
    let add = a.atomic(Function::Increment, &b, [0; 2]).to(page(0) + PAGE);
    read.run();
    add.run();
    assert_eq!(a.done().1, 2);
    b.evict(page(0));
    net.answer_faults(false);
    read.issue();
    add.issue();
    net.run();
    assert_eq!(a.result(0).0, 1, "it was executed");
    assert_eq!(a.done().1, 2, "it counts behind the read");
    net.answer(1, 0, 1);
    net.run();
    assert_eq!(a.done().1, 4);
}

#[test]
fn the_end_of_a_peer_ends_its_operations() {
    let Pair { net, a, b } = Pair::on(Net::lossy(2, LossyWire::steady(10_000), 3));
    let add = a.atomic(Function::Increment, &b, [0; 2]);
    execute(&a, add.clone());
    net.cut(1);
    let before = net.cluster().now;
    add.record(1).issue();
    let timeout = Limits::default().peer_timeout;
    while a.errors().is_empty() {
        net.advance(timeout / 100);
        net.poll_both(1);
        assert!(net.cluster().now.0 - before.0 < timeout * 5 / 4);
    }
    assert_eq!(a.errors(), [(1, Status::PeerGone)]);
}
