//! Slots of participants (N21, N22): those of waits that were given up, and of processes that are slow.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use qnic::sync::{WaitQueue, AREA_NAME, NOTIFICATION};
use qnic::{Endpoint, Error, NodeId, Port, RemoteSegment, RemoteU64, SegmentName};

use crate::cluster::{Cluster, Peer, SOON};
use crate::processes::kill;
use crate::sync::{child, example_lock, workers, FIRST, SECOND, SHORT};

/// After so much silence a node is given up.
const PEER_TIMEOUT: Duration = Duration::from_millis(300);

/// More than an area has slots.
const ROUNDS: usize = 300;

/// The slot of the process that an entry names, as any process can reach it.
fn slot(endpoint: &Endpoint, entry: u64) -> (RemoteSegment, u64) {
    let name = SegmentName(u64::from(AREA_NAME) << 32 | entry >> 16 & 0xffff);
    let (node, port) = (entry >> 48, entry >> 32 & 0xffff);
    let (node, port) = (NodeId(node as u16), Port(port as u16));
    let area = endpoint.import(node, port, name, SOON);
    (area.unwrap(), ((entry & 0xffff) - 1) * 64)
}

/// A wait that is given up costs a slot, since others may still write to it. There are always more of
/// them, and a wait that began long before keeps its own.
#[test]
fn waits_that_are_given_up_use_nothing_up() {
    let cluster = Cluster::new(2);
    let (_owner, workers) = workers(&cluster, 2, 1);
    let [one, other] = [0, 1].map(|worker: usize| workers[worker].object(WaitQueue::new, FIRST));
    let [signals, waits] =
        [0, 1].map(|worker: usize| workers[worker].object(WaitQueue::new, SECOND));
    let mut kept = waits.insert().unwrap();
    for _ in 0..ROUNDS {
        let given_up = other.insert().unwrap();
        let mut behind = one.insert().unwrap();
        drop(given_up);
        assert!(matches!(behind.wait(Some(SOON)), Err(Error::Broken { .. })));
        drop(behind);
        assert!(one.recover().unwrap());
    }
    assert!(signals.remove().unwrap());
    kept.wait(Some(SOON)).unwrap();
    let mut again = other.insert().unwrap();
    assert!(one.remove().unwrap());
    again.wait(Some(SOON)).unwrap();
}

/// The link of a process that has joined behind a holder, as if it were still on its way.
struct Link {
    /// The holder's slot.
    area: RemoteSegment,
    offset: u64,
    link: u64,
}

impl Link {
    /// Waits until the holder has a successor, and takes its link away.
    fn take(owner: &Peer, endpoint: &Endpoint) -> Self {
        let (area, offset) = slot(endpoint, owner.word(FIRST as usize));
        let next: RemoteU64 = endpoint.atomic(&area, offset).unwrap();
        let link = loop {
            match next.swap(0).wait().unwrap() {
                0 => {}
                link => break link,
            }
        };
        Link { area, offset, link }
    }

    fn arrive(self, endpoint: &Endpoint) {
        let link = self.link.to_le_bytes();
        let write = endpoint.write(&self.area, self.offset, &link);
        write.notify(NOTIFICATION).fenced().unwrap();
    }
}

/// A process that lives may take any time between the operation by which it joins and its link: its
/// predecessor waits for it, much longer than for a dead one.
#[test]
fn a_slow_process_in_the_queue_is_no_dead_one() {
    let cluster = Cluster::with_peer_timeout(3, PEER_TIMEOUT);
    let (owner, workers) = workers(&cluster, 3, 1);
    let locks = [1, 2].map(|worker: usize| workers[worker].lock());
    let endpoint = &workers[0].peer.endpoint;
    assert_eq!(endpoint.peer_timeout(), PEER_TIMEOUT);
    let held = locks[0].acquire().unwrap();
    let mut waiting = locks[1].waiting();
    assert!(matches!(waiting.wait(SHORT), Err(Error::TimedOut)));
    let link = Link::take(&owner, endpoint);
    let (released, done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || released.send(held.release()));
        let soon = done.recv_timeout(PEER_TIMEOUT * 6);
        assert!(matches!(soon, Err(RecvTimeoutError::Timeout)), "{soon:?}");
        link.arrive(endpoint);
        done.recv_timeout(SOON).unwrap().unwrap();
    });
    waiting.wait(Some(SOON)).unwrap().release().unwrap();
}

/// The same with one that has gone: its predecessor breaks the lock, although no process is behind it.
#[test]
fn a_process_that_joined_and_went_is_noticed() {
    let cluster = Cluster::new(3);
    let (owner, [lock, _, _]) = example_lock(&cluster);
    let endpoint = cluster.nic(2).register(Port(2)).unwrap();
    let held = lock.acquire().unwrap();
    let victim = child(&cluster, 1, "wait");
    Link::take(&owner, &endpoint);
    kill(victim);
    assert!(matches!(held.release(), Err(Error::Broken { .. })));
    assert!(lock.recover().unwrap());
    lock.acquire().unwrap().release().unwrap();
}
