//! A wire that loses, doubles and reorders packets, and peers that lie.

use super::*;
use proptest::prelude::*;

use super::super::fragments::{FRAGMENT_NS, MAX_FRAGMENTS, MAX_PARTIAL};

/// What happens to a packet.
#[derive(Debug, Clone, Copy)]
enum Lot {
    Deliver,
    Lose,
    Double,
    /// It comes behind later packets.
    Delay,
    Lie(Lie),
}

#[derive(Debug, Clone, Copy)]
enum Lie {
    Number(u16),
    Last,
    NotLast,
    Shorter(u16),
    Header,
    Sequence,
}

fn lots() -> impl Strategy<Value = Lot> {
    let lie = prop_oneof![
        any::<u16>().prop_map(Lie::Number),
        (0..20u16).prop_map(Lie::Number),
        Just(Lie::Last),
        Just(Lie::NotLast),
        (0..5000u16).prop_map(Lie::Shorter),
        Just(Lie::Header),
        Just(Lie::Sequence),
    ];
    prop_oneof![
        6 => Just(Lot::Deliver),
        1 => Just(Lot::Lose),
        1 => Just(Lot::Double),
        2 => Just(Lot::Delay),
        1 => lie.prop_map(Lot::Lie),
    ]
}

fn lie(mut packet: Packet, lie: Lie) -> Packet {
    let body = &mut packet.body;
    match lie {
        Lie::Number(number) => body.fragment = number.into(),
        Lie::Last => body.flags |= PacketFlags::LAST.bits(),
        Lie::NotLast => body.flags &= !PacketFlags::LAST.bits(),
        Lie::Shorter(length) => packet.data.truncate(length.into()),
        Lie::Header => body.header_length = 200,
        Lie::Sequence => body.sequence = (body.sequence.get() ^ 1).into(),
    }
    packet
}

proptest! {
    /// A message that arrives is one that was sent, unless a packet of it lies; each sent message ends at
    /// its sender; and no buffer is lost.
    #[test]
    fn what_arrives_is_whole_and_no_buffer_is_lost(
        max_payload in prop_oneof![
            Just(32_768usize), Just(9000), Just(4096), Just(2048), Just(1400), Just(600),
        ],
        in_blocks in any::<bool>(),
        messages in prop::collection::vec((any::<u16>(), any::<bool>()), 1..12),
        lots in prop::collection::vec(lots(), 1..60),
    ) {
        let most = match in_blocks {
            true => MAX_MESSAGE.min(MAX_FRAGMENTS << max_payload.ilog2()),
            false => 8192,
        };
        let messages: Vec<_> = messages
            .into_iter()
            .map(|(length, steered)| (usize::from(length) % (most + 1), steered && !in_blocks))
            .collect();
        let world = match in_blocks {
            true => World::with_blocks(CONFIG, 8),
            false => World::new(),
        };
        world.nic().max_payload = max_payload;
        let mut lots = lots.into_iter().cycle();
        let mut late = Vec::new();
        let mut lied = false;
        for (token, (length, steered)) in messages.iter().enumerate() {
            let data = bytes(token as u8, *length);
            let mut message = world.message(&[token as u8], &[], token as u64);
            message.data = match in_blocks && *length > 0 {
                true => world.message_in_block(&data, 0).data,
                false => world.data(&data),
            };
            if *steered {
                let pages = [(); 2].map(|()| world.buffer(&[]));
                let [first, second] = pages;
                message.target = world.port(1).expect(first, Some(second)).ok();
            }
            world.port(0).send(&[to(2)], message).map_err(|(error, _)| error).unwrap();
            world.run_with(|packet| match lots.next().unwrap() {
                Lot::Deliver => core::mem::take(&mut late).into_iter().chain([packet]).collect(),
                Lot::Lose => Vec::new(),
                Lot::Double => std::vec![packet.clone(), packet],
                Lot::Delay => {
                    late.push(packet);
                    Vec::new()
                }
                Lot::Lie(it) => {
                    lied = true;
                    std::vec![lie(packet, it)]
                }
            });
            prop_assert_eq!(world.notes[0].take(), [sent(token as u64)]);
            for told in world.notes[1].take() {
                if let Told::Received { header, data, .. } = told {
                    if !lied {
                        let (length, _) = messages[usize::from(header[0])];
                        prop_assert_eq!(data, Bytes(bytes(header[0], length)));
                    }
                }
            }
        }
        world.fake.pass(FRAGMENT_NS + 1_000_000);
        world.driver.serve_datagrams();
        world.run();
        let counters = world.counters();
        prop_assert_eq!(counters["completions_unknown"], 0);
        let mut nic = world.nic();
        nic.read_commands();
        let own = nic.posted_plain();
        prop_assert_eq!(own, 32, "own buffers are posted again");
    }

    /// Incomplete messages hold half of the buffers for a second at most.
    #[test]
    fn endless_fragments_are_bounded(numbers in prop::collection::vec((0..15u16, any::<u8>()), 100..300)) {
        let world = World::new();
        for (number, sequence) in numbers {
            let mut packet = None;
            world.send(b"", &bytes(0, 1024), 0);
            world.run_with(|sent| { packet = Some(sent); Vec::new() });
            let mut packet = packet.unwrap();
            packet.body.flags = 0;
            packet.body.fragment = number.into();
            packet.body.sequence = u32::from(sequence).into();
            packet.data.truncate(512);
            let mut nic = world.nic();
            nic.deliver(&packet);
            drop(nic);
            world.run();
            prop_assert!(world.nic().posted() >= 32 - 10);
        }
        prop_assert_eq!(world.nic().dropped, 0);
        world.fake.pass(FRAGMENT_NS + 1);
        world.run();
        prop_assert_eq!(world.nic().posted(), 32);
        let counters = world.counters();
        prop_assert!(counters["fragments_expired"] > 0);
        // The port works on.
        world.notes[1].take();
        world.send(b"after", &bytes(1, 8192), 1);
        world.run();
        prop_assert_eq!(world.notes[1].take(), [received(1, b"after", &bytes(1, 8192))]);
    }
}

#[test]
fn a_port_keeps_so_many_halves_and_drops_the_oldest() {
    let config = PortConfig {
        receives: 200,
        ..CONFIG
    };
    let world = World::with(config);
    let mut first = None;
    for token in 0..=MAX_PARTIAL {
        world.send(&[token as u8], &bytes(token as u8, 8192), token as u64);
        world.run_with(|packet| {
            let last = packet.body.flags != 0;
            if last && first.is_none() {
                first = Some(packet);
                return Vec::new();
            }
            if last {
                return Vec::new();
            }
            std::vec![packet]
        });
    }
    assert_eq!(world.counters()["fragments_evicted"], 1);
    world.nic().deliver(&first.unwrap());
    world.run();
    assert_eq!(world.notes[1].take(), [], "its other half is gone");
}
