//! Absent pages (N13 to N15): data goes through bounce memory and arrives as if the
//! page had been there; what waits for a page delays nobody else; everything that
//! ends while it waits gives back what it holds.

mod common;

use common::{pattern, process, ALL, SEGMENT};
use qnic_abi::control::Opcode as Request;
use qnic_abi::rdma::Opcode;
use qnic_abi::{Status, PAGE_SIZE};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, SimProcess, SimSegment};
use qnic_nic::Limits;

const PAGE: u64 = PAGE_SIZE as u64;

type Party = (SimProcess, SimSegment);

/// A page-aligned part of a segment, which [`process`] lets start off a border.
fn aligned(segment: &SimSegment) -> u64 {
    segment.address.next_multiple_of(PAGE) - segment.address
}

/// A sender on node 0, a receiver on node 1 whose segment is resident but for
/// `absent` pages (counted from [`aligned`]); faults wait for the test.
fn pair(limits: &Limits, absent: &[u64]) -> (Cluster, Party, Party) {
    let mut cluster = Cluster::new(3, 512, 8, limits);
    let mut a = process(&mut cluster, 0, 1);
    let b = process(&mut cluster, 1, 2);
    fill(&mut cluster, &mut a, &b.1);
    cluster.answer_faults = false;
    for page in absent {
        evict(&mut cluster, &b, *page);
    }
    (cluster, a, b)
}

/// Brings in all pages of both segments.
fn fill(cluster: &mut Cluster, (a, sa): &mut Party, sb: &SimSegment) {
    for opcode in [Opcode::Write, Opcode::Read] {
        let command = Command::transfer(opcode, sa.at(0), sb.to(0), SEGMENT);
        a.issue(cluster, &command, &[]).unwrap();
        cluster.run();
    }
}

fn evict(cluster: &mut Cluster, (b, sb): &Party, page: u64) {
    let address = sb.address + aligned(sb) + page * PAGE;
    cluster.evict(b.node, b.vni, address);
}

fn write(from: &SimSegment, to: &SimSegment, page: u64, pages: u64) -> Command {
    let (from, to) = ((from, page * PAGE), (to, aligned(to) + page * PAGE));
    Command::write(from.0.at(from.1), to.0.to(to.1), pages * PAGE)
}

fn notifying(mut command: Command, notification: u32) -> Command {
    command.notification = Some(notification);
    command
}

fn holds_nothing(cluster: &Cluster, node: usize) {
    let statistics = cluster.statistics(node);
    assert_eq!(statistics.frames_held.get(), 0);
    assert_eq!(statistics.bounce_bytes.get(), 0);
}

#[test]
fn data_for_an_absent_page_arrives_as_if_it_had_been_there() {
    let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[1]);
    let before = cluster.statistics(1);
    let bytes = pattern(4, 3 * PAGE_SIZE);
    a.write(&mut cluster, sa.address, &bytes);
    let command = notifying(write(&sa, &b.1, 0, 3), 5);
    a.issue(&mut cluster, &command, &[]).unwrap();
    cluster.run();
    // Sent once, and on its way into the page; the other pages have theirs.
    let (start, done) = (b.1.address + aligned(&b.1), a.done(&cluster).0);
    assert!(b.0.read(&cluster, start, PAGE_SIZE) == bytes[..PAGE_SIZE]);
    let last = b.0.read(&cluster, start + 2 * PAGE, PAGE_SIZE);
    assert!(last == bytes[2 * PAGE_SIZE..]);
    assert_eq!(b.0.signals(&cluster, 5), 0);
    let held = cluster.statistics(1);
    // Of a run of pieces, one for each page, the one that has to wait.
    assert_eq!(held.frames_held.get(), 1);
    assert_eq!(held.bounce_bytes.get(), PAGE);
    while !cluster.nodes[1].faults.is_empty() {
        cluster.answer_fault(1, 0, 1);
        cluster.run();
    }
    cluster.settle();
    assert_eq!(a.done(&cluster).0, done + 1);
    assert_eq!(a.errors(&cluster), []);
    assert_eq!(b.0.signals(&cluster, 5), 1);
    // Dirty as if direct: an eviction keeps the bytes.
    evict(&mut cluster, &b, 1);
    assert!(b.0.read(&cluster, start, bytes.len()) == bytes);
    let after = cluster.statistics(1);
    holds_nothing(&cluster, 1);
    assert!(after.bounces.get() > before.bounces.get());
    assert_eq!(after.bytes_bounced.get() - before.bytes_bounced.get(), PAGE);
    assert!(after.destination_misses.get() > before.destination_misses.get());
    assert!(after.restarts.get() > before.restarts.get());
}

#[test]
fn a_slow_page_delays_only_what_goes_to_its_node() {
    let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[0]);
    let (other, so) = process(&mut cluster, 1, 3);
    let (far, sf) = process(&mut cluster, 2, 4);
    cluster.answer_faults = true;
    let (mut c, sc) = process(&mut cluster, 0, 5);
    for segment in [&so, &sf] {
        let command = Command::write(sc.at(0), segment.to(0), SEGMENT);
        c.issue(&mut cluster, &command, &[]).unwrap();
        cluster.run();
    }
    cluster.answer_faults = false;
    let slow = write(&sa, &b.1, 0, 1);
    a.issue(&mut cluster, &slow, &[]).unwrap();
    cluster.run();
    assert!(cluster.statistics(1).frames_held.get() > 0);
    // Another process of that node: its data is there at once.
    let bytes = pattern(8, 9000);
    c.write(&mut cluster, sc.address, &bytes);
    let near = Command::write(sc.at(0), so.to(0), 9000);
    c.issue(&mut cluster, &near, &[]).unwrap();
    cluster.run();
    assert!(other.read(&cluster, so.address, 9000) == bytes);
    // Another node: the write completes, its notification counts.
    let far_write = Command::write(sa.at(0), sf.to(0), 9000);
    a.issue(&mut cluster, &notifying(far_write, 9), &[])
        .unwrap();
    cluster.run();
    assert_eq!(far.signals(&cluster, 9), 1);
    // And what comes from that node.
    let back = Command::read(sc.at(0), so.to(0), 9000);
    let reads = c.done(&cluster).1;
    c.issue(&mut cluster, &back, &[]).unwrap();
    cluster.settle();
    assert_eq!(c.done(&cluster).1, reads + 1);
    assert!(cluster.statistics(1).frames_held.get() > 0, "still waits");
}

#[test]
fn a_notification_waits_for_the_pages_of_earlier_writes() {
    let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[0, 7]);
    a.issue(&mut cluster, &write(&sa, &b.1, 0, 1), &[]).unwrap();
    let first = notifying(write(&sa, &b.1, 3, 1), 1);
    a.issue(&mut cluster, &first, &[]).unwrap();
    let second = notifying(write(&sa, &b.1, 7, 1), 2);
    a.issue(&mut cluster, &second, &[]).unwrap();
    cluster.run();
    assert_eq!(cluster.nodes[1].faults.len(), 2);
    let signals = |cluster: &Cluster| [1, 2].map(|id| b.0.signals(cluster, id));
    assert_eq!(signals(&cluster), [0, 0]);
    // The later page first: nothing before it is complete.
    cluster.answer_fault(1, 1, 1);
    cluster.run();
    assert_eq!(signals(&cluster), [0, 0]);
    cluster.answer_fault(1, 0, 1);
    cluster.run();
    assert_eq!(signals(&cluster), [1, 1]);
    cluster.settle();
    holds_nothing(&cluster, 1);
    assert_eq!(a.errors(&cluster), []);
}

#[test]
fn a_page_that_cannot_be_brought_in_is_a_refusal_with_its_reason() {
    let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[1]);
    let page = b.1.address + aligned(&b.1) + PAGE;
    cluster.nodes[1].driver.set_available(b.0.vni, page, false);
    a.issue(&mut cluster, &write(&sa, &b.1, 0, 3), &[]).unwrap();
    let number = a.queue.tail() - 1;
    cluster.run();
    cluster.answer_fault(1, 0, 1);
    cluster.settle();
    let errors = a.errors(&cluster);
    assert_eq!(errors, [(number, Status::PageUnavailable)]);
    holds_nothing(&cluster, 1);
    // Neither the window nor the page keeps a trace of it.
    cluster.nodes[1].driver.set_available(b.0.vni, page, true);
    cluster.answer_faults = true;
    let done = a.done(&cluster).0;
    a.issue(&mut cluster, &write(&sa, &b.1, 0, 3), &[]).unwrap();
    cluster.settle();
    assert_eq!(a.done(&cluster).0, done + 1);
    assert_eq!(a.errors(&cluster).len(), 1);
}

/// The refusal is known to the sender long before the last page, with the
/// notification, is there.
#[test]
fn a_write_that_was_refused_does_not_notify_later() {
    for first in [0, 1] {
        let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[0, 1]);
        let page = b.1.address + aligned(&b.1);
        cluster.nodes[1].driver.set_available(b.0.vni, page, false);
        let both = notifying(write(&sa, &b.1, 0, 2), 4);
        a.issue(&mut cluster, &both, &[]).unwrap();
        let number = a.queue.tail() - 1;
        cluster.run();
        while !cluster.nodes[1].faults.is_empty() {
            let place = first.min(cluster.nodes[1].faults.len() - 1);
            cluster.answer_fault(1, place, 1);
            cluster.settle();
        }
        let errors = a.errors(&cluster);
        assert_eq!(errors, [(number, Status::PageUnavailable)]);
        assert_eq!(b.0.signals(&cluster, 4), 0);
        holds_nothing(&cluster, 1);
    }
}

#[test]
fn a_page_that_goes_again_before_the_copy_is_asked_for_again() {
    let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[0]);
    let bytes = pattern(6, PAGE_SIZE);
    a.write(&mut cluster, sa.address, &bytes);
    a.issue(&mut cluster, &write(&sa, &b.1, 0, 1), &[]).unwrap();
    cluster.run();
    for _ in 0..5 {
        let fault = cluster.nodes[1].faults.remove(0);
        assert!(cluster.nodes[1].faults.is_empty(), "one fault for the page");
        // The driver says that it was there; by now it is not.
        let body = qnic_abi::control::FaultDone {
            address: fault.address,
            pages: fault.pages,
            status: Status::Ok.code().into(),
        };
        cluster.control(1, Request::FaultDone, b.0.vni, &body);
        cluster.run();
    }
    assert!(cluster.statistics(1).frames_held.get() > 0);
    cluster.answer_fault(1, 0, 64);
    cluster.settle();
    holds_nothing(&cluster, 1);
    let at = b.1.address + aligned(&b.1);
    assert!(b.0.read(&cluster, at, PAGE_SIZE) == bytes);
    assert_eq!(a.errors(&cluster), []);
}

#[test]
fn the_window_bounds_bounce_memory_and_delays_the_rest() {
    let limits = Limits {
        window: 16,
        fragments_per_write: 64,
        ..Limits::default()
    };
    let pages: Vec<u64> = (0..40).collect();
    let (mut cluster, (mut a, sa), b) = pair(&limits, &pages);
    let bytes = pattern(7, 40 * PAGE_SIZE);
    a.write(&mut cluster, sa.address, &bytes);
    a.issue(&mut cluster, &write(&sa, &b.1, 0, 40), &[])
        .unwrap();
    cluster.run();
    assert_eq!(cluster.statistics(1).frames_held.get(), 16);
    while !cluster.nodes[1].faults.is_empty() {
        cluster.answer_fault(1, 0, 3);
        cluster.run();
        assert!(cluster.statistics(1).frames_held.get() <= 16);
    }
    cluster.settle();
    let at = b.1.address + aligned(&b.1);
    assert!(b.0.read(&cluster, at, bytes.len()) == bytes);
    assert_eq!(a.errors(&cluster), []);
    holds_nothing(&cluster, 1);
    let peak = cluster.statistics(1).bounce_bytes_peak.get();
    assert!(peak > 0 && peak <= 16 * PAGE, "{peak}");
}

#[test]
fn small_frames_take_small_memory() {
    let (mut cluster, (mut a, _), b) = pair(&Limits::default(), &[0]);
    let offset = aligned(&b.1);
    for number in 0..10u8 {
        let to = (&b.1, offset + u64::from(number) * 100);
        let command = Command::inline_write(to.0.to(to.1), 10);
        a.issue(&mut cluster, &command, &[number; 10]).unwrap();
    }
    cluster.run();
    assert_eq!(cluster.statistics(1).frames_held.get(), 10);
    assert_eq!(cluster.statistics(1).bounce_bytes.get(), 100);
    cluster.answer_fault(1, 0, 1);
    cluster.settle();
    for number in 0..10u8 {
        let at = b.1.address + offset + u64::from(number) * 100;
        assert_eq!(b.0.read(&cluster, at, 10), [number; 10]);
    }
    holds_nothing(&cluster, 1);
}

/// Reads whose pieces are on their way while the place they go to is taken away.
#[test]
fn a_reply_whose_place_is_gone_waits_at_the_reader() {
    let (mut cluster, a, (mut b, sb)) = pair(&Limits::default(), &[]);
    let (mut a, sa) = a;
    let bytes = pattern(2, PAGE_SIZE);
    let from = aligned(&sb);
    b.write(&mut cluster, sb.address + from, &bytes);
    let to = aligned(&sa);
    let read = Command::read(sa.at(to), sb.to(from), PAGE);
    let reads = a.done(&cluster).1;
    a.issue(&mut cluster, &read, &[]).unwrap();
    cluster.poll(0);
    cluster.evict(0, a.vni, sa.address + to);
    cluster.run();
    assert_eq!(cluster.statistics(0).frames_held.get(), 1);
    assert_eq!(a.done(&cluster).1, reads);
    // Others of that process and node go on.
    let other = Command::read(sb.at(0), sb.to(8 * PAGE), PAGE);
    b.issue(&mut cluster, &other, &[]).unwrap();
    cluster.run();
    assert_eq!(b.done(&cluster).1, 1);
    cluster.answer_fault(0, 0, 1);
    cluster.settle();
    assert_eq!(a.done(&cluster).1, reads + 1);
    assert!(a.read(&cluster, sa.address + to, PAGE_SIZE) == bytes);
    assert_eq!(a.errors(&cluster), []);
    holds_nothing(&cluster, 0);
}

#[test]
fn a_read_of_an_absent_page_waits_at_its_owner_and_others_go_on() {
    let (mut cluster, (mut a, sa), b) = pair(&Limits::default(), &[2]);
    let at = aligned(&b.1);
    let slow = Command::read(sa.at(0), b.1.to(at + 2 * PAGE), 100);
    let quick = Command::read(sa.at(PAGE), b.1.to(at), 100);
    let before = (a.done(&cluster).1, cluster.statistics(1).restarts.get());
    a.issue(&mut cluster, &slow, &[]).unwrap();
    a.issue(&mut cluster, &quick, &[]).unwrap();
    cluster.run();
    cluster.settle();
    assert_eq!(cluster.statistics(0).operations.get(), 1, "one has ended");
    assert_eq!(cluster.nodes[1].faults.len(), 1);
    cluster.answer_fault(1, 0, 1);
    cluster.settle();
    assert_eq!(a.done(&cluster).1, before.0 + 2);
    assert_eq!(a.errors(&cluster), []);
    assert_eq!(cluster.statistics(1).restarts.get(), before.1 + 1);
    // And one that never comes back.
    evict(&mut cluster, &b, 2);
    let page = b.1.address + at + 2 * PAGE;
    cluster.nodes[1].driver.set_available(b.0.vni, page, false);
    a.issue(&mut cluster, &slow, &[]).unwrap();
    let number = a.queue.tail() - 1;
    cluster.run();
    cluster.answer_fault(1, 0, 1);
    cluster.settle();
    assert_eq!(a.errors(&cluster), [(number, Status::PageUnavailable)]);
}

/// What can end while a frame waits, and what its issuer is told.
#[test]
fn whatever_ends_gives_back_what_it_holds() {
    type End = fn(&mut Cluster, Party, Party) -> Option<SimProcess>;
    let ends: [(End, Option<Status>); 4] = [
        (
            |cluster, (a, _), (b, sb)| {
                assert_eq!(b.unexport(cluster, sb.id), Status::Ok);
                Some(a)
            },
            Some(Status::NoSuchSegment),
        ),
        (
            |cluster, (a, _), (b, _)| {
                b.end(cluster);
                Some(a)
            },
            Some(Status::PeerGone),
        ),
        (
            |cluster, (a, _), _| {
                cluster.reset(1);
                Some(a)
            },
            Some(Status::PeerGone),
        ),
        (
            |cluster, _, _| {
                cluster.reset(0);
                None
            },
            None,
        ),
    ];
    for (end, wanted) in ends {
        let (mut cluster, mut a, b) = pair(&Limits::default(), &[0, 1]);
        let command = notifying(write(&a.1, &b.1, 0, 2), 3);
        a.0.issue(&mut cluster, &command, &[]).unwrap();
        let number = a.0.queue.tail() - 1;
        cluster.run();
        assert!(cluster.statistics(1).bounce_bytes.get() > 0);
        let (receiver, at) = (b.0.clone(), b.1.address);
        let before = receiver.read(&cluster, at, SEGMENT as usize);
        let issuer = end(&mut cluster, a, b);
        cluster.run();
        holds_nothing(&cluster, 1);
        if let (Some(issuer), Some(wanted)) = (issuer, wanted) {
            assert_eq!(issuer.errors(&cluster), [(number, wanted)]);
            assert_eq!(cluster.statistics(0).operations.get(), 0);
        }
        if wanted == Some(Status::NoSuchSegment) {
            let after = receiver.read(&cluster, at, SEGMENT as usize);
            assert!(before == after, "memory was touched");
            assert_eq!(receiver.signals(&cluster, 3), 0);
        }
    }
}

#[test]
fn a_reset_queue_gives_back_the_replies_that_wait_for_it() {
    let (mut cluster, (mut a, sa), (_b, sb)) = pair(&Limits::default(), &[]);
    let to = aligned(&sa);
    let read = Command::read(sa.at(to), sb.to(0), PAGE);
    a.issue(&mut cluster, &read, &[]).unwrap();
    cluster.poll(0);
    cluster.evict(0, a.vni, sa.address + to);
    cluster.run();
    assert!(cluster.statistics(0).frames_held.get() > 0);
    let before = a.read(&cluster, sa.address + to, PAGE_SIZE);
    let done = cluster.control(0, Request::ResetQueue, a.vni, &[0u8; 0]);
    assert_eq!(done, Status::Ok);
    holds_nothing(&cluster, 0);
    cluster.run();
    while !cluster.nodes[0].faults.is_empty() {
        cluster.answer_fault(0, 0, 64);
    }
    cluster.settle();
    assert!(a.read(&cluster, sa.address + to, PAGE_SIZE) == before);
}

#[test]
fn a_segment_that_is_exported_anew_is_not_reached_by_an_old_key() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair(&Limits::default(), &[]);
    let page = sb.address + aligned(&sb);
    cluster.evict(1, b.vni, page);
    a.issue(&mut cluster, &write(&sa, &sb, 0, 1), &[]).unwrap();
    let number = a.queue.tail() - 1;
    cluster.run();
    assert_eq!(b.unexport(&mut cluster, sb.id), Status::Ok);
    let range = (sb.address, SEGMENT);
    let fresh = b.export(&mut cluster, sb.id.0, 99, range, ALL).unwrap();
    assert_ne!(fresh.key, sb.key);
    cluster.answer_faults = true;
    cluster.settle();
    assert_eq!(a.errors(&cluster), [(number, Status::NoSuchSegment)]);
    a.issue(&mut cluster, &write(&sa, &sb, 0, 1), &[]).unwrap();
    cluster.settle();
    let stale = (number + 1, Status::BadKey);
    assert_eq!(a.errors(&cluster).last(), Some(&stale));
    assert!(cluster.statistics(1).errors_key.get() > 0);
    holds_nothing(&cluster, 1);
}

/// Found by the simulator: the NIC went round in circles.
#[test]
fn a_name_is_revoked_while_data_waits_under_another() {
    let (mut cluster, (mut a, sa), (b, sb)) = pair(&Limits::default(), &[1]);
    let range = (sb.address, sb.length);
    let other = b.export(&mut cluster, 9, 999, range, qnic_abi::Access::READ);
    let other = other.unwrap();
    let page_key = 0xaa00 + u64::from(sb.id.0);
    let driver = &mut cluster.nodes[1].driver;
    driver.cover(b.vni, sb.address, sb.length, page_key);
    a.issue(&mut cluster, &write(&sa, &sb, 1, 1), &[]).unwrap();
    cluster.run();
    assert_eq!(cluster.statistics(1).frames_held.get(), 1);
    assert_eq!(b.unexport(&mut cluster, other.id), Status::Ok);
    assert_eq!(cluster.statistics(1).frames_held.get(), 1);
    cluster.answer_faults = true;
    cluster.serve(1);
    cluster.settle();
    assert_eq!(a.done(&cluster), (2, 1));
    assert_eq!(a.errors(&cluster), []);
    holds_nothing(&cluster, 1);
}
