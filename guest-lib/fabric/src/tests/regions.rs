//! Registered memory: keys, access, binding, closing.

use super::harness::{at, close, head, opened, Cluster, Side, BOTH, TAGGED};
use crate::pointers::test::{bytes, context, input, output, room};
use crate::pointers::{Context, Fid, In, Out};
use crate::sys::{self, FidMr, Iov, MrAttr};

/// What peers may do with memory.
pub(super) const ALL: u64 = sys::REMOTE_READ | sys::REMOTE_WRITE;

/// Registers memory of a test, which outlives the registration.
pub(super) fn register(side: &Side, memory: &mut [u8], access: u64, key: u64) -> Fid<FidMr> {
    let reg = at(side.domain).mr.reg;
    opened(|to| {
        let length = memory.len();
        let base = room(memory).as_in();
        reg(
            head(side.domain),
            base,
            length,
            access,
            0,
            key,
            0,
            to,
            context(4),
        )
    })
}

fn refused(side: &Side, base: In<std::ffi::c_void>, offset: u64, key: u64, flags: u64) -> i32 {
    let mut to: Fid<FidMr> = Fid::new(std::ptr::null_mut());
    let reg = at(side.domain).mr.reg;
    reg(
        head(side.domain),
        base,
        8,
        ALL,
        offset,
        key,
        flags,
        output(&mut to),
        context(4),
    )
}

#[test]
fn keys_are_the_programs_and_unique() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    let mut memory = [0; 64];
    let first = register(&side, &mut memory, ALL, u64::MAX);
    assert_eq!(
        (at(first).key, at(first).mem_desc),
        (u64::MAX, Context::NULL)
    );
    assert_eq!(at(first).head.context, context(4));
    assert_eq!(
        refused(&side, bytes(&memory), 0, u64::MAX, 0),
        -sys::FI_ENOKEY
    );
    // Overlapping ones are other regions.
    let second = register(&side, &mut memory[8..], ALL, 0);
    assert_eq!(close(first), 0);
    let again = register(&side, &mut memory, sys::SEND | sys::RECV, u64::MAX);
    assert_eq!(close(side.domain), -libc::EBUSY);
    assert_eq!((close(again), close(second)), (0, 0));
    side.close();
}

#[test]
fn what_cannot_be_registered_is_refused() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    let memory = [0; 8];
    assert_eq!(refused(&side, bytes(&memory), 1, 1, 0), -libc::EINVAL);
    assert_eq!(
        refused(&side, bytes(&memory), 0, 1, 1 << 3),
        -sys::FI_EBADFLAGS
    );
    let reg = at(side.domain).mr.reg;
    let domain = head(side.domain);
    let nowhere = reg(
        domain,
        bytes(&memory),
        8,
        ALL,
        0,
        1,
        0,
        Out::NULL,
        Context::NULL,
    );
    assert_eq!(nowhere, -libc::EINVAL);
    let mut to: Fid<FidMr> = Fid::new(std::ptr::null_mut());
    let access = reg(
        domain,
        bytes(&memory),
        8,
        1,
        0,
        1,
        0,
        output(&mut to),
        Context::NULL,
    );
    assert_eq!(access, -libc::EINVAL);
    let many = [Iov {
        base: Out::NULL,
        length: 1,
    }; 9];
    let regv = at(side.domain).mr.regv;
    let many = regv(
        domain,
        input(&many[0]),
        9,
        ALL,
        0,
        1,
        0,
        output(&mut to),
        Context::NULL,
    );
    assert_eq!(many, -libc::EINVAL);
    let regattr = at(side.domain).mr.regattr;
    let nothing = (In::NULL, output(&mut to));
    assert_eq!(regattr(domain, nothing.0, 0, nothing.1), -libc::EINVAL);
    // Not a domain.
    assert_eq!(
        regattr(head(side.av), nothing.0, 0, nothing.1),
        -libc::EINVAL
    );
    side.close();
}

#[test]
fn regions_are_enabled_and_bound() {
    let cluster = Cluster::new(1);
    let side = Side::new(&cluster, 0, TAGGED, BOTH);
    let memory = [0; 8];
    let piece = Iov {
        base: bytes(&memory).as_out(),
        length: 8,
    };
    let attributes = MrAttr {
        iov: input(&piece),
        iov_count: 1,
        access: ALL,
        offset: 0,
        requested_key: 5,
        context: context(6),
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    };
    let regattr = at(side.domain).mr.regattr;
    // FI_RMA_EVENT: a counter will be bound.
    let region = opened(|to| regattr(head(side.domain), input(&attributes), sys::RMA_EVENT, to));
    assert_eq!((at(region).key, at(region).head.context), (5, context(6)));
    let ops = at(region).head.ops;
    for command in [sys::CONTROL_ENABLE, sys::CONTROL_REFRESH] {
        assert_eq!((ops.control)(head(region), command, Out::NULL), 0);
    }
    assert_eq!((ops.control)(head(region), 99, Out::NULL), -libc::ENOSYS);
    assert_eq!((ops.bind)(head(region), head(side.ep), 0), 0);
    assert_eq!((ops.bind)(head(region), head(side.cq), 0), -libc::EINVAL);
    assert_eq!(close(region), 0);
    side.close();
}

/// A region of a program that asks for FI_MR_BASIC has a key of the provider, and its bytes are named by their
/// addresses.
#[test]
fn basic_regions_are_named_by_key_and_address_of_the_provider() {
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let basic = Side::basic(&cluster, 1);
    let number = a.insert(&basic.name);
    let mut memory = [7u8; 32];
    let (one, two) = (
        register(&basic, &mut memory, ALL, 9),
        register(&basic, &mut memory, ALL, 9),
    );
    assert_ne!(at(one).key, at(two).key);
    let mut into = [0; 4];
    let address = memory.as_ptr().addr() as u64;
    let read = super::memory::read(&a, number, &mut into, (address + 28, at(two).key), 3);
    assert_eq!((read, into), (Ok(()), [7; 4]));
    for (offset, key) in [
        (0, at(two).key),
        (address - 1, at(two).key),
        (address + 29, at(two).key),
    ] {
        let read = super::memory::read(&a, number, &mut into, (offset, key), 3);
        assert_eq!(read, Err(libc::EACCES));
    }
    assert_eq!((close(one), close(two)), (0, 0));
}
