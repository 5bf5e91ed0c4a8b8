//! Groups and collectives: several at once; members that are slow, close, call something else, or are killed.

use std::ffi::c_int;
use std::io::Read;
use std::time::{Duration, Instant};

use super::harness::{at, close, domain_at, erased, opened, Cluster, Side, BOTH, TAGGED};
use super::processes::{bytes_of, digits_of, start, ADDRESS, PEER, SOCKET};
use crate::pointers::test::{bytes, context, input, output, room};
use crate::pointers::{Context, Fid, In};
use crate::sys::{
    self, AvSetAttr, CollectiveAddr, EqEntry, EqErrEntry, FidAvSet, FidMc, ADDR_UNSPEC,
};

const U64: u32 = 7;
/// Longer than the peer timeout, shorter than a call waits for its members.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn set_of(side: &Side, members: &[u64]) -> Fid<FidAvSet> {
    let attributes = AvSetAttr {
        count: 0,
        start_addr: ADDR_UNSPEC,
        end_addr: ADDR_UNSPEC,
        stride: 0,
        comm_key_size: 0,
        comm_key: std::ptr::null_mut(),
        flags: 0,
    };
    let open = at(side.av).ops.av_set;
    let set = opened(|to| open(side.av, input(&attributes), to, Context::NULL));
    for member in members {
        assert_eq!((at(set).ops.insert)(set, *member), 0);
    }
    set
}

/// Begins to join the group of a set.
pub(super) fn try_join(side: &Side, set: Fid<FidAvSet>) -> Result<Fid<FidMc>, c_int> {
    let mut coll_addr = 0;
    assert_eq!((at(set).ops.addr)(set, output(&mut coll_addr)), 0);
    let address = CollectiveAddr { set, coll_addr };
    let mut mc = Fid::new(std::ptr::null_mut());
    let join = at(side.ep).cm.join;
    match join(
        side.ep,
        input(&address),
        sys::COLLECTIVE,
        output(&mut mc),
        context(9),
    ) {
        0 => Ok(mc),
        error => Err(error),
    }
}

/// Waits for the event that tells that it has joined.
pub(super) fn await_join(side: &Side) -> Result<(), EqErrEntry> {
    let mut kind = 0;
    let mut entry = EqEntry {
        fid: Context::NULL,
        context: Context::NULL,
        data: 0,
    };
    let ops = at(side.events).ops;
    let (length, limit) = (size_of::<EqEntry>(), 60_000);
    let read = (ops.sread)(
        side.events,
        output(&mut kind),
        erased(&mut entry),
        length,
        limit,
        0,
    );
    if read == -(sys::FI_EAVAIL as isize) {
        let mut error = EqErrEntry {
            entry,
            err: 0,
            prov_errno: 0,
            err_data: std::ptr::null_mut(),
            err_data_size: 0,
        };
        let taken = (ops.readerr)(side.events, output(&mut error), 0);
        assert_eq!(taken, size_of::<EqErrEntry>() as isize);
        return Err(error);
    }
    assert_eq!((read, kind), (length as isize, sys::JOIN_COMPLETE));
    assert_eq!(entry.context, context(9));
    Ok(())
}

/// Joins the group of some members of which these sides are all.
fn join_all(sides: &[&Side], members: &[&[u64]]) -> Vec<Fid<FidMc>> {
    let begin = |(side, members): (&&Side, &&[u64])| {
        let set = set_of(side, members);
        let mc = try_join(side, set).unwrap();
        assert_eq!(close(set), 0);
        mc
    };
    let groups = sides.iter().zip(members).map(begin).collect();
    sides.iter().for_each(|side| await_join(side).unwrap());
    groups
}

/// What a member gives and gets.
pub(super) type Words = ([u8; 8], [u8; 8]);

pub(super) fn sum(side: &Side, mc: Fid<FidMc>, (given, taken): &mut Words, number: usize) -> isize {
    allreduce(side, mc, (given, taken), (U64, 1, sys::SUM), number)
}

/// An allreduce of so many elements of a type, by an operation.
fn allreduce(
    side: &Side,
    mc: Fid<FidMc>,
    (given, taken): (&[u8], &mut [u8]),
    (datatype, count, operation): (u32, usize, u32),
    number: usize,
) -> isize {
    let (group, none) = (at(mc).address, Context::NULL);
    let (from, into, number) = (bytes(given), room(taken), context(number));
    let allreduce = at(side.ep).collective.allreduce;
    allreduce(
        side.ep, from, count, none, into, none, group, datatype, operation, 0, number,
    )
}

/// Gives a number.
pub(super) fn giving(number: u64) -> Words {
    (number.to_ne_bytes(), [0; 8])
}

fn barrier(side: &Side, mc: Fid<FidMc>, number: usize) -> isize {
    (at(side.ep).collective.barrier)(side.ep, at(mc).address, context(number))
}

/// So many sides that know each other by their numbers.
fn sides(cluster: &Cluster, count: u16) -> Vec<Side> {
    let sides: Vec<Side> = (0..count)
        .map(|node| Side::new(cluster, node, TAGGED, BOTH))
        .collect();
    for side in &sides {
        for (number, other) in sides.iter().enumerate() {
            assert_eq!(side.insert(&other.name), number as u64);
        }
    }
    sides
}

/// Groups with some members in common, one of which comes late; each has many sums under way.
#[test]
fn members_of_two_groups_call_at_once_and_wait_for_the_slow_one() {
    call_at_once(&Cluster::new(3));
    call_at_once(&Cluster::lossy(3, 5.0));
}

fn call_at_once(cluster: &Cluster) {
    const SUMS: usize = 40;
    let all = sides(cluster, 3);
    let [a, b, c] = &all[..] else { unreachable!() };
    let order: &[u64] = &[0, 1, 2];
    let first = join_all(&[a, b, c], &[order; 3]);
    let twice = join_all(&[a, b, c], &[order; 3]);
    let other: &[u64] = &[2, 1];
    let second = join_all(&[b, c], &[other; 2]);
    let mut results = vec![[giving(0); 3 * SUMS]; 3];
    let mut call = |rank: usize, mc, which: usize, base: u64| {
        let results = results[rank][which * SUMS..][..SUMS].iter_mut();
        for (number, result) in results.enumerate() {
            *result = giving(base + (number as u64) * 10 + rank as u64);
            assert_eq!(sum(&all[rank], mc, result, which * SUMS + number), 0);
        }
    };
    call(0, first[0], 0, 0);
    call(0, twice[0], 1, 1000);
    call(1, second[0], 2, 5000);
    call(1, twice[1], 1, 1000);
    call(1, first[1], 0, 0);
    // The third one has called nothing.
    assert!(a.poll().is_none() && b.poll().is_none());
    call(2, first[2], 0, 0);
    call(2, second[1], 2, 5000);
    call(2, twice[2], 1, 1000);
    for (side, count) in [(a, 2 * SUMS), (b, 3 * SUMS), (c, 3 * SUMS)] {
        for _ in 0..count {
            let (entry, _) = side.next().unwrap();
            assert_eq!(entry.flags, sys::COLLECTIVE);
        }
    }
    for (rank, results) in results.iter().enumerate() {
        for number in 0..SUMS {
            let of = |which: usize| u64::from_ne_bytes(results[which * SUMS + number].1);
            let step = number as u64 * 10;
            assert_eq!((of(0), of(1)), (3 * step + 3, 3 * (1000 + step) + 3));
            if rank > 0 {
                assert_eq!(of(2), 2 * (5000 + step) + 3);
            }
        }
    }
    let groups = first.into_iter().chain(twice).chain(second);
    groups.for_each(|mc| assert_eq!(close(mc), 0));
    all.into_iter().for_each(Side::close);
}

/// It may close as soon as its own sum is there; later calls of the others fail, and are not taken for its last ones.
#[test]
fn a_member_that_closes_takes_no_result_from_the_others() {
    let cluster = Cluster::new(3);
    let all = sides(&cluster, 3);
    let [a, b, c] = &all[..] else { unreachable!() };
    let order: &[u64] = &[0, 1, 2];
    for _ in 0..10 {
        let groups = join_all(&[a, b, c], &[order; 3]);
        let mut results = [giving(5); 3];
        for (rank, result) in results.iter_mut().enumerate() {
            assert_eq!(sum(&all[rank], groups[rank], result, 1), 0);
        }
        a.next().unwrap();
        // It has not left yet.
        assert_eq!(close(a.ep), -libc::EBUSY);
        assert_eq!(close(groups[0]), 0);
        b.next().unwrap();
        c.next().unwrap();
        assert_eq!(results.map(|(_, sum)| u64::from_ne_bytes(sum)), [15; 3]);
        let mut late = giving(5);
        assert_eq!(sum(b, groups[1], &mut late, 2), 0);
        let error = b.next().unwrap_err();
        assert_eq!(
            (error.entry.context, error.err),
            (context(2), libc::ECONNABORTED)
        );
        assert_eq!((close(groups[1]), close(groups[2])), (0, 0));
    }
    all.into_iter().for_each(Side::close);
}

#[test]
fn members_that_call_different_things_fail() {
    let cluster = Cluster::new(2);
    let all = sides(&cluster, 2);
    let [a, b] = &all[..] else { unreachable!() };
    let order: &[u64] = &[0, 1];
    let groups = join_all(&[a, b], &[order; 2]);
    let mut result = giving(5);
    assert_eq!(sum(a, groups[0], &mut result, 1), 0);
    assert_eq!(barrier(b, groups[1], 1), 0);
    for side in [a, b] {
        assert_eq!(side.next().unwrap_err().err, libc::ECONNABORTED);
    }
    // A new one forms.
    groups.into_iter().for_each(|mc| assert_eq!(close(mc), 0));
    let groups = join_all(&[a, b], &[order; 2]);
    assert_eq!((barrier(a, groups[0], 1), barrier(b, groups[1], 1)), (0, 0));
    a.next().unwrap();
    b.next().unwrap();
    groups.into_iter().for_each(|mc| assert_eq!(close(mc), 0));
    all.into_iter().for_each(Side::close);
}

/// A call of 8 bytes for each of two members, or of 16.
type AnyCall = fn(&Side, Fid<FidMc>, &mut [u8; 16], &mut [u8; 16]) -> isize;

/// Two collectives that one operation of the NICs carries.
type Alike = (AnyCall, AnyCall);

fn reduced<const TYPE: u32, const COUNT: usize, const OPERATION: u32>(
    side: &Side,
    mc: Fid<FidMc>,
    given: &mut [u8; 16],
    taken: &mut [u8; 16],
) -> isize {
    allreduce(side, mc, (given, taken), (TYPE, COUNT, OPERATION), 1)
}

const CARRIED_ALIKE: [Alike; 5] = [
    // Sums of four integers of 8 bits, and of as many of 32.
    (reduced::<0, 4, { sys::SUM }>, reduced::<4, 4, { sys::SUM }>),
    // Truths and bits.
    (reduced::<5, 4, { sys::LOR }>, reduced::<5, 4, { sys::BOR }>),
    (reduced::<5, 4, { sys::BOR }>, reduced::<7, 2, { sys::BOR }>),
    // An allgather of a word each.
    (reduced::<7, 2, { sys::BOR }>, |side, mc, given, taken| {
        let (group, none, from, into) = (at(mc).address, Context::NULL, bytes(given), room(taken));
        let allgather = at(side.ep).collective.allgather;
        allgather(
            side.ep,
            from,
            1,
            none,
            into,
            none,
            group,
            U64,
            0,
            context(1),
        )
    }),
    // A member that closes takes part in one barrier more.
    (
        |side, mc, _, _| barrier(side, mc, 1),
        |_, mc, _, _| close(mc) as isize,
    ),
];

#[test]
fn collectives_that_nics_carry_alike_are_told_apart() {
    let cluster = Cluster::new(2);
    let all = sides(&cluster, 2);
    let [a, b] = &all[..] else { unreachable!() };
    let order: &[u64] = &[0, 1];
    for (number, (one, other)) in CARRIED_ALIKE.into_iter().enumerate() {
        let groups = join_all(&[a, b], &[order; 2]);
        let (mut given, mut taken) = ([[3; 16]; 2], [[0; 16]; 2]);
        assert_eq!(one(a, groups[0], &mut given[0], &mut taken[0]), 0);
        assert_eq!(other(b, groups[1], &mut given[1], &mut taken[1]), 0);
        let error = a.next().unwrap_err();
        assert_eq!(
            (error.err, error.prov_errno),
            (libc::ECONNABORTED, qnic::Status::Mismatch as i32),
            "{number}"
        );
        let closes = number + 1 == CARRIED_ALIKE.len();
        if !closes {
            let error = b.next().unwrap_err();
            assert_eq!(
                (error.err, error.prov_errno),
                (libc::ECONNABORTED, qnic::Status::Mismatch as i32)
            );
            assert_eq!(close(groups[1]), 0);
        }
        assert_eq!(close(groups[0]), 0);
    }
    all.into_iter().for_each(Side::close);
}

#[test]
fn sets_are_put_together_and_wrong_ones_are_refused() {
    let cluster = Cluster::new(1);
    let all = sides(&cluster, 1);
    let a = &all[0];
    let mut other = a.name;
    other[15] ^= 1;
    let stranger = a.insert(&other);
    let (one, two) = (set_of(a, &[0]), set_of(a, &[stranger]));
    let ops = at(one).ops;
    assert_eq!((ops.insert)(one, 0), -libc::EEXIST);
    assert_eq!((ops.insert)(one, 77), -libc::EINVAL);
    assert_eq!((ops.remove)(one, stranger), -libc::EINVAL);
    // This endpoint is not in it.
    assert_eq!(try_join(a, two).err(), Some(-libc::EINVAL));
    assert_eq!((ops.set_union)(two, one), 0);
    assert_eq!((ops.diff)(two, one), 0);
    assert_eq!((ops.remove)(two, 0), -libc::EINVAL);
    assert_eq!((ops.set_union)(two, one), 0);
    assert_eq!((ops.intersect)(two, one), 0);
    assert_eq!((ops.remove)(two, stranger), -libc::EINVAL);
    assert_eq!((ops.set_union)(two, two), 0);
    // A group of one.
    let mc = try_join(a, two).unwrap();
    await_join(a).unwrap();
    assert_eq!(barrier(a, mc, 1), 0);
    a.next().unwrap();
    let unknown = (at(a.ep).collective.barrier)(a.ep, 0, context(1));
    assert_eq!(unknown, -(libc::EINVAL as isize));
    assert_eq!(close(a.av), -libc::EBUSY);
    assert_eq!((close(mc), close(one), close(two)), (0, 0, 0));
    all.into_iter().for_each(Side::close);
}

/// What the process does that is killed: it joins, and calls nothing.
fn stand(socket: std::ffi::OsString) {
    let (fabric, domain) = domain_at(socket.into(), In::NULL);
    let side = Side::on(fabric, domain, TAGGED, BOTH);
    let peer = side.insert(&bytes_of(&std::env::var(PEER).unwrap()));
    let own = side.insert(&side.name);
    println!("\n{ADDRESS}{}", digits_of(&side.name));
    let _group = try_join(&side, set_of(&side, &[peer, own])).unwrap();
    await_join(&side).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_member_that_is_killed_fails_what_waits_for_it() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return stand(socket);
    }
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let name = "tests::collectives::a_member_that_is_killed_fails_what_waits_for_it";
    let (mut child, address) = start(name, cluster.socket(1), Some(&a.name));
    let (own, to) = (a.insert(&a.name), a.insert(&address));
    let mc = try_join(&a, set_of(&a, &[own, to])).unwrap();
    await_join(&a).unwrap();
    let mut results = [giving(5); 3];
    for (number, result) in results.iter_mut().enumerate() {
        assert_eq!(sum(&a, mc, result, number), 0);
    }
    assert!(a.poll().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    for number in 0..3 {
        let error = a.next().unwrap_err();
        assert_eq!(
            (error.entry.context, error.err),
            (context(number), libc::ECONNABORTED)
        );
    }
    assert!(killed.elapsed() < TIME_LIMIT);
    assert_eq!(barrier(&a, mc, 7), 0);
    assert_eq!(a.next().unwrap_err().err, libc::ECONNABORTED);
    // A join that waits for it goes on; its endpoint may close.
    let waiting = try_join(&a, set_of(&a, &[own, to])).unwrap();
    assert_eq!((close(mc), close(waiting)), (0, 0));
    assert_eq!(close(a.ep), 0);
}
