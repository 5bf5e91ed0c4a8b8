//! The promises of streams, one story each (S6).

use crate::wire::{address, patterned, Frame, World, LOSSLESS, MILLISECOND, SECOND};
use qnic::stream_protocol::{Config, ConnectionId, Error, Failure};
use qnic_abi::stream::{Kind, Reason, StreamFlags, StreamHeader};
use zerocopy::IntoBytes;

fn pair() -> World {
    World::new(1, 2, &Config::default(), LOSSLESS)
}

/// A pair of ends with a connection, and its names at both.
fn connected() -> (World, ConnectionId, ConnectionId) {
    let mut pair = pair();
    let (ours, theirs) = pair.connect();
    (pair, ours, theirs)
}

/// Writes for so many milliseconds, as far as there is room; returns the number of bytes.
fn write_for(pair: &mut World, id: ConnectionId, bytes: &[u8], milliseconds: u64) -> usize {
    let mut written = 0;
    for _ in 0..milliseconds {
        written += pair.write(0, id, &bytes[written..]).unwrap_or(0);
        pair.pass(MILLISECOND);
    }
    written
}

#[test]
fn bytes_arrive_in_order_and_both_ends_end() {
    let (mut pair, ours, theirs) = connected();
    let bytes = patterned(1, 1_000_000);
    assert_eq!(pair.transfer((0, ours), (1, theirs), &bytes), bytes);
    let answer = patterned(2, 10);
    assert_eq!(pair.transfer((1, theirs), (0, ours), &answer), answer);
    pair.close(0, ours);
    pair.close(1, theirs);
    pair.drive_until_gone();
    let counters = pair.ends[0].counters();
    assert_eq!(counters.data_frames_resent, 0);
    assert_eq!(counters.data_frames_sent, 1_000_000u64.div_ceil(4016));
}

#[test]
fn a_half_that_is_closed_leaves_the_other_open() {
    let (mut pair, ours, theirs) = connected();
    assert_eq!(
        pair.transfer((0, ours), (1, theirs), b"question"),
        b"question"
    );
    assert_eq!(pair.write(0, ours, b"more"), Err(Error::Ended));
    pair.pass(8 * SECOND);
    let answer = patterned(2, 100_000);
    assert_eq!(pair.transfer((1, theirs), (0, ours), &answer), answer);
    pair.pass(MILLISECOND);
    assert_eq!(pair.ends[0].is_delivered(ours), Ok(true));
    assert_eq!(pair.ends[1].is_delivered(theirs), Ok(true));
}

#[test]
fn connecting_without_a_listener_is_refused() {
    let mut pair = pair();
    let now = pair.now;
    let ours = pair.ends[0].connect(now, address(1), 0).unwrap();
    pair.drive(SECOND, |pair| pair.ends[0].is_open(ours) != Ok(false));
    assert_eq!(pair.ends[0].is_open(ours), Err(Failure::Refused.into()));
    assert_eq!(
        pair.ends[0].read(ours, &mut [0]),
        Err(Failure::Refused.into())
    );
    pair.ends[0].close(now, ours);
    assert_eq!(pair.ends[0].connections(), 0);
    assert_eq!(pair.ends[1].counters().opens_refused, 1);
}

#[test]
fn a_peer_that_is_not_there_is_given_up() {
    let mut pair = pair();
    pair.cut[1] = true;
    let start = pair.now;
    let ours = pair.ends[0].connect(start, address(1), 0).unwrap();
    pair.drive(12 * SECOND, |pair| pair.ends[0].is_open(ours) != Ok(false));
    assert_eq!(pair.ends[0].is_open(ours), Err(Failure::PeerLost.into()));
    assert!(pair.now >= start.after(10 * SECOND));
}

#[test]
fn a_peer_that_dies_is_noticed_in_time_also_when_nothing_is_written() {
    let (mut pair, ours, theirs) = connected();
    pair.pass(60 * SECOND);
    assert_eq!(pair.ends[0].is_open(ours), Ok(true), "idle, but alive");
    pair.write(1, theirs, b"last words").unwrap();
    pair.pass(MILLISECOND);
    pair.cut[1] = true;
    let died = pair.now;
    pair.drive(8 * SECOND, |pair| pair.ends[0].is_open(ours) != Ok(true));
    assert!(pair.now <= died.after(7 * SECOND));
    let mut bytes = [0; 20];
    assert_eq!(
        pair.ends[0].read(ours, &mut bytes),
        Ok(10),
        "what came can be read"
    );
    assert_eq!(
        pair.ends[0].read(ours, &mut bytes),
        Err(Failure::PeerLost.into())
    );
    assert_eq!(pair.write(0, ours, b"x"), Err(Failure::PeerLost.into()));
}

#[test]
fn a_reader_that_reads_nothing_stops_the_writer_and_loses_nothing() {
    let (mut pair, ours, theirs) = connected();
    let bytes = patterned(1, 2_000_000);
    let written = write_for(&mut pair, ours, &bytes, 200);
    assert_eq!(pair.write(0, ours, b"x"), Err(Error::WouldBlock));
    assert!(written < 2 * 192 * 4016);
    pair.pass(30 * SECOND);
    assert_eq!(
        pair.ends[0].is_open(ours),
        Ok(true),
        "a full peer is no dead one"
    );
    let rest = pair.transfer((0, ours), (1, theirs), &bytes[written..]);
    assert!(rest == bytes);
    assert_eq!(pair.ends[1].counters().frames_outside, 0);
    assert_eq!(pair.ends[0].counters().data_frames_resent, 0);
}

#[test]
fn a_window_that_opens_is_heard_of_even_if_that_is_lost() {
    let (mut pair, ours, theirs) = connected();
    let bytes = patterned(1, 4016 * 300);
    let written = write_for(&mut pair, ours, &bytes, 50);
    pair.lose_next = Some(|frame| frame.from == 1 && frame.kind() == Kind::Ack);
    let start = pair.now;
    let rest = pair.transfer((0, ours), (1, theirs), &bytes[written..]);
    assert!(rest == bytes && pair.lose_next.is_none());
    assert!(pair.now <= start.after(SECOND / 2), "the writer asks");
}

#[test]
fn one_loss_costs_one_frame() {
    let (mut pair, ours, theirs) = connected();
    pair.lose_next = Some(|frame| frame.kind() == Kind::Data && frame.header().number.get() == 20);
    let bytes = patterned(1, 400_000);
    assert_eq!(pair.transfer((0, ours), (1, theirs), &bytes), bytes);
    let counters = pair.ends[0].counters();
    assert_eq!((pair.lost_data, counters.data_frames_resent), (1, 1));
    assert_eq!(
        counters.resend_timeouts, 0,
        "others have come, so no timer is needed"
    );
}

#[test]
fn the_last_frame_is_lost_and_comes_again_soon() {
    let (mut pair, ours, theirs) = connected();
    assert_eq!(
        pair.transfer((1, theirs), (0, ours), &[7; 100_000]).len(),
        100_000
    );
    pair.lose_next = Some(|frame| frame.header().flags == StreamFlags::END.bits());
    let start = pair.now;
    assert_eq!(pair.transfer((0, ours), (1, theirs), b"x"), b"x");
    assert!(pair.now <= start.after(120 * MILLISECOND));
    assert_eq!(pair.ends[0].counters().data_frames_resent, 1);
}

#[test]
fn a_peer_that_stood_still_does_not_get_its_window_again() {
    let (mut pair, ours, theirs) = connected();
    pair.write(0, ours, &patterned(1, 100)).unwrap();
    // The acknowledgement comes: the round trip is known.
    pair.pass(10 * MILLISECOND);
    let mut read = Vec::new();
    pair.read(1, theirs, &mut read);
    let before = pair.ends[0].counters();

    // As a guest that does not run until our timer has expired: frames wait at its door.
    let bytes = patterned(1, 200_000);
    assert_eq!(pair.write(0, ours, &bytes[100..]), Ok(bytes.len() - 100));
    pair.asleep[1] = true;
    pair.pass(120 * MILLISECOND);
    // Then it answers a few at a time.
    let mut more = true;
    while more {
        pair.asleep[1] = false;
        more = pair.arrive_some(4);
        pair.flush();
        pair.asleep[1] = true;
        pair.now = pair.now.after(MILLISECOND / 10);
        pair.arrive();
        pair.flush();
    }
    pair.asleep[1] = false;
    pair.drive(SECOND, |pair| {
        pair.read(1, theirs, &mut read);
        pair.ends[0].is_delivered(ours) == Ok(true)
    });
    assert_eq!(read, bytes);
    let counters = pair.ends[0].counters();
    let timeouts = counters.resend_timeouts - before.resend_timeouts;
    assert!((1..4).contains(&timeouts), "{timeouts} timeouts");
    let again = counters.data_frames_resent - before.data_frames_resent;
    assert_eq!(again, timeouts, "only what the timer has sent again");
}

#[test]
fn lost_handshakes_are_repeated() {
    for kind in [Kind::Open, Kind::Accept, Kind::Ack] {
        let mut pair = pair();
        pair.lose_next = Some(match kind {
            Kind::Open => |frame| frame.kind() == Kind::Open,
            Kind::Accept => |frame| frame.kind() == Kind::Accept,
            _ => |frame| frame.kind() == Kind::Ack,
        });
        let (ours, theirs) = pair.connect();
        assert_eq!(pair.transfer((0, ours), (1, theirs), b"hello"), b"hello");
        assert!(pair.lose_next.is_none(), "{kind:?}");
        assert_eq!(pair.ends[1].connections(), 1, "one connection");
    }
}

/// The answer of a process without connections to the sender of this frame.
fn reset_of(frame: &Frame) -> Frame {
    let header = frame.header();
    let reset = StreamHeader {
        magic: header.magic,
        kind: Kind::Reset as u8,
        to: header.to.get().max(1).into(),
        detail: (Reason::Unknown as u32).into(),
        ..StreamHeader::default()
    };
    Frame {
        bytes: reset.as_bytes().to_vec(),
        ..*frame
    }
}

#[test]
fn what_an_earlier_connection_has_left_on_the_wire_counts_nowhere() {
    let mut pair = pair();
    pair.tape = Some(Vec::new());
    let (ours, theirs) = pair.connect();
    assert_eq!(pair.transfer((0, ours), (1, theirs), b"old").len(), 3);
    pair.close(0, ours);
    pair.close(1, theirs);
    pair.drive_until_gone();
    let old = pair.tape.take().unwrap();

    let (ours, theirs) = pair.connect();
    for frame in old {
        let reset = reset_of(&frame);
        pair.send(frame);
        pair.send(reset);
        pair.pass(MILLISECOND);
    }
    assert_eq!(pair.transfer((0, ours), (1, theirs), b"new"), b"new");
    assert!(pair.ends[1].accept().is_none());
    assert!(pair.ends[1].counters().stale_frames > 0);
}

#[test]
fn a_program_that_leaves_early_resets_what_comes() {
    let (mut pair, ours, theirs) = connected();
    pair.write(0, ours, b"never read").unwrap();
    pair.pass(MILLISECOND);
    pair.close(1, theirs);
    pair.drive(SECOND, |pair| pair.ends[0].is_open(ours) != Ok(true));
    assert_eq!(pair.write(0, ours, b"x"), Err(Failure::Reset.into()));
    assert_eq!(pair.ends[1].connections(), 0);
}

#[test]
fn what_comes_after_the_program_has_left_is_reset_at_once() {
    let (mut pair, ours, theirs) = connected();
    pair.close(1, theirs);
    pair.pass(MILLISECOND);
    assert_eq!(pair.ends[0].read(ours, &mut [0]), Ok(0), "it has ended");
    pair.write(0, ours, b"never read").unwrap();
    pair.pass(10 * MILLISECOND);
    assert_eq!(pair.write(0, ours, b"x"), Err(Failure::Reset.into()));
}

#[test]
fn connections_that_end_give_their_frames_back() {
    let mut pair = pair();
    let mut windows = Vec::new();
    for _ in 0..100 {
        pair.tape = Some(Vec::new());
        let (ours, theirs) = pair.connect();
        pair.write(0, ours, &[1; 3 * 4016]).unwrap();
        pair.pass(MILLISECOND);
        pair.close(1, theirs);
        pair.pass(MILLISECOND);
        pair.close(0, ours);
        let tape = pair.tape.take().unwrap();
        let accept = tape.iter().find(|frame| frame.kind() == Kind::Accept);
        windows.push(accept.unwrap().header().window.get());
    }
    assert!(
        windows.iter().all(|window| *window == windows[0]),
        "{windows:?}"
    );
}

/// The last Ack is lost, and another connection takes the place of the one that lingers.
#[test]
fn a_connection_that_made_room_still_answers_its_peer() {
    let config = Config {
        connections: 1,
        ..Config::default()
    };
    let mut world = World::new(1, 3, &config, LOSSLESS);
    let (ours, theirs) = world.connect();
    assert_eq!(world.transfer((1, theirs), (0, ours), b"answer"), b"answer");
    world.pass(10 * MILLISECOND);
    world.lose_next = Some(|frame| frame.kind() == Kind::Ack && frame.from == 1);
    assert_eq!(world.transfer((0, ours), (1, theirs), b"thanks"), b"thanks");
    world.drive(SECOND, |world| world.lose_next.is_none());
    world.close(1, theirs);
    assert_eq!(world.ends[0].is_delivered(ours), Ok(false));
    world.ends[2].listen(true);
    let now = world.now;
    assert!(world.ends[1].connect(now, address(2), 0).is_ok());
    world.tape = Some(Vec::new());
    world.drive(SECOND, |world| world.ends[0].is_delivered(ours) == Ok(true));
    // When both have gone they answer each other nothing.
    world.close(0, ours);
    world.pass(10 * SECOND);
    let frames = world.tape.take().unwrap_or_default().into_iter();
    let acks = frames.filter(|frame| frame.from + frame.to == 1 && frame.kind() == Kind::Ack);
    let acks: Vec<Frame> = acks.collect();
    assert!((1..20).contains(&acks.len()), "{} Acks", acks.len());
    world.tape = Some(Vec::new());
    let again = acks.len();
    acks.into_iter().for_each(|ack| world.send(ack));
    world.pass(SECOND);
    let frames = world.tape.iter().flatten();
    assert_eq!(
        frames.filter(|frame| frame.from + frame.to == 1).count(),
        again
    );
}

#[test]
fn what_a_program_has_written_before_it_leaves_is_still_delivered() {
    let (mut pair, ours, theirs) = connected();
    let bytes = patterned(3, 300_000);
    assert_eq!(pair.write(0, ours, &bytes), Ok(bytes.len()));
    pair.close(0, ours);
    assert_eq!(pair.ends[0].read(ours, &mut [0]), Err(Error::NoConnection));
    let mut read = Vec::new();
    pair.drive(SECOND, |pair| pair.read(1, theirs, &mut read));
    assert!(read == bytes);
    pair.close(1, theirs);
    pair.drive_until_gone();
}

#[test]
fn acknowledgements_are_few() {
    let (mut pair, ours, theirs) = connected();
    let bytes = patterned(1, 4016 * 400);
    pair.sent.clear();
    assert!(pair.transfer((0, ours), (1, theirs), &bytes) == bytes);
    let acks = pair.sent.get(&(Kind::Ack as u8)).copied().unwrap_or(0);
    assert!(acks <= 400 / 3, "{acks} for 400 frames");
}

#[test]
fn connections_share_what_there_is() {
    let config = Config {
        connections: 8,
        receive_frames: 16,
        send_frames: 16,
        ..Config::default()
    };
    let mut world = World::new(2, 2, &config, LOSSLESS);
    let pairs: Vec<_> = (0..4).map(|_| world.connect()).collect();
    for (ours, _) in &pairs {
        let full = vec![1; 100 * 4016];
        while world.write(0, *ours, &full).is_ok() {
            world.pass(MILLISECOND);
        }
    }
    // All of them are full, and each can still continue.
    for (ours, theirs) in pairs.into_iter().rev() {
        let read = world.transfer((0, ours), (1, theirs), b"end");
        assert!(read.ends_with(b"end"));
    }
    assert_eq!(world.ends[1].counters().frames_outside, 0);
}
