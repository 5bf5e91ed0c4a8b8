//! Spans of pages in one frame (docs/wire.md, "Long transfers"): each fragment is
//! delivered, held, refused and counted by itself.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence::WithSource;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_nic::testing::{page, pattern, Net, Pair, PAGE, SEGMENT};
use qnic_nic::Limits;

/// Answers one fault after the other, in an order that `choice` says, until there
/// are none.
fn answer_all(net: &Net, mut choice: usize) {
    for _ in 0..10_000 {
        net.run();
        let waiting: Vec<_> = (0..2).filter(|node| net.faults(*node) > 0).collect();
        let Some(node) = waiting.get(choice % waiting.len().max(1)) else {
            return;
        };
        let index = choice % net.faults(*node);
        net.answer(*node, index, 1 + (choice % 3) as u32);
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
    fn every_fragment_arrives_whatever_is_absent(
        (from, to, length) in (0u64..9000, 0u64..9000, 1u64..120_000),
        absent in prop::collection::vec((0usize..2, 0u64..66), 0..12),
        (window, in_flight, requests) in (1u32..40, 1u32..40, 1u32..40),
        (fragments_per_poll, max_payload) in (1u32..70, prop_oneof![Just(32_768u32), 500u32..33_000]),
        same_node: bool,
        choice: usize,
        (reads, keeps) in any::<(bool, bool)>(),
    ) {
        let limits = Limits {
            window,
            fragments_per_write: in_flight,
            requests_per_read: requests,
            fragments_per_poll,
            ..Limits::default()
        };
        let net = Net::new(2, 512, 8, &limits);
        net.cluster().max_payload = max_payload;
        if keeps {
            net.cluster().keep_frames();
        }
        let (a, b) = (net.party(0, 1), net.party(usize::from(!same_node), 2));
        a.write(&b).run();
        a.read(&b).run();
        let (source, target) = if reads { (&b, &a) } else { (&a, &b) };
        let mut expected = target.fill(0, SEGMENT, 99);
        let bytes = source.fill(from, length, 7);
        net.answer_faults(false);
        for (side, number) in &absent {
            // The segment touches 65 pages.
            if *number <= 64 {
                [&a, &b][*side].evict(*number * PAGE);
            }
        }
        let transfer = if reads { a.read(&b) } else { a.write(&b).notify(5) };
        let done = a.done();
        transfer.from(from).to(to).bytes(length).run();
        if b.signals(5) == 1 {
            prop_assert!(b.holds(to, &bytes));
        }
        answer_all(&net, choice);
        net.settle();
        prop_assert_eq!(a.done(), (done.0 + u64::from(!reads), done.1 + u64::from(reads)));
        prop_assert_eq!(a.errors(), []);
        prop_assert_eq!(b.signals(5), u64::from(!reads));
        expected[to as usize..][..bytes.len()].copy_from_slice(&bytes);
        prop_assert!(target.holds(0, &expected));
        for node in 0..2 {
            let counters = net.counters(node);
            prop_assert_eq!(counters.frames_held, 0);
            prop_assert_eq!(counters.operations, 0);
            prop_assert_eq!(counters.frames_outside, 0);
        }
        net.assert_unlocked();
    }
}

#[test]
fn a_page_that_cannot_be_brought_in_refuses_its_fragment_alone() {
    let Pair { net, a, b } = Pair::absent(&Limits::default(), &[1, 3]);
    let bytes = a.fill(0, 6 * PAGE, 3);
    b.set_available(page(3), false);
    let number = a.write(&b).pages(0..6).notify(9).run();
    assert_eq!(net.counters(1).frames_held, 2);
    answer_all(&net, 0);
    net.settle();
    assert_eq!(a.errors(), [(number, Status::PageUnavailable)]);
    assert_eq!(b.signals(9), 0, "part of the write is missing");
    for (number, fragment) in (0..).zip(bytes.chunks(PAGE_SIZE)) {
        let arrived = b.holds(page(number), fragment);
        assert_eq!(arrived, number != 3, "fragment {number}");
    }
    assert_eq!(net.counters(1).frames_held, 0);
    // The window has its room back: a whole window of fragments passes.
    let rest = SEGMENT - 6 * PAGE;
    a.write(&b).to(6 * PAGE).bytes(rest).run();
    assert_eq!(a.done().0, number + 1);
}

#[test]
fn a_page_span_that_is_refused_touches_nothing_and_fails_once() {
    let Pair { net, a, b } = Pair::absent(&Limits::default(), &[]);
    let before = b.memory();
    a.store(0, &pattern(4, 9 * PAGE_SIZE));
    let write = a.write(&b).bytes(8 * PAGE);
    let number = write.with(|command| command.remote.memory.key.0 ^= 1).run();
    assert_eq!(a.errors(), [(number, Status::BadKey)]);
    assert!(b.memory() == before);
    assert_eq!(net.counters(0).operations, 0);
}

#[test]
fn eight_pages_go_in_one_frame_and_lock_nothing_afterwards() {
    let Pair { net, a, b } = Pair::absent(&Limits::default(), &[]);
    let bytes = a.fill(0, 8 * PAGE, 5);
    let before = net.counters(1).acknowledgements;
    a.write(&b).bytes(7 * PAGE).issue();
    // One poll of each: fetched and sent, acknowledged as a whole.
    net.poll(0);
    assert!(b.holds(0, &bytes[..7 * PAGE_SIZE]));
    net.poll(1);
    net.poll(0);
    assert_eq!(net.counters(0).operations, 0);
    assert_eq!(net.counters(1).acknowledgements, before + 1);
    net.assert_unlocked();
}
