//! Notifications in all their forms: queue, handlers, poll (N16, N17).

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use qnic::message::{Pattern, Source, Tag};
use qnic::{Error, NotificationId, OneShot, Poller, Signal};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::cluster::{id, pair, Cluster, Peer, ONE, SOON};
use crate::messages::Party;

fn one_shot(number: u32) -> OneShot {
    OneShot::new(number).unwrap()
}

#[test]
fn one_shots_arrive_once_each_and_in_order() {
    let pair = pair(4096);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..5000u32 {
                // Never more under way than the queue has room for.
                if number >= 400 {
                    a.take(ONE);
                }
                a.signal(remote, one_shot(1024 + number));
            }
            a.endpoint.flush().wait().unwrap();
        });
        let back = b.import(a);
        for number in 0..5000 {
            let next = b.endpoint.queue().wait(Some(SOON)).unwrap();
            assert_eq!(next, Signal::from(one_shot(1024 + number)));
            b.signal(&back, ONE);
        }
        b.endpoint.flush().wait().unwrap();
    });
    assert_eq!(b.endpoint.queue().remove().unwrap(), None);
}

#[test]
fn a_flood_of_one_shots_is_bounded_counted_and_hurts_no_counted_ones() {
    let pair = pair(4096);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    b.endpoint.queue().watch(ONE).unwrap();
    const SENT: u64 = 3000;
    for number in 0..SENT as u32 {
        a.signal(remote, one_shot(5000 + number));
    }
    a.write_fenced_notify(remote, 0, b"");
    b.endpoint.notification(ONE).wait(Some(SOON)).unwrap();
    let (mut arrived, mut lost, mut counted) = (0u64, 0, 0);
    loop {
        match b.endpoint.queue().remove() {
            Ok(Some(Signal::OneShot(one_shot))) => {
                assert_eq!(u64::from(one_shot.number()), 5000 + arrived);
                arrived += 1;
            }
            Ok(Some(Signal::Counted(id))) => {
                assert!(b.endpoint.notification(id).acknowledge());
                counted += 1;
            }
            Err(Error::NotificationsLost(dropped)) => lost += dropped,
            Ok(None) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(arrived + lost, SENT);
    assert!(arrived >= 512, "{arrived}");
    assert_eq!(counted, 1);
}

/// Several senders, one receiver that takes from its queue: every signal is found.
#[test]
fn many_senders_share_one_queue() {
    const SENDERS: u32 = 4;
    const EACH: u64 = 500;
    let cluster = Cluster::new(3);
    let receiver = Peer::new(&cluster.nic(0), 1, 4096);
    let nics = [cluster.nic(1), cluster.nic(2)];
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let peer = Peer::new(&nics[sender as usize % 2], 1 + sender as u16, 4096);
            let remote = peer.import(&receiver);
            receiver.endpoint.queue().watch(id(100 + sender)).unwrap();
            scope.spawn(move || {
                for _ in 0..EACH {
                    peer.signal(&remote, id(100 + sender));
                }
                peer.endpoint.flush().wait().unwrap();
            });
        }
        let mut counts = BTreeMap::new();
        for _ in 0..u64::from(SENDERS) * EACH {
            let next = receiver.endpoint.queue().wait(Some(SOON)).unwrap();
            let Signal::Counted(id) = next else {
                panic!("{next:?}")
            };
            assert!(receiver.endpoint.notification(id).acknowledge());
            *counts.entry(id).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| *count == EACH), "{counts:?}");
    });
}

#[test]
fn handlers_answer_while_the_application_does_something_else() {
    const ROUNDS: u64 = 300;
    let pair = pair(4096);
    let (a, remote, back) = (&pair.a, &pair.remote, pair.b.import(&pair.a));
    let (sender, calls) = channel();
    let endpoint = std::sync::Arc::new(pair.b.endpoint);
    let armed = [1, 2].map(|number| {
        let (own, back, sender) = (endpoint.clone(), back.clone(), sender.clone());
        let handler = move |id: NotificationId| {
            own.write(&back, 0, b"").notify(id).post().unwrap();
            sender.send(id).unwrap();
        };
        endpoint.notification(id(number)).arm(handler).unwrap()
    });
    for _ in 0..ROUNDS {
        for number in [1, 2] {
            a.signal(remote, id(number));
        }
    }
    for number in [1, 2] {
        for _ in 0..ROUNDS {
            a.take(id(number));
        }
    }
    drop(armed);
    drop(sender);
    assert_eq!(calls.iter().count() as u64, 2 * ROUNDS);
    endpoint.flush().wait().unwrap();
}

/// Polls for so long; says whether the descriptor was readable.
fn readable(poller: &Poller, limit: Duration) -> bool {
    let mut descriptors = [PollFd::new(poller, PollFlags::IN)];
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut descriptors, Some(&limit)).unwrap() == 1
}

#[test]
fn the_descriptor_is_readable_from_the_next_notification_on() {
    let pair = pair(4096);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    let poller = b.endpoint.poller().unwrap();
    assert_error!(b.endpoint.poller(), Error::Polled);
    poller.prepare().unwrap();
    assert!(!readable(&poller, Duration::ZERO));
    for _ in 0..100 {
        assert!(!b.endpoint.notification(ONE).test());
        a.signal(remote, ONE);
        assert!(readable(&poller, SOON));
        // A thread that blocks in the meantime takes nothing away.
        b.endpoint.notification(ONE).wait(Some(SOON)).unwrap();
        assert!(readable(&poller, Duration::ZERO));
        assert!(b.endpoint.notification(ONE).acknowledge());
        assert!(poller.prepare().unwrap());
    }
    drop(poller);
    // Made after the event, it tells of it.
    a.signal(remote, ONE);
    b.endpoint.notification(ONE).wait(Some(SOON)).unwrap();
    let poller = b.endpoint.poller().unwrap();
    poller.prepare().unwrap();
    assert!(b.endpoint.notification(ONE).test());
}

/// A message wakes an event loop that asks for any change.
#[test]
fn the_descriptor_tells_of_the_ends_of_requests_if_it_is_asked_to() {
    let cluster = Cluster::new(1);
    let party = Party::new(&cluster.nic(0), 7, 4096);
    let poller = party.endpoint.poller().unwrap();
    let pattern = Pattern::tagged(Source::Any, Tag(1));
    for _ in 0..100 {
        let room = party.memory.part(0, 16);
        let mut letter = party.endpoint.receive(&pattern, room).post().unwrap();
        poller.prepare_for_any().unwrap();
        assert_eq!(letter.test().unwrap(), None);
        party
            .endpoint
            .send_short(&party.with_tag(1), b"wake")
            .forget()
            .unwrap();
        while letter.test().unwrap().is_none() {
            assert!(readable(&poller, SOON));
            poller.prepare_for_any().unwrap();
        }
    }
}

/// An event loop beside threads that sleep in other calls of the same endpoint.
#[test]
fn an_event_loop_loses_no_notification_beside_sleeping_threads() {
    const ROUNDS: u64 = 2000;
    let pair = pair(4096);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                b.take(id(2));
            }
        });
        scope.spawn(|| {
            for round in 0..ROUNDS {
                a.signal(remote, ONE);
                a.signal(remote, id(2));
                if round % 7 == 0 {
                    a.endpoint.flush().wait().unwrap();
                }
            }
        });
        let poller = b.endpoint.poller().unwrap();
        let until = Instant::now() + SOON;
        for _ in 0..ROUNDS {
            while !b.endpoint.notification(ONE).acknowledge() {
                poller.prepare().unwrap();
                if !b.endpoint.notification(ONE).test() {
                    assert!(readable(&poller, until - Instant::now()));
                }
            }
        }
    });
}

#[test]
fn a_poller_learns_that_the_device_is_gone() {
    let mut cluster = Cluster::new(1);
    let peer = Peer::new(&cluster.nic(0), 1, 4096);
    let poller = peer.endpoint.poller().unwrap();
    poller.prepare().unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| readable(&poller, SOON));
        cluster.kill_device();
        assert!(waiter.join().unwrap());
    });
    while !matches!(poller.prepare(), Err(Error::DeviceGone)) {
        assert!(readable(&poller, SOON));
    }
}

#[test]
fn one_of_several_notifications_wakes() {
    let pair = pair(4096);
    let (a, b, remote) = (&pair.a, &pair.b, &pair.remote);
    let ids = [1, 7, 1023].map(id);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..300 {
                let signal = ids[round % 3];
                let signalled = a.endpoint.write(remote, 0, b"").notify(signal).fenced();
                signalled.unwrap();
            }
        });
        for _ in 0..300 {
            let id = b.endpoint.wait_any(&ids, Some(SOON)).unwrap();
            assert!(b.endpoint.notification(id).acknowledge());
        }
    });
    let short = Some(Duration::from_millis(5));
    assert_error!(b.endpoint.wait_any(&ids, short), Error::TimedOut);
}
