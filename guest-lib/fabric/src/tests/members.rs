//! Members of a collective that are processes of their own, on three nodes: one is killed, stands still, or is cut off.
//! The others end with an error within the peer timeout, or wait and have the right sum.

use std::process::Child;
use std::time::{Duration, Instant};

use super::collectives::{await_join, giving, set_of, sum, try_join, TIME_LIMIT};
use super::harness::{close, domain_at, Cluster, Side, BOTH, TAGGED};
use super::processes::{bytes_of, digits_of, signal, start, stop, ADDRESS, PEER, SOCKET};
use crate::address::BYTES;
use crate::pointers::test::context;
use crate::pointers::{Fid, In};
use crate::sys::FidMc;

/// Tags: the names of all members; a member is to call; how that has ended.
const NAMES: u64 = 1;
const GO: u64 = 2;
const ENDED: u64 = 3;

/// A call that has failed with this error.
const fn failed(error: i32) -> u64 {
    1 << 63 | error as u64
}

const GONE: u64 = failed(libc::ECONNABORTED);

/// Calls when the first member says so, and tells it what comes of it; returns false in the first one.
fn is_other() -> bool {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return false;
    };
    let (fabric, domain) = domain_at(socket.into(), In::NULL);
    let side = Side::on(fabric, domain, TAGGED, BOTH);
    let first = side.insert(&bytes_of(&std::env::var(PEER).unwrap()));
    println!("\n{ADDRESS}{}", digits_of(&side.name));
    let mut names = [0; 3 * BYTES];
    side.receive(first, Some((NAMES, 0)), &mut names, 1);
    side.next().unwrap();
    let mc = join(&side, &names);
    loop {
        side.receive(first, Some((GO, 0)), &mut [], 1);
        // It fails while the first member cannot be reached.
        while side.next().is_err() {
            side.receive(first, Some((GO, 0)), &mut [], 1);
        }
        tell(&side, first, ENDED, &call(&side, mc).to_ne_bytes());
    }
}

fn join(side: &Side, names: &[u8]) -> Fid<FidMc> {
    let members: Vec<u64> = names.chunks(BYTES).map(|name| side.insert(name)).collect();
    let mc = try_join(side, set_of(side, &members)).unwrap();
    await_join(side).unwrap();
    mc
}

/// The sum of what all give, or why there is none.
fn call(side: &Side, mc: Fid<FidMc>) -> u64 {
    let mut words = giving(5);
    assert_eq!(sum(side, mc, &mut words, 7), 0);
    match side.next() {
        Ok((entry, _)) => {
            assert_eq!(entry.context, context(7));
            u64::from_ne_bytes(words.1)
        }
        Err(error) => failed(error.err),
    }
}

/// Sends until it arrives: not while a link is cut.
fn tell(side: &Side, to: u64, tag: u64, bytes: &[u8]) {
    side.send(to, Some(tag), bytes, 8);
    while side.next().is_err() {
        side.send(to, Some(tag), bytes, 8);
    }
}

/// The first member, and the two others, which have joined.
struct Three {
    cluster: Cluster,
    first: Side,
    mc: Fid<FidMc>,
    others: [(Child, u64); 2],
}

impl Three {
    fn new(test: &str, cluster: Cluster) -> Self {
        let first = Side::new(&cluster, 0, TAGGED, BOTH);
        let name = format!("tests::members::{test}");
        let mut names = first.name.to_vec();
        let others = [1, 2].map(|node| {
            let (child, address) = start(&name, cluster.socket(node), Some(&first.name));
            names.extend(&address);
            (child, first.insert(&address))
        });
        for (_, number) in &others {
            tell(&first, *number, NAMES, &names);
        }
        let mc = join(&first, &names);
        Three {
            cluster,
            first,
            mc,
            others,
        }
    }

    fn go(&self, other: usize) {
        tell(&self.first, self.others[other].1, GO, &[]);
    }

    /// What the call of another member has come to.
    fn ended(&self, other: usize) -> u64 {
        let mut word = [0; 8];
        let from = self.others[other].1;
        self.first.receive(from, Some((ENDED, 0)), &mut word, 9);
        // It fails while the other one cannot be reached.
        while self.first.next().is_err() {
            self.first.receive(from, Some((ENDED, 0)), &mut word, 9);
        }
        u64::from_ne_bytes(word)
    }

    fn close(self) {
        for (mut child, _) in self.others {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(close(self.mc), 0);
        assert_eq!(close(self.first.ep), 0);
    }
}

#[test]
fn members_of_one_that_is_killed_end_on_all_nodes() {
    if is_other() {
        return;
    }
    let test = "members_of_one_that_is_killed_end_on_all_nodes";
    let mut three = Three::new(test, Cluster::new(3));
    three.go(0);
    let (killed, _) = &mut three.others[1];
    killed.kill().unwrap();
    killed.wait().unwrap();
    let begun = Instant::now();
    assert_eq!(call(&three.first, three.mc), GONE);
    assert_eq!(three.ended(0), GONE);
    assert!(begun.elapsed() < TIME_LIMIT);
    three.close();
}

#[test]
fn a_member_that_stands_still_is_waited_for() {
    if is_other() {
        return;
    }
    let test = "a_member_that_stands_still_is_waited_for";
    let three = Three::new(test, Cluster::new(3));
    stop(&three.others[1].0);
    three.go(0);
    let mut words = giving(5);
    assert_eq!(sum(&three.first, three.mc, &mut words, 7), 0);
    // Its own NIC and that of the member that runs go on.
    let own = three.first.insert(&three.first.name);
    three.first.send(own, Some(GO), &[], 6);
    three.first.receive(own, Some((GO, 0)), &mut [], 6);
    for _ in 0..2 {
        assert_eq!(three.first.next().unwrap().0.context, context(6));
    }
    assert!(three.first.poll().is_none());
    assert_eq!(words, giving(5));
    signal(&three.others[1].0, libc::SIGCONT);
    three.go_while_it_waits(1);
    assert_eq!(u64::from_ne_bytes(words.1), 15);
    assert_eq!([three.ended(0), three.ended(1)], [15, 15]);
    three.close();
}

impl Three {
    /// Lets another member call, while the own call is under way; returns when both messages have ended.
    fn go_while_it_waits(&self, other: usize) {
        self.first.send(self.others[other].1, Some(GO), &[], 8);
        let ended = [(); 2].map(|()| self.first.next().unwrap().0.context);
        assert!(ended.contains(&context(7)) && ended.contains(&context(8)));
    }
}

#[test]
fn members_that_a_cut_parts_end() {
    const PEER_TIMEOUT: Duration = Duration::from_secs(2);
    if is_other() {
        return;
    }
    let test = "members_that_a_cut_parts_end";
    let cluster = Cluster::on_links(3, PEER_TIMEOUT);
    let three = Three::new(test, cluster);
    three.cluster.net([0, 2], r#"{"partition":true}"#);
    three.go(0);
    let begun = Instant::now();
    assert_eq!(call(&three.first, three.mc), GONE);
    assert_eq!(three.ended(0), GONE);
    assert!(begun.elapsed() < TIME_LIMIT);
    three.cluster.net([0, 2], r#"{"partition":false}"#);
    // It learns of the end then.
    three.go(1);
    assert_eq!(three.ended(1), GONE);
    three.close();
}
