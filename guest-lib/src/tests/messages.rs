//! Messages, beside a NIC that completes what the test says, when it says so.

use std::time::{Duration, Instant};

use qnic_abi::host_area::{CompletionEntry, CompletionKind, COMPLETION_ENTRIES, COMPLETION_MORE};
use qnic_abi::message::{CancelCommand, Opcode, ReceiveCommand, ReceiveFlags, SendCommand};
use qnic_abi::window::COMMAND_ENTRIES;

use super::{export, fetch, setup};
use crate::core::messages::outbox::{OTHERS, PLACES, PLACES_OF_ONE, SHARE};
use crate::core::messages::ARRIVED_LIMIT;
use crate::message::{
    wait_all, wait_any, Destination, MessageEndpoint, Pattern, Request, Source, Tag,
};
use crate::tests::fake_nic::{FakeNic, Fetched, Wake};
use crate::{Access, Endpoint, Error, NodeId, Port, Segment, SegmentName, Status};

pub(super) const NOW: Option<Duration> = Some(Duration::ZERO);
/// Long enough for anything that will happen at all.
pub(super) const SOON: Option<Duration> = Some(Duration::from_secs(30));
/// What a wait takes that has no end.
const MINUTE: Duration = Duration::from_secs(60);
const TO: Destination = Destination::tagged(NodeId(1), Port(2), Tag(5));
pub(super) const ANY: Pattern = Pattern::tagged(Source::Any, Tag(5));

impl Fetched {
    pub(super) fn handle(&self) -> u64 {
        self.descriptor.read::<SendCommand>().handle.get()
    }
}

impl FakeNic {
    pub(super) fn end_with(
        &self,
        command: &Fetched,
        status: Status,
        change: impl Fn(&mut CompletionEntry),
    ) {
        let kind = match command.descriptor.header.opcode {
            4 => CompletionKind::Send,
            10 => CompletionKind::Probe,
            _ => CompletionKind::Receive,
        };
        let mut entry = CompletionEntry {
            handle: command.handle().into(),
            status: status.code().into(),
            kind: kind as u8,
            node: 1.into(),
            port: 2.into(),
            tag: 5.into(),
            length: 8.into(),
            ..CompletionEntry::default()
        };
        change(&mut entry);
        assert!(self.complete(&entry), "the completion queue is full");
    }

    pub(super) fn end(&self, command: &Fetched, status: Status) {
        self.end_with(command, status, |_| {});
    }

    /// Blocks until there is a command.
    pub(super) fn await_command(&self) -> Fetched {
        let start = Instant::now();
        loop {
            match self.fetch() {
                Some(command) => return command,
                None => std::thread::yield_now(),
            }
            assert!(start.elapsed() < MINUTE, "no command comes");
        }
    }

    /// All commands that are there.
    pub(super) fn fetch_all(&self) -> Vec<Fetched> {
        std::iter::from_fn(|| self.fetch()).collect()
    }
}

pub(super) fn opcodes(commands: &[Fetched]) -> Vec<u8> {
    let opcode = |command: &Fetched| command.descriptor.header.opcode;
    commands.iter().map(opcode).collect()
}

pub(super) fn inbox(endpoint: &Endpoint) -> Segment {
    let buffer = endpoint.allocate(4096).unwrap();
    endpoint
        .export(SegmentName(1), &buffer, Access::READ)
        .unwrap()
}

/// The status with which a request has ended.
fn status(request: &mut Request<'_>) -> Status {
    request.wait(SOON).unwrap_err().status().unwrap()
}

#[test]
fn a_send_says_what_it_was_given() {
    let (fake, endpoint, _remote) = setup();
    let (buffer, segment) = export(&endpoint, 8192);
    let third = MessageEndpoint::new(3).unwrap();
    let to = TO.at(third).immediate(77);
    let mut short = endpoint.send(&to, b"in line!").post().unwrap();
    let command = fetch(&fake);
    let send: SendCommand = command.descriptor.read();
    assert_eq!(send.header.opcode, Opcode::Send as u8);
    assert_eq!(send.header.inline_length, 8);
    assert_eq!(
        (send.header.remote_node.get(), send.header.remote_port.get()),
        (1, 2)
    );
    assert_eq!((send.tag.get(), send.immediate.get()), (5, 77));
    assert_eq!((send.endpoint.get(), send.flags.get()), (3, 0));
    assert_eq!((send.length.get(), send.local_key.get()), (8, 0));
    assert_eq!(&command.payload[..8], b"in line!");
    fake.end(&command, Status::Ok);
    let completion = short.wait(SOON).unwrap();
    assert_eq!((completion.node, completion.port), (NodeId(1), Port(2)));

    let untagged = Destination::untagged(NodeId(1), Port(2));
    let part = segment.part(100, 5000);
    let mut long = endpoint.send(&untagged, part).post().unwrap();
    let command = fetch(&fake);
    let send: SendCommand = command.descriptor.read();
    assert_eq!((send.flags.get(), send.tag.get()), (1, 0));
    assert_eq!(send.local_address.get(), buffer.address() + 100);
    assert_eq!((send.length.get(), send.local_key.get()), (5000, 1000));
    fake.end(&command, Status::Truncated);
    assert!(long.wait(SOON).unwrap().truncated);
    assert!(long.wait(NOW).unwrap().truncated, "it is told again");
}

#[test]
fn a_receive_says_what_it_takes() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let from = Source::Process(NodeId(4), Port(6));
    let pattern = Pattern::ignoring(from, Tag(0x100), 0xff);
    let mut request = endpoint
        .receive(&pattern, segment.part(8, 64))
        .post()
        .unwrap();
    assert!(request.test().unwrap().is_none());
    let command = fetch(&fake);
    let receive: ReceiveCommand = command.descriptor.read();
    assert_eq!(receive.header.remote_node.get(), 4);
    assert_eq!((receive.tag.get(), receive.ignore.get()), (0x100, 0xff));
    assert_eq!(receive.local_address.get(), segment.address() + 8);
    assert_eq!((receive.length.get(), receive.flags.get()), (64, 0));
    fake.end_with(&command, Status::Truncated, |entry| {
        entry.length = 100.into();
        entry.tag = 0x1ff.into();
        entry.immediate = 9.into();
    });
    let completion = request.wait(SOON).unwrap();
    assert_eq!((completion.tag, completion.immediate), (Tag(0x1ff), 9));
    assert_eq!((completion.length, completion.truncated), (100, true));

    let part = segment.part(0, 0);
    let any = endpoint
        .receive(&Pattern::untagged(Source::Any), part)
        .post();
    let command = fetch(&fake);
    let receive: ReceiveCommand = command.descriptor.read();
    let flags = ReceiveFlags::UNTAGGED | ReceiveFlags::ANY_PROC;
    assert_eq!(receive.flags.get(), flags.bits());
    fake.end(&command, Status::Ok);
    any.unwrap().wait(SOON).unwrap();
    assert!(MessageEndpoint::new(16).is_none());
    let outside = endpoint.receive(&ANY, segment.part(0, 4097)).post();
    assert_error!(outside, Error::OutOfRange { .. });
    let long = endpoint.send(&TO, &[0; 200]).post();
    assert_error!(long, Error::NotExported { .. });
}

#[test]
fn requests_end_in_any_order() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let post = |_| endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    let mut requests: Vec<_> = (0..5).map(post).collect();
    let commands = fake.fetch_all();
    assert_error!(wait_any(&mut requests, NOW), Error::TimedOut);
    fake.end(&commands[3], Status::Ok);
    fake.end(&commands[1], Status::PeerGone);
    assert_eq!(wait_any(&mut requests, SOON).unwrap(), Some(1));
    assert_eq!(status(&mut requests[1]), Status::PeerGone);
    assert!(requests[3].test().unwrap().is_some());
    assert_error!(wait_all(&mut requests, NOW), Error::TimedOut);
    for index in [4, 0, 2] {
        fake.end(&commands[index], Status::Ok);
    }
    assert_error!(wait_all(&mut requests, SOON), Error::Message(_));
    drop(requests.swap_remove(1));
    assert_eq!(wait_all(&mut requests, SOON).unwrap().len(), 4);
    assert_eq!(wait_any(&mut [], NOW).unwrap(), None);
    let (_other_fake, other, _) = setup();
    let mut mixed = vec![other.send(&TO, b"x").post().unwrap()];
    mixed.extend(requests);
    assert_error!(wait_any(&mut mixed, NOW), Error::ForeignRequest);
}

/// Long Sends that wait for their receivers leave room for receives, cancels and writes.
#[test]
fn sends_take_no_room_of_receives() {
    let (fake, endpoint, remote) = setup();
    let segment = inbox(&endpoint);
    let post = |number: u64| {
        let to = TO.immediate(number);
        endpoint.send(&to, segment.part(0, 4096)).post().unwrap()
    };
    let mut running = Vec::new();
    let mut sends = Vec::new();
    for number in 0..3000 {
        sends.push(post(number));
        running.extend(fake.fetch_all());
    }
    assert_eq!(running.len(), PLACES_OF_ONE);
    let mut receive = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    receive.cancel().unwrap();
    drop(endpoint.write(&remote, 0, b"x").post().unwrap());
    assert_eq!(opcodes(&fake.fetch_all()), [5, 6, 1]);
    let mut order = Vec::new();
    while !running.is_empty() {
        let send = running.remove(0);
        order.push(send.descriptor.read::<SendCommand>().immediate.get());
        fake.end(&send, Status::Ok);
        endpoint.core().progress_messages();
        running.extend(fake.fetch_all());
        assert!(running.len() <= PLACES_OF_ONE);
    }
    assert_eq!(order, (0..3000).collect::<Vec<_>>());
    wait_all(&mut sends, SOON).unwrap();
    std::mem::forget(receive);
}

/// A process that receives nothing holds up no Send to another one (N15).
#[test]
fn sends_that_nothing_receives_hold_up_no_others() {
    let (fake, endpoint, _remote) = setup();
    let mut held = Vec::new();
    for _ in 0..2 * PLACES {
        held.push(endpoint.send(&TO, b"x").post().unwrap());
        fake.fetch_all();
    }
    for port in 3..3 + OTHERS as u16 {
        let to = Destination::tagged(NodeId(1), Port(port), Tag(5));
        for _ in 0..SHARE {
            held.push(endpoint.send(&to, b"go").post().unwrap());
            let go = fake.fetch().expect("it is at the NIC at once");
            assert_eq!(go.descriptor.header.remote_port.get(), port);
        }
    }
    endpoint.core().progress_messages();
    assert!(fake.fetch().is_none());
}

/// Beyond the bound of what the library holds each destination has its share; then one call says
/// so, and the other one waits.
#[test]
fn sends_beyond_the_bound_would_block_or_wait() {
    let (fake, endpoint, _remote) = setup();
    endpoint.hold_sends(100);
    let mut running = Vec::new();
    let mut held = Vec::new();
    let refused = loop {
        match endpoint.send(&TO, b"x").post() {
            Ok(request) => held.push(request),
            Err(error) => break error,
        }
        running.extend(fake.fetch_all());
    };
    assert_error!(Err::<(), _>(refused), Error::WouldBlock);
    assert_eq!(
        (running.len(), held.len()),
        (PLACES_OF_ONE, PLACES_OF_ONE + 100)
    );
    let other = Destination::tagged(NodeId(1), Port(3), Tag(5));
    drop(endpoint.send(&other, b"go").post().unwrap());
    assert!(fake.fetch().is_some(), "another destination goes on");
    assert_error!(
        endpoint.send(&TO, b"x").timeout(NOW).wait(),
        Error::TimedOut
    );
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| endpoint.send(&TO, b"last").timeout(SOON).wait());
        while !sent.is_finished() {
            // No more than the completion queue has room for.
            for sends in running.chunks(200) {
                sends.iter().for_each(|send| fake.end(send, Status::Ok));
                endpoint.core().progress_messages();
            }
            running = fake.fetch_all();
            if running.is_empty() {
                std::thread::yield_now();
            }
        }
        sent.join().unwrap().unwrap();
    });
    wait_all(&mut held, SOON).unwrap();
}

/// Commands that no counter counts leave the error ring to those that are counted.
#[test]
fn many_receives_do_not_stop_writes() {
    let (fake, endpoint, remote) = setup();
    let segment = inbox(&endpoint);
    let mut requests = Vec::new();
    let mut commands = Vec::new();
    for round in 0..4 * COMMAND_ENTRIES {
        if round % COMMAND_ENTRIES == 0 {
            commands.extend(fake.fetch_all());
        }
        let part = segment.part(0, 8);
        requests.push(endpoint.receive(&ANY, part).post().unwrap());
    }
    commands.extend(fake.fetch_all());
    let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
    assert_eq!(fake.serve(Status::Ok), 1);
    ticket.wait().unwrap();
    let blocked = commands.split_off(COMPLETION_ENTRIES as usize - 1);
    commands
        .iter()
        .for_each(|command| fake.end(command, Status::Ok));
    assert!(blocked.len() == 1 && endpoint.core().tracker().has_slot());
    fake.end(&blocked[0], Status::Ok);
    assert_eq!(
        wait_all(&mut requests, SOON).unwrap().len(),
        commands.len() + 1
    );
}

/// A process that only writes reads completions nevertheless, and rings for those that wait.
#[test]
fn whoever_posts_or_waits_makes_room_for_completions() {
    let (fake, endpoint, remote) = setup();
    let segment = inbox(&endpoint);
    let _many = std::mem::ManuallyDrop::new(
        endpoint
            .receive(&ANY, segment.part(0, 4096))
            .many()
            .unwrap(),
    );
    let command = fetch(&fake);
    let fill = || {
        let entry = CompletionEntry {
            handle: command.handle().into(),
            kind: CompletionKind::Receive as u8,
            flags: COMPLETION_MORE,
            ..CompletionEntry::default()
        };
        while fake.complete(&entry) {}
    };
    fake.set_awake(true);
    fill();
    let before = fake.doorbells();
    let ticket = endpoint.write(&remote, 0, b"x").post().unwrap();
    assert_eq!(fake.doorbells(), before + 1);
    fill();
    fake.serve(Status::Ok);
    ticket.wait().unwrap();
    assert_eq!(fake.doorbells(), before + 2);
    fill();
    let signal = endpoint.notification(super::ONE).wait(NOW);
    assert_error!(signal, Error::TimedOut);
    assert_eq!(fake.doorbells(), before + 3);
}

#[test]
fn a_receive_that_is_dropped_is_cancelled_and_its_end_awaited() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    for late in [Status::Cancelled, Status::Ok] {
        let request = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
        let receive = fetch(&fake);
        std::thread::scope(|scope| {
            let dropped = scope.spawn(|| drop(request));
            let cancel: CancelCommand = fake.await_command().descriptor.read();
            assert_eq!(cancel.header.opcode, Opcode::Cancel as u8);
            assert_eq!(cancel.handle.get(), receive.handle());
            assert!(!dropped.is_finished());
            fake.end(&receive, late);
            dropped.join().unwrap();
        });
        assert!(fake.fetch().is_none());
    }
}

#[test]
fn a_receive_with_a_timeout_ends_with_it_unless_a_message_comes() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    for (end, expected) in [(Status::Cancelled, false), (Status::Ok, true)] {
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let short = Some(Duration::from_millis(2));
                endpoint
                    .receive(&ANY, segment.part(0, 8))
                    .timeout(short)
                    .wait()
            });
            let receive = fake.await_command();
            assert_eq!(
                fake.await_command().descriptor.header.opcode,
                Opcode::Cancel as u8
            );
            fake.end(&receive, end);
            match (received.join().unwrap(), expected) {
                (Ok(_), true) | (Err(Error::TimedOut), false) => {}
                (other, _) => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn a_send_that_is_dropped_goes_on() {
    let (fake, endpoint, _remote) = setup();
    drop(endpoint.send(&TO, b"x").post().unwrap());
    let send = fetch(&fake);
    fake.end(&send, Status::PeerGone);
    let mut next = endpoint.send(&TO, b"y").post().unwrap();
    fake.end(&fetch(&fake), Status::Ok);
    next.wait(SOON).unwrap();
    assert!(fake.fetch().is_none());
}

#[test]
fn a_reset_of_the_queue_ends_all_requests_and_late_completions_end_none() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut old = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    let sends: Vec<_> = (0..60).map(|_| endpoint.send(&TO, b"x").post()).collect();
    let command = fetch(&fake);
    fake.fail_queue(Status::Malformed);
    assert_error!(old.wait(SOON), Error::QueueFailed(Status::Malformed));
    endpoint.reset_queue().unwrap();
    assert_error!(old.wait(SOON), Error::QueueReset);
    for send in sends {
        assert_error!(send.unwrap().wait(SOON), Error::QueueReset);
    }
    let mut new = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    fake.end(&command, Status::Ok);
    assert_error!(new.wait(NOW), Error::TimedOut);
    fake.end(&fetch(&fake), Status::Ok);
    new.wait(SOON).unwrap();
}

#[test]
fn the_last_of_many_ends_them_only_when_all_have_come() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut many = endpoint
        .receive(&ANY, segment.part(0, 4096))
        .many()
        .unwrap();
    let command = fetch(&fake);
    let message = |offset: u64, length: u64, flags: u8| {
        fake.end_with(&command, Status::Ok, |entry| {
            entry.offset = offset.into();
            entry.length = length.into();
            entry.flags = flags;
        });
    };
    message(0, 100, COMPLETION_MORE);
    // The one between is long, and has not landed yet.
    message(3000, 1096, 0);
    assert_eq!(many.test().unwrap().unwrap().offset, 0);
    assert!(many.test().unwrap().is_none());
    assert_error!(many.next(NOW), Error::TimedOut);
    message(100, 2900, COMPLETION_MORE);
    let rest = [(); 2].map(|()| many.next(SOON).unwrap().unwrap().offset);
    assert_eq!(rest, [100, 3000]);
    for _ in 0..2 {
        assert!(many.next(SOON).unwrap().is_none());
    }
}

#[test]
fn many_messages_that_nobody_takes_end_their_receive() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut many = endpoint
        .receive(&ANY, segment.part(0, 4096))
        .many()
        .unwrap();
    let command = fetch(&fake);
    for _ in 0..ARRIVED_LIMIT {
        assert!(fake.fetch().is_none());
        fake.end_with(&command, Status::Ok, |entry| {
            entry.length = 0.into();
            entry.flags = COMPLETION_MORE;
        });
        endpoint.core().progress_messages();
    }
    assert_eq!(opcodes(&fake.fetch_all()), [Opcode::Cancel as u8]);
    fake.end(&command, Status::Cancelled);
    for _ in 0..ARRIVED_LIMIT {
        assert!(many.next(SOON).unwrap().is_some());
    }
    assert!(many.next(SOON).unwrap().is_none());
}

/// One thread sleeps until a slow write is complete. What another leaves to be posted, as the command queue
/// is full, does not wait for that.
#[test]
fn a_thread_that_waits_for_a_write_posts_what_waits_for_the_queue() {
    let (fake, endpoint, remote) = setup();
    let mut slow = endpoint.write(&remote, 0, b"x").post().unwrap();
    let write = fetch(&fake);
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || slow.wait_timeout(Duration::from_secs(30)));
        fake.await_request(Wake::Anything);
        fake.wake_for_head();
        assert_eq!(fake.generation(), 0, "nothing is to be posted");
        for _ in 1..COMMAND_ENTRIES {
            drop(endpoint.write(&remote, 0, b"x").post().unwrap());
        }
        drop(endpoint.send(&TO, b"x").post().unwrap());
        let others = fake.fetch_all();
        assert_eq!(others.len(), COMMAND_ENTRIES - 1, "the Send waits");
        fake.wake_for_head();
        assert_eq!(opcodes(&[fake.await_command()]), [4]);
        for command in others.iter().chain([&write]) {
            fake.finish(command, Status::Ok);
        }
        fake.publish();
        waits.join().unwrap().unwrap();
    });
}

/// One thread sleeps, another takes its completion out of the queue (U9).
#[test]
fn a_thread_that_takes_completions_takes_those_of_all() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    for _ in 0..200 {
        let post = |_| endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
        let mut requests: Vec<_> = (0..3).map(post).collect();
        let commands = fake.fetch_all();
        std::thread::scope(|scope| {
            for request in &mut requests {
                scope.spawn(|| request.wait(SOON).unwrap());
            }
            for command in &commands {
                fake.await_request(Wake::Anything);
                fake.end(command, Status::Ok);
                endpoint.core().progress_messages();
            }
        });
    }
}

#[test]
fn a_device_that_is_gone_ends_waits_and_drops() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut request = endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap();
    let many = endpoint.receive(&ANY, segment.part(0, 8)).many().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| request.wait(SOON));
        fake.await_request(Wake::Anything);
        fake.vanish();
        assert_error!(waits.join().unwrap(), Error::DeviceGone);
    });
    drop((request, many));
    assert_error!(endpoint.send(&TO, b"x").post(), Error::DeviceGone);
    let posted = endpoint.receive(&ANY, segment.part(0, 8)).post();
    assert_error!(posted, Error::DeviceGone);
}
