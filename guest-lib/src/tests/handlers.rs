//! Handlers: called once for each signal, one at a time (N17).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::{Arc, Mutex};

use super::{setup, ONE, SECOND};
use crate::core::lock;
use crate::{Armed, Endpoint, Error, NotificationId};

const LONG: std::time::Duration = SECOND.saturating_mul(30);
const TWO: NotificationId = NotificationId::new(2).unwrap();

/// Arms a handler that reports each of its calls.
fn reporting(endpoint: &Endpoint, id: NotificationId) -> (Armed, Receiver<NotificationId>) {
    let (sender, calls) = channel();
    let armed = endpoint
        .notification(id)
        .arm(move |id| sender.send(id).unwrap());
    (armed.unwrap(), calls)
}

#[test]
fn a_handler_is_called_for_signals_old_and_new() {
    let (fake, endpoint, _remote) = setup();
    fake.signal(1);
    fake.signal(1);
    let (armed, calls) = reporting(&endpoint, ONE);
    let (_other, other_calls) = reporting(&endpoint, TWO);
    for _ in 0..2 {
        assert_eq!(calls.recv_timeout(LONG).unwrap(), ONE);
    }
    fake.signal(2);
    assert_eq!(other_calls.recv_timeout(LONG).unwrap(), TWO);
    fake.signal(1);
    assert_eq!(calls.recv_timeout(LONG).unwrap(), ONE);
    assert_error!(endpoint.notification(ONE).arm(|_| ()), Error::Armed(1));
    assert_error!(endpoint.queue().watch(ONE), Error::Armed(1));
    drop(armed);
    assert!(calls.recv().is_err(), "the handler is gone, called or not");
    fake.signal(1);
    assert!(endpoint.notification(ONE).test(), "nothing took it");
}

/// Signals come while handlers are armed and disarmed, and while another thread takes
/// some of them itself: each is taken once.
#[test]
fn every_signal_is_taken_once_whenever_handlers_come_and_go() {
    const SIGNALS: u64 = 3000;
    let (fake, endpoint, _remote) = setup();
    let handled = Arc::new(AtomicU64::new(0));
    let mut taken = 0;
    std::thread::scope(|scope| {
        let signaller = scope.spawn(|| {
            for _ in 0..SIGNALS {
                fake.signal(1);
            }
        });
        loop {
            let last = signaller.is_finished();
            let count = handled.clone();
            let armed = endpoint.notification(ONE).arm(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            taken += u64::from(endpoint.notification(ONE).acknowledge());
            drop(armed.unwrap());
            if last {
                break;
            }
        }
    });
    while endpoint.notification(ONE).acknowledge() {
        taken += 1;
    }
    assert_eq!(taken + handled.load(Ordering::Relaxed), SIGNALS);
}

#[test]
fn handlers_are_called_one_at_a_time() {
    let (fake, endpoint, _remote) = setup();
    let busy = Arc::new(AtomicBool::new(false));
    let (sender, calls) = channel();
    let armed = [ONE, TWO].map(|id| {
        let (busy, sender) = (busy.clone(), sender.clone());
        let handler = move |_| {
            assert!(!busy.swap(true, Ordering::SeqCst), "entered twice");
            std::thread::yield_now();
            busy.store(false, Ordering::SeqCst);
            sender.send(()).unwrap();
        };
        endpoint.notification(id).arm(handler).unwrap()
    });
    for _ in 0..200 {
        fake.signal(1);
        fake.signal(2);
    }
    for _ in 0..400 {
        calls.recv_timeout(LONG).unwrap();
    }
    drop(armed);
}

#[test]
fn a_dropped_handler_does_not_run_any_more() {
    let (fake, endpoint, _remote) = setup();
    for _ in 0..50 {
        let ended = Arc::new(AtomicBool::new(false));
        let (seen, (entered, calls)) = (ended.clone(), channel());
        let armed = endpoint.notification(ONE).arm(move |_| {
            // The drop below may wait for this very call.
            entered.send(()).unwrap();
            std::thread::yield_now();
            assert!(!seen.load(Ordering::SeqCst));
        });
        fake.signal(1);
        calls.recv_timeout(LONG).unwrap();
        drop(armed.unwrap());
        ended.store(true, Ordering::SeqCst);
        assert!(!endpoint.notification(ONE).test());
    }
}

#[test]
fn a_handler_may_disarm_itself_and_arm_again() {
    let (fake, endpoint, _remote) = setup();
    let endpoint = Arc::new(endpoint);
    let handler = Arc::new(Mutex::new(None));
    let (sender, calls) = channel();
    let (own, again, report) = (handler.clone(), endpoint.clone(), sender.clone());
    let armed = endpoint.notification(ONE).arm(move |_| {
        drop(lock(&own).take());
        report.send(1).unwrap();
        let report = sender.clone();
        let armed = again
            .notification(ONE)
            .arm(move |_| report.send(2).unwrap());
        *lock(&own) = Some(armed.unwrap());
    });
    *lock(&handler) = Some(armed.unwrap());
    fake.signal(1);
    assert_eq!(calls.recv_timeout(LONG).unwrap(), 1);
    fake.signal(1);
    fake.signal(1);
    for _ in 0..2 {
        assert_eq!(calls.recv_timeout(LONG).unwrap(), 2);
    }
    let last = lock(&handler).take();
    drop(last);
}

#[test]
fn a_handler_that_panics_ends_and_the_others_go_on() {
    let (fake, endpoint, _remote) = setup();
    let (sender, calls) = channel();
    let panicking = endpoint.notification(TWO).arm(move |_| {
        sender.send(()).unwrap();
        std::panic::resume_unwind(Box::new("as it is meant to"));
    });
    let (_armed, others) = reporting(&endpoint, ONE);
    fake.signal(2);
    calls.recv_timeout(LONG).unwrap();
    fake.signal(2);
    fake.signal(1);
    assert_eq!(others.recv_timeout(LONG).unwrap(), ONE);
    assert_error!(endpoint.notification(TWO).arm(|_| ()), Error::Armed(2));
    drop(panicking);
    let (_armed, calls) = reporting(&endpoint, TWO);
    assert_eq!(calls.recv_timeout(LONG).unwrap(), TWO, "the second signal");
}

#[test]
fn handlers_end_with_the_device() {
    let (fake, endpoint, _remote) = setup();
    let (armed, calls) = reporting(&endpoint, ONE);
    fake.vanish();
    drop(armed);
    assert!(calls.recv().is_err());
}
