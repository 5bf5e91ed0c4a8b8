//! Physical segments (N25): writeP and readP move bytes without page table and
//! lock, only between processes that were both given the privilege, and only
//! within the memory of their guests.

use qnic_abi::control::{EXPORT_PHYSICAL, PROCESS_PHYSICAL};
use qnic_abi::{Access, Port, SegmentId, Status, VniId, PAGE_SIZE};
use qnic_nic::testing::{pattern, Net, Party, SimSegment, ALL, PAGE};
use qnic_nic::{HostMemory, Limits};

const FRAMES: u64 = 256;

/// Flags of an export, and no key of pages.
const PHYSICAL: (u16, u64) = (EXPORT_PHYSICAL, 0);

fn net() -> Net {
    Net::new(2, FRAMES, 4, &Limits::default())
}

fn privileged(net: &Net, node: usize) -> Party {
    Party::register(net, node, VniId(0), Port(10), PROCESS_PHYSICAL).unwrap()
}

/// A privileged process that exports a range of physical memory.
fn party(net: &Net, node: usize, range: (u64, u64), access: Access) -> Party {
    let mut party = privileged(net, node);
    party.segment = party.export_with(PHYSICAL, 0, 1, range, access).unwrap();
    party
}

/// The last pages of a node's memory, which its driver hands out last.
fn top(pages: u64) -> (u64, u64) {
    ((FRAMES - pages) * PAGE, pages * PAGE)
}

fn lookups(net: &Net, node: usize) -> u64 {
    let counters = net.counters(node);
    let hits = counters.source_hits + counters.destination_hits;
    hits + counters.source_misses + counters.destination_misses
}

/// Bytes of the physical memory of a party's node, from its segment on.
fn physical(party: &Party, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let memory = &party.net.cluster().nodes[party.node].host.memory;
    let address = party.segment.address + offset;
    memory.read(address, &mut bytes).unwrap();
    bytes
}

fn store_physical(party: &Party, offset: u64, bytes: &[u8]) {
    let memory = &party.net.cluster().nodes[party.node].host.memory;
    memory.write(party.segment.address + offset, bytes).unwrap();
}

#[test]
fn physical_transfers_move_bytes_without_a_lookup() {
    let net = net();
    let (start, length) = top(8);
    let a = party(&net, 0, (start, length), ALL);
    let b = party(&net, 1, (start + 100, length - 100), ALL);
    let bytes = pattern(5, 5 * PAGE_SIZE);
    store_physical(&a, 50, &bytes);
    a.write(&b).from(50).to(17).bytes(5 * PAGE).issue();
    a.inline_write(&b, &[1, 2, 3, 4]).to(6 * PAGE).run();
    assert_eq!(a.errors(), []);
    assert!(physical(&b, 17, bytes.len()) == bytes);
    assert_eq!(physical(&b, 6 * PAGE, 4), [1, 2, 3, 4]);

    let fresh = pattern(9, PAGE_SIZE);
    store_physical(&b, 0, &fresh);
    a.read(&b).to(3).bytes(PAGE).run();
    assert_eq!(a.done(), (2, 1));
    assert_eq!(a.errors(), []);
    assert!(physical(&a, 3, PAGE_SIZE) == fresh);
    assert_eq!((lookups(&net, 0), lookups(&net, 1)), (0, 0));
}

#[test]
fn without_privilege_nothing_is_exported() {
    let net = net();
    let ordinary = net.party(0, 1);
    let refused = ordinary.export_with(PHYSICAL, 5, 99, top(1), ALL);
    assert_eq!(refused.err(), Some(Status::AccessDenied));
    let gone = SimSegment {
        id: SegmentId(5),
        ..ordinary.segment
    };
    assert_eq!(ordinary.unexport(gone), Status::NoSuchSegment);
    let flags = PROCESS_PHYSICAL << 1;
    let odd = Party::register(&net, 0, VniId(3), Port(77), flags);
    assert_eq!(odd.err(), Some(Status::Malformed));
}

#[test]
fn ranges_beyond_the_memory_of_the_guest_are_refused() {
    let net = net();
    let a = privileged(&net, 0);
    let (start, _) = top(1);
    for (range, status) in [
        ((start, PAGE + 1), Status::BadAddress),
        ((start + PAGE, 1), Status::BadAddress),
        ((u64::MAX - 10, 5), Status::BadAddress),
        ((u64::MAX, 2), Status::BadAddress),
        ((start, 0), Status::BadLength),
    ] {
        let refused = a.export_with(PHYSICAL, 0, 1, range, ALL);
        assert_eq!(refused.err(), Some(status), "{range:x?}");
    }
}

/// An ordinary segment must not be reached by the rules of a physical one, nor
/// the other way round.
#[test]
fn a_transfer_that_is_not_allowed_touches_nothing() {
    let net = net();
    let ordinary = net.party(0, 1);
    let (start, length) = top(4);
    let b = party(&net, 1, (start, length), Access::READ);
    let bytes = ordinary.fill(0, 4096, 3);
    let before = physical(&b, 0, length as usize);
    let theirs = b.segment;
    let wrong_key = SimSegment {
        key: theirs.key ^ 1,
        ..theirs
    };
    let beyond = SimSegment {
        address: theirs.address + length,
        ..theirs
    };
    let cases = [
        (ordinary.write(theirs), Status::AccessDenied),
        (ordinary.read(wrong_key), Status::BadKey),
        (ordinary.read(beyond), Status::BadAddress),
        // Local memory by physical address, from a process that may not.
        (
            ordinary.write(theirs).with(|c| c.local.address = start),
            Status::BadAddress,
        ),
    ];
    for (transfer, status) in cases {
        let number = transfer.bytes(2).run();
        assert_eq!(ordinary.errors().last(), Some(&(number, status)));
    }
    assert!(physical(&b, 0, length as usize) == before);
    assert!(ordinary.holds(0, &bytes));
    let (here, there) = (net.counters(0), net.counters(1));
    assert_eq!(here.errors_range, 1);
    assert_eq!(there.errors_access, 1);
    assert_eq!(there.errors_key, 1);
    assert_eq!(there.errors_range, 1);
    assert_eq!(there.protection_errors, 3);
}
