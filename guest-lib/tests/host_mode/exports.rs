//! What can be exported, and what not (N2, N3).
#![allow(unsafe_code)]

use qnic::{Access, Error, NodeId, Port, SegmentName, Status};

use crate::cluster::{status, Cluster, Peer, BOTH, NAME, SOON};

#[test]
fn names_are_unique_and_ranges_do_not_overlap() {
    let cluster = Cluster::new(1);
    let peer = Peer::new(&cluster.nic(0), 1, 8192);
    let buffer = peer.endpoint.allocate(4096).unwrap();
    let name = SegmentName(1);
    let first = peer.endpoint.export(name, &buffer, Access::READ).unwrap();
    let other = peer.endpoint.allocate(4096).unwrap();
    let refused = status(peer.endpoint.export(name, &other, BOTH));
    assert_eq!(refused, Status::NameExists);
    drop(first);
    peer.endpoint.export(name, &other, BOTH).unwrap();
}

#[test]
fn one_range_can_have_several_names_with_different_access() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Peer::with_access(&cluster.nic(1), 1, 4096, Access::READ);
    let name = SegmentName(2);
    let _writable = b.endpoint.export(name, &b.buffer, Access::WRITE).unwrap();
    let readable = a.import(&b);
    let writable = a.endpoint.import(NodeId(1), Port(1), name, SOON).unwrap();
    a.write(&writable, 0, b"twice");
    a.read(&readable, 0, 0, 5);
    assert_eq!(a.bytes(0, 5), b"twice");
}

#[test]
fn memory_outside_of_the_arena_is_refused_with_a_reason() {
    let cluster = Cluster::new(1);
    let endpoint = cluster.nic(0).register(Port(1)).unwrap();
    let mut ordinary = vec![0u8; 8192];
    let (start, length) = (ordinary.as_mut_ptr(), ordinary.len());
    // SAFETY: the vector outlives the call, which fails.
    let refused = unsafe { endpoint.export_range(SegmentName(1), start, length, Access::READ) };
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::System { .. }));
    assert!(error.to_string().contains("arena"), "{error}");
}

#[test]
fn slices_of_exported_memory_can_be_written_from() {
    let cluster = Cluster::new(2);
    let a = cluster.nic(0).register(Port(1)).unwrap();
    let b = Peer::new(&cluster.nic(1), 1, 8192);
    let buffer = a.allocate(8192).unwrap();
    buffer.write(100, &[3; 5000]).unwrap();
    // SAFETY: `buffer` outlives the segment, and nothing else uses its memory.
    let (segment, bytes) = unsafe {
        let start = buffer.as_ptr().add(100);
        (
            a.export_range(SegmentName(1), start, 5000, Access::READ),
            std::slice::from_raw_parts(start, 5000),
        )
    };
    let segment = segment.unwrap();
    let (found, offset) = a.export_lookup(segment.address() + 10, 10).unwrap();
    assert_eq!((found.name(), offset), (SegmentName(1), 10));
    let remote = a.import(NodeId(1), Port(1), NAME, SOON).unwrap();
    a.write(&remote, 0, bytes).fenced().unwrap();
    assert_eq!(b.bytes(0, 5000), bytes);
}

/// A segment that an address leads to is source and destination like any other, until it is
/// unexported: then the NIC refuses it (N2, N3).
#[test]
fn what_a_lookup_finds_can_be_transferred_until_it_is_unexported() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Peer::new(&cluster.nic(node), 1, 4096));
    let remote = a.import(&b);
    a.fill(8, b"from here");
    let (found, offset) = a
        .endpoint
        .export_lookup(a.segment.address() + 8, 9)
        .unwrap();
    let offset = offset as usize;
    let write = a
        .endpoint
        .write(&remote, 100, found.part(offset, 9))
        .fenced();
    write.unwrap();
    assert_eq!(b.bytes(100, 9), b"from here");
    let read = a.endpoint.read(&remote, 100, found.part(200, 9)).fenced();
    read.unwrap();
    assert_eq!(a.bytes(200, 9), b"from here");

    let Peer {
        endpoint, segment, ..
    } = a;
    drop(segment);
    let refused = status(endpoint.write(&remote, 0, found.part(offset, 9)).fenced());
    assert_eq!(refused, Status::NoSuchSegment);
    let refused = status(endpoint.read(&remote, 0, found.part(offset, 9)).fenced());
    assert_eq!(refused, Status::NoSuchSegment);
}

#[test]
fn more_segments_than_there_is_room_for_are_refused() {
    let cluster = Cluster::new(1);
    let endpoint = cluster.nic(0).register(Port(1)).unwrap();
    let buffers: Vec<_> = (0..257).map(|_| endpoint.allocate(1).unwrap()).collect();
    let mut exports = buffers
        .iter()
        .zip(0..)
        .map(|(buffer, name)| endpoint.export(SegmentName(name), buffer, Access::READ));
    let segments: Vec<_> = exports.by_ref().take(256).map(Result::unwrap).collect();
    assert_eq!(status(exports.next().unwrap()), Status::Exhausted);
    drop(segments);
}

#[test]
fn the_arena_says_when_it_is_full() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let error = nic.allocate(crate::cluster::MEMORY).unwrap_err();
    assert!(error.to_string().contains("QNIC_HOST_MEMORY"), "{error}");
    nic.allocate(crate::cluster::MEMORY / 2).unwrap();
}
