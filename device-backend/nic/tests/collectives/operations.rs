//! What members get of a collective, and what it costs.

use std::collections::BTreeMap;

use qnic_abi::collective::{CollectiveCommand, Element, Operator};
use qnic_abi::{NodeId, Status};
use qnic_nic::testing::{LossyWire, Net, PAGE};
use qnic_nic::Limits;

use crate::party::*;

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        for last in 0..members.len() {
            for (rank, member) in members.iter().enumerate() {
                if rank != last {
                    member.barrier(5, groups[rank]).run();
                }
            }
            assert!(members.iter().all(|member| called(member).is_empty()));
            members[last].barrier(5, groups[last]).run();
            assert!(members.iter().all(|member| called(member) == done(5)));
        }
    }
}

#[test]
fn all_get_the_sum_of_what_all_have_whatever_its_length() {
    for net in nets(4, 3) {
        let members = parties(&net, 4);
        let groups = form(&net, &members, 1);
        for length in [8, 16, PAGE - 8, PAGE, PAGE + 8, 40 * PAGE + 24] {
            let mut expected = vec![0u64; length as usize / 8];
            for (rank, member) in members.iter().enumerate() {
                let bytes = member.fill(40 + rank as u64, length, rank as u64 + length);
                for (sum, word) in expected.iter_mut().zip(bytes.chunks_exact(8)) {
                    *sum = sum.wrapping_add(u64::from_le_bytes(word.try_into().unwrap()));
                }
            }
            for (rank, member) in members.iter().enumerate() {
                let call = member.barrier(3, groups[rank]);
                let call = call.allreduce(Operator::Sum, Element::U64);
                call.bytes(40 + rank as u64, length).issue();
            }
            net.run();
            let expected: Vec<u8> = expected
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            for (rank, member) in members.iter().enumerate() {
                assert_eq!(called(member), done(3), "{length}");
                assert!(
                    member.holds(40 + rank as u64, &expected),
                    "rank {rank}, {length}"
                );
            }
        }
    }
}

#[test]
fn a_root_gives_to_all_or_gets_from_all_and_no_other_memory_changes() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        let length = 5 * PAGE + 8;
        for root in 0..members.len() {
            let fills = (0..).zip(&members);
            let before: Vec<_> = fills
                .map(|(seed, member)| member.fill(9, length, seed))
                .collect();
            for (rank, member) in members.iter().enumerate() {
                let call = member.barrier(1, groups[rank]);
                let call = call.reduce(root as u32, Operator::Maximum, Element::I32);
                call.bytes(9, length).issue();
            }
            net.run();
            let word =
                |bytes: &[u8], at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let greatest = |at: usize| before.iter().map(|bytes| word(bytes, at)).max().unwrap();
            let expected = (0..length as usize).step_by(4).map(greatest);
            let expected: Vec<u8> = expected.flat_map(i32::to_le_bytes).collect();
            for (rank, member) in members.iter().enumerate() {
                assert_eq!(called(member), done(1));
                let holds = if rank == root {
                    &expected
                } else {
                    &before[rank]
                };
                assert!(member.holds(9, holds), "rank {rank} of root {root}");
            }
            for (rank, member) in members.iter().enumerate() {
                let call = member.barrier(2, groups[rank]).broadcast(root as u32);
                call.bytes(9, length).issue();
            }
            net.run();
            for member in &members {
                assert_eq!(called(member), done(2));
                assert!(member.holds(9, &expected));
            }
        }
    }
}

#[test]
fn floats_are_the_same_at_every_member_and_in_every_run() {
    let run = |net: Net| {
        let members = parties(&net, 4);
        let groups = form(&net, &members, 1);
        let float = |rank: usize| 1.0 / (rank as f64 + 3.0) * 10f64.powi(rank as i32 * 3);
        for (rank, member) in members.iter().enumerate() {
            member.store(0, &float(rank).to_le_bytes());
            let call = member.barrier(1, groups[rank]);
            call.allreduce(Operator::Sum, Element::F64)
                .bytes(0, 8)
                .issue();
        }
        net.run();
        let results = members.iter().map(|member| member.bytes(0, 8));
        let mut results: Vec<_> = results.collect();
        results.dedup();
        assert_eq!(results.len(), 1, "members differ");
        results.remove(0)
    };
    let mut results: Vec<_> = nets(4, 3).map(run).collect();
    results.dedup();
    assert_eq!(results.len(), 1, "runs differ");
}

#[test]
fn many_collectives_of_several_groups_are_under_way_at_once() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        let (all, backwards) = (form(&net, &members, 1), {
            // The same processes in another order, and another home.
            let size = members.len() as u32;
            for (rank, member) in (0..).zip(members.iter().rev()) {
                member.join(1, members.last().unwrap(), 1, (rank, size));
            }
            net.run();
            let joined = members
                .iter()
                .map(|member| member.completions()[0].immediate.get());
            joined.collect::<Vec<u64>>()
        });
        for (rank, member) in members.iter().enumerate() {
            for number in 0..20u64 {
                let value = number * 100 + rank as u64;
                member.store(number * 16, &value.to_le_bytes());
                member.store(number * 16 + 8, &value.to_le_bytes());
                let call = member.barrier(number, all[rank]);
                let call = call.allreduce(Operator::Sum, Element::U64);
                call.bytes(number * 16, 8).issue();
                let call = member.barrier(100 + number, backwards[rank]);
                let call = call.allreduce(Operator::Maximum, Element::U64);
                call.bytes(number * 16 + 8, 8).issue();
            }
        }
        net.run();
        for member in &members {
            let ends = called(member);
            assert_eq!(ends.len(), 40);
            assert!(ends.iter().all(|end| end.1 == Status::Ok));
            for number in 0..20u64 {
                let (sum, most) = (number * 500 + 10, number * 100 + 4);
                assert!(member.holds(number * 16, &sum.to_le_bytes()));
                assert!(member.holds(number * 16 + 8, &most.to_le_bytes()));
            }
        }
    }
}

#[test]
fn pages_that_are_taken_away_come_back() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        let length = 20 * PAGE;
        let values: Vec<_> = (0..)
            .zip(&members)
            .map(|(seed, it)| it.fill(5, length, seed))
            .collect();
        for (rank, member) in members.iter().enumerate() {
            let call = member.barrier(1, groups[rank]);
            let call = call.allreduce(Operator::Xor, Element::U64);
            call.bytes(5, length).issue();
        }
        for round in 0..200u64 {
            for member in &members {
                member.evict(round * 7 % 20 * PAGE + 5);
                net.poll(member.node);
            }
            net.advance(1000);
        }
        net.run();
        let xor = |at: usize| values.iter().fold(0, |all, bytes| all ^ bytes[at]);
        let expected: Vec<u8> = (0..length as usize).map(xor).collect();
        for member in &members {
            assert_eq!(called(member), done(1));
            assert!(member.holds(5, &expected));
        }
    }
}

/// What may be wrong with a call, and how it fails.
type Wrong = (fn(&mut CollectiveCommand), Status);

const WRONG: [Wrong; 4] = [
    (|call| call.local_key = 3.into(), Status::BadKey),
    (|call| call.local_segment = 60.into(), Status::NoSuchSegment),
    (|call| call.length = (1 << 30).into(), Status::BadAddress),
    (|call| call.root = 2.into(), Status::Malformed),
];

/// A call that is refused takes its number with it: the next one of its member meets none of another
/// number, as the group ends at all members for that reason.
#[test]
fn a_call_that_is_refused_ends_the_group_at_all_members() {
    for net in nets(2, 3) {
        let members = [net.party(0, 1), net.party(1, 1)];
        for (refused, (name_of_group, (change, status))) in
            [0, 1, 0, 1].into_iter().zip((1..).zip(WRONG))
        {
            let groups = form(&net, &members, name_of_group);
            let who = name(&members[refused]);
            let call = |rank: usize, handle| {
                let call = members[rank].barrier(handle, groups[rank]);
                call.broadcast(0).bytes(0, 64)
            };
            call(0, 1).issue();
            call(1, 1).run();
            assert!(members.iter().all(|member| called(member) == done(1)));
            let mut wrong = call(refused, 2);
            change(&mut wrong.command);
            wrong.issue();
            call(refused, 3).issue();
            call(1 - refused, 2).run();
            let failed = |handle| (handle, status, who);
            assert_eq!(called(&members[refused]), [failed(2), failed(3)]);
            assert_eq!(called(&members[1 - refused]), [failed(2)]);
            call(1 - refused, 3).run();
            assert_eq!(called(&members[1 - refused]), [failed(3)]);
            members[0].leave(9, groups[0]);
            members[1].leave(9, groups[1]);
            net.run();
            members.iter().for_each(|member| drop(member.completions()));
        }
        // A name of no group of the process ends none.
        let groups = form(&net, &members, 9);
        for wrong in [12345, groups[1] + 77] {
            members[0].barrier(1, wrong).run();
            let ends = called(&members[0]);
            assert_eq!(ends, [(1, Status::NoSuchGroup, name(&members[0]))]);
        }
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(2, *group).issue();
        }
        net.run();
        assert!(members.iter().all(|member| called(member) == done(2)));
    }
}

/// One call more than may be under way is refused as well, and so ends the group; what could not
/// be complete fails at both members, and no sum is wrong.
#[test]
fn a_call_for_which_there_is_no_room_ends_the_group_at_all_members() {
    for net in nets(2, 3) {
        let members = [net.party(0, 1), net.party(1, 1)];
        let groups = form(&net, &members, 1);
        let call = |rank: usize, handle| {
            let call = members[rank].barrier(handle, groups[rank]);
            let call = call.allreduce(Operator::Sum, Element::U64);
            call.bytes(8 * handle, 8)
        };
        let most = u64::from(Limits::default().collectives);
        for handle in 0..most {
            call(0, handle).issue();
            net.poll(0);
        }
        assert_eq!(called(&members[0]), []);
        // Two more: the first is refused, and the second would meet an earlier one of the other.
        for handle in [most, most + 1] {
            call(0, handle).issue();
            net.poll(0);
        }
        for handle in 0..4 {
            call(1, handle).run();
        }
        let (who, status) = (name(&members[0]), Status::Exhausted);
        let ends = called(&members[0]);
        assert_eq!(ends.len() as u64, most + 2);
        assert!(ends.iter().all(|end| (end.1, end.2) == (status, who)));
        let ends = called(&members[1]);
        assert_eq!(ends.len(), 4);
        assert!(ends.iter().all(|end| (end.1, end.2) == (status, who)));
    }
}

/// A malformed call stops the queue of its process; the group ends with the reset of the queue.
#[test]
fn a_malformed_call_takes_no_part_in_another_one() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let members = [net.party(0, 1), net.party(1, 1)];
    let groups = form(&net, &members, 1);
    let mut wrong = members[0].barrier(1, groups[0]);
    wrong.command.operator = 1;
    wrong.issue();
    members[0].barrier(2, groups[0]).issue();
    members[1].barrier(1, groups[1]).run();
    assert_eq!(called(&members[1]), [], "nothing behind it is read");
    assert_eq!(members[0].reset_queue(), Status::Ok);
    net.run();
    let who = name(&members[0]);
    assert_eq!(called(&members[1]), [(1, Status::PeerGone, who)]);
}

#[test]
fn more_groups_than_a_process_may_have_are_refused() {
    let net = Net::new(1, 1024, 8, &Limits::default());
    let member = net.party(0, 1);
    let groups = u64::from(Limits::default().groups);
    for name in 0..98 {
        member.join(name, &member, name, (0, 1));
        net.run();
    }
    let joined = member.completions();
    let exhausted = joined
        .iter()
        .filter(|entry| status(entry) == Status::Exhausted);
    assert_eq!(exhausted.count() as u64, 98 - groups);
}

/// Calls that are complete do not count, whatever is under way in front of them.
#[test]
fn as_many_calls_as_may_be_can_wait_behind_a_long_one() {
    let limits = Limits {
        collectives: 8,
        ..Limits::default()
    };
    let net = Net::new(2, 1024, 8, &limits);
    let members = [net.party(0, 1), net.party(1, 1)];
    let groups = form(&net, &members, 1);
    for (member, group) in members.iter().zip(&groups) {
        let call = member.barrier(0, *group);
        let call = call.allreduce(Operator::Sum, Element::U32);
        call.bytes(0, 40 * PAGE).issue();
        for handle in 1..4 {
            member.barrier(handle, *group).issue();
        }
    }
    let mut short = [0; 2];
    while short != [3; 2] {
        poll_all(&net, 2);
        for (count, member) in short.iter_mut().zip(&members) {
            let ends = called(member);
            assert!(ends.iter().all(|end| (1..4).contains(&end.0)), "{ends:?}");
            *count += ends.len();
        }
    }
    // The long one and seven more.
    for (member, group) in members.iter().zip(&groups) {
        (4..11).for_each(|handle| member.barrier(handle, *group).issue());
    }
    net.run();
    for member in &members {
        let ends = called(member);
        assert!(ends.iter().all(|end| end.1 == Status::Ok), "{ends:?}");
        assert_eq!(ends.len(), 8);
    }
}

/// Virtual time of one barrier over so many nodes, one way of a frame taking a millisecond.
fn barrier_time(nodes: u16, routes: impl Fn(u16) -> BTreeMap<NodeId, NodeId>) -> f64 {
    let delay = 1_000_000;
    let net = Net::routed(nodes, LossyWire::steady(delay), routes);
    let members: Vec<_> = (0..usize::from(nodes))
        .map(|node| net.party(node, 1))
        .collect();
    let groups = form(&net, &members, 1);
    let barrier = |handle| {
        let start = net.cluster().now.0;
        for (rank, member) in members.iter().enumerate() {
            member.barrier(handle, groups[rank]).issue();
        }
        let mut left = members.len();
        while left > 0 {
            net.advance(delay / 20);
            poll_all(&net, nodes.into());
            left -= members
                .iter()
                .map(|member| called(member).len())
                .sum::<usize>();
        }
        (net.cluster().now.0 - start) as f64 / delay as f64
    };
    barrier(1);
    barrier(2)
}

/// The time of a barrier grows as the depth of the tree: up and down, a frame's way for each
/// level (Q15).
#[test]
fn a_barrier_takes_twice_the_depth_of_its_tree() {
    let mesh = |_| BTreeMap::new();
    for (nodes, depth) in [(2, 1.0), (4, 2.0), (8, 3.0), (16, 4.0), (32, 5.0)] {
        let ways = barrier_time(nodes, mesh);
        assert!(
            (2.0 * depth..2.0 * depth + 1.0).contains(&ways),
            "{nodes}: {ways}"
        );
    }
    // A chain, as routes on a line are: as deep as it is long.
    let line = |home: u16| {
        let before = |node: u16| if node > home { node - 1 } else { node + 1 };
        let others = (0..8).filter(move |node| *node != home);
        others
            .map(|node| (NodeId(node), NodeId(before(node))))
            .collect()
    };
    let ways = barrier_time(8, line);
    assert!((14.0..15.5).contains(&ways), "{ways}");
}
