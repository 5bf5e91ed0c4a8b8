//! Pages vanish from the NIC's page table at any time, and data stays right
//! (N4, N8, N13, N14).

use std::sync::atomic::{AtomicBool, Ordering};

use qnic::CounterSource;

use crate::cluster::{pattern, Cluster, Peer, ONE};

const LENGTH: usize = 1 << 20;

#[test]
fn transfers_survive_evictions_on_both_sides() {
    let cluster = Cluster::new(2);
    let ((nic_a, node_a), (nic_b, node_b)) = (cluster.host_node(0), cluster.host_node(1));
    let (a, b) = (Peer::new(&nic_a, 1, LENGTH), Peer::new(&nic_b, 1, LENGTH));
    let remote = a.import(&b);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                node_a.node().evict(a.buffer.address(), LENGTH as u64);
                node_b.node().evict(b.buffer.address(), LENGTH as u64);
            }
        });
        for round in 0..20 {
            let bytes = pattern(round, LENGTH);
            a.fill(0, &bytes);
            a.write_fenced_notify(&remote, 0, a.segment.part(0, LENGTH));
            b.take(ONE);
            assert!(b.bytes(0, LENGTH) == bytes, "write {round}");
            a.fill(0, &vec![0; LENGTH]);
            a.read(&remote, 0, 0, LENGTH);
            assert!(a.bytes(0, LENGTH) == bytes, "read {round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    for nic in [nic_a, nic_b] {
        let counted = nic.counters(CounterSource::Driver).unwrap();
        assert!(counted["faults_served"] > 0);
        assert!(counted["pages_invalidated"] > 0);
        assert_eq!(counted["faults_failed"], 0);
    }
}

#[test]
fn an_evicted_page_costs_one_fault() {
    let cluster = Cluster::new(2);
    let (nic, node) = cluster.host_node(1);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Peer::new(&nic, 1, 4096);
    let remote = a.import(&b);
    let counted = |name| nic.counters(CounterSource::Driver).unwrap()[name];
    a.write(&remote, 0, b"resident");
    assert_eq!(counted("faults_served"), 0);
    node.node().evict(b.buffer.address(), 1);
    assert_eq!(counted("pages_mapped"), 0);
    a.write(&remote, 0, b"absent!!");
    assert_eq!(counted("faults_served"), 1);
    assert_eq!(b.bytes(0, 8), b"absent!!");
}
