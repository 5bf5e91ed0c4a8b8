//! Messages to all members of a group, and to some of them, which ordinary receives take (Q3, Q15).

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::multicast::{kept_bytes, MAX_RANKS};
use qnic_abi::Status;
use qnic_nic::testing::{scarce, scarce_nets, LossyWire, Net, Party, PAGE};
use qnic_nic::Limits;

use crate::party::*;

/// Handle, tag, immediate data, length and source of each message that was received.
pub(crate) type Got = (u64, u64, u64, u64, (u16, u16));

fn got(entries: &[CompletionEntry]) -> Vec<Got> {
    let got = |entry: &CompletionEntry| {
        assert_eq!(status(entry), Status::Ok, "{entry:?}");
        let source = (entry.node.get(), entry.port.get());
        let (tag, immediate) = (entry.tag.get(), entry.immediate.get());
        (
            entry.handle.get(),
            tag,
            immediate,
            entry.length.get(),
            source,
        )
    };
    entries.iter().map(got).collect()
}

/// No NIC keeps anything of a multicast.
#[track_caller]
pub(crate) fn assert_nothing_waits(net: &Net) {
    net.run();
    for node in &net.cluster().nodes {
        for budget in node.nic.budgets() {
            let ours = [
                "bytes_of_group",
                "multicasts_of_member",
                "group_frames_of_peer",
                "staged_bytes_of_process",
            ];
            let is_ours = ours.contains(&budget.name);
            assert!(!is_ours || budget.used == 0, "{budget:?}");
        }
    }
}

pub(crate) fn received(party: &Party) -> Vec<Got> {
    got(&party.completions_of(CompletionKind::Receive))
}

#[test]
fn receives_of_all_others_take_a_multicast_whatever_its_length() {
    for net in nets(4, 3) {
        let members = parties(&net, 4);
        let groups = form(&net, &members, 1);
        for (root, length) in [0, 1, 100, 121, PAGE, PAGE + 1, 64 << 10]
            .into_iter()
            .enumerate()
        {
            let bytes = members[root].fill(300, length, length + 1);
            for (rank, member) in members.iter().enumerate() {
                // Some wait for it, for others it waits.
                if rank % 2 == 0 && rank != root {
                    member.receive(4).tag(7).bytes(17, length).issue();
                }
            }
            let send = members[root].multicast(3, groups[root], 7);
            match length {
                0..=100 => send.short(&bytes).run(),
                _ => send.bytes(300, length as u32).run(),
            }
            assert_eq!(called(&members[root]), done(3), "{length}");
            for (rank, member) in members.iter().enumerate() {
                if rank % 2 == 1 && rank != root {
                    let from = member.receive(4).from(&members[root]);
                    from.tag(7).bytes(17, length).run();
                }
                if rank != root {
                    let expected = (4, 7, 1007, length, name(&members[root]));
                    assert_eq!(received(member), [expected], "rank {rank}, {length}");
                    assert!(member.holds(17, &bytes), "rank {rank}, {length}");
                }
            }
            assert_eq!(called(&members[root]), []);
        }
        assert_nothing_waits(&net);
    }
}

#[test]
fn only_the_members_that_are_named_get_it() {
    for net in nets(4, 3) {
        let members = parties(&net, 4);
        let groups = form(&net, &members, 1);
        for (handle, ranks) in (0..).zip([&[6u16][..], &[0, 3, 5], &[1, 0, 1], &[2]]) {
            let root = 2;
            members.iter().for_each(|member| {
                member.receive(9).tag(5).bytes(0, 40).issue();
            });
            let send = members[root]
                .multicast(handle, groups[root], 5)
                .ranks(ranks);
            match handle % 2 {
                0 => send.short(b"short").run(),
                _ => send.bytes(50, 40).run(),
            }
            assert_eq!(called(&members[root]), done(handle));
            for (rank, member) in members.iter().enumerate() {
                let is_named = ranks.contains(&(rank as u16)) && rank != root;
                assert_eq!(
                    received(member).len(),
                    usize::from(is_named),
                    "{rank} of {ranks:?}"
                );
                if !is_named {
                    member.cancel(9);
                    net.run();
                    assert_eq!(member.received(), [(9, Status::Cancelled)]);
                }
            }
        }
        assert_nothing_waits(&net);
    }
}

#[test]
fn each_member_gets_the_multicasts_of_a_source_in_order() {
    for net in nets(4, 6) {
        let members = parties(&net, 4);
        let groups = form(&net, &members, 1);
        let lengths = [3, 5000, 0, 100, 40_000, 64 << 10, 1, 30_000];
        let count = 30;
        for number in 0..count {
            for root in [0, 5] {
                let length = lengths[number as usize % lengths.len()];
                let send = members[root].multicast(number, groups[root], number);
                let send = send.untagged(2);
                send.bytes(number, length).issue();
                net.poll(members[root].node);
            }
        }
        let mut expected = Vec::new();
        for number in 0..count {
            expected.push(u64::from(lengths[number as usize % lengths.len()]));
        }
        for (rank, member) in members.iter().enumerate() {
            for (root, source) in [0, 5].into_iter().map(|root| (root, &members[root])) {
                if rank == root {
                    continue;
                }
                for handle in 0..count {
                    let receive = member.receive(handle).untagged().endpoint(2);
                    receive.from(source).bytes(0, 64 << 10).issue();
                    net.run();
                }
            }
            let calls = [0, 5].contains(&rank);
            let entries = member.completions();
            let of = |kind: CompletionKind| {
                let entries = entries.iter();
                let entries = entries.filter(move |entry| entry.kind == kind as u8);
                entries.copied().collect::<Vec<_>>()
            };
            let got = got(&of(CompletionKind::Receive));
            for root in [0, 5].into_iter().filter(|root| *root != rank) {
                let source = name(&members[root]);
                let lengths = got.iter().filter(|it| it.4 == source).map(|it| it.3);
                assert_eq!(lengths.collect::<Vec<_>>(), expected, "{rank} of {root}");
            }
            if calls && rank == 5 {
                let sent = of(CompletionKind::Collective);
                let handles: Vec<u64> = sent.iter().map(|entry| entry.handle.get()).collect();
                assert!(handles.is_sorted());
            }
        }
        net.run();
        assert_nothing_waits(&net);
    }
}

/// A member that receives nothing, and has no room, holds up those that send to it. Messages between
/// others, and other messages to it, go on; a receive that its letter waits for takes it.
#[test]
fn a_member_that_receives_nothing_holds_up_its_senders_alone() {
    for net in scarce_nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        let long = 20_000;
        let bytes = members[0].fill(0, u64::from(long), 7);
        members[4]
            .receive(1)
            .tag(1)
            .bytes(0, u64::from(long))
            .issue();
        members[0]
            .multicast(1, groups[0], 1)
            .ranks(&[3, 4])
            .bytes(0, long)
            .run();
        assert_eq!(received(&members[4]).len(), 1);
        assert_eq!(called(&members[0]), [], "rank 3 has not received it");
        // The window of rank 0 is not that of another one.
        members[4].receive(2).tag(2).bytes(0, 50).issue();
        members[1]
            .multicast(2, groups[1], 2)
            .ranks(&[4])
            .short(b"go")
            .run();
        assert_eq!(called(&members[1]), done(2));
        assert_eq!(received(&members[4]).len(), 1);
        // Neither does it hold up plain messages to rank 3, nor collectives.
        members[3].receive(3).tag(3).issue();
        members[1].send(3, &members[3]).tag(3).run();
        assert_eq!(members[1].sent(), [(3, Status::Ok)]);
        assert_eq!(received(&members[3]).len(), 1);
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(4, *group).issue();
        }
        net.run();
        for member in &members {
            assert_eq!(called(member), done(4));
        }
        members[3].receive(5).tag(1).bytes(9, u64::from(long)).run();
        assert_eq!(received(&members[3]).len(), 1);
        assert!(members[3].holds(9, &bytes));
        assert_eq!(called(&members[0]), done(1));
        assert_nothing_waits(&net);
    }
}

/// Letters wait for staging memory; when it is free, they are there for a probe, and for a receive of any
/// source.
#[test]
fn letters_are_staged_when_there_is_room_again() {
    for net in scarce_nets(2, 3) {
        let members = [net.party(0, 1), net.party(1, 1)];
        let groups = form(&net, &members, 1);
        for number in 0..8u64 {
            let send = members[0].multicast(number, groups[0], number);
            send.bytes(number * PAGE, PAGE as u32).run();
        }
        let sent = called(&members[0]).len();
        assert!((1..8).contains(&sent), "{sent} were staged");
        members[1].probe(1).tag(7).run();
        let probes = members[1].completions_of(CompletionKind::Probe);
        assert_eq!(status(&probes[0]), Status::NoMessage);
        for number in 0..7u64 {
            members[1].receive(number).tag(number).bytes(0, PAGE).run();
            assert_eq!(received(&members[1]).len(), 1, "{number}");
        }
        members[1].probe(1).tag(7).run();
        let probes = members[1].completions_of(CompletionKind::Probe);
        assert_eq!(status(&probes[0]), Status::Ok);
        assert_eq!(called(&members[0]).len(), 8 - sent);
        members[1].receive(9).bytes(0, PAGE).run();
        assert_eq!(received(&members[1]).len(), 1);
        assert_nothing_waits(&net);
    }
}

/// The memory for messages of one node is shared by all that receive them: where one process gives it
/// back, another one's letter has room.
#[test]
fn letters_are_staged_when_another_process_gives_memory_back() {
    let limits = Limits {
        staged_bytes_per_peer: 8_000,
        ..Limits::default()
    };
    let net = Net::new(2, 512, 8, &limits);
    let members = [(0, 1), (0, 2), (1, 1), (1, 2)].map(|(node, port)| net.party(node, port));
    let groups = form(&net, &members, 1);
    let length = 900;
    for number in 0..8 {
        let send = members[0].multicast(number, groups[0], 1).ranks(&[2]);
        send.bytes(0, length).run();
    }
    let sent = called(&members[0]).len();
    assert!((1..8).contains(&sent), "{sent} were staged");
    let send = members[1].multicast(9, groups[1], 2).ranks(&[3]);
    send.bytes(0, length).run();
    assert_eq!(called(&members[1]), [], "its node has no room");
    for number in 0..8 {
        let receive = members[2].receive(number).tag(1);
        receive.bytes(0, length.into()).run();
    }
    assert_eq!(received(&members[2]).len(), 8);
    assert_eq!(called(&members[0]).len(), 8 - sent);
    assert_eq!(called(&members[1]), done(9));
    members[3].receive(1).tag(2).bytes(0, length.into()).run();
    assert_eq!(received(&members[3]).len(), 1);
    assert_nothing_waits(&net);
}

/// A multicast has no number that others count, so one that is refused fails alone.
#[test]
fn a_multicast_that_is_refused_fails_alone() {
    for net in nets(2, 2) {
        let members = [net.party(0, 1), net.party(1, 1)];
        let groups = form(&net, &members, 1);
        let send = |handle| members[0].multicast(handle, groups[0], 1);
        let mut wrong_key = send(1).bytes(0, 500);
        wrong_key.command.local_key = 3.into();
        wrong_key.issue();
        members[0].multicast(2, 12345, 1).short(b"x").issue();
        send(3).ranks(&[2]).short(b"x").issue();
        send(4).bytes(63 * PAGE, 2 * PAGE as u32).issue();
        members[1].receive(5).bytes(0, 10).issue();
        send(5).short(b"good").run();
        let who = name(&members[0]);
        let refused = [
            (1, Status::BadKey, who),
            (2, Status::NoSuchGroup, who),
            (3, Status::Malformed, who),
            (4, Status::BadAddress, who),
            (5, Status::Ok, (0, 0)),
        ];
        let ends = called(&members[0]);
        assert_eq!(ends[..2], refused[..2]);
        assert_eq!((ends[2], ends[4]), (refused[2], refused[4]), "{ends:?}");
        assert!(ends[3].0 == 4 && ends[3].1 != Status::Ok, "{ends:?}");
        assert_eq!(received(&members[1]).len(), 1);
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(6, *group).issue();
        }
        net.run();
        assert!(members.iter().all(|member| called(member) == done(6)));
        assert_nothing_waits(&net);
    }
}

/// More of them than may be under way are refused, and those that are stay.
#[test]
fn more_multicasts_than_may_wait_are_refused() {
    let net = Net::new(2, 512, 8, &scarce());
    let members = [net.party(0, 1), net.party(1, 1)];
    let groups = form(&net, &members, 1);
    let most = u64::from(Limits::default().collectives);
    for handle in 0..=most {
        let send = members[0].multicast(handle, groups[0], handle);
        send.bytes(0, 8 << 10).issue();
        net.poll(0);
    }
    net.run();
    let refused = (most, Status::Exhausted, name(&members[0]));
    assert_eq!(called(&members[0]), [refused]);
    for handle in 0..most {
        members[1]
            .receive(handle)
            .tag(handle)
            .bytes(0, 8 << 10)
            .run();
        assert_eq!(received(&members[1]).len(), 1);
        assert_eq!(called(&members[0]), done(handle));
    }
    assert_nothing_waits(&net);
}

#[test]
fn the_end_of_a_group_fails_its_multicasts_that_were_not_taken() {
    for net in scarce_nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        let long = 20_000;
        members[0].multicast(1, groups[0], 1).bytes(0, long).run();
        members[3]
            .multicast(2, groups[3], 1)
            .ranks(&[1])
            .bytes(0, long)
            .run();
        assert_eq!(called(&members[0]), []);
        let gone = name(&members[4]);
        members[4].end();
        net.run();
        assert_eq!(called(&members[0]), [(1, Status::PeerGone, gone)]);
        assert_eq!(called(&members[3]), [(2, Status::PeerGone, gone)]);
        members[0].multicast(3, groups[0], 1).short(b"x").run();
        assert_eq!(called(&members[0]), [(3, Status::PeerGone, gone)]);
        // What was not taken is gone.
        members[1].receive(7).bytes(0, 50).run();
        assert_eq!(members[1].received(), []);
        assert_nothing_waits(&net);
    }
}

#[test]
fn pages_of_a_multicast_that_are_taken_away_come_back() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        let length = 60_000;
        let bytes = members[1].fill(5, length, 3);
        for member in &members {
            member.receive(1).tag(4).bytes(11, length).issue();
        }
        for page in 0..15 {
            members
                .iter()
                .for_each(|member| member.evict(page * PAGE + 5));
        }
        members[1]
            .multicast(2, groups[1], 4)
            .bytes(5, length as u32)
            .issue();
        for round in 0..100u64 {
            for member in &members {
                member.evict(round * 7 % 15 * PAGE + 5);
                net.poll(member.node);
            }
            net.advance(1000);
        }
        net.run();
        assert_eq!(called(&members[1]), done(2));
        for (rank, member) in members.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            assert_eq!(received(member).len(), 1, "{rank}");
            assert!(member.holds(11, &bytes), "{rank}");
        }
    }
}

/// A broadcast takes the depth of the tree: its time grows with the logarithm of the nodes (Q15).
#[test]
fn a_multicast_takes_the_depth_of_its_tree() {
    let delay = 100_000;
    for (nodes, depth) in [(2u16, 1), (4, 2), (16, 4), (64, 6)] {
        let net = Net::new(nodes, 256, 8, &Limits::default());
        net.cluster().set_lossy_wire(LossyWire::steady(delay), 1);
        let members: Vec<_> = (0..nodes).map(|node| net.party(node.into(), 1)).collect();
        let groups = form(&net, &members, 1);
        for member in &members[1..] {
            member.receive(1).tag(1).bytes(0, 64).issue();
        }
        net.run();
        members[0]
            .multicast(1, groups[0], 1)
            .short(b"to all")
            .issue();
        let mut waiting: Vec<_> = members[1..].iter().collect();
        let mut ways = 0;
        while !waiting.is_empty() && ways < 50 {
            // What was sent arrives, is sent on, and is taken.
            for _ in 0..4 {
                poll_all(&net, usize::from(nodes));
            }
            waiting.retain(|member| member.received().is_empty());
            net.advance(delay);
            ways += 1;
        }
        assert_eq!(ways, depth + 1, "{nodes} nodes");
    }
}

#[test]
fn the_longest_list_is_taken_with_the_longest_multicast_of_one_piece() {
    let net = Net::new(2, 512, 8, &Limits::default());
    let members = [net.party(0, 1), net.party(1, 1)];
    let groups = form(&net, &members, 1);
    let bytes = members[0].fill(0, u64::from(kept_bytes(2)), 5);
    let ranks = [1u16; MAX_RANKS];
    let send = members[0].multicast(1, groups[0], 1).ranks(&ranks);
    send.bytes(0, kept_bytes(2)).run();
    assert_eq!(called(&members[0]), done(1));
    members[1].receive(1).bytes(0, 64 << 10).run();
    assert_eq!(received(&members[1]).len(), 1);
    assert!(members[1].holds(0, &bytes));
}
