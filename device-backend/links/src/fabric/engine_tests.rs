//! Two fabrics, each at an engine of its own, driven by one thread.

use qnic_nic::env::{Channel, Payload, Sent, Wire};
use qnic_nic::testing::SimHost;

use super::tests::{fabric, send, taken, NOW};
use super::*;
use crate::codec::tests::header;
use crate::network::LinkChange;
use crate::siblings::mesh;
use crate::testing::impairments;

/// Engines with these nodes, all started but the last of the second one.
pub(super) fn engines(nodes: [&[u16]; 2], plan: Option<&NetworkPlan>) -> [Fabric<SimHost>; 2] {
    let [first, second] = nodes;
    let mut fabrics = [fabric(first, first.len()), fabric(second, second.len() - 1)];
    let nodes = nodes.map(|nodes| nodes.iter().copied().map(NodeId).collect::<Vec<_>>());
    for (fabric, siblings) in fabrics.iter_mut().zip(mesh(2).unwrap()) {
        fabric.join_engines(siblings, &nodes).unwrap();
        if let Some(plan) = plan {
            fabric.join(plan).unwrap();
        }
    }
    fabrics
}

#[test]
fn frames_reach_the_nics_of_another_engine() {
    let [mut first, mut second] = engines([&[0, 2], &[1, 3, 9]], None);
    assert!(send(&mut first, 0, 3) && send(&mut first, 1, 1) && send(&mut first, 0, 2));
    assert_eq!((taken(&first), taken(&second)), (vec![0, 1], vec![0, 0, 0]));
    assert!(second.receive(NOW) && !second.receive(NOW));
    assert_eq!(taken(&second), [1, 1, 0]);
    assert_eq!(second.next_due(0), Some(0));
    assert!(!first.receive(NOW));
    assert!(!send(&mut first, 0, 8), "no engine has it");
}

/// A frame that finds no route comes back once, and counts as no process's mistake.
#[test]
fn frames_to_a_nic_that_does_not_run_come_back() {
    let [mut first, mut second] = engines([&[0], &[1, 9]], None);
    assert!(send(&mut first, 0, 9));
    assert!(second.receive(NOW) && first.receive(NOW));
    assert!(!second.receive(NOW) && !first.receive(NOW));
    assert_eq!(taken(&first), [0]);
    assert_eq!((first.misdirected(), second.misdirected()), (0, 0));
}

#[test]
fn frames_from_another_engine_wait_for_a_suspended_nic() {
    let [mut first, mut second] = engines([&[0], &[1, 9]], None);
    second.suspend(0, NOW);
    assert!(send(&mut first, 0, 1) && second.receive(NOW));
    assert_eq!(taken(&second), [0, 0]);
    second.resume(0, NOW);
    assert!(second.receive(NOW));
    assert_eq!(taken(&second), [1, 0]);
}

#[test]
fn a_route_to_another_engine_is_lossless_as_one_within_an_engine_is() {
    let path = |fabric: &mut Fabric<SimHost>| {
        let path = fabric.with(0, NOW, |_, _, _, wire| wire.path(NodeId(1)));
        path.map(|path| path.lossless)
    };
    let [mut fixed, _] = engines([&[0], &[1, 9]], None);
    assert_eq!(path(&mut fixed), Some(true));
    let plan = NetworkPlan {
        nodes: vec![NodeId(0), NodeId(1), NodeId(9)],
        ..NetworkPlan::default()
    };
    let [mut joined, _] = engines([&[0], &[1, 9]], Some(&plan));
    assert_eq!(path(&mut joined), Some(false));
}

/// The engine of the sender emulates the links, then the frame goes on to the other engine.
#[test]
fn an_impaired_link_leads_to_another_engine() {
    let plan = NetworkPlan {
        nodes: vec![NodeId(0), NodeId(1), NodeId(9)],
        default: impairments("delay 1us"),
        ..NetworkPlan::default()
    };
    let [mut first, mut second] = engines([&[0], &[1, 9]], Some(&plan));
    let (header, payload) = (header(0, 1, 700), [7; 700]);
    first.with(0, NOW, |_, _, _, wire| {
        let sent = wire.send(&header, Payload::Bytes(&payload), Channel::Data);
        assert_eq!(sent, Sent::Taken);
    });
    assert!(!first.receive(NOW) && !second.receive(NOW));
    assert!(first.receive(NOW.after(1000)) && second.receive(NOW.after(1000)));
    assert_eq!(taken(&second), [1, 0]);
    let all = LinkSet::All;
    assert_eq!(first.network_mut().set(all, None, LinkChange::Clear), Ok(2));
    assert!(send(&mut first, 0, 1) && second.receive(NOW));
    assert_eq!(taken(&second), [2, 0]);
}

#[test]
fn an_engine_sleeps_unless_another_has_sent_something() {
    let [mut first, mut second] = engines([&[0], &[1, 9]], None);
    assert!(first.prepare_sleep() && second.prepare_sleep());
    assert!(send(&mut first, 0, 1));
    assert!(!second.prepare_sleep());
    assert!(second.receive(NOW) && second.prepare_sleep());
}
