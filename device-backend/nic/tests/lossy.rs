//! Transfers over wires that lose, double, delay and reorder frames (U1 to U3, U10), and
//! what happens when a peer is silent for good.

mod common;

use common::{pattern, process, SEGMENT};
use qnic_abi::control::Statistics;
use qnic_abi::Status;
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, LossyWire, SimProcess, SimSegment};
use qnic_nic::{Limits, Progress};
use zerocopy::little_endian::U64;

const MILLISECOND: u64 = 1_000_000;

fn lossy_wire(loss: u64) -> LossyWire {
    LossyWire {
        loss,
        duplication: loss,
        delay: 10_000,
        jitter: 40_000,
    }
}

fn cluster(nodes: u16, loss: u64, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(nodes, 2048, 8, &Limits::default());
    cluster.set_lossy_wire(lossy_wire(loss), seed);
    cluster
}

/// [`process`], with all pages present.
fn resident(cluster: &mut Cluster, node: usize, vni: u16) -> (SimProcess, SimSegment) {
    let (process, segment) = process(cluster, node, vni);
    let this = &mut cluster.nodes[node];
    for page in (segment.address / 4096 * 4096..segment.address + SEGMENT).step_by(4096) {
        assert!(this.driver.fault_in(&this.host, process.vni, page));
    }
    (process, segment)
}

fn total(cluster: &Cluster, count: impl Fn(Statistics) -> U64) -> u64 {
    let nodes = 0..cluster.nodes.len();
    nodes
        .map(|node| count(cluster.statistics(node)).get())
        .sum()
}

#[test]
fn everything_arrives_once_whatever_is_lost() {
    for (seed, loss) in (0..).zip([0, 10, 50, 200, 400]) {
        let mut cluster = cluster(2, loss, seed);
        let (mut a, sa) = resident(&mut cluster, 0, 1);
        let (b, sb) = resident(&mut cluster, 1, 2);
        let bytes = pattern(seed, SEGMENT as usize);
        a.write(&mut cluster, sa.address, &bytes);
        for round in 1..=20 {
            let mut write = Command::write(sa.at(0), sb.to(0), SEGMENT);
            write.notification = Some(3);
            a.issue(&mut cluster, &write, &[]).unwrap();
            cluster.run();
            assert_eq!(a.done(&cluster).0, round, "loss {loss}");
            assert_eq!(b.signals(&cluster, 3), round);
        }
        assert!(b.read(&cluster, sb.address, SEGMENT as usize) == bytes);
        let length = SEGMENT / 2;
        let read = Command::read(sa.at(length), sb.to(0), length);
        a.issue(&mut cluster, &read, &[]).unwrap();
        cluster.run();
        let got = a.read(&cluster, sa.address + length, length as usize);
        assert!(got == bytes[..length as usize]);
        assert_eq!(a.errors(&cluster), []);
        let again = total(&cluster, |counters| counters.frames_resent);
        assert!(loss == 0 || again > 0, "frames were sent again");
        assert_eq!(total(&cluster, |counters| counters.frames_outside), 0);
        assert_eq!(total(&cluster, |counters| counters.peers_given_up), 0);
    }
}

#[test]
fn a_wire_that_loses_nothing_makes_nobody_repeat_himself() {
    let mut cluster = Cluster::new(2, 2048, 8, &Limits::default());
    let steady = LossyWire {
        loss: 0,
        duplication: 0,
        delay: 20_000,
        jitter: 0,
    };
    cluster.set_lossy_wire(steady, 1);
    let (mut a, sa) = resident(&mut cluster, 0, 1);
    let (_b, sb) = resident(&mut cluster, 1, 2);
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    for _ in 0..30 {
        a.issue(&mut cluster, &write, &[]).unwrap();
    }
    cluster.run();
    assert_eq!(a.done(&cluster).0, 30);
    assert_eq!(total(&cluster, |counters| counters.frames_resent), 0);
    assert_eq!(total(&cluster, |counters| counters.duplicate_frames), 0);
    let acks = total(&cluster, |counters| counters.acknowledgements);
    assert!(
        acks < 30 * 64 / 4,
        "acknowledgements are cumulative: {acks}"
    );
}

/// On a way that takes long, so that a whole window is under way when the first gap is
/// noticed.
#[test]
fn what_is_sent_again_is_what_was_lost() {
    let mut cluster = Cluster::new(2, 2048, 8, &Limits::default());
    let long = LossyWire {
        loss: 10,
        duplication: 0,
        delay: 3 * MILLISECOND,
        jitter: 0,
    };
    cluster.set_lossy_wire(long, 1);
    let (mut a, sa) = resident(&mut cluster, 0, 1);
    let (mut b, sb) = resident(&mut cluster, 1, 2);
    let forth = Command::write(sa.at(0), sb.to(0), SEGMENT);
    let back = Command::write(sb.at(0), sa.to(0), SEGMENT);
    for _ in 0..10 {
        for _ in 0..16 {
            a.issue(&mut cluster, &forth, &[]).unwrap();
            b.issue(&mut cluster, &back, &[]).unwrap();
        }
        cluster.run();
    }
    assert_eq!((a.done(&cluster).0, b.done(&cluster).0), (160, 160));
    let again = total(&cluster, |counters| counters.frames_resent);
    let in_vain = total(&cluster, |counters| counters.duplicate_frames);
    assert!(again > 100 && in_vain * 4 < again, "{in_vain} of {again}");
}

#[test]
fn an_acknowledgement_waits_for_a_frame_that_carries_it() {
    let mut cluster = cluster(2, 0, 1);
    let (mut a, _) = resident(&mut cluster, 0, 1);
    let (_b, sb) = resident(&mut cluster, 1, 2);
    let command = Command::inline_write(sb.to(0), 8);
    a.issue(&mut cluster, &command, &[1; 8]).unwrap();
    cluster.run();
    a.issue(&mut cluster, &command, &[2; 8]).unwrap();
    cluster.poll(0);
    let counted = |cluster: &Cluster| cluster.statistics(1).acknowledgements.get();
    let before = counted(&cluster);
    // On the way for 50 µs at most.
    cluster.advance(50_000);
    cluster.poll(1);
    assert_eq!(counted(&cluster), before);
    assert_eq!(cluster.poll(1), Progress::Idle, "waiting is not spinning");
    cluster.advance(49_000);
    cluster.poll(1);
    assert_eq!(counted(&cluster), before);
    cluster.advance(1000);
    cluster.poll(1);
    assert_eq!(counted(&cluster), before + 1);
}

#[test]
fn a_peer_that_is_silent_for_good_is_given_up_in_time_and_may_come_back() {
    let mut cluster = cluster(2, 0, 7);
    let (mut a, sa) = resident(&mut cluster, 0, 1);
    let (b, sb) = resident(&mut cluster, 1, 2);
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    let read = Command::read(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    cluster.cut.insert(1);
    for command in [&write, &read] {
        a.issue(&mut cluster, command, &[]).unwrap();
    }
    let start = cluster.now;
    cluster.run();
    let timeout = Limits::default().peer_timeout;
    let passed = cluster.now.0 - start.0;
    assert!((timeout..timeout * 5 / 4).contains(&passed), "{passed}");
    assert_eq!(a.done(&cluster), (2, 1));
    let errors = a.errors(&cluster);
    assert_eq!(errors.len(), 2);
    assert!(errors.iter().all(|error| error.1 == Status::PeerGone));
    assert_eq!(cluster.statistics(0).peers_given_up.get(), 1);
    // It was there all the time; both start clean.
    cluster.cut.clear();
    let bytes = pattern(9, SEGMENT as usize);
    a.write(&mut cluster, sa.address, &bytes);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    assert_eq!(a.errors(&cluster).len(), 2);
    assert!(b.read(&cluster, sb.address, SEGMENT as usize) == bytes);
}

#[test]
fn a_partition_that_heals_in_time_costs_nothing_but_time() {
    let mut cluster = cluster(3, 20, 11);
    let (mut a, sa) = resident(&mut cluster, 0, 1);
    let (b, sb) = resident(&mut cluster, 1, 2);
    let bytes = pattern(5, SEGMENT as usize);
    a.write(&mut cluster, sa.address, &bytes);
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    for _ in 0..8 {
        a.issue(&mut cluster, &write, &[]).unwrap();
        cluster.poll(0);
        cluster.advance(30_000);
    }
    cluster.cut.extend([0, 1]);
    for _ in 0..400 {
        cluster.advance(10 * MILLISECOND);
        for node in 0..3 {
            cluster.poll(node);
        }
    }
    assert!(a.done(&cluster).0 < 9);
    cluster.cut.clear();
    cluster.run();
    assert_eq!(a.done(&cluster).0, 9);
    assert_eq!(a.errors(&cluster), []);
    assert!(b.read(&cluster, sb.address, SEGMENT as usize) == bytes);
}

#[test]
fn a_node_that_comes_back_without_a_word_starts_clean() {
    let mut cluster = cluster(2, 0, 3);
    let (mut a, sa) = resident(&mut cluster, 0, 1);
    let (_, sb) = resident(&mut cluster, 1, 2);
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    // It goes while nobody can hear it, with frames on their way to it.
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.poll(0);
    cluster.cut.insert(0);
    cluster.reset(1);
    cluster.cut.clear();
    cluster.start(1);
    let (b, sb) = resident(&mut cluster, 1, 2);
    let before = b.read(&cluster, sb.address, SEGMENT as usize);
    cluster.run();
    assert_eq!(a.errors(&cluster), [(1, Status::PeerGone)]);
    assert!(cluster.statistics(1).stale_frames.get() > 0);
    let after = b.read(&cluster, sb.address, SEGMENT as usize);
    assert!(before == after, "a frame of the old life was taken");
    let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
    a.issue(&mut cluster, &write, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster).0, 3);
    assert_eq!(a.errors(&cluster).len(), 1);
}

#[test]
fn pieces_are_no_longer_than_a_way_takes() {
    for loss in [None, Some(50)] {
        let mut cluster = Cluster::new(2, 2048, 8, &Limits::default());
        cluster.max_payload = 1000;
        if let Some(loss) = loss {
            cluster.set_lossy_wire(lossy_wire(loss), 4);
        }
        let (mut a, sa) = resident(&mut cluster, 0, 1);
        let (b, sb) = resident(&mut cluster, 1, 2);
        let bytes = pattern(5, SEGMENT as usize);
        a.write(&mut cluster, sa.address, &bytes);
        let write = Command::write(sa.at(0), sb.to(0), SEGMENT);
        a.issue(&mut cluster, &write, &[]).unwrap();
        cluster.run();
        assert!(b.read(&cluster, sb.address, SEGMENT as usize) == bytes);
        let read = Command::read(sa.at(70_000), sb.to(3), 50_000);
        a.issue(&mut cluster, &read, &[]).unwrap();
        cluster.run();
        assert!(a.read(&cluster, sa.address + 70_000, 50_000) == bytes[3..50_003]);
        assert_eq!(a.done(&cluster), (1, 1));
    }
}

#[test]
fn an_import_finds_its_way_through_loss() {
    for seed in 0..20 {
        let mut cluster = cluster(2, 300, seed);
        let (a, _) = resident(&mut cluster, 0, 1);
        let (b, sb) = resident(&mut cluster, 1, 2);
        let token = a.import(&mut cluster, 1, b.port, 7, 10_000).unwrap();
        cluster.run();
        let reply = cluster.import_reply(0, token).unwrap().unwrap();
        assert_eq!(reply.key.get(), sb.key);
    }
}
