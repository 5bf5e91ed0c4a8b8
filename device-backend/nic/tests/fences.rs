//! Fences of one side: when sources of writes may be reused (N9).

use qnic_abi::command::CommandBody;
use qnic_abi::host_area::{CompletionKind, QUEUE_STATUS};
use qnic_abi::rdma::FenceCommand;
use qnic_abi::{Key, Status};
use qnic_nic::testing::{nets, page, Net, Pair, Party, PAGE};
use qnic_nic::Limits;

/// The lane of commands of these tests.
const LANE: u8 = 0;

fn fence(party: &Party, lane: u8, handle: u64) {
    let mut command = FenceCommand::command();
    command.header.lane = lane;
    command.handle = handle.into();
    party.post(&command.descriptor());
}

/// Fences that were told since the last look, with their statuses.
fn told(party: &Party) -> Vec<(u64, u32)> {
    let ends = party.completions_of(CompletionKind::Transfer);
    ends.iter()
        .map(|it| (it.handle.get(), it.status.get()))
        .collect()
}

fn ok(handle: u64) -> (u64, u32) {
    (handle, Status::Ok.code())
}

/// A pair whose node 0 has a write under way from an absent page, in its lane.
fn waiting() -> Pair {
    let pair = Pair::present(Net::new(2, 1024, 8, &Limits::default()));
    pair.a.evict(page(0));
    pair.net.answer_faults(false);
    pair.a.write(&pair.b).from(page(0)).bytes(100).issue();
    pair.net.run();
    pair
}

#[test]
fn a_source_may_be_reused_before_its_write_is_delivered() {
    for net in nets(2, 4) {
        let Pair { net, a, b } = Pair::present(net);
        a.write(&b).bytes(8).run();
        let bytes = a.fill(0, 3 * PAGE, 1);
        b.evict(page(0));
        net.answer_faults(false);
        a.write(&b).bytes(3 * PAGE).issue();
        fence(&a, LANE, 7);
        for _ in 0..100 {
            net.poll_both(10);
            net.advance(10_000);
        }
        assert_eq!(told(&a), [ok(7)]);
        assert_eq!(a.done(), (1, 0), "its destination is absent");
        a.fill(0, 3 * PAGE, 2);
        net.answer_faults(true);
        net.run();
        assert_eq!(a.done(), (2, 0));
        assert!(b.holds(0, &bytes));
    }
}

#[test]
fn a_fence_waits_for_earlier_writes_of_its_lane_alone() {
    let Pair { net, a, b } = waiting();
    fence(&a, LANE, 1);
    a.inline_write(&b, b"has no source").issue();
    fence(&a, LANE + 1, 2);
    net.run();
    assert_eq!(told(&a), [ok(2)]);
    a.evict(page(3));
    a.write(&b).from(page(3)).bytes(100).issue();
    fence(&a, LANE, 3);
    net.run();
    net.answer(0, 0, 1);
    net.run();
    assert_eq!(told(&a), [ok(1)], "a later write is none of its own");
    net.answer_faults(true);
    net.run();
    assert_eq!(told(&a), [ok(3)]);
    assert_eq!(a.done(), (3, 0), "no counter counts a fence");
}

#[test]
fn a_write_that_fails_needs_no_source() {
    let Pair { net, a, b } = waiting();
    let mut wrong = a.write(&b).from(page(4)).bytes(20 * PAGE);
    wrong.command.remote.memory.key = Key(1);
    wrong.issue();
    fence(&a, LANE, 1);
    net.run();
    assert_eq!(told(&a), []);
    assert_eq!(a.errors().len(), 1);
    net.answer_faults(true);
    net.run();
    assert_eq!(told(&a), [ok(1)]);
}

#[test]
fn what_a_wire_keeps_is_read_when_its_write_has_ended() {
    let net = Net::new(2, 512, 8, &Limits::default());
    net.cluster().keep_frames();
    let Pair { net, a, b } = Pair::present(net);
    a.write(&b).bytes(8).run();
    a.write(&b).bytes(3 * PAGE).issue();
    net.poll(0);
    assert!(net.cluster().kept_frames() > 0);
    fence(&a, LANE, 1);
    net.poll(0);
    assert_eq!(told(&a), [], "the wire reads it again");
    net.settle();
    assert_eq!(told(&a), [ok(1)]);
    assert_eq!(a.done().0, 2);
}

#[test]
fn so_many_fences_wait_and_go_with_their_queue() {
    let Pair { net, a, .. } = waiting();
    for handle in 1..=1025 {
        fence(&a, LANE, handle);
        net.run();
    }
    assert_eq!(told(&a), [(1025, Status::Exhausted.code())]);
    assert_eq!(a.reset_queue(), Status::Ok);
    net.answer_faults(true);
    net.run();
    assert_eq!(told(&a), []);
    a.clear_queue();
    fence(&a, LANE, 9);
    net.run();
    assert_eq!(told(&a), [ok(9)]);
}

/// A fence may have many operations to look through: others are not to wait for several (P15).
#[test]
fn a_fence_is_the_last_command_of_its_process_in_a_poll() {
    let Pair { net, a, .. } = waiting();
    (1..=3).for_each(|handle| fence(&a, LANE + 1, handle));
    for handle in 1..=3 {
        net.poll(0);
        assert_eq!(told(&a), [ok(handle)]);
    }
}

#[test]
fn a_malformed_fence_stops_its_queue() {
    let changes: [fn(&mut FenceCommand); 3] = [
        |command| command.handle = 0.into(),
        |command| command.reserved[5] = 1.into(),
        |command| command.header.inline_length = 8,
    ];
    for change in changes {
        let Pair { net, a, .. } = Pair::lossless();
        let mut command = FenceCommand::command();
        command.handle = 1.into();
        change(&mut command);
        a.post(&command.descriptor());
        net.run();
        assert_eq!(a.word(QUEUE_STATUS), u64::from(Status::Malformed.code()));
        assert_eq!(told(&a), []);
    }
}
