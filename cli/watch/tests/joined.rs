//! What several NICs say of collectives, groups, imports and names becomes one operation each.

use qnic_abi::collective::{Element, Operator};
use qnic_abi::{Access, Port, Status};
use qnic_nic::testing::{LossyWire, Net, Party};
use qnic_nic::trace::{Event, Scope};
use qnic_nic::Limits;
use qnic_watch::trace::{Collected, Operation, Operations, TracedNode};

fn begin(net: &Net, sample: u32) {
    for node in &mut net.cluster().nodes {
        assert!(node.nic.begin_trace(sample, Vec::with_capacity(10_000)));
    }
}

/// Ends the traces of all NICs; what they say, by time.
fn end(net: &Net) -> Collected {
    let mut collected = Collected::default();
    for (number, node) in (0u16..).zip(&mut net.cluster().nodes) {
        let taken = node.nic.end_trace();
        assert_eq!(taken.lost, 0);
        let events = taken.events.into_iter();
        let events = events.map(|event| Event::try_from(event).unwrap());
        collected.events.extend(events);
        collected.nodes.push(TracedNode {
            node: number,
            name: format!("n{number}"),
        });
    }
    collected.events.sort_by_key(|event| event.time);
    collected
}

fn of(operations: &Operations, scope: Scope) -> Vec<&Operation> {
    let all = operations.all.iter();
    all.filter(|operation| operation.scope == scope).collect()
}

/// A process of each of three nodes.
fn three(net: &Net) -> Vec<Party> {
    (0..3).map(|node| net.party(node, 1)).collect()
}

/// They form a group; returns what each calls it.
fn form(net: &Net, members: &[Party]) -> Vec<u64> {
    for (rank, member) in (0..).zip(members) {
        member.join(1, &members[0], 5, (rank, 3));
    }
    net.run();
    let joined = members.iter().map(|member| member.completions());
    joined.map(|entries| entries[0].immediate.get()).collect()
}

/// Processes of three nodes that have formed a group.
fn grouped() -> (Net, Vec<Party>, Vec<u64>) {
    let net = net();
    let members = three(&net);
    let groups = form(&net, &members);
    (net, members, groups)
}

fn net() -> Net {
    Net::new(3, 512, 8, &Limits::default())
}

/// Fails unless each frame of an operation that was sent is one that came, and no other came.
fn assert_joined(operation: &Operation) {
    assert!(!operation.sends.is_empty(), "{operation:?}");
    assert_eq!(operation.sends.len(), operation.frames.len());
    for sent in &operation.sends {
        let came = operation.frames.iter().find(|frame| {
            let ends = (frame.from, frame.at, frame.kind, frame.bytes);
            ends == (sent.at, sent.to, sent.kind, sent.bytes)
        });
        assert!(came.is_some_and(|frame| frame.received >= sent.time));
    }
}

#[test]
fn a_collective_of_three_nodes_is_one_operation_with_an_arrow_for_each_frame() {
    let (net, members, groups) = grouped();
    begin(&net, 1);
    for (member, group) in members.iter().zip(&groups) {
        let call = member.barrier(7, *group).bytes(0, 64);
        call.allreduce(Operator::Sum, Element::U64).issue();
    }
    net.run();
    let collected = end(&net);
    let operations = Operations::of(&collected);
    let [operation] = of(&operations, Scope::Collective)[..] else {
        panic!("{operations:?}");
    };
    assert_eq!(operation.name, "Allreduce 0 of 64 B");
    let mut nodes: Vec<_> = operation.calls.iter().map(|call| call.at).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 1, 2]);
    for call in &operation.calls {
        assert_eq!(call.status, Status::Ok.code());
        assert!(call.ended.is_some_and(|ended| ended >= call.fetched));
    }
    // Up and down each edge of the tree.
    assert_eq!(operation.sends.len(), 4);
    assert_joined(operation);
    let arrows = qnic_watch::trace::write(&mut Vec::new(), &collected, &operations).unwrap();
    assert_eq!(arrows, 4);
}

#[test]
fn all_nodes_choose_the_same_collectives() {
    let (net, members, groups) = grouped();
    begin(&net, 3);
    for _ in 0..7 {
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(7, *group).issue();
        }
        net.run();
    }
    let operations = Operations::of(&end(&net));
    let chosen = of(&operations, Scope::Collective);
    let names: Vec<_> = chosen.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["Barrier 0", "Barrier 3", "Barrier 6"]);
    for operation in chosen {
        assert_eq!(operation.calls.len(), 3);
        assert_joined(operation);
    }
}

#[test]
fn joins_and_leaves_of_groups_show_and_what_they_do_to_others() {
    let net = net();
    let members = three(&net);
    begin(&net, 1);
    let groups = form(&net, &members);
    members[1].leave(9, groups[1]);
    net.run();
    members[0].barrier(10, groups[0]).run();
    let operations = Operations::of(&end(&net));
    let joins = of(&operations, Scope::Join);
    assert_eq!(joins.len(), 3);
    for join in joins {
        assert_eq!(join.name, "join a group at n0");
        assert_eq!((join.calls.len(), join.calls[0].status), (1, 0));
        assert_joined(join);
    }
    let [group] = of(&operations, Scope::Group)[..] else {
        panic!("{operations:?}");
    };
    assert_joined(group);
    let calls: Vec<_> = group
        .calls
        .iter()
        .map(|it| (&*it.name, it.status))
        .collect();
    let gone = Status::PeerGone.code();
    for call in [("leave the group", 0), ("Barrier 0", gone)] {
        assert!(calls.contains(&call), "{calls:?}");
    }
    assert_eq!(calls.len(), 2);
}

#[test]
fn imports_show_with_their_frames_and_refusals() {
    let net = net();
    let members = three(&net);
    members[1].export(9, 3, (0, 4096), Access::READ).unwrap();
    begin(&net, 1);
    for name in [3, 4] {
        members[0].import(1, members[1].port, name, 0).unwrap();
        net.run();
    }
    let operations = Operations::of(&end(&net));
    let imports = of(&operations, Scope::Import);
    let shown: Vec<_> = imports
        .iter()
        .map(|it| (&*it.name, it.calls[0].status, it.sends.len()))
        .collect();
    let missing = Status::NameNotFound.code();
    let expected = [("import 0x3 of n1", 0, 2), ("import 0x4 of n1", missing, 2)];
    assert_eq!(shown, expected);
    imports.into_iter().for_each(assert_joined);
}

#[test]
fn names_show_where_they_are_registered_spread_and_looked_up() {
    let net = net();
    let members = three(&net);
    begin(&net, 1);
    members[2].look_up(1, ("app", 4), 1_000);
    members[1].look_up(2, ("none", 4), 0);
    members[0].register_name(3, ("app", 4));
    net.run();
    net.settle();
    let operations = Operations::of(&end(&net));
    let mut names: Vec<_> = of(&operations, Scope::Name)
        .iter()
        .map(|it| (it.requester, &*it.name, it.calls[0].status))
        .collect();
    names.sort_unstable();
    let missing = Status::NameNotFound.code();
    let expected = [(0, "Register", 0), (1, "LookUp", missing), (2, "LookUp", 0)];
    assert_eq!(names, expected);
    let spread = of(&operations, Scope::Spread);
    let from_first = spread.iter().filter(|it| it.requester == 0);
    assert!(from_first.count() >= 2, "one for each other node");
    spread.into_iter().for_each(assert_joined);
}

#[test]
fn frames_of_a_collective_that_are_lost_show_when_they_go_again() {
    let wire = LossyWire {
        loss: 30,
        ..LossyWire::steady(1_000)
    };
    let net = Net::lossy(3, wire, 3);
    let members = three(&net);
    let groups = form(&net, &members);
    begin(&net, 1);
    for _ in 0..20 {
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(7, *group).issue();
        }
        net.run();
    }
    let operations = Operations::of(&end(&net));
    let collectives = of(&operations, Scope::Collective);
    assert_eq!(collectives.len(), 20);
    assert!(collectives.iter().any(|it| !it.marks.is_empty()));
    collectives.into_iter().for_each(assert_joined);
}

#[test]
fn an_import_of_nobody_fails_in_the_trace() {
    let net = net();
    let members = three(&net);
    begin(&net, 1);
    members[0].import(1, Port(99), 3, 0).unwrap();
    net.run();
    let operations = Operations::of(&end(&net));
    let import = of(&operations, Scope::Import)[0];
    assert_ne!(import.calls[0].status, Status::Ok.code());
}

#[test]
fn a_member_whose_pages_are_absent_waits_in_the_trace() {
    let (net, members, groups) = grouped();
    let members: Vec<_> = members.into_iter().map(Party::present).collect();
    members[1].evict(0);
    begin(&net, 1);
    for (member, group) in members.iter().zip(&groups) {
        let call = member.barrier(7, *group).bytes(0, 64);
        call.allreduce(Operator::Sum, Element::U64).issue();
    }
    net.run();
    let operations = Operations::of(&end(&net));
    let [operation] = of(&operations, Scope::Collective)[..] else {
        panic!("{operations:?}");
    };
    for call in &operation.calls {
        assert_eq!(call.status, Status::Ok.code());
        let [wait] = &call.waits[..] else {
            assert_ne!(call.at, 1, "{call:?}");
            assert!(call.waits.is_empty(), "{call:?}");
            continue;
        };
        assert_eq!(call.at, 1);
        let order = [Some(call.fetched), Some(wait.from), wait.to, call.ended];
        assert!(order.is_sorted() && wait.to.is_some(), "{call:?}");
    }
}

#[test]
fn a_call_of_a_group_that_is_unknown_shows_why_it_failed() {
    let (net, members, groups) = grouped();
    begin(&net, 1);
    members[0].barrier(7, groups[0] + 1).run();
    let operations = Operations::of(&end(&net));
    let [operation] = &operations.all[..] else {
        panic!("{operations:?}");
    };
    let [call] = &operation.calls[..] else {
        panic!("{operations:?}");
    };
    let unknown = Status::NoSuchGroup.code();
    assert_eq!((&*call.name, call.status), ("Barrier 0", unknown));
    assert!(call.ended.is_some() && operation.sends.is_empty());
}

#[test]
fn an_import_that_its_process_does_not_live_to_see_ends_with_it() {
    let net = net();
    let members = three(&net);
    begin(&net, 1);
    let (peer, wait_ms) = (members[1].port, 60_000);
    members[0].import(1, peer, 3, wait_ms).unwrap();
    net.run();
    members[0].end();
    net.run();
    let operations = Operations::of(&end(&net));
    let [import] = of(&operations, Scope::Import)[..] else {
        panic!("{operations:?}");
    };
    assert_eq!(import.calls[0].status, Status::Aborted.code());
    assert!(import.calls[0].ended.is_some());
    // The other node had nothing to answer yet.
    assert_eq!((import.sends.len(), import.frames.len()), (1, 1));
}
