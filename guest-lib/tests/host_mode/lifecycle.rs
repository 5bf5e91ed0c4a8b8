//! Ends: of processes, of nodes, of the device (X9).

use std::time::{Duration, Instant};

use qnic::{CounterSource, Error, SegmentName, Status};

use crate::cluster::{pair, Cluster, Peer, ONE, SOON};

#[test]
fn nothing_is_left_when_processes_end() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    for _ in 0..20 {
        let (a, b) = (Peer::new(&nic, 1, 64 << 10), Peer::new(&nic, 2, 64 << 10));
        let remote = a.import(&b);
        for _ in 0..10 {
            let source = a.segment.part(0, 64 << 10);
            a.endpoint.write(&remote, 0, source).post().unwrap();
        }
    }
    assert_eq!(
        nic.counters(CounterSource::Driver).unwrap()["pages_mapped"],
        0
    );
    let counted = nic.counters(CounterSource::Nic).unwrap();
    for holds in ["processes", "segments", "operations", "frames_held"] {
        assert_eq!(counted[holds], 0, "{holds}");
    }
}

#[test]
fn a_node_leaves_and_comes_back() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    for round in 0..5u8 {
        let b = Peer::new(&cluster.nic(1), 1, 4096);
        let remote = a.import(&b);
        a.write(&remote, 0, &[round; 50]);
        assert_eq!(b.bytes(0, 50), [round; 50]);
    }
}

/// The exporter takes its memory back in the middle of transfers: they end, with
/// an error, and nothing is written afterwards (N2).
#[test]
fn unexport_aborts_transfers_that_run() {
    const LENGTH: usize = 1 << 20;
    let pair = pair(LENGTH);
    let (a, b) = (pair.a, pair.b);
    a.fill(0, &vec![1; LENGTH]);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| a.write_until_error(&pair.remote));
        while b.word(0) == 0 {
            std::thread::yield_now();
        }
        b.segment.unexport().unwrap();
        b.buffer.write(0, &vec![0; LENGTH]).unwrap();
        let status = writer.join().unwrap().status().unwrap();
        let ends = [Status::NoSuchSegment, Status::Aborted, Status::PeerGone];
        assert!(ends.contains(&status), "{status}");
        assert!(b.buffer.read_vec(0, LENGTH).unwrap() == vec![0; LENGTH]);
    });
}

#[test]
fn everybody_learns_that_the_device_is_gone() {
    let mut pair = pair(1 << 20);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.endpoint.notification(ONE).wait(None));
        let importer = scope.spawn(|| {
            let (node, port) = (a.endpoint.node(), a.endpoint.port());
            b.endpoint.import(node, port, SegmentName(404), 10 * SOON)
        });
        let writer = scope.spawn(|| a.write_until_error(remote));
        while b.buffer.load_u64((1 << 20) - 8).is_err() {}
        let start = Instant::now();
        pair.cluster.kill_device();
        assert_error!(waiter.join().unwrap(), Error::DeviceGone);
        assert_error!(importer.join().unwrap(), Error::DeviceGone);
        assert!(matches!(writer.join().unwrap(), Error::DeviceGone));
        assert!(start.elapsed() < Duration::from_secs(10));
    });
    let late = a.endpoint.write(remote, 0, b"x").fenced();
    assert_error!(late, Error::DeviceGone);
}
