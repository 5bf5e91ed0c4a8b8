//! Waiting: timeouts, spinning, sleeping (N17).

use std::time::{Duration, Instant};

use qnic::{Error, NotificationId};

use crate::cluster::{Cluster, Peer, ONE, SOON};

#[test]
fn waits_end_in_time() {
    let cluster = Cluster::new(1);
    let peer = Peer::new(&cluster.nic(0), 1, 4096);
    let notification = peer.endpoint.notification(ONE);
    for timeout in [0, 1, 30].map(Duration::from_millis) {
        let start = Instant::now();
        assert!(matches!(
            notification.wait(Some(timeout)),
            Err(Error::TimedOut)
        ));
        assert!(matches!(notification.spin(timeout), Err(Error::TimedOut)));
        assert!(start.elapsed() >= 2 * timeout);
        assert!(start.elapsed() < 2 * timeout + SOON);
    }
}

/// Long pauses put the waiter to sleep, short ones find it spinning: neither
/// loses a wake-up.
#[test]
fn no_wake_up_is_lost_whatever_the_pace() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, 4096),
        Peer::new(&cluster.nic(1), 1, 4096),
    );
    let (to_a, to_b) = (b.import(&a), a.import(&b));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..600u64 {
                b.endpoint.notification(ONE).take(Some(SOON)).unwrap();
                assert_eq!(b.buffer.load_u64(0).unwrap(), round);
                b.endpoint
                    .write_fenced_notify(&to_a, 0, &round.to_le_bytes(), ONE)
                    .unwrap();
            }
        });
        for round in 0..600u64 {
            // Around the time at which a spinning waiter goes to sleep.
            let pause = Duration::from_micros(if round % 3 == 0 { 900 + round } else { 0 });
            let until = Instant::now() + pause;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            a.endpoint
                .write_notify(&to_b, 0, &round.to_le_bytes(), ONE)
                .unwrap();
            a.endpoint.notification(ONE).take(Some(SOON)).unwrap();
            assert_eq!(a.buffer.load_u64(0).unwrap(), round);
        }
    });
    a.endpoint.flush().unwrap();
}

#[test]
fn many_threads_sleep_on_notifications_of_one_endpoint() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, 4096),
        Peer::new(&cluster.nic(1), 1, 4096),
    );
    let remote = a.import(&b);
    let ids = [1, 2, 500, 1023].map(|id| NotificationId::new(id).unwrap());
    std::thread::scope(|scope| {
        let waiters = ids.map(|id| {
            let endpoint = &b.endpoint;
            scope.spawn(move || {
                for _ in 0..50 {
                    endpoint.notification(id).take(Some(SOON)).unwrap();
                }
            })
        });
        for _ in 0..50 {
            for id in ids {
                a.endpoint.write_fenced_notify(&remote, 0, b"", id).unwrap();
            }
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}
