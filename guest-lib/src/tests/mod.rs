//! The library alone, against the NIC of [`fake_nic`].

/// Checks that a result is an error of this kind.
macro_rules! assert_error {
    ($result:expr, $error:pat) => {
        match $result {
            Err($error) => {}
            other => panic!("{:?}", other.map(drop)),
        }
    };
}

mod batches;
mod context_pages;
mod contexts;
#[cfg(feature = "stream")]
mod datagrams;
mod ends;
pub(crate) mod fake_nic;
#[cfg(feature = "stream")]
mod fake_pools;
mod handlers;
mod messages;
mod notifications;
mod posted;
mod probes;
mod quiet;
mod requests;
#[cfg(feature = "stream")]
mod streams;
mod timeouts;

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use qnic_abi::command::CommandFlags;

use crate::tests::fake_nic::{FakeNic, Fetched, Wake, INLINE_MAX, REMOTE_ADDRESS, REMOTE_LENGTH};
use crate::{
    Access, Endpoint, Error, NodeId, NotificationId, Port, RemoteSegment, Segment, SegmentName,
    Status, TransferError,
};

const SECOND: Duration = Duration::from_secs(1);
const ONE: NotificationId = NotificationId::new(1).unwrap();

fn setup() -> (std::sync::Arc<FakeNic>, Endpoint, RemoteSegment) {
    let (fake, nic) = FakeNic::new();
    let endpoint = nic.register(Port(9)).unwrap();
    let remote = import(&endpoint);
    (fake, endpoint, remote)
}

fn import(endpoint: &Endpoint) -> RemoteSegment {
    let imported = endpoint.import(NodeId(1), Port(2), SegmentName(6), SECOND);
    imported.unwrap()
}

fn export(endpoint: &Endpoint, length: usize) -> (crate::Buffer, Segment) {
    let buffer = endpoint.allocate(length).unwrap();
    let segment = endpoint.export(SegmentName(1), &buffer, Access::all());
    (buffer, segment.unwrap())
}

fn fetch(fake: &FakeNic) -> Fetched {
    fake.fetch().expect("a command")
}

/// The failures that a call reports; none if it succeeds.
fn failures(result: crate::Result<()>) -> Vec<TransferError> {
    match result {
        Ok(()) => Vec::new(),
        Err(Error::Transfer(errors)) => errors.failures,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn small_writes_travel_inline_and_large_ones_do_not() {
    let (fake, endpoint, remote) = setup();
    let (buffer, segment) = export(&endpoint, 8192);
    buffer.write(4000, &[7; 200]).unwrap();

    endpoint
        .write(&remote, 16, &[5; INLINE_MAX])
        .post()
        .unwrap();
    let command = fetch(&fake);
    let write = command.write();
    assert_eq!(write.header.opcode, 1);
    assert_eq!(usize::from(write.header.inline_length), INLINE_MAX);
    assert_eq!(write.header.remote_node.get(), 1);
    assert_eq!(write.header.remote_port.get(), 2);
    assert_eq!(write.length.get(), INLINE_MAX as u64);
    assert_eq!(write.remote_address.get(), REMOTE_ADDRESS + 16);
    assert_eq!(write.remote_key.get(), 77);
    assert_eq!(write.remote_segment.get(), 5);
    assert_eq!(write.local_key.get(), 0);
    assert_eq!(&command.payload[..INLINE_MAX], &[5; INLINE_MAX]);

    let part = segment.part(4001, INLINE_MAX);
    endpoint.write(&remote, 0, part).post().unwrap();
    assert_eq!(&fetch(&fake).payload[..INLINE_MAX], &[7; INLINE_MAX]);

    let part = segment.part(4001, INLINE_MAX + 1);
    endpoint.write(&remote, 0, part).post().unwrap();
    let write = fetch(&fake).write();
    assert_eq!((write.header.inline_length, write.handle.get()), (0, 0));
    assert_eq!(write.local_address.get(), buffer.address() + 4001);
    assert_eq!(write.local_key.get(), 1000);
    assert_eq!(write.local_segment.get(), 0);
}

/// Writes of 1 to 160 bytes from exported memory: how many travelled inline, how many by DMA.
fn ways(fake: &FakeNic, endpoint: &Endpoint) -> [usize; 2] {
    let remote = import(endpoint);
    let (_buffer, segment) = export(endpoint, 4096);
    let mut ways = [0; 2];
    for length in 1..=160 {
        let ticket = endpoint.write(&remote, 0, segment.part(0, length)).post();
        let command = fetch(fake);
        let write = command.write();
        let inline = usize::from(write.header.inline_length);
        assert!(inline == 0 || inline == length);
        assert_eq!(inline == 0, write.local_key.get() != 0);
        ways[usize::from(inline == 0)] += 1;
        fake.finish(&command, Status::Ok);
        fake.publish();
        ticket.unwrap().wait().unwrap();
    }
    ways
}

/// The inline limit is tunable (N10).
#[test]
fn the_inline_limit_says_which_way_a_write_takes() {
    let (fake, nic) = FakeNic::new();
    let endpoint = nic.register(Port(9)).unwrap();
    assert_eq!(endpoint.inline_max(), INLINE_MAX);
    assert_eq!(ways(&fake, &endpoint), [96, 64]);
    for limit in [0, 1, 40, 96, 97, 128] {
        let (fake, nic) = FakeNic::new();
        let nic = nic.with_inline_max(limit).unwrap();
        let endpoint = nic.register(Port(9)).unwrap();
        assert_eq!(endpoint.inline_max(), limit);
        assert_eq!(ways(&fake, &endpoint), [limit, 160 - limit]);
    }
    let error = nic.with_inline_max(129).unwrap_err();
    assert_error!(Err::<(), _>(error), Error::InlineMax(129));
}

/// A lower limit makes no write fail: ordinary bytes have no other way. A higher one holds for
/// them, too.
#[test]
fn ordinary_bytes_travel_inline_as_far_as_the_nic_takes_them() {
    let (fake, nic) = FakeNic::new();
    let nic = nic.with_inline_max(8).unwrap();
    let endpoint = nic.register(Port(9)).unwrap();
    let remote = import(&endpoint);
    endpoint.write(&remote, 0, &[1; INLINE_MAX]).post().unwrap();
    let write = fetch(&fake).write();
    assert_eq!(usize::from(write.header.inline_length), INLINE_MAX);
    assert_error!(
        endpoint.write(&remote, 0, &[1; INLINE_MAX + 1]).post(),
        Error::NotExported { inline_max: 96, .. }
    );
    let (fake, nic) = FakeNic::new();
    let nic = nic.with_inline_max(128).unwrap();
    let endpoint = nic.register(Port(9)).unwrap();
    let remote = import(&endpoint);
    endpoint.write(&remote, 0, &[1; 128]).post().unwrap();
    let write = fetch(&fake).write();
    assert_eq!(usize::from(write.header.inline_length), 128);
}

#[test]
fn long_sources_must_be_exported() {
    let (fake, endpoint, remote) = setup();
    let bytes = [0; INLINE_MAX + 1];
    let refused = endpoint.write(&remote, 0, &bytes[..]).post();
    assert_error!(refused, Error::NotExported { length: 97, .. });
    assert!(fake.fetch().is_none());
}

#[test]
fn ranges_are_checked_before_anything_is_issued() {
    let (fake, endpoint, remote) = setup();
    let (_buffer, segment) = export(&endpoint, 4096);
    let other = setup();
    let (_foreign_buffer, foreign) = export(&other.1, 4096);
    for result in [
        endpoint.write(&remote, REMOTE_LENGTH, b"x").post(),
        endpoint.write(&remote, u64::MAX, b"x").post(),
        endpoint.read(&remote, 0, segment.part(4000, 97)).post(),
        endpoint
            .read(&remote, 0, segment.part(usize::MAX, 2))
            .post(),
    ] {
        assert_error!(result, Error::OutOfRange { .. });
    }
    let refused = endpoint.read(&remote, 0, foreign.part(0, 8)).post();
    assert_error!(refused, Error::ForeignSegment);
    assert!(fake.fetch().is_none());
    endpoint.write(&remote, REMOTE_LENGTH, b"").post().unwrap();
    assert_eq!(fetch(&fake).write().length.get(), 0);
}

#[test]
fn the_doorbell_is_rung_only_while_the_nic_sleeps() {
    let (fake, endpoint, remote) = setup();
    endpoint.write(&remote, 0, b"x").post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    fake.set_awake(true);
    endpoint.write(&remote, 0, b"x").post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    fake.set_awake(false);
    // The NIC is on its way to the first command.
    endpoint.write(&remote, 0, b"x").post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    while fake.fetch().is_some() {}
    fake.set_awake(false);
    endpoint.write(&remote, 0, b"x").post().unwrap();
    assert_eq!(fake.doorbells(), 2);
}

/// The driver has lost the NIC: the next call says so, also one that would not have waited.
#[test]
fn a_lost_nic_is_told_by_the_next_call() {
    let (fake, endpoint, remote) = setup();
    endpoint.write(&remote, 0, b"x").post().unwrap();
    fake.vanish();
    let gone = |result: crate::Result<()>| matches!(result, Err(Error::DeviceGone));
    assert!(gone(endpoint.write(&remote, 0, b"x").post().map(drop)));
    assert!(gone(endpoint.flush().wait()));
}

#[test]
fn a_full_queue_makes_the_process_wait() {
    let (fake, endpoint, remote) = setup();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..1000u64 {
                let bytes = number.to_le_bytes();
                endpoint.write(&remote, 8 * number, &bytes).post().unwrap();
            }
            endpoint.flush().writes().wait().unwrap();
        });
        let mut expected = 0u64;
        while !writer.is_finished() {
            while let Some(command) = fake.fetch() {
                assert_eq!(&command.payload[..8], &expected.to_le_bytes());
                expected += 1;
                fake.finish(&command, Status::Ok);
            }
            fake.publish();
        }
        assert_eq!(expected, 1000);
    });
}

fn write_until_refused(endpoint: &Endpoint, remote: &RemoteSegment) -> crate::Result<()> {
    loop {
        endpoint.write(remote, 0, b"x").post()?;
    }
}

#[test]
fn a_blocked_issuer_learns_that_the_device_is_gone() {
    let (fake, endpoint, remote) = setup();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_refused(&endpoint, &remote));
        fake.await_request(Wake::Anything);
        fake.vanish();
        assert_error!(writer.join().unwrap(), Error::DeviceGone);
    });
}

#[test]
fn no_failure_is_lost_however_many_there_are() {
    let (fake, endpoint, remote) = setup();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..500 {
                endpoint.write(&remote, 0, b"x").post().unwrap();
            }
            endpoint.flush().wait()
        });
        while !writer.is_finished() {
            fake.serve(Status::BadKey);
        }
        let error = writer.join().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("(and 499 more)"), "{error}");
    });
    endpoint.flush().wait().unwrap();
}

#[test]
fn a_stream_to_a_node_that_is_gone_ends() {
    let (fake, endpoint, remote) = setup();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_refused(&endpoint, &remote));
        fake.await_request(Wake::Anything);
        let failed = fake.serve(Status::PeerGone);
        let told = failures(writer.join().unwrap()).len();
        assert!(told > 0);
        fake.serve(Status::Ok);
        let rest = failures(endpoint.flush().wait()).len();
        assert_eq!(told + rest, failed, "each is told once");
    });
}

#[test]
fn a_ticket_gets_its_own_failure_and_no_other() {
    let (fake, endpoint, remote) = setup();
    let good = endpoint.write(&remote, 0, b"a").post().unwrap();
    let bad = endpoint.write(&remote, 1, b"b").post().unwrap();
    let dropped = endpoint.write(&remote, 2, b"c").post().unwrap();
    let (first, second, third) = (fetch(&fake), fetch(&fake), fetch(&fake));
    fake.finish(&first, Status::Ok);
    fake.finish(&second, Status::BadKey);
    fake.finish(&third, Status::Aborted);
    assert!(!good.has_ended());
    fake.publish();
    assert!(good.has_ended());
    good.wait().unwrap();
    drop(dropped);
    let error = bad.wait().unwrap_err();
    assert_eq!(error.status(), Some(Status::BadKey));
    let rest = failures(endpoint.flush().writes().wait());
    assert_eq!(rest.len(), 1, "the dropped ticket's failure");
    assert_eq!((rest[0].status, rest[0].offset), (Status::Aborted, 2));
}

#[test]
fn fences_ask_for_counters_and_report_earlier_failures() {
    let (fake, endpoint, remote) = setup();
    let (_buffer, segment) = export(&endpoint, 4096);
    endpoint.write(&remote, 0, b"x").post().unwrap();
    std::thread::scope(|scope| {
        let fenced = scope.spawn(|| endpoint.write(&remote, 8, b"y").notify(ONE).fenced());
        let mut commands = std::iter::repeat_with(|| fake.fetch()).flatten();
        let (bad, good) = (commands.next().unwrap(), commands.next().unwrap());
        fake.finish(&bad, Status::AccessDenied);
        let write = good.write();
        assert_eq!(write.header.flags, CommandFlags::PUBLISH.bits());
        assert_eq!(write.notification.get(), 1);
        fake.finish(&good, Status::Ok);
        fake.publish();
        let error = fenced.join().unwrap().unwrap_err();
        assert_eq!(error.status(), Some(Status::AccessDenied));
    });
    std::thread::scope(|scope| {
        let fenced = scope.spawn(|| endpoint.read(&remote, 0, segment.part(0, 100)).fenced());
        while !fenced.is_finished() {
            fake.serve(Status::Ok);
        }
        fenced.join().unwrap().unwrap();
    });
}

#[test]
fn a_stopped_queue_is_an_error_until_it_is_reset() {
    let (fake, endpoint, remote) = setup();
    let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
    fake.fail_queue(Status::Malformed);
    let stopped = endpoint.flush().writes().wait();
    assert_error!(stopped, Error::QueueFailed(Status::Malformed));
    endpoint.reset_queue().unwrap();
    assert_error!(ticket.wait(), Error::QueueReset);
    endpoint.write(&remote, 0, b"y").post().unwrap();
    assert_eq!(fake.serve(Status::Ok), 1);
    endpoint.flush().wait().unwrap();
}

#[test]
fn segments_are_unexported_when_dropped() {
    let (fake, endpoint, _remote) = setup();
    let (buffer, segment) = export(&endpoint, 4096);
    assert_eq!(fake.exported(), [0]);
    let lookup = |offset, length| {
        let found = endpoint.export_lookup(buffer.address() + offset, length);
        found.map(|(segment, offset)| (segment.name(), offset))
    };
    assert_eq!(lookup(96, 4000), Some((SegmentName(1), 96)));
    assert_eq!(lookup(97, 4000), None);
    segment.unexport().unwrap();
    assert_eq!(lookup(0, 1), None);
    let (_buffer, segment) = export(&endpoint, 4096);
    drop(segment);
    assert!(fake.exported().is_empty());
}

/// NetVM's export_lookup: the segment and the offset name what the address names (N3).
#[test]
fn a_lookup_gives_the_exported_segment_and_the_offset() {
    let (fake, endpoint, remote) = setup();
    let (buffer, segment) = export(&endpoint, 4096);
    let lookup = |address| endpoint.export_lookup(address, 8).unwrap();
    let (found, offset) = lookup(buffer.address() + 40);
    assert_eq!((found.address(), offset), (segment.address(), 40));
    assert_eq!((found.len(), found.access()), (4096, Access::all()));

    endpoint.read(&remote, 0, found.part(40, 8)).post().unwrap();
    let by_lookup = fetch(&fake).write();
    endpoint
        .read(&remote, 0, segment.part(40, 8))
        .post()
        .unwrap();
    let by_segment = fetch(&fake).write();
    assert_eq!(by_lookup.local_address, by_segment.local_address);
    assert_eq!(by_lookup.local_segment, by_segment.local_segment);
    assert_eq!(by_lookup.local_key, by_segment.local_key);

    endpoint
        .write(&remote, 0, found.part(40, 8))
        .post()
        .unwrap();
    let write = fetch(&fake).write();
    assert_eq!(write.header.inline_length, 0, "the NIC reads it");
    assert_eq!(write.local_address, by_segment.local_address);
    endpoint
        .write(&remote, 0, found.part(40, 0))
        .post()
        .unwrap();
    assert_eq!(fetch(&fake).write().length.get(), 0);

    assert_error!(
        endpoint.read(&remote, 0, found.part(4090, 8)).post(),
        Error::OutOfRange { .. }
    );
    let other = setup();
    assert_error!(
        other.1.read(&other.2, 0, found.part(0, 8)).post(),
        Error::ForeignSegment
    );
    let other_name = endpoint.export(SegmentName(2), &buffer, Access::READ);
    let newest = lookup(buffer.address()).0;
    assert_eq!(newest.name(), SegmentName(2));
    drop(other_name);
    assert_eq!(lookup(buffer.address()).0.name(), SegmentName(1));
}

#[test]
fn imports_are_found_by_address_until_they_are_dropped() {
    let (_fake, endpoint, remote) = setup();
    let lookup = || endpoint.import_lookup(NodeId(1), Port(2), REMOTE_ADDRESS + 5);
    let (found, offset) = lookup().unwrap();
    assert_eq!((found.name(), offset), (SegmentName(6), 5));
    drop(found);
    let again = import(&endpoint);
    drop(remote);
    assert!(lookup().is_some());
    drop(again);
    assert!(lookup().is_none());
}

#[test]
fn refusals_say_what_was_asked() {
    let (_fake, nic) = FakeNic::new();
    let error = nic.register(Port(13)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "register on port 13 of fake: another process of this node holds that port; choose \
         another port, or 0 for any free one"
    );
    let endpoint = nic.register(Port(1)).unwrap();
    let error = endpoint
        .import(NodeId(4), Port(5), SegmentName(404), Duration::ZERO)
        .unwrap_err();
    assert_eq!(error.status(), Some(Status::NameNotFound));
    assert_error!(nic.allocate(0), Error::EmptyMemory);
}

/// Writes may overtake an earlier read as often as they like.
#[test]
fn a_slow_read_keeps_its_failure() {
    let (fake, endpoint, remote) = setup();
    let (_buffer, segment) = export(&endpoint, 4096);
    let read = endpoint
        .read(&remote, 5, segment.part(0, 8))
        .post()
        .unwrap();
    let slow = fetch(&fake);
    for _ in 0..300 {
        endpoint.write(&remote, 9, b"x").post().unwrap();
        fake.serve(Status::Ok);
    }
    assert!(!read.has_ended());
    fake.finish(&slow, Status::PageUnavailable);
    fake.publish();
    endpoint.flush().wait().unwrap();
    assert_eq!(failures(read.wait())[0].offset, 5);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Issue { read: bool },
    Complete { read: bool, good: bool },
    DropTicket(usize),
    WaitTicket(usize),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<bool>().prop_map(|read| Step::Issue { read }),
        4 => any::<(bool, bool)>().prop_map(|(read, good)| Step::Complete { read, good }),
        2 => any::<usize>().prop_map(Step::DropTicket),
        2 => any::<usize>().prop_map(Step::WaitTicket),
        1 => Just(Step::Flush),
    ]
}

/// The NIC of the property: it ends operations of each kind in their order.
struct Slow {
    fake: std::sync::Arc<FakeNic>,
    pending: [VecDeque<Fetched>; 2],
}

impl Slow {
    fn fetch(&mut self) {
        while let Some(command) = self.fake.fetch() {
            self.pending[command.operation() as usize].push_back(command);
        }
    }

    /// Ends the oldest operation of a kind and returns its offset.
    fn complete(&mut self, read: bool, status: Status) -> Option<u64> {
        self.fetch();
        let command = self.pending[usize::from(read)].pop_front()?;
        self.fake.finish(&command, status);
        self.fake.publish();
        Some(command.write().remote_address.get() - REMOTE_ADDRESS)
    }

    fn complete_all(&mut self) {
        for read in [false, true] {
            while self.complete(read, Status::Ok).is_some() {}
        }
    }
}

proptest! {
    /// Whatever the order of completions, waits, drops and flushes: every failure
    /// is reported exactly once, and by a ticket only to the command's own.
    #[test]
    fn every_failure_is_reported_exactly_once(
        steps in proptest::collection::vec(step(), 0..600),
    ) {
        let (fake, endpoint, remote) = setup();
        let (_buffer, segment) = export(&endpoint, 4096);
        let mut nic = Slow { fake, pending: Default::default() };
        let (mut tickets, mut failed, mut reported) = (Vec::new(), Vec::new(), Vec::new());
        let flush = |nic: &mut Slow, reported: &mut Vec<u64>| {
            nic.complete_all();
            reported.extend(failures(endpoint.flush().wait()).iter().map(|failure| failure.offset));
        };
        let mut issued = 0u64;
        for step in steps {
            nic.fetch();
            match step {
                Step::Issue { read } => {
                    if nic.pending.iter().map(VecDeque::len).sum::<usize>() == 64 {
                        nic.complete_all();
                    }
                    let ticket = if read {
                        endpoint.read(&remote, issued, segment.part(0, 0)).post()
                    } else {
                        endpoint.write(&remote, issued, b"").post()
                    };
                    tickets.push((issued, ticket.unwrap()));
                    issued += 1;
                }
                Step::Complete { read, good } => {
                    let status = if good { Status::Ok } else { Status::BadKey };
                    failed.extend(nic.complete(read, status).filter(|_| !good));
                }
                Step::DropTicket(which) => if !tickets.is_empty() {
                    tickets.swap_remove(which % tickets.len());
                },
                Step::WaitTicket(which) => if !tickets.is_empty() {
                    nic.complete_all();
                    let (number, ticket) = tickets.swap_remove(which % tickets.len());
                    let found = failures(ticket.wait());
                    prop_assert!(found.len() <= 1);
                    prop_assert!(found.iter().all(|failure| failure.offset == number));
                    reported.extend(found.iter().map(|failure| failure.offset));
                },
                Step::Flush => flush(&mut nic, &mut reported),
            }
        }
        drop(tickets);
        flush(&mut nic, &mut reported);
        reported.sort_unstable();
        failed.sort_unstable();
        prop_assert_eq!(reported, failed);
    }
}
