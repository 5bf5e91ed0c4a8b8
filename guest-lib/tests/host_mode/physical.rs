//! writeP and readP through the library (N25).

use qnic::{physical, CounterSource, Nic, Port, Status};

use crate::cluster::{pattern, status, Cluster, Peer, BOTH, NAME, ONE};

const LENGTH: usize = 300_000;

/// Becomes a node that allows physical addresses.
fn open(cluster: &Cluster, node: u16) -> Nic {
    let (nic, host) = cluster.host_node(node);
    host.node().allow_physical();
    nic
}

fn peer(nic: &Nic) -> Peer {
    let endpoint = physical::register(nic, Port(1)).unwrap();
    let buffer = endpoint.allocate(LENGTH).unwrap();
    Peer {
        segment: physical::export(&endpoint, NAME, &buffer, BOTH).unwrap(),
        buffer,
        endpoint,
    }
}

#[test]
fn bytes_move_by_physical_address_without_a_lookup() {
    let cluster = Cluster::new(2);
    let nics = [open(&cluster, 0), open(&cluster, 1)];
    let [a, b] = [peer(&nics[0]), peer(&nics[1])];
    let theirs = a.import(&b);
    assert_eq!(theirs.address(), b.segment.address());
    let bytes = pattern(1, LENGTH);
    a.fill(0, &bytes);
    a.write_fenced_notify(&theirs, 0, a.segment.part(1, LENGTH - 1));
    b.take(ONE);
    assert!(b.bytes(0, LENGTH - 1) == bytes[1..]);
    // Small ones travel inline, from memory or from a segment.
    a.write(&theirs, 9, b"tiny");
    a.write(&theirs, 100, a.segment.part(1, 8));
    assert_eq!(b.bytes(9, 4), b"tiny");
    assert_eq!(b.bytes(100, 8), bytes[1..9]);
    let fresh = pattern(2, LENGTH);
    b.fill(0, &fresh);
    a.read(&theirs, 0, 0, LENGTH);
    assert!(a.bytes(0, LENGTH) == fresh);
    for nic in &nics {
        let counted = nic.counters(CounterSource::Nic).unwrap();
        for side in ["source", "destination"] {
            assert_eq!(counted[&format!("{side}_hits")], 0);
            assert_eq!(counted[&format!("{side}_misses")], 0);
        }
    }
}

#[test]
fn it_needs_the_node_and_the_endpoint_to_allow_it() {
    let cluster = Cluster::new(2);
    let closed = cluster.nic(0);
    let refused = status(physical::register(&closed, Port(1)));
    assert_eq!(refused, Status::AccessDenied);
    let ordinary = open(&cluster, 1).register(Port(1)).unwrap();
    let buffer = ordinary.allocate(4096).unwrap();
    let refused = status(physical::export(&ordinary, NAME, &buffer, BOTH));
    assert_eq!(refused, Status::AccessDenied);
}

#[test]
fn physical_and_virtual_segments_can_be_mixed() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, LENGTH);
    let b = peer(&open(&cluster, 1));
    for (from, to, seed) in [(&a, &b, 3), (&b, &a, 4)] {
        let bytes = pattern(seed, LENGTH);
        from.fill(0, &bytes);
        from.write(&from.import(to), 0, from.segment.part(0, LENGTH));
        assert!(to.bytes(0, LENGTH) == bytes);
    }
}
