//! Groups and collectives (Q14, Q15, N26).

use std::time::Duration;

use qnic::group::{Call, Group, Membership, Operation, Operator, Reducible};
use qnic::message::{Pattern, Source, Tag};
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
    let part = || party.memory.part(0, 12);
    // A call that is refused ends its group.
    let group = || join(Membership::new(home, 0, 1).key(5)).unwrap();
    let is_over = |group: Group<'_>| {
        let error = group.barrier().timeout(SOON).wait().unwrap_err();
        let Error::Group(error) = error else {
            panic!("{error}");
        };
        assert_eq!((error.status, error.reason), (Status::Malformed, home));
    };
    let one = group();
    let call = one.allreduce::<f64>(part(), Operator::Sum).timeout(SOON);
    assert_error!(call.wait(), Error::BadCollective(_));
    is_over(one);
    let one = group();
    let call = one.allreduce::<f32>(part(), Operator::Xor).timeout(SOON);
    assert_error!(call.wait(), Error::BadCollective(_));
    is_over(one);
    let one = group();
    let call = one.broadcast(party.memory.part(4000, 100), 0).timeout(SOON);
    assert_error!(call.wait(), Error::OutOfRange { .. });
    is_over(one);
    let one = group();
    let call = one.broadcast(part(), 1).timeout(SOON);
    assert_eq!(status(call.wait()), Status::Malformed);
    is_over(one);
    let group = group();
    group
        .allreduce::<f32>(part(), Operator::Sum)
        .timeout(SOON)
        .wait()
        .unwrap();
    group.barrier().timeout(SOON).wait().unwrap();
}

/// Puts a number into a word, and takes part in the sum of it.
fn sum<'a>(party: &'a Party, group: &'a Group<'_>, place: usize, number: u64) -> Operation<'a> {
    let bytes = number.to_le_bytes();
    party.buffer.write(8 * place, &bytes).unwrap();
    let part = party.memory.part(8 * place, 8);
    group.allreduce::<u64>(part, Operator::Sum)
}

/// A member has more calls under way than the NIC takes: further ones wait for a place, and all
/// sums are right.
#[test]
fn calls_beyond_those_that_may_be_under_way_wait_for_a_place() {
    const CALLS: usize = 200;
    let cluster = Cluster::new(2);
    let parties = parties(&cluster, 2, 4096);
    let ahead = std::sync::Barrier::new(2);
    together(&parties[1..3], 1, |party, group| {
        let number = |rank: u32, place: usize| (place * 10 + 1) as u64 * (u64::from(rank) + 1);
        let begin = |place| {
            let call = sum(party, group, place, number(group.rank(), place));
            call.timeout(SOON).post().unwrap()
        };
        let mut calls = Vec::new();
        if group.rank() == 0 {
            calls.extend((0..64).map(begin));
            ahead.wait();
            calls.extend((64..CALLS).map(begin));
        } else {
            ahead.wait();
            (0..CALLS).for_each(|place| begin(place).wait().unwrap());
        }
        calls.into_iter().for_each(|call| call.wait().unwrap());
        for place in 0..CALLS {
            let sum = party.buffer.load_u64(8 * place).unwrap();
            assert_eq!(sum, number(0, place) + number(1, place), "call {place}");
        }
        group.barrier().timeout(SOON).wait().unwrap();
    });
}

/// A call that finds no place within its time ends the group with an error that names its process,
/// at both members: no later call is taken for an earlier one.
#[test]
fn a_call_that_finds_no_place_ends_the_group_at_all_members() {
    let cluster = Cluster::new(2);
    let parties = parties(&cluster, 2, 4096);
    let refused = std::sync::Barrier::new(2);
    let home = name_of(&parties[1]);
    let ends = together(&parties[1..3], 1, |party, group| {
        let begin = |place| sum(party, group, place, 1).timeout(SOON).post().unwrap();
        let end = |call: Call<'_>| match call.wait().unwrap_err() {
            Error::Group(error) => (error.status, error.reason),
            error => panic!("{error}"),
        };
        if group.rank() == 0 {
            let mut calls: Vec<_> = (0..64).map(begin).collect();
            let short = Duration::from_millis(20);
            calls.push(sum(party, group, 64, 1).timeout(short).post().unwrap());
            calls.push(begin(65));
            refused.wait();
            calls.into_iter().map(end).collect::<Vec<_>>()
        } else {
            refused.wait();
            (0..70).map(|place| end(begin(place))).collect()
        }
    });
    assert_eq!(ends.iter().map(Vec::len).collect::<Vec<_>>(), [66, 70]);
    let reason = (Status::Exhausted, home);
    assert!(ends.iter().flatten().all(|end| *end == reason), "{ends:?}");
}

/// What a member received: source, tag, immediate data, bytes.
fn take(party: &Party, pattern: &Pattern, at: usize, length: usize) -> (NodeId, u64, u64, Vec<u8>) {
    let receive = party
        .endpoint
        .receive(pattern, party.memory.part(at, length));
    let letter = receive.timeout(SOON).wait().unwrap();
    let mut bytes = vec![0; letter.length as usize];
    party.buffer.read(at, &mut bytes).unwrap();
    (letter.node, letter.tag.0, letter.immediate, bytes)
}

/// Broadcasts and multicasts, short ones and long ones: ordinary receives take them, each member in the
/// order of their source (Q3, Q15).
#[test]
fn members_receive_what_is_sent_to_all_and_to_some() {
    for cluster in [Cluster::new(3), Cluster::on_bad_links(3, 5.0)] {
        let parties = parties(&cluster, 3, 6 << 20);
        // It is longer than all that can be staged.
        let long = pattern(5, 5 << 20);
        let got = together(&parties, 3, |party, group| {
            let any = |tag| Pattern::tagged(Source::Any, Tag(tag));
            let mut got = Vec::new();
            if group.rank() == 2 {
                party.buffer.write(0, &long).unwrap();
                let mut posted = Vec::new();
                for number in 0..20 {
                    let send = group.multicast(Tag(1), b"short").immediate(number);
                    posted.push(send.post().unwrap());
                }
                let part = party.memory.part(0, long.len());
                group.multicast(Tag(2), part).timeout(SOON).wait().unwrap();
                let some = group.multicast(Tag(3), b"some").to(&[0, 2, 5]);
                some.timeout(SOON).wait().unwrap();
                posted
                    .iter_mut()
                    .for_each(|posted| posted.wait(SOON).unwrap());
            } else {
                for _ in 0..20 {
                    got.push(take(party, &any(1), 0, 100));
                }
                got.push(take(party, &any(2), 7, long.len() + 9));
                if [0, 5].contains(&group.rank()) {
                    got.push(take(party, &any(3), 0, 100));
                }
            }
            group.barrier().timeout(SOON).wait().unwrap();
            got
        });
        let source = parties[2].endpoint.node();
        for (rank, got) in got.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let short = (0..20).map(|number| (source, 1, number, b"short".to_vec()));
            let mut expected: Vec<_> = short.collect();
            expected.push((source, 2, 0, long.clone()));
            if [0, 5].contains(&rank) {
                expected.push((source, 3, 0, b"some".to_vec()));
            }
            assert!(*got == expected, "rank {rank}");
        }
    }
}

/// As many as may be under way wait for a member that receives nothing; the next one is not begun, and
/// those behind the receives of that member are. What is wrong is said, and ends nothing.
#[test]
fn multicasts_wait_for_a_member_that_receives_nothing() {
    let cluster = Cluster::new(2);
    let parties = parties(&cluster, 1, 128 << 10);
    let result = together(&parties, 4, |party, group| {
        let max = 64 << 10;
        let barrier = || group.barrier().timeout(SOON).wait().unwrap();
        if group.rank() == 1 {
            barrier();
            let mut count = 0;
            let pattern = Pattern::tagged(Source::Any, Tag(9));
            loop {
                let (.., immediate, _) = take(party, &pattern, 0, max);
                count += 1;
                if immediate == 1 {
                    break;
                }
            }
            barrier();
            return count;
        }
        let part = || party.memory.part(0, max);
        let errors = [
            group.multicast(Tag(9), b"x").to(&[]).wait(),
            group.multicast(Tag(9), b"x").to(&[2]).wait(),
            group.multicast(Tag(9), b"x").to(&[1; 64]).wait(),
        ];
        for error in errors {
            assert!(matches!(error, Err(Error::BadCollective(_))), "{error:?}");
        }
        let mut posted = Vec::new();
        let refused = loop {
            match group.multicast(Tag(9), part()).post() {
                Ok(one) => posted.push(one),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::WouldBlock), "{refused:?}");
        let last = posted.last_mut().unwrap();
        let waited = last.wait(Duration::from_millis(1));
        assert!(matches!(waited, Err(Error::TimedOut)), "{waited:?}");
        barrier();
        let last = group.multicast(Tag(9), b"last").immediate(1);
        last.timeout(SOON).wait().unwrap();
        posted
            .iter_mut()
            .for_each(|posted| posted.wait(SOON).unwrap());
        barrier();
        posted.len() + 1
    });
    assert!(result[0] > 64, "{result:?}");
    assert_eq!(result[0], result[1]);
}
