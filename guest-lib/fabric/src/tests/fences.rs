//! FI_FENCE.

use super::harness::{at, close, Cluster, Side, BOTH, TAGGED};
use super::memory::begin_write;
use super::regions::{register, ALL};
use crate::pointers::test::{bytes, context, input};
use crate::pointers::In;
use crate::service::PIECE_MAX;
use crate::sys::{self, Iov, MsgRma, MsgTagged, RmaIov, ADDR_UNSPEC};

fn piece(of: &[u8]) -> Iov {
    Iov {
        base: bytes(of).as_out(),
        length: of.len(),
    }
}

/// Sends a tagged message.
fn send(side: &Side, tag: u64, text: &[u8], number: usize, flags: u64) -> isize {
    let iov = piece(text);
    let message = MsgTagged {
        iov: input(&iov),
        desc: In::NULL,
        iov_count: 1,
        addr: 0,
        tag,
        ignore: 0,
        context: context(number),
        data: 0,
    };
    let flags = flags | sys::COMPLETION;
    (at(side.ep).tagged.sendmsg)(side.ep, input(&message), flags)
}

fn next(side: &Side) -> usize {
    let (entry, _) = side.next().unwrap();
    let numbers = 0..10_000;
    let found = numbers.into_iter().find(|it| context(*it) == entry.context);
    found.unwrap()
}

/// On links that lose a fifth of the frames: the message behind a write says that it is there.
#[test]
fn a_fenced_message_comes_behind_the_write_before_it() {
    let cluster = Cluster::lossy(2, 20.0);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let b = Side::new(&cluster, 1, TAGGED, BOTH);
    assert_eq!((a.insert(&b.name), b.insert(&a.name)), (0, 0));
    let mut memory = vec![0u8; 3 * PIECE_MAX];
    let region = register(&b, &mut memory, ALL, 1);
    for round in 1..=8u8 {
        let sent = vec![round; memory.len()];
        begin_write(&a, 0, &sent, (0, 1), 1);
        assert_eq!(send(&a, 1, b"fenced", 2, sys::FENCE), 0);
        // It is held, too, and needs no fence for that.
        assert_eq!(send(&a, 2, b"behind", 3, 0), 0);
        for tag in [2, 1] {
            let mut text = [0; 6];
            b.receive(ADDR_UNSPEC, Some((tag, 0)), &mut text, 4);
            assert_eq!(next(&b), 4);
            assert!(memory.iter().all(|byte| *byte == round));
        }
        assert_eq!(next(&a), 1);
        let mut sends = [next(&a), next(&a)];
        sends.sort_unstable();
        assert_eq!(sends, [2, 3]);
    }
    assert_eq!(close(region), 0);
    a.close();
    b.close();
}

/// The write behind a message waits until the program has that; what goes to others does not, and what ends goes on
/// by itself.
#[test]
fn a_fenced_write_waits_for_the_message_before_it_and_others_do_not() {
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let b = Side::new(&cluster, 1, TAGGED, BOTH);
    assert_eq!((a.insert(&b.name), b.insert(&a.name)), (0, 0));
    let own = a.insert(&a.name);
    let (mut memory, mut others) = ([0u8; 8], [0u8; 8]);
    let region = register(&b, &mut memory, ALL, 1);
    let own_region = register(&a, &mut others, ALL, 1);
    assert_eq!(send(&a, 1, b"first", 1, sys::DELIVERY_COMPLETE), 0);
    let bytes_of = [7u8; 8];
    let iov = piece(&bytes_of);
    let place = RmaIov {
        addr: 0,
        length: 8,
        key: 1,
    };
    let write = MsgRma {
        iov: input(&iov),
        desc: In::NULL,
        iov_count: 1,
        addr: 0,
        rma_iov: input(&place),
        rma_iov_count: 1,
        context: context(2),
        data: 0,
    };
    let flags = sys::FENCE | sys::COMPLETION;
    assert_eq!((at(a.ep).rma.writemsg)(a.ep, input(&write), flags), 0);
    // Its bytes would be the program's at once.
    let inject = send(&a, 3, b"inject", 0, sys::INJECT);
    assert_eq!(inject, -(libc::EAGAIN as isize));
    begin_write(&a, own, &bytes_of, (0, 1), 3);
    assert_eq!(next(&a), 3);
    assert_eq!((others, memory), ([7; 8], [0; 8]));
    assert!(a.poll().is_none());
    let mut text = [0; 5];
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut text, 4);
    assert_eq!(next(&b), 4);
    assert_eq!([next(&a), next(&a)], [1, 2]);
    assert_eq!(memory, [7; 8]);
    assert_eq!(send(&a, 3, b"inject", 0, sys::INJECT), 0);
    assert_eq!((close(region), close(own_region)), (0, 0));
    a.close();
    b.close();
}

/// It fails with what it waits for; an endpoint that closes drops it.
#[test]
fn what_waits_for_a_peer_that_ends_fails_and_what_is_held_goes_with_its_endpoint() {
    let cluster = Cluster::new(2);
    for closes in [true, false] {
        let a = Side::new(&cluster, 0, TAGGED, BOTH);
        let b = Side::new(&cluster, 1, TAGGED, BOTH);
        assert_eq!((a.insert(&b.name), b.insert(&a.name)), (0, 0));
        assert_eq!(send(&a, 1, b"first", 1, sys::DELIVERY_COMPLETE), 0);
        assert_eq!(send(&a, 2, b"fenced", 2, sys::FENCE), 0);
        if closes {
            a.close();
            b.close();
            continue;
        }
        b.close();
        for number in [1, 2] {
            let error = a.next().unwrap_err();
            assert_eq!(error.entry.context, context(number));
        }
        a.close();
    }
}
