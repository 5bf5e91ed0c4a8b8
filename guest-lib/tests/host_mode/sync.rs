//! Locks, wait queues, monitors and semaphores (N21 to N24), on links that lose frames,
//! and when processes die.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use qnic::sync::{
    Condition, Lock, LockGuard, Monitor, Participant, Semaphore, WaitQueue, OBJECT_BYTES,
};
use qnic::{Error, Port, RemoteSegment, SegmentName, Status};

use crate::cluster::{in_threads, peers, Cluster, Peer, BOTH, SOON};
use crate::processes::{finish, kill, start};

/// Offsets in the owner's buffer.
pub(crate) const FIRST: u64 = 0;
pub(crate) const SECOND: u64 = OBJECT_BYTES;
pub(crate) const THIRD: u64 = 2 * OBJECT_BYTES;
const DATA: u64 = 1024;
/// The last entry of the queue of the first object, and how many have joined it; the second
/// half of that word is the generation of a lock.
const TAIL: u64 = 8;
pub(crate) const TURNS: usize = 16;
/// How many wait, of a wait queue or semaphore there.
const WAITING: usize = TURNS;
/// The epoch of the first object.
pub(crate) const EPOCH: usize = 32;

pub(crate) const SHORT: Option<Duration> = Some(Duration::from_millis(1));

pub(crate) type Constructor<T> = fn(&Participant, &RemoteSegment, u64) -> qnic::Result<T>;

/// A process that uses objects.
pub(crate) struct Worker {
    pub(crate) peer: Peer,
    participant: Participant,
    owner: RemoteSegment,
}

impl Worker {
    /// An object of the owner, made by its constructor.
    pub(crate) fn object<T>(&self, new: Constructor<T>, offset: u64) -> T {
        new(&self.participant, &self.owner, offset).unwrap()
    }

    pub(crate) fn lock(&self) -> Lock {
        self.object(Lock::new, FIRST)
    }

    fn read_word(&self, offset: u64) -> u64 {
        self.peer.read(&self.owner, offset, 0, 8);
        self.peer.word(0)
    }

    fn write_word(&self, offset: u64, value: u64) {
        let bytes = value.to_le_bytes();
        let ticket = self.peer.endpoint.write(&self.owner, offset, &bytes).post();
        drop(ticket.unwrap());
    }
}

/// An owner of objects, and workers on all nodes, the owner's among them.
pub(crate) fn workers(cluster: &Cluster, nodes: u16, ports: u16) -> (Peer, Vec<Worker>) {
    let nics: Vec<_> = (0..nodes).map(|node| cluster.nic(node)).collect();
    let owner = Peer::new(&nics[0], 100, 8192);
    let worker = |peer: Peer| Worker {
        owner: peer.import(&owner),
        participant: Participant::new(&peer.endpoint).unwrap(),
        peer,
    };
    let workers = peers(&nics, ports, 4096).into_iter().map(worker).collect();
    (owner, workers)
}

/// Many read, change and write a word of the owner: only the lock makes that exact.
#[test]
fn a_lock_makes_a_plain_counter_exact_on_bad_links() {
    const ROUNDS: u64 = 15;
    let cluster = Cluster::on_bad_links(4, 5.0);
    let (owner, workers) = workers(&cluster, 4, 2);
    in_threads(&workers, |_, worker| {
        let lock = worker.lock();
        for _ in 0..ROUNDS {
            let guard = lock.acquire().unwrap();
            let value = worker.read_word(DATA);
            worker.write_word(DATA, value + 1);
            guard.release().unwrap();
        }
    });
    assert_eq!(owner.word(DATA as usize), workers.len() as u64 * ROUNDS);
    assert_eq!(owner.word(TURNS), 0, "it is free");
}

/// As soon as a process has taken a free lock, its name stands at the owner, whatever the
/// links lose: head and tail are the same.
#[test]
fn the_acquisition_itself_leaves_the_name_of_the_holder() {
    let cluster = Cluster::on_bad_links(2, 20.0);
    let (owner, workers) = workers(&cluster, 2, 1);
    for round in 0..60 {
        let lock = workers[1 - round % 2].lock();
        let guard = match round % 3 {
            0 => lock.try_acquire().unwrap().unwrap(),
            _ => lock.acquire().unwrap(),
        };
        let tail = owner.word(TAIL as usize);
        assert_ne!(tail, 0);
        assert_eq!(owner.word(FIRST as usize), tail, "round {round}");
        guard.release().unwrap();
    }
}

/// Threads of one process contend, by one participant.
#[test]
fn threads_of_one_process_share_a_participant() {
    const ROUNDS: u32 = 50;
    let cluster = Cluster::new(2);
    let (_owner, workers) = workers(&cluster, 2, 1);
    let lock = workers[1].lock();
    let (inside, total) = (AtomicBool::new(false), AtomicU32::new(0));
    in_threads(&[&lock; 4], |_, lock| {
        for _ in 0..ROUNDS {
            let _guard = lock.acquire().unwrap();
            assert!(!inside.swap(true, Ordering::SeqCst));
            total.fetch_add(1, Ordering::Relaxed);
            assert!(inside.swap(false, Ordering::SeqCst));
        }
    });
    assert_eq!(total.into_inner(), 4 * ROUNDS);
    let guard = lock.try_acquire().unwrap().unwrap();
    assert!(workers[0].lock().try_acquire().unwrap().is_none());
    drop(guard);
    assert!(workers[0].lock().try_acquire().unwrap().is_some());
}

/// Waits until the owner's word differs from `before`; returns it.
fn changed(owner: &Peer, offset: u64, before: u64) -> u64 {
    let until = Instant::now() + SOON;
    loop {
        let word = owner.word(offset as usize);
        if word != before {
            return word;
        }
        assert!(Instant::now() < until, "no participant came");
        std::thread::yield_now();
    }
}

/// The process that joins first goes first, in each of the queues.
#[test]
fn first_come_is_first_served() {
    let cluster = Cluster::new(3);
    let (owner, workers) = workers(&cluster, 3, 2);
    let first = &workers[0];
    let (units, events) = (
        first.object(Semaphore::new, SECOND),
        first.object(WaitQueue::new, THIRD),
    );
    // The offset of the word that changes when a process joins.
    for (kind, joins) in [(0, TAIL), (1, SECOND + 8), (2, THIRD + 8)] {
        let (send, order) = mpsc::channel();
        let lock = first.lock();
        let guard = lock.acquire().unwrap();
        std::thread::scope(|scope| {
            let mut word = owner.word(joins as usize);
            for (number, worker) in workers.iter().enumerate().skip(1) {
                let send = send.clone();
                scope.spawn(move || {
                    let lock = worker.lock();
                    let _guard = (kind == 0).then(|| lock.acquire().unwrap());
                    match kind {
                        0 => {}
                        1 => worker
                            .object(Semaphore::new, SECOND)
                            .wait()
                            .map(drop)
                            .unwrap(),
                        _ => {
                            let queue = worker.object(WaitQueue::new, THIRD);
                            queue.insert().unwrap().wait(Some(SOON)).unwrap();
                        }
                    }
                    send.send(number).unwrap();
                });
                word = changed(&owner, joins, word);
            }
            let mut got = Vec::new();
            drop(guard);
            for _ in 1..workers.len() {
                match kind {
                    0 => {}
                    1 => units.signal().map(drop).unwrap(),
                    _ => assert!(events.remove().unwrap()),
                }
                got.push(order.recv_timeout(SOON).unwrap());
            }
            assert_eq!(got, (1..workers.len()).collect::<Vec<_>>(), "kind {kind}");
        });
    }
    assert!(!events.remove().unwrap(), "none waits any more");
    assert_eq!(units.value().unwrap(), 0);
}

/// The value before a unit is taken, and the one after it is given back (Tables 22 and 23).
#[test]
fn a_semaphore_tells_its_value() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 1);
    let semaphore = workers[0].object(Semaphore::new, FIRST);
    semaphore.initialize(2).unwrap();
    assert_eq!(semaphore.wait().unwrap(), 2);
    assert_eq!(semaphore.wait().unwrap(), 1);
    std::thread::scope(|scope| {
        let theirs = workers[1].object(Semaphore::new, FIRST);
        let waits = scope.spawn(move || theirs.wait().unwrap());
        let waiting = || owner.word(WAITING) as u32;
        while waiting() == 0 {
            std::thread::yield_now();
        }
        assert_eq!(semaphore.signal().unwrap(), 0, "the other gets it");
        assert_eq!(waits.join().unwrap(), 0);
    });
    assert_eq!(semaphore.signal().unwrap(), 1);
    assert_eq!(semaphore.signal().unwrap(), 2);
}

#[test]
fn a_semaphore_lets_as_many_in_as_it_says_and_loses_no_unit() {
    const UNITS: u32 = 3;
    const ROUNDS: usize = 15;
    let cluster = Cluster::on_bad_links(4, 5.0);
    let (_owner, workers) = workers(&cluster, 4, 2);
    let semaphore = workers[0].object(Semaphore::new, FIRST);
    semaphore.initialize(UNITS).unwrap();
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    in_threads(&workers, |_, worker| {
        let semaphore = worker.object(Semaphore::new, FIRST);
        for _ in 0..ROUNDS {
            let permit = semaphore.acquire().unwrap();
            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            inside.fetch_sub(1, Ordering::SeqCst);
            drop(permit);
        }
    });
    assert!(most.into_inner() <= UNITS);
    assert_eq!(semaphore.value().unwrap(), UNITS);
    let semaphore = workers[1].object(Semaphore::new, FIRST);
    for left in (0..UNITS).rev() {
        assert!(semaphore.try_wait().unwrap());
        assert_eq!(semaphore.value().unwrap(), left);
    }
    assert!(!semaphore.try_wait().unwrap());
}

/// A buffer of three slots in a monitor: every item is taken once, and no process waits for
/// ever.
#[test]
fn a_monitor_makes_a_bounded_buffer() {
    const SLOTS: u64 = 3;
    const ROUNDS: u64 = 12;
    let cluster = Cluster::on_bad_links(4, 5.0);
    let (_owner, workers) = workers(&cluster, 4, 2);
    let half = workers.len() as u64 / 2;
    // Filled and taken so far, then the slots.
    let (put, taken, slots) = (DATA, DATA + 8, DATA + 16);
    let items = in_threads(&workers, |number, worker| {
        let (full, empty) = (
            worker.object(Condition::new, SECOND),
            worker.object(Condition::new, THIRD),
        );
        let monitor = worker.object(Monitor::new, FIRST);
        let mut items = BTreeSet::new();
        for round in 0..ROUNDS {
            let mut guard = monitor.enter().unwrap();
            if number % 2 == 0 {
                while worker.read_word(put) - worker.read_word(taken) == SLOTS {
                    guard = guard.wait(&full).unwrap();
                }
                let index = worker.read_word(put);
                worker.write_word(slots + index % SLOTS * 8, number * 1000 + round);
                worker.write_word(put, index + 1);
                guard.signal(&empty).unwrap();
            } else {
                while worker.read_word(put) == worker.read_word(taken) {
                    guard = guard.wait(&empty).unwrap();
                }
                let index = worker.read_word(taken);
                let item = worker.read_word(slots + index % SLOTS * 8);
                assert!(items.insert(item), "{item} came twice");
                worker.write_word(taken, index + 1);
                guard.signal(&full).unwrap();
            }
            guard.leave().unwrap();
        }
        items
    });
    let count: usize = items.iter().map(BTreeSet::len).sum();
    let all: BTreeSet<u64> = items.into_iter().flatten().collect();
    let expected: BTreeSet<u64> = (0..half)
        .flat_map(|producer| (0..ROUNDS).map(move |round| producer * 2000 + round))
        .collect();
    assert_eq!(count, expected.len());
    assert_eq!(all, expected);
}

#[test]
fn an_entry_of_a_wait_queue_outlives_a_timeout() {
    let cluster = Cluster::new(2);
    let (_owner, workers) = workers(&cluster, 2, 1);
    let [first, second] = [0, 1].map(|worker: usize| workers[worker].object(WaitQueue::new, FIRST));
    assert!(!first.remove().unwrap(), "the signal is lost");
    let mut waiting = second.insert().unwrap();
    assert_error!(waiting.wait(SHORT), Error::TimedOut);
    let mut next = second.insert().unwrap();
    assert!(first.remove().unwrap());
    assert!(first.remove().unwrap(), "the second is known later");
    assert!(!first.remove().unwrap());
    waiting.wait(Some(SOON)).unwrap();
    next.wait(Some(SOON)).unwrap();
    waiting.wait(SHORT).unwrap();
    // An entry that goes without being woken breaks the queue for those behind.
    let gone = second.insert().unwrap();
    let mut behind = first.insert().unwrap();
    drop(gone);
    assert_error!(behind.wait(Some(SOON)), Error::Broken { .. });
    assert!(first.recover().unwrap());
    assert!(!second.recover().unwrap(), "once is enough");
    let mut again = second.insert().unwrap();
    assert!(first.remove().unwrap());
    again.wait(Some(SOON)).unwrap();
}

/// Starts the example `lock` on a node, and waits until it has printed its state.
pub(crate) fn child(cluster: &Cluster, node: u16, role: &str) -> Child {
    let mut child = start(cluster, node, "lock", &[role, "0"]);
    let mut said = String::new();
    let out = child.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut said).unwrap();
    assert!(!said.is_empty());
    child
}

/// The owner of the lock of the example `lock`, and three handles of that lock in another
/// process, each with a participant of its own.
pub(crate) fn example_lock(cluster: &Cluster) -> (Peer, [Lock; 3]) {
    const LOCK: SegmentName = SegmentName(0x6c6f_636b);
    let nic = cluster.nic(0);
    let endpoint = nic.register(Port(300)).unwrap();
    let buffer = endpoint.allocate(4096).unwrap();
    let owner = Peer {
        segment: endpoint.export(LOCK, &buffer, BOTH).unwrap(),
        buffer,
        endpoint,
    };
    let worker = nic.register(Port(1)).unwrap();
    let node = owner.endpoint.node();
    let remote = worker.import(node, Port(300), LOCK, SOON).unwrap();
    let locks = [(); 3].map(|()| {
        let participant = Participant::new(&worker).unwrap();
        Lock::new(&participant, &remote, 0).unwrap()
    });
    (owner, locks)
}

#[test]
fn a_killed_holder_breaks_its_lock_and_recovery_frees_it() {
    let cluster = Cluster::new(2);
    let (owner, [first, second, _]) = example_lock(&cluster);
    let holder = child(&cluster, 1, "hold");
    assert!(!first.is_broken().unwrap());
    assert!(!first.recover().unwrap(), "nothing is broken");
    std::thread::scope(|scope| {
        let tail = owner.word(TAIL as usize);
        let waiter = scope.spawn(|| first.acquire().map(drop));
        let tail = changed(&owner, TAIL, tail);
        let other = scope.spawn(|| second.acquire().map(drop));
        changed(&owner, TAIL, tail);
        let killed = Instant::now();
        kill(holder);
        for waiter in [waiter, other] {
            assert_error!(waiter.join().unwrap(), Error::Broken { .. });
        }
        assert!(killed.elapsed() < Duration::from_secs(5));
    });
    assert!(first.is_broken().unwrap());
    assert_error!(second.acquire(), Error::Broken { .. });
    assert!(first.recover().unwrap());
    assert!(!second.recover().unwrap());
    let guard = second.acquire().unwrap();
    assert!(first.try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

#[test]
fn a_killed_waiter_breaks_the_lock_for_those_behind_but_not_under_its_holder() {
    let cluster = Cluster::new(2);
    let (owner, [first, second, _]) = example_lock(&cluster);
    let guard = first.acquire().unwrap();
    let tail = owner.word(TAIL as usize);
    let victim = child(&cluster, 1, "wait");
    let tail = changed(&owner, TAIL, tail);
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| second.acquire().map(drop));
        changed(&owner, TAIL, tail);
        kill(victim);
        assert_error!(behind.join().unwrap(), Error::Broken { .. });
    });
    assert_error!(second.recover(), Error::Held { .. });
    // Whether it has a successor or not, its release ends.
    drop(guard.release());
    assert!(second.recover().unwrap());
    drop(first.acquire().unwrap());
    drop(second.acquire().unwrap());
}

/// A lock is broken behind its holder. The holder hands it over to a process in front of
/// the dead one, and at once recovers it: not under that process.
#[test]
fn a_recovery_does_not_free_a_lock_that_was_just_handed_over() {
    let cluster = Cluster::new(2);
    let (owner, [first, second, third]) = example_lock(&cluster);
    let inside = AtomicBool::new(false);
    let guard = first.acquire().unwrap();
    std::thread::scope(|scope| {
        let tail = owner.word(TAIL as usize);
        let (refused, go_on) = mpsc::channel();
        let (inside, lock) = (&inside, &second);
        let in_front = scope.spawn(move || {
            // Or it has looked in time, and has abandoned its slot.
            if let Ok(guard) = lock.acquire() {
                inside.store(true, Ordering::SeqCst);
                // Until a recovery was refused, or will never be.
                let told: Result<(), mpsc::RecvError> = go_on.recv();
                inside.store(false, Ordering::SeqCst);
                assert!(told.is_ok(), "the lock was recovered under its holder");
                // Its successor is dead, and may not have linked itself.
                drop(guard.release());
            }
        });
        let tail = changed(&owner, TAIL, tail);
        let victim = child(&cluster, 1, "wait");
        let tail = changed(&owner, TAIL, tail);
        let behind = scope.spawn(|| third.acquire().map(drop));
        changed(&owner, TAIL, tail);
        kill(victim);
        while !first.is_broken().unwrap() {}
        guard.release().unwrap();
        loop {
            match first.recover() {
                Ok(recovered) => break assert!(recovered),
                // It receives the first of these.
                Err(Error::Held { .. }) => drop(refused.send(())),
                Err(error) => panic!("{error}"),
            }
        }
        let guard = first.acquire().unwrap();
        assert!(!inside.load(Ordering::SeqCst), "two have the lock");
        guard.release().unwrap();
        drop(refused);
        assert_error!(behind.join().unwrap(), Error::Broken { .. });
        in_front.join().unwrap();
    });
    drop(second.acquire().unwrap());
}

/// A process joins behind a dead one, and the lock is recovered before it finds out: it
/// does not break the lock again, and takes it.
#[test]
fn a_stale_queue_breaks_nothing() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 1);
    let lock = workers[1].lock();
    drop(lock.acquire().unwrap());
    // A slot of a participant that the owner's port does not have any more: to find that
    // out takes the time of a first contact.
    let dead = 100 << 32 | 7 << 16 | 1;
    for (at, word) in [(FIRST as usize, dead), (TAIL as usize, dead), (TURNS, 1)] {
        owner.buffer.store_u64(at, word).unwrap();
    }
    std::thread::scope(|scope| {
        let late = scope.spawn(|| lock.acquire().and_then(LockGuard::release));
        changed(&owner, TAIL, dead);
        // What a recovery leaves.
        owner.buffer.store_u64(TURNS, 1 << 32).unwrap();
        owner.buffer.store_u64(EPOCH, 4).unwrap();
        late.join().unwrap().unwrap();
    });
    assert_eq!(owner.word(EPOCH), 4, "it is intact");
    assert_eq!(owner.word(TURNS), 1 << 32, "it is free");
}

/// The predecessor has left and has joined again, behind this process, and the signal for
/// this one is lost: it finds that out.
#[test]
fn an_entry_is_not_mistaken_for_a_later_one_of_the_same_process() {
    let cluster = Cluster::with_peer_timeout(2, Duration::from_secs(1));
    let (owner, workers) = workers(&cluster, 2, 1);
    let [first, second] = [0, 1].map(|worker: usize| workers[worker].object(WaitQueue::new, FIRST));
    let mut before = first.insert().unwrap();
    let mut waiting = second.insert().unwrap();
    assert!(second.remove().unwrap());
    before.wait(Some(SOON)).unwrap();
    let _behind = first.insert().unwrap();
    // What a process leaves that dies when it has taken the first from the queue.
    owner.buffer.store_u64(FIRST as usize, 0).unwrap();
    owner.buffer.store_u32(FIRST as usize + 16, 1).unwrap();
    assert_error!(waiting.wait(Some(SOON)), Error::Broken { .. });
}

/// A process has died while it recovered a lock: the next one does it, after its time.
#[test]
fn a_recovery_that_was_not_finished_is_repeated() {
    let peer_timeout = Duration::from_secs(1);
    let cluster = Cluster::with_peer_timeout(2, peer_timeout);
    let (owner, workers) = workers(&cluster, 2, 1);
    let lock = workers[1].lock();
    owner.buffer.store_u64(EPOCH, 3).unwrap();
    let start = Instant::now();
    assert!(lock.is_broken().unwrap());
    assert!(lock.recover().unwrap());
    assert!(start.elapsed() >= peer_timeout * 2);
    assert_eq!(owner.word(EPOCH), 8, "the epoch after next");
    drop(lock.acquire().unwrap());
}

#[test]
fn processes_of_their_own_count_together() {
    let cluster = Cluster::new(3);
    let owner = start(&cluster, 0, "lock", &["owner", "2"]);
    let counters = [1, 2].map(|node| start(&cluster, node, "lock", &["count", "0", "30"]));
    for counter in counters {
        assert!(finish(counter).contains("added 30"));
    }
    assert!(finish(owner).contains("counted to 60"));
}

/// A process that the owner refuses was in no queue: that costs it no slot.
#[test]
fn refused_attempts_use_nothing_up() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 1);
    let lock = workers[1].lock();
    lock.acquire().unwrap().release().unwrap();
    drop(owner);
    for attempt in 0..600 {
        for refused in [lock.try_acquire().map(drop), lock.acquire().map(drop)] {
            let status = refused.unwrap_err().status();
            assert_ne!(status, Some(Status::Exhausted), "{attempt}");
        }
    }
}
