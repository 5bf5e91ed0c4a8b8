//! Objects: what opens, what closes, what refuses.

use super::harness::{
    at, close, empty, erased, head, open_endpoint, opened, pair, Cluster, Side, BOTH, TAGGED,
};
use crate::address::BYTES;
use crate::pointers::test::{bytes, context, input, output, room};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{self, CqAttr, EqAttr, FidEq};

#[test]
fn what_others_stand_on_is_not_closed() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    for busy in [
        close(side.cq),
        close(side.av),
        close(side.domain),
        close(side.fabric),
    ] {
        assert_eq!(busy, -libc::EBUSY);
    }
    side.close();
}

#[test]
fn an_endpoint_needs_queue_and_addresses() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    let ep = open_endpoint(side.domain);
    let ops = at(ep).head.ops;
    let enable = || (ops.control)(head(ep), sys::CONTROL_ENABLE, Out::NULL);
    let send = || (at(ep).msg.send)(ep, bytes(b""), 0, Context::NULL, 0, Context::NULL);
    assert_eq!(enable(), -sys::FI_ENOAV);
    assert_eq!(send(), -(sys::FI_EOPBADSTATE as isize));
    assert_eq!((ops.bind)(head(ep), head(side.av), 0), 0);
    assert_eq!(enable(), -sys::FI_ENOCQ);
    assert_eq!((ops.bind)(head(ep), head(side.cq), 0), -sys::FI_EBADFLAGS);
    assert_eq!((ops.bind)(head(ep), head(side.cq), sys::RECV), 0);
    assert_eq!((ops.bind)(head(ep), head(side.domain), 0), -libc::ENOSYS);
    assert_eq!(
        (ops.bind)(head(ep), Fid::new(std::ptr::null_mut()), 0),
        -libc::EINVAL
    );
    assert_eq!(enable(), 0);
    // It has no queue for Sends.
    assert_eq!(send(), -(sys::FI_ENOCQ as isize));
    assert_eq!(close(ep), 0);
    side.close();
}

#[test]
fn what_is_not_there_says_so() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    let none = Context::NULL;
    let (ep, null) = (at(side.ep), std::ptr::null_mut());
    let unsupported = -(libc::ENOSYS as isize);
    assert_eq!((ep.collective.msg)(side.ep, null, null, 0), unsupported);
    assert_eq!(
        (at(side.domain).ops.stx_ctx)(side.domain, null, null, none),
        -libc::ENOSYS
    );
    // Objects of another class.
    let av = Fid::new(side.cq.pointer().cast());
    assert_eq!(
        (at(side.av).ops.lookup)(av, 0, Out::NULL, Out::NULL),
        -libc::EINVAL
    );
    let bad = CqAttr {
        format: 9,
        ..TAGGED
    };
    let mut to = Fid::new(std::ptr::null_mut());
    let open = at(side.domain).ops.cq_open;
    assert_eq!(
        open(side.domain, input(&bad), output(&mut to), none),
        -libc::EINVAL
    );
    assert_eq!(
        open(side.domain, input(&TAGGED), Out::NULL, none),
        -libc::EINVAL
    );
    side.close();
}

#[test]
fn addresses_are_inserted_looked_up_and_removed() {
    let (_cluster, a, b) = pair();
    let ops = at(a.av).ops;
    // Two: one of them is none.
    let mut both = [0; 2 * BYTES];
    both[BYTES..].copy_from_slice(&b.name);
    let mut numbers = [0u64; 2];
    let inserted = (ops.insert)(a.av, bytes(&both), 2, output(&mut numbers[0]), 0, Out::NULL);
    assert_eq!((inserted, numbers), (1, [sys::ADDR_UNSPEC, 1]));

    let (mut name, mut length) = ([0; BYTES + 1], BYTES + 1);
    assert_eq!(
        (ops.lookup)(a.av, 1, room(&mut name), output(&mut length)),
        0
    );
    assert_eq!((&name[..length], name[BYTES]), (&b.name[..], 0));
    length = 3;
    assert_eq!(
        (ops.lookup)(a.av, 1, room(&mut name), output(&mut length)),
        -sys::FI_ETOOSMALL
    );
    assert_eq!(length, BYTES);

    assert_eq!((ops.remove)(a.av, input(&1), 1, 0), 0);
    assert_eq!((ops.remove)(a.av, input(&1), 1, 0), -libc::EINVAL);
    assert_eq!(
        (ops.lookup)(a.av, 1, room(&mut name), output(&mut length)),
        -libc::EINVAL
    );

    let (mut text, mut length) = ([0xff; 64], 64);
    let shown = (ops.straddr)(a.av, bytes(&b.name), room(&mut text), output(&mut length));
    assert!(!shown.is_null());
    let shown = std::str::from_utf8(&text[..length - 1]).unwrap();
    assert!(
        shown.starts_with("qnic://1:") && text[length - 1] == 0,
        "{shown}"
    );
    let (mut cut, mut length) = ([0xff; 6], 6);
    (ops.straddr)(a.av, bytes(&b.name), room(&mut cut), output(&mut length));
    assert_eq!((&cut, length), (b"qnic:\0", shown.len() + 1));
}

#[test]
fn events_of_a_program_come_back() {
    let cluster = Cluster::new(1);
    let (fabric, domain) = cluster.domain(0);
    let attributes = EqAttr {
        size: 0,
        flags: 0,
        wait_obj: 1,
        signaling_vector: 0,
        wait_set: std::ptr::null_mut(),
    };
    let open = at(fabric).ops.eq_open;
    let queue: Fid<FidEq> = opened(|to| open(fabric, input(&attributes), to, Context::NULL));
    assert_eq!((at(domain).head.ops.bind)(head(domain), head(queue), 0), 0);
    let ops = at(queue).ops;
    let (mut event, mut into) = (0, [0; 8]);
    let nothing = (ops.read)(queue, output(&mut event), room(&mut into), 8, 0);
    assert_eq!(nothing, -(libc::EAGAIN as isize));
    let nothing = (ops.sread)(queue, output(&mut event), room(&mut into), 8, 1, 0);
    assert_eq!(nothing, -(libc::EAGAIN as isize));
    assert_eq!((ops.write)(queue, 7, bytes(b"event"), 5, 0), 5);
    let small = (ops.read)(queue, output(&mut event), room(&mut into), 4, 0);
    assert_eq!(small, -(sys::FI_ETOOSMALL as isize));
    for flags in [sys::PEEK, 0] {
        assert_eq!(
            (ops.sread)(queue, output(&mut event), room(&mut into), 8, -1, flags),
            5
        );
        assert_eq!((event, &into[..5]), (7, &b"event"[..]));
    }
    assert_eq!(close(queue), -libc::EBUSY);
    for object in [head(domain), head(queue), head(fabric)] {
        assert_eq!(close(object), 0);
    }
}

#[test]
fn errors_are_read_as_errors_only() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    let mut entry = empty();
    let ops = at(side.cq).ops;
    assert_eq!(
        (ops.readerr)(side.cq, Out::NULL, 0),
        -(libc::EINVAL as isize)
    );
    assert_eq!((ops.read)(side.cq, erased(&mut entry), 0), 0);
    assert_eq!(entry.context, Context::NULL);
    let mut text = [0xff; 10];
    let shown = (ops.strerror)(side.cq, 9999, In::NULL, room(&mut text), 10);
    assert!(!shown.is_null());
    assert_eq!(&text, b"status 99\0");
    let gone = qnic::Status::PeerGone;
    (ops.strerror)(side.cq, gone as i32, In::NULL, room(&mut text), 10);
    assert_eq!(text[..9], gone.to_string().as_bytes()[..9]);
    assert_ne!(context(1), Context::NULL);
    side.close();
}
