//! FI_PEEK, FI_CLAIM and FI_DISCARD.

use super::harness::{at, pair, Side};
use crate::pointers::test::{context, input, room};
use crate::pointers::In;
use crate::sys::{self, CqEntry, CqErrEntry, Iov, MsgTagged, ADDR_UNSPEC};

/// A receive with these flags.
fn receive(side: &Side, tag: u64, flags: u64, into: &mut [u8], number: usize) -> isize {
    let (length, base) = (into.len(), room(into));
    let piece = Iov { base, length };
    let message = MsgTagged {
        iov: input(&piece),
        desc: In::NULL,
        iov_count: 1,
        addr: ADDR_UNSPEC,
        tag,
        ignore: 0,
        context: context(number),
        data: 0,
    };
    (at(side.ep).tagged.recvmsg)(side.ep, input(&message), flags)
}

fn peek(side: &Side, tag: u64, flags: u64, number: usize) -> Result<CqEntry, CqErrEntry> {
    assert_eq!(receive(side, tag, sys::PEEK | flags, &mut [], number), 0);
    side.next().map(|(entry, _)| entry)
}

/// Peeks until the message is there.
fn find(side: &Side, tag: u64, flags: u64, number: usize) -> CqEntry {
    loop {
        match peek(side, tag, flags, number) {
            Ok(found) => return found,
            Err(error) => {
                assert_eq!(
                    (error.err, error.entry.context),
                    (libc::ENOMSG, context(number))
                );
            }
        }
    }
}

#[test]
fn a_peek_tells_of_a_message_and_leaves_it() {
    let (_cluster, a, b) = pair();
    assert_eq!(peek(&b, 5, 0, 1).unwrap_err().err, libc::ENOMSG);
    a.send(0, Some(5), b"letter", 9);
    for _ in 0..2 {
        let found = find(&b, 5, 0, 2);
        assert_eq!((found.context, found.tag, found.len), (context(2), 5, 6));
    }
    assert_eq!(peek(&b, 6, 0, 1).unwrap_err().err, libc::ENOMSG);
    let mut into = [0; 6];
    b.receive(ADDR_UNSPEC, Some((5, 0)), &mut into, 3);
    assert_eq!(b.next().unwrap().0.context, context(3));
    assert_eq!(&into, b"letter");
}

#[test]
fn a_claimed_message_goes_to_its_claim_only() {
    let (_cluster, a, b) = pair();
    let long = vec![7; 200_000];
    a.send(0, Some(5), &long, 9);
    a.send(0, Some(5), b"second", 9);
    assert_eq!(find(&b, 5, sys::CLAIM, 1).len, long.len());
    let mut into = [0; 6];
    b.receive(ADDR_UNSPEC, Some((5, 0)), &mut into, 2);
    assert_eq!(b.next().unwrap().0.context, context(2));
    assert_eq!(&into, b"second");
    let mut whole = vec![0; long.len()];
    assert_eq!(
        receive(&b, 5, sys::CLAIM, &mut whole, 8),
        -(libc::ENOENT as isize)
    );
    assert_eq!(receive(&b, 5, sys::CLAIM, &mut whole, 1), 0);
    let (entry, source) = b.next().unwrap();
    assert_eq!(
        (entry.context, entry.len, entry.tag, source),
        (context(1), long.len(), 5, 0)
    );
    assert!(whole == long);
    // It is gone.
    assert_eq!(
        receive(&b, 5, sys::CLAIM, &mut whole, 1),
        -(libc::ENOENT as isize)
    );
}

#[test]
fn a_message_is_discarded_when_it_is_found_or_once_it_is_claimed() {
    let (_cluster, a, b) = pair();
    for text in [b"first ", b"second", b"third "] {
        a.send(0, Some(5), text, 9);
    }
    find(&b, 5, sys::DISCARD, 1);
    find(&b, 5, sys::CLAIM, 2);
    assert_eq!(receive(&b, 5, sys::CLAIM | sys::DISCARD, &mut [], 2), 0);
    assert_eq!(b.next().unwrap().0.context, context(2));
    let mut into = [0; 6];
    b.receive(ADDR_UNSPEC, Some((5, 0)), &mut into, 3);
    assert_eq!(b.next().unwrap().0.context, context(3));
    assert_eq!(&into, b"third ");
    let bad = -(sys::FI_EBADFLAGS as isize);
    assert_eq!(receive(&b, 5, sys::DISCARD, &mut [], 1), bad);
    assert_eq!(receive(&b, 5, sys::MULTI_RECV, &mut [], 1), bad);
}
