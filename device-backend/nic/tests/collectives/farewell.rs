//! What a NIC has sent when its driver announces a reset.

use qnic_abi::control::Opcode;
use qnic_abi::VniId;
use qnic_nic::testing::{LossyWire, Net, Party};
use qnic_nic::Limits;

use crate::party::*;

/// Longest time, in nanoseconds, that a driver waits for the reply.
const LONGEST: u64 = 1_000_000_000;

/// The driver of a node announces a reset. Returns the token of the reply, if that comes later.
fn announce(net: &Net, node: usize) -> Option<u64> {
    let request = Opcode::AnnounceReset;
    let (token, reply) = net.cluster().request(node, request, VniId(0), &[0u8; 0]);
    reply.is_none().then_some(token)
}

fn has_reply(net: &Net, node: usize, token: u64) -> bool {
    let replies = &net.cluster().nodes[node].replies;
    replies.iter().any(|reply| reply.0 == token)
}

/// Members whose node ends with their last barrier, as a program of host mode does that has
/// nothing else to do: what the NIC owes the others is sent before, as often as it takes.
#[test]
fn a_node_that_ends_with_its_last_barrier_leaves_nobody_behind() {
    let mut waited = 0;
    for seed in 1..=40 {
        let net = Net::lossy(3, LossyWire::rough(200), seed);
        let members = parties(&net, 3);
        let groups = form(&net, &members, 1);
        for (member, group) in members.iter().zip(&groups) {
            member.barrier(5, *group).issue();
        }
        let (first, others) = members.split_at(2);
        let mut passed = 0;
        while passed < first.len() {
            poll_all(&net, 3);
            net.advance(1000);
            passed += first
                .iter()
                .map(|member| called(member).len())
                .sum::<usize>();
        }
        first.iter().for_each(Party::end);
        if let Some(token) = announce(&net, 0) {
            waited += 1;
            while !has_reply(&net, 0, token) {
                poll_all(&net, 3);
                net.advance(1000);
            }
        }
        net.cluster().reset(0);
        net.run();
        for member in others {
            assert_eq!(called(member), done(5), "seed {seed}");
        }
    }
    assert!(waited > 0, "nothing had to be waited for");
}

#[test]
fn a_driver_waits_for_nobody_if_peers_have_all() {
    for net in nets(3, 3) {
        let members = parties(&net, 3);
        form(&net, &members, 1);
        net.run();
        assert_eq!(announce(&net, 0), None);
        assert_eq!(announce(&net, 0), None, "once more");
    }
}

/// A peer that is silent is waited for a second at most, and a second announcement has its own
/// time: no request stays without a reply.
#[test]
fn a_silent_peer_holds_no_driver_up() {
    let net = Net::lossy(2, LossyWire::steady(1000), 1);
    let members = parties(&net, 2);
    let groups = form(&net, &members, 1);
    assert!(Limits::default().peer_timeout > LONGEST);
    net.cut(1);
    members[0].leave(7, groups[0]);
    poll_all(&net, 2);
    let first = announce(&net, 0).expect("a reply that comes later");
    net.advance(LONGEST / 2);
    net.poll(0);
    assert!(!has_reply(&net, 0, first), "before its time");
    let second = announce(&net, 0).expect("a reply that comes later");
    net.advance(LONGEST - 1);
    net.poll(0);
    assert!(has_reply(&net, 0, first) && !has_reply(&net, 0, second));
    let deadline = net.cluster().nodes[0].nic.next_deadline();
    net.advance(1);
    assert!(deadline.is_some_and(|deadline| deadline <= net.cluster().now));
    net.poll(0);
    assert!(has_reply(&net, 0, second));
}
