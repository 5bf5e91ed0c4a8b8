//! The ways between engines, all driven by one thread.

use qnic_abi::wire::{Class, Frame};
use qnic_abi::PAGE_SIZE;
use qnic_nic::env::{Channel, Payload};
use qnic_nic::testing::Memory;

use super::outbox::{MOST, MOST_LOSSY};
use super::*;

/// A kind of each of these classes.
const WINDOWED: u8 = (Class::Windowed as u8) << 6;
const UNRELIABLE: u8 = (Class::Unreliable as u8) << 6;

/// A frame of a kind from node 0, with a payload of so many bytes in these pages.
fn frame(kind: u8, memory: &Memory, pages: &[u64], length: usize) -> RingFrame<Memory> {
    let mut frame = crate::codec::tests::header(0, 1, length);
    frame.envelope.kind = kind;
    let payload = Payload::Memory {
        memory,
        pages,
        offset: 16,
        length,
    };
    RingFrame::new(Delivery::Lossless, Channel::Data, &frame, payload).expect("memory")
}

fn number(frame: &Frame) -> u64 {
    frame.envelope.sequence.get()
}

/// Sends so many numbered frames, and returns the two engines.
fn flooded(count: u64) -> [Siblings<Memory>; 2] {
    let mut engines: [_; 2] = mesh::<Memory>(2).unwrap().try_into().unwrap();
    for place in 0..count {
        let mut header = crate::codec::tests::header(0, 1, 0);
        header.envelope.sequence = place.into();
        let frame =
            RingFrame::new(Delivery::Lossless, Channel::Data, &header, Payload::None).unwrap();
        assert_eq!(engines[0].outboxes[0].send(frame), Put::At(place));
    }
    engines
}

#[test]
fn each_engine_has_a_way_to_each_other() {
    let engines = mesh::<Memory>(3).unwrap();
    for (number, engine) in engines.iter().enumerate() {
        assert_eq!(engine.way_to(number), None);
        let ways: Vec<_> = (0..3).filter_map(|other| engine.way_to(other)).collect();
        assert_eq!(ways, [0, 1]);
        assert_eq!(engine.inboxes.len(), 2);
    }
}

/// What a ring has no room for is neither lost nor overtaken, and keeps its engine awake.
#[test]
fn a_full_ring_delays_frames() {
    let count = 3 * ROOM as u64;
    let [mut from, mut to] = flooded(count);
    assert!(from.outboxes[0].waits() && !from.prepare_sleep());
    let mut next = 0;
    while next < count {
        let before = next;
        to.receive(|_, way, frame| {
            assert_eq!((way, number(&frame.frame)), (0, next));
            next += 1;
        });
        assert_eq!(next - before, BATCH as u64);
        from.flush();
    }
    assert!(from.prepare_sleep() && to.prepare_sleep());
}

/// A node that sends without end has a bound of its own, and another's frames are not lost.
#[test]
fn what_waits_of_one_node_is_bounded() {
    let of = |node: u16, kind, delivery| {
        let mut header = crate::codec::tests::header(node, 9, 0);
        header.envelope.kind = kind;
        RingFrame::<Memory>::new(delivery, Channel::Data, &header, Payload::None).unwrap()
    };
    let lossless = || of(0, WINDOWED, Delivery::Lossless);
    for (kind, delivery, most, beyond) in [
        (UNRELIABLE, Delivery::Lossless, MOST_LOSSY, Put::Lost),
        (UNRELIABLE, Delivery::Back, MOST_LOSSY, Put::Lost),
        (WINDOWED, Delivery::Lossy, MOST_LOSSY, Put::Lost),
        (WINDOWED, Delivery::Lossless, MOST, Put::Refused),
    ] {
        let [mut from, mut to] = flooded(ROOM as u64);
        let outbox = &mut from.outboxes[0];
        for place in ROOM..ROOM + most {
            let put = outbox.send(of(0, kind, delivery));
            assert_eq!(put, Put::At(place as u64), "{delivery:?}");
        }
        assert_eq!(outbox.send(of(0, kind, delivery)), beyond);
        let next = (ROOM + most) as u64;
        assert_eq!(outbox.send(of(1, kind, delivery)), Put::At(next));
        while to.receive(|_, _, _| ()) {
            from.flush();
        }
        assert_eq!(from.outboxes[0].send(lossless()), Put::At(next + 1));
    }
}

/// U4: small frames overtake, but not those behind which a session or a process ends. A long one is used
/// behind all that were sent before it, and waits for no more of them than there were.
#[test]
fn a_small_frame_does_not_wait_behind_bulk() {
    let [mut from, mut to]: [_; 2] = mesh::<Memory>(2).unwrap().try_into().unwrap();
    let send = |from: &mut Siblings<Memory>, number: u64, kind, channel| {
        let mut header = crate::codec::tests::header(0, 1, 0);
        header.envelope.sequence = number.into();
        header.envelope.kind = kind;
        let frame = RingFrame::new(Delivery::Lossless, channel, &header, Payload::None).unwrap();
        from.outboxes[0].send(frame)
    };
    let long = |from: &mut _, number| send(from, number, WINDOWED, Channel::Data);
    let small = |from: &mut _, number| send(from, number, WINDOWED, Channel::Priority);
    let order = |to: &mut Siblings<Memory>| {
        let mut order = Vec::new();
        while to.receive(|_, _, frame| order.push(number(&frame.frame))) {}
        order
    };
    assert_eq!(long(&mut from, 1), Put::At(0));
    assert_eq!(long(&mut from, 2), Put::At(1));
    assert_eq!(small(&mut from, 3), Put::First);
    assert_eq!(small(&mut from, 4), Put::First);
    assert_eq!(long(&mut from, 5), Put::At(2));
    assert_eq!(order(&mut to), [3, 4, 1, 2, 5]);
    // Kinds that must be in order, and those that nothing may overtake.
    let end = qnic_abi::message::kind::MESSAGE_END;
    assert_eq!(long(&mut from, 1), Put::At(3));
    assert_eq!(send(&mut from, 2, end, Channel::Priority), Put::At(4));
    assert_eq!(small(&mut from, 3), Put::First);
    let goodbye = qnic_abi::wire::kind::GOODBYE;
    assert_eq!(send(&mut from, 4, goodbye, Channel::Priority), Put::At(5));
    assert_eq!(small(&mut from, 5), Put::At(6));
    assert_eq!(order(&mut to), [3, 1, 2, 4, 5]);
    assert_eq!(small(&mut from, 6), Put::First);
    assert_eq!(order(&mut to), [6]);
    // A flood of small ones holds up no long one for ever, and those beyond the short ring are not lost.
    let flood = SMALL_ROOM as u64;
    assert_eq!(long(&mut from, flood), Put::At(7));
    (0..flood).for_each(|number| assert_eq!(small(&mut from, number), Put::First));
    assert_eq!(small(&mut from, flood + 1), Put::At(8));
    let all: Vec<_> = (0..=flood + 1).collect();
    assert_eq!(order(&mut to), all);
    assert!(from.prepare_sleep() && to.prepare_sleep());
}

#[test]
fn an_engine_that_sleeps_is_woken_once_there_is_a_frame() {
    let mut engines: [_; 2] = mesh::<Memory>(2).unwrap().try_into().unwrap();
    assert!(engines[1].prepare_sleep());
    let is_woken = |engines: &[Siblings<Memory>; 2]| {
        let mut count = [0; 8];
        let descriptor = engines[1].descriptor();
        rustix::io::read(descriptor, &mut count).is_ok()
    };
    assert!(!is_woken(&engines));
    let [mut from, to] = engines;
    let header = crate::codec::tests::header(0, 1, 0);
    let frame =
        || RingFrame::new(Delivery::Lossless, Channel::Data, &header, Payload::None).unwrap();
    from.outboxes[0].send(frame());
    from.flush();
    engines = [from, to];
    assert!(is_woken(&engines));
    assert!(engines[1].receive(|_, _, _| ()), "it is awake");
    engines[0].outboxes[0].send(frame());
    engines[0].flush();
    assert!(!is_woken(&engines), "and finds out itself");
    assert!(!engines[1].prepare_sleep(), "there is a frame");
}

/// Only what waits for its peer anyway stays in pages; what is small is copied at once.
#[test]
fn long_windowed_payloads_stay_in_their_pages() {
    let memory = Memory::new(4 * PAGE_SIZE);
    memory.write(PAGE_SIZE as u64 + 16, &[7; 600]).unwrap();
    let pages = [PAGE_SIZE as u64];
    for (kind, length, kept) in [
        (WINDOWED, 600, true),
        (WINDOWED, frame::SMALL, false),
        (UNRELIABLE, 600, false),
    ] {
        let frame = frame(kind, &memory, &pages, length);
        assert_eq!(frame.is_kept(), kept, "{kind}, {length} bytes");
        let mut bytes = vec![0; length];
        frame.payload().read(&mut bytes).unwrap();
        assert_eq!(bytes, vec![7; length]);
    }
}

/// N8: what was recalled arrives as it was sent, whatever becomes of the memory.
#[test]
fn recalled_frames_do_not_refer_to_memory() {
    let [mut from, mut to]: [_; 2] = mesh::<Memory>(2).unwrap().try_into().unwrap();
    let memory = Memory::new(4 * PAGE_SIZE);
    let count = ROOM + 2;
    for _ in 0..count {
        let Put::At(place) = from.outboxes[0].send(frame(WINDOWED, &memory, &[0], 600)) else {
            panic!("there is room");
        };
        let ticket = Ticket { way: 0, place };
        assert!(!from.is_done(ticket));
    }
    from.recall(NodeId(5));
    memory.write(0, &[1; 700]).unwrap();
    from.recall(NodeId(0));
    memory.write(0, &[2; 700]).unwrap();
    let mut seen = 0;
    while to.receive(|_, _, frame| {
        assert!(!frame.is_kept());
        let mut bytes = vec![0; 600];
        frame.payload().read(&mut bytes).unwrap();
        assert_eq!(bytes, [1; 600]);
        seen += 1;
    }) {
        from.flush();
    }
    assert_eq!(seen, count);
    let last = Ticket {
        way: 0,
        place: count as u64 - 1,
    };
    assert!(from.is_done(last));
}
