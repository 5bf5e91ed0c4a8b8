//! Command queues: idle, full, malformed, and as many as there are (Q1, Q2).

mod common;

use common::{pair, process};
use qnic_abi::event::Kind;
use qnic_abi::host_area;
use qnic_abi::shared::Ordering;
use qnic_abi::window::AWAKE;
use qnic_abi::{Port, SharedMemory, Status, VniId};
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, SimProcess};
use qnic_nic::{Limits, Progress};

#[test]
fn a_malformed_command_stops_its_queue_until_it_is_reset() {
    let (mut cluster, (mut a, sa), (_, sb)) = pair();
    let good = Command::write(sa.at(0), sb.to(0), 64);
    let mut bad = good;
    bad.opcode = 200;
    a.issue(&mut cluster, &good, &[]).unwrap();
    a.issue(&mut cluster, &bad, &[]).unwrap();
    a.issue(&mut cluster, &good, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster), (1, 0));
    assert_eq!(a.errors(&cluster), [(1, Status::Malformed)]);
    assert_eq!(a.word(&cluster, host_area::HEAD), 2);
    let stopped = a.word(&cluster, host_area::QUEUE_STATUS);
    assert_eq!(stopped, u64::from(Status::Malformed.code()));
    let event = cluster.nodes[0].events.pop().unwrap();
    assert_eq!(event.kind.get(), Kind::QueueFailed as u32);
    assert_eq!(event.status.get(), Status::Malformed.code());
    cluster.ring(0, a.vni);
    cluster.run();
    assert_eq!(a.done(&cluster), (1, 0), "it stands still");

    let opcode = qnic_abi::control::Opcode::ResetQueue;
    assert_eq!(cluster.control(0, opcode, a.vni, &[0u8; 0]), Status::Ok);
    a.queue.clear(&cluster.nodes[0].host.sram);
    assert_eq!(a.word(&cluster, host_area::QUEUE_STATUS), 0);
    a.issue(&mut cluster, &good, &[]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster), (1, 0));
    assert_eq!(a.errors(&cluster), []);
    assert_eq!(cluster.statistics(0).malformed_commands.get(), 1);
}

#[test]
fn an_idle_queue_is_left_alone_until_the_doorbell() {
    let (mut cluster, (mut a, _), (_, sb)) = pair();
    let awake = |cluster: &Cluster, process: &SimProcess| {
        let window = process.window();
        let sram = &cluster.nodes[0].host.sram;
        sram.load_u64(window + AWAKE, Ordering::Relaxed)
    };
    let command = Command::inline_write(sb.to(0), 8);
    assert_eq!(awake(&cluster, &a), 0);
    a.issue(&mut cluster, &command, &[1; 8]).unwrap();
    cluster.run();
    assert_eq!(awake(&cluster, &a), 1);
    a.issue(&mut cluster, &command, &[2; 8]).unwrap();
    cluster.run();
    assert_eq!(a.done(&cluster).0, 2, "no doorbell was needed");
    cluster.advance(10_000);
    cluster.run();
    assert_eq!(awake(&cluster, &a), 0);
    assert_eq!(a.word(&cluster, host_area::HEAD), 2, "published when idle");
    assert!(cluster.sleeps(0));

    // A command that comes between the last poll and the sleep is found.
    a.issue(&mut cluster, &command, &[3; 8]).unwrap();
    cluster.run();
    let sram = &cluster.nodes[0].host.sram;
    sram.store_u64(a.window() + AWAKE, 1, Ordering::Relaxed);
    a.issue(&mut cluster, &command, &[4; 8]).unwrap();
    assert!(!cluster.sleeps(0));
    cluster.run();
    assert_eq!(a.done(&cluster).0, 4);
    cluster.settle();
    assert_eq!(cluster.poll(0), Progress::Idle);
}

#[test]
fn all_windows_of_a_nic_can_be_used_at_once() {
    let mut cluster = Cluster::new(2, 4096, 128, &Limits::default());
    let (b, sb) = process(&mut cluster, 1, 0);
    let mut processes: Vec<_> = (0..128)
        .map(|vni| SimProcess::register(&mut cluster, 0, VniId(vni), Port(vni + 1)).unwrap())
        .collect();
    let refused = SimProcess::register(&mut cluster, 0, VniId(128), Port(500));
    assert_eq!(refused.err(), Some(Status::NoSuchVni));
    let refused = SimProcess::register(&mut cluster, 0, VniId(5), Port(500));
    assert_eq!(refused.err(), Some(Status::VniInUse));
    for round in 1..=20u64 {
        for process in &mut processes {
            let to = u64::from(process.vni.0) * 8;
            let mut command = Command::inline_write(sb.to(to), 8);
            command.notification = Some(u32::from(process.vni.0 + 1));
            let value = round << 32 | u64::from(process.vni.0);
            let issued = process.issue(&mut cluster, &command, &value.to_le_bytes());
            issued.unwrap();
        }
        cluster.run();
        for process in &processes {
            assert_eq!(process.done(&cluster).0, round);
            let notification = u32::from(process.vni.0 + 1);
            assert_eq!(b.signals(&cluster, notification), round);
        }
    }
    for process in processes {
        process.end(&mut cluster);
    }
    assert_eq!(cluster.statistics(0).processes.get(), 0);
    assert_eq!(cluster.statistics(1).notifications.get(), 128 * 20);
}

#[test]
fn a_full_queue_makes_the_process_wait() {
    let (mut cluster, (mut a, sa), (_, sb)) = pair();
    cluster.answer_faults = false;
    let command = Command::write(sa.at(0), sb.to(0), 64);
    let mut issued = 0;
    while a.issue(&mut cluster, &command, &[]).is_some() {
        issued += 1;
        cluster.poll(0);
    }
    assert_eq!(issued, 128, "64 run and 64 stand in the queue");
    cluster.settle();
    assert_eq!(
        a.done(&cluster).0,
        0,
        "asleep, with commands that have to wait"
    );
    cluster.answer_faults = true;
    cluster.serve(0);
    for node in 0..2 {
        while !cluster.nodes[node].faults.is_empty() {
            cluster.answer_fault(node, 0, 1);
        }
    }
    cluster.run();
    assert_eq!(a.done(&cluster).0, 128);
}
