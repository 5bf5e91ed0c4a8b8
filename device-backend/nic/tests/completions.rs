//! Transfers and atomic operations that end with a completion of their own (N12).

use qnic_abi::atomic::Function;
use qnic_abi::client::Command;
use qnic_abi::event::Kind;
use qnic_abi::host_area::{CompletionKind, COMPLETIONS_WAITING, COMPLETION_ENTRIES};
use qnic_abi::{Key, Status};
use qnic_nic::testing::{nets, page, Net, Pair};
use qnic_nic::Limits;

#[test]
fn each_ends_once_with_its_status() {
    for net in nets(2, 4) {
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        a.fill(0, 9000, 1);
        a.write(&b).bytes(9000).handle(u64::MAX).issue();
        a.read(&b).bytes(5000).handle(2).issue();
        a.inline_write(&b, b"plain").issue();
        a.inline_write(&b, b"x").handle(3).issue();
        let mut wrong = a.write(&b).bytes(10).handle(4);
        wrong.command.remote.memory.key = Key(1);
        wrong.issue();
        net.run();
        let mut ends: Vec<_> = a.completions_of(CompletionKind::Transfer);
        ends.sort_by_key(|entry| entry.handle.get());
        let ends = ends.iter().map(|it| (it.handle.get(), it.status.get()));
        let expected = [
            (2, Status::Ok),
            (3, Status::Ok),
            (4, Status::BadKey),
            (u64::MAX, Status::Ok),
        ];
        assert!(ends.eq(expected.map(|(handle, status)| (handle, status.code()))));
        // They are counted as all others are, and so are failures.
        assert_eq!(a.done(), (4, 1));
        assert_eq!(a.errors().len(), 1);
    }
}

#[test]
fn an_atomic_operation_tells_its_result() {
    let Pair { net, a, b } = Pair::lossless();
    a.atomic(Function::FetchAdd, &b, [5, 0])
        .bytes(8)
        .handle(1)
        .issue();
    net.run();
    a.atomic(Function::FetchAdd, &b, [7, 0])
        .bytes(8)
        .handle(2)
        .issue();
    let mut wrong = a.atomic(Function::FetchAdd, &b, [7, 0]).bytes(8).handle(3);
    wrong.command.remote.memory.key = Key(1);
    wrong.issue();
    net.run();
    let told = |entry: qnic_abi::host_area::CompletionEntry| {
        let status = Status::try_from(entry.status.get()).unwrap();
        (
            entry.handle.get(),
            status,
            entry.tag.get(),
            entry.immediate.get(),
        )
    };
    let ends: Vec<_> = a.completions().into_iter().map(told).collect();
    let ok = Status::Ok;
    let expected = [(1, ok, 0, 0), (2, ok, 5, 0), (3, Status::BadKey, 0, 0)];
    assert_eq!(ends, expected);
    assert_eq!(a.result(0), (0, 0), "it has no result record");
}

#[test]
fn one_that_has_ended_is_told_while_those_before_it_wait() {
    let Pair { net, a, b } = Pair::present(Net::new(2, 1024, 8, &Limits::default()));
    a.evict(page(0));
    net.answer_faults(false);
    a.write(&b).from(page(0)).bytes(100).handle(1).issue();
    net.run();
    a.request_wake();
    a.inline_write(&b, b"fast").to(page(1)).handle(2).issue();
    net.run();
    let events = std::mem::take(&mut net.cluster().nodes[0].events);
    let wakes = events
        .iter()
        .filter(|it| it.kind.get() == Kind::Wake as u32);
    assert_eq!(wakes.count(), 1, "a process that sleeps learns of it");
    let fast = a.completion();
    assert_eq!(
        (fast.handle.get(), fast.status.get()),
        (2, Status::Ok.code())
    );
    assert_eq!(a.done(), (0, 0), "a counter tells of both");
    net.answer_faults(true);
    net.run();
    assert_eq!(a.completion().handle.get(), 1);
    assert_eq!(a.done(), (2, 0));
}

/// A process that reads none of its completions makes its own commands wait, and loses none.
#[test]
fn completions_that_are_not_read_hold_up_their_process_alone() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let (a, b, other) = (net.party(0, 1), net.party(1, 2), net.party(0, 3));
    let limit = COMPLETION_ENTRIES + u64::from(Limits::default().completions);
    let mut issued = 0;
    while issued < 3 * limit {
        let write = a.inline_write(&b, b"x").handle(issued + 1);
        if write.try_issue().is_none() {
            break;
        }
        issued += 1;
        net.run();
    }
    let told = a.done().0;
    assert!((limit..limit + 64).contains(&told), "{told} of {issued}");
    assert!(issued > told, "the queue stands still");
    assert_eq!(a.word(COMPLETIONS_WAITING), told - COMPLETION_ENTRIES);
    other.inline_write(&b, b"y").run();
    assert_eq!(other.done(), (1, 0));
    let mut seen = Vec::new();
    while seen.len() < issued as usize {
        seen.extend(a.completions().iter().map(|entry| entry.handle.get()));
        net.run();
    }
    assert!(seen.into_iter().eq(1..=issued));
}

/// What a reset drops has no completion, however far it has come. What had ended before is told
/// once, also what had no room.
#[test]
fn a_reset_of_the_queue_tells_of_what_had_ended_and_of_nothing_that_it_drops() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let Pair { net, a, b } = Pair::present(net);
    let ended = COMPLETION_ENTRIES + 3;
    for handle in 1..=ended {
        a.inline_write(&b, b"x").handle(handle).run();
    }
    a.evict(page(0));
    b.evict(page(2));
    net.answer_faults(false);
    let dropped = 1000;
    a.write(&b).from(page(0)).bytes(100).handle(dropped).issue();
    a.inline_write(&b, b"slow")
        .to(page(2))
        .handle(dropped)
        .issue();
    a.read(&b).from(page(2)).bytes(100).handle(dropped).issue();
    let atomic = a
        .atomic(Function::FetchAdd, &b, [5, 0])
        .to(page(2))
        .bytes(8);
    atomic.handle(dropped).issue();
    net.run();
    let mut wrong = Command::inline_write(a.write(&b).command.remote, 1);
    wrong.opcode = 77;
    a.post(&wrong.descriptor());
    a.inline_write(&b, b"behind").handle(dropped).issue();
    net.run();
    assert_eq!(a.word(COMPLETIONS_WAITING), 3);
    assert_eq!(net.counters(0).operations, 4, "all are under way");

    assert_eq!(a.reset_queue(), Status::Ok);
    a.clear_queue();
    net.answer_faults(true);
    net.run();
    let mut told = a.ends();
    net.run();
    told.extend(a.ends());
    assert!(told
        .into_iter()
        .eq((1..=ended).map(|handle| (handle, Status::Ok))));
    assert_eq!(a.done(), (0, 0));
    a.inline_write(&b, b"new").handle(dropped).run();
    assert_eq!(a.ends(), [(dropped, Status::Ok)]);
    assert_eq!((a.done(), a.errors().len()), ((1, 0), 0));
}
