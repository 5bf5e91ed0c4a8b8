use super::*;

#[test]
fn messages_of_every_length_arrive_whole() {
    let world = World::new();
    for (token, length) in [0, 1, 4095, 4096, 4097, 8191, 8192].into_iter().enumerate() {
        let data = bytes(token as u8, length);
        world.send(&[token as u8; 40], &data, token as u64);
        world.run_and_check(token as u64, &[token as u8; 40], &data);
    }
    assert_eq!(world.counters()["bytes_copied"], 0);
    assert_eq!(world.counters()["packets_received"], 10);
}

#[test]
fn several_modules_use_the_nic_at_once() {
    let world = World::new();
    world.notes[1].echoes.store(true, Ordering::Relaxed);
    world.send(b"ping", &bytes(1, 4096), 1);
    world.run();
    assert_eq!(
        world.notes[0].take(),
        [sent(1), received(2, b"ping", &bytes(1, 4096))]
    );
    let port = |number| {
        world
            .driver
            .bind_datagrams(number, &CONFIG, world.notes[0].clone())
    };
    assert_eq!(port(1).err(), Some(BindError::InUse));
    assert_eq!(port(0).err(), Some(BindError::Invalid));
}

#[test]
fn the_driver_is_one_process_of_its_nic_and_no_other_gets_its_port() {
    let world = World::new();
    let driver_port = qnic_abi::datagram::DRIVER_PORT;
    assert_eq!(world.fake.nic().processes.len(), 1);
    let mut call = qnic_abi::uapi::Register {
        port: driver_port.into(),
        ..Default::default()
    };
    let refused = world.driver.register((), 1, &mut call).unwrap();
    assert!(refused.is_none());
    assert_eq!(call.status.get(), Status::PortInUse.code());
}

#[test]
fn a_nic_without_datagrams_leaves_nothing_behind() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    let bind = || driver.bind_datagrams(1, &CONFIG, Arc::new(Notes::default()));
    fake.nic().next.push_back(Ok(Status::Malformed.code()));
    assert_eq!(bind().err(), Some(BindError::NoDevice));
    assert_eq!(fake.pages.count(), 0);
    drop(bind().unwrap());
}

#[test]
fn a_page_in_lands_in_the_page_that_waits_for_it() {
    let world = World::new();
    let page = world.fake.pages.allocate();
    let buffer = Buffer::new(page.part(0, 4096));
    let handle = world.port(1).expect(buffer, None).unwrap();
    world.answer(handle, b"page", &bytes(3, 4096));
    world.run();
    let told = world.notes[1].take();
    assert!(matches!(&told[..], [Told::Received { steered, .. }] if *steered == Some(handle)));
    let mut there = [0; 4096];
    page.read_bytes(0, &mut there);
    assert_eq!(there[..], bytes(3, 4096));
    assert_eq!(world.counters()["bytes_copied"], 0);
    assert_eq!(world.counters()["pages_steered"], 1);
    // A late answer, or the same one once more, finds no buffer.
    world.answer(handle, b"page", &bytes(4, 4096));
    world.run();
    assert_eq!(world.notes[1].take(), []);
    assert_eq!(world.nic().dropped, 1);
}

#[test]
fn two_pages_land_in_the_two_that_wait_for_them() {
    let world = World::new();
    let pages = [(); 2].map(|()| world.fake.pages.allocate());
    let [first, second] = pages.each_ref().map(|page| Buffer::new(page.part(0, 4096)));
    let handle = world.port(1).expect(first, Some(second)).unwrap();
    let data = bytes(5, 8192);
    world.answer(handle, b"", &data);
    world.run();
    for (page, expected) in pages.iter().zip(data.chunks(4096)) {
        let mut there = [0; 4096];
        page.read_bytes(0, &mut there);
        assert_eq!(there[..], *expected);
    }
    assert_eq!(world.notes[1].take().len(), 1);
    assert_eq!(world.counters()["bytes_copied"], 0);
}

#[test]
fn what_a_message_does_not_need_of_a_steered_buffer_comes_back() {
    let world = World::new();
    let handle = world.expect(2);
    world.answer(handle, b"", &bytes(5, 4096));
    world.run();
    let told = world.notes[1].take();
    assert!(matches!(
        &told[..],
        [Told::Received { .. }, Told::Withdrawn(withdrawn)] if *withdrawn == handle
    ));
}

#[test]
fn a_steered_buffer_is_withdrawn_once() {
    let world = World::new();
    for late in [false, true] {
        let handle = world.port(0).expect(world.buffer(&[]), None).unwrap();
        if late {
            world.run();
        }
        world.port(0).withdraw(handle);
        world.port(0).withdraw(handle);
        world.run();
        assert_eq!(world.notes[0].take(), [Told::Withdrawn(handle)]);
    }
    let handles = [(); 4].map(|()| world.port(0).expect(world.buffer(&[]), None).unwrap());
    assert!(world.port(0).expect(world.buffer(&[]), None).is_err());
    for handle in handles {
        world.port(0).withdraw(handle);
    }
    world.run();
    assert_eq!(world.notes[0].take().len(), 4);
    assert!(world.port(0).expect(world.buffer(&[]), None).is_ok());
}

/// Found in a guest: the only slot was still in use when the module needed it again.
#[test]
fn the_slot_of_a_steered_buffer_is_free_when_the_module_is_told_of_its_end() {
    let world = World::with(PortConfig {
        steered: 1,
        ..CONFIG
    });
    world.notes[1].expects_again.store(true, Ordering::Relaxed);
    let mut handle = world.expect(1);
    for round in 0..10 {
        if round % 2 == 0 {
            world.answer(handle, b"", &bytes(5, 4096));
        } else {
            world.port(1).withdraw(handle);
        }
        world.run();
        handle = world.notes[1].expected.lock().unwrap().take().unwrap();
    }
}

#[test]
fn a_narrow_route_gets_smaller_packets_and_copies_are_counted() {
    let world = World::new();
    world.nic().max_payload = 1400;
    world.send(b"8 KiB", &bytes(1, 8192), 1);
    world.run_and_check(1, b"8 KiB", &bytes(1, 8192));
    let counters = world.counters();
    assert!(counters["routes_narrowed"] >= 2);
    assert_eq!(counters["bytes_copied"], 2 * 3 * 1024);
    // The learnt size is used at once.
    world.send(b"", &bytes(2, 4096), 2);
    world.run_and_check(2, b"", &bytes(2, 4096));
    assert_eq!(
        world.counters()["routes_narrowed"],
        counters["routes_narrowed"]
    );
}

#[test]
fn a_route_that_carries_nothing_fails_the_message() {
    let world = World::new();
    world.nic().max_payload = 100;
    world.send(b"", &bytes(1, 4096), 1);
    world.run();
    let failed = Told::Sent {
        token: 1,
        failed: 1,
        status: Status::BadLength,
    };
    assert_eq!(world.notes[0].take(), [failed]);
}

/// A block is one packet where the route carries it, of any length (S1).
#[test]
fn a_block_is_one_packet() {
    let world = World::with_blocks(CONFIG, 8);
    for length in [1, 4096, 4097, 10_000, 32_768] {
        let before = world.counters();
        world.send_to(&[to(2)], world.message_in_block(&bytes(1, length), 1));
        world.run_and_check(1, b"", &bytes(1, length));
        let counters = world.counters();
        let packets = counters["packets_sent"] - before["packets_sent"];
        assert_eq!((packets, counters["bytes_copied"]), (1, 0));
    }
}

/// On a narrower route the rest of a block is copied behind its first fragment.
#[test]
fn a_block_goes_over_a_narrow_route_in_fragments() {
    let config = PortConfig {
        receives: 32,
        ..CONFIG
    };
    let world = World::with_blocks(config, 8);
    world.nic().max_payload = 4096;
    for length in [32_768, 30_000, 4097] {
        let before = world.counters();
        world.send_to(&[to(2)], world.message_in_block(&bytes(2, length), 1));
        world.run_and_check(1, b"", &bytes(2, length));
        let copied = world.counters()["bytes_copied"] - before["bytes_copied"];
        assert_eq!(copied as usize, length - 4096);
    }
    // Messages in pages are no longer than that, and nothing is copied.
    let before = world.counters();
    world.send(b"", &bytes(3, 8192), 2);
    world.run();
    let counters = world.counters();
    assert_eq!(counters["packets_sent"] - before["packets_sent"], 2);
    assert_eq!(counters["routes_narrowed"], before["routes_narrowed"]);
}

#[test]
fn a_block_that_would_be_too_many_packets_fails() {
    let world = World::with_blocks(CONFIG, 8);
    world.nic().max_payload = 1024;
    for (length, failed) in [(16 * 1024 + 1, 1), (16 * 1024, 0), (32 * 1024, 1)] {
        world.send_to(&[to(2)], world.message_in_block(&bytes(1, length), 1));
        world.run();
        let told = world.notes[0].take();
        let [Told::Sent { failed: count, .. }] = told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(count, failed, "{length} bytes");
    }
}

/// A port keeps fragments in half of its buffers: a message of more fragments is never joined.
#[test]
fn a_port_with_few_buffers_joins_no_message_of_many_fragments() {
    let config = PortConfig {
        receives: 8,
        ..CONFIG
    };
    let world = World::with_blocks(config, 8);
    world.nic().max_payload = 4096;
    for (length, arrives) in [(4 * 4096, true), (4 * 4096 + 1, false)] {
        world.send_to(&[to(2)], world.message_in_block(&bytes(1, length), 1));
        world.run();
        assert_eq!(
            world.notes[1].take().len(),
            usize::from(arrives),
            "{length}"
        );
    }
    assert!(world.counters()["fragments_evicted"] > 0);
}

#[test]
fn a_message_goes_to_a_set_as_unicasts() {
    let world = World::new();
    let message = world.message(b"all", &bytes(1, 4096), 1);
    world.send_to(&[to(1), to(2), to(2)], message);
    world.run();
    let expected = || received(1, b"all", &bytes(1, 4096));
    let told = world.notes[0].take();
    assert!(told.contains(&sent(1)) && told.contains(&expected()) && told.len() == 2);
    assert_eq!(world.notes[1].take(), [expected(), expected()]);
    assert_eq!(world.counters()["packets_sent"], 3);
    for set in [&[][..], &[to(0)], &[to(2); MAX_DESTINATIONS + 1]] {
        let refused = world.port(0).send(set, world.message(b"", &[], 2));
        assert_eq!(refused.err().unwrap().0, SendError::Destinations);
    }
}

#[test]
fn messages_beyond_the_slots_are_given_back() {
    let world = World::new();
    for token in 0..8 {
        world.send(b"", &bytes(0, 8192), token);
    }
    let message = world.message(b"", &[7; 100], 8);
    let (error, back) = world.port(0).send(&[to(2)], message).unwrap_err();
    assert_eq!((error, back.data.len()), (SendError::Full, 100));
    assert_eq!(world.counters()["messages_refused"], 1);
    world.run();
    assert_eq!(world.notes[0].take().len(), 8);
    assert_eq!(world.notes[1].take().len(), 8);
}

#[test]
fn buffers_are_posted_again_when_they_are_dropped() {
    let world = World::new();
    assert_eq!(world.nic().posted(), 32);
    world.notes[1].keeps.store(true, Ordering::Relaxed);
    for token in 0..4 {
        world.send(b"", &bytes(0, 8192), token);
        world.run();
    }
    assert_eq!(world.nic().posted(), 32 - 8);
    let kept = core::mem::take(&mut *world.notes[1].kept.lock().unwrap());
    drop(kept);
    world.run();
    assert_eq!(world.nic().posted(), 32);
}

#[test]
fn kept_memory_is_replaced_by_other_memory() {
    let world = World::new();
    world.notes[1].keeps.store(true, Ordering::Relaxed);
    world.send(b"", &bytes(9, 4096), 1);
    world.run();
    let kept = world.notes[1].kept.lock().unwrap().pop().unwrap();
    let [Some(buffer), None] = kept.into_buffers() else {
        panic!("one page");
    };
    let memory = buffer.keep();
    assert!(world.port(1).give(world.fake.pages.allocate()).is_none());
    let surplus = world.port(1).give(world.fake.pages.allocate());
    assert!(surplus.is_some(), "it has as many as it was bound with");
    world.run();
    assert_eq!(world.nic().posted(), 32);
    let mut there = [0; 4096];
    memory.read_bytes(0, &mut there);
    assert_eq!(there[..], bytes(9, 4096));
}

#[test]
fn buffers_that_the_nic_refuses_are_posted_later() {
    let world = World::new();
    world.nic().max_posted = 31;
    world.send(b"", &bytes(0, 8192), 1);
    world.run();
    assert!(world.counters()["posts_refused"] >= 1);
    assert_eq!(world.nic().posted(), 31);
    world.nic().max_posted = usize::MAX;
    world.fake.pass(20_000_000);
    world.run();
    assert_eq!(world.nic().posted(), 32);
}

#[test]
fn one_interrupt_handles_a_bounded_batch() {
    let config = PortConfig {
        receives: 200,
        steered: 0,
        messages: 100,
    };
    let world = World::with(config);
    for token in 0..100 {
        world.send(b"", &[1], token);
    }
    let mut nic = world.nic();
    while nic.read_commands() {
        world.driver.serve_datagrams();
        let told = world.notes[0].take().len() + world.notes[1].take().len();
        assert!(told <= 64, "{told} calls at once");
    }
    let packets: Vec<_> = nic.wire.drain(..).collect();
    for packet in &packets {
        nic.deliver(packet);
    }
    drop(nic);
    let mut batches = Vec::new();
    while batches.iter().sum::<usize>() < 100 {
        world.driver.serve_datagrams();
        batches.push(world.notes[1].take().len());
    }
    assert!(batches.iter().all(|count| *count <= 64), "{batches:?}");
    assert!(world.counters()["batches_full"] >= 1);
}

#[test]
fn a_deadline_calls_the_module_once() {
    let world = World::new();
    let port = world.port(0);
    port.set_deadline(Some(port.now_ns() + 1_000_000));
    world.run();
    assert_eq!(world.notes[0].take(), []);
    assert!(world.fake.scheduled().is_some());
    world.fake.pass(1_000_001);
    world.run();
    assert_eq!(world.notes[0].take(), [Told::Deadline]);
    world.fake.pass(10_000_000);
    world.run();
    assert_eq!(world.notes[0].take(), []);
}

#[test]
fn a_port_that_closes_takes_everything_back() {
    let mut world = World::new();
    let handle = world.port(1).expect(world.buffer(&[]), None).unwrap();
    let message = world.message(b"", &bytes(0, 4096), 5);
    world.port(1).send(&[to(1)], message).unwrap();
    let other = world.port(1).clone();
    world.ports[1] = None;
    let told = world.notes[1].take();
    assert!(told.contains(&Told::Withdrawn(handle)), "{told:?}");
    assert!(told
        .iter()
        .any(|told| matches!(told, Told::Sent { token: 5, .. })));
    let message = world.message(b"", &[], 6);
    let (error, _) = other.send(&[to(1)], message).unwrap_err();
    assert_eq!(error, SendError::Closed);
    assert!(other.expect(world.buffer(&[]), None).is_err());
    // The NIC drops packets to a closed port; its place is free.
    world.send(b"", &[1], 1);
    world.run();
    assert_eq!(world.nic().dropped, 1);
    let again = world
        .driver
        .bind_datagrams(2, &CONFIG, world.notes[1].clone());
    drop(again.unwrap());
    world.ports[0] = None;
    drop(other);
    assert_eq!(world.fake.pages.count(), qnic_abi::host_area::HOST_PAGES);
}

#[test]
fn a_nic_that_goes_away_gives_everything_back() {
    let world = World::new();
    let handle = world.port(0).expect(world.buffer(&[]), None).unwrap();
    world.send(b"", &bytes(0, 8192), 1);
    world.driver.begin_removal();
    let message = world.message(b"", &[], 2);
    assert!(world.port(0).send(&[to(2)], message).is_ok(), "it waits");
    world.driver.detach();
    let told = world.notes[0].take();
    assert!(told.contains(&Told::Withdrawn(handle)) && told.contains(&Told::Gone));
    let failed = |token| Told::Sent {
        token,
        failed: 1,
        status: Status::Aborted,
    };
    assert!(
        told.contains(&failed(1)) && told.contains(&failed(2)),
        "{told:?}"
    );
    assert_eq!(world.notes[1].take(), [Told::Gone]);
    let message = world.message(b"", &[], 3);
    assert!(world.port(0).send(&[to(2)], message).is_err());
}

#[test]
fn completions_of_nothing_are_counted() {
    use qnic_abi::host_area::CompletionKind::{DatagramReceive, DatagramSend, Name};
    let world = World::new();
    let mut nic = world.nic();
    for kind in [DatagramReceive, DatagramSend, Name] {
        for handle in [0, 1, 3 << 60, u64::MAX] {
            nic.complete(kind, handle, Status::Ok, (0, 0), 5);
        }
    }
    drop(nic);
    world.run();
    assert_eq!(world.counters()["completions_unknown"], 12);
    world.send(b"", &[1], 1);
    world.run();
    assert_eq!(world.notes[1].take().len(), 1);
}

/// Sent packets are reaped with the next event, or a while later (H2).
#[test]
fn sent_packets_raise_no_event_and_are_reaped_later() {
    let world = World::new();
    world.send(b"1", &[], 1);
    let mut nic = world.nic();
    nic.read_commands();
    nic.wire.clear();
    nic.offer_wake(&world.driver);
    assert!(
        !world.fake.take_scheduled(),
        "it asked for solicited events only"
    );
    world.fake.pass(2_000_000);
    assert!(world.fake.take_scheduled());
    world.driver.serve_datagrams();
    assert_eq!(world.notes[0].take(), [sent(1)]);

    world.send(b"2", &[], 2);
    world.port(0).await_sends();
    nic.read_commands();
    nic.wire.clear();
    nic.offer_wake(&world.driver);
    assert!(world.fake.take_scheduled(), "the module waits for it");
    world.driver.serve_datagrams();
    assert_eq!(world.notes[0].take(), [sent(2)]);
}

/// A module that has as many messages under way as it may have learns of the first that was sent.
#[test]
fn a_module_that_is_refused_is_woken_when_there_is_room() {
    let world = World::new();
    for token in 0..8 {
        world.send(b"1", &[], token);
    }
    let message = world.message(b"9", &[], 9);
    let refused = world.port(0).send(&[to(2)], message);
    assert_eq!(refused.map_err(|(error, _)| error), Err(SendError::Full));
    let mut nic = world.nic();
    nic.read_commands();
    nic.wire.clear();
    nic.offer_wake(&world.driver);
    assert!(world.fake.take_scheduled());
    world.driver.serve_datagrams();
    assert_eq!(world.notes[0].take().len(), 8);
}

/// An event is served at once, although the platform's clock is late.
#[test]
fn an_event_is_served_at_once_though_the_platform_is_late_already() {
    let world = World::new();
    world.send(b"1", &[], 1);
    let reap = world.fake.scheduled();
    world.fake.pass(3_000_000);
    let mut nic = world.nic();
    nic.read_commands();
    let packet = nic.wire.pop_front().unwrap();
    nic.deliver(&packet);
    nic.offer_wake(&world.driver);
    let now = crate::Platform::now_ns(&world.fake);
    assert!(reap.is_some_and(|reap| reap < now), "{reap:?}");
    assert_eq!(world.fake.scheduled(), Some(now));
}
