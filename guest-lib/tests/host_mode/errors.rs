//! What goes wrong is reported to the caller that asked for it (N11).

use std::time::{Duration, Instant};

use qnic::{Access, Nic, NodeId, Port, SegmentName, Status};

use crate::cluster::{pair, status, Cluster, Peer, NAME, SOON};

#[test]
fn a_revoked_segment_cannot_be_reached() {
    let pair = pair(8192);
    let (a, b, remote) = (pair.a, pair.b, pair.remote);
    a.write(&remote, 0, b"before");
    b.segment.unexport().unwrap();
    let write = || status(a.endpoint.write(&remote, 0, b"after!").fenced());
    assert_eq!(write(), Status::NoSuchSegment);

    // The same index again, with another key.
    let _again = b.endpoint.export(NAME, &b.buffer, Access::WRITE).unwrap();
    assert_eq!(write(), Status::BadKey);
    assert_eq!(b.buffer.read_vec(0, 6).unwrap(), b"before");
}

#[test]
fn access_is_what_the_exporter_grants() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let a = Peer::new(&cluster.nic(0), 1, 8192);
    let readable = Peer::with_access(&nic, 1, 8192, Access::READ);
    let writable = Peer::with_access(&nic, 2, 8192, Access::WRITE);

    let remote = a.import(&readable);
    assert_eq!(remote.access(), Access::READ);
    a.read(&remote, 0, 0, 100);
    let ticket = a.endpoint.write(&remote, 0, b"no").post().unwrap();
    assert_eq!(status(ticket.wait()), Status::AccessDenied);

    let remote = a.import(&writable);
    a.write(&remote, 0, b"yes");
    let part = a.segment.part(0, 100);
    let refused = status(a.endpoint.read(&remote, 0, part).fenced());
    assert_eq!(refused, Status::AccessDenied);
    assert_eq!(readable.bytes(0, 2), [0, 0]);

    // The access of peers does not bind the process itself.
    a.fill(0, b"mine");
    readable.read(&readable.import(&a), 0, 0, 200);
    assert_eq!(readable.bytes(0, 4), b"mine");
}

#[test]
fn a_process_that_is_gone_is_reported() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let a = Peer::new(&cluster.nic(0), 1, 8192);
    let b = Peer::new(&nic, 1, 8192);
    let remote = a.import(&b);
    let write = || status(a.endpoint.write(&remote, 0, b"x").fenced());
    drop(b);
    assert_eq!(write(), Status::NoSuchPort);
    drop(nic);
    let gone = [Status::NoSuchNode, Status::NoSuchPort, Status::PeerGone];
    let status = write();
    assert!(gone.contains(&status), "{status}");
}

#[test]
fn imports_that_find_nothing_say_what() {
    let pair = pair(4096);
    let ask = |node, wait| {
        let (endpoint, name) = (&pair.a.endpoint, SegmentName(404));
        status(endpoint.import(NodeId(node), Port(1), name, wait))
    };
    assert_eq!(ask(1, Duration::ZERO), Status::NameNotFound);
    assert_eq!(ask(9, Duration::ZERO), Status::NoSuchNode);
    let start = Instant::now();
    let wait = Duration::from_millis(50);
    assert_eq!(ask(1, wait), Status::NameNotFound);
    assert!(start.elapsed() >= wait);
}

#[test]
fn an_import_waits_for_its_exporter() {
    const LATE: SegmentName = SegmentName(7);
    let pair = pair(4096);
    let (a, b) = (&pair.a.endpoint, &pair.b.endpoint);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.import(NodeId(1), Port(1), LATE, SOON));
        let late = b.allocate(100).unwrap();
        let _late = b.export(LATE, &late, Access::READ).unwrap();
        let remote = waiting.join().unwrap().unwrap();
        assert_eq!((remote.len(), remote.address()), (100, late.address()));
    });
}

#[test]
fn ports_are_exclusive() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let first = nic.register(Port(5)).unwrap();
    assert_eq!(status(nic.register(Port(5))), Status::PortInUse);
    let any = nic.register(Port(0)).unwrap();
    assert!(any.port() != Port(0) && any.port() != first.port());
    drop(first);
    nic.register(Port(5)).unwrap();
}

#[test]
fn what_cannot_be_opened_is_a_clear_error() {
    let cluster = Cluster::new(1);
    let no_socket = Nic::open_host("/nonexistent/qnic.sock");
    let no_file = Nic::open_linux("/nonexistent/qnic0");
    let more_than_the_nic_covers = Nic::open_host_with(cluster.socket(0), 128 << 20);
    for (opened, hint) in [
        (no_socket, "is the device process running?"),
        (no_file, "is the qnic module loaded?"),
        (more_than_the_nic_covers, "QNIC_HOST_MEMORY"),
    ] {
        let error = opened.unwrap_err().to_string();
        assert!(error.contains(hint), "{error}");
    }
    cluster.nic(0);
}
