//! Threads that sleep until there is a completion.

use std::time::{Duration, Instant};

use super::harness::{at, empty, erased, head, pair, Side};
use crate::pointers::test::{context, input};
use crate::pointers::{Fid, In};
use crate::sys::{self, FidCq, ADDR_UNSPEC};

/// Objects may be used by any thread.
struct Shared<T>(T);
#[allow(unsafe_code)]
// SAFETY: the provider says FI_THREAD_SAFE.
unsafe impl<T> Sync for Shared<T> {}

fn sread(cq: Fid<FidCq>, timeout: i32) -> isize {
    let mut entry = empty();
    (at(cq).ops.sread)(cq, erased(&mut entry), 1, In::NULL, timeout)
}

#[test]
fn a_wait_ends_in_time() {
    let (_cluster, a, _b) = pair();
    for timeout in [0, 1, 30] {
        let start = Instant::now();
        assert_eq!(sread(a.cq, timeout), -(libc::EAGAIN as isize));
        assert!(start.elapsed() >= Duration::from_millis(timeout as u64));
    }
}

/// Both sides sleep for each message of the other; a lost wake-up is a test that does not end.
#[test]
fn each_message_wakes_its_receiver() {
    let (_cluster, a, b) = pair();
    let turn = |side: &Side, begins: bool| {
        let mut room = [0; 8];
        for round in 0..200usize {
            side.receive(ADDR_UNSPEC, None, &mut room, 1);
            if begins {
                side.send(0, None, &round.to_le_bytes(), 2);
            }
            // The end of the receive, and of the Send of this or the last round.
            for _ in 0..if begins || round > 0 { 2 } else { 1 } {
                assert_eq!(sread(side.cq, -1), 1);
            }
            assert_eq!(room, round.to_le_bytes());
            if !begins {
                side.send(0, None, &round.to_le_bytes(), 2);
            }
        }
    };
    let other = Shared(&b);
    std::thread::scope(|scope| {
        let other = &other;
        scope.spawn(move || turn(other.0, false));
        turn(&a, true);
    });
}

#[test]
fn a_signal_wakes_a_sleeping_thread() {
    let (_cluster, a, _b) = pair();
    let queue = Shared(a.cq);
    std::thread::scope(|scope| {
        let queue = &queue;
        let sleeper = scope.spawn(move || sread(queue.0, -1));
        while !sleeper.is_finished() {
            assert_eq!((at(a.cq).ops.signal)(a.cq), 0);
            std::thread::yield_now();
        }
        assert_eq!(sleeper.join().unwrap(), -(libc::EAGAIN as isize));
    });
}

/// With an operation under way or without one: none sleeps for ever.
#[test]
fn a_wait_ends_when_the_nic_is_gone() {
    for posts in [false, true] {
        let (mut cluster, _a, b) = pair();
        let mut room = [0; 8];
        if posts {
            b.receive(ADDR_UNSPEC, None, &mut room, 7);
        }
        let queue = Shared(b.cq);
        std::thread::scope(|scope| {
            let queue = &queue;
            let sleeper = scope.spawn(move || sread(queue.0, -1));
            cluster.stop();
            let woken = sleeper.join().unwrap();
            match posts {
                true => assert_eq!(woken, -(sys::FI_EAVAIL as isize)),
                false => assert_eq!(woken, -(libc::ENODEV as isize)),
            }
        });
        if posts {
            let error = b.next().unwrap_err();
            assert_eq!((error.entry.context, error.err), (context(7), libc::ENODEV));
        }
    }
}

/// Threads that sleep at one queue take each other's events, and lose no entry.
#[test]
fn several_threads_sleep_at_one_queue() {
    const EACH: usize = 200;
    let (_cluster, a, b) = pair();
    let mut rooms = vec![[0; 8]; 4 * EACH];
    for room in &mut rooms {
        b.receive(ADDR_UNSPEC, None, room, 1);
    }
    let queue = Shared(b.cq);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let queue = &queue;
            scope.spawn(move || (0..EACH).for_each(|_| assert_eq!(sread(queue.0, -1), 1)));
        }
        for round in 0..4 * EACH {
            a.send(0, None, &round.to_le_bytes(), 2);
            a.poll();
        }
    });
}

/// As an event loop does: no sleep if there is something to read, else poll.
#[test]
fn the_descriptor_tells_of_completions() {
    let (_cluster, a, b) = pair();
    let mut descriptor = 0i32;
    let control = at(b.cq).head.ops.control;
    assert_eq!(
        control(head(b.cq), sys::CONTROL_GETWAIT, erased(&mut descriptor)),
        0
    );
    let mut kind = 0u32;
    assert_eq!(
        control(head(b.cq), sys::CONTROL_GETWAITOBJ, erased(&mut kind)),
        0
    );
    assert_eq!(kind, sys::WAIT_FD);
    let trywait = || (at(b.fabric).ops.trywait)(b.fabric, input(&head(b.cq)), 1);
    let readable = |timeout| {
        let mut poll = libc::pollfd {
            fd: descriptor,
            events: libc::POLLIN,
            revents: 0,
        };
        #[allow(unsafe_code)]
        // SAFETY: one descriptor.
        let found = unsafe { libc::poll(&mut poll, 1, timeout) };
        found == 1
    };
    let mut room = [0; 4];
    for _ in 0..50 {
        b.receive(ADDR_UNSPEC, None, &mut room, 5);
        assert_eq!(trywait(), 0);
        a.send(0, None, b"wake", 1);
        assert!(readable(60_000));
        let (entry, _) = b.next().unwrap();
        assert_eq!(entry.context, context(5));
        a.next().unwrap();
    }
    b.receive(ADDR_UNSPEC, None, &mut room, 5);
    a.send(0, None, b"last", 1);
    while trywait() == 0 {
        assert!(readable(60_000));
    }
    assert_eq!(trywait(), -libc::EAGAIN);
    b.next().unwrap();
}
