//! What one process or peer takes, others keep (X8): places, windows, imports.

use qnic_abi::control::{FaultDone, Opcode};
use qnic_abi::header::{SEGMENTS_BEYOND, SEGMENTS_OF_EACH, SEGMENTS_PER_PROCESS};
use qnic_abi::{Access, Port, Status, PAGE_SIZE};
use qnic_nic::testing::{page, LossyWire, Net, Pair, Party, SimSegment, PAGE};
use qnic_nic::Limits;

/// A segment that looks like that of `b`, on a node that does not exist.
fn elsewhere(pair: &Pair, node: usize) -> SimSegment {
    SimSegment {
        node,
        ..pair.b.segment
    }
}

/// Nodes without a route are no peers: those that exist find their place and their window,
/// however many others a process has named.
#[test]
fn nodes_that_do_not_exist_take_no_place() {
    let limits = Limits {
        peers: 4,
        ..Limits::default()
    };
    let pair = Pair::present(Net::new(3, 512, 8, &limits));
    for node in 10..1200 {
        let refused = pair.a.import(node, Port(9), 1, 0);
        assert_eq!(refused, Err(Status::NoSuchNode));
        pair.a.write(elsewhere(&pair, node.into())).run();
    }
    assert_eq!(pair.a.errors().last().unwrap().1, Status::NoSuchNode);
    let (writes, errors) = (pair.a.done().0, pair.a.errors().len());
    pair.a.write(&pair.b).run();
    assert_eq!(
        (pair.a.done().0, pair.a.errors().len()),
        (writes + 1, errors)
    );
    let third = pair.net.party(2, 3);
    let name = 7;
    assert!(pair.a.import(2, third.port, name, 0).is_ok());
}

/// A node that cannot be reached any more leaves, and comes back as a peer like others.
#[test]
fn a_node_without_a_route_leaves_and_comes_back() {
    let limits = Limits {
        peers: 3,
        ..Limits::default()
    };
    let net = Net::new(5, 512, 8, &limits);
    let a = net.party(0, 1).present();
    for round in 0..3 {
        for node in 1..5 {
            let other = net.party(node, 2 + round).present();
            let before = (a.done().0, a.errors().len());
            a.write(&other).run();
            assert_eq!((a.done().0, a.errors().len()), (before.0 + 1, before.1));
            net.cut(node as u16);
            a.write(&other).run();
            assert_eq!(a.errors().last().unwrap().1, Status::NoSuchNode);
            net.heal();
        }
    }
}

/// A kernel that answers no page fault is not waited for without end: what waits for its
/// pages fails with a status of its own, what waits behind goes on, others are not touched.
fn a_fault_without_an_answer(net: Net, lossless: bool) {
    let timeout = Limits::default().fault_timeout;
    let pair = Pair::present(net);
    let other = pair.net.party(1, 3).present();
    pair.a.write(&pair.b).run();
    pair.net.settle();
    let written = pair.a.done().0;
    pair.net.answer_faults(false);
    pair.b.evict(page(2));
    let first = pair.a.write(&pair.b).pages(2..3).issue();
    pair.a.write(&pair.b).pages(5..6).notify(4).issue();
    let read = pair.a.read(&pair.b).from(page(2)).bytes(8).issue();
    let begin = pair.net.cluster().now;
    pair.net.settle();
    // Where nothing is lost, time passes only here.
    if lossless {
        pair.net.advance(timeout / 2);
        pair.net.settle();
        assert!(pair.a.errors().is_empty(), "it is waited for so long");
        assert_eq!(pair.b.signals(4), 0, "what notifies waits behind");
        pair.net.advance(timeout);
    }
    pair.a.write(&other).bytes(8).issue();
    pair.net.settle();
    assert!(pair.net.cluster().now >= begin.after(timeout));
    let expected = [first, read].map(|command| (command, Status::FaultTimeout));
    assert_eq!(pair.a.sorted_errors(), expected);
    assert_eq!(pair.a.done(), (written + 3, 1));
    assert_eq!(pair.b.signals(4), 1);
    pair.net.assert_holds_nothing(1);
    // An answer that comes too late does no harm.
    pair.net.answer(1, 0, 1);
    pair.net.answer_faults(true);
    pair.a.write(&pair.b).pages(2..3).issue();
    pair.net.settle();
    assert_eq!((pair.a.done().0, pair.a.errors().len()), (written + 4, 2));
    pair.net.assert_unlocked();
}

/// Found by the simulator: a driver that served a fault of a process while it ended answered a
/// fault of its successor, which waited for the same page, with an error.
#[test]
fn an_answer_for_a_process_that_has_ended_is_none_for_its_successor() {
    let net = Net::new(2, 512, 8, &Limits::default());
    let (a, first) = (net.party(0, 1).present(), net.party(1, 2));
    net.answer_faults(false);
    a.write(&first).pages(2..3).issue();
    net.settle();
    let vni = first.vni;
    let stale = net.cluster().nodes[1].faults.remove(0);
    first.end();
    let second = net.party(1, 2);
    assert_eq!(second.vni, vni);
    a.write(&second).pages(2..3).issue();
    net.settle();
    let before = a.errors().len();
    let answer = FaultDone {
        fault: stale.fault,
        status: Status::Aborted.code().into(),
        reserved: Default::default(),
    };
    net.cluster().control(1, Opcode::FaultDone, vni, &answer);
    net.settle();
    assert_eq!(a.errors().len(), before, "no answer to this one");
    net.answer_faults(true);
    net.settle();
    assert_eq!((a.errors().len(), a.done().0), (before, 2));
    net.assert_holds_nothing(1);
}

/// A number of a fault is not used again, though the NIC has forgotten all that was before.
#[test]
fn faults_are_numbered_on_when_the_nic_is_reset() {
    let net = Net::new(1, 512, 8, &Limits::default());
    net.answer_faults(false);
    let fault = || {
        let process = net.party(0, 1);
        process.write(&process).pages(2..3).issue();
        net.run();
        let event = net.cluster().nodes[0].faults.remove(0);
        event.fault.get()
    };
    let first = fault();
    net.cluster().reset(0);
    net.cluster().start(0);
    assert!(first > 0 && fault() > first);
}

#[test]
fn a_fault_without_an_answer_ends_on_a_lossless_wire() {
    a_fault_without_an_answer(Net::new(2, 512, 8, &Limits::default()), true);
}

#[test]
fn a_fault_without_an_answer_ends_on_a_lossy_wire() {
    a_fault_without_an_answer(Net::lossy(2, LossyWire::rough(50), 3), false);
}

/// The same for the pages of the issuer itself.
#[test]
fn an_issuer_does_not_wait_for_its_own_kernel_without_end() {
    let pair = Pair::present(Net::new(2, 512, 8, &Limits::default()));
    pair.net.answer_faults(false);
    pair.a.evict(page(1));
    let write = pair.a.write(&pair.b).from(page(1)).bytes(8).run();
    pair.a.inline_write(&pair.b, &[1; PAGE_SIZE / 64]).run();
    pair.net.advance(Limits::default().fault_timeout);
    pair.net.settle();
    assert_eq!(pair.a.errors(), [(write, Status::FaultTimeout)]);
    assert_eq!(pair.a.done().0, 2);
}

/// A process that asks for names that no process exports takes no place of others.
#[test]
fn imports_that_wait_leave_room_for_those_of_others() {
    let pair = Pair::present(Net::new(3, 512, 8, &Limits::default()));
    let neighbour = pair.net.party(0, 3);
    let elsewhere = pair.net.party(2, 4);
    let limits = Limits::default();
    let wait = 50_000;
    let started = (0..1100).filter(|name| {
        let started = pair.a.import(1, pair.b.port, 1_000 + name, wait);
        pair.net.run();
        started.is_ok()
    });
    assert_eq!(started.count(), limits.imports as usize);
    for other in [&neighbour, &elsewhere] {
        let token = other.import(1, pair.b.port, 77, wait);
        pair.net.run();
        assert_eq!(
            pair.net.import_reply(other.segment.node, token.unwrap()),
            None
        );
    }
    let parked = pair.net.counters(1).parked_imports;
    assert_eq!(parked, u64::from(limits.parked_imports) + 2);
}

/// However many wait for a name, no poll answers more than some of them.
#[test]
fn what_waits_for_a_name_is_answered_in_portions() {
    let pair = Pair::present(Net::new(2, 512, 8, &Limits::default()));
    let import = |_| {
        let token = pair.a.import(1, pair.b.port, 77, 50_000).unwrap();
        pair.net.run();
        token
    };
    let tokens: Vec<u64> = (0..200).map(import).collect();
    let parked = || pair.net.counters(1).parked_imports;
    assert_eq!(parked(), 200);
    let range = (pair.b.segment.address, PAGE_SIZE as u64);
    pair.b.export(7, 77, range, Access::READ).unwrap();
    let mut left = vec![parked()];
    while parked() > 0 {
        pair.net.poll(1);
        left.push(parked());
    }
    assert_eq!(left, [136, 72, 8, 0]);
    pair.net.run();
    for token in tokens {
        assert!(matches!(pair.net.import_reply(0, token), Some(Ok(_))));
    }
}

/// An engine that did not run for long finds its peers silent; it asks before it gives them up.
#[test]
fn a_stall_of_the_engine_is_not_the_silence_of_a_peer() {
    let pair = Pair::present(Net::lossy(2, LossyWire::rough(50), 5));
    pair.a.write(&pair.b).run();
    for round in 1..20 {
        pair.a.write(&pair.b).issue();
        pair.a.read(&pair.b).issue();
        pair.net.poll(0);
        pair.net.advance(2 * Limits::default().peer_timeout);
        pair.net.run();
        assert_eq!(
            (pair.a.done(), pair.a.errors().len()),
            ((round + 1, round), 0)
        );
    }
    assert_eq!(pair.net.counters(0).peers_given_up, 0);
}

/// Few processes have many segments, and leave each other one what it can rely on.
#[test]
fn segments_beyond_those_of_each_process_are_shared_by_all() {
    let net = Net::new(1, 1024, 8, &Limits::default());
    let parties: Vec<_> = (1..8).map(|vni| net.party(0, vni)).collect();
    let add = |party: &Party, id: u32| {
        let (pages, range) = ((0, 1), (u64::from(id) * PAGE, PAGE));
        let exported =
            party.export_with(pages, id as u16, 1000 + u64::from(id), range, Access::READ);
        exported.map(drop)
    };
    // Each has one already, with number 0.
    let fill = |party: &Party| {
        (1..=SEGMENTS_PER_PROCESS)
            .find_map(|id| add(party, id).err().map(|status| (id, status)))
            .expect("an end")
    };
    let beyond = SEGMENTS_PER_PROCESS - SEGMENTS_OF_EACH;
    let (all, rest) = (SEGMENTS_BEYOND / beyond, SEGMENTS_BEYOND % beyond);
    for (number, party) in (0..).zip(&parties) {
        let expected = match number {
            full if full < all => (SEGMENTS_PER_PROCESS, Status::Malformed),
            last if last == all => (SEGMENTS_OF_EACH + rest, Status::Exhausted),
            _ => (SEGMENTS_OF_EACH, Status::Exhausted),
        };
        assert_eq!(fill(party), expected, "process {number}");
    }
    assert_eq!(net.budget(0, "segments_beyond"), SEGMENTS_BEYOND.into());
    // One that ends gives them back.
    parties[0].end();
    assert_eq!(add(&parties[6], SEGMENTS_OF_EACH), Ok(()));
}
