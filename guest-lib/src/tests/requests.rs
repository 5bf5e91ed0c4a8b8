//! Transfers with a completion of their own: which call learns of a failure (N11, N12).

use qnic_abi::host_area::{CompletionEntry, CompletionKind};

use super::{failures, fetch, setup};
use crate::tests::fake_nic::{FakeNic, Fetched};
use crate::{Error, Status};

/// Stores the completion of a write, and nothing of its counter.
fn tell(fake: &FakeNic, command: &Fetched, status: Status) {
    let entry = CompletionEntry {
        handle: command.write().handle,
        status: status.code().into(),
        kind: CompletionKind::Transfer as u8,
        ..CompletionEntry::default()
    };
    assert!(fake.complete(&entry));
}

#[test]
fn a_completion_tells_a_failure_before_its_record_does() {
    let (fake, endpoint, remote) = setup();
    let mut request = endpoint.write(&remote, 0, b"x").begin().unwrap();
    let command = fetch(&fake);
    assert!(request.test().unwrap().is_none());
    tell(&fake, &command, Status::AccessDenied);
    let failed = request.test().unwrap_err();
    assert_eq!(failed.status(), Some(Status::AccessDenied));
    drop(request);
    fake.finish(&command, Status::AccessDenied);
    fake.publish();
    assert_eq!(failures(endpoint.flush().wait()), []);
}

#[test]
fn a_request_that_is_dropped_leaves_its_failure_to_the_next_flush() {
    for told in [false, true] {
        let (fake, endpoint, remote) = setup();
        let request = endpoint.write(&remote, 0, b"x").begin().unwrap();
        let command = fetch(&fake);
        let end = || {
            tell(&fake, &command, Status::AccessDenied);
            fake.finish(&command, Status::AccessDenied);
            fake.publish();
        };
        if told {
            end();
            endpoint.write(&remote, 0, b"y").post().unwrap();
        }
        drop(request);
        if !told {
            end();
        }
        fake.serve(Status::Ok);
        assert_eq!(failures(endpoint.flush().wait()).len(), 1, "{told}");
        assert_eq!(failures(endpoint.flush().wait()), []);
    }
}

#[test]
fn a_plain_write_has_no_handle() {
    let (fake, endpoint, remote) = setup();
    drop(endpoint.write(&remote, 0, b"x").post().unwrap());
    assert_eq!(fetch(&fake).write().handle.get(), 0);
}

/// After a reset, commands have the numbers and places of earlier ones.
#[test]
fn a_ticket_of_before_a_reset_takes_no_failure_of_after_it() {
    let (fake, endpoint, remote) = setup();
    let before = endpoint.write(&remote, 0, b"x").post().unwrap();
    fetch(&fake);
    fake.fail_queue(Status::Malformed);
    endpoint.reset_queue().unwrap();
    let after = endpoint.write(&remote, 0, b"y").post().unwrap();
    drop(before);
    fake.serve(Status::AccessDenied);
    let failed = after.wait().unwrap_err();
    assert_eq!(failed.status(), Some(Status::AccessDenied));
    assert_eq!(failures(endpoint.flush().wait()), []);
    let late = endpoint.write(&remote, 0, b"z").begin().unwrap();
    fake.fail_queue(Status::Malformed);
    endpoint.reset_queue().unwrap();
    assert!(matches!({ late }.test(), Err(Error::QueueReset)));
}

/// A failure is told once, by the request if its completion came before the reset.
#[test]
fn a_reset_takes_no_failure_from_its_request() {
    for told in [true, false] {
        let (fake, endpoint, remote) = setup();
        let mut request = endpoint.write(&remote, 0, b"x").begin().unwrap();
        let command = fetch(&fake);
        if told {
            tell(&fake, &command, Status::AccessDenied);
        }
        fake.finish(&command, Status::AccessDenied);
        fake.publish();
        endpoint.reset_queue().unwrap();
        assert_eq!(failures(endpoint.flush().wait()), [], "it is the request's");
        let ended = request.test();
        match told {
            true => assert_eq!(ended.unwrap_err().status(), Some(Status::AccessDenied)),
            false => assert!(matches!(ended, Err(Error::QueueReset)), "{ended:?}"),
        }
        assert_eq!(failures(endpoint.flush().wait()).len(), usize::from(!told));
        drop(request);
        assert_eq!(failures(endpoint.flush().wait()), []);
    }
}

/// The same of a ticket, which tells only that the queue was reset.
#[test]
fn a_reset_leaves_the_failure_of_a_ticket_to_the_next_flush() {
    let (fake, endpoint, remote) = setup();
    let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
    fake.serve(Status::AccessDenied);
    endpoint.write(&remote, 0, b"y").post().unwrap();
    endpoint.reset_queue().unwrap();
    assert!(matches!(ticket.wait(), Err(Error::QueueReset)));
    assert_eq!(failures(endpoint.flush().wait()).len(), 1);
    assert_eq!(failures(endpoint.flush().wait()), []);
}
