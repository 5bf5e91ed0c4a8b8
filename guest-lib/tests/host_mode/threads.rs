//! Several threads of one process share an endpoint.

use crate::cluster::{pattern, Cluster, Peer, ONE, SOON};

const THREADS: usize = 8;
const SHARE: usize = 128 << 10;

#[test]
fn eight_threads_use_one_endpoint_at_once() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, THREADS * SHARE),
        Peer::new(&cluster.nic(1), 1, THREADS * SHARE),
    );
    let remote = a.import(&b);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, b, remote) = (&a, &b, &remote);
            scope.spawn(move || {
                let start = thread * SHARE;
                for round in 0..30 {
                    let length = [1, 96, 97, 5000, SHARE][round % 5];
                    let bytes = pattern(thread * 100 + round, length);
                    a.buffer.write(start, &bytes).unwrap();
                    let source = a.segment.part(start, length);
                    let ticket = a.endpoint.write(remote, start as u64, source).unwrap();
                    ticket.wait().unwrap();
                    assert!(b.buffer.read_vec(start, length).unwrap() == bytes);
                    a.buffer.write(start, &vec![0; length]).unwrap();
                    let destination = a.segment.part(start, length);
                    a.endpoint
                        .read_fenced(remote, start as u64, destination)
                        .unwrap();
                    assert!(a.buffer.read_vec(start, length).unwrap() == bytes);
                }
                a.endpoint.write_notify(remote, 0, b"", ONE).unwrap();
            });
        }
    });
    let signals = (0..THREADS).all(|_| b.endpoint.notification(ONE).take(Some(SOON)).is_ok());
    assert!(signals);
    a.endpoint.flush().unwrap();
}

#[test]
fn each_thread_gets_its_own_failures() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let good = Peer::new(&nic, 1, 4096);
    let bad = Peer::with_access(&nic, 2, 4096, qnic::Access::READ);
    let (good_remote, bad_remote) = (a.import(&good), a.import(&bad));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, remote) = (&a, [&good_remote, &bad_remote][thread % 2]);
            scope.spawn(move || {
                for _ in 0..500 {
                    let ticket = a.endpoint.write(remote, 0, b"x").unwrap();
                    assert_eq!(ticket.wait().is_err(), thread % 2 == 1);
                }
            });
        }
    });
    a.endpoint.flush().unwrap();
}

#[test]
fn several_processes_on_every_node_exchange_with_all_others() {
    const NODES: u16 = 3;
    const PORTS: u16 = 2;
    let cluster = Cluster::new(NODES);
    let nics: Vec<_> = (0..NODES).map(|node| cluster.nic(node)).collect();
    let peers: Vec<_> = nics
        .iter()
        .flat_map(|nic| (1..=PORTS).map(move |port| Peer::new(nic, port, 64 << 10)))
        .collect();
    std::thread::scope(|scope| {
        for (from, peer) in peers.iter().enumerate() {
            let peers = &peers;
            scope.spawn(move || {
                for other in peers {
                    let remote = peer.import(other);
                    let bytes = pattern(from, 1000);
                    let offset = from * 1000;
                    peer.buffer.write(60_000, &bytes).unwrap();
                    let source = peer.segment.part(60_000, 1000);
                    peer.endpoint
                        .write_fenced_notify(&remote, offset as u64, source, ONE)
                        .unwrap();
                }
                for _ in peers {
                    peer.endpoint.notification(ONE).take(Some(SOON)).unwrap();
                }
                for from in 0..peers.len() {
                    let got = peer.buffer.read_vec(from * 1000, 1000).unwrap();
                    assert!(got == pattern(from, 1000));
                }
            });
        }
    });
}
