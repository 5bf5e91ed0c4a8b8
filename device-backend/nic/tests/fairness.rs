//! Two-level round robin (Q10): who has a thousand transfers does not hold up who
//! has one.

mod common;

use common::process;
use qnic_abi::command::CommandFlags;
use qnic_abi_client::Command;
use qnic_nic::testing::{Cluster, SimProcess};
use qnic_nic::Limits;

/// One frame per poll, so that polls count turns.
fn one_frame_per_poll() -> Limits {
    Limits {
        fragments_per_poll: 1,
        ..Limits::default()
    }
}

fn polls_until(cluster: &mut Cluster, process: &SimProcess, done: (u64, u64)) -> u32 {
    for polls in 1..10_000 {
        cluster.poll(0);
        cluster.poll(1);
        if process.done(cluster) == done {
            return polls;
        }
    }
    panic!("never done");
}

#[test]
fn one_transfer_passes_a_thousand_of_another_process() {
    let mut cluster = Cluster::new(2, 1024, 8, &one_frame_per_poll());
    let (mut busy, from) = process(&mut cluster, 0, 1);
    let (mut quiet, _) = process(&mut cluster, 0, 2);
    let (_target, to) = process(&mut cluster, 1, 3);
    let long = Command::write(from.at(0), to.to(0), 200_000);
    while busy.issue(&mut cluster, &long, &[]).is_some() {}
    for _ in 0..200 {
        cluster.poll(0);
        cluster.poll(1);
    }
    let short = Command::inline_write(to.to(0), 8);
    quiet.issue(&mut cluster, &short, &[1; 8]).unwrap();
    let polls = polls_until(&mut cluster, &quiet, (1, 0));
    assert!(polls <= 6, "it took {polls} polls");
    assert_eq!(busy.done(&cluster).0, 0);
}

#[test]
fn one_transfer_passes_long_ones_of_its_own_process() {
    let mut cluster = Cluster::new(2, 1024, 8, &one_frame_per_poll());
    let (mut a, from) = process(&mut cluster, 0, 1);
    let (_target, to) = process(&mut cluster, 1, 3);
    let long = Command::write(from.at(0), to.to(0), 200_000);
    for _ in 0..4 {
        a.issue(&mut cluster, &long, &[]).unwrap();
    }
    for _ in 0..100 {
        cluster.poll(0);
        cluster.poll(1);
    }
    let mut read = Command::read(from.at(0), to.to(0), 8);
    read.flags = CommandFlags::PUBLISH.bits();
    a.issue(&mut cluster, &read, &[]).unwrap();
    let polls = polls_until(&mut cluster, &a, (0, 1));
    assert!(polls <= 15, "it took {polls} polls");
}

#[test]
fn readers_of_one_process_do_not_hold_up_another() {
    let mut cluster = Cluster::new(2, 1024, 8, &one_frame_per_poll());
    let (_owner, source) = process(&mut cluster, 0, 1);
    let (mut quiet, _) = process(&mut cluster, 0, 2);
    let (mut reader, into) = process(&mut cluster, 1, 3);
    let read = Command::read(into.at(0), source.to(0), 200_000);
    while reader.issue(&mut cluster, &read, &[]).is_some() {}
    for _ in 0..300 {
        cluster.poll(0);
        cluster.poll(1);
    }
    let short = Command::inline_write(into.to(0), 8);
    quiet.issue(&mut cluster, &short, &[1; 8]).unwrap();
    let polls = polls_until(&mut cluster, &quiet, (1, 0));
    assert!(polls <= 8, "it took {polls} polls");
}

#[test]
fn the_work_of_a_poll_is_bounded() {
    let limits = Limits::default();
    let mut cluster = Cluster::new(2, 1024, 8, &limits);
    let (mut a, from) = process(&mut cluster, 0, 1);
    let (_target, to) = process(&mut cluster, 1, 3);
    let long = Command::write(from.at(0), to.to(0), 200_000);
    while a.issue(&mut cluster, &long, &[]).is_some() {}
    let mut before = 0;
    for _ in 0..200 {
        cluster.poll(0);
        let sent = cluster.statistics(0).bytes_sent.get();
        assert!(sent - before <= u64::from(limits.fragments_per_poll) * 4096);
        before = sent;
        cluster.poll(1);
    }
}
