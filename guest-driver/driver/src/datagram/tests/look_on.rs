//! Service that goes on polling while the processor has nothing else to do.

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::platform::Spare;

/// Delivers the packets on the wire each time that the driver asks for the processor's other work. The
/// answer is `spare` for the first `times` times; returns the number of times.
fn delivers_while_it_looks(world: &World, spare: Spare, times: usize) -> Arc<AtomicUsize> {
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, nic) = (asked.clone(), world.nic.clone());
    world.fake.on_spare(move || {
        // The test is over, and its world ends.
        let Ok(mut nic) = nic.try_lock() else {
            return Spare::Work;
        };
        nic.read_commands();
        while let Some(packet) = nic.wire.pop_front() {
            nic.deliver(&packet);
        }
        match count.fetch_add(1, Ordering::Relaxed) < times {
            true => spare,
            false => Spare::Work,
        }
    });
    asked
}

/// The first of two packets comes with an event, which is served.
fn first_of_two_is_served(world: &World) {
    world.send(b"1", &[], 1);
    {
        let mut nic = world.nic();
        nic.read_commands();
        let packet = nic.wire.pop_front().unwrap();
        nic.deliver(&packet);
        nic.offer_wake(&world.driver);
    }
    world.send(b"2", &[], 2);
    assert!(world.fake.take_scheduled());
    world.driver.serve_datagrams();
}

#[test]
fn a_processor_that_would_halt_takes_the_next_packet_without_an_event() {
    let world = World::new();
    delivers_while_it_looks(&world, Spare::Halt, 3);
    first_of_two_is_served(&world);
    let expected = [received(1, b"1", &[]), received(1, b"2", &[])];
    assert_eq!(world.notes[1].take(), expected);
}

#[test]
fn threads_and_other_work_are_not_kept_waiting() {
    for spare in [Spare::Thread, Spare::Work] {
        let world = World::new();
        let asked = delivers_while_it_looks(&world, spare, usize::MAX);
        first_of_two_is_served(&world);
        assert_eq!(world.notes[1].take(), [received(1, b"1", &[])]);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // The second one comes with an event.
        let mut nic = world.nic();
        nic.offer_wake(&world.driver);
        drop(nic);
        assert!(world.fake.take_scheduled());
    }
}

#[test]
fn a_thread_that_waits_is_looked_on_for_until_the_answer_has_come() {
    let world = World::new();
    let asked = delivers_while_it_looks(&world, Spare::Thread, usize::MAX);
    world.fake.tick_ns.store(1, Ordering::Relaxed);
    world.send(b"1", &[], 1);
    world.port(0).look_on();
    world.port(0).set_deadline(Some(0));
    assert!(world.fake.take_scheduled());
    world.driver.serve_datagrams();
    assert_eq!(world.notes[1].take(), [received(1, b"1", &[])]);
    assert!(asked.load(Ordering::Relaxed) < 10);
}

#[test]
fn a_reason_to_look_on_is_forgotten_when_it_is_old() {
    let world = World::new();
    world.port(0).look_on();
    world.fake.pass(1_000_000);
    let asked = delivers_while_it_looks(&world, Spare::Thread, usize::MAX);
    world.driver.serve_datagrams();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    // An event does not interrupt a thread for the sake of another thread.
    world.port(0).look_on();
    first_of_two_is_served(&world);
    assert_eq!(world.notes[1].take(), [received(1, b"1", &[])]);
}

#[test]
fn it_ends_though_nothing_comes() {
    let world = World::new();
    world.fake.tick_ns.store(1000, Ordering::Relaxed);
    delivers_while_it_looks(&world, Spare::Halt, usize::MAX);
    let start = crate::Platform::now_ns(&world.fake);
    first_of_two_is_served(&world);
    let took = crate::Platform::now_ns(&world.fake) - start;
    assert!(took < 3_000_000, "{took} ns");
    let expected = [received(1, b"1", &[]), received(1, b"2", &[])];
    assert_eq!(world.notes[1].take(), expected);
}
