//! writeP and readP through the library (N25).

use std::sync::Arc;

use qnic::provider::host::Node;
use qnic::{physical, Nic, Port, Status};

use crate::cluster::{pattern, Cluster, Peer, BOTH, MEMORY, NAME, ONE, SOON};

const LENGTH: usize = 300_000;

/// Becomes a node that allows physical addresses.
fn open(cluster: &Cluster, node: u16) -> Nic {
    let provider = Node::connect(cluster.socket(node), MEMORY).unwrap();
    provider.node().allow_physical();
    Nic::with_provider(Arc::new(provider), cluster.socket(node))
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
    a.buffer.write(0, &bytes).unwrap();
    let part = a.segment.part(1, LENGTH - 1);
    a.endpoint
        .write_fenced_notify(&theirs, 0, part, ONE)
        .unwrap();
    b.endpoint.notification(ONE).take(Some(SOON)).unwrap();
    assert!(b.buffer.read_vec(0, LENGTH - 1).unwrap() == bytes[1..]);
    // Small ones travel inline, from memory or from a segment.
    a.endpoint.write_fenced(&theirs, 9, b"tiny").unwrap();
    let small = a.segment.part(1, 8);
    a.endpoint.write_fenced(&theirs, 100, small).unwrap();
    assert_eq!(b.buffer.read_vec(9, 4).unwrap(), b"tiny");
    assert_eq!(b.buffer.read_vec(100, 8).unwrap(), bytes[1..9]);
    let fresh = pattern(2, LENGTH);
    b.buffer.write(0, &fresh).unwrap();
    let whole = a.segment.part(0, LENGTH);
    a.endpoint.read_fenced(&theirs, 0, whole).unwrap();
    assert!(a.buffer.read_vec(0, LENGTH).unwrap() == fresh);
    for nic in &nics {
        let counted = nic.info().unwrap().nic;
        let looked_up = [
            counted.source_hits,
            counted.source_misses,
            counted.destination_hits,
            counted.destination_misses,
        ];
        assert_eq!(looked_up.map(|counter| counter.get()), [0; 4]);
    }
}

#[test]
fn it_needs_the_node_and_the_endpoint_to_allow_it() {
    let cluster = Cluster::new(2);
    let closed = cluster.nic(0);
    let refused = physical::register(&closed, Port(1)).unwrap_err();
    assert_eq!(refused.status(), Some(Status::AccessDenied));
    let ordinary = open(&cluster, 1).register(Port(1)).unwrap();
    let buffer = ordinary.allocate(4096).unwrap();
    let refused = physical::export(&ordinary, NAME, &buffer, BOTH).unwrap_err();
    assert_eq!(refused.status(), Some(Status::AccessDenied));
}

#[test]
fn physical_and_virtual_segments_can_be_mixed() {
    let cluster = Cluster::new(2);
    let a = Peer::new(&cluster.nic(0), 1, LENGTH);
    let b = peer(&open(&cluster, 1));
    let theirs = a.import(&b);
    let bytes = pattern(3, LENGTH);
    a.buffer.write(0, &bytes).unwrap();
    a.endpoint
        .write_fenced(&theirs, 0, a.segment.part(0, LENGTH))
        .unwrap();
    assert!(b.buffer.read_vec(0, LENGTH).unwrap() == bytes);
    let back = b.import(&a);
    b.buffer.write(0, &pattern(4, LENGTH)).unwrap();
    b.endpoint
        .write_fenced(&back, 0, b.segment.part(0, LENGTH))
        .unwrap();
    assert!(a.buffer.read_vec(0, LENGTH).unwrap() == pattern(4, LENGTH));
}
