//! Multicasts that are longer than what a NIC keeps of a source: they come piece by piece (Q3, Q15).

use qnic_abi::host_area::CompletionKind;
use qnic_abi::multicast::{kept_bytes, piece_bytes};
use qnic_abi::Status;
use qnic_nic::testing::{nets, scarce, scarce_nets, status, LossyWire, Net, Party, PAGE};
use qnic_nic::Limits;

use crate::multicasts::{assert_nothing_waits, received};
use crate::party::*;

/// A multicast of several pieces, and where it is received.
const LONG: u64 = 100_001;
const THERE: u64 = 120_013;

/// Room for a few small messages: nothing of this length is staged.
fn narrow() -> Limits {
    Limits {
        staged_bytes: 16_000,
        staged_bytes_per_peer: 16_000,
        ..Limits::default()
    }
}

fn ready(net: &Net, nodes: usize) -> (Vec<Party>, Vec<u64>) {
    assert!(LONG > u64::from(kept_bytes(2)));
    let members = parties(net, nodes);
    let groups = form(net, &members, 1);
    (members, groups)
}

/// Whether there is room for it, a receive waits for it, or comes later, it has the right bytes.
#[test]
fn a_long_multicast_arrives_wherever_it_is_received() {
    for staged in [true, false] {
        let limits = if staged { Limits::default() } else { narrow() };
        let net = Net::new(4, 512, 8, &limits);
        let (members, groups) = ready(&net, 4);
        for (root, handle) in (0..members.len()).zip(1..) {
            let bytes = members[root].fill(3, LONG, handle);
            for (rank, member) in members.iter().enumerate() {
                if rank % 2 == 0 && rank != root {
                    member.receive(4).tag(7).bytes(THERE, LONG).issue();
                }
            }
            let send = members[root].multicast(handle, groups[root], 7);
            send.bytes(3, LONG as u32).run();
            if staged {
                assert_eq!(called(&members[root]), done(handle));
            } else {
                assert_eq!(called(&members[root]), []);
            }
            for (rank, member) in members.iter().enumerate() {
                if rank % 2 == 1 && rank != root {
                    member.receive(4).tag(7).bytes(THERE, LONG).issue();
                }
            }
            net.run();
            for (rank, member) in members.iter().enumerate() {
                if rank != root {
                    let expected = (4, 7, 1007, LONG, name(&members[root]));
                    assert_eq!(received(member), [expected], "rank {rank} of {root}");
                    assert!(member.holds(THERE, &bytes), "rank {rank} of {root}");
                }
            }
            if !staged {
                assert_eq!(called(&members[root]), done(handle));
            }
        }
        assert_nothing_waits(&net);
    }
}

/// On any wire, with pages that are taken away all the time, to some members, and with short ones in
/// between, which stay behind it.
#[test]
fn long_and_short_ones_keep_their_order_on_bad_wires_and_absent_pages() {
    for net in nets(3, 3) {
        let (members, groups) = ready(&net, 3);
        let bytes = members[1].fill(0, LONG, 3);
        let lengths = [50, LONG, 0, LONG, 7000];
        for (handle, length) in (1..).zip(lengths) {
            for member in &members {
                let receive = member.receive(handle).tag(handle);
                receive.bytes(THERE, length).issue();
            }
        }
        for (handle, length) in (1..).zip(lengths) {
            let send = members[1].multicast(handle, groups[1], handle);
            send.ranks(&[0, 3, 4]).bytes(0, length as u32).issue();
        }
        for round in 0..300u64 {
            for member in &members {
                member.evict(round * 7 % 60 * PAGE);
                net.poll(member.node);
            }
            net.advance(1000);
        }
        net.run();
        assert_eq!(called(&members[1]).len(), lengths.len());
        for rank in [0, 3, 4] {
            let got = received(&members[rank]);
            let got: Vec<_> = got.iter().map(|it| (it.0, it.3)).collect();
            let expected: Vec<_> = (1..).zip(lengths).collect();
            assert_eq!(got, expected, "rank {rank}");
            assert!(members[rank].holds(THERE + 7000, &bytes[7000..]));
        }
        assert_nothing_waits(&net);
    }
}

/// What comes behind a part that was lost is kept, and not sent again: losses cost round trips, and not a
/// timer for each part. Time is that of the simulation.
#[test]
fn what_comes_behind_a_lost_part_is_kept() {
    let wire = LossyWire {
        loss: 50,
        ..LossyWire::steady(25_000)
    };
    for seed in 0..4 {
        let net = Net::lossy(3, wire.clone(), seed);
        let (members, groups) = ready(&net, 3);
        let bytes = members[0].fill(0, LONG, seed);
        for handle in 1..=40 {
            for member in &members[1..] {
                let receive = member.receive(handle).tag(handle);
                receive.bytes(THERE, LONG).issue();
            }
            let send = members[0].multicast(handle, groups[0], handle);
            send.bytes(0, LONG as u32).issue();
        }
        let mut ends = 0;
        for _ in 0..60_000 {
            net.advance(5_000);
            poll_all(&net, 3);
            ends += called(&members[0]).len();
            if ends == 40 {
                break;
            }
        }
        assert_eq!(ends, 40, "seed {seed}: not within 300 ms");
        net.run();
        assert!(members[1..].iter().all(|it| it.holds(THERE, &bytes)));
        assert_nothing_waits(&net);
    }
}

/// A receive takes as much as it has room for; a Probe sees the message before any of it is taken, and may
/// claim or discard it.
#[test]
fn a_long_multicast_is_truncated_claimed_and_discarded() {
    for limits in [Limits::default(), narrow()] {
        let net = Net::new(4, 512, 8, &limits);
        let members = [0, 1, 2, 3].map(|node| net.party(node, 1));
        let groups = form(&net, &members, 1);
        let bytes = members[0].fill(0, LONG, 9);
        let short = piece_bytes(4, LONG as u32) + 10;
        members[1].receive(5).tag(2).bytes(THERE, short).issue();
        let send = members[0].multicast(1, groups[0], 2);
        send.bytes(0, LONG as u32).run();
        members[2].probe(6).tag(2).claim().run();
        members[3].probe(7).tag(2).run();
        let probes = members[3].completions_of(CompletionKind::Probe);
        assert_eq!(probes[0].length.get(), LONG);
        members[3].probe(8).tag(2).discard().run();
        let probes = members[3].completions_of(CompletionKind::Probe);
        assert_eq!(status(&probes[0]), Status::Ok);
        let probes = members[2].completions_of(CompletionKind::Probe);
        let message = probes[0].offset.get();
        let claimed = members[2].receive_claimed(9, message);
        claimed.bytes(THERE, LONG).run();
        assert_eq!(received(&members[2])[0].3, LONG);
        assert!(members[2].holds(THERE, &bytes));
        assert_eq!(members[1].received(), [(5, Status::Truncated)]);
        assert!(members[1].holds(THERE, &bytes[..short as usize]));
        assert_eq!(called(&members[0]), done(1));
        assert_nothing_waits(&net);
    }
}

/// It waits for a member that does not receive it, and holds up nothing but what its source sends to that
/// one.
#[test]
fn a_long_multicast_holds_up_its_source_alone() {
    for net in scarce_nets(3, 3) {
        let (members, groups) = ready(&net, 3);
        let bytes = members[0].fill(0, LONG, 7);
        members[4].receive(1).tag(1).bytes(THERE, LONG).issue();
        let send = members[0].multicast(1, groups[0], 1).ranks(&[3, 4]);
        send.bytes(0, LONG as u32).run();
        members[4].receive(2).tag(2).bytes(0, 50).issue();
        let send = members[1].multicast(2, groups[1], 2).ranks(&[3, 4]);
        send.short(b"go").issue();
        members[3].receive(3).tag(2).bytes(0, 50).run();
        assert_eq!(called(&members[1]), done(2));
        for rank in [3, 4] {
            assert_eq!(received(&members[rank]).len(), 1, "{rank}");
        }
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(4, *group).issue();
        }
        net.run();
        assert!(members.iter().all(|member| called(member) == done(4)));
        members[3].receive(5).tag(1).bytes(THERE, LONG).run();
        for rank in [3, 4] {
            assert_eq!(received(&members[rank]).len(), 1, "{rank}");
            assert!(members[rank].holds(THERE, &bytes), "{rank}");
        }
        assert_eq!(called(&members[0]), done(1));
        assert_nothing_waits(&net);
    }
}

/// Its memory, or that of a receive, is gone while it is under way: that end fails alone.
#[test]
fn either_end_may_lose_its_memory_while_pieces_are_under_way() {
    for source in [true, false] {
        let net = Net::new(3, 512, 8, &narrow());
        let members = [0, 1, 2].map(|node| net.party(node, 1));
        let groups = form(&net, &members, 1);
        let bytes = members[0].fill(0, LONG, 4);
        members[1].receive(1).tag(1).bytes(THERE, LONG).issue();
        let send = members[0].multicast(2, groups[0], 1);
        send.bytes(0, LONG as u32).run();
        // Rank 2 has not received it, so pieces wait at the source.
        assert_eq!(called(&members[0]), []);
        assert_eq!(members[1].received(), []);
        match source {
            true => members[0].unexport(&members[0]),
            false => members[1].unexport(&members[1]),
        };
        members[2].receive(3).tag(1).bytes(THERE, LONG).run();
        let mut ends = called(&members[0]);
        let end = ends.pop().expect("the multicast has ended");
        assert_eq!(members[1].received(), [(1, Status::Aborted)]);
        match source {
            true => {
                assert_eq!((end.0, end.1 == Status::Ok), (2, false), "{end:?}");
                assert_eq!(members[2].received(), [(3, Status::Aborted)]);
            }
            false => {
                assert_eq!(end, done(2)[0]);
                assert_eq!(received(&members[2]).len(), 1);
                assert!(members[2].holds(THERE, &bytes));
            }
        }
        // The group goes on.
        members[2].receive(4).tag(4).bytes(0, 9).issue();
        let send = members[0].multicast(4, groups[0], 4).ranks(&[2]);
        send.short(b"and again").run();
        assert_eq!(called(&members[0]), done(4));
        assert_eq!(received(&members[2]).len(), 1);
        assert_nothing_waits(&net);
    }
}

/// When the group ends, receives that have begun fail, and what waits for a receive is gone.
#[test]
fn the_end_of_a_group_ends_its_long_multicasts() {
    for limits in [scarce(), narrow()] {
        for gone in [0, 3] {
            let net = Net::new(4, 512, 8, &limits);
            let members = [0, 1, 2, 3].map(|node| net.party(node, 1));
            let groups = form(&net, &members, 1);
            members[1].receive(1).tag(1).bytes(THERE, LONG).issue();
            members[3].set_available(THERE + LONG, false);
            members[3].receive(1).tag(1).bytes(THERE, LONG).issue();
            let send = members[0].multicast(2, groups[0], 1);
            send.bytes(0, LONG as u32).run();
            assert_eq!(called(&members[0]), []);
            members[gone].end();
            net.run();
            assert_eq!(members[1].received().len(), 1);
            members[2].probe(3).tag(1).run();
            let probes = members[2].completions_of(CompletionKind::Probe);
            assert_eq!(status(&probes[0]), Status::NoMessage);
            assert_nothing_waits(&net);
        }
    }
}
