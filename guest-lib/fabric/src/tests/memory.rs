//! Reads and writes of peers' memory.

use super::counters;
use super::harness::{at, close, head, pair, pair_with, Side, BOTH, TAGGED};
use super::regions::{register, ALL};
use crate::info::offer::INJECT_MAX;
use crate::pointers::test::{bytes, context, input, room};
use crate::pointers::{Context, Fid, In, Out};
use crate::service::PIECE_MAX;
use crate::sys::{self, CqEntry, FidCntr, Iov, MsgRma, RmaIov};

/// Bytes that tell their place.
pub(super) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 29 + at / 253 + seed) as u8)
        .collect()
}

/// The end of the next operation, which had this number: its error, if it failed.
pub(super) fn end(side: &Side, number: usize) -> Result<CqEntry, i32> {
    let end = side.next().map(|(entry, _)| entry);
    let seen = end
        .as_ref()
        .map_or_else(|error| error.entry.context, |it| it.context);
    assert_eq!(seen, context(number));
    end.map_err(|error| error.err)
}

/// Writes bytes behind an offset of the region of a key, and waits.
pub(super) fn write(
    side: &Side,
    to: u64,
    from: &[u8],
    at_key: (u64, u64),
    number: usize,
) -> Result<(), i32> {
    begin_write(side, to, from, at_key, number);
    let entry = end(side, number)?;
    assert_eq!(entry.flags, sys::RMA | sys::WRITE);
    Ok(())
}

pub(super) fn begin_write(
    side: &Side,
    to: u64,
    from: &[u8],
    (offset, key): (u64, u64),
    number: usize,
) {
    let write = at(side.ep).rma.write;
    let begun = write(
        side.ep,
        bytes(from),
        from.len(),
        Context::NULL,
        to,
        offset,
        key,
        context(number),
    );
    assert_eq!(begun, 0);
}

/// Reads bytes, and waits.
pub(super) fn read(
    side: &Side,
    from: u64,
    into: &mut [u8],
    (offset, key): (u64, u64),
    number: usize,
) -> Result<(), i32> {
    let length = into.len();
    let read = at(side.ep).rma.read;
    let into = room(into);
    let begun = read(
        side.ep,
        into,
        length,
        Context::NULL,
        from,
        offset,
        key,
        context(number),
    );
    assert_eq!(begun, 0);
    let entry = end(side, number)?;
    assert_eq!(entry.flags, sys::RMA | sys::READ);
    Ok(())
}

/// In one piece and in several, between nodes and within one.
#[test]
fn ranges_of_all_lengths_are_written_and_read() {
    let (_cluster, a, b) = pair();
    let own = b.insert(&b.name);
    let mut memory = vec![0xee; (5 << 20) + 100];
    let region = register(&b, &mut memory, ALL, 77);
    for (number, length) in [
        0,
        1,
        8,
        47,
        48,
        49,
        4096,
        PIECE_MAX,
        PIECE_MAX + 1,
        300_000,
        5 << 20,
    ]
    .into_iter()
    .enumerate()
    {
        for (side, to) in [(&a, 0), (&b, own)] {
            memory.fill(0xee);
            let sent = pattern(length, number);
            assert_eq!(write(side, to, &sent, (50, 77), 1), Ok(()));
            assert!(memory[50..50 + length] == sent, "{length} bytes");
            assert!(memory[..50]
                .iter()
                .chain(&memory[50 + length..])
                .all(|it| *it == 0xee));
            let mut back = vec![0; length];
            assert_eq!(read(side, to, &mut back, (50, 77), 2), Ok(()));
            assert!(back == sent, "{length} bytes");
        }
    }
    // Neither is told to the side whose memory it is.
    assert!(b.poll().is_none());
    assert_eq!(close(region), 0);
    a.close();
    b.close();
}

fn message(pieces: &[Iov], remote: &RmaIov, number: usize, data: u64) -> MsgRma {
    MsgRma {
        iov: input(&pieces[0]),
        desc: In::NULL,
        iov_count: pieces.len(),
        addr: 0,
        rma_iov: input(remote),
        rma_iov_count: 1,
        context: context(number),
        data,
    }
}

#[test]
fn memory_is_gathered_and_scattered_on_both_sides() {
    let (_cluster, a, b) = pair();
    let (mut first, mut second) = (vec![0u8; 5], vec![0u8; PIECE_MAX]);
    let pieces = [&mut first, &mut second].map(|it| Iov {
        length: it.len(),
        base: room(it),
    });
    let regv = at(b.domain).mr.regv;
    let region = super::harness::opened(|to| {
        let domain = head(b.domain);
        regv(
            domain,
            input(&pieces[0]),
            2,
            ALL,
            0,
            1,
            0,
            to,
            Context::NULL,
        )
    });
    let sent = pattern(PIECE_MAX + 4, 1);
    let iov = |range: std::ops::Range<usize>| Iov {
        base: bytes(&sent[range.clone()]).as_out(),
        length: range.len(),
    };
    let own = [iov(0..3), iov(3..3), iov(3..sent.len())];
    let remote = RmaIov {
        addr: 1,
        length: sent.len(),
        key: 1,
    };
    let written = (at(a.ep).rma.writemsg)(a.ep, input(&message(&own, &remote, 3, 0)), 0);
    assert_eq!((written, end(&a, 3).is_ok()), (0, true));
    assert!(first[0] == 0 && [&first[1..], &second].concat() == sent);
    let (mut head, mut tail) = (vec![0; 10], vec![0; sent.len() - 10]);
    let back = [(room(&mut head), 10), (room(&mut tail), sent.len() - 10)];
    let back = back.map(|(base, length)| Iov { base, length });
    let read = (at(a.ep).rma.readv)(a.ep, input(&back[0]), In::NULL, 2, 0, 1, 1, context(4));
    assert_eq!((read, end(&a, 4).is_ok()), (0, true));
    assert!([head, tail].concat() == sent);
    assert_eq!(close(region), 0);
}

/// Data are told once, also 0, and when all bytes are there.
#[test]
fn data_of_a_write_are_told_at_its_target() {
    let (_cluster, a, b) = pair();
    // Of another incarnation, on the port of `a`.
    let mut other = a.name;
    other[8] ^= 1;
    assert_eq!(b.insert(&other), 1);
    let mut memory = vec![0u8; 200_000];
    let region = register(&b, &mut memory, ALL, 1);
    let ops = at(a.ep).rma;
    let none = Context::NULL;
    for (data, length) in [(0, 200_000), (u64::MAX, 3), (5, 0)] {
        let sent = pattern(length, 9);
        let (from, number) = (bytes(&sent), context(7));
        assert_eq!(
            (ops.writedata)(a.ep, from, length, none, data, 0, 0, 1, number),
            0
        );
        let (entry, source) = b.next().unwrap();
        assert_eq!((entry.data, entry.context, source), (data, none, 0));
        assert_eq!(
            entry.flags,
            sys::RMA | sys::REMOTE_WRITE | sys::REMOTE_CQ_DATA
        );
        assert!(memory[..length] == sent);
        assert!(end(&a, 7).is_ok());
    }
    assert_eq!((ops.injectdata)(a.ep, bytes(b"in"), 2, 8, 0, 1, 1), 0);
    assert_eq!(b.next().unwrap().0.data, 8);
    assert_eq!(&memory[1..3], b"in");
    let remote = RmaIov {
        addr: 0,
        length: 2,
        key: 1,
    };
    let own = [Iov {
        base: bytes(b"ms").as_out(),
        length: 2,
    }];
    let structure = message(&own, &remote, 5, 66);
    assert_eq!(
        (ops.writemsg)(a.ep, input(&structure), sys::REMOTE_CQ_DATA | sys::INJECT),
        0
    );
    assert_eq!((b.next().unwrap().0.data, &memory[..2]), (66, &b"ms"[..]));
    assert!(end(&a, 5).is_ok() && a.poll().is_none());
    assert_eq!(close(region), 0);
}

#[test]
fn an_inject_is_copied_and_its_end_is_not_told() {
    let (_cluster, a, b) = pair();
    let mut memory = vec![0u8; INJECT_MAX];
    let region = register(&b, &mut memory, ALL, 1);
    let mut sent = pattern(INJECT_MAX, 4);
    let expected = sent.clone();
    let inject = at(a.ep).rma.inject;
    assert_eq!(inject(a.ep, bytes(&sent), INJECT_MAX, 0, 0, 1), 0);
    sent.fill(0);
    // It is executed behind the inject.
    let mut back = vec![0; INJECT_MAX];
    assert_eq!(read(&a, 0, &mut back, (0, 1), 2), Ok(()));
    assert!(back == expected && memory == expected && a.poll().is_none());
    let long = vec![0; INJECT_MAX + 1];
    assert_eq!(
        inject(a.ep, bytes(&long), long.len(), 0, 0, 1),
        -(libc::EMSGSIZE as isize)
    );
    // Unless it fails.
    assert_eq!(inject(a.ep, bytes(&sent), 1, 0, 0, 2), 0);
    assert_eq!(end_of_none(&a), libc::EKEYREJECTED);
    assert_eq!(close(region), 0);
}

fn end_of_none(side: &Side) -> i32 {
    let error = side.next().unwrap_err();
    assert_eq!(error.entry.context, Context::NULL);
    error.err
}

/// Each is posted before the one before it has ended. Writes have several pieces.
#[test]
fn what_is_asked_of_one_peer_is_done_in_order() {
    let (_cluster, a, b) = pair();
    let mut memory = vec![0u8; 3 * PIECE_MAX];
    let region = register(&b, &mut memory, ALL, 1);
    let rounds: Vec<Vec<u8>> = (0..20).map(|round| vec![round; 3 * PIECE_MAX]).collect();
    let mut seen = vec![[0xff; 2]; 20];
    let read = at(a.ep).rma.read;
    for (round, into) in rounds.iter().zip(&mut seen) {
        begin_write(&a, 0, round, (0, 1), 1);
        let last = 3 * PIECE_MAX as u64 - 2;
        let begun = read(a.ep, room(into), 2, Context::NULL, 0, last, 1, context(1));
        assert_eq!(begun, 0);
    }
    for _ in 0..40 {
        assert!(end(&a, 1).is_ok());
    }
    let expected: Vec<_> = (0..20).map(|round| [round; 2]).collect();
    assert_eq!(seen, expected);
    assert_eq!(close(region), 0);
}

#[test]
fn with_selective_completion_only_what_asks_is_told() {
    let (_cluster, a, b) = pair_with(TAGGED, BOTH | sys::SELECTIVE_COMPLETION);
    let mut memory = [0u8; 8];
    let region = register(&b, &mut memory, ALL, 1);
    begin_write(&a, 0, b"first", (0, 1), 1);
    let remote = RmaIov {
        addr: 0,
        length: 6,
        key: 1,
    };
    let own = [Iov {
        base: bytes(b"second").as_out(),
        length: 6,
    }];
    let structure = message(&own, &remote, 2, 0);
    let flags = sys::COMPLETION | sys::DELIVERY_COMPLETE;
    assert_eq!((at(a.ep).rma.writemsg)(a.ep, input(&structure), flags), 0);
    assert!(end(&a, 2).is_ok());
    assert_eq!(&memory, b"second\0\0");
    assert!(a.poll().is_none() && b.poll().is_none());
    assert_eq!(close(region), 0);
}

/// Those of the side that asks, of the other one, and of the region.
#[test]
fn counters_count_reads_and_writes_apart() {
    let (_cluster, a, b) = pair();
    let [reads, writes, of_region] = [&a, &a, &b].map(counters::open);
    let [peers_reads, peers_writes] = [&b, &b].map(counters::open);
    let mine = counters::endpoint(&a, &[(reads, sys::READ), (writes, sys::WRITE)]);
    let theirs = [
        (peers_reads, sys::REMOTE_READ),
        (peers_writes, sys::REMOTE_WRITE),
    ];
    let theirs = counters::endpoint(&b, &theirs);
    let to = mine.insert(&theirs.name);
    let mut memory = [0u8; 16];
    let region = register(&b, &mut memory, ALL, 1);
    let bind = at(region).head.ops.bind;
    assert_eq!(bind(head(region), head(of_region), sys::REMOTE_WRITE), 0);
    let wait = |counter: Fid<FidCntr>, count| (at(counter).ops.wait)(counter, count, -1);
    begin_write(&mine, to, b"counted", (0, 1), 1);
    assert_eq!(
        (wait(writes, 1), wait(peers_writes, 1), wait(of_region, 1)),
        (0, 0, 0)
    );
    assert_eq!(&memory[..7], b"counted");
    let mut into = [0; 7];
    let read = at(mine.ep).rma.read;
    assert_eq!(
        read(
            mine.ep,
            room(&mut into),
            7,
            Context::NULL,
            to,
            0,
            1,
            context(1)
        ),
        0
    );
    assert_eq!((wait(reads, 1), wait(peers_reads, 1)), (0, 0));
    assert_eq!(&into, b"counted");
    // A failure is one of the side that asks.
    begin_write(&mine, to, b"refused", (0, 2), 1);
    assert_eq!(wait(writes, 2), -sys::FI_EAVAIL);
    let counts = [reads, writes, peers_reads, peers_writes, of_region];
    let counts = counts.map(|it| ((at(it).ops.read)(it), (at(it).ops.readerr)(it)));
    assert_eq!(counts, [(1, 0), (1, 1), (1, 0), (1, 0), (1, 0)]);
    // In either order.
    assert_eq!((close(of_region), close(region)), (0, 0));
    assert_eq!((close(mine.ep), close(theirs.ep)), (0, 0));
    for counter in [reads, writes, peers_reads, peers_writes] {
        assert_eq!(close(counter), 0);
    }
}

/// A lost wake-up is a test that does not end.
#[test]
fn the_end_of_a_write_wakes_the_thread_that_waits_for_it() {
    let (_cluster, a, b) = pair();
    let mut memory = vec![0u8; 2 * PIECE_MAX];
    let region = register(&b, &mut memory, ALL, 1);
    let sread = at(a.cq).ops.sread;
    for round in 0..200 {
        let sent = vec![round as u8; if round % 2 == 0 { 8 } else { 2 * PIECE_MAX }];
        begin_write(&a, 0, &sent, (0, 1), 1);
        let mut entry = super::harness::empty();
        let entries = super::harness::erased(&mut entry);
        assert_eq!(sread(a.cq, entries, 1, In::NULL, -1), 1);
        assert!(memory[..sent.len()] == sent);
    }
    assert_eq!(close(region), 0);
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let (_cluster, a, _b) = pair();
    let ops = at(a.ep).rma;
    let none = Context::NULL;
    let refused = |result: isize, error: i32| assert_eq!(result, -(error as isize));
    refused(
        (ops.write)(a.ep, In::NULL, 1, none, 0, 0, 1, none),
        libc::EINVAL,
    );
    refused(
        (ops.read)(a.ep, Out::NULL, 1, none, 0, 0, 1, none),
        libc::EINVAL,
    );
    refused(
        (ops.write)(a.ep, bytes(b"x"), 1, none, 9, 0, 1, none),
        libc::EINVAL,
    );
    refused((ops.writemsg)(a.ep, In::NULL, 0), libc::EINVAL);
    refused(
        (ops.writev)(a.ep, In::NULL, In::NULL, 1, 0, 0, 1, none),
        libc::EINVAL,
    );
    let own = [Iov {
        base: bytes(b"ab").as_out(),
        length: 2,
    }];
    let short = RmaIov {
        addr: 0,
        length: 1,
        key: 1,
    };
    refused(
        (ops.writemsg)(a.ep, input(&message(&own, &short, 1, 0)), 0),
        libc::EINVAL,
    );
    let same = RmaIov { length: 2, ..short };
    let structure = message(&own, &same, 1, 0);
    refused(
        (ops.readmsg)(a.ep, input(&structure), 1 << 3),
        sys::FI_EBADFLAGS,
    );
    let two = MsgRma {
        rma_iov_count: 2,
        ..structure
    };
    refused((ops.writemsg)(a.ep, input(&two), 0), libc::EINVAL);
}
