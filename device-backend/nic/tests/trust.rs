//! What one process or peer takes, others keep (X8): places, windows, imports.

use qnic_abi::{Port, Status};
use qnic_nic::testing::{Net, Pair, SimSegment};
use qnic_nic::Limits;

/// A segment that looks like that of `b`, on a node that does not exist.
fn elsewhere(pair: &Pair, node: usize) -> SimSegment {
    SimSegment {
        node,
        ..pair.b.segment
    }
}

/// Nodes without a route are no peers: those that exist find their place and their window,
/// however many others a process has named.
#[test]
fn nodes_that_do_not_exist_take_no_place() {
    let limits = Limits {
        peers: 4,
        ..Limits::default()
    };
    let pair = Pair::present(Net::new(3, 512, 8, &limits));
    for node in 10..1200 {
        let refused = pair.a.import(node, Port(9), 1, 0);
        assert_eq!(refused, Err(Status::NoSuchNode));
        pair.a.write(elsewhere(&pair, node.into())).run();
    }
    assert_eq!(pair.a.errors().last().unwrap().1, Status::NoSuchNode);
    let (writes, errors) = (pair.a.done().0, pair.a.errors().len());
    pair.a.write(&pair.b).run();
    assert_eq!(
        (pair.a.done().0, pair.a.errors().len()),
        (writes + 1, errors)
    );
    let third = pair.net.party(2, 3);
    let name = 7;
    assert!(pair.a.import(2, third.port, name, 0).is_ok());
}

/// A node that cannot be reached any more leaves, and comes back as a peer like others.
#[test]
fn a_node_without_a_route_leaves_and_comes_back() {
    let limits = Limits {
        peers: 3,
        ..Limits::default()
    };
    let net = Net::new(5, 512, 8, &limits);
    let a = net.party(0, 1).present();
    for round in 0..3 {
        for node in 1..5 {
            let other = net.party(node, 2 + round).present();
            let before = (a.done().0, a.errors().len());
            a.write(&other).run();
            assert_eq!((a.done().0, a.errors().len()), (before.0 + 1, before.1));
            net.cut(node as u16);
            a.write(&other).run();
            assert_eq!(a.errors().last().unwrap().1, Status::NoSuchNode);
            net.heal();
        }
    }
}
