//! What goes wrong says so, to the one who asked (N11).

use std::time::{Duration, Instant};

use qnic::{Access, Error, Nic, NodeId, Port, SegmentName, Status};

use crate::cluster::{Cluster, Peer, NAME, SOON};

fn status(error: &Error) -> Option<Status> {
    error.status()
}

#[test]
fn a_revoked_segment_cannot_be_reached() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, 8192),
        Peer::new(&cluster.nic(1), 1, 8192),
    );
    let remote = a.import(&b);
    a.endpoint.write_fenced(&remote, 0, b"before").unwrap();
    b.segment.unexport().unwrap();
    let error = a.endpoint.write_fenced(&remote, 0, b"after!").unwrap_err();
    assert_eq!(status(&error), Some(Status::NoSuchSegment), "{error}");

    // The same index again, with another key.
    let _again = b.endpoint.export(NAME, &b.buffer, Access::WRITE).unwrap();
    let error = a.endpoint.write_fenced(&remote, 0, b"stale!").unwrap_err();
    assert_eq!(status(&error), Some(Status::BadKey), "{error}");
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
    a.endpoint
        .read_fenced(&remote, 0, a.segment.part(0, 100))
        .unwrap();
    let ticket = a.endpoint.write(&remote, 0, b"no").unwrap();
    let error = ticket.wait().unwrap_err();
    assert_eq!(status(&error), Some(Status::AccessDenied), "{error}");

    let remote = a.import(&writable);
    a.endpoint.write_fenced(&remote, 0, b"yes").unwrap();
    let error = a
        .endpoint
        .read_fenced(&remote, 0, a.segment.part(0, 100))
        .unwrap_err();
    assert_eq!(status(&error), Some(Status::AccessDenied), "{error}");
    assert_eq!(readable.buffer.read_vec(0, 2).unwrap(), [0, 0]);

    // What peers may do does not bind the process itself.
    a.buffer.write(0, b"mine").unwrap();
    let remote = readable.import(&a);
    readable
        .endpoint
        .read_fenced(&remote, 0, readable.segment.part(0, 200))
        .unwrap();
    assert_eq!(readable.buffer.read_vec(0, 4).unwrap(), b"mine");
}

#[test]
fn a_process_that_is_gone_is_reported() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let a = Peer::new(&cluster.nic(0), 1, 8192);
    let b = Peer::new(&nic, 1, 8192);
    let remote = a.import(&b);
    drop(b);
    let error = a.endpoint.write_fenced(&remote, 0, b"x").unwrap_err();
    assert_eq!(status(&error), Some(Status::NoSuchPort), "{error}");
    drop(nic);
    let error = a.endpoint.write_fenced(&remote, 0, b"x").unwrap_err();
    assert!(
        matches!(
            status(&error),
            Some(Status::NoSuchNode | Status::NoSuchPort | Status::PeerGone)
        ),
        "{error}"
    );
}

#[test]
fn imports_that_find_nothing_say_what() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let _b = Peer::new(&cluster.nic(1), 1, 4096);
    let ask = |node, name, wait| {
        let error = a
            .endpoint
            .import(NodeId(node), Port(1), SegmentName(name), wait)
            .unwrap_err();
        status(&error)
    };
    assert_eq!(ask(1, 404, Duration::ZERO), Some(Status::NameNotFound));
    assert_eq!(ask(9, 404, Duration::ZERO), Some(Status::NoSuchNode));
    let start = Instant::now();
    let wait = Duration::from_millis(50);
    assert_eq!(ask(1, 404, wait), Some(Status::NameNotFound));
    assert!(start.elapsed() >= wait);
}

#[test]
fn an_import_waits_for_its_exporter() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Peer::new(&cluster.nic(1), 1, 4096);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let late = SegmentName(7);
            a.endpoint.import(NodeId(1), Port(1), late, SOON)
        });
        let late = b.endpoint.allocate(100).unwrap();
        let _late = b
            .endpoint
            .export(SegmentName(7), &late, Access::READ)
            .unwrap();
        let remote = waiting.join().unwrap().unwrap();
        assert_eq!((remote.len(), remote.address()), (100, late.address()));
    });
}

#[test]
fn ports_are_exclusive() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let first = nic.register(Port(5)).unwrap();
    let error = nic.register(Port(5)).unwrap_err();
    assert_eq!(status(&error), Some(Status::PortInUse), "{error}");
    let any = nic.register(Port(0)).unwrap();
    assert!(any.port() != Port(0) && any.port() != first.port());
    drop(first);
    nic.register(Port(5)).unwrap();
}

#[test]
fn nobody_at_the_socket_is_a_clear_error() {
    let error = Nic::open_host("/nonexistent/qnic.sock").unwrap_err();
    assert!(
        error.to_string().contains("is the device process running?"),
        "{error}"
    );
    let error = Nic::open_linux("/nonexistent/qnic0").unwrap_err();
    assert!(
        error.to_string().contains("is the qnic module loaded?"),
        "{error}"
    );
}

#[test]
fn a_node_with_more_memory_than_its_nic_covers_is_refused() {
    let cluster = Cluster::new(1);
    let error = Nic::open_host_with(cluster.socket(0), 128 << 20).unwrap_err();
    assert!(error.to_string().contains("QNIC_HOST_MEMORY"), "{error}");
    cluster.nic(0);
}
