//! Which NICs the engine gives turns to, and what makes it do so (P9).

use qnic_abi::event::Kind;
use qnic_abi::Status;

use super::guest::{until, QUEUE_SIZE};
use super::{joined, Lab};

/// P9: what other guests do costs a NIC no turn that has nothing to do.
#[test]
fn a_nic_without_work_has_no_turns() {
    let lab = Lab::new(2);
    let (mut busy, mut idle) = (lab.started(0), lab.started(1));
    idle.register(20);
    let turns = |node| lab.report(node).counters.turns;
    // Between two looks, the engine has a round at least.
    until("rest", || {
        let before = turns(1);
        busy.ping() == Status::Ok && turns(1) == before
    });
    let (busy_before, idle_before) = (turns(0), turns(1));
    for _ in 0..1000 {
        assert_eq!(busy.ping(), Status::Ok);
    }
    assert!(turns(0) - busy_before >= 1000);
    assert_eq!(turns(1), idle_before);
    assert_eq!(idle.ping(), Status::Ok);
    assert!(turns(1) > idle_before);
}

/// An event that finds no buffer costs no turns, and is there when the driver kicks.
#[test]
fn an_event_waits_for_the_kick_of_a_buffer() {
    let (lab, mut a, mut b, _) = joined();
    let buffers = u64::from(QUEUE_SIZE);
    for number in 0..=buffers {
        b.want_wake(number + 1);
        a.issue(number, &a.write_command(1, 20, 0, 8));
        until("the event", || {
            let taken = lab.report(1).counters.events;
            a.writes_done() == number + 1 && taken == buffers.min(number + 1)
        });
    }
    let turns = || lab.report(1).counters.turns;
    until("rest", || {
        let before = turns();
        a.ping() == Status::Ok && turns() == before
    });
    for _ in 0..buffers {
        assert_eq!(b.event().kind.get(), Kind::Wake as u32);
    }
    b.events.kick.write(1).unwrap();
    assert_eq!(b.event().kind.get(), Kind::Wake as u32);
    assert_eq!(lab.report(1).counters.events, buffers + 1);
}
