//! Ends: of processes, of nodes, of the device (X9).

use std::time::{Duration, Instant};

use qnic::{Error, Status};

use crate::cluster::{Cluster, Peer, ONE, SOON};

#[test]
fn nothing_is_left_when_processes_end() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    for _ in 0..20 {
        let (a, b) = (Peer::new(&nic, 1, 64 << 10), Peer::new(&nic, 2, 64 << 10));
        let remote = a.import(&b);
        for _ in 0..10 {
            let source = a.segment.part(0, 64 << 10);
            a.endpoint.write(&remote, 0, source).unwrap();
        }
    }
    let info = nic.info().unwrap();
    assert_eq!(info.pages_mapped.get(), 0);
    assert_eq!(info.nic.processes.get(), 0);
    assert_eq!(info.nic.segments.get(), 0);
    assert_eq!(info.nic.operations.get(), 0);
    assert_eq!(info.nic.frames_held.get(), 0);
}

#[test]
fn a_node_leaves_and_comes_back() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    for round in 0..5u8 {
        let b = Peer::new(&cluster.nic(1), 1, 4096);
        let remote = a.import(&b);
        a.endpoint.write_fenced(&remote, 0, &[round; 50]).unwrap();
        assert_eq!(b.buffer.read_vec(0, 50).unwrap(), [round; 50]);
    }
}

/// The exporter takes its memory back in the middle of transfers: they end, with
/// an error, and nothing is written afterwards (N2).
#[test]
fn unexport_aborts_transfers_that_run() {
    const LENGTH: usize = 1 << 20;
    let cluster = Cluster::new(2);
    let (nic_a, nic_b) = (cluster.nic(0), cluster.nic(1));
    let a = Peer::new(&nic_a, 1, LENGTH);
    a.buffer.write(0, &vec![1; LENGTH]).unwrap();
    let b = Peer::new(&nic_b, 1, LENGTH);
    let remote = a.import(&b);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| loop {
            let source = a.segment.part(0, LENGTH);
            if let Err(error) = a.endpoint.write_fenced(&remote, 0, source) {
                break error;
            }
        });
        while b.buffer.load_u64(0).unwrap() == 0 {
            std::thread::yield_now();
        }
        b.segment.unexport().unwrap();
        b.buffer.write(0, &vec![0; LENGTH]).unwrap();
        let error = writer.join().unwrap();
        assert!(
            matches!(
                error.status(),
                Some(Status::NoSuchSegment | Status::Aborted | Status::PeerGone)
            ),
            "{error}"
        );
        assert!(b.buffer.read_vec(0, LENGTH).unwrap() == vec![0; LENGTH]);
    });
}

#[test]
fn everybody_learns_that_the_device_is_gone() {
    let mut cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, 1 << 20),
        Peer::new(&cluster.nic(1), 1, 1 << 20),
    );
    let remote = a.import(&b);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.endpoint.notification(ONE).wait(None));
        let importer = scope.spawn(|| {
            let (node, port) = (a.endpoint.node(), a.endpoint.port());
            b.endpoint
                .import(node, port, qnic::SegmentName(404), 10 * SOON)
        });
        let writer = scope.spawn(|| loop {
            let source = a.segment.part(0, 1 << 20);
            if let Err(error) = a.endpoint.write_fenced(&remote, 0, source) {
                break error;
            }
        });
        while b.buffer.load_u64((1 << 20) - 8).is_err() {}
        let start = Instant::now();
        cluster.kill_device();
        assert!(matches!(waiter.join().unwrap(), Err(Error::DeviceGone)));
        assert!(matches!(importer.join().unwrap(), Err(Error::DeviceGone)));
        assert!(matches!(writer.join().unwrap(), Error::DeviceGone));
        assert!(start.elapsed() < Duration::from_secs(10));
    });
    assert!(matches!(
        a.endpoint.write_fenced(&remote, 0, b"x"),
        Err(Error::DeviceGone)
    ));
}
