//! Nodes that do not answer: the NIC keeps packets to them until it notices.
//! Packets to other nodes do not wait for that.

use super::*;

const MANY: PortConfig = PortConfig {
    messages: 1000,
    ..CONFIG
};

/// On the dead node `node`.
fn dead(node: u16) -> Address {
    let node = NodeId(node);
    Address { node, port: 2 }
}

/// A world in which these nodes do not answer.
fn world_without(nodes: &[u16]) -> World {
    let world = World::with(MANY);
    world.nic().dead = nodes.to_vec();
    world
}

fn send_to(world: &World, to: &[Address], token: u64) {
    world.send_to(to, world.message(b"", &bytes(1, 4096), token));
}

fn failed(token: u64) -> Told {
    Told::Sent {
        token,
        failed: 1,
        status: Status::PeerGone,
    }
}

/// The NIC gives up the first packets to a node.
fn give_up(world: &World, node: u16, count: usize) {
    world.nic().give_up(node, count);
    world.run();
}

#[test]
fn a_dead_node_leaves_the_others_their_share() {
    let world = world_without(&[9]);
    for token in 0..500 {
        send_to(&world, &[dead(9)], token);
    }
    world.run();
    assert!(world.nic().held.len() <= 32);
    send_to(&world, &[to(2)], 500);
    world.run();
    assert_eq!(world.notes[0].take(), [sent(500)]);
    assert_eq!(world.notes[1].take().len(), 1, "it has come");
}

#[test]
fn so_do_several() {
    let nodes = [9, 10, 11, 12, 13, 14];
    let world = world_without(&nodes);
    for token in 0..100 {
        for node in nodes {
            send_to(&world, &[dead(node)], token);
        }
    }
    world.run();
    send_to(&world, &[to(2)], 500);
    world.run();
    assert_eq!(world.notes[0].take(), [sent(500)]);
}

#[test]
fn a_node_takes_no_more_through_many_ports() {
    let world = world_without(&[9]);
    let bind = |number| {
        let notes = Arc::new(Notes::default());
        world.driver.bind_datagrams(number, &MANY, notes).unwrap()
    };
    let ports: Vec<_> = (10..20).map(bind).collect();
    for port in &ports {
        for token in 0..100 {
            let message = world.message(b"", &[], token);
            let sent = port.send(&[dead(9)], message);
            sent.map_err(|(error, _)| error).unwrap();
        }
    }
    world.run();
    assert!(world.nic().held.len() <= 64);
    send_to(&world, &[to(2)], 500);
    world.run();
    assert_eq!(world.notes[0].take(), [sent(500)]);
    // Else the ports could not close: they have waiting messages.
    world.nic().dead.clear();
    give_up(&world, 9, 64);
}

#[test]
fn what_waits_for_a_node_fails_with_the_packet_that_says_that_it_is_gone() {
    let world = world_without(&[9]);
    for token in 0..100 {
        send_to(&world, &[dead(9)], token);
    }
    world.run();
    let held = world.nic().held.len();
    give_up(&world, 9, 1);
    let told = world.notes[0].take();
    assert_eq!(told.len(), 100 - held + 1, "all that the NIC does not have");
    assert!(told.iter().all(|told| matches!(
        told,
        Told::Sent {
            failed: 1,
            status: Status::PeerGone,
            ..
        }
    )));
    give_up(&world, 9, held);
    assert_eq!(world.notes[0].take().len(), held - 1);
}

#[test]
fn a_node_that_was_gone_is_asked_with_one_packet() {
    let world = world_without(&[9]);
    send_to(&world, &[dead(9)], 0);
    world.run();
    give_up(&world, 9, 1);
    assert_eq!(world.notes[0].take(), [failed(0)]);
    for token in 1..=50 {
        send_to(&world, &[dead(9)], token);
    }
    world.run();
    assert_eq!(world.nic().held.len(), 1);
    // The node answers again.
    let mut nic = world.nic();
    nic.dead.clear();
    nic.give_in(9);
    drop(nic);
    world.run();
    let told = world.notes[0].take();
    assert_eq!(
        told,
        (1..=50).map(sent).collect::<Vec<_>>(),
        "in their order"
    );
}

#[test]
fn a_set_with_a_dead_node_reaches_the_others() {
    let world = world_without(&[9]);
    for token in 0..100 {
        send_to(&world, &[dead(9)], token);
    }
    send_to(&world, &[dead(9), to(2)], 500);
    world.run();
    assert_eq!(world.notes[1].take().len(), 1, "it has come");
    assert_eq!(world.notes[0].take(), [], "it is not over");
    give_up(&world, 9, 100);
    assert!(world.notes[0].take().contains(&failed(500)));
}
