//! Messages that go in pieces.

use super::harness::{at, pair, Side};
use super::messages::{exchange, pattern};
use crate::info::offer::{MESSAGE_MAX, WHOLE_MAX};
use crate::pointers::test::{bytes, context, input};
use crate::pointers::{Context, In};
use crate::sys::{self, MsgTagged, ADDR_UNSPEC};

#[test]
fn messages_longer_than_bounce_memory_arrive_as_they_were_sent() {
    let (_cluster, a, b) = pair();
    exchange(&a, &b, Some(7), WHOLE_MAX + 1);
    exchange(&b, &a, None, 90 << 20);
}

#[test]
fn longer_messages_than_the_longest_are_refused() {
    let (_cluster, a, _b) = pair();
    let none = Context::NULL;
    // Nothing looks at the bytes.
    let refused = (at(a.ep).msg.send)(a.ep, bytes(b""), MESSAGE_MAX + 1, none, 0, none);
    assert_eq!(refused, -(libc::EMSGSIZE as isize));
}

/// Its sender has ended before the receive is posted, and only the first piece is there.
#[test]
fn a_long_message_of_a_process_that_has_ended_fails() {
    const LENGTH: usize = 20 << 20;
    let (_cluster, a, b) = pair();
    a.send(0, Some(1), &pattern(LENGTH, 3), 1);
    assert_eq!(peek(&b, sys::PEEK | sys::CLAIM), LENGTH);
    // The first piece is staged: its Send has ended, as all that were posted before.
    let mut word = [0; 4];
    b.receive(ADDR_UNSPEC, Some((2, 0)), &mut word, 9);
    a.send(0, Some(2), b"word", 2);
    a.next().unwrap();
    b.next().unwrap();
    a.close();
    let mut room = vec![0; LENGTH];
    let (base, length) = (crate::pointers::test::room(&mut room), room.len());
    let piece = sys::Iov { base, length };
    let message = MsgTagged {
        iov: input(&piece),
        desc: In::NULL,
        iov_count: 1,
        addr: ADDR_UNSPEC,
        tag: 1,
        ignore: 0,
        context: context(5),
        data: 0,
    };
    let posted = (at(b.ep).tagged.recvmsg)(b.ep, input(&message), sys::CLAIM);
    assert_eq!(posted, 0);
    let error = b.next().unwrap_err();
    assert_eq!(error.entry.context, context(5));
    b.close();
}

/// They are matched in their order, among shorter ones.
#[test]
fn long_messages_keep_their_order() {
    const LENGTH: usize = 20 << 20;
    let (_cluster, a, b) = pair();
    let sent = [1, 2].map(|seed| pattern(LENGTH, seed));
    a.send(0, Some(1), &sent[0], 1);
    a.send(0, Some(1), b"between", 2);
    a.send(0, Some(1), &sent[1], 3);
    let mut rooms = [vec![0; LENGTH], vec![0; 7], vec![0; LENGTH]];
    for (number, room) in rooms.iter_mut().enumerate() {
        b.receive(ADDR_UNSPEC, Some((1, 0)), room, number + 1);
    }
    for _ in 0..3 {
        b.next().unwrap();
        a.next().unwrap();
    }
    assert!(rooms[0] == sent[0] && rooms[2] == sent[1]);
    assert_eq!(rooms[1], b"between");
}

/// More of them than there were names for once; the receiver takes the last one first.
#[test]
fn many_long_messages_of_a_sender_are_received_in_any_order() {
    const LENGTH: usize = 17 << 20;
    let (_cluster, a, b) = pair();
    let sent = pattern(LENGTH, 3);
    for number in 0..20 {
        a.send(0, Some(number), &sent, 1);
    }
    let mut room = vec![0; LENGTH];
    for number in (0..20).rev() {
        room.fill(0);
        b.receive(ADDR_UNSPEC, Some((number, 0)), &mut room, 2);
        b.next().unwrap();
        a.next().unwrap();
        assert!(room == sent);
    }
}

fn peek(side: &Side, flags: u64) -> usize {
    let message = MsgTagged {
        iov: In::NULL,
        desc: In::NULL,
        iov_count: 0,
        addr: ADDR_UNSPEC,
        tag: 1,
        ignore: 0,
        context: context(5),
        data: 0,
    };
    loop {
        let posted = (at(side.ep).tagged.recvmsg)(side.ep, input(&message), flags);
        assert_eq!(posted, 0);
        if let Ok((found, _)) = side.next() {
            return found.len;
        }
    }
}

/// Nothing of a message that is dropped, or of the end of one that does not fit, is taken for a part of the next.
#[test]
fn a_long_message_is_dropped_and_truncated_as_a_whole() {
    const LENGTH: usize = 18 << 20;
    let (_cluster, a, b) = pair();
    let sent = pattern(LENGTH, 3);
    a.send(0, Some(1), &sent, 1);
    assert_eq!(peek(&b, sys::PEEK), LENGTH);
    assert_eq!(peek(&b, sys::PEEK | sys::DISCARD), LENGTH);
    while a.poll().is_none() {
        assert!(b.poll().is_none());
    }
    for room in [3, LENGTH - 100] {
        let mut short = vec![0; room];
        b.receive(ADDR_UNSPEC, Some((1, 0)), &mut short, 2);
        a.send(0, Some(1), &sent, 1);
        let error = b.next().unwrap_err();
        assert_eq!((error.err, error.olen), (sys::FI_ETRUNC, LENGTH - room));
        assert_eq!(error.entry.len, room);
        assert!(short == sent[..room]);
        a.next().unwrap();
    }
    exchange(&a, &b, Some(1), LENGTH);
}

#[test]
fn a_side_that_ends_ends_the_message() {
    const LENGTH: usize = 30 << 20;
    let (cluster, a, b) = pair();
    let sent = pattern(LENGTH, 3);
    let mut room = vec![0; LENGTH];
    // Its receiver ends before it has received anything.
    a.send(0, Some(1), &sent, 1);
    peek(&b, sys::PEEK);
    b.close();
    let error = a.next().unwrap_err();
    assert_eq!(
        (error.entry.context, error.err),
        (context(1), libc::ECONNABORTED)
    );
    // Its sender ends when the receiver has the first piece.
    let b = Side::new(&cluster, 1, super::harness::TAGGED, super::harness::BOTH);
    let to = a.insert(&b.name);
    b.insert(&a.name);
    a.send(to, Some(1), &sent, 2);
    peek(&b, sys::PEEK);
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut room, 3);
    a.close();
    // It may have sent all of it.
    match b.next() {
        Ok(_) => assert!(room == sent),
        Err(error) => {
            assert_eq!(error.entry.context, context(3));
            let gone = [libc::ECONNABORTED, libc::EHOSTUNREACH];
            assert!(gone.contains(&error.err), "{error:?}");
        }
    }
    b.close();
}
