//! Counters of operations.

use super::harness::{at, close, enable, head, open_endpoint, opened, pair, Side};
use crate::address::BYTES;
use crate::pointers::test::{input, output, room};
use crate::pointers::{Context, Fid};
use crate::sys::{self, CntrAttr, FidCntr, ADDR_UNSPEC};

const ATTRIBUTES: CntrAttr = CntrAttr {
    events: 0,
    wait_obj: 1,
    wait_set: std::ptr::null_mut(),
    flags: 0,
};

pub(super) fn open(side: &Side) -> Fid<FidCntr> {
    let open = at(side.domain).ops.cntr_open;
    opened(|to| open(side.domain, input(&ATTRIBUTES), to, Context::NULL))
}

fn counting(side: &Side) -> (Side, Fid<FidCntr>, Fid<FidCntr>) {
    let (sends, receives) = (open(side), open(side));
    let counting = endpoint(side, &[(sends, sys::SEND), (receives, sys::RECV)]);
    (counting, sends, receives)
}

/// An endpoint of the side's domain that has counters, and no queue.
pub(super) fn endpoint(side: &Side, counters: &[(Fid<FidCntr>, u64)]) -> Side {
    let ep = open_endpoint(side.domain);
    let bind = at(ep).head.ops.bind;
    assert_eq!(bind(head(ep), head(side.av), 0), 0);
    for (counter, flags) in counters {
        assert_eq!(bind(head(ep), head(*counter), *flags), 0);
    }
    assert_eq!(enable(ep), 0);
    let (mut name, mut length) = ([0; BYTES], BYTES);
    assert_eq!(
        (at(ep).cm.getname)(head(ep), room(&mut name), output(&mut length)),
        0
    );
    Side { ep, name, ..*side }
}

#[test]
fn ends_are_counted_with_failures_apart() {
    let (_cluster, a, b) = pair();
    let (counted, sends, receives) = counting(&a);
    let (to, from) = (b.insert(&counted.name), counted.insert(&b.name));
    let ops = at(receives).ops;
    let mut rooms = [[0; 4]; 3];
    let [one, two, short] = &mut rooms;
    counted.receive(ADDR_UNSPEC, Some((1, 0)), one, 1);
    counted.receive(ADDR_UNSPEC, Some((2, 0)), two, 1);
    counted.receive(ADDR_UNSPEC, Some((3, 0)), &mut short[..1], 7);
    assert_eq!((ops.wait)(receives, 1, 1), -libc::ETIMEDOUT);
    b.send(to, Some(1), b"one!", 0);
    assert_eq!((ops.wait)(receives, 1, -1), 0);
    b.send(to, Some(3), b"long", 0);
    assert_eq!((ops.wait)(receives, 3, -1), -sys::FI_EAVAIL);
    b.send(to, Some(2), b"two!", 0);
    assert_eq!((ops.wait)(receives, 2, -1), 0);
    assert_eq!(((ops.read)(receives), (ops.readerr)(receives)), (2, 1));
    assert_eq!(rooms[..2], [*b"one!", *b"two!"]);
    // Nothing of it was told to the queue of the other endpoint.
    assert!(a.poll().is_none());

    counted.send(from, Some(9), b"back", 3);
    assert_eq!((at(sends).ops.wait)(sends, 1, -1), 0);
    for (change, value) in [(ops.add, 5), (ops.set, 40)] {
        assert_eq!(change(receives, value), 0);
    }
    assert_eq!((ops.read)(receives), 40);
    assert_eq!(((ops.adderr)(receives, 1), (ops.readerr)(receives)), (0, 2));
    assert_eq!(((ops.seterr)(receives, 0), (ops.readerr)(receives)), (0, 0));
    assert_eq!(close(sends), -libc::EBUSY);
    assert_eq!(
        (close(counted.ep), close(sends), close(receives)),
        (0, 0, 0)
    );
}
