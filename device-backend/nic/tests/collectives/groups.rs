//! How groups form and how they end.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::collective::{Called, CollectiveCommand, Element, JoinGroupCommand, Operator};
use qnic_abi::command::CommandBody;
use qnic_abi::host_area::CompletionKind;
use qnic_abi::Status;
use qnic_nic::testing::{LossyWire, Net, Party, Posting, PAGE};
use qnic_nic::Limits;

use crate::party::*;

#[test]
fn a_group_forms_in_whatever_order_its_members_come() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        for (round, first) in (0..5).enumerate() {
            let size = members.len() as u32;
            for step in 0..members.len() {
                let rank = (first + step) % members.len();
                let place = (rank as u32, size);
                members[rank].join(7, &members[0], round as u64, place);
                let last = step + 1 == members.len();
                net.run();
                let came = members.iter().map(|member| member.completions().len());
                assert_eq!(came.sum::<usize>(), if last { 5 } else { 0 });
            }
        }
        // A process alone is a group, too.
        members[3].join(9, &members[3], 3, (0, 1));
        net.run();
        let group = members[3].completions()[0].immediate.get();
        members[3].barrier(1, group).run();
        assert_eq!(called(&members[3]), done(1));
    }
}

#[test]
fn a_member_that_dies_is_named_to_all_others() {
    for net in nets(3, 3) {
        for victim in 0..5 {
            let members = parties(&net, 3);
            let groups = form(&net, &members, 1);
            let who = name(&members[victim]);
            for (rank, member) in members.iter().enumerate() {
                if rank != victim {
                    member.barrier(4, groups[rank]).issue();
                }
            }
            net.run();
            members[victim].end();
            net.run();
            for (rank, member) in members.iter().enumerate() {
                if rank == victim {
                    continue;
                }
                assert_eq!(called(member), [(4, Status::PeerGone, who)]);
                // What comes after that fails at once, for the same reason.
                member.barrier(5, groups[rank]).run();
                assert_eq!(called(member), [(5, Status::PeerGone, who)]);
            }
            // The others form another group, and go on.
            let mut rest = members;
            rest.remove(victim);
            let groups = form(&net, &rest, 1);
            for (member, group) in rest.iter().zip(&groups) {
                member.barrier(6, *group).issue();
            }
            net.run();
            assert!(rest.iter().all(|member| called(member) == done(6)));
            rest.iter().for_each(Party::end);
            net.run();
            assert_nothing_is_left(&net);
        }
    }
}

#[test]
fn a_node_that_is_cut_off_is_named_within_the_peer_timeout() {
    let limits = Limits::default();
    for seed in 1..4 {
        for victim in 0..4u16 {
            let net = Net::lossy(4, LossyWire::rough(20), seed);
            let members: Vec<_> = (0..4).map(|node| net.party(node, 1)).collect();
            let groups = form(&net, &members, 1);
            for (rank, member) in members.iter().enumerate() {
                member.barrier(1, groups[rank]).run();
                assert!(rank < 3 || called(member) == done(1));
            }
            members.iter().for_each(|member| drop(member.completions()));
            net.cut(victim);
            let start = net.cluster().now;
            for (rank, member) in members.iter().enumerate() {
                member.barrier(2, groups[rank]).issue();
            }
            let mut ends = BTreeMap::new();
            while ends.len() < 4 {
                net.advance(10_000_000);
                poll_all(&net, 4);
                for (rank, member) in members.iter().enumerate() {
                    ends.extend(called(member).into_iter().map(|end| (rank, end)));
                }
                let passed = net.cluster().now.0 - start.0;
                assert!(passed < 2 * limits.peer_timeout, "{victim}: {ends:?}");
            }
            for (rank, (_, status, who)) in ends {
                assert_eq!(status, Status::PeerGone);
                assert!(
                    who.0 == victim || rank == usize::from(victim),
                    "{rank}: {who:?}"
                );
            }
        }
    }
}

/// No frame goes between the halves of a cluster. Each member of a group in both learns that a peer is gone; when the
/// halves are joined, all form another group.
#[test]
fn halves_that_are_split_learn_of_it_and_form_a_group_again() {
    const NODES: u16 = 12;
    let limits = Limits::default();
    for border in [1, NODES / 2] {
        let net = Net::lossy(NODES, LossyWire::rough(20), border.into());
        let members: Vec<_> = (0..NODES).map(|node| net.party(node.into(), 1)).collect();
        let groups = form(&net, &members, 1);
        net.cluster().border = Some(border);
        let start = net.cluster().now.0;
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(2, *group).issue();
        }
        let mut ends = BTreeMap::new();
        while ends.len() < members.len() {
            net.advance(10_000_000);
            poll_all(&net, NODES.into());
            for (rank, member) in members.iter().enumerate() {
                ends.extend(called(member).into_iter().map(|end| (rank, end)));
            }
            let passed = net.cluster().now.0 - start;
            assert!(passed < 2 * limits.peer_timeout, "{border}: {ends:?}");
        }
        assert!(ends.values().all(|end| end.1 == Status::PeerGone));
        net.cluster().border = None;
        let groups = form(&net, &members, 2);
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(3, *group).issue();
        }
        net.run();
        assert!(members.iter().all(|member| called(member) == done(3)));
    }
}

/// The home goes when some know that the group has started, and others do not yet.
#[test]
fn a_home_that_goes_while_its_group_starts_leaves_none_waiting() {
    let limits = Limits::default();
    for seed in 0..60 {
        let net = Net::lossy(4, LossyWire::rough(20), seed);
        let members: Vec<_> = (0..4).map(|node| net.party(node, 1)).collect();
        for (rank, member) in (0..).zip(&members) {
            member.join(1, &members[0], 7, (rank, 4));
        }
        let others = &members[1..];
        let (mut cut, mut waiting) = (None, BTreeSet::from([0, 1, 2]));
        while !waiting.is_empty() {
            for (rank, member) in others.iter().enumerate() {
                for entry in member.completions() {
                    let joins = entry.kind == CompletionKind::Join as u8;
                    if joins && status(&entry) == Status::Ok {
                        member.barrier(2, entry.immediate.get()).issue();
                        if cut.is_none() {
                            net.cut(0);
                            cut = Some(net.cluster().now.0);
                        }
                    } else {
                        assert!(waiting.remove(&rank));
                    }
                }
            }
            net.advance(if cut.is_none() { 10_000 } else { 10_000_000 });
            poll_all(&net, 4);
            let now = net.cluster().now.0;
            let passed = now - cut.unwrap_or(now);
            assert!(passed < 2 * limits.peer_timeout, "{seed}: {waiting:?}");
        }
    }
}

#[test]
fn a_nic_that_is_reset_is_named() {
    for net in nets(3, 3) {
        let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        let groups = form(&net, &members, 1);
        for rank in [0, 2] {
            members[rank].barrier(1, groups[rank]).run();
        }
        net.cluster().reset(1);
        net.cluster().start(1);
        net.run();
        for rank in [0, 2] {
            let ends = called(&members[rank]);
            assert_eq!(ends, [(1, Status::PeerGone, (1, 0))]);
        }
    }
}

#[test]
fn a_member_that_leaves_after_the_last_barrier_hurts_nobody() {
    for net in nets(4, 3) {
        let members = parties(&net, 4);
        let groups = form(&net, &members, 1);
        for (rank, member) in members.iter().enumerate() {
            let call = member.barrier(1, groups[rank]);
            let call = call.allreduce(Operator::Sum, Element::U32);
            call.bytes(0, 30 * PAGE).issue();
        }
        let mut left = [false; 7];
        let mut ends = vec![Vec::new(); 7];
        for _ in 0..1_000_000 {
            net.advance(1000);
            poll_all(&net, 4);
            for (rank, member) in members.iter().enumerate() {
                ends[rank].extend(member.completions());
                if !ends[rank].is_empty() && !left[rank] {
                    left[rank] = true;
                    member.leave(2, groups[rank]);
                }
            }
            if ends.iter().all(|ends| ends.len() == 2) {
                break;
            }
        }
        for ends in &ends {
            let statuses: Vec<_> = ends.iter().map(status).collect();
            assert_eq!(statuses, [Status::Ok, Status::Ok]);
        }
        net.run();
        assert_nothing_is_left(&net);
    }
}

#[test]
fn a_member_that_leaves_early_ends_the_group() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        members[0].barrier(1, groups[0]).run();
        members[3].leave(2, groups[3]);
        net.run();
        let who = name(&members[3]);
        assert_eq!(called(&members[0]), [(1, Status::PeerGone, who)]);
        assert_eq!(
            ends(&members[3], CompletionKind::Leave),
            [(2, Status::Ok, (0, 0))]
        );
        members[3].barrier(3, groups[3]).run();
        let gone = called(&members[3]);
        assert_eq!(gone[0].1, Status::NoSuchGroup);
        members[3].leave(4, groups[3]);
        net.run();
        let again = ends(&members[3], CompletionKind::Leave);
        assert_eq!(again[0].1, Status::NoSuchGroup);
        members.iter().for_each(Party::end);
        net.run();
        assert_nothing_is_left(&net);
    }
}

#[test]
fn a_member_that_calls_something_else_is_noticed_by_all() {
    for net in nets(3, 3) {
        for wrong in 0..3 {
            let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
            let groups = form(&net, &members, 1);
            for (rank, member) in members.iter().enumerate() {
                let call = member.barrier(1, groups[rank]);
                match rank == wrong {
                    true => call.broadcast(0).bytes(0, 8).issue(),
                    false => call.issue(),
                }
            }
            net.run();
            for member in &members {
                let ends = called(member);
                assert_eq!(ends.len(), 1);
                assert_eq!(ends[0].1, Status::Mismatch, "{ends:?}");
            }
            members.iter().for_each(Party::end);
        }
        net.run();
        assert_nothing_is_left(&net);
    }
}

/// Which differ in one thing each. All members are told of the same two calls.
#[test]
fn members_that_call_different_things_learn_what_each_has_called() {
    type Change = for<'a> fn(Posting<'a, CollectiveCommand>) -> Posting<'a, CollectiveCommand>;
    let changes: [Change; 6] = [
        |call| call.label(8),
        |call| call.allreduce(Operator::Sum, Element::U64),
        |call| call.reduce(0, Operator::Maximum, Element::U64),
        |call| call.reduce(1, Operator::Sum, Element::U64),
        |call| call.reduce(0, Operator::Sum, Element::I64),
        |call| call.bytes(0, 24),
    ];
    for net in nets(3, 3) {
        for (wrong, change) in changes.into_iter().enumerate() {
            let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
            let groups = form(&net, &members, 1);
            for (rank, member) in members.iter().enumerate() {
                let call = member.barrier(1, groups[rank]).label(7);
                let call = call.reduce(0, Operator::Sum, Element::U64).bytes(0, 16);
                match rank == wrong % 3 {
                    true => change(call).issue(),
                    false => call.issue(),
                }
            }
            net.run();
            let told = members.iter().map(|member| {
                let entries = member.completions_of(CompletionKind::Collective);
                assert_eq!((entries.len(), status(&entries[0])), (1, Status::Mismatch));
                called_by(&entries[0])
            });
            let told: Vec<_> = told.collect();
            assert!(told.iter().all(|other| *other == told[0]), "{told:?}");
            let [reason, others] = told[0].map(Option::unwrap);
            assert_ne!(reason, others);
            let is_right = |it: Called| (it.length, it.root, it.label) == (16, 0, 7);
            assert!(
                is_right(reason) || is_right(others),
                "{reason:?}, {others:?}"
            );
            members.iter().for_each(Party::end);
        }
        net.run();
        assert_nothing_is_left(&net);
    }
}

#[test]
fn the_time_that_a_caller_gives_is_kept() {
    for net in nets(3, 3) {
        let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        let groups = form(&net, &members, 1);
        members[1].barrier(1, groups[1]).timeout(20).issue();
        members[2].barrier(1, groups[2]).issue();
        let start = net.cluster().now;
        while net.cluster().now.0 - start.0 < 15_000_000 {
            net.advance(100_000);
            poll_all(&net, 3);
        }
        assert!(called(&members[1]).is_empty());
        net.advance(10_000_000);
        net.run();
        let missing = name(&members[0]);
        for member in &members[1..] {
            assert_eq!(called(member), [(1, Status::TimedOut, missing)]);
        }
        let who = name(&members[1]);
        let mut join = members[2].join_command(3, &members[1], 9, (1, 2));
        join.timeout_ms = 20.into();
        members[2].post(&join.descriptor());
        net.run();
        net.advance(21_000_000);
        net.run();
        let ends = ends(&members[2], CompletionKind::Join);
        assert_eq!(ends, [(3, Status::TimedOut, who)]);
        members.iter().for_each(Party::end);
        net.run();
        assert_nothing_is_left(&net);
    }
}

/// A call whose time is over names the member that has not called, wherever both are in the tree
/// (Q15): node 3 is below node 2, and nodes 1 and 2 are below node 0.
#[test]
fn a_member_that_is_missing_is_named_wherever_it_is() {
    let places = (0..4).flat_map(|caller| (0..4).map(move |missing| (caller, missing)));
    for (caller, missing) in places.filter(|(caller, missing)| caller != missing) {
        for net in nets(4, 2) {
            let members: Vec<_> = (0..4).map(|node| net.party(node, 1)).collect();
            let groups = form(&net, &members, 1);
            let others = (0..4).filter(|member| *member != missing);
            for member in others.clone() {
                let barrier = members[member].barrier(1, groups[member]);
                match member == caller {
                    true => barrier.timeout(20).issue(),
                    false => barrier.issue(),
                };
            }
            net.run();
            net.advance(21_000_000);
            net.run();
            let who = name(&members[missing]);
            for member in others {
                assert_eq!(called(&members[member]), [(1, Status::TimedOut, who)]);
            }
            members.iter().for_each(Party::end);
            net.run();
            assert_nothing_is_left(&net);
        }
    }
}

/// The NIC next to a node that does not answer names that node.
#[test]
fn a_node_that_does_not_answer_is_named_by_the_one_next_to_it() {
    for net in nets(4, 2) {
        let members: Vec<_> = (0..4).map(|node| net.party(node, 1)).collect();
        let groups = form(&net, &members, 1);
        members[1].barrier(1, groups[1]).timeout(20).issue();
        for member in [0, 2] {
            members[member].barrier(1, groups[member]).issue();
        }
        // Node 3 has no turn any more, for less time than is needed to give it up.
        let start = net.cluster().now;
        let limit = qnic_nic::Limits::default().peer_timeout / 2;
        while called(&members[1]).is_empty() {
            net.advance(1_000_000);
            poll_all(&net, 3);
            assert!(net.cluster().now.0 - start.0 < limit);
        }
    }
}

#[test]
fn strangers_and_wrong_numbers_are_refused_and_the_group_forms_without_them() {
    for net in nets(3, 3) {
        let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        let stranger = net.party(2, 2);
        let home = &members[0];
        type Wrong = fn(&mut JoinGroupCommand);
        let wrong: [Wrong; 4] = [
            |join| join.key = 5.into(),
            |join| join.size = 4.into(),
            |join| (join.size, join.rank) = (1.into(), 0.into()),
            |join| (join.key, join.rank) = (6.into(), 2.into()),
        ];
        for (handle, change) in (10..).zip(wrong) {
            let mut join = stranger.join_command(handle, home, 1, (1, 3));
            change(&mut join);
            stranger.post(&join.descriptor());
            net.run();
            let early = stranger.completions();
            for (rank, member) in (0..).zip(&members) {
                member.join(1, home, 1, (rank, 3));
            }
            net.run();
            let mut refused = early;
            refused.extend(stranger.completions());
            assert_eq!(refused.len(), 1);
            assert_eq!(status(&refused[0]), Status::GroupRefused);
            for member in &members {
                let entries = member.completions();
                assert_eq!(entries.len(), 1);
                assert_eq!(status(&entries[0]), Status::Ok);
                member.leave(2, entries[0].immediate.get());
            }
            net.run();
            members.iter().for_each(|member| drop(member.completions()));
        }
        // Twice is once too often.
        home.join(1, home, 2, (0, 2));
        home.join(2, home, 2, (0, 2));
        net.run();
        let ends = ends(home, CompletionKind::Join);
        assert_eq!(ends, [(2, Status::GroupRefused, name(home))]);
    }
}

/// Also not one that comes when the group has formed, and its node does not know of that yet.
#[test]
fn a_join_with_another_key_spoils_no_group_whenever_it_comes() {
    for polls in 0..40 {
        let net = Net::lossy(2, LossyWire::steady(1_000_000), 1);
        let (home, member) = (net.party(0, 1), net.party(1, 1));
        let stranger = net.party(1, 2);
        home.join(1, &home, 7, (0, 2));
        member.join(1, &home, 7, (1, 2));
        for _ in 0..polls {
            net.advance(250_000);
            poll_all(&net, 2);
        }
        let mut join = stranger.join_command(1, &home, 7, (1, 2));
        join.key = 5.into();
        stranger.post(&join.descriptor());
        net.run();
        for member in [&home, &member] {
            let ends = ends(member, CompletionKind::Join);
            assert_eq!(ends, done(1), "after {polls} polls");
        }
        let refused = ends(&stranger, CompletionKind::Join);
        assert!(refused.iter().all(|end| end.1 == Status::GroupRefused));
    }
}

/// Nor does one for a rank that another process has, on that node or another; the first join
/// has it. One that comes behind the group waits for the next of that name.
#[test]
fn a_second_join_for_a_rank_spoils_no_group_whenever_it_comes() {
    for (node, polls) in (1..3).flat_map(|node| (0..40).map(move |polls| (node, polls))) {
        let net = Net::lossy(3, LossyWire::steady(1_000_000), 1);
        let mut parties: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        for (rank, member) in (0..).zip(&parties) {
            member.join(1, &parties[0], 7, (rank, 3));
        }
        for _ in 0..polls {
            net.advance(250_000);
            poll_all(&net, 3);
        }
        parties.push(net.party(node, 2));
        parties[3].join(1, &parties[0], 7, (1, 3));
        net.run();
        let mut left = Vec::new();
        for (index, party) in parties.iter().enumerate() {
            let entries = party.completions_of(CompletionKind::Join);
            match entries.first().map(status) {
                Some(Status::Ok) => party.barrier(2, entries[0].immediate.get()).issue(),
                other => left.push((index, other)),
            }
        }
        net.run();
        let called = parties.iter().filter(|party| called(party) == done(2));
        assert_eq!(called.count(), 3, "node {node}, {polls} polls: {left:?}");
        let [(index, why)] = left[..] else {
            panic!("{left:?}")
        };
        assert!([1, 3].contains(&index) && matches!(why, None | Some(Status::GroupRefused)));
    }
}

#[test]
fn a_join_that_is_taken_back_stays_nowhere_whatever_overtakes_it() {
    for seed in 0..10 {
        let net = Net::lossy(2, LossyWire::rough(200), seed);
        let members = [net.party(0, 1), net.party(1, 1)];
        let groups = form(&net, &members, 1);
        members[1].leave(1, groups[1]);
        members[0].leave(1, groups[0]);
        net.run();
        members.iter().for_each(|member| drop(member.completions()));
        for name in 2..22 {
            // The home does not come.
            let mut join = members[1].join_command(name, &members[0], name, (1, 2));
            join.timeout_ms = 1.into();
            members[1].post(&join.descriptor());
            poll_all(&net, 2);
            net.advance(1_000_000);
            poll_all(&net, 2);
        }
        net.settle();
        let ends = ends(&members[1], CompletionKind::Join);
        assert_eq!(ends.len(), 20);
        assert!(ends.iter().all(|end| end.1 == Status::TimedOut));
        assert_nothing_is_left(&net);
    }
}

#[test]
fn a_segment_that_is_taken_back_ends_the_calls_that_use_it() {
    for net in nets(2, 3) {
        let members = [net.party(0, 1), net.party(1, 1)];
        let groups = form(&net, &members, 1);
        let call = members[0].barrier(1, groups[0]).broadcast(1);
        call.bytes(0, 8).run();
        assert_eq!(members[0].unexport(&members[0]), Status::Ok);
        net.run();
        let who = name(&members[0]);
        assert_eq!(called(&members[0]), [(1, Status::Aborted, who)]);
        members[1].barrier(1, groups[1]).run();
        assert_eq!(called(&members[1]), [(1, Status::Aborted, who)]);
    }
}
