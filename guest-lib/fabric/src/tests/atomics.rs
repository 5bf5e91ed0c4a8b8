//! Atomic operations on peers' memory.

use zerocopy::IntoBytes;

use super::harness::{at, close, head, opened, pair, Side};
use super::memory::end;
use super::regions::{register, ALL};
use crate::pointers::test::{bytes, context, input, output, room};
use crate::pointers::{Context, In, Out};
use crate::service::ATOMIC_MAX;
use crate::sys::{self, AtomicAttr, Ioc, MsgAtomic, RmaIoc};

const I64: u32 = 6;
const U64: u32 = 7;
const DOUBLE: u32 = 9;

fn sum(side: &Side, to: u64, operand: u64, number: usize) {
    let operand = operand.to_ne_bytes();
    let atomic = at(side.ep).atomic.write;
    let (none, number) = (Context::NULL, context(number));
    let begun = atomic(
        side.ep,
        bytes(&operand),
        1,
        none,
        to,
        8,
        1,
        U64,
        sys::SUM,
        number,
    );
    assert_eq!(begun, 0);
}

fn fetch(side: &Side, operand: u64, operation: u32) -> Result<u64, i32> {
    let (operand, mut was) = (operand.to_ne_bytes(), [0xee; 8]);
    let (none, readwrite) = (Context::NULL, at(side.ep).atomic.readwrite);
    let (from, into, number) = (bytes(&operand), room(&mut was), context(2));
    let from = if operation == sys::ATOMIC_READ {
        In::NULL
    } else {
        from
    };
    let begun = readwrite(
        side.ep, from, 1, none, into, none, 0, 8, 1, U64, operation, number,
    );
    assert_eq!(begun, 0);
    let entry = end(side, 2)?;
    assert_eq!(entry.flags, sys::ATOMIC | sys::READ);
    Ok(u64::from_ne_bytes(was))
}

fn compare(side: &Side, operand: u64, compared: u64, operation: u32) -> u64 {
    let (operand, compared) = (operand.to_ne_bytes(), compared.to_ne_bytes());
    let mut was = [0xee; 8];
    let (none, compwrite) = (Context::NULL, at(side.ep).atomic.compwrite);
    let begun = compwrite(
        side.ep,
        bytes(&operand),
        1,
        none,
        bytes(&compared),
        none,
        room(&mut was),
        none,
        0,
        8,
        1,
        U64,
        operation,
        context(3),
    );
    assert_eq!((begun, end(side, 3).is_ok()), (0, true));
    u64::from_ne_bytes(was)
}

#[test]
fn elements_are_changed_fetched_and_compared() {
    let (_cluster, a, b) = pair();
    let mut memory = [1u64, 5, 1].map(u64::to_ne_bytes).concat();
    let region = register(&b, &mut memory, ALL, 1);
    sum(&a, 0, 10, 1);
    let entry = end(&a, 1).unwrap();
    assert_eq!(entry.flags, sys::ATOMIC | sys::WRITE);
    assert_eq!(fetch(&a, 7, sys::SUM), Ok(15));
    assert_eq!(fetch(&a, 0, sys::ATOMIC_READ), Ok(22));
    assert_eq!(fetch(&a, 6, sys::ATOMIC_WRITE), Ok(22));
    assert_eq!(fetch(&a, 9, sys::MAX), Ok(6));
    assert_eq!(compare(&a, 1, 8, sys::CSWAP), 9);
    assert_eq!(compare(&a, 1, 9, sys::CSWAP), 9);
    assert_eq!(compare(&a, 0xff, 0x0e, sys::MSWAP), 1);
    // Neighbours are as they were.
    assert_eq!(memory, [1u64, 0x0f, 1].map(u64::to_ne_bytes).concat());
    assert_eq!(close(region), 0);
}

/// As constants of a program are, or pages that it protects.
#[test]
fn memory_that_the_program_may_not_write_is_an_error_of_the_operation() {
    static CONSTANT: [u64; 2] = [1, 5];
    let (_cluster, a, b) = pair();
    let reg = at(b.domain).mr.reg;
    let memory = CONSTANT.as_bytes();
    let region = opened(|to| {
        let (domain, length) = (head(b.domain), memory.len());
        reg(
            domain,
            bytes(memory),
            length,
            ALL,
            0,
            1,
            0,
            to,
            Context::NULL,
        )
    });
    sum(&a, 0, 1, 1);
    assert_eq!(end(&a, 1).map(|_| ()), Err(libc::EFAULT));
    assert_eq!(fetch(&a, 7, sys::ATOMIC_WRITE), Err(libc::EFAULT));
    assert_eq!(fetch(&a, 0, sys::ATOMIC_READ), Ok(5));
    assert_eq!(close(region), 0);
}

/// Two that add, and one that swaps: nothing is lost, and each sees what another has left.
#[test]
fn operations_of_several_peers_are_one_behind_the_other() {
    const EACH: usize = 300;
    let (_cluster, a, b) = pair();
    let mut memory = [0u8; 16];
    let region = register(&b, &mut memory, ALL, 1);
    let own = b.insert(&b.name);
    for _ in 0..EACH {
        sum(&a, 0, 1, 1);
        sum(&b, own, 1 << 32, 1);
    }
    for side in [&a, &b] {
        for _ in 0..EACH {
            assert!(end(side, 1).is_ok());
        }
    }
    let all = EACH as u64;
    assert_eq!(fetch(&a, 0, sys::ATOMIC_READ), Ok(all << 32 | all));
    assert_eq!(close(region), 0);
}

/// Each domain has a service and a thread of its own.
#[test]
fn operations_by_two_domains_on_the_same_memory_lose_nothing() {
    const EACH: usize = 1000;
    let (_cluster, a, b) = pair();
    let mut memory = [0u8; 16];
    let (one, two) = (
        register(&a, &mut memory, ALL, 1),
        register(&b, &mut memory, ALL, 1),
    );
    for _ in 0..EACH {
        sum(&a, 0, 1, 1);
        sum(&b, 0, 1 << 32, 1);
    }
    for side in [&a, &b] {
        for _ in 0..EACH {
            assert!(end(side, 1).is_ok());
        }
    }
    let all = EACH as u64;
    assert_eq!(fetch(&a, 0, sys::ATOMIC_READ), Ok(all << 32 | all));
    assert_eq!((close(one), close(two)), (0, 0));
}

/// Of one peer in the order of its calls, which do not wait for each other.
#[test]
fn operations_of_one_peer_keep_their_order() {
    let (_cluster, a, b) = pair();
    let mut memory = [0u8; 16];
    let region = register(&b, &mut memory, ALL, 1);
    let operands: Vec<[u8; 8]> = (1..=100u64).map(u64::to_ne_bytes).collect();
    let mut seen = vec![[0; 8]; 100];
    let (none, readwrite) = (Context::NULL, at(a.ep).atomic.readwrite);
    for (operand, into) in operands.iter().zip(&mut seen) {
        let (from, into, write) = (bytes(operand), room(into), sys::ATOMIC_WRITE);
        let begun = readwrite(
            a.ep,
            from,
            1,
            none,
            into,
            none,
            0,
            8,
            1,
            U64,
            write,
            context(2),
        );
        assert_eq!(begun, 0);
    }
    for _ in 0..100 {
        assert!(end(&a, 2).is_ok());
    }
    let expected: Vec<_> = (0..100u64).map(u64::to_ne_bytes).collect();
    assert_eq!(seen, expected);
    assert_eq!(close(region), 0);
}

#[test]
fn many_elements_come_in_pieces_and_structures() {
    let (_cluster, a, b) = pair();
    let count = ATOMIC_MAX / 8;
    let mut memory: Vec<u8> = (0..count)
        .flat_map(|it| (it as f64).to_ne_bytes())
        .collect();
    let region = register(&b, &mut memory, ALL, 1);
    let halves = vec![0.5f64.to_ne_bytes(); count].concat();
    let (head, tail) = halves.split_at(8 * 3);
    let pieces = [head, tail].map(|it| Ioc {
        base: bytes(it).as_out(),
        count: it.len() / 8,
    });
    let mut was = vec![0; ATOMIC_MAX];
    let result = Ioc {
        base: room(&mut was),
        count,
    };
    let remote = RmaIoc {
        addr: 0,
        count,
        key: 1,
    };
    let message = MsgAtomic {
        iov: input(&pieces[0]),
        desc: In::NULL,
        iov_count: 2,
        addr: 0,
        rma_iov: input(&remote),
        rma_iov_count: 1,
        datatype: DOUBLE,
        op: sys::SUM,
        context: context(5),
        data: 33,
    };
    let readwritemsg = at(a.ep).atomic.readwritemsg;
    let flags = sys::REMOTE_CQ_DATA | sys::DELIVERY_COMPLETE;
    let begun = readwritemsg(a.ep, input(&message), input(&result), In::NULL, 1, flags);
    assert_eq!((begun, end(&a, 5).is_ok()), (0, true));
    let expected: Vec<u8> = (0..count)
        .flat_map(|it| (it as f64 + 0.5).to_ne_bytes())
        .collect();
    assert!(memory == expected);
    assert!(
        was == (0..count)
            .flat_map(|it| (it as f64).to_ne_bytes())
            .collect::<Vec<_>>()
    );
    let (told, _) = b.next().unwrap();
    assert_eq!((told.data, told.flags & sys::ATOMIC), (33, sys::ATOMIC));
    // Of both sides as many.
    let less = RmaIoc { count: 1, ..remote };
    let message = MsgAtomic {
        rma_iov: input(&less),
        ..message
    };
    let refused = readwritemsg(a.ep, input(&message), input(&result), In::NULL, 1, flags);
    assert_eq!(refused, -(libc::EINVAL as isize));
    assert_eq!(close(region), 0);
}

#[test]
fn what_there_is_is_told() {
    let (_cluster, a, _b) = pair();
    let ops = at(a.ep).atomic;
    let most = |valid: extern "C" fn(_, u32, u32, Out<usize>) -> i32, datatype, operation| {
        let mut most = 0;
        let found = valid(a.ep, datatype, operation, output(&mut most));
        (found, most)
    };
    let no = (-libc::EOPNOTSUPP, 0);
    assert_eq!(most(ops.writevalid, I64, sys::SUM), (0, ATOMIC_MAX / 8));
    assert_eq!(most(ops.writevalid, I64, sys::ATOMIC_READ), no);
    assert_eq!(
        most(ops.readwritevalid, 0, sys::ATOMIC_READ),
        (0, ATOMIC_MAX)
    );
    assert_eq!(most(ops.readwritevalid, DOUBLE, sys::BOR), no);
    assert_eq!(
        most(ops.compwritevalid, DOUBLE, sys::CSWAP),
        (0, ATOMIC_MAX / 8)
    );
    // Complex numbers.
    assert_eq!(most(ops.compwritevalid, 11, sys::CSWAP), no);
    let query = at(a.domain).ops.query_atomic;
    let mut attr = AtomicAttr { count: 0, size: 0 };
    assert_eq!(
        query(
            a.domain,
            4,
            sys::CSWAP,
            output(&mut attr),
            sys::COMPARE_ATOMIC
        ),
        0
    );
    assert_eq!((attr.count, attr.size), (ATOMIC_MAX / 4, 4));
    assert_eq!(
        query(a.domain, 4, sys::CSWAP, output(&mut attr), 0),
        -libc::EOPNOTSUPP
    );
}

#[test]
fn what_cannot_be_done_is_refused() {
    let (_cluster, a, b) = pair();
    let ops = at(a.ep).atomic;
    let mut memory = vec![0u8; ATOMIC_MAX + 8];
    let region = register(&b, &mut memory, sys::REMOTE_WRITE, 1);
    let (none, too_many) = (Context::NULL, ATOMIC_MAX / 8 + 1);
    let write = |count, operation| {
        (ops.write)(
            a.ep,
            bytes(&memory),
            count,
            none,
            0,
            0,
            1,
            I64,
            operation,
            none,
        )
    };
    assert_eq!(write(too_many, sys::SUM), -(libc::EMSGSIZE as isize));
    assert_eq!(write(0, sys::SUM), -(libc::EINVAL as isize));
    assert_eq!(write(1, sys::CSWAP), -(libc::EOPNOTSUPP as isize));
    // It may be written, not read.
    assert_eq!(fetch(&a, 1, sys::SUM), Err(libc::EACCES));
    assert_eq!(
        (ops.inject)(a.ep, bytes(&[1; 8]), 1, 0, 8, 1, I64, sys::ATOMIC_WRITE),
        0
    );
    sum(&a, 0, 1, 1);
    assert!(end(&a, 1).is_ok());
    assert_eq!(memory[8..16], [2, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(close(region), 0);
}
