//! How long it takes until a program sees a transfer, beside a NIC that the test moves.

use super::setup;
use crate::Status;

fn count(endpoint: &crate::Endpoint) -> u64 {
    endpoint.statistics().times_to_seen.count()
}

#[test]
fn one_of_many_transfers_is_timed_when_its_wait_ends() {
    let (fake, endpoint, remote) = setup();
    let first = endpoint.write(&remote, 0, b"x").post().unwrap();
    fake.serve(Status::Ok);
    assert_eq!(count(&endpoint), 0, "no call has looked");
    first.wait().unwrap();
    assert_eq!(count(&endpoint), 1);
    for written in 1..=2 * 61 {
        let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
        fake.serve(Status::Ok);
        ticket.wait().unwrap();
        assert_eq!(count(&endpoint), 1 + written / 61);
    }
    let times = endpoint.statistics().times_to_seen;
    assert!(times.sum() > 0);
}

#[test]
fn a_later_wait_of_the_same_kind_sees_a_transfer_and_an_earlier_one_does_not() {
    let (fake, endpoint, remote) = setup();
    drop(endpoint.write(&remote, 0, b"x").post().unwrap());
    let (_buffer, segment) = super::export(&endpoint, 4096);
    let read = endpoint
        .read(&remote, 0, segment.part(0, 8))
        .post()
        .unwrap();
    fake.serve(Status::Ok);
    read.wait().unwrap();
    assert_eq!(count(&endpoint), 0, "reads say nothing of writes");
    endpoint.flush().writes().wait().unwrap();
    assert_eq!(count(&endpoint), 1);
    endpoint.flush().writes().wait().unwrap();
    assert_eq!(count(&endpoint), 1, "it is seen once");
}

#[test]
fn a_reset_of_the_queue_ends_what_was_timed() {
    let (fake, endpoint, remote) = setup();
    drop(endpoint.write(&remote, 0, b"x").post().unwrap());
    fake.fail_queue(Status::Malformed);
    endpoint.reset_queue().unwrap();
    let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
    fake.serve(Status::Ok);
    ticket.wait().unwrap();
    assert_eq!(count(&endpoint), 1, "the first of the new queue");
}
