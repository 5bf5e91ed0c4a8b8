//! Contexts, regions, the pool and doorbells (Q4, Q5, Q7, Q8; docs/messages.md, "Contexts"): a
//! story for each rule.

use proptest::prelude::*;
use qnic_abi::context::{
    ContextFlags, DoorbellState, CONTEXT_PAGES, LIST_PAGES, POOL_PAGES, REGION_BYTES,
};
use qnic_abi::header::Counts;
use qnic_abi::host_area::{CompletionEntry, QUEUE_STATUS};
use qnic_abi::{Status, PAGE_SIZE};
use qnic_nic::testing::{
    page, pattern, scarce, scarce_nets, status, Describing, LossyWire, Net, Pair, Party, PAGE,
};
use qnic_nic::Limits;

fn state(entry: &CompletionEntry) -> DoorbellState {
    DoorbellState::try_from(entry.state.get()).expect("a known state")
}

/// What a context has ended with.
#[track_caller]
fn done(entry: &CompletionEntry) -> Status {
    assert_eq!(state(entry), DoorbellState::Done, "{entry:?}");
    status(entry)
}

/// Fills pages of a segment, and returns their bytes one behind the other.
fn fill(party: &Party, pages: &[u64], offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in pages {
        bytes.extend(party.fill(page(*number), PAGE, number + 1));
    }
    bytes[offset as usize..(offset + length) as usize].to_vec()
}

fn gather(party: &Party, pages: &[u64], offset: u64, length: u64) -> Vec<u8> {
    let pages = pages.iter().map(|number| party.bytes(page(*number), PAGE));
    let bytes: Vec<u8> = pages.flatten().collect();
    bytes[offset as usize..(offset + length) as usize].to_vec()
}

/// A NIC with less than there is room for refuses what is beyond (Q1).
#[test]
fn what_is_beyond_the_counts_of_the_nic_is_refused() {
    let limits = Limits {
        counts: Counts {
            command_entries: 16,
            contexts: 5,
            context_pages: 3,
            pool_pages: 2,
        },
        ..scarce()
    };
    let Pair { net, a, b } = Pair::on(Net::new(2, 512, 8, &limits));
    let pages = 3 * PAGE;
    b.receive_context(4)
        .notify()
        .pages(&[3, 4, 5], 0, pages)
        .issue();
    a.send_context(4, &b)
        .notify()
        .pages(&[0, 1, 2], 0, pages)
        .run();
    assert_eq!(done(&a.send_doorbell(4)), Status::Ok);
    assert_eq!(done(&b.receive_doorbell(4)), Status::Ok);
    let refused = |describing: Describing<'_>, expected| {
        describing.run();
        assert_eq!(done(&a.send_doorbell(4)), expected);
    };
    let send = || a.send_context(4, &b);
    refused(send().pages(&[0, 1, 2, 3], 0, 4 * PAGE), Status::BadLength);
    refused(send().short(&[1; 49]), Status::BadLength);
    refused(send().pool(2, 0, 8), Status::Malformed);
    refused(send().pool(1, 1, PAGE), Status::BadLength);
    refused(
        send().pages(&[0, 1, 2, 3], 0, 4 * PAGE).list(2),
        Status::Malformed,
    );
    assert_eq!(a.word(QUEUE_STATUS), 0, "the queue goes on");
    a.send_context(5, &b).short(&[1]).run();
    assert_eq!(a.word(QUEUE_STATUS), u64::from(Status::Malformed.code()));
    net.assert_unlocked();
}

#[test]
fn pages_that_stand_anywhere_are_one_message() {
    for net in scarce_nets(3, 4) {
        let Pair { a, b, .. } = Pair::on(net);
        let (from, to) = ([5, 1, 2, 7], [6, 0, 3, 1, 4]);
        let length = 3 * PAGE + 200;
        let bytes = fill(&a, &from, 700, length);
        b.receive_context(3)
            .notify()
            .tag(9)
            .pages(&to, 4000, length)
            .issue();
        a.send_context(31, &b)
            .notify()
            .tag(9)
            .pages(&from, 700, length)
            .run();
        assert_eq!(done(&a.send_doorbell(31)), Status::Ok);
        let end = b.receive_doorbell(3);
        assert_eq!(done(&end), Status::Ok);
        assert_eq!(
            (end.tag.get(), end.length.get(), end.handle.get()),
            (9, length, 3)
        );
        assert_eq!(gather(&b, &to, 4000, length), bytes);
        assert!(a.completions().is_empty() && b.completions().is_empty());
        b.net.assert_unlocked();
    }
}

#[test]
fn a_short_message_on_two_pages_that_are_not_adjacent_arrives() {
    for net in scarce_nets(3, 4) {
        let Pair { a, b, .. } = Pair::on(net);
        let bytes = fill(&a, &[6, 2], 4000, 200);
        a.send_context(0, &b)
            .notify()
            .pages(&[6, 2], 4000, 200)
            .run();
        b.receive_context(0)
            .notify()
            .pages(&[3, 1], 4090, 200)
            .run();
        assert_eq!(done(&a.send_doorbell(0)), Status::Ok);
        assert_eq!(done(&b.receive_doorbell(0)), Status::Ok);
        assert_eq!(gather(&b, &[3, 1], 4090, 200), bytes);
    }
}

#[test]
fn the_region_is_the_buffer_of_a_short_message() {
    for net in scarce_nets(3, 4) {
        let Pair { a, b, .. } = Pair::on(net);
        for (index, length) in [0, 1, 8, 100, REGION_BYTES].into_iter().enumerate() {
            let bytes = pattern(7, length);
            a.send_context(index, &b).short(&bytes).issue();
            b.receive_context(index).notify().pool(2, 1, 300).run();
            let end = b.receive_doorbell(index);
            assert_eq!((done(&end), end.length.get()), (Status::Ok, length as u64));
            assert_eq!(b.pool(2, 301)[1..=length], bytes);
            let sent = a.send_doorbell(index);
            assert_eq!(state(&sent), DoorbellState::Free, "it is not asked for");
        }
    }
}

#[test]
fn the_pool_is_there_whatever_the_page_table_says() {
    for net in scarce_nets(3, 4) {
        let Pair { net, a, b } = Pair::on(net);
        net.answer_faults(false);
        let bytes = pattern(3, 3 * PAGE_SIZE);
        for (page, part) in bytes.chunks(PAGE_SIZE).enumerate() {
            a.store_pool(4 + page, 0, part);
        }
        let length = 2 * PAGE + 100;
        b.receive_context(1).notify().pool(0, 96, 5 * PAGE).issue();
        a.send_context(1, &b).notify().pool(4, 1000, length).run();
        assert_eq!(done(&a.send_doorbell(1)), Status::Ok);
        assert_eq!(done(&b.receive_doorbell(1)), Status::Ok);
        let received = b.pool(0, 4 * PAGE_SIZE);
        assert_eq!(
            received[96..96 + length as usize],
            bytes[1000..1000 + length as usize]
        );
        assert_eq!(
            (net.faults(0), net.faults(1)),
            (0, 0),
            "no page of it is asked for"
        );
    }
}

#[test]
fn contexts_and_commands_match_each_other_in_the_order_of_the_queue() {
    for net in scarce_nets(3, 4) {
        let Pair { a, b, .. } = Pair::on(net);
        b.receive_context(0).notify().pool(0, 0, 8).issue();
        b.receive(70).bytes(0, 8).issue();
        b.receive_context(1).notify().pool(1, 0, 8).issue();
        for number in 1..4u64 {
            a.send(number, &b).inline(&number.to_le_bytes()).issue();
        }
        b.net.run();
        assert_eq!(b.pool(0, 8), 1u64.to_le_bytes());
        assert_eq!(b.bytes(0, 8), 2u64.to_le_bytes());
        assert_eq!(b.pool(1, 8), 3u64.to_le_bytes());
        let entries = b.completions();
        assert_eq!(entries.len(), 1, "contexts tell by their doorbells");
        assert_eq!(entries[0].handle.get(), 70);
    }
}

#[test]
fn absent_pages_of_a_context_are_brought_in() {
    for seed in 0..4 {
        let net = Net::lossy(2, LossyWire::rough(100), seed);
        let Pair { a, b, net } = Pair::on(net);
        let (from, to) = ([3, 1, 0], [7, 2, 5]);
        let bytes = fill(&a, &from, 10, 2 * PAGE + 5);
        from.iter().for_each(|number| a.evict(page(*number)));
        to.iter().for_each(|number| b.evict(page(*number)));
        a.send_context(2, &b)
            .notify()
            .pages(&from, 10, 2 * PAGE + 5)
            .issue();
        b.receive_context(2).notify().pages(&to, 0, 3 * PAGE).run();
        assert_eq!(done(&a.send_doorbell(2)), Status::Ok);
        assert_eq!(done(&b.receive_doorbell(2)), Status::Ok);
        assert_eq!(gather(&b, &to, 0, 2 * PAGE + 5), bytes);
        net.assert_unlocked();
    }
}

#[test]
fn what_is_stored_in_a_context_under_way_changes_nothing() {
    let Pair { net, a, b } = Pair::scarce();
    let bytes = fill(&a, &[1, 4], 0, 2 * PAGE);
    let send = a
        .send_context(0, &b)
        .notify()
        .tag(5)
        .pages(&[1, 4], 0, 2 * PAGE);
    let receive = b
        .receive_context(0)
        .notify()
        .tag(5)
        .pages(&[0, 2], 0, 2 * PAGE);
    receive.clone().issue();
    net.poll(1);
    receive.tag(6).pages(&[6, 7], 0, 2 * PAGE).store();
    send.clone().issue();
    net.poll(0);
    send.tag(6).pages(&[9, 9], 0, 2 * PAGE).store();
    net.run();
    assert_eq!(done(&b.receive_doorbell(0)), Status::Ok);
    assert_eq!(gather(&b, &[0, 2], 0, 2 * PAGE), bytes);
}

#[test]
fn a_list_in_the_pool_has_more_pages_than_a_region_and_is_read_once() {
    let Pair { net, a, b } = Pair::on(Net::new(2, 1024, 8, &scarce()));
    // Each page behind one that is not its neighbour.
    let from: Vec<u64> = (0..60).map(|page| page * 7 % 60).collect();
    let to: Vec<u64> = (0..60).map(|page| page * 11 % 60).collect();
    let length = 60 * PAGE - 100;
    let bytes = fill(&a, &from, 100, length);
    b.receive_context(0)
        .notify()
        .pages(&to, 0, length)
        .list(2)
        .issue();
    a.send_context(0, &b)
        .notify()
        .pages(&from, 100, length)
        .list(0)
        .issue();
    net.poll(1);
    net.poll(0);
    // What a process stores into its list afterwards means nothing.
    a.store_pool(0, 0, &[0xff; 4096]);
    b.store_pool(2, 0, &[0xff; 4096]);
    net.run();
    assert_eq!(done(&a.send_doorbell(0)), Status::Ok);
    assert_eq!(done(&b.receive_doorbell(0)), Status::Ok);
    assert_eq!(gather(&b, &to, 0, length), bytes);
    net.assert_unlocked();

    // As many as there is room for, all of one page; one more is refused.
    let many = |count: usize| (vec![5; count], count as u64 * PAGE);
    for (count, status) in [
        (LIST_PAGES, Status::Ok),
        (LIST_PAGES + 1, Status::BadLength),
    ] {
        let (pages, length) = many(count);
        a.send_context(1, &b)
            .notify()
            .pages(&pages, 0, length)
            .list(4)
            .issue();
        b.receive_context(1)
            .with(&a)
            .pages(&[6], 0, PAGE)
            .notify()
            .run();
        let sent = done(&a.send_doorbell(1));
        let expected = if status == Status::Ok {
            Status::Truncated
        } else {
            status
        };
        assert_eq!(sent, expected);
    }
    b.cancel_context(1);
    net.run();
    net.assert_unlocked();
}

#[test]
fn a_context_that_lies_fails_by_its_doorbell_and_hurts_nobody() {
    type Change = for<'a> fn(Describing<'a>) -> Describing<'a>;
    let lies: [(Status, Change); 21] = [
        (Status::Malformed, |it| it.list(POOL_PAGES as u16)),
        (Status::Malformed, |it| it.list(1).flags(ContextFlags::POOL)),
        (Status::Malformed, |it| {
            it.list(1).flags(ContextFlags::REGION)
        }),
        (Status::Malformed, |mut it| {
            it.context.pool_offset = 8.into();
            it.list(1)
        }),
        (Status::Malformed, |mut it| {
            it.pages[1].valid = 2.into();
            it.list(1)
        }),
        (Status::Malformed, |it| {
            it.flags(ContextFlags::from_bits_retain(1 << 9))
        }),
        (Status::Malformed, |it| it.flags(ContextFlags::ANY_PROC)),
        (Status::Malformed, |mut it| {
            it.context.reserved1 = 1.into();
            it
        }),
        (Status::Malformed, |mut it| {
            it.context.endpoint = 16.into();
            it
        }),
        (Status::Malformed, |it| {
            it.tag(1).flags(ContextFlags::UNTAGGED)
        }),
        (Status::BadLength, |mut it| {
            it.context.length = (3 * PAGE).into();
            it
        }),
        (Status::BadLength, |mut it| {
            it.context.pages = (CONTEXT_PAGES as u16 + 1).into();
            it
        }),
        (Status::Malformed, |mut it| {
            it.context.pages = 1.into();
            it
        }),
        (Status::Malformed, |mut it| {
            it.pages[1].valid = 0.into();
            it
        }),
        (Status::Malformed, |mut it| {
            it.pages[1].offset = 8.into();
            it
        }),
        (Status::Malformed, |mut it| {
            it.pages[0].length = 4000.into();
            it
        }),
        (Status::Malformed, |mut it| {
            it.pages[1].address = 0x123.into();
            it
        }),
        (Status::BadAddress, |mut it| {
            it.pages[1].address = (1u64 << 40).into();
            it
        }),
        (Status::BadKey, |mut it| {
            it.context.local_key = 12345.into();
            it
        }),
        (Status::BadLength, |mut it| {
            it.context.local_key = 0.into();
            it.context.local_segment = 0.into();
            it.pool(POOL_PAGES as u16 - 1, 1, PAGE)
        }),
        (Status::Malformed, |mut it| {
            it.context.local_key = 0.into();
            it.context.local_segment = 0.into();
            it.pool(POOL_PAGES as u16, 0, 8)
        }),
    ];
    for (number, (expected, lie)) in lies.into_iter().enumerate() {
        let Pair { net, a, b } = Pair::scarce();
        let mut honest = a.send_context(7, &b).pages(&[0, 1], 0, 2 * PAGE);
        honest.context.endpoint = 3.into();
        let liar = lie(honest);
        let endpoint = liar.context.endpoint;
        liar.run();
        let entry = a.send_doorbell(7);
        assert_eq!(done(&entry), expected, "lie {number}");
        assert_eq!(entry.endpoint, endpoint, "lie {number}");
        assert_eq!(a.word(QUEUE_STATUS), 0, "the queue goes on");
        b.receive_context(7)
            .notify()
            .pages(&[2, 3], 0, 2 * PAGE)
            .issue();
        a.send_context(7, &b)
            .notify()
            .pages(&[0, 1], 0, 2 * PAGE)
            .run();
        assert_eq!(done(&a.send_doorbell(7)), Status::Ok);
        assert_eq!(done(&b.receive_doorbell(7)), Status::Ok);
        net.assert_unlocked();
    }
}

#[test]
fn a_context_under_way_is_not_taken_again() {
    for send in [false, true] {
        let Pair { net, a, b } = Pair::scarce();
        let context = match send {
            true => a.send_context(0, &b).pages(&[0, 1], 0, 2 * PAGE),
            false => a.receive_context(0).pages(&[0, 1], 0, 2 * PAGE),
        };
        context.clone().issue();
        context.issue();
        net.run();
        let stopped = a.word(QUEUE_STATUS);
        assert_eq!(stopped, u64::from(Status::Malformed.code()));
        assert_eq!(a.reset_queue(), Status::Ok);
        a.clear_queue();
        net.run();
        b.receive_context(0).notify().pool(0, 0, 8).issue();
        a.send_context(0, &b).notify().short(&[1; 8]).run();
        assert_eq!(done(&a.send_doorbell(0)), Status::Ok, "a reset frees all");
        assert_eq!(done(&b.receive_doorbell(0)), Status::Ok);
    }
}

#[test]
fn a_message_longer_than_its_pages_is_truncated() {
    for net in scarce_nets(3, 4) {
        let Pair { a, b, .. } = Pair::on(net);
        let bytes = fill(&a, &[0, 1, 2], 0, 3 * PAGE);
        b.receive_context(0).pages(&[9, 5], 100, PAGE).issue();
        a.send_context(0, &b).pages(&[0, 1, 2], 0, 3 * PAGE).run();
        let end = b.receive_doorbell(0);
        assert_eq!(
            (done(&end), end.length.get()),
            (Status::Truncated, 3 * PAGE)
        );
        assert_eq!(
            done(&a.send_doorbell(0)),
            Status::Truncated,
            "told without NOTIFY"
        );
        assert_eq!(gather(&b, &[9, 5], 100, PAGE), bytes[..PAGE_SIZE]);
    }
}

#[test]
fn ends_reach_the_doorbells_of_contexts() {
    // Cancelled.
    let Pair { net, a, b } = Pair::scarce();
    b.receive_context(4).pool(0, 0, 8).run();
    b.cancel_context(4);
    assert_eq!(done(&b.receive_doorbell(4)), Status::Cancelled);
    b.receive_context(4).pool(0, 0, 8).run();
    assert_eq!(b.word(QUEUE_STATUS), 0, "it is free again");
    b.cancel_context(4);

    // Revoked.
    b.receive_context(5).pages(&[0, 3], 0, 2 * PAGE).issue();
    a.send_context(5, &b)
        .tag(77)
        .pages(&[0, 3], 0, 2 * PAGE)
        .issue();
    net.run();
    b.receive_context(6)
        .tag(99)
        .pages(&[0, 3], 0, 2 * PAGE)
        .run();
    assert_eq!(b.unexport(&b), Status::Ok);
    net.run();
    assert_eq!(done(&b.receive_doorbell(6)), Status::Aborted);

    // The other process ends.
    a.receive_context(8).with(&b).pool(0, 0, 8).run();
    a.send_context(9, &b).pages(&[0, 1], 0, 2 * PAGE).run();
    b.end();
    net.run();
    assert_eq!(done(&a.receive_doorbell(8)), Status::PeerGone);
    let sent = done(&a.send_doorbell(9));
    assert!(
        matches!(sent, Status::PeerGone | Status::NoSuchPort),
        "{sent:?}"
    );
    net.assert_unlocked();
}

/// Different pages in any order: mostly as many as a region lists, and sometimes more.
fn some_pages() -> impl Strategy<Value = Vec<u64>> {
    let of = |pages: u64, most: usize| {
        proptest::sample::subsequence((0..pages).collect::<Vec<_>>(), 1..=most).prop_shuffle()
    };
    prop_oneof![2 => of(12, CONTEXT_PAGES), 1 => of(60, 40)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any pages on either side, any offsets: the bytes of the message are those of the pages in
    /// their order.
    #[test]
    fn any_pages_hold_any_message(
        seed in 0u64..50,
        from in some_pages(),
        to in some_pages(),
        from_offset in 0..PAGE,
        to_offset in 0..PAGE,
        cut in (0..PAGE, 0..PAGE),
        early in any::<bool>(),
        (list_from, list_to) in any::<(bool, bool)>(),
    ) {
        let net = Net::lossy(2, LossyWire::rough(50), seed);
        let Pair { a, b, net } = Pair::on(net);
        let space = |pages: &[u64], offset: u64, cut: u64| {
            let all = pages.len() as u64 * PAGE - offset;
            // Every page has a byte.
            let least = match pages.len() {
                1 => 1,
                count => (count as u64 - 1) * PAGE - offset + 1,
            };
            all.saturating_sub(cut).clamp(least, all)
        };
        let length = space(&from, from_offset, cut.0);
        let room = space(&to, to_offset, cut.1);
        let bytes = fill(&a, &from, from_offset, length);
        let mut receive = b.receive_context(0).notify().pages(&to, to_offset, room);
        let mut send = a.send_context(0, &b).notify().pages(&from, from_offset, length);
        if list_to || to.len() > CONTEXT_PAGES {
            receive = receive.list(3);
        }
        if list_from || from.len() > CONTEXT_PAGES {
            send = send.list(15);
        }
        if early {
            send.run();
            receive.run();
        } else {
            receive.issue();
            send.run();
        }
        let fits = length.min(room);
        let end = b.receive_doorbell(0);
        prop_assert_eq!(state(&end), DoorbellState::Done);
        prop_assert_eq!(status(&end), if fits < length { Status::Truncated } else { Status::Ok });
        prop_assert_eq!(gather(&b, &to, to_offset, fits), &bytes[..fits as usize]);
        net.assert_unlocked();
    }
}
