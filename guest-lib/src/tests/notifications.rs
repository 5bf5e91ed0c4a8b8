//! Notifications: counted ones, the queue, waiting.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::fake_nic::Wake;
use super::{setup, ONE, SECOND};
use crate::{Error, NotificationId, OneShot, Signal};

const TWO: NotificationId = NotificationId::new(2).unwrap();

fn one_shot(number: u32) -> Signal {
    OneShot::new(number).unwrap().into()
}

#[test]
fn notifications_count_signals_less_acknowledgements() {
    let (fake, endpoint, _remote) = setup();
    let notification = endpoint.notification(ONE);
    assert!(!notification.test());
    assert!(!notification.acknowledge());
    fake.signal(1);
    fake.signal(1);
    fake.signal(2);
    assert_eq!(notification.wait(None).unwrap(), 2);
    assert_eq!(notification.spin(SECOND).unwrap(), 2);
    assert!(notification.acknowledge());
    notification.take(None).unwrap();
    assert_eq!(notification.pending(), 0);
    let short = Duration::from_millis(5);
    assert_error!(notification.wait(Some(short)), Error::TimedOut);
    assert_error!(notification.spin(short), Error::TimedOut);
    assert_error!(notification.take(Some(short)), Error::TimedOut);
}

#[test]
fn a_sleeping_waiter_is_woken() {
    let (fake, endpoint, _remote) = setup();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| endpoint.notification(ONE).wait(None));
        fake.await_request(Wake::Signal);
        fake.signal(1);
        assert_eq!(waiter.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn takers_share_the_signals_among_them() {
    let (fake, endpoint, _remote) = setup();
    std::thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..25).all(|_| endpoint.notification(ONE).take(None).is_ok())))
            .collect();
        for _ in 0..100 {
            fake.signal(1);
        }
        assert!(takers.into_iter().all(|taker| taker.join().unwrap()));
    });
    assert_eq!(endpoint.notification(ONE).pending(), 0);
}

#[test]
fn the_queue_names_what_is_watched_until_it_is_acknowledged() {
    let (fake, endpoint, _remote) = setup();
    let queue = endpoint.queue();
    fake.signal(1);
    assert_eq!(queue.remove().unwrap(), None, "nothing watches it");
    queue.watch(ONE).unwrap();
    assert_error!(queue.watch(ONE), Error::Armed(1));
    queue.watch(TWO).unwrap();
    fake.signal(2);
    fake.signal(5000);
    fake.signal(1);
    let mut seen = Vec::new();
    while let Some(signal) = queue.remove().unwrap() {
        if let Signal::Counted(id) = signal {
            assert!(endpoint.notification(id).acknowledge());
        }
        seen.push(signal);
    }
    let [one, two] = [ONE, TWO].map(Signal::from);
    assert_eq!(seen, [one, two, one, one_shot(5000)]);
    queue.unwatch(ONE);
    fake.signal(1);
    assert_eq!(queue.remove().unwrap(), None);
    assert!(endpoint.notification(ONE).test());
}

#[test]
fn a_sleeper_on_the_queue_is_woken_by_signals_old_and_new() {
    let (fake, endpoint, _remote) = setup();
    let queue = endpoint.queue();
    for signalled_before in [false, true] {
        std::thread::scope(|scope| {
            if signalled_before {
                fake.signal(2);
            }
            let waiter = scope.spawn(|| queue.wait(None));
            fake.await_request(Wake::Signal);
            queue.watch(TWO).unwrap();
            if !signalled_before {
                fake.signal(2);
            }
            assert_eq!(waiter.join().unwrap().unwrap(), Signal::Counted(TWO));
        });
        assert!(endpoint.notification(TWO).acknowledge());
        queue.unwatch(TWO);
    }
    let timeout = Some(Duration::from_millis(5));
    assert_error!(queue.wait(timeout), Error::TimedOut);
}

#[test]
fn lost_one_shots_are_reported_once() {
    let (fake, endpoint, _remote) = setup();
    let queue = endpoint.queue();
    fake.signal(1024);
    fake.lose(3);
    assert_eq!(queue.remove().unwrap(), Some(one_shot(1024)));
    assert_error!(queue.remove(), Error::NotificationsLost(3));
    assert_eq!(queue.remove().unwrap(), None);
    fake.lose(4);
    assert_error!(queue.wait(Some(SECOND)), Error::NotificationsLost(1));
}

#[test]
fn one_of_several_is_waited_for() {
    let (fake, endpoint, _remote) = setup();
    let short = Some(Duration::from_millis(5));
    for ids in [&[][..], &[ONE, TWO]] {
        assert_error!(endpoint.wait_any(ids, short), Error::TimedOut);
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| endpoint.wait_any(&[ONE, TWO], None));
        fake.await_request(Wake::Signal);
        fake.signal(2);
        assert_eq!(waiter.join().unwrap().unwrap(), TWO);
    });
    fake.signal(1);
    let found: BTreeSet<_> = (0..4)
        .map(|_| endpoint.wait_any(&[ONE, TWO], None).unwrap())
        .collect();
    assert_eq!(found.len(), 2, "each gets its turn");
}

#[derive(Debug, Clone)]
enum Step {
    Signal(u32),
    Watch(u32),
    Unwatch(u32),
    Acknowledge(u32),
    Remove,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![1u32..6, 1024u32..1030].prop_map(Step::Signal),
        2 => (1u32..6).prop_map(Step::Watch),
        1 => (1u32..6).prop_map(Step::Unwatch),
        2 => (1u32..6).prop_map(Step::Acknowledge),
        4 => Just(Step::Remove),
    ]
}

proptest! {
    /// The queue against counters and a list: one-shot ones in order, of counted
    /// ones those that are watched and pending, and none of them forgotten.
    #[test]
    fn the_queue_forgets_nothing_and_invents_nothing(
        steps in proptest::collection::vec(step(), 0..300),
    ) {
        let (fake, endpoint, _remote) = setup();
        let queue = endpoint.queue();
        let mut pending = BTreeMap::<u32, u64>::new();
        let mut watched = BTreeSet::new();
        let mut one_shots = VecDeque::new();
        let id = |number| NotificationId::new(number).unwrap();
        for step in steps.into_iter().chain((0..600).map(|_| Step::Remove)) {
            match step {
                Step::Signal(number) => {
                    fake.signal(number);
                    match NotificationId::new(number) {
                        Some(_) => *pending.entry(number).or_default() += 1,
                        None => one_shots.push_back(number),
                    }
                }
                Step::Watch(number) => {
                    prop_assert_eq!(queue.watch(id(number)).is_ok(), watched.insert(number));
                }
                Step::Unwatch(number) => {
                    queue.unwatch(id(number));
                    watched.remove(&number);
                }
                Step::Acknowledge(number) => {
                    let left = pending.entry(number).or_default();
                    let acknowledged = endpoint.notification(id(number)).acknowledge();
                    prop_assert_eq!(acknowledged, *left > 0);
                    *left = left.saturating_sub(1);
                }
                Step::Remove => match queue.remove().unwrap() {
                    Some(Signal::OneShot(one_shot)) => {
                        prop_assert_eq!(one_shots.pop_front(), Some(one_shot.number()));
                    }
                    Some(Signal::Counted(id)) => {
                        prop_assert!(watched.contains(&id.number()));
                        prop_assert!(endpoint.notification(id).acknowledge());
                        let left = pending.get_mut(&id.number()).unwrap();
                        prop_assert!(*left > 0);
                        *left -= 1;
                    }
                    None => {
                        prop_assert!(one_shots.is_empty());
                        let forgotten = watched.iter().any(|n| pending.get(n).is_some_and(|p| *p > 0));
                        prop_assert!(!forgotten);
                    }
                },
            }
        }
        prop_assert!(one_shots.is_empty());
    }
}
