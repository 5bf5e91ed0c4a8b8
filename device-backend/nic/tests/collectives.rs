//! Groups and collectives (Q14, Q15, N26; docs/collectives.md): a story for each rule.

use std::collections::BTreeMap;

use qnic_abi::collective::{Element, Operator, MAX_TIMEOUT_MS};
use qnic_abi::command::CommandBody;
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::{NodeId, Status};
use qnic_nic::testing::{LossyWire, Net, Party, PAGE};
use qnic_nic::Limits;

fn status(entry: &CompletionEntry) -> Status {
    Status::try_from(entry.status.get()).expect("a known status")
}

/// Handle, status, and who is the reason.
type End = (u64, Status, (u16, u16));

/// The completions of a kind that have come.
#[track_caller]
fn ends(party: &Party, kind: CompletionKind) -> Vec<End> {
    let entries = party.completions();
    assert!(
        entries.iter().all(|entry| entry.kind == kind as u8),
        "{entries:?}"
    );
    let end = |entry: &CompletionEntry| {
        let who = (entry.node.get(), entry.port.get());
        (entry.handle.get(), status(entry), who)
    };
    entries.iter().map(end).collect()
}

#[track_caller]
fn called(party: &Party) -> Vec<End> {
    ends(party, CompletionKind::Collective)
}

/// A call that has ended well.
fn done(handle: u64) -> Vec<End> {
    vec![(handle, Status::Ok, (0, 0))]
}

fn name(party: &Party) -> (u16, u16) {
    (party.node as u16, party.port.0)
}

/// The wires that stories run on: lossless, and rough ones.
fn nets(nodes: u16) -> impl Iterator<Item = Net> {
    let lossless = move || Net::new(nodes, 1024, 8, &Limits::default());
    let rough = move |seed| Net::lossy(nodes, LossyWire::rough(100), seed);
    std::iter::once(lossless()).chain((1..4).map(rough))
}

/// Two processes on each node but the last, which has one.
fn parties(net: &Net, nodes: usize) -> Vec<Party> {
    let places = (0..nodes).flat_map(|node| [(node, 1), (node, 2)]);
    let mut places: Vec<_> = places.collect();
    places.pop();
    let party = |(node, vni): &(usize, u16)| net.party(*node, *vni);
    places.iter().map(party).collect()
}

/// All of them form a group, the first at home; returns what each calls it.
#[track_caller]
fn form(net: &Net, members: &[Party], group: u64) -> Vec<u64> {
    let size = members.len() as u32;
    for (rank, member) in (0..).zip(members) {
        member.join(1, &members[0], group, (rank, size));
    }
    net.run();
    let joined = members.iter().map(|member| {
        let entries = member.completions();
        let entry = entries.first().expect("a completion");
        assert_eq!((entries.len(), status(entry)), (1, Status::Ok));
        assert_eq!(entry.kind, CompletionKind::Join as u8);
        assert_eq!(entry.length.get(), u64::from(size));
        entry.immediate.get()
    });
    joined.collect()
}

/// Polls so many NICs once.
fn poll_all(net: &Net, nodes: usize) {
    for node in 0..nodes {
        net.poll(node);
    }
}

#[track_caller]
fn assert_nothing_is_left(net: &Net) {
    let cluster = net.cluster();
    for node in &cluster.nodes {
        for budget in node.nic.budgets() {
            let ours = [
                "groups_of_process",
                "joins_of_peer",
                "bytes_of_group",
                "collectives_of_member",
                "group_frames_of_peer",
            ];
            assert!(
                !ours.contains(&budget.name) || budget.used == 0,
                "{budget:?}"
            );
        }
        assert!(node.driver.all_unlocked(&node.host));
    }
}

#[test]
fn a_group_forms_in_whatever_order_its_members_come() {
    for net in nets(3) {
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
        // Who is alone is a group, too.
        members[3].join(9, &members[3], 3, (0, 1));
        net.run();
        let group = members[3].completions()[0].immediate.get();
        members[3].barrier(1, group).run();
        assert_eq!(called(&members[3]), done(1));
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    for net in nets(3) {
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
    for net in nets(4) {
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
    for net in nets(3) {
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
    let mut results: Vec<_> = nets(4).map(run).collect();
    results.dedup();
    assert_eq!(results.len(), 1, "runs differ");
}

#[test]
fn many_collectives_of_several_groups_are_under_way_at_once() {
    for net in nets(3) {
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
    for net in nets(3) {
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

#[test]
fn a_member_that_dies_is_named_to_all_others() {
    for net in nets(3) {
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

#[test]
fn a_nic_that_is_reset_is_named() {
    for net in nets(3) {
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
fn who_leaves_after_the_last_barrier_hurts_nobody() {
    for net in nets(4) {
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
fn who_leaves_early_ends_the_group() {
    for net in nets(3) {
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
    for net in nets(3) {
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

#[test]
fn the_time_that_a_caller_gives_is_kept() {
    for net in nets(3) {
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
        let who = name(&members[1]);
        for member in &members[1..] {
            assert_eq!(called(member), [(1, Status::TimedOut, who)]);
        }
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

#[test]
fn strangers_and_wrong_numbers_are_refused_and_the_group_forms_without_them() {
    for net in nets(3) {
        let members: Vec<_> = (0..3).map(|node| net.party(node, 1)).collect();
        let stranger = net.party(2, 2);
        let home = &members[0];
        type Wrong = fn(&mut qnic_abi::collective::JoinGroupCommand);
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

#[test]
fn what_is_wrong_in_a_call_ends_it_and_no_other() {
    let net = Net::new(2, 1024, 8, &Limits::default());
    let members = [net.party(0, 1), net.party(1, 1)];
    let groups = form(&net, &members, 1);
    let member = &members[0];
    let call = || member.barrier(1, groups[0]).broadcast(0).bytes(0, 64);
    let fails = |call: qnic_nic::testing::Calling<'_>, expected| {
        call.run();
        assert_eq!(called(member), [(1, expected, name(member))]);
    };
    let mut wrong = call();
    wrong.command.local_key = 3.into();
    fails(wrong, Status::BadKey);
    let mut wrong = call();
    wrong.command.length = (1 << 30).into();
    fails(wrong, Status::BadAddress);
    fails(call().broadcast(2), Status::Malformed);
    fails(member.barrier(1, 12345), Status::NoSuchGroup);
    // The name of the other one's membership is not its own.
    fails(member.barrier(1, groups[1] + 77), Status::NoSuchGroup);
    // None of that took part: the next one is the first.
    for (member, group) in members.iter().zip(&groups) {
        member.barrier(2, *group).issue();
    }
    net.run();
    assert!(members.iter().all(|member| called(member) == done(2)));
    // More than may be under way.
    let most = u64::from(Limits::default().collectives);
    for number in 0..=most {
        member.barrier(number, groups[0]).run();
    }
    assert_eq!(called(member), [(most, Status::Exhausted, name(member))]);
    let join = member.join_command(5, member, 1, (0, 1));
    assert!(join.timeout_ms.get() <= MAX_TIMEOUT_MS);
    for name in 2..100 {
        member.join(name, member, name, (0, 1));
        net.run();
    }
    let joined = member.completions();
    let exhausted = joined
        .iter()
        .filter(|entry| status(entry) == Status::Exhausted);
    let groups = Limits::default().groups as usize;
    assert_eq!(exhausted.count(), 98 - (groups - 1));
}

#[test]
fn a_segment_that_is_taken_back_ends_the_calls_that_use_it() {
    for net in nets(2) {
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
