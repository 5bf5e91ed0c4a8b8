//! Absent pages (N13 to N15): data goes through bounce memory and arrives as if the
//! page had been there; what waits for a page delays no other process; all that ends
//! while it waits gives back what it holds.

use qnic_abi::control::{FaultDone, Opcode as Request};
use qnic_abi::{Status, PAGE_SIZE};
use qnic_nic::testing::{page, Pair, Party, ALL, PAGE, SEGMENT};
use qnic_nic::Limits;

/// A pair that has moved a segment both ways, then lost these whole pages of `b`.
/// Faults wait for the test.
fn absent(pages: &[u64]) -> Pair {
    Pair::absent(&Limits::default(), pages)
}

#[test]
fn data_for_an_absent_page_arrives_as_if_it_had_been_there() {
    let Pair { net, a, b } = absent(&[1]);
    let before = net.counters(1);
    let done = a.done().0;
    let bytes = a.fill(0, 3 * PAGE, 4);
    a.write(&b).pages(0..3).notify(5).run();
    // Sent once, and on its way into the page; the other pages have theirs.
    assert!(b.holds(page(0), &bytes[..PAGE_SIZE]));
    assert!(b.holds(page(2), &bytes[2 * PAGE_SIZE..]));
    assert_eq!(b.signals(5), 0);
    // Of a span of pages, with a fragment for each, the one that has to wait.
    let held = net.counters(1);
    assert_eq!(held.frames_held, 1);
    assert_eq!(held.bounce_bytes, PAGE);
    assert_eq!(a.done().0, done);
    net.answer_all(1, 1);
    net.settle();
    assert_eq!(a.done().0, done + 1);
    assert_eq!(a.errors(), []);
    assert_eq!(b.signals(5), 1);
    // Dirty as if direct: an eviction keeps the bytes.
    b.evict(page(1));
    assert!(b.holds(page(0), &bytes));
    net.assert_holds_nothing(1);
    let after = net.counters(1);
    assert!(after.bounces > before.bounces);
    assert_eq!(after.bytes_bounced - before.bytes_bounced, PAGE);
    assert!(after.destination_misses > before.destination_misses);
    assert!(after.restarts > before.restarts);
}

#[test]
fn a_slow_page_delays_only_what_goes_to_its_node() {
    let Pair { net, a, b } = absent(&[0]);
    let (other, far, c) = (net.party(1, 3), net.party(2, 4), net.party(0, 5));
    net.answer_faults(true);
    c.write(&other).run();
    c.write(&far).run();
    net.answer_faults(false);
    a.write(&b).pages(0..1).run();
    assert!(net.counters(1).frames_held > 0);
    // Another process of that node: its data is there at once.
    let bytes = c.fill(0, 9000, 8);
    c.write(&other).bytes(9000).run();
    assert!(other.holds(0, &bytes));
    // Another node: the write completes, its notification counts.
    a.write(&far).bytes(9000).notify(9).run();
    assert_eq!(far.signals(9), 1);
    // And what comes from that node.
    let reads = c.done().1;
    c.read(&other).bytes(9000).issue();
    net.settle();
    assert_eq!(c.done().1, reads + 1);
    assert!(net.counters(1).frames_held > 0, "still waits");
}

#[test]
fn a_notification_waits_for_the_pages_of_earlier_writes() {
    let Pair { net, a, b } = absent(&[0, 7]);
    a.write(&b).pages(0..1).issue();
    a.write(&b).pages(3..4).notify(1).issue();
    a.write(&b).pages(7..8).notify(2).run();
    assert_eq!(net.faults(1), 2);
    let signals = || [1, 2].map(|number| b.signals(number));
    assert_eq!(signals(), [0, 0]);
    // The later page first: nothing before it is complete.
    net.answer(1, 1, 1);
    net.run();
    assert_eq!(signals(), [0, 0]);
    net.answer(1, 0, 1);
    net.run();
    assert_eq!(signals(), [1, 1]);
    net.settle();
    net.assert_holds_nothing(1);
    assert_eq!(a.errors(), []);
}

#[test]
fn a_page_that_cannot_be_brought_in_is_a_refusal_with_its_reason() {
    let Pair { net, a, b } = absent(&[1]);
    b.set_available(page(1), false);
    let number = a.write(&b).pages(0..3).run();
    net.answer(1, 0, 1);
    net.settle();
    assert_eq!(a.errors(), [(number, Status::PageUnavailable)]);
    net.assert_holds_nothing(1);
    // Neither the window nor the page keeps a trace of it.
    b.set_available(page(1), true);
    net.answer_faults(true);
    let done = a.done().0;
    a.write(&b).pages(0..3).issue();
    net.settle();
    assert_eq!(a.done().0, done + 1);
    assert_eq!(a.errors().len(), 1);
}

/// The refusal is known to the sender long before the last page, with the
/// notification, is there.
#[test]
fn a_write_that_was_refused_does_not_notify_later() {
    for first in [0, 1] {
        let Pair { net, a, b } = absent(&[0, 1]);
        b.set_available(page(0), false);
        let number = a.write(&b).pages(0..2).notify(4).run();
        while net.faults(1) > 0 {
            net.answer(1, first.min(net.faults(1) - 1), 1);
            net.settle();
        }
        assert_eq!(a.errors(), [(number, Status::PageUnavailable)]);
        assert_eq!(b.signals(4), 0);
        net.assert_holds_nothing(1);
    }
}

#[test]
fn a_page_that_goes_again_before_the_copy_is_asked_for_again() {
    let Pair { net, a, b } = absent(&[0]);
    let bytes = a.fill(0, PAGE, 6);
    a.write(&b).pages(0..1).run();
    for _ in 0..5 {
        let fault = net.cluster().nodes[1].faults.remove(0);
        assert_eq!(net.faults(1), 0, "one fault for the page");
        // The driver says that it was there; by now it is not.
        let body = FaultDone {
            fault: fault.fault,
            status: Status::Ok.code().into(),
            reserved: Default::default(),
        };
        net.cluster().control(1, Request::FaultDone, b.vni, &body);
        net.run();
    }
    assert!(net.counters(1).frames_held > 0);
    net.answer(1, 0, 64);
    net.settle();
    net.assert_holds_nothing(1);
    assert!(b.holds(page(0), &bytes));
    assert_eq!(a.errors(), []);
}

#[test]
fn the_window_bounds_bounce_memory_and_delays_the_rest() {
    let limits = Limits {
        window: 16,
        fragments_per_write: 64,
        ..Limits::default()
    };
    let pages: Vec<u64> = (0..40).collect();
    let Pair { net, a, b } = Pair::absent(&limits, &pages);
    let bytes = a.fill(0, 40 * PAGE, 7);
    a.write(&b).pages(0..40).run();
    assert_eq!(net.counters(1).frames_held, 16);
    while net.faults(1) > 0 {
        net.answer(1, 0, 3);
        net.run();
        assert!(net.counters(1).frames_held <= 16);
    }
    net.settle();
    assert!(b.holds(page(0), &bytes));
    assert_eq!(a.errors(), []);
    net.assert_holds_nothing(1);
    let peak = net.counters(1).bounce_bytes_peak;
    assert!(peak > 0 && peak <= 16 * PAGE, "{peak}");
}

#[test]
fn small_frames_take_small_memory() {
    let Pair { net, a, b } = absent(&[0]);
    let at = |number| page(0) + u64::from(number) * 100;
    for number in 0..10u8 {
        a.inline_write(&b, &[number; 10]).to(at(number)).issue();
    }
    net.run();
    assert_eq!(net.counters(1).frames_held, 10);
    assert_eq!(net.counters(1).bounce_bytes, 100);
    net.answer(1, 0, 1);
    net.settle();
    for number in 0..10u8 {
        assert!(b.holds(at(number), &[number; 10]));
    }
    net.assert_holds_nothing(1);
}

/// Reads whose fragments are in transit while the page that they go to is taken away.
#[test]
fn a_response_whose_page_is_gone_waits_at_the_requester() {
    let Pair { net, a, b } = absent(&[]);
    let bytes = b.fill(page(0), PAGE, 2);
    let reads = a.done().1;
    a.read(&b).from(page(0)).to(page(0)).bytes(PAGE).issue();
    net.poll(0);
    a.evict(page(0));
    net.run();
    assert_eq!(net.counters(0).frames_held, 1);
    assert_eq!(a.done().1, reads);
    // Others of that process and node go on.
    b.read(&b).from(8 * PAGE).bytes(PAGE).run();
    assert_eq!(b.done().1, 1);
    net.answer(0, 0, 1);
    net.settle();
    assert_eq!(a.done().1, reads + 1);
    assert!(a.holds(page(0), &bytes));
    assert_eq!(a.errors(), []);
    net.assert_holds_nothing(0);
}

#[test]
fn a_read_of_an_absent_page_waits_at_the_responder_and_others_go_on() {
    let Pair { net, a, b } = absent(&[2]);
    let slow = a.read(&b).from(page(2)).bytes(100);
    let before = (a.done().1, net.counters(1).restarts);
    slow.issue();
    a.read(&b).from(page(0)).to(PAGE).bytes(100).run();
    net.settle();
    assert_eq!(net.counters(0).operations, 1, "one has ended");
    assert_eq!(net.faults(1), 1);
    net.answer(1, 0, 1);
    net.settle();
    assert_eq!(a.done().1, before.0 + 2);
    assert_eq!(a.errors(), []);
    assert_eq!(net.counters(1).restarts, before.1 + 1);
    // And one that never comes back.
    b.evict(page(2));
    b.set_available(page(2), false);
    let number = slow.run();
    net.answer(1, 0, 1);
    net.settle();
    assert_eq!(a.errors(), [(number, Status::PageUnavailable)]);
}

/// What can end while a frame waits, and what the issuer is told if it is still there.
#[test]
fn whatever_ends_gives_back_what_it_holds() {
    type End = fn(&Party, &Party);
    let ends: [(End, Option<Status>); 4] = [
        (
            |_, b| assert_eq!(b.unexport(b), Status::Ok),
            Some(Status::NoSuchSegment),
        ),
        (|_, b| b.end(), Some(Status::PeerGone)),
        (|_, b| b.net.cluster().reset(1), Some(Status::PeerGone)),
        (|a, _| a.net.cluster().reset(0), None),
    ];
    for (end, expected) in ends {
        let Pair { net, a, b } = absent(&[0, 1]);
        let number = a.write(&b).pages(0..2).notify(3).run();
        assert!(net.counters(1).bounce_bytes > 0);
        let before = b.memory();
        end(&a, &b);
        net.run();
        net.assert_holds_nothing(1);
        if let Some(status) = expected {
            assert_eq!(a.errors(), [(number, status)]);
            assert_eq!(net.counters(0).operations, 0);
        }
        if expected == Some(Status::NoSuchSegment) {
            assert!(b.memory() == before, "memory was touched");
            assert_eq!(b.signals(3), 0);
        }
    }
}

#[test]
fn a_reset_queue_gives_back_the_responses_that_wait_for_it() {
    let Pair { net, a, b } = absent(&[]);
    a.read(&b).to(page(0)).bytes(PAGE).issue();
    net.poll(0);
    a.evict(page(0));
    net.run();
    assert!(net.counters(0).frames_held > 0);
    let before = a.bytes(page(0), PAGE);
    assert_eq!(a.reset_queue(), Status::Ok);
    net.assert_holds_nothing(0);
    net.run();
    while net.faults(0) > 0 {
        net.answer(0, 0, 64);
    }
    net.settle();
    assert!(a.holds(page(0), &before));
}

#[test]
fn a_segment_that_is_exported_anew_is_not_reached_by_an_old_key() {
    let Pair { net, a, b } = absent(&[0]);
    let number = a.write(&b).pages(0..1).run();
    assert_eq!(b.unexport(&b), Status::Ok);
    let range = (b.segment.address, SEGMENT);
    let fresh = b.export(b.segment.id.0, 99, range, ALL).unwrap();
    assert_ne!(fresh.key, b.segment.key);
    net.answer_faults(true);
    net.settle();
    assert_eq!(a.errors(), [(number, Status::NoSuchSegment)]);
    a.write(&b).pages(0..1).issue();
    net.settle();
    let stale = (number + 1, Status::BadKey);
    assert_eq!(a.errors().last(), Some(&stale));
    assert!(net.counters(1).errors_key > 0);
    net.assert_holds_nothing(1);
}

/// Found by the simulator: the NIC went round in circles.
#[test]
fn a_name_is_revoked_while_data_waits_under_another() {
    let Pair { net, a, b } = absent(&[1]);
    let range = (b.segment.address, SEGMENT);
    let other = b.export(9, 999, range, qnic_abi::Access::READ).unwrap();
    let page_key = 0xaa00 + u64::from(b.segment.id.0);
    net.cluster().nodes[1]
        .driver
        .cover(b.vni, range.0, range.1, page_key);
    a.write(&b).pages(1..2).run();
    assert_eq!(net.counters(1).frames_held, 1);
    assert_eq!(b.unexport(other), Status::Ok);
    assert_eq!(net.counters(1).frames_held, 1);
    net.answer_faults(true);
    net.cluster().serve(1);
    net.settle();
    assert_eq!(a.done(), (2, 1));
    assert_eq!(a.errors(), []);
    net.assert_holds_nothing(1);
}
