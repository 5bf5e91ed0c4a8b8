//! Several threads of one process share an endpoint.

use crate::cluster::{in_threads, pair, pattern, peers, Cluster, Peer, ONE};

const THREADS: usize = 8;
const SHARE: usize = 128 << 10;

#[test]
fn eight_threads_use_one_endpoint_at_once() {
    let pair = pair(THREADS * SHARE);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    in_threads(&[(); THREADS], |thread, ()| {
        let thread = thread as usize;
        let start = thread * SHARE;
        for round in 0..30 {
            let length = [1, 96, 97, 5000, SHARE][round % 5];
            let bytes = pattern(thread * 100 + round, length);
            a.fill(start, &bytes);
            let source = a.segment.part(start, length);
            let ticket = a
                .endpoint
                .write(remote, start as u64, source)
                .post()
                .unwrap();
            ticket.wait().unwrap();
            assert!(b.bytes(start, length) == bytes);
            a.fill(start, &vec![0; length]);
            a.read(remote, start as u64, start, length);
            assert!(a.bytes(start, length) == bytes);
        }
        a.signal(remote, ONE);
    });
    (0..THREADS).for_each(|_| b.take(ONE));
    a.endpoint.flush().wait().unwrap();
}

#[test]
fn each_thread_gets_its_own_failures() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let good = Peer::new(&nic, 1, 4096);
    let bad = Peer::with_access(&nic, 2, 4096, qnic::Access::READ);
    let (good_remote, bad_remote) = (a.import(&good), a.import(&bad));
    let remotes = [&good_remote, &bad_remote].repeat(THREADS / 2);
    in_threads(&remotes, |thread, remote| {
        for _ in 0..500 {
            let ticket = a.endpoint.write(remote, 0, b"x").post().unwrap();
            assert_eq!(ticket.wait().is_err(), thread % 2 == 1);
        }
    });
    a.endpoint.flush().wait().unwrap();
}

#[test]
fn several_processes_on_every_node_exchange_with_all_others() {
    const NODES: u16 = 3;
    const PORTS: u16 = 2;
    let cluster = Cluster::new(NODES);
    let nics: Vec<_> = (0..NODES).map(|node| cluster.nic(node)).collect();
    let peers = peers(&nics, PORTS, 64 << 10);
    in_threads(&peers, |from, peer| {
        for other in &peers {
            let remote = peer.import(other);
            peer.fill(60_000, &pattern(from as usize, 1000));
            let source = peer.segment.part(60_000, 1000);
            peer.write_fenced_notify(&remote, from * 1000, source);
        }
        peers.iter().for_each(|_| peer.take(ONE));
        for from in 0..peers.len() {
            assert!(peer.bytes(from * 1000, 1000) == pattern(from, 1000));
        }
    });
}
