//! Waits with timeouts, beside a NIC that does nothing until the test says so: a timeout ends
//! the wait and nothing else.

use std::time::Duration;

use qnic_abi::atomic::AtomicCommand;
use qnic_abi::header::Counts;
use qnic_abi::window::COMMAND_ENTRIES;

use super::fake_nic::FakeNic;
use super::{export, failures, fetch, import, setup, ONE};
use crate::{Error, Port, Status};

const NOW: Duration = Duration::ZERO;
const SHORT: Duration = Duration::from_millis(2);

#[test]
fn a_ticket_can_be_waited_for_again() {
    let (fake, endpoint, remote) = setup();
    let mut ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
    for timeout in [NOW, SHORT, NOW] {
        assert_error!(ticket.wait_timeout(timeout), Error::TimedOut);
    }
    let command = fetch(&fake);
    assert!(fake.fetch().is_none(), "it was issued once");
    assert_error!(ticket.wait_timeout(SHORT), Error::TimedOut);
    fake.finish(&command, Status::Ok);
    fake.publish();
    ticket.wait_timeout(NOW).unwrap();
    ticket.wait_timeout(NOW).unwrap();
    ticket.wait().unwrap();
}

#[test]
fn a_timeout_takes_no_failure_away_from_a_ticket() {
    let (fake, endpoint, remote) = setup();
    let mut kept = endpoint.write(&remote, 0, b"x").post().unwrap();
    let mut dropped = endpoint.write(&remote, 8, b"y").post().unwrap();
    assert_error!(kept.wait_timeout(NOW), Error::TimedOut);
    assert_error!(dropped.wait_timeout(NOW), Error::TimedOut);
    drop(dropped);
    fake.serve(Status::PageUnavailable);
    let found = failures(kept.wait_timeout(NOW));
    assert_eq!(found[0].offset, 0);
    assert!(
        failures(kept.wait_timeout(NOW)).is_empty(),
        "it is reported once"
    );
    let found = failures(endpoint.flush().writes().timeout(NOW).wait());
    let offsets: Vec<_> = found.iter().map(|failure| failure.offset).collect();
    assert_eq!(offsets, [8]);
}

#[test]
fn a_flush_can_be_repeated_and_reports_each_failure_once() {
    let (fake, endpoint, remote) = setup();
    let (_buffer, segment) = export(&endpoint, 4096);
    drop(
        endpoint
            .read(&remote, 0, segment.part(0, 8))
            .post()
            .unwrap(),
    );
    let read = fetch(&fake);
    drop(endpoint.write(&remote, 16, b"x").post().unwrap());
    let write = fetch(&fake);
    assert_error!(endpoint.flush().timeout(SHORT).wait(), Error::TimedOut);
    fake.finish(&read, Status::PageUnavailable);
    fake.publish();
    // The read has failed, the write is under way: no report yet, and none is lost.
    assert_error!(endpoint.flush().timeout(NOW).wait(), Error::TimedOut);
    assert_error!(
        endpoint.flush().writes().timeout(NOW).wait(),
        Error::TimedOut
    );
    fake.finish(&write, Status::BadKey);
    fake.publish();
    let found = failures(endpoint.flush().timeout(NOW).wait());
    let statuses: Vec<_> = found.iter().map(|failure| failure.status).collect();
    assert_eq!(statuses, [Status::PageUnavailable, Status::BadKey]);
    endpoint.flush().timeout(NOW).wait().unwrap();
    endpoint.flush().reads().timeout(NOW).wait().unwrap();
}

#[test]
fn a_fence_that_timed_out_has_issued_its_transfer_once() {
    let (fake, endpoint, remote) = setup();
    let (_buffer, segment) = export(&endpoint, 4096);
    let written = endpoint.write(&remote, 0, b"x").timeout(NOW).fenced();
    assert_error!(written, Error::TimedOut);
    let signalled = endpoint
        .write(&remote, 8, b"y")
        .notify(ONE)
        .timeout(SHORT)
        .fenced();
    assert_error!(signalled, Error::TimedOut);
    let read = endpoint
        .read(&remote, 0, segment.part(0, 8))
        .timeout(SHORT)
        .fenced();
    assert_error!(read, Error::TimedOut);
    assert_eq!(fake.serve(Status::Ok), 3);
    endpoint.flush().timeout(NOW).wait().unwrap();
}

/// A queue is as long as the driver says, and wraps there; what cannot be is refused (Q1).
#[test]
fn a_queue_has_the_entries_that_the_driver_tells() {
    let counts = Counts {
        command_entries: 16,
        contexts: 8,
        ..Counts::MOST
    };
    let (fake, nic) = FakeNic::with_counts(counts);
    let endpoint = nic.register(Port(9)).unwrap();
    let remote = import(&endpoint);
    for _ in 0..3 {
        for _ in 0..16 {
            let ticket = endpoint.write(&remote, 0, b"x").timeout(NOW).post();
            drop(ticket.unwrap());
        }
        let beyond = endpoint.write(&remote, 0, b"x").timeout(NOW).post();
        assert_error!(beyond, Error::QueueFull);
        assert_eq!(fake.serve(Status::Ok), 16);
    }
    let (_fake, nic) = FakeNic::with_counts(Counts {
        contexts: 33,
        ..Counts::MOST
    });
    assert_error!(nic.register(Port(9)), Error::Count("contexts"));
}

#[test]
fn a_full_queue_takes_nothing_and_says_so() {
    let (fake, endpoint, remote) = setup();
    let (_buffer, segment) = export(&endpoint, 4096);
    for _ in 0..COMMAND_ENTRIES {
        let ticket = endpoint.write(&remote, 0, b"x").timeout(NOW).post();
        drop(ticket.unwrap());
    }
    let part = segment.part(0, 8);
    let full = |result: crate::Result<()>| assert_error!(result, Error::QueueFull);
    full(
        endpoint
            .write(&remote, 0, b"x")
            .timeout(SHORT)
            .post()
            .map(drop),
    );
    let notify = endpoint
        .write(&remote, 0, b"x")
        .notify(ONE)
        .timeout(NOW)
        .post();
    full(notify.map(drop));
    full(
        endpoint
            .read(&remote, 0, part)
            .timeout(NOW)
            .post()
            .map(drop),
    );
    full(endpoint.write(&remote, 0, b"x").timeout(SHORT).fenced());
    full(endpoint.read(&remote, 0, part).timeout(NOW).fenced());
    assert_eq!(fake.serve(Status::Ok), COMMAND_ENTRIES);
    drop(
        endpoint
            .write(&remote, 0, b"x")
            .timeout(NOW)
            .post()
            .unwrap(),
    );
    assert_eq!(fake.serve(Status::Ok), 1);
}

/// The result of an operation that nothing waits for goes to no other operation.
#[test]
fn an_atomic_operation_that_timed_out_keeps_its_record() {
    let (fake, endpoint, remote) = setup();
    let word = endpoint.atomic::<u64>(&remote, 0).unwrap();
    let mut records = Vec::new();
    for _ in 0..COMMAND_ENTRIES {
        assert_error!(word.fetch_add(1).timeout(NOW).wait(), Error::TimedOut);
    }
    assert_error!(word.fetch_add(1).timeout(NOW).wait(), Error::QueueFull);
    let mut commands = Vec::new();
    while let Some(command) = fake.fetch() {
        records.push(command.descriptor.read::<AtomicCommand>().record.get());
        commands.push(command);
    }
    records.sort_unstable();
    records.dedup();
    assert_eq!(records.len(), COMMAND_ENTRIES, "each has its own");
    fake.finish(&commands[0], Status::BadKey);
    for command in &commands[1..] {
        fake.finish(command, Status::Ok);
    }
    fake.publish();
    assert_error!(word.fetch_add(1).timeout(NOW).wait(), Error::TimedOut);
    let last = fetch(&fake);
    let record = last.descriptor.read::<AtomicCommand>().record.get();
    assert!(
        records.contains(&record),
        "those of ended commands are free"
    );
    fake.finish(&last, Status::Ok);
    fake.publish();
    let found = failures(endpoint.flush().reads().timeout(NOW).wait());
    assert_eq!(found.len(), 1, "the failure of one that nothing waited for");
    assert_eq!(found[0].status, Status::BadKey);
}
