//! Sends, receives and their completions.

use std::collections::BTreeSet;

use super::harness::{at, pair, pair_with, Side, BOTH, TAGGED};
use crate::endpoint::Ep;
use crate::info::offer::INJECT_MAX;
use crate::pointers::test::{bytes, context, input, room};
use crate::pointers::{Context, In, Out};
use crate::sys::{self, Iov, MsgTagged, ADDR_UNSPEC};

/// Bytes that tell their place and their message.
pub(super) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 31 + at / 251 + seed) as u8)
        .collect()
}

pub(super) fn exchange(a: &Side, b: &Side, tag: Option<u64>, length: usize) {
    let sent = pattern(length, length);
    let mut received = vec![0; length];
    b.receive(ADDR_UNSPEC, tag.map(|tag| (tag, 0)), &mut received, 2);
    a.send(0, tag, &sent, 1);
    let (entry, source) = b.next().unwrap();
    assert_eq!((entry.context, entry.len, source), (context(2), length, 0));
    assert_eq!(entry.tag, tag.unwrap_or(0));
    let space = if tag.is_some() { sys::TAGGED } else { sys::MSG };
    assert_eq!(entry.flags, sys::RECV | space);
    let (entry, _) = a.next().unwrap();
    assert_eq!(
        (entry.context, entry.flags),
        (context(1), sys::SEND | space)
    );
    assert!(received == sent, "{length} bytes");
}

/// Short ones in the command, longer ones through bounce memory, which grows.
#[test]
fn messages_of_all_lengths_arrive_as_they_were_sent() {
    let (_cluster, a, b) = pair();
    for length in [
        0,
        1,
        95,
        96,
        97,
        4095,
        4096,
        4097,
        100_000,
        5 << 20,
        9 << 20,
    ] {
        exchange(&a, &b, Some(7), length);
        exchange(&b, &a, None, length);
    }
    a.close();
    b.close();
}

#[test]
fn a_receive_takes_what_its_tag_mask_and_sender_say() {
    let (_cluster, a, b) = pair();
    let own = b.insert(&b.name);
    let mut rooms = [[0u8; 4]; 4];
    let [first, second, third, fourth] = &mut rooms;
    b.receive(own, Some((0, u64::MAX)), first, 1);
    b.receive(ADDR_UNSPEC, Some((0xf0, 0x0f)), second, 2);
    b.receive(0, Some((5 << 60, 0)), third, 3);
    b.receive(ADDR_UNSPEC, None, fourth, 4);
    for (tag, text) in [
        (Some(5 << 60), b"high"),
        (Some(0xfe), b"mask"),
        (None, b"free"),
    ] {
        a.send(0, tag, text, 0);
    }
    b.send(own, Some(77), b"self", 0);
    let mut taken = Vec::new();
    while taken.len() < 4 {
        let (entry, source) = b.next().unwrap();
        if entry.flags & sys::RECV != 0 {
            taken.push((entry.context, entry.tag, source));
        }
    }
    taken.sort_by_key(|(_, tag, _)| *tag);
    let expected = [(4, 0, 0), (1, 77, own), (2, 0xfe, 0), (3, 5 << 60, 0)];
    assert_eq!(
        taken,
        expected.map(|(number, tag, source)| (context(number), tag, source))
    );
    assert_eq!(rooms, [*b"self", *b"mask", *b"high", *b"free"]);
}

#[test]
fn a_message_that_does_not_fit_is_truncated_and_says_by_how_much() {
    let (_cluster, a, b) = pair();
    for length in [10, 50_000] {
        let sent = pattern(length, 3);
        let mut received = vec![0; 4];
        b.receive(ADDR_UNSPEC, Some((1, 0)), &mut received, 9);
        a.send(0, Some(1), &sent, 0);
        let error = b.next().unwrap_err();
        assert_eq!((error.err, error.olen), (sys::FI_ETRUNC, length - 4));
        assert_eq!((error.entry.context, error.entry.len), (context(9), 4));
        assert_eq!(received, sent[..4]);
    }
}

#[test]
fn a_receive_that_is_cancelled_ends_so() {
    let (_cluster, a, b) = pair();
    let cancel = |number| (at(b.ep).ops.cancel)(super::harness::head(b.ep), context(number));
    let (mut one, mut two) = ([0; 8], [0; 8]);
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut one, 1);
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut two, 2);
    assert_eq!(cancel(3), -(libc::ENOENT as isize));
    assert_eq!(cancel(1), 0);
    let error = b.next().unwrap_err();
    assert_eq!(
        (error.err, error.entry.context),
        (libc::ECANCELED, context(1))
    );
    // The other one is still there.
    a.send(0, Some(1), b"for two!", 0);
    assert_eq!(b.next().unwrap().0.context, context(2));
    assert_eq!((&one, &two), (&[0; 8], b"for two!"));
}

/// Programs may give several operations one context: each cancel takes back one receive that is under way.
#[test]
fn each_cancel_takes_back_one_receive_of_a_context() {
    let (_cluster, a, b) = pair();
    let cancel = || (at(b.ep).ops.cancel)(super::harness::head(b.ep), context(1));
    let cancelled = (libc::ECANCELED, context(1));
    let mut rooms = [[0; 8]; 4];
    let [first, second, third, own] = &mut rooms;
    let own_number = b.insert(&b.name);
    for room in [first, second, third] {
        b.receive(ADDR_UNSPEC, Some((1, 0)), room, 1);
    }
    // The first one has ended at the NIC when its Send has; the program of the receive was not told.
    a.send(0, Some(1), b"for one!", 2);
    a.next().unwrap();
    assert_eq!(
        [cancel(), cancel(), cancel()],
        [0, 0, -(libc::ENOENT as isize)]
    );
    let mut ends = [(); 3].map(|()| match b.next() {
        Ok((entry, _)) => (0, entry.context),
        Err(error) => (error.err, error.entry.context),
    });
    ends.sort_by_key(|(error, _)| *error);
    assert_eq!(ends, [(0, context(1)), cancelled, cancelled]);
    // A Send is not taken back, and hides no receive of its context.
    b.receive(ADDR_UNSPEC, Some((1, 0)), own, 1);
    b.send(own_number, Some(9), b"to self", 1);
    assert_eq!(cancel(), 0);
    let failed = [(); 2].map(|()| b.next().err()).into_iter().flatten();
    let failed: Vec<_> = failed.map(|it| (it.err, it.entry.context)).collect();
    assert_eq!(failed, [cancelled]);
    assert_eq!(&rooms[0], b"for one!");
}

#[test]
fn the_end_of_an_inject_is_not_told() {
    let (_cluster, a, b) = pair();
    let (msg, tagged) = (at(a.ep).msg, at(a.ep).tagged);
    for (length, data) in [(3, 0x1234), (INJECT_MAX, 0)] {
        let (mut sent, mut received) = (pattern(length, 0), vec![0; length]);
        b.receive(ADDR_UNSPEC, Some((4, 0)), &mut received, 1);
        assert_eq!(
            (tagged.injectdata)(a.ep, bytes(&sent), length, data, 0, 4),
            0
        );
        // It was copied.
        let expected = sent.clone();
        sent.fill(0xff);
        let (entry, _) = b.next().unwrap();
        assert_eq!(
            (entry.data, entry.flags & sys::REMOTE_CQ_DATA),
            (data, sys::REMOTE_CQ_DATA)
        );
        assert_eq!(received, expected);
    }
    let long = vec![0; INJECT_MAX + 1];
    assert_eq!(
        (msg.inject)(a.ep, bytes(&long), long.len(), 0),
        -(libc::EMSGSIZE as isize)
    );
    assert!(a.poll().is_none());
}

#[test]
fn with_selective_completion_only_what_asks_is_told() {
    let (_cluster, a, b) = pair_with(TAGGED, BOTH | sys::SELECTIVE_COMPLETION);
    let send = |flags, number| {
        let text = *b"piecewise";
        let pieces = [(0, 5), (5, 0), (5, 4)].map(|(at, length)| Iov {
            base: bytes(&text[at..]).as_out(),
            length,
        });
        let message = MsgTagged {
            iov: input(&pieces[0]),
            desc: In::NULL,
            iov_count: 3,
            addr: 0,
            tag: 1,
            ignore: 0,
            context: context(number),
            data: 99,
        };
        assert_eq!((at(a.ep).tagged.sendmsg)(a.ep, input(&message), flags), 0);
    };
    let receive = |into: &mut [u8; 9], flags, number| {
        let (head, tail) = into.split_at_mut(2);
        let (first, second) = (head.len(), tail.len());
        let pieces =
            [(room(head), first), (room(tail), second)].map(|(base, length)| Iov { base, length });
        let message = MsgTagged {
            iov: input(&pieces[0]),
            desc: In::NULL,
            iov_count: 2,
            addr: ADDR_UNSPEC,
            tag: 1,
            ignore: 0,
            context: context(number),
            data: 0,
        };
        assert_eq!((at(b.ep).tagged.recvmsg)(b.ep, input(&message), flags), 0);
    };
    let mut rooms = [[0; 9]; 2];
    receive(&mut rooms[0], 0, 1);
    receive(&mut rooms[1], sys::COMPLETION, 2);
    send(0, 3);
    send(sys::COMPLETION | sys::REMOTE_CQ_DATA, 4);
    let (entry, _) = b.next().unwrap();
    assert_eq!((entry.context, entry.data, entry.len), (context(2), 99, 9));
    assert_eq!(a.next().unwrap().0.context, context(4));
    assert_eq!(rooms, [*b"piecewise"; 2]);
    assert!(a.poll().is_none() && b.poll().is_none());
}

/// The queue is opened with 100 entries, and hardly read. So many Sends wait in the library until the helper posts
/// them, as the program does not call.
#[test]
fn a_queue_is_not_overrun() {
    const MESSAGES: usize = 500;
    let (_cluster, a, b) = pair();
    let mut rooms = vec![[0u8; 8]; MESSAGES];
    for (number, room) in rooms.iter_mut().enumerate() {
        b.receive(ADDR_UNSPEC, Some((number as u64, 0)), room, number + 1);
    }
    for number in 0..MESSAGES {
        a.send(0, Some(number as u64), &number.to_le_bytes(), number + 1);
        // The end of some earlier ones stays unread.
        if number % 2 == 0 {
            a.poll();
        }
    }
    // In any order: none is promised.
    let mut tags = BTreeSet::new();
    for _ in 0..MESSAGES {
        let (entry, _) = b.next().unwrap();
        assert_eq!(entry.context, context(entry.tag as usize + 1));
        assert!(tags.insert(entry.tag));
    }
    for (number, room) in rooms.iter().enumerate() {
        assert_eq!(*room, number.to_le_bytes());
    }
}

/// However many receives are under way, only the one that has ended is looked at.
#[test]
fn a_look_costs_what_has_ended_and_not_what_is_under_way() {
    const ROUNDS: u64 = 10;
    let looks = |posted: usize| {
        let (_cluster, a, b) = pair();
        let mut rooms = vec![[0u8; 8]; posted];
        for (number, room) in rooms.iter_mut().enumerate() {
            let tag = (1000 + number as u64, 0);
            b.receive(ADDR_UNSPEC, Some(tag), room, number + 1);
        }
        for _ in 0..ROUNDS {
            exchange(&a, &b, Some(7), 8);
        }
        let looks = crate::object::state::<Ep, _>(b.ep).unwrap().looks();
        b.close();
        a.close();
        looks
    };
    assert_eq!([1, 100, 10_000].map(looks), [ROUNDS; 3]);
}

#[test]
fn entries_are_as_long_as_their_format() {
    for (format, length) in [(1, 8), (2, 24), (3, 40), (4, 48)] {
        let attributes = sys::CqAttr { format, ..TAGGED };
        let (_cluster, a, b) = pair_with(attributes, BOTH);
        let mut received = [[0; 2]; 2];
        let [one, two] = &mut received;
        b.receive(ADDR_UNSPEC, Some((3, 0)), one, 0x11);
        b.receive(ADDR_UNSPEC, Some((3, 0)), two, 0x22);
        a.send(0, Some(3), b"ab", 1);
        a.send(0, Some(3), b"cd", 1);
        let mut entries = vec![0u8; 3 * length];
        let (mut read, read_some) = (0, at(b.cq).ops.read);
        while read < 2 {
            let into = room(&mut entries[read * length..]);
            read += usize::try_from(read_some(b.cq, into, 2 - read)).unwrap_or(0);
        }
        assert_eq!(entries[..8], 0x11u64.to_ne_bytes());
        assert_eq!(entries[length..length + 8], 0x22u64.to_ne_bytes());
        assert!(entries[2 * length..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let (_cluster, a, b) = pair();
    let (msg, none) = (at(a.ep).msg, Context::NULL);
    let refused = |result: isize, error: i32| assert_eq!(result, -(error as isize));
    // No address has this number.
    refused(
        (msg.send)(a.ep, bytes(b"x"), 1, none, 5, none),
        libc::EINVAL,
    );
    // Bytes at null.
    refused(
        (msg.send)(a.ep, bytes(b"x"), usize::MAX, none, 0, none),
        libc::EMSGSIZE,
    );
    refused(
        (msg.sendv)(a.ep, In::NULL, In::NULL, 1, 0, none),
        libc::EINVAL,
    );
    let piece = Iov {
        base: Out::NULL,
        length: 1,
    };
    refused(
        (msg.sendv)(a.ep, input(&piece), In::NULL, 1, 0, none),
        libc::EINVAL,
    );
    refused((msg.sendmsg)(a.ep, In::NULL, 0), libc::EINVAL);
    refused(
        (msg.recvv)(a.ep, In::NULL, In::NULL, 9, 0, none),
        libc::EINVAL,
    );
    // Nothing of that went on; no bytes need no memory.
    exchange(&a, &b, None, 1);
    b.receive(ADDR_UNSPEC, None, &mut [], 3);
    assert_eq!((msg.send)(a.ep, In::NULL, 0, none, 0, none), 0);
    assert_eq!(b.next().unwrap().0.len, 0);
}

/// What waits for a process that ends fails, and is told; what does not goes on.
#[test]
fn a_receive_from_a_process_that_ends_is_told() {
    let (_cluster, a, b) = pair();
    exchange(&a, &b, Some(1), 8);
    let own = b.insert(&b.name);
    let (mut gone, mut kept) = ([0; 4], [0; 4]);
    b.receive(0, Some((2, 0)), &mut gone, 1);
    b.receive(own, Some((3, 0)), &mut kept, 2);
    a.close();
    let failed = b.next().unwrap_err();
    let lost = (context(1), libc::ECONNABORTED);
    assert_eq!((failed.entry.context, failed.err), lost);
    b.send(own, Some(3), b"kept", 0);
    let (entry, _) = b.next().unwrap();
    assert_eq!((entry.context, &kept), (context(2), b"kept"));
    b.close();
}
