//! Peers that ask for memory and do not take what they are sent.

use std::time::{Duration, Instant};

use qnic::message::Destination;
use qnic::{Endpoint, Nic, NodeId, Port};

use super::harness::{at, close, Cluster, Side, BOTH, TAGGED};
use super::memory::{end, pattern, read};
use super::regions::{register, ALL};
use crate::address::Address;
use crate::domain::service_of;
use crate::pointers::test::{context, room};
use crate::pointers::Context;
use crate::service::{Seen, Service, PIECE_MAX};

/// Long enough for anything that will happen at all.
const SOON: Duration = Duration::from_secs(60);

/// A reply of the longest request has so much bounce memory.
const REPLY: usize = (PIECE_MAX + 8).next_multiple_of(64);

/// As many of those the NIC of a peer takes for one process that has no receive: 4 MiB, with 256 bytes beside each.
const STAGED: usize = (4 << 20) / (PIECE_MAX + 8 + 256);

/// Replies that are held when a peer has no more than one any more.
const HALF: usize = 4;

/// A process that reads memory of others, and receives nothing.
struct Silent {
    endpoint: Endpoint,
    asked: u64,
}

impl Silent {
    fn new(nic: &Nic) -> Self {
        let endpoint = nic.register(Port(0)).unwrap();
        Silent { endpoint, asked: 0 }
    }

    fn process(&self) -> (NodeId, Port) {
        (self.endpoint.node(), self.endpoint.port())
    }

    /// Asks for as many pieces as its NIC takes, and for some more, of which the service is to hold as many but one. Then
    /// all peers are to hold so many.
    fn fill(&mut self, service: &Service, of: &Address, more: usize, held: usize) {
        for count in 1..=STAGED as u64 {
            self.ask(of);
            until(service, self.process(), |seen| seen.served == count);
        }
        (0..more).for_each(|_| self.ask(of));
        until(service, self.process(), |seen| {
            let served = seen.served == (STAGED + more - 1) as u64;
            served && seen.waits && seen.bytes == held * REPLY
        });
    }

    /// Asks the service of an endpoint for the first piece of the region with key 7 (`service::wire`).
    fn ask(&mut self, of: &Address) {
        let mut request = [0; 80];
        request[0] = 1;
        request[8..16].copy_from_slice(&self.asked.to_le_bytes());
        request[24] = 7;
        let length = (PIECE_MAX as u64).to_le_bytes();
        request[40..48].copy_from_slice(&length);
        request[56..60].copy_from_slice(&of.incarnation.to_le_bytes());
        request[64..72].copy_from_slice(&length);
        request[74..76].copy_from_slice(&of.port.0.to_le_bytes());
        // A read, which is its first and its last piece.
        request[76..78].copy_from_slice(&[1, 5]);
        let to = Destination::untagged(of.node, of.memory);
        let message = self.endpoint.send(&to, &request[..]);
        message.timeout(Some(SOON)).wait().unwrap();
        self.asked += 1;
    }
}

/// Waits until a service shows so much.
fn until(service: &Service, of: (NodeId, Port), shows: impl Fn(&Seen) -> bool) {
    let start = Instant::now();
    loop {
        let seen = service.held(of);
        if shows(&seen) {
            return;
        }
        assert!(start.elapsed() < SOON, "{seen:?}");
        std::thread::yield_now();
    }
}

fn begin_read(side: &Side, into: &mut [u8], number: usize) {
    let (length, none) = (into.len(), Context::NULL);
    let (into, read) = (room(into), at(side.ep).rma.read);
    let begun = read(side.ep, into, length, none, 0, 0, 7, context(number));
    assert_eq!(begun, 0);
}

/// Behind half of the bound each peer holds one, and others go on; at the bound all wait until some are taken, or their
/// receiver has ended.
#[test]
fn peers_that_take_no_replies_hold_up_others_at_a_bound_only() {
    let cluster = Cluster::new(3);
    let [a, b] = [0, 1].map(|node| Side::new(&cluster, node, TAGGED, BOTH));
    assert_eq!(a.insert(&b.name), 0);
    let [asks, asked] = [&a, &b].map(|side| Address::from_bytes(&side.name).unwrap());
    let honest = (asks.node, asks.memory);
    let mut memory = pattern(4 * PIECE_MAX, 1);
    let region = register(&b, &mut memory, ALL, 7);
    let service = service_of(b.domain);
    service.hold_at_most(2 * HALF * REPLY);

    let nic = Nic::open_host_with(cluster.socket(2), 96 << 20).unwrap();
    let mut greedy = Silent::new(&nic);
    greedy.fill(&service, &asked, HALF + 1, HALF);
    let mut silent = Vec::new();
    for held in HALF + 1..2 * HALF {
        silent.push(Silent::new(&nic));
        silent[held - HALF - 1].fill(&service, &asked, 2, held);
    }
    let mut into = vec![0; memory.len()];
    assert_eq!(read(&a, 0, &mut into, (0, 7), 1), Ok(()));
    assert!(into == memory);

    silent.push(Silent::new(&nic));
    silent[HALF - 1].fill(&service, &asked, 2, 2 * HALF);
    into.fill(0);
    begin_read(&a, &mut into, 2);
    // It has a stream of its own, of which no piece is served.
    until(&service, honest, |seen| seen.waits && seen.served == 0);
    assert!(a.poll().is_none());
    drop(greedy);
    assert!(end(&a, 2).is_ok());
    assert!(into == memory);
    drop(silent);
    until(&service, honest, |seen| seen.bytes == 0);
    assert_eq!(close(region), 0);
    a.close();
    b.close();
}
