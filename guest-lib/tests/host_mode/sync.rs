//! Locks, queues, monitors and semaphores (N21 to N24), on links that lose frames,
//! and when processes die.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use qnic::sync::{Condition, Lock, Monitor, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Endpoint, Error, Port, RemoteSegment, SegmentName, Status};

use crate::cluster::{Cluster, Peer, BOTH, SOON};
use crate::processes::start;

/// Where things stand in the home's buffer.
const FIRST: u64 = 0;
const SECOND: u64 = OBJECT_BYTES;
const THIRD: u64 = 2 * OBJECT_BYTES;
const DATA: u64 = 1024;

/// A process that uses objects of a home.
struct Member {
    peer: Peer,
    participant: Participant,
    home: RemoteSegment,
}

impl Member {
    fn endpoint(&self) -> &Endpoint {
        &self.peer.endpoint
    }

    fn lock(&self) -> Lock {
        Lock::new(&self.participant, &self.home, FIRST).unwrap()
    }

    fn read_word(&self, offset: u64) -> u64 {
        let part = self.peer.segment.part(0, 8);
        self.endpoint()
            .read_fenced(&self.home, offset, part)
            .unwrap();
        self.peer.buffer.load_u64(0).unwrap()
    }

    fn write_word(&self, offset: u64, value: u64) {
        let bytes = value.to_le_bytes();
        drop(self.endpoint().write(&self.home, offset, &bytes).unwrap());
    }
}

/// Processes on all nodes, the home's own node among them.
fn members(cluster: &Cluster, nodes: u16, ports: u16) -> (Peer, Vec<Member>) {
    let nics: Vec<_> = (0..nodes).map(|node| cluster.nic(node)).collect();
    let home = Peer::new(&nics[0], 100, 8192);
    let members = nics
        .iter()
        .flat_map(|nic| (1..=ports).map(move |port| Peer::new(nic, port, 4096)))
        .map(|peer| Member {
            home: peer.import(&home),
            participant: Participant::new(&peer.endpoint).unwrap(),
            peer,
        })
        .collect();
    (home, members)
}

/// A word of the home is read, changed and written by many: only the lock makes
/// that exact.
#[test]
fn a_lock_makes_a_plain_counter_exact_on_bad_links() {
    const ROUNDS: u64 = 15;
    let cluster = Cluster::on_bad_links(4, 5.0);
    let (home, members) = members(&cluster, 4, 2);
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(|| {
                let lock = member.lock();
                for _ in 0..ROUNDS {
                    let guard = lock.acquire().unwrap();
                    let value = member.read_word(DATA);
                    member.write_word(DATA, value + 1);
                    guard.release().unwrap();
                }
            });
        }
    });
    let total = home.buffer.load_u64(DATA as usize).unwrap();
    assert_eq!(total, members.len() as u64 * ROUNDS);
    assert_eq!(
        home.buffer.load_u64(FIRST as usize).unwrap(),
        0,
        "it is free"
    );
}

/// Threads of one process contend, by one participant.
#[test]
fn threads_of_one_process_share_a_participant() {
    const ROUNDS: u32 = 50;
    let cluster = Cluster::new(2);
    let (_home, members) = members(&cluster, 2, 1);
    let lock = members[1].lock();
    let (inside, total) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let _guard = lock.acquire().unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst));
                    total.fetch_add(1, Ordering::Relaxed);
                    assert!(inside.swap(false, Ordering::SeqCst));
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * ROUNDS);
    let guard = lock.try_acquire().unwrap().unwrap();
    assert!(members[0].lock().try_acquire().unwrap().is_none());
    drop(guard);
    assert!(members[0].lock().try_acquire().unwrap().is_some());
}

/// Waits until the home's word differs from `before`; returns it.
fn changed(home: &Peer, offset: u64, before: u64) -> u64 {
    let until = Instant::now() + SOON;
    loop {
        let word = home.buffer.load_u64(offset as usize).unwrap();
        if word != before {
            return word;
        }
        assert!(Instant::now() < until, "nobody came");
        std::thread::yield_now();
    }
}

/// Whoever joins first goes first, in each of the queues.
#[test]
fn first_come_is_first_served() {
    let cluster = Cluster::new(3);
    let (home, members) = members(&cluster, 3, 2);
    let first = &members[0];
    let semaphore =
        |member: &Member| Semaphore::new(&member.participant, &member.home, SECOND).unwrap();
    let queue = |member: &Member| WaitQueue::new(&member.participant, &member.home, THIRD).unwrap();
    // The offset of the word that changes when somebody joins.
    for (kind, joins) in [(0, FIRST), (1, SECOND + 8), (2, THIRD + 8)] {
        let (send, order) = mpsc::channel();
        let lock = first.lock();
        let guard = lock.acquire().unwrap();
        std::thread::scope(|scope| {
            let mut word = home.buffer.load_u64(joins as usize).unwrap();
            for (number, member) in members.iter().enumerate().skip(1) {
                let send = send.clone();
                scope.spawn(move || match kind {
                    0 => {
                        let lock = member.lock();
                        let _guard = lock.acquire().unwrap();
                        send.send(number).unwrap();
                    }
                    1 => {
                        semaphore(member).wait().unwrap();
                        send.send(number).unwrap();
                    }
                    _ => {
                        queue(member).insert().unwrap().wait(Some(SOON)).unwrap();
                        send.send(number).unwrap();
                    }
                });
                word = changed(&home, joins, word);
            }
            let mut got = Vec::new();
            drop(guard);
            for _ in 1..members.len() {
                match kind {
                    0 => {}
                    1 => semaphore(first).signal().unwrap(),
                    _ => assert!(queue(first).remove().unwrap()),
                }
                got.push(order.recv_timeout(SOON).unwrap());
            }
            assert_eq!(got, (1..members.len()).collect::<Vec<_>>(), "kind {kind}");
        });
    }
    assert!(!queue(first).remove().unwrap(), "nobody waits any more");
    assert_eq!(semaphore(first).value().unwrap(), 0);
}

#[test]
fn a_semaphore_lets_as_many_in_as_it_says_and_loses_no_unit() {
    const UNITS: u32 = 3;
    const ROUNDS: usize = 15;
    let cluster = Cluster::on_bad_links(4, 5.0);
    let (_home, members) = members(&cluster, 4, 2);
    let semaphore =
        |member: &Member| Semaphore::new(&member.participant, &member.home, FIRST).unwrap();
    semaphore(&members[0]).initialize(UNITS).unwrap();
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for member in &members {
            scope.spawn(|| {
                let semaphore = semaphore(member);
                for _ in 0..ROUNDS {
                    let permit = semaphore.acquire().unwrap();
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
    });
    assert!(most.into_inner() <= UNITS);
    assert_eq!(semaphore(&members[0]).value().unwrap(), UNITS);
    for left in (0..UNITS).rev() {
        assert!(semaphore(&members[1]).try_wait().unwrap());
        assert_eq!(semaphore(&members[1]).value().unwrap(), left);
    }
    assert!(!semaphore(&members[1]).try_wait().unwrap());
}

/// A buffer of three places in a monitor: every item is taken once, and nobody
/// waits for ever.
#[test]
fn a_monitor_makes_a_bounded_buffer() {
    const PLACES: u64 = 3;
    const ROUNDS: u64 = 12;
    let cluster = Cluster::on_bad_links(4, 5.0);
    let (_home, members) = members(&cluster, 4, 2);
    let half = members.len() as u64 / 2;
    // Filled and taken so far, then the places.
    let (put, taken, places) = (DATA, DATA + 8, DATA + 16);
    let items: Vec<BTreeSet<u64>> = std::thread::scope(|scope| {
        let mut consumers = Vec::new();
        for (number, member) in (0..).zip(&members) {
            let body = move || {
                let at = |offset| (&member.participant, &member.home, offset);
                let new = |(participant, home, offset)| {
                    Condition::new(participant, home, offset).unwrap()
                };
                let (full, empty) = (new(at(SECOND)), new(at(THIRD)));
                let monitor = Monitor::new(&member.participant, &member.home, FIRST).unwrap();
                let mut items = BTreeSet::new();
                for round in 0..ROUNDS {
                    let mut guard = monitor.enter().unwrap();
                    if number % 2 == 0 {
                        while member.read_word(put) - member.read_word(taken) == PLACES {
                            guard = guard.wait(&full).unwrap();
                        }
                        let place = member.read_word(put);
                        member.write_word(places + place % PLACES * 8, number * 1000 + round);
                        member.write_word(put, place + 1);
                        guard.signal(&empty).unwrap();
                    } else {
                        while member.read_word(put) == member.read_word(taken) {
                            guard = guard.wait(&empty).unwrap();
                        }
                        let place = member.read_word(taken);
                        let item = member.read_word(places + place % PLACES * 8);
                        assert!(items.insert(item), "{item} came twice");
                        member.write_word(taken, place + 1);
                        guard.signal(&full).unwrap();
                    }
                    guard.leave().unwrap();
                }
                items
            };
            consumers.push(scope.spawn(body));
        }
        consumers
            .into_iter()
            .map(|consumer| consumer.join().unwrap())
            .collect()
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
fn a_place_in_a_wait_queue_outlives_a_timeout() {
    let cluster = Cluster::new(2);
    let (_home, members) = members(&cluster, 2, 1);
    let queues: Vec<_> = members
        .iter()
        .map(|member| WaitQueue::new(&member.participant, &member.home, FIRST).unwrap())
        .collect();
    assert!(!queues[0].remove().unwrap(), "the signal is lost");
    let mut waiting = queues[1].insert().unwrap();
    let short = Some(Duration::from_millis(1));
    assert!(matches!(waiting.wait(short), Err(Error::TimedOut)));
    let mut second = queues[1].insert().unwrap();
    assert!(queues[0].remove().unwrap());
    assert!(queues[0].remove().unwrap(), "the second is known later");
    assert!(!queues[0].remove().unwrap());
    waiting.wait(Some(SOON)).unwrap();
    second.wait(Some(SOON)).unwrap();
    waiting.wait(short).unwrap();
    // One who goes without being woken breaks the queue for those behind.
    let gone = queues[1].insert().unwrap();
    let mut behind = queues[0].insert().unwrap();
    drop(gone);
    assert!(matches!(behind.wait(Some(SOON)), Err(Error::Broken { .. })));
    assert!(queues[0].recover().unwrap());
    assert!(!queues[1].recover().unwrap(), "once is enough");
    let mut again = queues[1].insert().unwrap();
    assert!(queues[0].remove().unwrap());
    again.wait(Some(SOON)).unwrap();
}

/// Starts the example `lock` on a node, and waits until it has said so.
fn child(cluster: &Cluster, node: u16, role: &str) -> Child {
    let mut child = start(cluster, node, "lock", &[role, "0"]);
    let mut said = String::new();
    let out = child.stdout.as_mut().unwrap();
    BufReader::new(out).read_line(&mut said).unwrap();
    assert!(!said.is_empty());
    child
}

/// The home of the example `lock`, and a member beside it.
fn example_home(cluster: &Cluster) -> (Peer, Peer, Lock, Lock) {
    const HOME: SegmentName = SegmentName(0x6c6f_636b);
    let nic = cluster.nic(0);
    let endpoint = nic.register(Port(300)).unwrap();
    let buffer = endpoint.allocate(4096).unwrap();
    let home = Peer {
        segment: endpoint.export(HOME, &buffer, BOTH).unwrap(),
        buffer,
        endpoint,
    };
    let member = Peer::new(&nic, 1, 4096);
    let remote = member
        .endpoint
        .import(home.endpoint.node(), Port(300), HOME, SOON)
        .unwrap();
    let lock = |peer: &Peer| {
        let participant = Participant::new(&peer.endpoint).unwrap();
        Lock::new(&participant, &remote, 0).unwrap()
    };
    let (first, second) = (lock(&member), lock(&member));
    (home, member, first, second)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_holder_breaks_its_lock_and_recovery_frees_it() {
    let cluster = Cluster::new(2);
    let (home, _member, first, second) = example_home(&cluster);
    let holder = child(&cluster, 1, "hold");
    assert!(!first.is_broken().unwrap());
    assert!(!first.recover().unwrap(), "nothing is broken");
    std::thread::scope(|scope| {
        let tail = home.buffer.load_u64(0).unwrap();
        let waiter = scope.spawn(|| first.acquire().map(drop));
        let tail = changed(&home, 0, tail);
        let other = scope.spawn(|| second.acquire().map(drop));
        changed(&home, 0, tail);
        let killed = Instant::now();
        kill(holder);
        for waiter in [waiter, other] {
            let error = waiter.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Broken { .. }), "{error}");
        }
        assert!(killed.elapsed() < Duration::from_secs(5));
    });
    assert!(first.is_broken().unwrap());
    let error = second.acquire().map(drop).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error}");
    assert!(first.recover().unwrap());
    assert!(!second.recover().unwrap());
    let guard = second.acquire().unwrap();
    assert!(first.try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

#[test]
fn a_killed_waiter_breaks_the_lock_for_those_behind_but_not_under_its_holder() {
    let cluster = Cluster::new(2);
    let (home, _member, first, second) = example_home(&cluster);
    let guard = first.acquire().unwrap();
    let tail = home.buffer.load_u64(0).unwrap();
    let victim = child(&cluster, 1, "wait");
    let tail = changed(&home, 0, tail);
    std::thread::scope(|scope| {
        let behind = scope.spawn(|| second.acquire().map(drop));
        changed(&home, 0, tail);
        kill(victim);
        let error = behind.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
    });
    let error = second.recover().unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error}");
    // Whether it has a successor or not, its release ends.
    drop(guard.release());
    assert!(second.recover().unwrap());
    drop(first.acquire().unwrap());
    drop(second.acquire().unwrap());
}

/// The holder of a lock that was broken behind it hands it over to one in front of the
/// dead, and at once recovers it: not under that one.
#[test]
fn a_recovery_does_not_free_a_lock_that_was_just_handed_over() {
    let cluster = Cluster::new(2);
    let (home, member, first, second) = example_home(&cluster);
    let remote = member
        .endpoint
        .import(
            home.endpoint.node(),
            Port(300),
            SegmentName(0x6c6f_636b),
            SOON,
        )
        .unwrap();
    let participant = Participant::new(&member.endpoint).unwrap();
    let third = Lock::new(&participant, &remote, 0).unwrap();
    let inside = AtomicBool::new(false);
    let guard = first.acquire().unwrap();
    std::thread::scope(|scope| {
        let tail = home.buffer.load_u64(0).unwrap();
        let (refused, go_on) = mpsc::channel();
        let (inside, lock) = (&inside, &second);
        let in_front = scope.spawn(move || {
            // Or it has looked in time, and given up.
            if let Ok(guard) = lock.acquire() {
                inside.store(true, Ordering::SeqCst);
                // Until a recovery was refused, or will never be.
                let told: Result<(), mpsc::RecvError> = go_on.recv();
                inside.store(false, Ordering::SeqCst);
                assert!(told.is_ok(), "the lock was recovered under its holder");
                // Behind it is somebody dead, who may not have chained himself up.
                drop(guard.release());
            }
        });
        let tail = changed(&home, 0, tail);
        let victim = child(&cluster, 1, "wait");
        let tail = changed(&home, 0, tail);
        let behind = scope.spawn(|| third.acquire().map(drop));
        changed(&home, 0, tail);
        kill(victim);
        while !first.is_broken().unwrap() {}
        guard.release().unwrap();
        loop {
            match first.recover() {
                Ok(recovered) => break assert!(recovered),
                // It hears the first of these.
                Err(Error::Held { .. }) => drop(refused.send(())),
                Err(error) => panic!("{error}"),
            }
        }
        let guard = first.acquire().unwrap();
        assert!(!inside.load(Ordering::SeqCst), "two have the lock");
        guard.release().unwrap();
        drop(refused);
        let error = behind.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Broken { .. }), "{error}");
        in_front.join().unwrap();
    });
    drop(second.acquire().unwrap());
}

/// A process joins behind a dead one, and the lock is recovered before it finds out: it
/// does not break the lock again, and takes it.
#[test]
fn a_queue_of_the_past_breaks_nothing() {
    const LIFE: usize = 32;
    let cluster = Cluster::new(2);
    let (home, members) = members(&cluster, 2, 1);
    let lock = members[1].lock();
    drop(lock.acquire().unwrap());
    // A slot of a participant that the port of the home does not have any more: to find
    // that out takes the time of a first contact.
    let dead = 100 << 32 | 7 << 16 | 1;
    home.buffer.store_u64(FIRST as usize, dead).unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| lock.acquire().and_then(qnic::sync::LockGuard::release));
        changed(&home, FIRST, dead);
        // What a recovery leaves.
        home.buffer.store_u64(FIRST as usize, 0).unwrap();
        home.buffer.store_u64(LIFE, 4).unwrap();
        late.join().unwrap().unwrap();
    });
    assert_eq!(home.buffer.load_u64(LIFE).unwrap(), 4, "it is in order");
    assert_eq!(
        home.buffer.load_u64(FIRST as usize).unwrap(),
        0,
        "it is free"
    );
}

/// The one before has left and has joined again, behind this one, and the signal for this
/// one is lost: it finds that out.
#[test]
fn a_place_is_not_mistaken_for_a_later_one_of_the_same_process() {
    let cluster = Cluster::new(2);
    let (home, members) = members(&cluster, 2, 1);
    let queues: Vec<_> = members
        .iter()
        .map(|member| WaitQueue::new(&member.participant, &member.home, FIRST).unwrap())
        .collect();
    let mut before = queues[0].insert().unwrap();
    let mut waiting = queues[1].insert().unwrap();
    assert!(queues[1].remove().unwrap());
    before.wait(Some(SOON)).unwrap();
    let _behind = queues[0].insert().unwrap();
    // What somebody leaves who dies when he has taken the first from the queue.
    home.buffer.store_u64(FIRST as usize, 0).unwrap();
    home.buffer.store_u32(FIRST as usize + 16, 1).unwrap();
    let error = waiting.wait(Some(SOON)).unwrap_err();
    assert!(matches!(error, Error::Broken { .. }), "{error}");
}

/// Somebody has died while he recovered a lock: the next one does it, after his time.
#[test]
fn a_recovery_that_was_not_finished_is_repeated() {
    const LIFE: usize = 32;
    let cluster = Cluster::new(2);
    let (home, members) = members(&cluster, 2, 1);
    let lock = members[1].lock();
    home.buffer.store_u64(LIFE, 3).unwrap();
    let start = Instant::now();
    assert!(lock.is_broken().unwrap());
    assert!(lock.recover().unwrap());
    assert!(start.elapsed() >= qnic::sync::LINK_LIMIT);
    assert_eq!(
        home.buffer.load_u64(LIFE).unwrap(),
        8,
        "the life after next"
    );
    drop(lock.acquire().unwrap());
}

#[test]
fn processes_of_their_own_count_together() {
    let cluster = Cluster::new(3);
    let home = start(&cluster, 0, "lock", &["home", "2"]);
    let counters = [1, 2].map(|node| start(&cluster, node, "lock", &["count", "0", "30"]));
    for counter in counters {
        assert!(crate::processes::finish(counter).contains("added 30"));
    }
    assert!(crate::processes::finish(home).contains("counted to 60"));
}

/// Who is refused at the home has stood in no queue: that costs it no place.
#[test]
fn refused_attempts_use_nothing_up() {
    let cluster = Cluster::new(2);
    let (home, members) = members(&cluster, 2, 1);
    let lock = members[1].lock();
    lock.acquire().unwrap().release().unwrap();
    drop(home);
    for attempt in 0..600 {
        let error = lock.try_acquire().map(drop).unwrap_err();
        assert_ne!(error.status(), Some(Status::Exhausted), "{attempt}");
        let error = lock.acquire().map(drop).unwrap_err();
        assert_ne!(error.status(), Some(Status::Exhausted), "{attempt}");
    }
}
