//! FI_DELIVERY_COMPLETE.

use super::harness::{at, pair, Side};
use super::messages::pattern;
use crate::pointers::test::{bytes, context, input, room};
use crate::pointers::In;
use crate::sys::{self, Iov, MsgTagged, ADDR_UNSPEC};

/// Sends a message whose end is that the program at the other side has it.
pub(super) fn send(side: &Side, tag: u64, text: &[u8], number: usize) {
    let piece = Iov {
        base: bytes(text).as_out(),
        length: text.len(),
    };
    let message = MsgTagged {
        iov: input(&piece),
        desc: In::NULL,
        iov_count: 1,
        addr: 0,
        tag,
        ignore: 0,
        context: context(number),
        data: 0,
    };
    let flags = sys::DELIVERY_COMPLETE | sys::COMPLETION;
    assert_eq!(
        (at(side.ep).tagged.sendmsg)(side.ep, input(&message), flags),
        0
    );
}

/// It is long done at the NIC when it is told: a message behind it has come, and been answered.
#[test]
fn a_send_ends_when_the_program_has_its_bytes() {
    let (_cluster, a, b) = pair();
    for length in [0, 8, 60_000] {
        let sent = pattern(length, 5);
        send(&a, 1, &sent, 1);
        let mut word = [0; 4];
        b.receive(ADDR_UNSPEC, Some((2, 0)), &mut word, 9);
        a.send(0, Some(2), b"word", 2);
        assert_eq!(a.next().unwrap().0.context, context(2));
        assert_eq!(b.next().unwrap().0.context, context(9));
        assert!(a.poll().is_none());
        let mut received = vec![0; length];
        b.receive(ADDR_UNSPEC, Some((1, 0)), &mut received, 3);
        assert_eq!(b.next().unwrap().0.context, context(3));
        let (entry, _) = a.next().unwrap();
        assert_eq!(
            (entry.context, entry.flags),
            (context(1), sys::SEND | sys::TAGGED)
        );
        assert!(received == sent);
    }
}

/// The thread of the endpoint answers, although the program does not call.
#[test]
fn a_program_that_does_not_call_has_its_bytes() {
    let (_cluster, a, b) = pair();
    let mut received = [0; 5];
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut received, 3);
    send(&a, 1, b"alone", 1);
    assert_eq!(a.next().unwrap().0.context, context(1));
    assert_eq!(&received, b"alone");
}

#[test]
fn a_message_that_is_discarded_or_truncated_is_delivered() {
    let (_cluster, a, b) = pair();
    for flags in [sys::DISCARD, sys::CLAIM] {
        send(&a, 1, b"letter", 1);
        let peek = |flags| {
            let piece = Iov {
                base: room(&mut []),
                length: 0,
            };
            let message = MsgTagged {
                iov: input(&piece),
                desc: In::NULL,
                iov_count: 0,
                addr: ADDR_UNSPEC,
                tag: 1,
                ignore: 0,
                context: context(4),
                data: 0,
            };
            assert_eq!((at(b.ep).tagged.recvmsg)(b.ep, input(&message), flags), 0);
            b.next()
        };
        while peek(sys::PEEK | flags).is_err() {}
        if flags == sys::CLAIM {
            peek(sys::CLAIM | sys::DISCARD).unwrap();
        }
        assert_eq!(a.next().unwrap().0.context, context(1));
    }
    let mut short = [0; 2];
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut short, 3);
    send(&a, 1, b"letter", 1);
    assert_eq!(b.next().unwrap_err().err, sys::FI_ETRUNC);
    assert_eq!(a.next().unwrap().0.context, context(1));
}

/// It answers first.
#[test]
fn what_was_delivered_is_told_although_the_receiver_closes_at_once() {
    for _ in 0..20 {
        let (_cluster, a, b) = pair();
        let mut received = [0; 6];
        b.receive(ADDR_UNSPEC, Some((1, 0)), &mut received, 3);
        send(&a, 1, b"letter", 1);
        b.next().unwrap();
        b.close();
        assert_eq!(a.next().unwrap().0.context, context(1));
        a.close();
    }
}

#[test]
fn a_send_to_a_process_that_ends_fails() {
    let (_cluster, a, b) = pair();
    send(&a, 1, b"letter", 1);
    let mut word = [0; 4];
    b.receive(ADDR_UNSPEC, Some((2, 0)), &mut word, 9);
    a.send(0, Some(2), b"word", 2);
    b.next().unwrap();
    assert_eq!(a.next().unwrap().0.context, context(2));
    b.close();
    let error = a.next().unwrap_err();
    assert_eq!(
        (error.entry.context, error.err),
        (context(1), libc::ECONNABORTED)
    );
    a.close();
}
