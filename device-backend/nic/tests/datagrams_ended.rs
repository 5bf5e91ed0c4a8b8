//! Datagrams and what ends: the driver, a peer, a queue. And a driver that lies (X8).

use qnic_abi::client::{withdraw_all, Buffer, Packet};
use qnic_abi::control::{PROCESS_DRIVER, PROCESS_PHYSICAL};
use qnic_abi::datagram::{Opcode, PacketFlags, DRIVER_PORT};
use qnic_abi::host_area::{COMPLETIONS_WAITING, COMPLETION_ENTRIES, QUEUE_STATUS};
use qnic_abi::{Port, Status, VniId};
use qnic_nic::testing::{pattern, DatagramEnd, Datagrams, LossyWire, Net, Party, PAGE};
use qnic_nic::Limits;

fn net(limits: &Limits) -> Net {
    Net::new(2, 2048, 8, limits)
}

fn pair(net: &Net) -> [Datagrams; 2] {
    [0, 1].map(|node| Datagrams::of(net, node))
}

fn dropped(net: &Net) -> u64 {
    net.counters(1).datagrams_dropped
}

/// The status that has stopped the queue of a process.
fn stopped_by(party: &Party) -> Option<Status> {
    let code = party.word(QUEUE_STATUS) as u32;
    let status = Status::try_from(code).expect("a status");
    (status != Status::Ok).then_some(status)
}

#[test]
fn one_process_of_a_nic_is_the_driver() {
    let net = net(&Limits::default());
    let register = |vni, port, flags| {
        let party = Party::register(&net, 0, VniId(vni), Port(port), flags);
        party.err()
    };
    let both = PROCESS_DRIVER | PROCESS_PHYSICAL;
    let refused = [
        (DRIVER_PORT, 0, Status::AccessDenied),
        (DRIVER_PORT, PROCESS_PHYSICAL, Status::AccessDenied),
        (DRIVER_PORT, both, Status::Malformed),
        (7, PROCESS_DRIVER, Status::Malformed),
        (0, PROCESS_DRIVER, Status::Malformed),
    ];
    for (port, flags, status) in refused {
        assert_eq!(register(1, port, flags), Some(status), "{port} {flags}");
    }
    assert_eq!(register(1, DRIVER_PORT, PROCESS_DRIVER), None);
    assert_eq!(
        register(2, DRIVER_PORT, PROCESS_DRIVER),
        Some(Status::PortInUse)
    );
}

#[test]
fn no_other_process_has_datagrams() {
    let net = net(&Limits::default());
    let [driver, b] = pair(&net);
    b.post(5, 1);
    let packet = driver.packet(1, 5);
    let buffer = driver.buffer(5);
    let commands = [packet.descriptor(), buffer.descriptor(), withdraw_all(5)];
    for (vni, command) in (1..).zip(&commands) {
        let party = Party::register(&net, 0, VniId(vni), Port(vni), PROCESS_PHYSICAL).unwrap();
        party.post(command);
        net.run();
        assert_eq!(stopped_by(&party), Some(Status::AccessDenied));
        assert_eq!(party.completions(), []);
    }
    assert_eq!(b.got(), []);
    assert_eq!(net.budget(0, "datagram_buffers"), 0);
}

#[test]
fn a_driver_that_ends_has_nothing_left() {
    let net = net(&Limits::default());
    let [a, b] = pair(&net);
    b.post(5, 3);
    b.post_steered(5);
    b.party.end();
    assert_eq!(net.budget(1, "datagram_buffers"), 0);
    a.send(1, 5, b"unbound");
    assert_eq!(dropped(&net), 1);
    let next = Datagrams::of(&net, 1);
    a.send(1, 5, b"unbound");
    assert_eq!((dropped(&net), next.got()), (2, vec![]));
    next.post(5, 1);
    a.send(1, 5, b"bound");
    assert_eq!(next.got().len(), 1);
}

/// A reset of the queue gives all pages back without a completion; handles are new again.
#[test]
fn a_reset_of_the_queue_forgets_buffers_and_packets() {
    let net = Net::lossy(2, LossyWire::steady(10_000), 1);
    let [a, b] = pair(&net);
    let buffer = b.buffer(5);
    b.post_buffer(buffer);
    net.run();
    net.cut(1);
    for _ in 0..3 {
        a.issue(&a.packet(1, 5));
        net.poll(0);
    }
    assert_eq!(net.budget(0, "sends_of_process"), 3, "no session yet");
    for driver in [&a, &b] {
        assert_eq!(driver.party.reset_queue(), Status::Ok);
        driver.party.clear_queue();
    }
    assert_eq!(net.budget(0, "sends_of_process"), 0);
    assert_eq!(net.budget(1, "datagram_buffers"), 0);
    net.heal();
    net.run();
    assert_eq!((a.ends(), b.ends()), (vec![], vec![]));
    b.party.post(&buffer.descriptor());
    net.run();
    assert_eq!(stopped_by(&b.party), None);
    a.send(1, 5, b"new");
    assert_eq!(b.got().len(), 1);
}

#[test]
fn what_waits_for_a_peer_that_is_silent_ends_in_time() {
    let net = Net::lossy(3, LossyWire::steady(10_000), 1);
    let [a, _b] = pair(&net);
    let friend = Datagrams::of(&net, 2);
    friend.post(5, 1);
    net.cut(1);
    let lost = [a.packet(1, 5), a.packet(1, 6)];
    for packet in &lost {
        a.issue(packet);
    }
    net.poll(0);
    let meanwhile = a.packet(2, 5);
    a.issue(&meanwhile);
    let timeout = Limits::default().peer_timeout;
    for _ in 0..200 {
        net.advance(timeout / 100);
        for node in 0..3 {
            net.poll(node);
        }
    }
    net.run();
    let mut ends = vec![DatagramEnd::Sent(meanwhile.handle, Status::Ok)];
    ends.extend(lost.map(|packet| DatagramEnd::Sent(packet.handle, Status::PeerGone)));
    assert_eq!(a.ends(), ends, "the other node's is not behind them");
    assert_eq!(friend.got().len(), 1);
    net.heal();
    net.run();
    assert_eq!(a.send(1, 5, b""), meanwhile.handle + 1);
    let ok = DatagramEnd::Sent(meanwhile.handle + 1, Status::Ok);
    assert_eq!(a.ends(), [ok], "once it is there again");
}

#[test]
fn a_node_without_a_nic_is_not_there() {
    let limits = Limits {
        peers: 2,
        ..Limits::default()
    };
    let net = Net::new(3, 2048, 8, &limits);
    let [a, b] = pair(&net);
    b.post(5, 2);
    a.send(1, 5, b"before");
    a.ends();
    net.cluster().reset(1);
    a.send(1, 5, b"gone");
    let [DatagramEnd::Sent(_, Status::PeerGone)] = a.ends()[..] else {
        panic!("a session without a peer");
    };
    net.cluster().start(1);
    let b = Datagrams::of(&net, 1);
    b.post(5, 1);
    a.send(1, 5, b"again");
    assert_eq!((a.ends().len(), b.got().len()), (1, 1));
    let handle = a.send(2, 5, b"one too many");
    let unknown = DatagramEnd::Sent(handle, Status::NoSuchNode);
    assert_eq!(a.ends(), [unknown], "there are as many peers as may be");
}

/// Neither is a completion lost, nor is there more than was posted, if the driver reads none.
#[test]
fn a_driver_that_reads_no_completions_loses_packets_and_no_completion() {
    let limits = Limits {
        completions: 16,
        ..Limits::default()
    };
    let net = net(&limits);
    let [a, b] = pair(&net);
    let most = COMPLETION_ENTRIES as usize + 16;
    let buffers = b.post(5, most + 40);
    for number in 0..most + 100 {
        a.send(1, 5, &[number as u8]);
        a.ends();
    }
    assert_eq!(b.party.word(COMPLETIONS_WAITING), 16);
    assert_eq!(dropped(&net), 100);
    assert_eq!(net.budget(1, "datagram_buffers"), 40);
    let mut got = b.got();
    net.run();
    got.extend(b.got());
    let handles: Vec<_> = got.iter().map(|got| got.handle).collect();
    assert_eq!(handles, buffers[..most]);
    let right = |(number, data): (usize, &Vec<u8>)| data[..] == [number as u8];
    assert!(got.iter().map(|got| &got.data).enumerate().all(right));
    a.send(1, 5, b"room again");
    assert_eq!(b.got()[0].handle, buffers[most]);
}

#[test]
fn there_are_as_many_buffers_as_may_be() {
    let limits = Limits {
        datagram_buffers: 4,
        ..Limits::default()
    };
    let net = net(&limits);
    let [a, b] = pair(&net);
    let buffers = b.post(5, 4);
    let more = b.post(6, 1)[0];
    let refused = DatagramEnd::Returned(more, Status::Exhausted);
    assert_eq!(b.ends(), [refused]);
    a.send(1, 5, b"one leaves");
    assert_eq!(b.got()[0].handle, buffers[0]);
    b.post(6, 1);
    assert_eq!(b.ends(), []);
    assert_eq!(net.budget(1, "datagram_buffers"), 4);
}

/// Addresses that are wrong cost that one command.
#[test]
fn memory_that_is_none_costs_its_own_command() {
    let net = net(&Limits::default());
    let [a, b] = pair(&net);
    let good = b.buffer(5);
    let end = 2048 * PAGE;
    let wrong = [
        (end, good.record, 64),
        (end - 4096, good.record, 8192),
        (1, good.record, 32_768),
        (u64::MAX - 10, good.record, 8),
        (good.address, end, 64),
        (good.address, good.record + 8, 64),
        (good.address, u64::MAX - 63, 64),
    ];
    for (number, (address, record, length)) in (1u64..).zip(wrong) {
        let handle = good.handle + number;
        b.post_buffer(Buffer {
            handle,
            address,
            record,
            length,
            ..good
        });
        net.run();
        let entry = b.party.completion();
        assert_eq!(entry.handle.get(), handle);
        assert_eq!(entry.status.get(), Status::BadAddress.code());
    }
    for (address, length) in [(end, 1), (end - 1, 2), (1, 32_768), (u64::MAX, 2)] {
        let packet = Packet {
            address,
            length,
            ..a.packet(1, 5)
        };
        a.issue(&packet);
        net.run();
        let refused = DatagramEnd::Sent(packet.handle, Status::BadAddress);
        assert_eq!(a.ends(), [refused], "{address:#x}");
    }
    assert_eq!((stopped_by(&a.party), stopped_by(&b.party)), (None, None));
    assert_eq!(net.counters(0).datagrams_sent, 0);
}

/// Commands that are none stop the queue, and nothing else: what is posted stays.
#[test]
fn a_command_that_is_none_stops_the_queue() {
    type Lie = fn(&Datagrams, &mut qnic_abi::command::Descriptor);
    let lies: [(Status, Lie); 6] = [
        (Status::Malformed, |driver, raw| {
            // Only NICs say that of a port.
            let flags = (PacketFlags::LAST | PacketFlags::UNBOUND).bits();
            *raw = Packet {
                flags,
                ..driver.packet(1, 5)
            }
            .descriptor();
        }),
        (Status::Malformed, |driver, raw| {
            let posted = driver.buffer(5);
            driver.party.post(&posted.descriptor());
            *raw = posted.descriptor();
        }),
        (Status::Malformed, |driver, raw| {
            let handle = 0;
            *raw = Buffer {
                handle,
                ..driver.buffer(5)
            }
            .descriptor();
        }),
        (Status::BadLength, |driver, raw| {
            let length = 0;
            *raw = Buffer {
                length,
                ..driver.buffer(5)
            }
            .descriptor();
        }),
        (Status::Malformed, |driver, raw| {
            *raw = driver.packet(1, 0).descriptor()
        }),
        (Status::BadLength, |driver, raw| {
            let header = pattern(1, 41);
            *raw = Packet {
                header,
                ..driver.packet(1, 5)
            }
            .descriptor();
        }),
    ];
    for (status, lie) in lies {
        let net = net(&Limits::default());
        let [a, b] = pair(&net);
        let buffer = b.post(5, 1)[0];
        let mut raw = withdraw_all(5);
        assert_eq!(raw.header.opcode, Opcode::DatagramWithdraw as u8);
        lie(&b, &mut raw);
        b.party.post(&raw);
        b.party.post(&withdraw_all(5));
        net.run();
        assert_eq!(stopped_by(&b.party), Some(status));
        assert_eq!(b.ends(), [], "what is behind it is not read");
        a.send(1, 5, b"posted before");
        assert_eq!(b.got()[0].handle, buffer);
    }
}
