//! Endpoints that are closed while other threads look at their queues.

use std::sync::atomic::{AtomicBool, Ordering};

use super::harness::{at, close, enable, head, open_endpoint_at, pair, Side, BOTH};
use crate::endpoint::Ep;
use crate::object;
use crate::sys::ADDR_UNSPEC;
use crate::waiting::Engine as _;

/// Objects may be used by any thread.
struct Shared<T>(T);
#[allow(unsafe_code)]
// SAFETY: the provider says FI_THREAD_SAFE.
unsafe impl<T> Sync for Shared<T> {}

/// Another thread has found the endpoint in the list of its queue, and looks after the close.
#[test]
fn no_thread_copies_into_memory_of_a_receive_when_its_endpoint_is_closed() {
    let (_cluster, a, b) = pair();
    let mut room = [0; 6];
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut room, 1);
    let engine = object::state::<Ep, _>(b.ep).unwrap().engine();
    assert_eq!(close(b.ep), 0);
    a.send(0, Some(1), b"letter", 2);
    assert!(a.next().is_ok());
    engine.progress();
    assert_eq!(room, [0; 6]);
    drop(engine);
    close_rest(&b);
    a.close();
}

/// Nothing of it is left when the close returns.
#[test]
fn a_port_is_free_when_its_endpoint_is_closed_beside_a_thread_that_looks() {
    let (_cluster, a, b) = pair();
    let (queue, stopped) = (Shared(&b), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (queue, stopped) = (&queue, &stopped);
        scope.spawn(move || {
            // Relaxed: nothing but the flag is told.
            while !stopped.load(Ordering::Relaxed) {
                assert!(queue.0.poll().is_none());
            }
        });
        let mut ep = b.ep;
        let is_free = (0..1000).all(|_| {
            close(ep);
            ep = open_endpoint_at(b.domain, &b.name);
            let bind = at(ep).head.ops.bind;
            bind(head(ep), head(b.av), 0);
            bind(head(ep), head(b.cq), BOTH);
            enable(ep) == 0
        });
        stopped.store(true, Ordering::Relaxed);
        assert!(is_free);
        assert_eq!(close(ep), 0);
    });
    close_rest(&b);
    a.close();
}

/// Closes what an endpoint that is closed has stood on.
fn close_rest(side: &Side) {
    assert_eq!(close(side.events), 0);
    assert_eq!(close(side.cq), 0);
    assert_eq!(close(side.av), 0);
    assert_eq!(close(side.domain), 0);
    assert_eq!(close(side.fabric), 0);
}
