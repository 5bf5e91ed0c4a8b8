//! What can be exported, and what not (N2, N3).
#![allow(unsafe_code)]

use qnic::{
    Access, Buffer, Endpoint, Error, ExportOptions, Nic, NodeId, Port, Segment, SegmentName, Status,
};
use qnic_abi::header::SEGMENTS_PER_PROCESS;

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

/// Requests that wait in a driver's queue end one by one, in any order, and none holds up those of
/// others (Q9): imports of names that come in the reverse order, and processes that come and go.
#[test]
fn requests_of_a_driver_end_each_at_its_own_entry() {
    const NAMES: u64 = 24;
    let cluster = Cluster::new(2);
    let (near, far) = (cluster.nic(0), cluster.nic(1));
    let owner = Owner::new(&far, 4096);
    // Each of them may wait for eight at a time.
    let importers = [3, 4, 5].map(|port| near.register(Port(port)).unwrap());
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for name in 1..=NAMES {
            let (sender, importer) = (sender.clone(), &importers[name as usize % 3]);
            scope.spawn(move || {
                let found = importer.import(NodeId(1), Port(1), SegmentName(name), SOON);
                sender.send(found.map(|_| name)).unwrap();
            });
        }
        let mut kept = Vec::new();
        for name in (1..=NAMES).rev() {
            drop(near.register(Port(2)).unwrap());
            let exported = owner
                .endpoint
                .export(SegmentName(name), &owner.buffer, Access::READ);
            kept.push(exported.unwrap());
            let found = ended.recv_timeout(SOON).unwrap();
            assert_eq!(found.unwrap(), name);
            assert!(ended.try_recv().is_err(), "the others still wait");
        }
    });
}

/// A process that exports parts of its buffer.
struct Owner {
    endpoint: Endpoint,
    buffer: Buffer,
}

impl Owner {
    fn new(nic: &Nic, length: usize) -> Self {
        let endpoint = nic.register(Port(1)).unwrap();
        let buffer = endpoint.allocate(length).unwrap();
        Owner { endpoint, buffer }
    }

    fn export(
        &self,
        name: u64,
        (offset, length): (usize, usize),
        options: impl Into<ExportOptions>,
    ) -> qnic::Result<Segment> {
        // SAFETY: the buffer outlives the segment, and its memory is accessed through the NIC only.
        unsafe {
            let start = self.buffer.as_ptr().add(offset);
            self.endpoint
                .export_range(SegmentName(name), start, length, options)
        }
    }

    fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        self.buffer.read_vec(offset, length).unwrap()
    }
}

/// Pages are shared, segments are not: each object has the access that it was exported with (N2).
#[test]
fn two_objects_in_one_page_are_exported_with_different_access() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Owner::new(&cluster.nic(1), 4096);
    let read = b.export(1, (100, 100), Access::READ).unwrap();
    let write = b.export(2, (200, 100), Access::WRITE).unwrap();
    let import = |name| {
        let name = SegmentName(name);
        a.endpoint.import(NodeId(1), Port(1), name, SOON).unwrap()
    };
    let (readable, writable) = (import(1), import(2));
    a.write(&writable, 0, b"here");
    assert_eq!(b.bytes(198, 8), b"\0\0here\0\0");
    let refused = status(a.endpoint.write(&readable, 0, b"no").fenced());
    assert_eq!(refused, Status::AccessDenied);
    let refused = status(b.export(3, (150, 100), Access::READ));
    assert_eq!(refused, Status::Overlapping);
    drop(read);
    a.write(&writable, 4, b"still");
    assert_eq!(b.bytes(200, 9), b"herestill");
    drop(write);
    let refused = status(a.endpoint.write(&writable, 0, b"no").fenced());
    assert_eq!(refused, Status::NoSuchSegment);
}

/// As a registration cache does: ranges that overlap come and go, and each is as good as any
/// other while it lasts (N2).
#[test]
fn ranges_overlap_freely_where_that_is_asked_for() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Owner::new(&cluster.nic(1), 16 << 10);
    let free = ExportOptions::new(BOTH).overlapping();
    let ranges = [(0, 16 << 10), (4000, 200), (4096, 4096), (4000, 200)];
    let mut segments: Vec<_> = (1..)
        .zip(ranges)
        .map(|(name, range)| b.export(name, range, &free).unwrap())
        .collect();
    while !segments.is_empty() {
        for segment in &segments {
            let remote = a.endpoint.import(NodeId(1), Port(1), segment.name(), SOON);
            let text = segment.name().0.to_be_bytes();
            a.write(&remote.unwrap(), 96, &text);
            let offset = segment.address() as usize - b.buffer.as_ptr() as usize;
            assert_eq!(b.bytes(offset + 96, 8), text);
        }
        drop(segments.remove(0));
    }
}

/// The exporter has replaced one page by the whole buffer; the importer still holds what it had (N3).
#[test]
fn a_stale_import_hides_no_live_one() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Owner::new(&cluster.nic(1), 4 * 4096);
    let page = b.export(1, (4096, 4096), BOTH).unwrap();
    let import = |name| {
        let name = SegmentName(name);
        a.endpoint.import(NodeId(1), Port(1), name, SOON).unwrap()
    };
    let stale = import(1);
    drop(page);
    let _whole = b.export(2, (0, 4 * 4096), BOTH).unwrap();
    let live = import(2);
    for wanted in [100, 4096 + 100, 2 * 4096 + 100, 4 * 4096 - 1] {
        let at = live.address() + wanted;
        let (found, offset) = a.endpoint.import_lookup(NodeId(1), Port(1), at).unwrap();
        assert_eq!((found.name(), offset), (live.name(), wanted));
        a.write(&found, offset, b"x");
    }
    drop(live);
    let lookup = |at| a.endpoint.import_lookup(NodeId(1), Port(1), at);
    let (found, offset) = lookup(stale.address() + 1).unwrap();
    assert_eq!((found.name(), offset), (stale.name(), 1));
    assert!(lookup(stale.address() + 4096).is_none());
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
    let most = SEGMENTS_PER_PROCESS as usize;
    let buffers: Vec<_> = (0..=most).map(|_| endpoint.allocate(1).unwrap()).collect();
    let mut exports = buffers
        .iter()
        .zip(0..)
        .map(|(buffer, name)| endpoint.export(SegmentName(name), buffer, Access::READ));
    let segments: Vec<_> = exports.by_ref().take(most).map(Result::unwrap).collect();
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
