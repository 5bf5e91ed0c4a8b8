//! Physical segments (N25): writeP and readP move bytes without page table and
//! lock, only between processes that were both given the privilege, and only
//! within the memory of their guests.

mod common;

use common::{pattern, process, ALL};
use qnic_abi::control::{Opcode as Request, Unexport, PROCESS_PHYSICAL};
use qnic_abi::rdma::Opcode;
use qnic_abi::{Access, Port, Status, VniId, PAGE_SIZE};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, SimProcess, SimSegment};
use qnic_nic::{HostMemory, Limits};

const FRAMES: u64 = 256;
const PAGE: u64 = PAGE_SIZE as u64;

fn cluster() -> Cluster {
    Cluster::new(2, FRAMES, 4, &Limits::default())
}

fn privileged(cluster: &mut Cluster, node: usize, vni: u16) -> SimProcess {
    let port = Port(10 + vni);
    SimProcess::register_with(cluster, node, VniId(vni), port, PROCESS_PHYSICAL).unwrap()
}

/// The last pages of a node's memory, which its driver hands out last.
fn top(pages: u64) -> (u64, u64) {
    ((FRAMES - pages) * PAGE, pages * PAGE)
}

fn lookups(cluster: &Cluster, node: usize) -> u64 {
    let statistics = cluster.statistics(node);
    [
        statistics.source_hits,
        statistics.source_misses,
        statistics.destination_hits,
        statistics.destination_misses,
    ]
    .iter()
    .map(|counter| counter.get())
    .sum()
}

fn memory(cluster: &Cluster, node: usize) -> Vec<u8> {
    let mut bytes = vec![0; FRAMES as usize * PAGE_SIZE];
    cluster.nodes[node].host.memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn physical_transfers_move_bytes_without_a_lookup() {
    let mut cluster = cluster();
    let mut a = privileged(&mut cluster, 0, 0);
    let b = privileged(&mut cluster, 1, 0);
    let (start, length) = top(8);
    let from = a.export_physical(&mut cluster, 0, 1, (start, length), ALL);
    let to = b.export_physical(&mut cluster, 0, 1, (start + 100, length - 100), ALL);
    let (from, to) = (from.unwrap(), to.unwrap());
    let bytes = pattern(5, 5 * PAGE_SIZE);
    let source = &cluster.nodes[0].host.memory;
    source.write(start + 50, &bytes).unwrap();
    let write = Command::write(from.at(50), to.to(17), 5 * PAGE);
    a.issue(&mut cluster, &write, &[]).unwrap();
    let inline = Command::inline_write(to.to(6 * PAGE), 4);
    a.issue(&mut cluster, &inline, &[1, 2, 3, 4]).unwrap();
    cluster.run();
    assert_eq!(a.errors(&cluster), []);
    let mut got = vec![0; bytes.len()];
    let target = &cluster.nodes[1].host.memory;
    target.read(start + 117, &mut got).unwrap();
    assert!(got == bytes);
    target.read(start + 100 + 6 * PAGE, &mut got[..4]).unwrap();
    assert_eq!(got[..4], [1, 2, 3, 4]);

    let fresh = pattern(9, PAGE_SIZE);
    target.write(start + 100, &fresh).unwrap();
    let read = Command::read(from.at(3), to.to(0), PAGE);
    a.issue(&mut cluster, &read, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster), (2, 1));
    assert_eq!(a.errors(&cluster), []);
    let source = &cluster.nodes[0].host.memory;
    source.read(start + 3, &mut got[..PAGE_SIZE]).unwrap();
    assert!(got[..PAGE_SIZE] == fresh);
    assert_eq!((lookups(&cluster, 0), lookups(&cluster, 1)), (0, 0));
}

#[test]
fn without_privilege_nothing_is_exported() {
    let mut cluster = cluster();
    let (ordinary, _) = process(&mut cluster, 0, 1);
    let refused = ordinary.export_physical(&mut cluster, 5, 99, top(1), ALL);
    assert_eq!(refused.err(), Some(Status::AccessDenied));
    let gone = Unexport {
        segment: 5.into(),
        reserved: [0.into(); 3],
    };
    let status = cluster.control(0, Request::Unexport, ordinary.vni, &gone);
    assert_eq!(status, Status::NoSuchSegment);
    let flags = PROCESS_PHYSICAL << 1;
    let odd = SimProcess::register_with(&mut cluster, 0, VniId(3), Port(77), flags);
    assert_eq!(odd.err(), Some(Status::Malformed));
}

#[test]
fn ranges_beyond_the_memory_of_the_guest_are_refused() {
    let mut cluster = cluster();
    let a = privileged(&mut cluster, 0, 0);
    let (start, _) = top(1);
    for range in [
        (start, PAGE + 1),
        (start + PAGE, 1),
        (u64::MAX - 10, 5),
        (u64::MAX, 2),
    ] {
        let refused = a.export_physical(&mut cluster, 0, 1, range, ALL);
        assert_eq!(refused.err(), Some(Status::BadAddress), "{range:x?}");
    }
    let empty = a.export_physical(&mut cluster, 0, 1, (start, 0), ALL);
    assert_eq!(empty.err(), Some(Status::BadLength));
}

/// An ordinary segment must not be reached by the rules of a physical one, nor
/// the other way round.
#[test]
fn a_transfer_that_is_not_allowed_touches_nothing() {
    let mut cluster = cluster();
    let (mut ordinary, own) = process(&mut cluster, 0, 1);
    let b = privileged(&mut cluster, 1, 0);
    let (start, length) = top(4);
    let theirs = b.export_physical(&mut cluster, 0, 1, (start, length), Access::READ);
    let theirs = theirs.unwrap();
    ordinary.write(&mut cluster, own.address, &pattern(3, 4096));
    let before = [memory(&cluster, 0), memory(&cluster, 1)];
    let wrong_key = SimSegment {
        key: theirs.key ^ 1,
        ..theirs
    };
    let beyond = SimSegment {
        address: theirs.address + length,
        ..theirs
    };
    // Local memory by physical address, from a process that may not.
    let physical_source = SimSegment {
        address: start,
        ..own
    };
    let cases = [
        (Opcode::Write, own, theirs, Status::AccessDenied),
        (Opcode::Read, own, wrong_key, Status::BadKey),
        (Opcode::Read, own, beyond, Status::BadAddress),
        (Opcode::Write, physical_source, theirs, Status::BadAddress),
    ];
    for (number, (opcode, local, remote, wanted)) in cases.into_iter().enumerate() {
        let command = Command::transfer(opcode, local.at(0), remote.to(0), 2);
        ordinary.issue(&mut cluster, &command, &[]).unwrap();
        cluster.run();
        let errors = ordinary.errors(&cluster);
        assert_eq!(errors.last(), Some(&(number as u64, wanted)));
    }
    let after = [memory(&cluster, 0), memory(&cluster, 1)];
    let window_pages = |bytes: &[u8]| bytes[start as usize..].to_vec();
    assert!(window_pages(&before[1]) == window_pages(&after[1]));
    assert!(ordinary.read(&cluster, own.address, 4096) == pattern(3, 4096));
    let (here, there) = (cluster.statistics(0), cluster.statistics(1));
    assert_eq!(here.errors_range.get(), 1);
    assert_eq!(there.errors_access.get(), 1);
    assert_eq!(there.errors_key.get(), 1);
    assert_eq!(there.errors_range.get(), 1);
    assert_eq!(there.protection_errors.get(), 3);
}
