//! Command queues: idle, full, malformed, and as many as there are (Q1, Q2).

use qnic_abi::event::Kind;
use qnic_abi::host_area::{HEAD, OPERATIONS, QUEUE_STATUS};
use qnic_abi::window::{command_offset, AWAKE, COMMAND_ENTRIES, NOTHING_WAITS};
use qnic_abi::{Port, Status, VniId};
use qnic_nic::testing::{Net, Pair, Party};
use qnic_nic::{Limits, Progress, TableKind};

#[test]
fn a_malformed_command_stops_its_queue_until_it_is_reset() {
    let Pair { net, a, b } = Pair::lossless();
    let good = a.write(&b).bytes(64);
    good.issue();
    good.clone().with(|command| command.opcode = 200).issue();
    good.run();
    assert_eq!(a.done(), (1, 0));
    assert_eq!(a.errors(), [(1, Status::Malformed)]);
    assert_eq!(a.word(HEAD), 2);
    assert_eq!(a.word(QUEUE_STATUS), Status::Malformed.code().into());
    let event = net.cluster().nodes[0].events.pop().unwrap();
    assert_eq!(event.kind.get(), Kind::QueueFailed as u32);
    assert_eq!(event.status.get(), Status::Malformed.code());
    net.cluster().ring(0, a.vni);
    net.run();
    assert_eq!(a.done(), (1, 0), "it stands still");

    assert_eq!(a.reset_queue(), Status::Ok);
    a.clear_queue();
    assert_eq!(a.word(QUEUE_STATUS), 0);
    good.run();
    assert_eq!(a.done(), (1, 0));
    assert_eq!(a.errors(), []);
    assert_eq!(net.counters(0).malformed_commands, 1);
}

#[test]
fn an_idle_queue_is_left_alone_until_the_doorbell() {
    let Pair { net, a, b } = Pair::lossless();
    let awake = || net.load(0, a.window() + AWAKE);
    assert_eq!(awake(), 0);
    a.inline_write(&b, &[1; 8]).run();
    assert_eq!(awake(), 1);
    a.inline_write(&b, &[2; 8]).run();
    assert_eq!(a.done().0, 2, "no doorbell was needed");
    let limits = Limits::default();
    net.advance(limits.idle_timeout);
    net.run();
    assert_eq!(a.word(HEAD), 2, "published when idle");
    assert_eq!(awake(), 1, "the NIC still looks");
    net.advance(limits.sleep_timeout);
    net.run();
    assert_eq!(awake(), NOTHING_WAITS);
    assert!(net.cluster().sleeps(0));

    // A command that comes between the last poll and the sleep is found.
    a.inline_write(&b, &[3; 8]).run();
    net.store(0, a.window() + AWAKE, 1);
    a.inline_write(&b, &[4; 8]).issue();
    assert!(!net.cluster().sleeps(0));
    net.run();
    assert_eq!(a.done().0, 4);
    net.settle();
    assert_eq!(net.poll(0), Progress::Idle);
}

/// The state of a queue, as people see it.
fn state(net: &Net, vni: VniId) -> String {
    let table = net.cluster().nodes[0].nic.table(TableKind::Queues);
    let row = table.rows.iter().find(|row| row[0] == vni.0.to_string());
    row.expect("the process has a row")[2].clone()
}

/// Processes that take turns more slowly than a queue stays active ring one doorbell each, the
/// first, as long as the NIC runs (P9).
#[test]
fn processes_that_take_turns_ring_no_doorbell() {
    let net = Net::new(2, 8192, 128, &Limits::default());
    let b = net.party(1, 0);
    let register = |vni| Party::register(&net, 0, VniId(vni), Port(vni + 1), 0).unwrap();
    let parties: Vec<_> = (0..128).map(register).collect();
    let awake = |party: &Party| net.load(0, party.window() + AWAKE) == 1;
    let turn = |party: &Party, round: u64| {
        party.inline_write(&b, &round.to_le_bytes()).issue();
        net.run();
        assert_eq!(party.done().0, round);
        net.advance(1000);
    };
    for party in &parties {
        turn(party, 1);
    }
    for round in 2..5 {
        for party in &parties {
            assert!(awake(party), "it rings no doorbell");
            turn(party, round);
        }
        assert_eq!(state(&net, parties[0].vni), "idle");
        assert_eq!(state(&net, parties[127].vni), "active");
    }

    // A queue without commands for long falls asleep, though the NIC does not.
    for round in 5..600 {
        turn(&parties[9], round);
    }
    assert_eq!(state(&net, parties[8].vni), "asleep");
    assert_eq!(state(&net, parties[9].vni), "active");
    assert!(!awake(&parties[8]));
    turn(&parties[8], 5);
    assert!(net.cluster().sleeps(0));
    assert!(!awake(&parties[9]));
    assert_eq!(state(&net, parties[9].vni), "asleep");
}

/// Queues that are idle have a bound: those beyond ring doorbells.
#[test]
fn few_queues_are_idle_at_once() {
    let net = Net::new(2, 16_384, 300, &Limits::default());
    let b = net.party(1, 0);
    let register = |vni| Party::register(&net, 0, VniId(vni), Port(vni + 1), 0).unwrap();
    let parties: Vec<_> = (0..300).map(register).collect();
    for round in 1..4 {
        for party in &parties {
            party.inline_write(&b, &[1; 8]).issue();
        }
        net.run();
        net.advance(Limits::default().idle_timeout);
        net.run();
        let with = |wanted: &str| {
            let states = parties.iter().map(|party| state(&net, party.vni));
            states.filter(|state| state == wanted).count()
        };
        assert_eq!((with("idle"), with("asleep")), (256, 44));
        assert!(parties.iter().all(|party| party.done().0 == round));
    }
}

/// An idle queue is looked at in time beside one that always has commands.
#[test]
fn an_idle_queue_is_served_beside_a_busy_one() {
    let Pair { net, a, b } = Pair::lossless();
    let other = Party::register(&net, 0, VniId(0), Port(500), 0).unwrap();
    other.inline_write(&b, &[1; 8]).run();
    net.advance(10_000);
    net.run();
    assert_eq!(state(&net, other.vni), "idle");
    other.inline_write(&b, &[2; 8]).issue();
    for _ in 0..50 {
        a.inline_write(&b, &[3; 8]).issue();
        assert_eq!(net.poll(0), Progress::Busy);
        net.advance(500);
    }
    assert_eq!(other.word(HEAD), 2, "it was served, and is idle again");
    net.run();
    assert_eq!(other.done().0, 2);
}

#[test]
fn all_windows_of_a_nic_can_be_used_at_once() {
    let net = Net::new(2, 8192, 128, &Limits::default());
    let b = net.party(1, 0);
    let register = |vni, port| Party::register(&net, 0, VniId(vni), Port(port), 0);
    let parties: Vec<_> = (0..128)
        .map(|vni| register(vni, vni + 1).unwrap())
        .collect();
    assert_eq!(register(128, 500).err(), Some(Status::NoSuchVni));
    assert_eq!(register(5, 500).err(), Some(Status::VniInUse));
    for round in 1..=20u64 {
        for party in &parties {
            let vni = u64::from(party.vni.0);
            let value = (round << 32 | vni).to_le_bytes();
            let write = party.inline_write(&b, &value).to(vni * 8);
            write.notify(vni as u32 + 1).issue();
        }
        net.run();
        for party in &parties {
            assert_eq!(party.done().0, round);
            assert_eq!(b.signals(u32::from(party.vni.0 + 1)), round);
        }
    }
    parties.iter().for_each(Party::end);
    assert_eq!(net.counters(0).processes, 0);
    assert_eq!(net.counters(1).notifications, 128 * 20);
}

#[test]
fn a_full_queue_makes_the_process_wait() {
    let Pair { net, a, b } = Pair::lossless();
    net.answer_faults(false);
    let write = a.write(&b).bytes(64);
    let mut issued = 0;
    while write.try_issue().is_some() {
        issued += 1;
        net.poll(0);
    }
    let expected = u64::from(OPERATIONS) + COMMAND_ENTRIES as u64;
    assert_eq!(issued, expected, "those that run, and those in the queue");
    net.settle();
    assert_eq!(a.done().0, 0, "asleep, with commands that have to wait");
    net.answer_faults(true);
    net.cluster().serve(0);
    for node in 0..2 {
        while net.faults(node) > 0 {
            net.answer(node, 0, 1);
        }
    }
    net.run();
    assert_eq!(a.done().0, expected);
}

#[test]
fn a_head_is_published_every_eight_reads_and_what_was_read_is_zero() {
    let Pair { net, a, b } = Pair::lossless();
    for number in 0..3 * COMMAND_ENTRIES as u64 {
        assert_eq!(a.word(HEAD), number / 8 * 8);
        let write = a.inline_write(&b, &[1; 8]);
        write.issue();
        let slot = a.window() + command_offset(number);
        assert_ne!(net.load(0, slot), 0, "a new command");
        net.run();
        assert_eq!(net.load(0, slot), 0, "it was read");
    }
}

/// The NIC reads it when a process ends: it may be the one that it names, also if others of that have ended before.
#[test]
fn a_receive_in_a_queue_that_sleeps_learns_that_its_sender_has_ended() {
    for node in [0, 1] {
        let net = Net::new(2, 512, 8, &Limits::default());
        let a = net.party(0, 1);
        let b = net.party(node, 2);
        b.set_incarnation(5);
        // A session, in which the end is told.
        a.receive(1).bytes(0, 8).tag(1).issue();
        b.send(1, &a).bytes(0, 8).tag(1).run();
        assert_eq!(a.ends(), [(1, Status::Ok)]);
        assert!(net.cluster().sleeps(0));
        assert_eq!(net.load(0, a.window() + AWAKE), NOTHING_WAITS);
        let late = a.receive(2).from(&b).incarnation(5).bytes(0, 8).tag(2);
        late.issue_quietly();
        net.run();
        assert_eq!(a.ends(), []);
        b.end();
        net.run();
        assert_eq!(a.ends(), [(2, Status::PeerGone)]);
    }
}

/// A receive needs no doorbell while no message waits for one: the NIC reads it when a message comes, with or without
/// another receive that takes that.
#[test]
fn a_message_finds_a_receive_in_a_queue_that_sleeps() {
    let Pair { net, a, b } = Pair::lossless();
    let awake = || net.load(0, a.window() + AWAKE);
    let sleep = || {
        assert!(net.cluster().sleeps(0));
        awake()
    };
    a.receive(1).bytes(0, 8).tag(1).run();
    for round in 2..5 {
        assert_eq!(sleep(), NOTHING_WAITS);
        a.receive(round)
            .bytes(8 * round, 8)
            .tag(round)
            .issue_quietly();
        net.run();
        assert_eq!(a.ends(), []);
        b.send(9, &a).bytes(0, 8).tag(round).run();
        assert_eq!(a.ends(), [(round, Status::Ok)]);
        assert_eq!(b.ends(), [(9, Status::Ok)]);
    }
    // One that waits wants a doorbell for each receive.
    b.send(9, &a).bytes(0, 8).tag(77).run();
    assert_eq!(sleep(), 0);
    a.receive(5).bytes(0, 8).tag(77).issue_quietly();
    net.run();
    assert_eq!(a.ends(), []);
    a.receive(6).bytes(0, 8).tag(6).run();
    assert_eq!(a.ends(), [(5, Status::Ok)]);
    assert_eq!(sleep(), NOTHING_WAITS);
}
