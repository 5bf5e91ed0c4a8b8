//! Operations on memory that fail: refused, closed, gone.

use super::harness::{
    at, close, enable, head, open_endpoint, opened, pair, Cluster, Side, BOTH, TAGGED,
};
use super::memory::{begin_write, end, pattern, read, write};
use super::regions::{register, ALL};
use crate::address::{Address, BYTES};
use crate::endpoint::Ep;
use crate::object;
use crate::pointers::test::{bytes, context, input, output, room};
use crate::pointers::Context;
use crate::service::{Reached, PIECE_MAX};
use crate::sys::{self, Iov};

/// Each error is told, and what comes behind it goes on.
#[test]
fn wrong_keys_bounds_and_access_are_refused_and_nothing_else() {
    let (_cluster, a, b) = pair();
    let mut memory = pattern(300_000, 1);
    let open = register(&b, &mut memory, ALL, 1);
    let readable = register(&b, &mut memory, sys::REMOTE_READ, 2);
    let writable = register(&b, &mut memory, sys::REMOTE_WRITE, 3);
    let (denied, rejected) = (Err(libc::EACCES), Err(libc::EKEYREJECTED));
    let mut into = [0; 4];
    for (offset, key, written, seen) in [
        (0, 9, rejected, rejected),
        (0, 2, denied, Ok(())),
        (0, 3, Ok(()), denied),
        (299_997, 1, denied, denied),
        (300_000, 1, denied, denied),
        (u64::MAX, 1, denied, denied),
        (299_996, 1, Ok(()), Ok(())),
    ] {
        let sent = [
            memory[299_996],
            memory[299_997],
            memory[299_998],
            memory[299_999],
        ];
        let sent = if offset == 0 {
            [memory[0], memory[1], memory[2], memory[3]]
        } else {
            sent
        };
        assert_eq!(
            write(&a, 0, &sent, (offset, key), 1),
            written,
            "write {offset} {key}"
        );
        assert_eq!(
            read(&a, 0, &mut into, (offset, key), 2),
            seen,
            "read {offset} {key}"
        );
    }
    // The first pieces of a long one are within bounds.
    let long = vec![0xee; 4 * PIECE_MAX];
    assert_eq!(write(&a, 0, &long, (100_000, 1), 3), denied);
    assert!(memory[..100_000] == pattern(300_000, 1)[..100_000]);
    assert_eq!(read(&a, 0, &mut into, (0, 1), 4), Ok(()));
    assert_eq!(into, memory[..4]);
    for region in [open, readable, writable] {
        assert_eq!(close(region), 0);
    }
    assert_eq!(read(&a, 0, &mut into, (0, 1), 4), rejected);
}

/// Its second piece would begin at offset 0 again.
#[test]
fn an_operation_beyond_the_last_offset_changes_nothing() {
    let (_cluster, a, b) = pair();
    let mut memory = pattern(2 * PIECE_MAX, 1);
    let region = register(&b, &mut memory, ALL, 1);
    let mut own = vec![0xee; 2 * PIECE_MAX];
    let offset = 0u64.wrapping_sub(PIECE_MAX as u64);
    let denied = Err(libc::EACCES);
    assert_eq!(write(&a, 0, &own, (offset, 1), 1), denied);
    assert_eq!(read(&a, 0, &mut own, (offset, 1), 2), denied);
    // What is behind it goes on.
    assert_eq!(write(&a, 0, &[2; 8], (PIECE_MAX as u64, 1), 3), Ok(()));
    assert!(memory[..PIECE_MAX] == pattern(2 * PIECE_MAX, 1)[..PIECE_MAX]);
    assert!(own.iter().all(|it| *it == 0xee));
    assert_eq!(close(region), 0);
}

/// The pieces behind the one that is refused are on their way when the answer comes.
#[test]
fn a_write_of_which_a_piece_is_refused_is_told_nowhere() {
    static CONSTANT: [u8; PIECE_MAX] = [1; PIECE_MAX];
    let (_cluster, a, b) = pair();
    let mut last = vec![2u8; PIECE_MAX];
    let pieces = [bytes(&CONSTANT).as_out(), room(&mut last)];
    let pieces = pieces.map(|base| Iov {
        base,
        length: PIECE_MAX,
    });
    let regv = at(b.domain).mr.regv;
    let region = opened(|to| {
        let (domain, none) = (head(b.domain), Context::NULL);
        regv(domain, input(&pieces[0]), 2, ALL, 0, 1, 0, to, none)
    });
    let sent = vec![3u8; 2 * PIECE_MAX];
    let write = at(a.ep).rma.writedata;
    let (none, bound) = (Context::NULL, PIECE_MAX as u64);
    for (offset, length, data) in [(0, sent.len(), 7), (bound, PIECE_MAX, 8)] {
        let (from, number) = (bytes(&sent), context(1));
        let begun = write(a.ep, from, length, none, data, 0, offset, 1, number);
        assert_eq!(begun, 0);
    }
    // In either order.
    let ends = [end(&a, 1), end(&a, 1)].map(|end| end.map(|_| ()));
    assert!(ends.contains(&Err(libc::EFAULT)) && ends.contains(&Ok(())));
    // It would be in front of this one.
    assert_eq!(b.next().map(|(entry, _)| entry.data).unwrap(), 8);
    assert_eq!(close(region), 0);
}

/// As programs may that register all addresses that they have.
#[test]
fn registered_memory_that_is_not_there_is_an_error_of_the_operation() {
    let (_cluster, a, b) = pair();
    let memory = *b"here";
    let reg = at(b.domain).mr.reg;
    let all = super::harness::opened(|to| {
        let nowhere = crate::pointers::In::NULL;
        reg(
            head(b.domain),
            nowhere,
            usize::MAX,
            ALL,
            0,
            1,
            0,
            to,
            Context::NULL,
        )
    });
    let mut into = [0; 4];
    assert_eq!(read(&a, 0, &mut into, (16, 1), 1), Err(libc::EFAULT));
    assert_eq!(write(&a, 0, &into, (16, 1), 1), Err(libc::EFAULT));
    let address = memory.as_ptr().addr() as u64;
    assert_eq!(read(&a, 0, &mut into, (address, 1), 1), Ok(()));
    assert_eq!(&into, b"here");
    assert_eq!(close(all), 0);
}

/// When the close has returned, the memory is the program's own again.
#[test]
fn a_region_is_closed_while_it_is_written() {
    let (_cluster, a, b) = pair();
    for round in 1..20 {
        let mut memory = vec![0; 40 * PIECE_MAX];
        let region = register(&b, &mut memory, ALL, 1);
        let sent = vec![round; 20 * PIECE_MAX];
        for half in 0..2 {
            begin_write(&a, 0, &sent, (half * 20 * PIECE_MAX as u64, 1), 1);
        }
        // Later in each round.
        let mut ended: Vec<_> = (0..round).filter_map(|_| a.poll()).collect();
        assert_eq!(close(region), 0);
        memory.fill(0xee);
        while ended.len() < 2 {
            ended.push(a.next());
        }
        for end in ended {
            let error = end.err().map_or(0, |error| error.err);
            assert!([0, libc::EKEYREJECTED].contains(&error), "{error}");
        }
        assert!(memory.iter().all(|it| *it == 0xee));
    }
    // The stream has gone on.
    let mut memory = [0; 4];
    let region = register(&b, &mut memory, ALL, 1);
    assert_eq!(write(&a, 0, b"more", (0, 1), 2), Ok(()));
    assert_eq!((&memory, close(region)), (b"more", 0));
}

/// The error of the next operation of number 1, if it fails; some have ended already.
fn end_or(side: &Side) -> Option<i32> {
    end(side, 1).err()
}

/// Each ends, whatever it was about to do.
#[test]
fn operations_on_a_process_that_ends_end_with_it() {
    let (_cluster, a, b) = pair();
    let mut memory = vec![0u8; 4 * PIECE_MAX];
    let region = register(&b, &mut memory, ALL, 1);
    let sent = vec![1; 4 * PIECE_MAX];
    let mut own_memory = [0u8; 4];
    let own_region = register(&a, &mut own_memory, ALL, 1);
    let own = a.insert(&a.name);
    assert_eq!(write(&a, 0, &sent[..1], (0, 1), 1), Ok(()));
    for _ in 0..100 {
        begin_write(&a, 0, &sent, (0, 1), 1);
    }
    assert_eq!(close(region), 0);
    b.close();
    for _ in 0..100 {
        if let Some(error) = end_or(&a) {
            let expected = [libc::EKEYREJECTED, libc::ECONNABORTED, libc::EHOSTUNREACH];
            assert!(expected.contains(&error), "{error}");
        }
    }
    let gone = write(&a, 0, b"gone", (0, 1), 1).unwrap_err();
    assert!(
        [libc::ECONNABORTED, libc::EHOSTUNREACH].contains(&gone),
        "{gone}"
    );
    // What does not go to it goes on.
    assert_eq!(write(&a, own, b"self", (0, 1), 1), Ok(()));
    assert_eq!((&own_memory, close(own_region)), (b"self", 0));
    a.close();
}

/// An endpoint that is closed takes its operations along, and peers do not reach it: nor the next one on its port.
#[test]
fn an_endpoint_is_another_one_when_it_is_opened_again() {
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let b = Side::new(&cluster, 1, TAGGED, BOTH);
    let (to, mut memory) = (a.insert(&b.name), [0u8; 8]);
    let region = register(&b, &mut memory, ALL, 1);
    assert_eq!(write(&a, to, b"before", (0, 1), 1), Ok(()));
    assert_eq!(close(b.ep), 0);
    assert_eq!(write(&a, to, b"closed", (0, 1), 1), Err(libc::ECONNABORTED));
    let next = open_on_port(&b);
    let renamed = next.name[..8] == b.name[..8] && next.name[8..] != b.name[8..];
    assert!(renamed, "the same port, another incarnation");
    assert_eq!(write(&a, to, b"former", (0, 1), 1), Err(libc::ECONNABORTED));
    let to = a.insert(&next.name);
    assert_eq!(write(&a, to, b"next", (0, 1), 1), Ok(()));
    assert_eq!(&memory[..6], b"nextre");
    // Closed with operations under way: their memory is the program's.
    let mut into = vec![0x11; 1 << 20];
    let length = into.len();
    let reads = at(a.ep).rma.read;
    let mut long = vec![7u8; 1 << 20];
    let long_region = register(&next, &mut long, ALL, 2);
    for _ in 0..8 {
        let begun = reads(
            a.ep,
            room(&mut into),
            length,
            Context::NULL,
            to,
            0,
            2,
            context(1),
        );
        assert_eq!(begun, 0);
    }
    assert_eq!(close(a.ep), 0);
    into.fill(0x22);
    assert_eq!(
        write(&next, next.insert(&next.name), b"own", (0, 1), 1),
        Ok(())
    );
    assert!(into.iter().all(|it| *it == 0x22));
    memory.fill(0);
    for object in [
        close(a.cq),
        close(a.av),
        close(region),
        close(long_region),
        close(next.ep),
    ] {
        assert_eq!(object, 0);
    }
}

/// The next one on its port may be enabled by then.
#[test]
fn an_endpoint_that_leaves_takes_no_other_one_along() {
    let (_cluster, a, b) = pair();
    let mut memory = [0u8; 4];
    let region = register(&b, &mut memory, ALL, 1);
    let (fabric, domain) = (b.fabric, b.domain);
    let former = Side::on(fabric, domain, TAGGED, BOTH);
    let port = Address::wanted(&former.name).unwrap().port;
    assert_eq!(close(former.ep), 0);
    let reached = Reached {
        incarnation: 1,
        av: object::state(former.av).unwrap(),
        queue: None,
        reads: None,
        writes: None,
        fences: std::sync::Arc::default(),
    };
    let service = object::state::<Ep, _>(b.ep).unwrap().service().unwrap();
    let member = service.join(port, reached);
    let next = open_on_port(&former);
    drop(member);
    let to = a.insert(&next.name);
    assert_eq!(write(&a, to, b"next", (0, 1), 1), Ok(()));
    assert_eq!((close(region), close(next.ep)), (0, 0));
}

/// An endpoint on the port of one that was closed.
pub(super) fn open_on_port(side: &Side) -> Side {
    let ep = super::harness::open_endpoint_at(side.domain, &side.name);
    let bind = at(ep).head.ops.bind;
    assert_eq!(bind(head(ep), head(side.av), 0), 0);
    assert_eq!(bind(head(ep), head(side.cq), BOTH), 0);
    assert_eq!(enable(ep), 0);
    let (mut name, mut length) = ([0; BYTES], BYTES);
    let getname = at(ep).cm.getname;
    assert_eq!(getname(head(ep), room(&mut name), output(&mut length)), 0);
    Side { ep, name, ..*side }
}

/// The address of an endpoint without the capability names no service.
#[test]
fn an_endpoint_without_memory_refuses() {
    let (_cluster, a, b) = pair();
    let mut name = b.name;
    name[4..6].fill(0);
    let to = a.insert(&name);
    let write = at(a.ep).rma.write;
    let none = Context::NULL;
    let refused = write(a.ep, bytes(b"x"), 1, none, to, 0, 1, none);
    assert_eq!(refused, -(libc::EOPNOTSUPP as isize));
    let ep = open_endpoint(a.domain);
    let early = write(ep, bytes(b"x"), 1, none, to, 0, 1, none);
    assert_eq!(early, -(sys::FI_EOPBADSTATE as isize));
    assert_eq!(close(ep), 0);
}
