//! Links between nodes: routes, changes, chance.

use qnic_config::plan::Topology;

use super::*;
use crate::codec::tests::image;
use crate::testing::{change, impairments};

fn nodes(count: u16) -> Vec<NodeId> {
    (0..count).map(NodeId).collect()
}

fn network(topology: Topology, count: u16, default: &str) -> Network {
    let plan = NetworkPlan {
        topology,
        nodes: nodes(count),
        default: impairments(default),
        links: Vec::new(),
        seed: 1,
        one_channel: false,
    };
    Network::new(&plan, &nodes(count)).unwrap()
}

fn arrived(to: NodeId, source: u16, destination: u16) -> Option<Arrived> {
    Some(Arrived {
        to,
        channel: Channel::Data,
        image: image(source, destination),
    })
}

#[test]
fn latencies_of_the_hops_add_up() {
    let mut network = network(Topology::Torus { columns: 3 }, 9, "delay 1us");
    let (from, to) = (NodeId(0), NodeId(4));
    assert!(!network.is_clear(from, to));
    network.send(Time(0), (from, to), Channel::Data, image(0, 4));
    assert_eq!(network.poll(Time(1999)), None);
    assert_eq!(network.next_deadline(), Some(Time(2000)));
    assert_eq!(network.poll(Time(2000)), arrived(to, 0, 4));
}

#[test]
fn a_network_without_impairments_is_clear() {
    let network = network(Topology::Mesh, 4, "");
    assert!(network.is_clear(NodeId(0), NodeId(3)));
    assert_eq!(network.report().len(), 12);
}

#[test]
fn damage_is_caught_and_counted() {
    let mut network = network(Topology::Ring, 4, "corrupt 100%");
    for number in 0..100 {
        network.send(
            Time(0),
            (NodeId(0), NodeId(1)),
            Channel::Data,
            image(number, 1),
        );
    }
    assert_eq!(network.poll(Time(0)), None);
    assert_eq!(network.damaged(), 100);
}

#[test]
fn links_change_one_by_one_and_the_route_is_clear_again() {
    let mut network = network(Topology::Ring, 4, "");
    let (a, b, c) = (NodeId(0), NodeId(1), NodeId(2));
    let delay = change("delay 10ns");
    assert_eq!(network.set(LinkSet::OneWay(a, b), None, delay), Ok(1));
    assert!(!network.is_clear(a, b) && !network.is_clear(a, c));
    assert!(network.is_clear(b, a) && network.is_clear(b, c));
    network.send(Time(0), (a, c), Channel::Data, image(0, 4));
    assert_eq!(network.set(LinkSet::All, None, LinkChange::Clear), Ok(8));
    assert!(!network.is_clear(a, b), "a frame is still in transit");
    assert_eq!(network.poll(Time(10)), arrived(c, 0, 4));
    assert_eq!(network.poll(Time(10)), None);
    assert!(network.is_clear(a, b));
    assert!(network.set(LinkSet::Between(a, c), None, delay).is_err());
    assert_eq!(network.set(LinkSet::At(b), None, delay), Ok(4));
}

/// How many frames of a hundred arrive over the first link.
fn passed(network: &mut Network) -> usize {
    for _ in 0..100 {
        let ends = (NodeId(0), NodeId(1));
        network.send(Time(0), ends, Channel::Data, image(0, 1));
    }
    std::iter::from_fn(|| network.poll(Time(0))).count()
}

/// What was drawn before a change has no part in what is drawn after it, if the change has
/// a seed; and what was planned comes back.
#[test]
fn a_change_with_a_seed_begins_chance_anew() {
    let half = change("loss 50%");
    let after = |frames_before: usize, seed| {
        let mut network = network(Topology::Mesh, 2, "loss 20%");
        for _ in 0..frames_before {
            passed(&mut network);
        }
        network.set(LinkSet::All, seed, half).unwrap();
        [(); 8].map(|()| passed(&mut network))
    };
    assert_eq!(after(0, Some(7)), after(3, Some(7)));
    assert_ne!(after(0, Some(7)), after(0, Some(8)));
    assert_ne!(after(0, None), after(3, None));
    let mut network = network(Topology::Mesh, 2, "loss 20%");
    network.set(LinkSet::All, None, half).unwrap();
    network
        .set(LinkSet::All, None, LinkChange::Restore)
        .unwrap();
    let report = network.report();
    assert!(report
        .iter()
        .all(|link| link.impairments == impairments("loss 20%")));
}

#[test]
fn only_links_that_exist_can_be_named() {
    let mut plan = NetworkPlan {
        topology: Topology::Ring,
        nodes: nodes(4),
        links: vec![(NodeId(0), NodeId(1), impairments("delay 5ns"))],
        ..NetworkPlan::default()
    };
    let network = Network::new(&plan, &nodes(2)).unwrap();
    let first = &network.report()[0];
    assert_eq!(
        (first.from, first.to, first.impairments),
        (0, 1, impairments("delay 5ns"))
    );
    plan.links
        .push((NodeId(0), NodeId(2), impairments("delay 5ns")));
    assert!(Network::new(&plan, &nodes(2)).is_err());
    plan.links[1] = (NodeId(0), NodeId(9), impairments("delay 5ns"));
    assert!(Network::new(&plan, &nodes(2)).is_err());
}
