//! Fragments that are lost on the way to a steered buffer: it goes on waiting, and the next try finds it.

use super::super::fragments::FRAGMENT_NS;
use super::*;

/// Sends data to a steered buffer; the packets with the fragment numbers `lost` are lost.
fn send_but(world: &World, handle: Handle, data: &[u8], lost: &[u16]) {
    world.answer(handle, b"page", data);
    world.run_with(|packet| match lost.contains(&packet.body.fragment.get()) {
        true => Vec::new(),
        false => std::vec![packet],
    });
}

fn is_received(told: &[Told], bytes: &[u8]) -> bool {
    told.iter()
        .any(|told| matches!(told, Told::Received { data, .. } if data.0 == bytes))
}

#[test]
fn a_page_in_on_a_narrow_route_is_repeated_without_waiting() {
    let world = World::new();
    world.nic().max_payload = 2048;
    let handle = world.expect(1);
    for lost in [[1], [0]] {
        send_but(&world, handle, &bytes(1, 4096), &lost);
        assert_eq!(world.notes[1].take(), [], "half of it is lost");
    }
    send_but(&world, handle, &bytes(2, 4096), &[]);
    assert!(is_received(&world.notes[1].take(), &bytes(2, 4096)));
    // The buffer was not needed: it is still there.
    world.port(1).withdraw(handle);
    world.run();
    assert_eq!(world.notes[1].take(), [Told::Withdrawn(handle)]);
}

#[test]
fn a_steered_buffer_waits_on_when_half_of_its_message_is_given_up() {
    let world = World::new();
    let handle = world.expect(2);
    for lost in [[1], [0], [1]] {
        send_but(&world, handle, &bytes(1, 8192), &lost);
        world.fake.pass(FRAGMENT_NS + 1);
        world.driver.serve_datagrams();
        world.run();
        assert_eq!(world.notes[1].take(), [], "half of it is lost");
    }
    send_but(&world, handle, &bytes(2, 8192), &[]);
    let told = world.notes[1].take();
    assert!(is_received(&told, &bytes(2, 8192)), "{told:?}");
    assert_eq!(world.counters()["bytes_copied"], 0);
    assert_eq!(world.counters()["pages_steered"], 2);
}

#[test]
fn a_steered_buffer_that_waits_on_can_be_withdrawn() {
    let world = World::new();
    let handle = world.expect(2);
    send_but(&world, handle, &bytes(1, 8192), &[1]);
    world.fake.pass(FRAGMENT_NS + 1);
    world.driver.serve_datagrams();
    // It can also be withdrawn while it waits to be posted again.
    world.port(1).withdraw(handle);
    world.run();
    let withdrawn = || Told::Withdrawn(handle);
    assert_eq!(world.notes[1].take(), [withdrawn(), withdrawn()]);
}

/// Answers that come at once are more than the port has buffers for; their fragments leave room
/// for all fragments of the next answer.
#[test]
fn halves_of_messages_leave_room_for_a_whole_one() {
    let config = PortConfig {
        receives: 12,
        steered: 6,
        messages: 8,
    };
    let world = World::with(config);
    world.nic().max_payload = 1400;
    world.send(b"the route", &bytes(0, 4096), 0);
    world.run();
    for burst in 0..4 {
        let lost = |packet: Packet| match packet.body.fragment.get() {
            0 => Vec::new(),
            _ => std::vec![packet],
        };
        (0..6).for_each(|token| world.send(&[burst, token], &bytes(token, 4096), 1));
        world.run_with(lost);
        world.notes[1].take();
        world.send(b"next", &bytes(9, 4096), 2);
        world.run();
        assert_eq!(
            world.notes[1].take(),
            [received(1, b"next", &bytes(9, 4096))]
        );
    }
}
