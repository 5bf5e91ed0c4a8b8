//! Places in the queues of locks, semaphores, monitors and conditions: they outlive timeouts, and
//! those of a queue that a recovery has thrown away do nothing to the next one (N21 to N24).

use std::time::Duration;

use qnic::sync::{Condition, Monitor, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::Error;

use crate::cluster::{Cluster, SOON};
use crate::sync::{workers, EPOCH, FIRST, SECOND, SHORT, THIRD, TURNS};

/// A wait for a lock that timed out stays in the queue: it is served in its turn.
#[test]
fn a_wait_for_a_lock_outlives_a_timeout() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 1);
    let (first, second) = (workers[0].lock(), workers[1].lock());
    let guard = first.acquire().unwrap();
    let mut waiting = second.waiting();
    for _ in 0..3 {
        assert_error!(waiting.wait(SHORT), Error::TimedOut);
    }
    assert_eq!(owner.word(TURNS), 2, "it has joined once");
    guard.release().unwrap();
    let guard = waiting.wait(Some(SOON)).unwrap();
    assert!(first.try_acquire().unwrap().is_none());
    assert_error!(first.waiting().wait(SHORT), Error::TimedOut);
    // The other one gave up out of turn.
    assert!(first.is_broken().unwrap());
    drop(guard);
    assert!(second.recover().unwrap());
    let mut again = second.waiting();
    let guard = again.wait(Some(Duration::ZERO)).unwrap();
    assert_error!(first.waiting().wait(Some(Duration::ZERO)), Error::TimedOut);
    drop(guard);
}

/// A lock that comes to a process which has stopped waiting for it goes on to the next one.
#[test]
fn a_turn_that_comes_after_a_timeout_is_passed_on() {
    let cluster = Cluster::new(2);
    let (_owner, workers) = workers(&cluster, 2, 1);
    let (first, second) = (workers[0].lock(), workers[1].lock());
    let guard = first.acquire().unwrap();
    let mut waiting = second.waiting();
    assert_error!(waiting.wait(SHORT), Error::TimedOut);
    guard.release().unwrap();
    // Its grant is in place when the atomic operation behind it is done.
    workers[0].peer.endpoint.flush().wait().unwrap();
    drop(waiting);
    assert!(!first.is_broken().unwrap());
    drop(first.waiting().wait(Some(SOON)).unwrap());

    let [a, b] = [0, 1].map(|index| workers[index].object(Semaphore::new, SECOND));
    a.initialize(1).unwrap();
    let unit = a.acquire().unwrap();
    let mut waiting = b.waiting();
    assert_error!(waiting.wait(SHORT), Error::TimedOut);
    drop(unit);
    workers[0].peer.endpoint.flush().wait().unwrap();
    drop(waiting);
    assert!(!a.is_broken().unwrap());
    assert_eq!(a.value().unwrap(), 1, "no unit is lost");
}

#[test]
fn a_wait_for_a_unit_or_a_monitor_outlives_a_timeout() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 1);
    let [a, b] = [0, 1].map(|index| workers[index].object(Semaphore::new, FIRST));
    let mut waiting = b.waiting();
    for _ in 0..3 {
        assert_error!(waiting.wait(SHORT), Error::TimedOut);
    }
    assert_eq!(owner.word(TURNS), 1, "it has joined once");
    a.signal().unwrap();
    waiting.wait(Some(SOON)).unwrap().keep();
    assert!(!a.try_wait().unwrap());

    let [one, other] = [0, 1].map(|index| workers[index].object(Monitor::new, SECOND));
    let [ready, signalled] = [0, 1].map(|index| workers[index].object(Condition::new, THIRD));
    let inside = one.enter().unwrap();
    let mut waiting = other.waiting();
    assert_error!(waiting.wait(SHORT), Error::TimedOut);
    let mut event = inside.leave_to_wait(&ready).unwrap();
    assert_error!(event.wait(SHORT), Error::TimedOut);
    let inside = waiting.wait(Some(SOON)).unwrap();
    assert!(inside.signal(&signalled).unwrap(), "it waits still");
    inside.leave().unwrap();
    event.wait(Some(SOON)).unwrap();
    drop(one.enter().unwrap());
}

/// A process that waited in a queue which a recovery has thrown away does nothing to the new
/// one: neither when it gives up, nor when it hands over.
#[test]
fn a_recovered_queue_is_not_broken_by_those_of_the_old_one() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 2);
    let queue = |worker: usize| workers[worker].object(WaitQueue::new, FIRST);
    let queues = [0, 1, 2, 3].map(queue);
    let mut woken = queues[0].insert().unwrap();
    let behind = queues[1].insert().unwrap();
    let gives_up = queues[2].insert().unwrap();
    assert!(queues[3].remove().unwrap());
    owner.buffer.store_u64(EPOCH, 1).unwrap();
    assert!(queues[3].recover().unwrap());

    let mut new = queues[3].insert().unwrap();
    let structure = || owner.bytes(FIRST as usize, OBJECT_BYTES as usize);
    let before = structure();
    woken.wait(Some(SOON)).unwrap();
    assert_eq!(structure(), before, "a head of the old queue");
    drop(gives_up);
    drop(behind);
    assert!(!queues[3].is_broken().unwrap());
    assert_eq!(structure(), before);
    // One that knew the old epoch only joins the new queue, and signals go there.
    let mut last = queues[1].insert().unwrap();
    for _ in 0..2 {
        assert!(queues[0].remove().unwrap());
    }
    new.wait(Some(SOON)).unwrap();
    last.wait(Some(SOON)).unwrap();
    assert!(!queues[0].remove().unwrap());
}

#[test]
fn a_recovered_semaphore_is_not_broken_by_those_of_the_old_queue() {
    let cluster = Cluster::new(2);
    let (owner, workers) = workers(&cluster, 2, 2);
    let [a, b, c] = [0, 1, 2].map(|worker| workers[worker].object(Semaphore::new, FIRST));
    let (mut first, mut second) = (b.waiting(), c.waiting());
    assert_error!(first.wait(SHORT), Error::TimedOut);
    assert_error!(second.wait(SHORT), Error::TimedOut);
    owner.buffer.store_u64(EPOCH, 1).unwrap();
    assert!(a.recover(2).unwrap());
    let broken = first.wait(Some(SOON));
    assert_error!(broken, Error::Broken { .. });
    drop(second);
    assert!(!a.is_broken().unwrap());
    assert_eq!(a.value().unwrap(), 2);
    first.wait(Some(SOON)).unwrap().keep();
    assert_eq!(a.value().unwrap(), 1);
}
