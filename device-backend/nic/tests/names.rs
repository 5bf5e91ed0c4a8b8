//! Names of processes, which all NICs know (Q14; docs/names.md).

use std::collections::BTreeSet;

use proptest::prelude::*;
use qnic_abi::process_names::{NameAction, NameCommand, MAX_TIMEOUT_MS};
use qnic_abi::Status;
use qnic_nic::testing::{nets, LossyWire, NameEnd, Net, Party};
use qnic_nic::Limits;

const NOWHERE: (u16, u16) = (0, 0);

/// Longer than a node that was cut off is missed for, and than it takes to try again.
const WHILE: u64 = 20_000_000_000;

fn place(party: &Party) -> (u16, u16) {
    (party.node as u16, party.port.0)
}

fn found(handle: u64, party: &Party) -> Vec<NameEnd> {
    vec![(handle, Status::Ok, place(party))]
}

fn done(handle: u64) -> Vec<NameEnd> {
    vec![(handle, Status::Ok, NOWHERE)]
}

fn missing(handle: u64) -> Vec<NameEnd> {
    vec![(handle, Status::NameNotFound, NOWHERE)]
}

/// Runs for a while of virtual time.
fn pass(net: &Net, nanoseconds: u64) {
    net.pass(nanoseconds, 20_000_000, 3);
}

/// What a process finds now.
fn look(party: &Party, name: (&str, u32)) -> Option<(u16, u16)> {
    // What came before is of no interest.
    party.name_ends();
    party.look_up(77, name, 0);
    for _ in 0..4 {
        party.net.poll(party.node);
    }
    match party.name_ends()[..] {
        [(77, Status::Ok, place)] => Some(place),
        [(77, Status::NameNotFound, NOWHERE)] => None,
        ref ends => panic!("{ends:?}"),
    }
}

fn assert_nothing_is_left(net: &Net) {
    for node in &net.cluster().nodes {
        for budget in node.nic.budgets() {
            let ours = ["names_of_process", "names_of_node", "lookups_of_process"];
            let unused = !ours.contains(&budget.name) || budget.used == 0;
            assert!(unused, "{budget:?}");
        }
    }
}

#[test]
fn a_name_is_known_everywhere_until_it_is_withdrawn() {
    for net in nets(4, 3) {
        let parties: Vec<_> = (0..4).map(|node| net.party(node, 1)).collect();
        parties[1].register_name(1, ("solver", 3));
        net.run();
        assert_eq!(parties[1].name_ends(), done(1));
        for party in &parties {
            party.look_up(2, ("solver", 3), 0);
            party.look_up(3, ("solver", 4), 0);
            party.look_up(4, ("solve", 3), 0);
            net.run();
            let ends = [found(2, &parties[1]), missing(3), missing(4)].concat();
            assert_eq!(party.name_ends(), ends);
        }
        parties[1].withdraw_name(5, ("solver", 3));
        net.run();
        assert_eq!(parties[1].name_ends(), done(5));
        for party in &parties {
            assert_eq!(look(party, ("solver", 3)), None);
        }
        pass(&net, 100_000_000);
        assert_nothing_is_left(&net);
    }
}

#[test]
fn a_lookup_waits_until_the_name_appears_or_its_time_is_over() {
    for net in nets(3, 3) {
        let (a, b) = (net.party(0, 1), net.party(2, 1));
        for handle in 1..=100 {
            a.look_up(handle, ("late", 0), 600_000);
            net.poll(0);
        }
        a.look_up(200, ("never", 0), 30);
        pass(&net, 20_000_000);
        assert_eq!(a.name_ends(), []);
        pass(&net, 60_000_000);
        assert_eq!(a.name_ends(), missing(200));
        b.register_name(1, ("late", 0));
        net.run();
        let ends: Vec<_> = (1..=100).flat_map(|handle| found(handle, &b)).collect();
        assert_eq!(a.name_ends(), ends);
    }
}

#[test]
fn a_registration_waits_until_the_name_is_free_or_its_time_is_over() {
    let taken = |handle, holder: &Party| vec![(handle, Status::NameTaken, place(holder))];
    for net in nets(3, 3) {
        let parties = [(0, 1), (1, 1), (1, 2), (2, 1)].map(|(node, vni)| net.party(node, vni));
        let [a, b, c, d] = &parties;
        a.register_name(1, ("one", 0));
        net.run();
        assert_eq!(a.name_ends(), done(1));
        // A holder that lives keeps it.
        b.register_name_within(2, ("one", 0), 30);
        d.register_name(3, ("one", 0));
        pass(&net, 20_000_000);
        assert_eq!((b.name_ends(), d.name_ends()), (vec![], taken(3, a)));
        pass(&net, 60_000_000);
        assert_eq!(b.name_ends(), taken(2, a));
        // The first process that waits gets it, by all its registrations; then the next one.
        for (handle, party) in [(4, b), (5, c), (6, b)] {
            party.register_name_within(handle, ("one", 0), 600_000);
            net.poll(1);
        }
        a.withdraw_name(7, ("one", 0));
        pass(&net, 1_000_000_000);
        assert_eq!(a.name_ends(), done(7));
        assert_eq!(b.name_ends(), [done(4), done(6)].concat());
        assert_eq!(c.name_ends(), []);
        b.end();
        pass(&net, 1_000_000_000);
        assert_eq!(c.name_ends(), done(5));
        assert_eq!(look(d, ("one", 0)), Some(place(c)));
    }
}

#[test]
fn a_registration_waits_until_the_node_of_the_holder_is_gone() {
    for seed in 1..4 {
        let net = Net::lossy(3, LossyWire::rough(50), seed);
        let [holder, next] = [1, 2].map(|node| net.party(node, 1));
        holder.register_name(1, ("one", 0));
        net.run();
        next.register_name_within(2, ("one", 0), 600_000);
        pass(&net, 60_000_000);
        assert_eq!(next.name_ends(), []);
        net.cut(1);
        pass(&net, WHILE);
        assert_eq!(next.name_ends(), done(2));
    }
}

#[test]
fn registrations_that_wait_are_bounded_and_end_with_their_queue() {
    let net = Net::new(2, 512, 8, &Limits::default());
    let (a, b) = (net.party(0, 1), net.party(1, 1));
    a.register_name(1, ("one", 0));
    net.run();
    let most = u64::from(Limits::default().lookups);
    for handle in 1..=most + 1 {
        b.register_name_within(handle, ("one", 0), 600_000);
        net.poll(1);
    }
    net.poll(1);
    let full = vec![(most + 1, Status::Exhausted, place(&a))];
    assert_eq!(b.name_ends(), full);
    assert_eq!(b.reset_queue(), Status::Ok);
    b.clear_queue();
    a.end();
    net.run();
    assert_eq!(b.name_ends(), []);
    assert_eq!(look(&b, ("one", 0)), None);
    assert_nothing_is_left(&net);
}

#[test]
fn a_name_ends_with_its_process_and_not_with_its_queue() {
    for net in nets(3, 3) {
        let (a, b) = (net.party(0, 1), net.party(1, 2));
        for process in 0..8 {
            b.register_name(1, ("b", process));
        }
        net.run();
        assert_eq!(look(&a, ("b", 7)), Some(place(&b)));
        assert_eq!(b.reset_queue(), Status::Ok);
        b.clear_queue();
        net.run();
        assert_eq!(look(&a, ("b", 7)), Some(place(&b)));
        b.end();
        net.run();
        for process in 0..8 {
            assert_eq!(look(&a, ("b", process)), None);
        }
        // The next process may have it.
        let c = net.party(2, 3);
        c.register_name(4, ("b", 7));
        net.run();
        assert_eq!(look(&a, ("b", 7)), Some(place(&c)));
    }
}

#[test]
fn a_name_belongs_to_one_process() {
    for net in nets(2, 3) {
        let (a, b, c) = (net.party(0, 1), net.party(1, 2), net.party(1, 3));
        b.register_name(1, ("x", 0));
        net.run();
        b.register_name(2, ("x", 0));
        a.register_name(3, ("x", 0));
        c.register_name(4, ("x", 0));
        c.withdraw_name(5, ("x", 0));
        net.run();
        assert_eq!(b.name_ends(), [done(1), done(2)].concat());
        assert_eq!(a.name_ends(), [(3, Status::NameTaken, place(&b))]);
        let refused = (4, Status::NameTaken, place(&b));
        assert_eq!(c.name_ends(), [refused, missing(5)[0]]);
        assert_eq!(look(&a, ("x", 0)), Some(place(&b)));
    }
}

/// Two that register a name before they can know of each other both have it. All find the same one.
#[test]
fn all_find_the_same_process_if_two_have_one_name() {
    for net in nets(3, 3) {
        let parties: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        parties[1].register_name(1, ("x", 0));
        parties[2].register_name(1, ("x", 0));
        net.run();
        for party in &parties {
            assert_eq!(look(party, ("x", 0)), Some(place(&parties[1])));
        }
        // The other one has it as well: a registration that may wait does not.
        parties[2].name_ends();
        parties[2].register_name_within(2, ("x", 0), 600_000);
        net.run();
        assert_eq!(parties[2].name_ends(), done(2));
        parties[1].end();
        net.run();
        for party in [&parties[0], &parties[2]] {
            assert_eq!(look(party, ("x", 0)), Some(place(&parties[2])));
        }
    }
}

#[test]
fn a_node_that_comes_late_or_comes_back_learns_all_names() {
    for net in nets(3, 3) {
        net.cut(2);
        let a = net.party(0, 1);
        a.register_name(1, ("a", 0));
        pass(&net, WHILE);
        net.heal();
        let c = net.party(2, 1);
        pass(&net, WHILE);
        assert_eq!(look(&c, ("a", 0)), Some(place(&a)));
        // It is reset: it forgets all, and all forget it.
        c.register_name(1, ("c", 0));
        net.run();
        assert_eq!(look(&a, ("c", 0)), Some(place(&c)));
        net.cluster().reset(2);
        net.cluster().start(2);
        pass(&net, WHILE);
        assert_eq!(look(&a, ("c", 0)), None);
        let c = net.party(2, 1);
        assert_eq!(look(&c, ("a", 0)), Some(place(&a)));
    }
}

#[test]
fn names_of_a_node_that_is_cut_off_are_forgotten_and_come_back() {
    for seed in 1..4 {
        let net = Net::lossy(3, LossyWire::rough(50), seed);
        let parties: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        for (process, party) in (0..).zip(&parties) {
            party.register_name(1, ("p", process));
        }
        net.run();
        net.cut(1);
        // It lies within the peer timeout, although no frame is sent.
        pass(&net, 2 * Limits::default().peer_timeout);
        assert_eq!(look(&parties[0], ("p", 1)), None);
        assert_eq!(look(&parties[1], ("p", 0)), None);
        assert_eq!(look(&parties[2], ("p", 0)), Some(place(&parties[0])));
        // What changes meanwhile is learnt, too.
        parties[0].withdraw_name(2, ("p", 0));
        parties[1].register_name(2, ("p", 11));
        pass(&net, 100_000_000);
        net.heal();
        pass(&net, WHILE);
        for party in &parties {
            assert_eq!(look(party, ("p", 0)), None);
            assert_eq!(look(party, ("p", 1)), Some(place(&parties[1])));
            assert_eq!(look(party, ("p", 11)), Some(place(&parties[1])));
            assert_eq!(look(party, ("p", 2)), Some(place(&parties[2])));
        }
    }
}

/// A node that knew no name for a while has no reason to ask whether the others live, until it
/// knows one again.
#[test]
fn a_node_that_had_no_name_for_a_while_is_forgotten_when_it_is_silent() {
    for seed in 1..4 {
        let net = Net::lossy(2, LossyWire::rough(50), seed);
        let (a, b) = (net.party(0, 1), net.party(1, 1));
        a.register_name(1, ("x", 0));
        net.run();
        assert_eq!(look(&b, ("x", 0)), Some(place(&a)));
        a.withdraw_name(2, ("x", 0));
        pass(&net, WHILE);
        a.register_name(3, ("x", 1));
        net.run();
        assert_eq!(look(&b, ("x", 1)), Some(place(&a)));
        net.cut(0);
        pass(&net, 2 * Limits::default().peer_timeout);
        assert_eq!(look(&b, ("x", 1)), None);
    }
}

#[test]
fn thousands_of_names_reach_all() {
    for wire in [None, Some(LossyWire::rough(50))] {
        let net = Net::new(4, 4096, 64, &Limits::default());
        if let Some(wire) = wire {
            net.cluster().set_lossy_wire(wire, 1);
        }
        let mut all = Vec::new();
        for node in 0..4 {
            for vni in 1..64 {
                let party = net.party(node, vni);
                for process in 0..8 {
                    let number = process + 8 * (u32::from(vni) + 64 * node as u32);
                    party.register_name(1, ("many", number));
                }
                all.push(party);
            }
        }
        net.run();
        for (node, vni, process) in [(0, 63, 7), (1, 1, 0), (2, 40, 3), (3, 63, 7)] {
            let number = process + 8 * (vni + 64 * node);
            let whose = place(&all[(node * 63 + vni - 1) as usize]);
            for at in 0..4 {
                assert_eq!(look(&all[at * 63], ("many", number)), Some(whose));
            }
        }
        let last = all.pop().unwrap();
        all.iter().for_each(Party::end);
        net.run();
        assert_eq!(look(&last, ("many", 8)), None);
        last.end();
        net.run();
        pass(&net, 100_000_000);
        assert_nothing_is_left(&net);
    }
}

#[test]
fn names_and_lookups_are_bounded_for_each_process() {
    let limits = Limits {
        lookups: 4,
        ..Limits::default()
    };
    let net = Net::new(2, 1024, 8, &limits);
    let (a, b) = (net.party(0, 1), net.party(0, 2));
    for process in 0..9 {
        a.register_name(process.into(), ("a", process));
    }
    for handle in 10..15 {
        a.look_up(handle, ("unknown", 0), 600_000);
    }
    b.register_name(1, ("b", 0));
    b.look_up(2, ("unknown", 0), 0);
    net.run();
    let mut ends: Vec<_> = (0..8).flat_map(done).collect();
    ends.push((8, Status::Exhausted, place(&a)));
    ends.push((14, Status::Exhausted, NOWHERE));
    assert_eq!(a.name_ends(), ends);
    assert_eq!(b.name_ends(), [done(1), missing(2)].concat());
    // Those of a process that ends wait no more.
    a.end();
    b.end();
    net.run();
    assert_nothing_is_left(&net);
}

/// A name that another process has by now, which the other node learns in one change.
#[test]
fn a_node_that_has_all_its_names_can_give_them_to_others() {
    let limits = Limits {
        names: 2,
        names_of_process: 2,
        ..Limits::default()
    };
    let net = Net::new(2, 256, 8, &limits);
    let (a, b, c) = (net.party(0, 1), net.party(0, 2), net.party(1, 1));
    a.register_name(1, ("x", 0));
    a.register_name(2, ("x", 1));
    net.run();
    assert_eq!(look(&c, ("x", 0)), Some(place(&a)));
    // No turn of the NIC between the two: only the last change is told.
    a.withdraw_name(3, ("x", 0));
    b.register_name(4, ("x", 0));
    net.run();
    assert_eq!(look(&c, ("x", 0)), Some(place(&b)));
    assert_eq!(look(&c, ("x", 1)), Some(place(&a)));
}

/// The log has the last change of each name only: one that was taken again stands behind those that
/// could be given because it was not there.
#[test]
fn a_node_with_all_its_names_can_change_several_of_them() {
    let limits = Limits {
        names: 2,
        ..Limits::default()
    };
    let net = Net::new(2, 256, 8, &limits);
    let (a, b) = (net.party(0, 1), net.party(1, 1));
    a.register_name(1, ("x", 0));
    a.register_name(2, ("x", 1));
    net.run();
    assert_eq!(look(&b, ("x", 1)), Some(place(&a)));
    // No turn of the NIC between them.
    a.withdraw_name(3, ("x", 0));
    a.register_name(4, ("y", 0));
    a.withdraw_name(5, ("x", 1));
    a.register_name(6, ("x", 0));
    net.run();
    assert_eq!(look(&b, ("x", 0)), Some(place(&a)));
    assert_eq!(look(&b, ("x", 1)), None);
    assert_eq!(look(&b, ("y", 0)), Some(place(&a)));
}

/// A node that is told late is told all, whatever was dropped of the log meanwhile.
#[test]
fn more_changes_than_are_kept_reach_a_node_that_was_cut_off() {
    for cut_before in [true, false] {
        let net = Net::lossy(2, LossyWire::rough(20), 1);
        let (a, b) = (net.party(0, 1), net.party(1, 1));
        if !cut_before {
            a.register_name(0, ("gone", 0));
            net.run();
            assert_eq!(look(&b, ("gone", 0)), Some(place(&a)));
        }
        net.cut(1);
        a.withdraw_name(0, ("gone", 0));
        for round in 0..3000 {
            a.register_name(1, ("round", round));
            a.withdraw_name(2, ("round", round));
            for _ in 0..4 {
                net.poll(0);
            }
            a.name_ends();
        }
        a.register_name(1, ("last", 0));
        net.heal();
        pass(&net, WHILE);
        assert_eq!(look(&b, ("last", 0)), Some(place(&a)));
        assert_eq!(look(&b, ("gone", 0)), None);
        assert_eq!(look(&b, ("round", 2999)), None);
        let budgets = net.cluster().nodes[1].nic.budgets();
        let names = budgets.iter().find(|budget| budget.name == "names_of_node");
        assert_eq!(names.map(|budget| budget.used), Some(1));
    }
}

#[test]
fn malformed_commands_stop_the_queue() {
    let net = Net::new(2, 256, 8, &Limits::default());
    let spoils: [fn(&mut NameCommand); 7] = [
        |command| command.action = 0,
        |command| command.action = 4,
        |command| command.name.application = [0; 16],
        |command| command.timeout_ms = (MAX_TIMEOUT_MS + 1).into(),
        |command| {
            command.action = NameAction::Withdraw as u8;
            command.timeout_ms = 1.into();
        },
        |command| command.reserved0 = [0, 0, 1],
        |command| command.reserved1[1] = 1.into(),
    ];
    for (vni, spoil) in (1..).zip(spoils) {
        let party = net.party(0, vni);
        let mut command = party.name_command(1, NameAction::Register, ("a", 0));
        spoil(&mut command);
        party.post(&qnic_abi::command::CommandBody::descriptor(&command));
        net.run();
        assert_eq!(party.errors(), [(0, Status::Malformed)]);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Register(usize, u32),
    Withdraw(usize, u32),
    Restart(usize),
    Cut(u16),
    Heal,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..6, 0u32..5).prop_map(|(party, process)| Step::Register(party, process)),
        4 => (0usize..6, 0u32..5).prop_map(|(party, process)| Step::Withdraw(party, process)),
        2 => (0usize..6).prop_map(Step::Restart),
        1 => (0u16..3).prop_map(Step::Cut),
        1 => Just(Step::Heal),
        4 => (0u64..300).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is registered, withdrawn, lost and cut off: once all nodes can talk, all find what
    /// there is, and nothing else.
    #[test]
    fn names_converge(steps in prop::collection::vec(step(), 1..40), seed in 0u64..1000) {
        let net = Net::lossy(3, LossyWire::rough(100), seed);
        let vni = |place: usize| 1 + (place / 3) as u16;
        let mut parties: Vec<Party> =
            (0..6).map(|place| net.party(place % 3, vni(place))).collect();
        let mut owners: BTreeSet<(usize, u32)> = BTreeSet::new();
        for step in steps {
            match step {
                Step::Register(party, process) => {
                    parties[party].register_name(0, ("x", process));
                    for _ in 0..4 {
                        net.poll(party % 3);
                    }
                    if parties[party].name_ends()[0].1 == Status::Ok {
                        owners.insert((party, process));
                    }
                }
                Step::Withdraw(party, process) => {
                    parties[party].withdraw_name(0, ("x", process));
                    for _ in 0..4 {
                        net.poll(party % 3);
                    }
                    let removed = owners.remove(&(party, process));
                    let withdrawn = parties[party].name_ends()[0].1 == Status::Ok;
                    prop_assert_eq!(removed, withdrawn);
                }
                Step::Restart(party) => {
                    parties[party].end();
                    owners.retain(|(owner, _)| *owner != party);
                    net.poll(party % 3);
                    parties[party] = net.party(party % 3, vni(party));
                }
                Step::Cut(node) => net.cut(node),
                Step::Heal => net.heal(),
                Step::Pass(milliseconds) => pass(&net, milliseconds * 20_000_000),
            }
        }
        net.heal();
        pass(&net, WHILE);
        for process in 0..5 {
            let places = owners.iter().filter(|(_, owned)| *owned == process);
            let expected = places.map(|(party, _)| place(&parties[*party])).min();
            for party in &parties[..3] {
                prop_assert_eq!(look(party, ("x", process)), expected);
            }
        }
        for party in &parties {
            party.end();
        }
        net.run();
        pass(&net, 1_000_000_000);
        assert_nothing_is_left(&net);
    }
}
