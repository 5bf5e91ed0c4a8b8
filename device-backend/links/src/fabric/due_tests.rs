//! Tests of which NICs have turns (P9): none that has nothing to do, and for each reason one that
//! fails without it.

use qnic_abi::client::registration;
use qnic_abi::control::{Import, Opcode, RequestHeader, REQUEST_BYTES};
use qnic_abi::shared::Ordering;
use qnic_abi::window::command_offset;
use qnic_abi::{SharedMemory, VniId, PAGE_SIZE};
use qnic_nic::testing::SimHost;
use qnic_nic::Limits;
use zerocopy::{Immutable, IntoBytes};

use super::tests::{fabric, impaired, probed, send, taken, NOW};
use super::*;
use crate::codec::tests::image;

/// One round of an engine. Returns the slots that had a turn.
fn round(fabric: &mut Fabric<SimHost>, now: Time) -> Vec<usize> {
    fabric.receive(now);
    let (mut turns, mut from) = (Vec::new(), 0);
    while let Some(slot) = fabric.next_due(from) {
        from = slot + 1;
        turns.push(slot);
        if fabric.poll(slot, now) == Progress::Idle {
            fabric.rest(slot);
        }
    }
    turns
}

/// Has rounds until no NIC has a turn.
fn settle(fabric: &mut Fabric<SimHost>, now: Time) {
    let rounds = (0..100).take_while(|_| !round(fabric, now).is_empty());
    assert!(rounds.count() < 100, "a NIC without work has turns");
}

/// NICs that run and have nothing to do.
fn resting(nodes: &[u16]) -> Fabric<SimHost> {
    let mut fabric = fabric(nodes, nodes.len());
    settle(&mut fabric, NOW);
    fabric
}

fn request(
    fabric: &mut Fabric<SimHost>,
    slot: usize,
    opcode: Opcode,
    body: &(impl IntoBytes + Immutable),
) {
    let header = RequestHeader {
        opcode: (opcode as u32).into(),
        vni: 0.into(),
        reserved: 0.into(),
    };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..8].copy_from_slice(header.as_bytes());
    bytes[8..][..body.as_bytes().len()].copy_from_slice(body.as_bytes());
    let reply = fabric.with(slot, NOW, |now, nic, host, wire| {
        nic.handle_control(now, host, wire, &bytes, 1)
    });
    assert!(reply.is_none_or(|reply| reply[..4] == [0; 4]), "{reply:?}");
}

fn register(fabric: &mut Fabric<SimHost>, slot: usize) {
    let body = registration(1, |page| (page * PAGE_SIZE) as u64);
    request(fabric, slot, Opcode::NewProcess, &body);
}

#[test]
fn nics_without_work_have_no_turns_beside_others() {
    let nodes: Vec<u16> = (0..100).collect();
    let mut fabric = resting(&nodes);
    for _ in 0..100 {
        assert!(send(&mut fabric, 3, 77));
        assert_eq!(round(&mut fabric, NOW), [3, 77]);
        assert!(round(&mut fabric, NOW).is_empty());
    }
    assert_eq!(taken(&fabric)[77], 100);
}

#[test]
fn a_frame_by_a_call_makes_a_nic_due() {
    let mut fabric = resting(&[0, 1, 2]);
    assert!(send(&mut fabric, 2, 0));
    assert_eq!(round(&mut fabric, NOW), [0, 2]);
}

#[test]
fn a_frame_over_a_link_makes_a_nic_due_when_it_arrives() {
    let mut fabric = impaired(&[0, 1, 2], "delay 1us");
    settle(&mut fabric, NOW);
    assert!(send(&mut fabric, 0, 1));
    assert_eq!(round(&mut fabric, NOW), [0]);
    assert!(round(&mut fabric, NOW.after(999)).is_empty());
    assert_eq!(round(&mut fabric, NOW.after(1000)), [1]);
}

#[test]
fn a_frame_of_another_process_makes_a_nic_due() {
    let (mut fabric, probe) = probed(&[0, 1], &[vec![NodeId(5)]]);
    settle(&mut fabric, NOW);
    let bytes = codec::without_checksum(&image(5, 1)).to_vec();
    probe.lock().unwrap().coming = vec![(0, bytes)];
    assert_eq!(round(&mut fabric, NOW), [1]);
}

#[test]
fn a_new_path_makes_a_nic_due() {
    let (mut fabric, probe) = probed(&[0], &[vec![NodeId(5)]]);
    settle(&mut fabric, NOW);
    probe.lock().unwrap().changed = true;
    assert_eq!(round(&mut fabric, NOW), [0]);
}

#[test]
fn a_request_makes_a_nic_due() {
    let mut fabric = resting(&[0, 1]);
    register(&mut fabric, 1);
    assert_eq!(round(&mut fabric, NOW), [1]);
    assert!(round(&mut fabric, NOW).is_empty());
}

/// A doorbell, and the queues that are polled from then on.
#[test]
fn a_doorbell_makes_a_nic_due_as_long_as_it_polls_queues() {
    let mut fabric = resting(&[0, 1]);
    register(&mut fabric, 1);
    settle(&mut fabric, NOW);
    fabric.nic_mut(1).handle_doorbell(0);
    let idle = Limits::default().idle_timeout;
    for passed in [0, 1, idle - 1] {
        assert_eq!(round(&mut fabric, NOW.after(passed)), [1]);
    }
    settle(&mut fabric, NOW.after(idle));
    // One that stands for no process gives nothing to do, so the turn shows the doorbell.
    fabric.nic_mut(0).handle_doorbell(0);
    assert_eq!(round(&mut fabric, NOW.after(idle)), [0]);
    assert!(round(&mut fabric, NOW.after(idle)).is_empty());
}

/// A NIC at rest with a queue that had no command for a while, and the time.
fn watched() -> (Fabric<SimHost>, Time) {
    let mut fabric = resting(&[0, 1]);
    register(&mut fabric, 1);
    fabric.nic_mut(1).handle_doorbell(0);
    assert_eq!(round(&mut fabric, NOW), [1]);
    let now = NOW.after(Limits::default().idle_timeout);
    settle(&mut fabric, now);
    (fabric, now)
}

/// Whatever stands in the first slot: the NIC takes it for a command.
fn post(fabric: &Fabric<SimHost>) {
    let slot = fabric.nic(1).geometry().window_offset(VniId(0)) + command_offset(0);
    fabric.host(1).sram().store_u64(slot, 1, Ordering::Release);
}

#[test]
fn a_nic_with_an_idle_queue_is_watched() {
    let (mut fabric, now) = watched();
    assert!(!fabric.look(now, 16), "there is no command");
    assert!(round(&mut fabric, now).is_empty());
    post(&fabric);
    assert!(fabric.look(now, 16));
    assert_eq!(round(&mut fabric, now), [1]);
}

#[test]
fn a_nic_with_an_idle_queue_prepares_to_sleep() {
    let (mut fabric, now) = watched();
    fabric.make_watched_due();
    assert_eq!(round(&mut fabric, now), [1]);
}

#[test]
fn a_nic_whose_queues_are_asleep_is_not_watched() {
    let (mut fabric, _) = watched();
    let late = NOW.after(Limits::default().sleep_timeout);
    assert!(fabric.look(late, 16), "its queue falls asleep");
    settle(&mut fabric, late);
    post(&fabric);
    assert!(!fabric.look(late, 16));
}

/// An import from a node that does not answer: the NIC asks again, then gives up.
#[test]
fn a_deadline_makes_a_nic_due() {
    let (mut fabric, probe) = probed(&[0, 1], &[vec![NodeId(5)]]);
    register(&mut fabric, 1);
    let body = Import {
        node: 5.into(),
        port: 1.into(),
        wait_ms: 1000.into(),
        name: 1.into(),
        secret: Default::default(),
    };
    request(&mut fabric, 1, Opcode::Import, &body);
    settle(&mut fabric, NOW);
    let sent = |probe: &super::tests::Shared| probe.lock().unwrap().sent.len();
    for _ in 0..3 {
        let before = sent(&probe);
        let mut at = NOW;
        while sent(&probe) == before {
            at = fabric.next_deadline().expect("a deadline");
            assert!(round(&mut fabric, Time(at.0 - 1)).is_empty());
            assert_eq!(round(&mut fabric, at), [1]);
            settle(&mut fabric, at);
        }
        assert!(at > NOW);
    }
}

#[test]
fn a_node_that_goes_on_or_starts_again_makes_its_nic_due() {
    let mut fabric = resting(&[0, 1]);
    fabric.suspend(1, NOW);
    settle(&mut fabric, NOW);
    fabric.resume(1, NOW);
    assert_eq!(round(&mut fabric, NOW), [1]);
    settle(&mut fabric, NOW);
    fabric.reset(1, NOW);
    assert_eq!(round(&mut fabric, NOW), [1]);
    settle(&mut fabric, NOW);
    fabric.host_mut(1);
    assert_eq!(round(&mut fabric, NOW), [1]);
}

/// All that was held is delivered although the NIC rests between two portions.
#[test]
fn what_was_held_makes_a_nic_due() {
    let mut fabric = resting(&[0, 1]);
    fabric.suspend(1, NOW);
    for _ in 0..200 {
        assert!(send(&mut fabric, 0, 1));
    }
    settle(&mut fabric, NOW);
    fabric.resume(1, NOW);
    fabric.rest(1);
    let mut turns = 0;
    while taken(&fabric)[1] < 200 {
        assert_eq!(round(&mut fabric, NOW), [1]);
        turns += 1;
    }
    assert!(turns > 1, "in portions");
    settle(&mut fabric, NOW);
}

/// A pause holds no time: a suspended NIC has a turn only when it has to leave its peers.
#[test]
fn a_suspended_nic_has_no_turns() {
    let mut fabric = resting(&[0, 1]);
    register(&mut fabric, 1);
    fabric.nic_mut(1).handle_doorbell(0);
    assert_eq!(round(&mut fabric, NOW), [1]);
    fabric.suspend(1, NOW);
    assert_eq!(round(&mut fabric, NOW), [1]);
    assert!(round(&mut fabric, NOW).is_empty());
    let timeout = NOW.after(Limits::default().peer_timeout);
    assert_eq!(fabric.next_deadline(), Some(timeout));
    assert_eq!(round(&mut fabric, timeout), [1]);
    settle(&mut fabric, timeout);
    assert_eq!(fabric.next_deadline(), None);
}
