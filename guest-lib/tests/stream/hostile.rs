//! Peers that keep no rule: their frames harm only their own connections, and the state that they make an
//! endpoint keep is bounded.

use crate::wire::{address, patterned, Frame, World, LOSSLESS, MILLISECOND, SECOND};
use proptest::prelude::*;
use qnic::stream_protocol::{Address, Config, Failure};
use qnic_abi::stream::{Kind, Reason, StreamHeader, HEADER_BYTES, MAGIC};
use qnic_abi::NodeId;
use zerocopy::IntoBytes;

fn open(from: u64) -> StreamHeader {
    StreamHeader {
        magic: MAGIC.into(),
        kind: Kind::Open as u8,
        from: from.into(),
        detail: 4096.into(),
        window: 4.into(),
        ..StreamHeader::default()
    }
}

#[test]
fn a_flood_of_opens_is_bounded_and_leaves_room_for_other_nodes() {
    let config = Config::default();
    let mut world = World::new(1, 2, &config, LOSSLESS);
    world.ends[1].listen(true);
    let flooder = |port| Address {
        node: NodeId(7),
        port,
    };
    for number in 1..=10_000u64 {
        let frame = open(number).as_bytes().to_vec();
        let now = world.now;
        world.ends[1].handle_frame(now, flooder((number % 50) as u16), frame);
        // Node 7 does not answer: it is not in this world.
        world.flush();
    }
    assert_eq!(world.ends[1].connections(), config.backlog_per_node);
    let counters = world.ends[1].counters();
    assert_eq!(counters.opens_refused, 10_000 - 16);
    let (ours, theirs) = world.connect();
    assert_eq!(world.transfer((0, ours), (1, theirs), b"hello"), b"hello");
    world.pass(12 * SECOND);
    assert_eq!(world.ends[1].connections(), 1, "the flood is forgotten");
}

#[test]
fn opens_that_repeat_make_one_connection() {
    let mut world = World::new(1, 2, &Config::default(), LOSSLESS);
    world.ends[1].listen(true);
    for _ in 0..100 {
        let now = world.now;
        world.ends[1].handle_frame(now, address(0), open(5).as_bytes().to_vec());
    }
    assert_eq!(world.ends[1].connections(), 1);
}

#[test]
fn resets_for_unknown_connections_are_bounded_and_answered_by_none() {
    let mut world = World::new(1, 1, &Config::default(), LOSSLESS);
    let now = world.now;
    let data = StreamHeader {
        kind: Kind::Ack as u8,
        to: 77.into(),
        ..open(5)
    };
    let data = StreamHeader {
        detail: 0.into(),
        ..data
    };
    for _ in 0..1000 {
        world.ends[0].handle_frame(now, address(0), data.as_bytes().to_vec());
    }
    let mut resets = 0;
    while let Some(transmit) = world.ends[0].poll_transmit(now) {
        let reset = transmit.header.to_vec();
        assert_eq!(reset[2], Kind::Reset as u8);
        resets += 1;
        world.ends[0].handle_frame(now, address(0), reset);
    }
    assert_eq!(resets, 64);
    assert_eq!(world.ends[0].counters().resets_dropped, 1000 - 64);
}

#[test]
fn others_cannot_end_or_disturb_a_connection() {
    let mut world = World::new(3, 3, &Config::default(), LOSSLESS);
    world.tape = Some(Vec::new());
    let (ours, theirs) = world.connect();
    let _ = world.write(0, ours, b"abc");
    world.pass(MILLISECOND);
    // A third node knows every frame that was sent, and sends it as its own.
    for frame in world.tape.take().unwrap() {
        for kind in [Kind::Reset, Kind::Data, Kind::Ack, Kind::Accept] {
            let mut header = frame.header();
            header.kind = kind as u8;
            header.detail = match kind {
                Kind::Reset => Reason::Aborted as u32,
                Kind::Accept => 4096,
                _ => 0,
            }
            .into();
            let mut bytes = header.as_bytes().to_vec();
            if kind == Kind::Data {
                bytes.push(9);
            }
            let (from, to) = (2, frame.to);
            world.send(Frame { from, to, bytes });
        }
    }
    world.pass(MILLISECOND);
    assert_eq!(world.transfer((0, ours), (1, theirs), b"def"), b"abcdef");
    assert!(world.ends[1].counters().stale_frames > 0);
}

#[test]
fn a_reset_from_the_peer_ends_the_connection() {
    let mut world = World::new(3, 2, &Config::default(), LOSSLESS);
    let (ours, theirs) = world.connect();
    world.ends[1].abort(theirs);
    world.pass(MILLISECOND);
    assert_eq!(world.ends[0].is_open(ours), Err(Failure::Reset.into()));
    assert_eq!(world.ends[1].connections(), 0);
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_refused() {
    let mut world = World::new(3, 2, &Config::default(), LOSSLESS);
    world.tape = Some(Vec::new());
    let (ours, theirs) = world.connect();
    world.pass(MILLISECOND);
    let tape = world.tape.take().unwrap();
    let confirmed = tape.iter().find(|frame| frame.kind() == Kind::Ack);
    let true_header = confirmed.unwrap().header();
    for (acknowledged, selective) in [(1, 0), (1000, 0), (u64::MAX, 0), (0, 1)] {
        let mut header = true_header;
        header.acknowledged = acknowledged.into();
        header.selective[0] = selective.into();
        let (from, to) = (0, 1);
        let bytes = header.as_bytes().to_vec();
        world.send(Frame { from, to, bytes });
    }
    world.pass(MILLISECOND);
    assert_eq!(world.ends[1].counters().malformed_frames, 4);
    let bytes = patterned(1, 100_000);
    let read = world.transfer((1, theirs), (0, ours), &bytes);
    assert!(read == bytes, "nothing of it counts as received");
}

fn headers() -> impl Strategy<Value = (StreamHeader, usize)> {
    let small = prop_oneof![4 => 0u64..400, 1 => any::<u64>()];
    let fields = (
        (0u8..8, any::<bool>(), 0u32..300, small.clone(), small),
        (
            any::<[u64; 4]>(),
            prop_oneof![Just(0u32), 0u32..6, 256u32..5000],
        ),
        (any::<u32>(), 0usize..40),
    );
    fields.prop_map(
        |((kind, end, window, number, acknowledged), (selective, detail), (repeated, data))| {
            let header = StreamHeader {
                magic: MAGIC.into(),
                kind,
                flags: end.into(),
                window: window.into(),
                number: number.into(),
                acknowledged: acknowledged.into(),
                selective: selective.map(Into::into),
                detail: detail.into(),
                repeated: repeated.into(),
                ..StreamHeader::default()
            };
            (header, data)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A peer that sends arbitrary frames on its connection: no panic, no more memory than
    /// granted, and a stream with another peer goes on.
    #[test]
    fn a_peer_without_rules_harms_only_itself(
        frames in prop::collection::vec((headers(), any::<bool>()), 0..120),
    ) {
        let config = Config { connections: 4, receive_frames: 12, send_frames: 12, ..Config::default() };
        let mut world = World::new(4, 3, &config, LOSSLESS);
        let (bad, victim) = world.connect();
        let now = world.now;
        let good = world.ends[2].connect(now, address(1), 0).unwrap();
        let mut other = None;
        world.drive(SECOND, |world| {
            other = other.or_else(|| world.ends[1].accept());
            other.is_some()
        });
        let other = other.unwrap().0;
        // The true numbers of the connection, learnt from a frame that ends 0 sends.
        world.tape = Some(Vec::new());
        let _ = world.write(0, bad, b"x");
        world.flush();
        let known = world.tape.take().unwrap()[0].header();
        for ((mut header, data), truthful) in frames {
            if truthful {
                header.to = known.to;
                header.from = known.from;
            } else {
                header.to = header.number;
                header.from = header.acknowledged;
            }
            let mut bytes = header.as_bytes().to_vec();
            bytes.resize(HEADER_BYTES + data, 1);
            let now = world.now;
            world.ends[1].handle_frame(now, address(0), bytes);
            let _ = world.write(1, victim, b"answer");
            let _ = world.ends[1].read(victim, &mut [0; 3]);
            prop_assert!(world.ends[1].connections() <= 4);
            world.pass(MILLISECOND / 10);
        }
        let bytes = patterned(1, 100_000);
        prop_assert!(world.transfer((2, good), (1, other), &bytes) == bytes);
    }

    /// Random bytes. (None at all say that no process has an address.)
    #[test]
    fn what_is_no_frame_is_counted(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let mut world = World::new(4, 1, &Config::default(), LOSSLESS);
        let now = world.now;
        world.ends[0].handle_frame(now, address(0), bytes);
        prop_assert_eq!(world.ends[0].counters().malformed_frames, 1);
        prop_assert!(world.ends[0].poll_transmit(now).is_none());
    }
}
