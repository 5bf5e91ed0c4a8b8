use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::*;
use crate::codec::{self, tests::image};
use crate::fabric::tests::{fabric, taken};
use crate::testing::Processes;
use qnic_abi::NodeId;

fn private_key(byte: u8) -> PrivateKey {
    PrivateKey::from_bytes([byte; 32])
}

/// A process: its key, the key that others take it to have, whether it encrypts.
type Host = (u8, u8, bool);

/// One process for each, on free ports; all are configured to know each other.
fn world(hosts: &[Host]) -> Processes<UdpCarrier> {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let reserved: Vec<_> = hosts
        .iter()
        .map(|_| UdpSocket::bind(any).unwrap())
        .collect();
    let peer = |(index, socket): (usize, &UdpSocket)| UdpPeer {
        name: format!("p{index}"),
        address: socket.local_addr().unwrap(),
        public_key: private_key(hosts[index].1).public(),
    };
    let peers: Vec<_> = reserved.iter().enumerate().map(peer).collect();
    drop(reserved);
    let carrier = |(own, (key, _, encrypt)): (&UdpPeer, &Host)| {
        let others = peers.iter().filter(|peer| *peer != own);
        let others: Vec<_> = others.cloned().collect();
        let identity = UdpIdentity {
            name: own.name.clone(),
            private_key: private_key(*key),
            encrypt: *encrypt,
        };
        UdpCarrier::new(&identity, own.address, &others).unwrap()
    };
    let carriers = peers.iter().zip(hosts).map(carrier).map(Some);
    Processes::new(carriers.collect(), ())
}

fn connected(world: &Processes<UdpCarrier>) -> bool {
    let mut carriers = world.carriers.iter().flatten();
    world.connected()
        && carriers.all(|one| one.report().processes.iter().all(|peer| peer.mtu > 4096))
}

#[test]
fn frames_of_all_lengths_reach_their_process_in_batches() {
    for encrypt in [true, false] {
        let mut world = world(&[1, 2, 3].map(|key| (key, key, encrypt)));
        world.until("all connected", connected);
        let links = [(0, 0, 1), (0, 1, 2), (1, 0, 0), (2, 1, 1)];
        let mut sent = world.send_all(40, &links, [96, 4192, 4192, 700]);
        sent.iter_mut().for_each(|frames| frames.sort());
        world.frames.iter_mut().for_each(|frames| frames.sort());
        assert_eq!(world.frames, sent);
    }
}

/// U4: the receiver was busy, finds it behind bulk, and handles it first.
#[test]
fn a_small_frame_does_not_wait_behind_bulk() {
    let mut world = world(&[(1, 1, true), (2, 2, true)]);
    world.until("connected", connected);
    world.frames.iter_mut().for_each(Vec::clear);
    for _ in 0..5 {
        world.send(0, 0, &[1; 4192]);
    }
    let flush = |world: &mut Processes<UdpCarrier>| {
        world.carriers[0].as_mut().unwrap().flush(Time(0));
    };
    flush(&mut world);
    world.send_on(Channel::Priority, 0, 0, &[2; 100]);
    flush(&mut world);
    world.until("all frames", |world| world.frames[1].len() == 6);
    assert_eq!(world.frames[1][0], [2; 100]);
}

/// Two processes that do not get on reject each other; the reason that each would log.
fn rejections(hosts: [Host; 2]) -> [String; 2] {
    let mut world = world(&hosts);
    world.until("rejections are counted", |world| {
        [0, 1].iter().all(|one| world.report(*one).rejected >= 3)
    });
    world.send(0, 0, b"frame");
    assert_eq!(world.about(0, 0).dropped, 1);
    [0, 1].map(|process| {
        assert!(!world.about(process, 0).connected);
        assert_eq!(world.about(process, 0).frames_received, 0);
        let carrier = world.carriers[process].as_ref().unwrap();
        reason(&carrier.name, &carrier.peers[0].1)
    })
}

/// Both ends name both processes and the keys that do not fit.
#[test]
fn a_wrong_key_is_rejected_and_named_by_both_ends() {
    let reasons = rejections([(1, 1, true), (2, 3, true)]);
    let public = |byte| private_key(byte).public().to_string();
    for (reason, keys) in reasons.iter().zip([[1, 3], [1, 2]]) {
        for part in ["\"p0\"", "\"p1\"", "cargo qnic keys show"] {
            assert!(reason.contains(part), "{part}: {reason}");
        }
        for key in keys.map(public) {
            assert!(reason.contains(&key), "{key}: {reason}");
        }
    }
}

#[test]
fn encryption_on_one_side_only_is_named_by_both_ends() {
    let [first, second] = rejections([(1, 1, true), (2, 2, false)]);
    assert!(
        first.contains("\"p0\" encrypts, and \"p1\" does not"),
        "{first}"
    );
    assert!(
        second.contains("\"p1\" does not encrypt, and \"p0\" encrypts"),
        "{second}"
    );
}

/// The third knows the keys of all, and has its own pair; it says that it is the second.
#[test]
fn a_host_cannot_pose_as_another() {
    let mut world = world(&[(1, 1, true), (2, 2, true), (3, 3, true)]);
    world.until("all connected", connected);
    let address = world.carriers[0].as_ref().unwrap().address().unwrap();
    let identity = UdpIdentity {
        name: "p1".to_owned(),
        private_key: private_key(3),
        encrypt: true,
    };
    let victim = UdpPeer {
        name: "p0".to_owned(),
        address,
        public_key: private_key(1).public(),
    };
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let impostor = UdpCarrier::new(&identity, any, &[victim]).unwrap();
    world.carriers.push(Some(impostor));
    world.frames.push(Vec::new());
    let before = world.about(0, 0);
    world.until("the impostor is rejected", |world| {
        world.report(0).rejected >= 3
    });
    assert!(!world.about(3, 0).connected);
    assert_eq!(world.about(0, 0).sessions, before.sessions);
    world.carriers.pop();
    world.frames.pop();
    world.send(1, 0, b"the real one");
    world.until("it gets through", |world| world.frames[0].len() == 1);
}

/// The second has a key of the cluster, and sends frames in the name of the third's node: they
/// are dropped and counted, like those in the name of the first's node.
#[test]
fn a_host_speaks_only_for_its_own_nodes() {
    let mut world = world(&[1, 2, 3].map(|key| (key, key, true)));
    world.until("all connected", connected);
    let mut carriers = world.carriers.into_iter().flatten();
    let (victim, mut liar) = (carriers.next().unwrap(), carriers.next().unwrap());
    let mut fabric = fabric(&[0], 1);
    let nodes = [vec![NodeId(5)], vec![NodeId(6)]];
    fabric.connect(Box::new(victim), &nodes).unwrap();
    let lies = [6, 0, 77];
    for node in [5].into_iter().chain(lies) {
        let frame = image(node, 0);
        let frame = codec::without_checksum(&frame);
        liar.send(Time(0), 0, Channel::Data, &mut |out| {
            out.extend_from_slice(frame);
            true
        });
    }
    liar.flush(Time(0));
    let started = Instant::now();
    while fabric.misdirected() < lies.len() as u64 {
        assert!(started.elapsed() < Duration::from_secs(60), "lies");
        // The time in which nothing is due.
        fabric.receive(Time(0));
    }
    let report = fabric.carriers()[0].report();
    assert_eq!(report.rejected, 0);
    let received = report.processes.iter().map(|peer| peer.frames_received);
    assert_eq!(received.collect::<Vec<_>>(), [4, 0]);
    assert_eq!(taken(&fabric), [1]);
}
