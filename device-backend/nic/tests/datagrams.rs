//! Unreliable datagrams of the driver (H1 to H3, H5, H6, H8): what arrives, and where.

use std::collections::BTreeMap;

use qnic_abi::client::{Buffer, Packet, Record};
use qnic_abi::datagram::PacketFlags;
use qnic_abi::window::SIGNAL_WAKE_REQUEST;
use qnic_abi::Status;
use qnic_nic::testing::{nets, page, pattern, DatagramEnd, Datagrams, Got, Net, Pair, PAGE};
use qnic_nic::Limits;

fn pair() -> (Net, Datagrams, Datagrams) {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let (a, b) = (Datagrams::of(&net, 0), Datagrams::of(&net, 1));
    (net, a, b)
}

/// Handle and data of each packet that has arrived.
fn arrived(driver: &Datagrams) -> Vec<(u64, Vec<u8>)> {
    let got = driver.got().into_iter();
    got.map(|got| (got.handle, got.data)).collect()
}

/// Packets received, dropped and late.
fn counts(net: &Net, node: usize) -> (u64, u64, u64) {
    let counters = net.counters(node);
    (
        counters.datagrams_received,
        counters.datagrams_dropped,
        counters.datagrams_late,
    )
}

#[test]
fn a_packet_lands_in_the_page_and_its_headers_beside_it() {
    let (net, a, b) = pair();
    let buffers = b.post(5, 2);
    let data = pattern(1, 4096);
    let header = pattern(2, 40);
    let page = a.page();
    a.write(page, &data);
    let packet = Packet {
        address: page,
        length: 4096,
        source_port: 9,
        sequence: 77,
        fragment: 3,
        flags: PacketFlags::LAST.bits(),
        header: header.clone(),
        ..a.packet(1, 5)
    };
    a.issue(&packet);
    net.run();
    assert_eq!(a.ends(), [DatagramEnd::Sent(packet.handle, Status::Ok)]);
    let expected = Got {
        handle: buffers[0],
        from: (0, 9),
        record: Record {
            target: 0,
            sequence: 77,
            fragment: 3,
            flags: PacketFlags::LAST.bits(),
            header,
        },
        data,
    };
    assert_eq!(b.ends(), [DatagramEnd::Received(expected)]);
    assert_eq!(net.counters(0).datagrams_sent, 1);
    assert_eq!(counts(&net, 1), (1, 0, 0));
    assert_eq!(net.budget(1, "datagram_buffers"), 1);
    let counters = [net.counters(0).bytes_sent, net.counters(1).bytes_received];
    assert_eq!(counters, [4096, 4096]);
}

/// A packet that asks is answered if its port was never bound, or is not bound any more; a port that has
/// no buffer just now is bound. No answer is answered.
#[test]
fn a_port_that_no_module_has_bound_answers_if_asked() {
    let (net, a, b) = pair();
    let answers = a.post(9, 8);
    b.post(5, 1);
    let ask = |port, sequence, flags: PacketFlags| {
        let packet = Packet {
            source_port: 9,
            sequence,
            flags: flags.bits(),
            ..a.packet(1, port)
        };
        a.issue(&packet);
        net.run();
        a.got()
    };
    let asks = PacketFlags::LAST | PacketFlags::ASK;
    assert_eq!(ask(5, 1, asks), []);
    assert_eq!(ask(5, 2, asks), [], "it has no buffer left");
    assert_eq!(ask(6, 3, PacketFlags::LAST), [], "it does not ask");
    b.withdraw_all(5);
    net.run();
    for (port, handle) in [(6, answers[0]), (5, answers[1])] {
        let expected = Got {
            handle,
            from: (1, port),
            record: Record {
                target: 0,
                sequence: port.into(),
                fragment: 0,
                flags: (PacketFlags::LAST | PacketFlags::UNBOUND).bits(),
                header: vec![],
            },
            data: vec![],
        };
        assert_eq!(ask(port, port.into(), asks), [expected]);
    }
    // An answer to a port that is not bound itself ends there.
    a.withdraw_all(9);
    assert_eq!(ask(6, 4, asks), []);
    assert_eq!(counts(&net, 0).1, 1);
}

/// On a wire that loses, doubles and reorders: what arrives is what was sent, at most twice, and
/// each buffer has one packet (H4, H8). Sends end well, whatever becomes of them.
#[test]
fn what_arrives_on_a_bad_wire_was_sent() {
    for (number, net) in nets(2, 3).enumerate() {
        let (a, b) = (Datagrams::of(&net, 0), Datagrams::of(&net, 1));
        b.post(5, 200);
        let mut sent = BTreeMap::new();
        for number in 0..100u32 {
            let data = pattern(number.into(), (number as usize * 41) % 4097);
            let page = a.page();
            a.write(page, &data);
            let packet = Packet {
                address: if data.is_empty() { 0 } else { page },
                length: data.len() as u16,
                sequence: number,
                fragment: number as u16 + 1,
                header: pattern(u64::from(number), number as usize % 41),
                ..a.packet(1, 5)
            };
            a.issue(&packet);
            sent.insert(number, (packet, data));
            if number % 10 == 9 {
                net.run();
                let ok = |end: &DatagramEnd| matches!(end, DatagramEnd::Sent(_, Status::Ok));
                let ends = a.ends();
                assert!(ends.len() == 10 && ends.iter().all(ok), "{ends:?}");
            }
        }
        let got = b.got();
        let mut copies = BTreeMap::<u32, u32>::new();
        for got in &got {
            let (packet, data) = &sent[&got.record.sequence];
            assert_eq!((&got.data, &got.record.header), (data, &packet.header));
            assert_eq!(got.record.fragment, packet.fragment);
            *copies.entry(got.record.sequence).or_default() += 1;
        }
        assert!(copies.values().all(|count| *count <= 2));
        assert_eq!(counts(&net, 1), (got.len() as u64, 0, 0));
        match number {
            0 | 1 => {
                let order = got.iter().map(|got| got.record.sequence);
                assert!(order.eq(0..100), "each once, in order");
            }
            _ => assert!(copies.len() < 100 && copies.len() > 50, "some are lost"),
        }
    }
}

#[test]
fn a_packet_without_a_buffer_is_not_kept() {
    let (net, a, b) = pair();
    a.send(1, 5, b"lost");
    b.post(6, 1);
    a.send(1, 5, b"lost too");
    b.post(5, 1);
    assert_eq!(arrived(&b), []);
    assert_eq!(counts(&net, 1), (0, 2, 0));
    assert_eq!(a.ends().len(), 2, "none waits for a buffer");
}

#[test]
fn buffers_of_a_port_are_taken_in_the_order_of_their_posting() {
    let (_net, a, b) = pair();
    let first = b.post(5, 2);
    let others = b.post(6, 2);
    let last = b.post(5, 1);
    for (port, data) in [(5, b"1"), (6, b"2"), (5, b"3"), (5, b"4"), (6, b"5")] {
        a.send(1, port, data);
    }
    let expected = [
        (first[0], b"1"),
        (others[0], b"2"),
        (first[1], b"3"),
        (last[0], b"4"),
        (others[1], b"5"),
    ];
    assert_eq!(arrived(&b), expected.map(|(at, data)| (at, data.to_vec())));
}

/// The answer to a request lands in the page that waits for it, and late or doubled ones nowhere
/// (H6).
#[test]
fn a_steered_buffer_is_for_the_packet_that_names_it() {
    let (net, a, b) = pair();
    let page = b.post_steered(5);
    let plain = b.post(5, 1)[0];
    a.send(1, 5, b"request");
    assert_eq!(arrived(&b), [(plain, b"request".to_vec())]);
    a.send(1, 5, b"another");
    assert_eq!(counts(&net, 1), (1, 1, 0), "the steered one is not for it");
    a.send_to(1, 6, page, b"other port");
    a.send_to(1, 5, page + 1000, b"never posted");
    let row = b.post(5, 1)[0];
    a.send_to(1, 5, row, b"not steered");
    assert_eq!(counts(&net, 1), (1, 1, 3));
    a.send_to(1, 5, page, b"answer");
    a.send_to(1, 5, page, b"answer again");
    assert_eq!(arrived(&b), [(page, b"answer".to_vec())]);
    assert_eq!(counts(&net, 1), (2, 1, 4));
}

#[test]
fn a_packet_that_is_longer_than_its_buffer_is_dropped_and_the_buffer_stays() {
    let (net, a, b) = pair();
    let short = Buffer {
        length: 100,
        ..b.buffer(5)
    };
    b.post_buffer(short);
    net.run();
    let untouched = pattern(7, 4096);
    b.write(short.address, &untouched);
    a.send(1, 5, &pattern(1, 101));
    assert_eq!((arrived(&b), counts(&net, 1)), (vec![], (0, 1, 0)));
    let mut bytes = vec![0; 4096];
    b.read(short.address, &mut bytes);
    assert_eq!(bytes, untouched);
    a.send(1, 5, &pattern(2, 100));
    assert_eq!(arrived(&b), [(short.handle, pattern(2, 100))]);
}

/// On a route within one process a packet is as long as a page span, and one frame (H2, S1).
#[test]
fn a_packet_of_eight_pages_is_one_frame() {
    for (offset, length) in [(0, 32_768), (0, 4097), (4000, 16_384), (4095, 28_673)] {
        let (net, a, b) = pair();
        let [from, to] = [&a, &b].map(|driver| driver.block(8) + offset);
        let buffer = Buffer {
            address: to,
            length,
            ..b.buffer(5)
        };
        let data = pattern(u64::from(length), length.into());
        a.write(from, &data);
        b.post_buffer(buffer);
        net.run();
        let packet = Packet {
            address: from,
            length,
            ..a.packet(1, 5)
        };
        a.issue(&packet);
        net.run();
        assert_eq!(a.ends(), [DatagramEnd::Sent(packet.handle, Status::Ok)]);
        let entry = b.party.completion();
        assert_eq!(entry.handle.get(), buffer.handle);
        assert_eq!(entry.length.get(), u64::from(length));
        let mut bytes = vec![0; length.into()];
        b.read(to, &mut bytes);
        assert!(bytes == data, "{length} bytes at {offset}");
        assert_eq!(net.counters(0).datagrams_sent, 1);
        assert_eq!(counts(&net, 1), (1, 0, 0));
    }
}

/// A route on which frames may be lost carries a page.
#[test]
fn a_packet_of_eight_pages_is_refused_where_frames_are_lost() {
    let net = Net::lossy(2, qnic_nic::testing::LossyWire::steady(1000), 1);
    let (a, b) = (Datagrams::of(&net, 0), Datagrams::of(&net, 1));
    b.post(5, 1);
    let packet = Packet {
        address: a.block(2),
        length: 4097,
        ..a.packet(1, 5)
    };
    a.issue(&packet);
    net.run();
    let refused = DatagramEnd::Sent(packet.handle, Status::BadLength);
    assert_eq!((a.ends(), b.got()), (vec![refused], vec![]));
    assert_eq!(net.counters(0).datagrams_sent, 0);
}

/// Two frames of a pool may stand in one page; what arrives for one leaves the other as it is.
#[test]
fn buffers_may_share_a_page() {
    let (net, a, b) = pair();
    let whole = b.buffer(5);
    let half = |number: u64| Buffer {
        handle: whole.handle + number,
        address: whole.address + number * 2000,
        record: whole.record + number * 64,
        length: 2000,
        ..whole
    };
    for number in [0, 1] {
        b.party.post(&half(number).descriptor());
    }
    net.run();
    for seed in [1, 2] {
        a.send(1, 5, &pattern(seed, 2000));
    }
    let mut bytes = vec![0; 4096];
    b.read(whole.address, &mut bytes);
    let expected = [pattern(1, 2000), pattern(2, 2000), vec![0; 96]].concat();
    assert_eq!(bytes, expected);
    assert_eq!(b.party.completions().len(), 2);
}

/// A flood to one port costs another one nothing.
#[test]
fn a_flood_to_one_port_leaves_the_others_their_buffers() {
    let net = Net::new(3, 1024, 8, &Limits::default());
    let [villain, friend, b] = [0, 1, 2].map(|node| Datagrams::of(&net, node));
    b.post(5, 4);
    b.post(6, 50);
    let mut taken = 0;
    for number in 0..50u8 {
        for _ in 0..20 {
            villain.send(2, 5, b"flood");
        }
        friend.send(2, 6, &[number]);
        villain.ends();
        let own = b.got().into_iter().filter(|got| got.from.0 == 1);
        let own: Vec<_> = own.map(|got| got.data).collect();
        assert_eq!(own, [[number]]);
        taken += 1;
    }
    assert_eq!(counts(&net, 2), (taken + 4, 996, 0));
    assert_eq!(net.budget(2, "datagram_buffers"), 0);
}

#[test]
fn a_node_sends_to_itself() {
    let net = Net::new(1, 1024, 8, &Limits::default());
    let a = Datagrams::of(&net, 0);
    let buffer = a.post(5, 1)[0];
    let handle = a.send(0, 5, &pattern(3, 4096));
    let ends = a.ends();
    assert!(ends.contains(&DatagramEnd::Sent(handle, Status::Ok)));
    let got = ends.iter().find_map(|end| match end {
        DatagramEnd::Received(got) => Some((got.handle, got.from, got.data.clone())),
        _ => None,
    });
    assert_eq!(got, Some((buffer, (0, 1), pattern(3, 4096))));
}

#[test]
fn a_packet_that_the_route_does_not_carry_is_refused() {
    let net = Net::lossy(2, qnic_nic::testing::LossyWire::steady(1000), 1);
    net.cluster().max_payload = 1024;
    let (a, b) = (Datagrams::of(&net, 0), Datagrams::of(&net, 1));
    b.post(5, 2);
    let long = a.send(1, 5, &pattern(1, 1025));
    let right = a.send(1, 5, &pattern(2, 1024));
    let expected = [
        DatagramEnd::Sent(long, Status::BadLength),
        DatagramEnd::Sent(right, Status::Ok),
    ];
    assert_eq!(a.ends(), expected);
    assert_eq!(b.got().len(), 1);
}

/// A page that comes by datagram may be what a window of transfers waits for.
#[test]
fn no_window_of_transfers_holds_datagrams_up() {
    let limits = Limits {
        window: 16,
        ..Limits::default()
    };
    let Pair { net, a, b } = Pair::absent(&limits, &Vec::from_iter(0..16));
    let drivers = [0, 1].map(|node| Datagrams::register(&net, node, 6).unwrap());
    drivers[1].post(5, 1);
    for _ in 0..20 {
        a.write(&b).to(page(0)).bytes(4 * PAGE).issue();
        a.read(&b).to(page(0)).bytes(16 * PAGE).issue();
    }
    net.run();
    assert!(net.budget(0, "requests_of_peer") >= 256, "no more are sent");
    drivers[0].send(1, 5, b"page");
    assert_eq!(drivers[1].got().len(), 1);
}

#[test]
fn buffers_are_taken_back_one_by_one_or_all_of_a_port() {
    let (_net, a, b) = pair();
    let row = b.post(5, 3);
    let steered = b.post_steered(5);
    let other = b.post(6, 1)[0];
    b.withdraw(6, row[1]);
    b.withdraw(5, 1000);
    assert_eq!(b.ends(), [], "neither is there");
    b.withdraw(5, row[1]);
    b.withdraw(5, row[1]);
    assert_eq!(b.ends(), [DatagramEnd::Returned(row[1], Status::Cancelled)]);
    a.send(1, 5, b"1");
    b.withdraw(5, row[0]);
    assert_eq!(arrived(&b), [(row[0], b"1".to_vec())], "it has its packet");
    b.withdraw_all(5);
    let cancelled = [row[2], steered].map(|at| DatagramEnd::Returned(at, Status::Cancelled));
    assert_eq!(b.ends(), cancelled);
    a.send(1, 5, b"2");
    a.send(1, 6, b"3");
    assert_eq!(arrived(&b), [(other, b"3".to_vec())]);
    b.withdraw_all(5);
    assert_eq!(b.ends(), []);
}

/// A driver that asks for solicited events only has no event for each packet that was sent (S3, H5); what
/// could not be sent, what comes back, and what finds the completion queue full are told.
#[test]
fn received_and_failed_packets_answer_a_signal_wake_request_and_sent_packets_do_not() {
    let (net, a, b) = pair();
    let mut asked = 0;
    let mut ask = || {
        asked += 1;
        let word = a.party.window() + SIGNAL_WAKE_REQUEST;
        net.store(a.party.node, word, asked);
    };
    let events = || net.cluster().nodes[0].events.len();
    b.post(5, 300);
    let [first, ..] = a.post(6, 3)[..] else {
        panic!("three buffers");
    };
    ask();
    a.send(1, 5, &[1; 100]);
    assert_eq!(a.ends().len(), 1);
    assert_eq!(events(), 0, "it was only sent");
    b.send(0, 6, &[2; 100]);
    assert_eq!(events(), 1, "a packet has come");
    ask();
    a.send(9, 5, &[]);
    assert_eq!(events(), 2, "it could not be sent");
    ask();
    a.withdraw(6, first + 1);
    assert_eq!(events(), 3, "a buffer has come back");
    a.ends();
    ask();
    for _ in 0..256 {
        a.send(1, 5, &[]);
    }
    assert_eq!(events(), 3);
    b.send(0, 6, &[3; 100]);
    assert_eq!(events(), 4, "it waits for room in the completion queue");
}
