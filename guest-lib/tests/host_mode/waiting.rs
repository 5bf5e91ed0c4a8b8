//! Waiting: timeouts, spinning, sleeping (N17).

use std::time::{Duration, Instant};

use qnic::Error;

use crate::cluster::{id, pair, ONE, SOON};

#[test]
fn waits_end_in_time() {
    let pair = pair(4096);
    let notification = pair.a.endpoint.notification(ONE);
    for timeout in [0, 1, 30].map(Duration::from_millis) {
        let start = Instant::now();
        assert_error!(notification.wait(Some(timeout)), Error::TimedOut);
        assert_error!(notification.spin(timeout), Error::TimedOut);
        assert!(start.elapsed() >= 2 * timeout);
        assert!(start.elapsed() < 2 * timeout + SOON);
    }
}

/// Long pauses put the waiter to sleep, short ones find it spinning: neither
/// loses a wake-up.
#[test]
fn no_wake_up_is_lost_whatever_the_pace() {
    let pair = pair(4096);
    let (a, b) = (&pair.a, &pair.b);
    let to_a = b.import(a);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..600u64 {
                b.take(ONE);
                assert_eq!(b.word(0), round);
                b.write_fenced_notify(&to_a, 0, &round.to_le_bytes());
            }
        });
        for round in 0..600u64 {
            // Around the time at which a spinning waiter goes to sleep.
            let pause = Duration::from_micros(if round % 3 == 0 { 900 + round } else { 0 });
            let until = Instant::now() + pause;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            a.write_notify(&pair.remote, 0, &round.to_le_bytes());
            a.take(ONE);
            assert_eq!(a.word(0), round);
        }
    });
    a.endpoint.flush().wait().unwrap();
}

#[test]
fn many_threads_sleep_on_notifications_of_one_endpoint() {
    let pair = pair(4096);
    let ids = [1, 2, 500, 1023].map(id);
    std::thread::scope(|scope| {
        let (a, b) = (&pair.a, &pair.b);
        for id in ids {
            scope.spawn(move || (0..50).for_each(|_| b.take(id)));
        }
        for _ in 0..50 {
            for id in ids {
                let signalled = a.endpoint.write(&pair.remote, 0, b"").notify(id).fenced();
                signalled.unwrap();
            }
        }
    });
}

/// Processes that wait give up their processor, so the device process does so for them.
#[test]
fn the_device_yields_to_processes_that_spin() {
    let pair = pair(4096);
    let start = Instant::now();
    while pair.cluster.yields() == 0 {
        assert!(start.elapsed() < SOON);
        pair.a.write_notify(&pair.remote, 0, &[1]);
        pair.b.take(ONE);
    }
    pair.a.endpoint.flush().wait().unwrap();
}
