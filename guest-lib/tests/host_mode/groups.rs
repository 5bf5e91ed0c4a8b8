//! Groups and collectives (Q14, Q15, N26).

use std::time::Duration;

use qnic::group::{Group, Membership, Operator, Reducible};
use qnic::{Error, NodeId, Port, Status};

use crate::cluster::{pattern, status, Cluster, SOON};
use crate::messages::Party;

fn name_of(party: &Party) -> (NodeId, Port) {
    (party.endpoint.node(), party.endpoint.port())
}

/// Two processes on each node.
fn parties(cluster: &Cluster, nodes: u16, length: usize) -> Vec<Party> {
    let nics: Vec<_> = (0..nodes).map(|node| cluster.nic(node)).collect();
    let ports = nics.iter().flat_map(|nic| [(nic, 1), (nic, 2)]);
    ports
        .map(|(nic, port)| Party::new(nic, port, length))
        .collect()
}

/// Each process joins a group of all in a thread of its own, and does something in it.
fn together<T: Send>(
    parties: &[Party],
    name: u64,
    act: impl Fn(&Party, &Group<'_>) -> T + Sync,
) -> Vec<T> {
    let home = name_of(&parties[0]);
    let act = &act;
    std::thread::scope(|scope| {
        let member = |(rank, party): (usize, _)| {
            let membership = Membership::new(home, rank as u32, parties.len() as u32);
            scope.spawn(move || -> T {
                let party: &Party = party;
                let joined = Group::join(&party.endpoint, &membership.name(name), SOON);
                act(party, &joined.unwrap())
            })
        };
        let threads: Vec<_> = parties.iter().enumerate().map(member).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

/// The reduction of `length` bytes of all members.
fn allreduce<T: Reducible>(party: &Party, group: &Group<'_>, length: usize) -> Vec<u8> {
    let part = party.memory.part(3, length);
    group
        .allreduce::<T>(part, Operator::Sum)
        .timeout(SOON)
        .wait()
        .unwrap();
    let mut bytes = vec![0; length];
    party.buffer.read(3, &mut bytes).unwrap();
    bytes
}

fn exchange(cluster: &Cluster, rounds: usize) {
    const LENGTH: usize = 100_000;
    let parties = parties(cluster, 3, LENGTH + 8);
    let seed = |group: &Group<'_>, round: usize| group.rank() as usize * 100 + round;
    let words = |bytes: &[u8]| -> Vec<u64> {
        let words = bytes.chunks_exact(8);
        words
            .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
            .collect()
    };
    together(&parties, 1, |party, group| {
        for round in 0..rounds {
            party
                .buffer
                .write(3, &pattern(seed(group, round), LENGTH))
                .unwrap();
            let sums = words(&allreduce::<u64>(party, group, LENGTH));
            let all =
                (0..group.size() as usize).map(|rank| words(&pattern(rank * 100 + round, LENGTH)));
            let expected = all.reduce(|sums, more| {
                sums.iter()
                    .zip(&more)
                    .map(|(a, b)| a.wrapping_add(*b))
                    .collect()
            });
            assert_eq!(Some(sums), expected);
            let root = round as u32 % group.size();
            let bytes = pattern(seed(group, round + 7), LENGTH);
            party.buffer.write(0, &bytes).unwrap();
            group
                .broadcast(party.memory.part(0, LENGTH), root)
                .timeout(SOON)
                .wait()
                .unwrap();
            let mut got = vec![0; LENGTH];
            party.buffer.read(0, &mut got).unwrap();
            assert!(got == pattern(root as usize * 100 + round + 7, LENGTH));
        }
        // No member leaves before all are done.
        group.barrier().timeout(SOON).wait().unwrap();
    });
}

#[test]
fn all_members_get_the_same() {
    exchange(&Cluster::new(3), 20);
}

#[test]
fn all_members_get_the_same_on_bad_links() {
    exchange(&Cluster::on_bad_links(3, 5.0), 3);
}

#[test]
fn a_barrier_is_left_when_all_have_come() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let cluster = Cluster::new(2);
    let parties = parties(&cluster, 2, 4096);
    let entered = [const { AtomicUsize::new(0) }; 500];
    together(&parties, 1, |_, group| {
        for round in &entered {
            // Relaxed: the barrier orders it, which is what is tested.
            round.fetch_add(1, Ordering::Relaxed);
            group.barrier().timeout(SOON).wait().unwrap();
            assert_eq!(round.load(Ordering::Relaxed), 4);
        }
    });
}

#[test]
fn calls_run_beside_each_other_and_end_in_any_order() {
    let cluster = Cluster::new(2);
    let parties = parties(&cluster, 2, 4096);
    together(&parties, 1, |party, group| {
        let value = u64::from(group.rank() + 1);
        for number in 0..32 {
            party
                .buffer
                .write(number * 8, &value.to_le_bytes())
                .unwrap();
        }
        let start = |number: usize| {
            let part = party.memory.part(number * 8, 8);
            group
                .allreduce::<u64>(part, Operator::Product)
                .timeout(SOON)
                .post()
        };
        let mut calls: Vec<_> = (0..32).map(|number| start(number).unwrap()).collect();
        let mut last = calls.pop().unwrap();
        while !last.test().unwrap() {}
        drop(calls);
        let mut bytes = [0; 8];
        for number in 0..32 {
            party.buffer.read(number * 8, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), 24);
        }
        group.barrier().timeout(SOON).wait().unwrap();
    });
}

/// A member that ends is named to the others, which join another group.
#[test]
fn a_member_that_ends_is_named() {
    let cluster = Cluster::new(3);
    let mut parties = parties(&cluster, 3, 4096);
    let victim = parties.remove(3);
    let name = name_of(&victim);
    let home = name_of(&parties[0]);
    std::thread::scope(|scope| {
        let victim = scope.spawn(move || {
            let membership = Membership::new(home, 5, 6).name(1);
            let group = Group::join(&victim.endpoint, &membership, SOON).unwrap();
            group.barrier().timeout(SOON).wait().unwrap();
            drop(group);
        });
        for (rank, party) in (0..).zip(&parties) {
            scope.spawn(move || {
                let membership = Membership::new(home, rank, 6).name(1);
                let group = Group::join(&party.endpoint, &membership, SOON).unwrap();
                group.barrier().timeout(SOON).wait().unwrap();
                let error = group.barrier().timeout(SOON).wait().unwrap_err();
                let Error::Group(error) = error else {
                    panic!("{error}");
                };
                assert_eq!((error.status, error.reason), (Status::PeerGone, name));
            });
        }
        victim.join().unwrap();
    });
    together(&parties, 1, |_, group| {
        group.barrier().timeout(SOON).wait().unwrap()
    });
}

#[test]
fn what_is_wrong_is_said() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(0);
    let party = Party::new(&nic, 1, 4096);
    let home = name_of(&party);
    let short = Duration::from_millis(30);
    let join = |membership| Group::join(&party.endpoint, &membership, short);
    let error = join(Membership::new(home, 2, 2)).unwrap_err();
    assert!(matches!(error, Error::BadCollective(_)), "{error}");
    let error = join(Membership::new(home, 0, 2)).unwrap_err();
    assert_eq!(error.status(), Some(Status::TimedOut));
    let error = join(Membership::new((NodeId(1), Port(9)), 1, 2)).unwrap_err();
    assert_eq!(error.status(), Some(Status::TimedOut));
    let group = join(Membership::new(home, 0, 1).key(5)).unwrap();
    let part = || party.memory.part(0, 12);
    let error = group
        .allreduce::<f64>(part(), Operator::Sum)
        .timeout(SOON)
        .wait()
        .unwrap_err();
    assert!(matches!(error, Error::BadCollective(_)), "{error}");
    let error = group
        .allreduce::<f32>(part(), Operator::Xor)
        .timeout(SOON)
        .wait()
        .unwrap_err();
    assert!(matches!(error, Error::BadCollective(_)), "{error}");
    assert_eq!(
        status(group.broadcast(part(), 1).timeout(SOON).wait()),
        Status::Malformed
    );
    group
        .allreduce::<f32>(part(), Operator::Sum)
        .timeout(SOON)
        .wait()
        .unwrap();
    group.barrier().timeout(SOON).wait().unwrap();
}
