//! Commands that share a doorbell, beside a NIC that sleeps until it is told.

use super::messages::{inbox, ANY, NOW};
use super::setup;
use crate::tests::fake_nic::FakeNic;
use crate::Error;

/// The NIC reads what is there and falls asleep. Returns how many commands it has read.
fn read_all(fake: &FakeNic) -> usize {
    let commands = fake.fetch_all().len();
    fake.set_awake(false);
    commands
}

#[test]
fn a_batch_rings_once_and_at_its_end() {
    let (fake, endpoint, remote) = setup();
    let inbox = inbox(&endpoint);
    let mut receive = endpoint.batch(|| {
        endpoint.write(&remote, 0, b"one").post().unwrap();
        let receive = endpoint.receive(&ANY, inbox.part(0, 8)).post().unwrap();
        endpoint.batch(|| endpoint.write(&remote, 0, b"three").post().unwrap());
        assert_eq!(fake.doorbells(), 0);
        receive
    });
    assert_eq!(fake.doorbells(), 1);
    assert_eq!(read_all(&fake), 3, "one doorbell is for all of them");
    endpoint.batch(|| ());
    assert!(receive.test().unwrap().is_none());
    assert_eq!(fake.doorbells(), 1, "nothing was left out");
    endpoint.write(&remote, 0, b"four").post().unwrap();
    assert_eq!(fake.doorbells(), 2, "no batch is open");
}

/// Whatever looks for the end of something tells of it first.
#[test]
fn waits_and_tests_in_a_batch_ring_before_they_look_again() {
    let (fake, endpoint, remote) = setup();
    let inbox = inbox(&endpoint);
    let mut rung = 0;
    let mut expect_ring = || {
        rung += 1;
        assert_eq!(fake.doorbells(), rung);
        read_all(&fake);
    };
    endpoint.batch(|| {
        let mut receive = endpoint.receive(&ANY, inbox.part(0, 8)).post().unwrap();
        assert!(receive.test().unwrap().is_none());
        expect_ring();
        let mut second = endpoint.receive(&ANY, inbox.part(0, 8)).post().unwrap();
        assert!(matches!(second.wait(NOW), Err(Error::TimedOut)));
        expect_ring();
        let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
        assert!(!ticket.has_ended());
        expect_ring();
    });
}

/// What a thread leaves out is its own: others ring for what they issue, and rely on no doorbell
/// that has not been rung.
#[test]
fn other_threads_ring_for_themselves() {
    let (fake, endpoint, remote) = setup();
    endpoint.batch(|| {
        endpoint.write(&remote, 0, b"mine").post().unwrap();
        std::thread::scope(|scope| {
            let other = || endpoint.write(&remote, 0, b"yours").post().map(drop);
            scope.spawn(other).join().unwrap().unwrap();
        });
        assert_eq!(fake.doorbells(), 1);
        assert_eq!(read_all(&fake), 2);
    });
    assert_eq!(fake.doorbells(), 1, "the NIC has read all of it");
}

/// A panic inside tells of what was issued before it, and closes the batch.
#[test]
fn a_panic_ends_a_batch() {
    let (fake, endpoint, remote) = setup();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        endpoint.batch(|| {
            endpoint.write(&remote, 0, b"x").post().unwrap();
            panic!("on purpose");
        })
    }));
    assert!(caught.is_err());
    assert_eq!(fake.doorbells(), 1);
    read_all(&fake);
    endpoint.write(&remote, 0, b"y").post().unwrap();
    assert_eq!(fake.doorbells(), 2);
}

/// A reset has dropped the commands: there is nothing to ring for.
#[test]
fn a_reset_ends_what_was_left_out() {
    let (fake, endpoint, remote) = setup();
    endpoint.batch(|| {
        endpoint.write(&remote, 0, b"x").post().unwrap();
        endpoint.reset_queue().unwrap();
    });
    let rung = fake.doorbells();
    endpoint.write(&remote, 0, b"y").post().unwrap();
    assert_eq!(fake.doorbells(), rung + 1);
}

/// Two endpoints: a batch of one leaves nothing out of the other.
#[test]
fn a_batch_is_of_one_endpoint() {
    let (fake, endpoint, remote) = setup();
    let (other_fake, other, other_remote) = setup();
    endpoint.batch(|| {
        endpoint.write(&remote, 0, b"x").post().unwrap();
        other.write(&other_remote, 0, b"x").post().unwrap();
        assert_eq!((fake.doorbells(), other_fake.doorbells()), (0, 1));
        other.batch(|| {
            read_all(&other_fake);
            other.write(&other_remote, 0, b"x").post().unwrap();
            assert_eq!((fake.doorbells(), other_fake.doorbells()), (0, 1));
        });
        assert_eq!((fake.doorbells(), other_fake.doorbells()), (0, 2));
    });
    assert_eq!((fake.doorbells(), other_fake.doorbells()), (1, 2));
}
