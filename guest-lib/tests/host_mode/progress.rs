//! Programs that are correct by MPI's rules do not deadlock: what processes send before they
//! receive waits for nothing but room that they have, and holds up no other process (Q11, Q12, N15).

use std::sync::Barrier;

use qnic::message::{wait_all, Pattern, Tag};
use qnic::Nic;

use crate::cluster::{pattern, Cluster};
use crate::messages::{Party, ANY, LIMIT};

/// What a process has sent to another one is staged up to so many bytes whatever others do.
const STAGED: usize = 64 << 10;

/// Each sends, then receives: one message, in any length that is staged.
#[test]
fn two_processes_send_and_then_receive() {
    let cluster = Cluster::new(2);
    let nics = [0, 1].map(|node| cluster.nic(node));
    let lengths = [0, 16, 129, 4096, 4097, 8192, STAGED, 256 << 10, 1 << 20];
    for (number, length) in lengths.into_iter().enumerate() {
        let parties = [0, 1].map(|node: usize| {
            let party = Party::new(&nics[node], 10 + number as u16, 2 << 20);
            party.buffer.write(0, &pattern(node, length)).unwrap();
            party
        });
        let run = |own: usize| {
            let [own, other] = [&parties[own], &parties[1 - own]];
            own.send(&other.with_tag(1), own.memory.part(0, length));
            let from = Pattern::tagged(other.source(), Tag(1));
            own.receive(&from, own.memory.part(1 << 20, length));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(0));
            run(1);
        });
        for (node, party) in parties.iter().enumerate() {
            let received = party.buffer.read_vec(1 << 20, length).unwrap();
            assert!(received == pattern(1 - node, length), "{length}");
        }
    }
}

/// A process receives nothing until another one has a message that its sender sends behind all
/// others.
#[test]
fn sends_that_nothing_receives_hold_up_no_other_destination() {
    const COUNT: usize = 1100;
    const LENGTH: usize = 8192;
    let cluster = Cluster::new(3);
    let [a, b, c] = [0, 1, 2].map(|node| Party::new(&cluster.nic(node), 1, 1 << 20));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            c.receive(&ANY, c.memory.part(0, 8));
            c.send(&b.with_tag(2), b"now");
        });
        scope.spawn(|| {
            b.receive(&Pattern::tagged(c.source(), Tag(2)), b.memory.part(0, 8));
            for _ in 0..COUNT {
                let from = Pattern::tagged(a.source(), Tag(1));
                b.receive(&from, b.memory.part(0, LENGTH));
            }
        });
        let send = |_| {
            let part = a.memory.part(0, LENGTH);
            a.endpoint.send(&b.with_tag(1), part).post().unwrap()
        };
        let mut sends: Vec<_> = (0..COUNT).map(send).collect();
        a.send(&c.with_tag(3), b"go");
        wait_all(&mut sends, LIMIT).unwrap();
    });
}

/// Each of several processes on each node sends messages to all others, one after the other, and
/// receives none before the last one has ended. All of them fit into what is staged.
#[test]
fn all_send_to_all_before_they_receive() {
    const NODES: u16 = 4;
    const EACH: u16 = 2;
    const ROUNDS: usize = 6;
    let all = usize::from(NODES * EACH);
    let cluster = Cluster::new(NODES);
    let nics: Vec<Nic> = (0..NODES).map(|node| cluster.nic(node)).collect();
    let parties: Vec<Party> = (0..NODES * EACH)
        .map(|number| Party::new(&nics[usize::from(number % NODES)], 1 + number, 2 * STAGED))
        .collect();
    // One long message to each, or several short ones; other lengths in each round.
    let lengths = |round: usize, own: usize, to: usize| -> Vec<usize> {
        let random = (round * 7919 + own * 104_729 + to * 1299) % (STAGED + 1);
        match round % 3 {
            0 => vec![STAGED - round],
            1 => vec![random],
            _ => vec![0, random / 8, random % 4097, 4097, random / 2],
        }
    };
    let barrier = Barrier::new(all);
    let run = |own: usize| {
        let party = &parties[own];
        for round in 0..ROUNDS {
            barrier.wait();
            for step in 1..all {
                let to = (own + step) % all;
                for (number, length) in lengths(round, own, to).into_iter().enumerate() {
                    let bytes = pattern(round + own + number, length);
                    party.buffer.write(0, &bytes).unwrap();
                    let to = parties[to].with_tag(round as u64).immediate(number as u64);
                    party.send(&to, party.memory.part(0, length));
                }
            }
            for step in 1..all {
                let from = (own + step) % all;
                let source = parties[from].source();
                for (number, length) in lengths(round, from, own).into_iter().enumerate() {
                    let from_it = Pattern::tagged(source, Tag(round as u64));
                    let into = party.memory.part(STAGED, length);
                    let completion = party.receive(&from_it, into);
                    assert_eq!(completion.immediate, number as u64);
                    let received = party.buffer.read_vec(STAGED, length).unwrap();
                    assert!(received == pattern(round + from + number, length));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for own in 0..all {
            let run = &run;
            scope.spawn(move || run(own));
        }
    });
}
