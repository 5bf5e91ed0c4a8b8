//! FI_MULTI_RECV.

use super::harness::{at, erased, head, pair, Side};
use super::messages::pattern;
use crate::pointers::test::{context, input, room};
use crate::pointers::{Fid, In};
use crate::sys::{self, FidEp, Iov, Msg, ADDR_UNSPEC};

/// Posts a buffer for many messages.
fn receive(side: &Side, buffer: &mut [u8], pieces: usize, flags: u64, number: usize) -> isize {
    let (length, base) = (buffer.len(), room(buffer));
    let list = [Iov { base, length }; 2];
    let message = Msg {
        iov: input(&list[0]),
        desc: In::NULL,
        iov_count: pieces,
        addr: ADDR_UNSPEC,
        context: context(number),
        data: 0,
    };
    (at(side.ep).msg.recvmsg)(side.ep, input(&message), flags)
}

fn set_least(ep: Fid<FidEp>, least: usize) {
    let bytes = least.to_ne_bytes();
    let set = at(ep).ops.setopt;
    let value = crate::pointers::test::bytes(&bytes);
    assert_eq!(set(head(ep), 0, sys::OPT_MIN_MULTI_RECV, value, 8), 0);
    let (mut found, mut length) = (0usize, 8);
    let get = at(ep).ops.getopt;
    let (room, length) = (
        erased(&mut found),
        crate::pointers::test::output(&mut length),
    );
    assert_eq!(get(head(ep), 0, sys::OPT_MIN_MULTI_RECV, room, length), 0);
    assert_eq!(found, least);
    assert_eq!(get(head(ep), 0, 99, room, length), -libc::ENOPROTOOPT);
}

/// No message is truncated, whatever comes before it; the completion of the last one releases the buffer.
#[test]
fn a_buffer_takes_messages_until_less_is_left_than_a_message_may_have() {
    let (_cluster, a, b) = pair();
    set_least(b.ep, 5000);
    let mut buffer = vec![0; 20_000];
    let many = sys::MULTI_RECV;
    assert_eq!(receive(&b, &mut buffer, 1, many, 1), 0);
    let base = buffer.as_ptr() as usize;
    let lengths = [1, 10, 5000, 3, 5000, 4988];
    let sent = (0u8..).zip(lengths).map(|(number, length)| {
        let mut message = pattern(length, length);
        message[0] = number;
        message
    });
    let sent: Vec<_> = sent.collect();
    for message in &sent {
        a.send(0, None, message, 2);
    }
    // They stand in their order, and end in any.
    for number in 1..=sent.len() {
        let (entry, source) = b.next().unwrap();
        let begin = entry.buf.text_pointer() as usize - base;
        let message = &sent[usize::from(buffer[begin])];
        assert_eq!(
            (entry.context, entry.len, source),
            (context(1), message.len(), 0)
        );
        assert!(buffer[begin..begin + message.len()] == *message);
        let released = entry.flags & many != 0;
        assert_eq!(released, number == sent.len());
        assert_eq!(entry.flags & !many, sys::RECV | sys::MSG);
    }
    assert!(buffer[..15_002] == *sent.concat());
    assert!(b.poll().is_none());
    // The next message waits for the next buffer.
    a.send(0, None, b"next", 2);
    let mut next = vec![0; 6000];
    assert_eq!(receive(&b, &mut next, 1, many, 3), 0);
    assert_eq!(b.next().unwrap().0.context, context(3));
    assert_eq!(&next[..4], b"next");
}

#[test]
fn a_buffer_that_is_cancelled_is_released() {
    let (_cluster, a, b) = pair();
    let mut buffer = vec![0; 1000];
    assert_eq!(receive(&b, &mut buffer, 1, sys::MULTI_RECV, 1), 0);
    a.send(0, None, b"one", 2);
    assert_eq!(b.next().unwrap().0.flags, sys::RECV | sys::MSG);
    assert_eq!((at(b.ep).ops.cancel)(head(b.ep), context(1)), 0);
    let error = b.next().unwrap_err();
    assert_eq!(
        (error.err, error.entry.context),
        (libc::ECANCELED, context(1))
    );
    assert!(error.entry.flags & sys::MULTI_RECV != 0);
}

#[test]
fn a_message_that_is_longer_than_what_is_left_is_truncated_and_the_last() {
    let (_cluster, a, b) = pair();
    let mut buffer = vec![0; 1000];
    assert_eq!(receive(&b, &mut buffer, 1, sys::MULTI_RECV, 1), 0);
    let sent = pattern(2000, 1);
    a.send(0, None, &sent, 2);
    let error = b.next().unwrap_err();
    assert_eq!(
        (error.err, error.olen, error.entry.len),
        (sys::FI_ETRUNC, 1000, 1000)
    );
    assert!(error.entry.flags & sys::MULTI_RECV != 0);
    assert!(buffer == sent[..1000]);
}

#[test]
fn buffers_of_many_messages_are_in_one_piece() {
    let (_cluster, _a, b) = pair();
    let refused = |result: isize, error: i32| assert_eq!(result, -(error as isize));
    let mut buffer = [0; 8];
    refused(
        receive(&b, &mut buffer, 2, sys::MULTI_RECV, 1),
        libc::EINVAL,
    );
    let flags = sys::MULTI_RECV | sys::PEEK;
    refused(receive(&b, &mut buffer, 1, flags, 1), sys::FI_EBADFLAGS);
}
