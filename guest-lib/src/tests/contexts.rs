//! Contexts, their doorbells and the buffer pool, beside a NIC that rings when the test says
//! (Q4, Q5, Q7, Q8).

use qnic_abi::context::{
    ContextCommand, ContextFlags, DoorbellState, Opcode, CONTEXTS, POOL_PAGES, REGION_BYTES,
};
use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::message::{CancelCommand, CancelFlags};
use qnic_abi::PAGE_SIZE;
use zerocopy::{FromBytes, IntoBytes};

use super::messages::{opcodes, ANY, NOW, SOON};
use super::{export, fetch, setup};
use crate::core::contexts::{ContextName, Direction};
use crate::core::messages::outbox::PLACES_OF_ONE;
use crate::message::{Destination, MessageEndpoint, Pattern, Request, Room, Source, Tag};
use crate::tests::fake_nic::{FakeNic, Fetched, Wake};
use crate::{Endpoint, Error, NodeId, Port, Status};

pub(super) const TO: Destination = Destination::tagged(NodeId(1), Port(2), Tag(5));
const SEND: u8 = Opcode::SendContext as u8;
const RECEIVE: u8 = Opcode::ReceiveContext as u8;
const CANCEL: u8 = qnic_abi::message::Opcode::Cancel as u8;

pub(super) fn send(number: usize) -> ContextName {
    let direction = Direction::Send;
    ContextName { direction, number }
}

pub(super) fn receive(number: usize) -> ContextName {
    let direction = Direction::Receive;
    ContextName { direction, number }
}

/// The context that a command names.
pub(super) fn named(command: &Fetched) -> ContextName {
    let bytes = command.descriptor.as_bytes();
    let issued = ContextCommand::read_from_bytes(bytes).unwrap();
    let zero = issued.reserved0.get() == 0 && issued.reserved1.iter().all(|it| it.get() == 0);
    assert!(zero && issued.header.inline_length == 0);
    let number = issued.context.get() as usize;
    match issued.header.opcode {
        SEND => send(number),
        RECEIVE => receive(number),
        other => panic!("{other}"),
    }
}

fn ended(status: Status, length: u64) -> CompletionEntry {
    CompletionEntry {
        status: status.code().into(),
        kind: CompletionKind::Receive as u8,
        node: 1.into(),
        port: 2.into(),
        tag: 5.into(),
        length: length.into(),
        ..CompletionEntry::default()
    }
}

impl FakeNic {
    pub(super) fn done(&self, context: ContextName, status: Status) {
        self.ring_context(context, DoorbellState::Done, ended(status, 8));
    }
}

fn short(endpoint: &Endpoint) -> crate::Result<Request<'_>> {
    endpoint.send_short(&TO, b"short").post()
}

/// Numbers of the contexts of the commands that are there.
fn numbers(fake: &FakeNic) -> Vec<usize> {
    let commands = fake.fetch_all();
    commands.iter().map(|it| named(it).number).collect()
}

#[test]
fn a_short_send_stands_in_its_region() {
    let (fake, endpoint, _remote) = setup();
    let to = TO.at(MessageEndpoint::new(3).unwrap()).immediate(77);
    let bytes: Vec<u8> = (1..=REGION_BYTES as u8).collect();
    let mut request = endpoint.send_short(&to, &bytes).post().unwrap();
    assert_eq!(fake.doorbell(send(0)), DoorbellState::Used);
    let command = fetch(&fake);
    assert_eq!(named(&command), send(0));
    let header = command.descriptor.header;
    assert_eq!((header.remote_node.get(), header.remote_port.get()), (1, 2));
    let (context, region) = fake.context(send(0));
    assert_eq!(
        (context.remote_node.get(), context.remote_port.get()),
        (1, 2)
    );
    let flags = ContextFlags::REGION | ContextFlags::NOTIFY;
    assert_eq!(context.flags.get(), flags.bits());
    assert_eq!(
        (context.tag.get(), context.ignore_or_immediate.get()),
        (5, 77)
    );
    assert_eq!(
        (context.endpoint.get(), context.length.get()),
        (3, bytes.len() as u64)
    );
    // All that a short message has no use for is zero.
    assert!(context.as_bytes()[32..42].iter().all(|byte| *byte == 0));
    assert!(context.as_bytes()[44..].iter().all(|byte| *byte == 0));
    assert_eq!(&region[..], &bytes[..]);

    assert!(request.test().unwrap().is_none());
    fake.done(send(0), Status::Ok);
    assert_eq!(request.wait(SOON).unwrap().length, 8);
    assert_eq!(fake.doorbell(send(0)), DoorbellState::Free);
    assert_eq!(
        request.wait(NOW).unwrap().node,
        NodeId(1),
        "it is told again"
    );

    let untagged = Destination::untagged(NodeId(1), Port(2));
    endpoint.send_short(&untagged, b"").forget().unwrap();
    let (context, _) = fake.context(send(1));
    let flags = ContextFlags::REGION | ContextFlags::UNTAGGED;
    assert_eq!(
        (context.flags.get(), context.length.get()),
        (flags.bits(), 0)
    );
    let long = [0; REGION_BYTES + 1];
    let refused = endpoint.send_short(&TO, &long).forget();
    assert_error!(refused, Error::OutOfRange { length: 129, .. });
}

#[test]
fn a_pooled_send_names_its_pages_and_gives_them_back() {
    let (fake, endpoint, _remote) = setup();
    let pool = endpoint.pool();
    let first = pool.take(1).unwrap();
    let buffer = pool.take(3).unwrap();
    assert_eq!((first.len(), buffer.len()), (PAGE_SIZE, 3 * PAGE_SIZE));
    buffer.write(PAGE_SIZE - 1, b"across").unwrap();
    let mut seen = [0; 6];
    fake.pool().read_bytes(2 * PAGE_SIZE - 1, &mut seen);
    assert_eq!(&seen, b"across");
    assert_error!(buffer.write(3 * PAGE_SIZE, b"x"), Error::OutOfRange { .. });
    assert_error!(buffer.read(usize::MAX, &mut seen), Error::OutOfRange { .. });

    let mut sent = buffer.post_send(&TO, 2 * PAGE_SIZE + 1).unwrap();
    let context = named(&fetch(&fake));
    let (contents, _) = fake.context(context);
    let flags = ContextFlags::POOL | ContextFlags::NOTIFY;
    assert_eq!(contents.flags.get(), flags.bits());
    assert_eq!(
        (contents.pool_page.get(), contents.pool_offset.get()),
        (1, 0)
    );
    assert_eq!((contents.pages.get(), contents.local_key.get()), (3, 0));
    assert_eq!(contents.length.get(), 2 * PAGE_SIZE as u64 + 1);
    assert!(sent.test().unwrap().is_none());
    assert_error!(sent.wait_end(NOW), Error::TimedOut);
    assert_eq!(pool.free(), 12);
    fake.done(context, Status::Ok);
    let (completion, buffer) = sent.wait(SOON).unwrap();
    assert_eq!(completion.port, Port(2));
    buffer.read(PAGE_SIZE - 1, &mut seen).unwrap();
    assert_eq!(&seen, b"across");
    drop((first, buffer));
    assert_eq!(pool.free(), POOL_PAGES);
}

#[test]
fn the_pool_says_how_many_pages_are_free() {
    let (_fake, endpoint, _remote) = setup();
    let pool = endpoint.pool();
    assert_error!(pool.take(0), Error::EmptyMemory);
    let most = pool.take(14).unwrap();
    let error = pool.take(3).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 pages of the buffer pool in one run: 2 are free; drop a buffer"
    );
    let refused = most.post_send(&TO, 14 * PAGE_SIZE + 1);
    assert_error!(refused, Error::OutOfRange { .. });
    assert_eq!(
        pool.free(),
        POOL_PAGES,
        "a buffer that is refused goes back"
    );
}

#[test]
fn a_pooled_receive_that_is_dropped_is_cancelled_and_waited_for() {
    let (fake, endpoint, _remote) = setup();
    let from = Source::Process(NodeId(4), Port(6));
    let pattern = Pattern::ignoring(from, Tag(0x100), 0xff);
    let buffer = endpoint.pool().take(2).unwrap();
    let posted = buffer.post_receive(&pattern).unwrap();
    let command = fetch(&fake);
    assert_eq!(named(&command), receive(0));
    let (context, _) = fake.context(receive(0));
    assert_eq!(
        (context.remote_node.get(), context.remote_port.get()),
        (4, 6)
    );
    assert_eq!(
        (context.tag.get(), context.ignore_or_immediate.get()),
        (0x100, 0xff)
    );
    assert_eq!((context.pages.get(), context.length.get()), (2, 8192));
    assert_eq!(fake.doorbell(receive(0)), DoorbellState::Used);
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| drop(posted));
        let command = fake.await_command();
        let cancel: CancelCommand = command.descriptor.read();
        assert_eq!(cancel.header.opcode, CANCEL);
        assert_eq!(cancel.handle.get(), 0);
        assert_eq!(cancel.flags.get(), CancelFlags::CONTEXT.bits());
        fake.await_request(Wake::Anything);
        assert!(!dropped.is_finished());
        assert_eq!(endpoint.pool().free(), POOL_PAGES - 2);
        fake.done(receive(0), Status::Cancelled);
        dropped.join().unwrap();
    });
    assert_eq!(endpoint.pool().free(), POOL_PAGES);
    assert_eq!(fake.doorbell(receive(0)), DoorbellState::Free);
}

/// What is told of a receive is what its doorbell says.
#[test]
fn a_pooled_receive_is_told_of_its_message() {
    let (fake, endpoint, _remote) = setup();
    let buffer = endpoint.pool().take(1).unwrap();
    let posted = buffer.post_receive(&ANY).unwrap();
    let context = named(&fetch(&fake));
    let flags = ContextFlags::POOL | ContextFlags::NOTIFY | ContextFlags::ANY_PROC;
    assert_eq!(fake.context(context).0.flags.get(), flags.bits());
    fake.pool().write_bytes(0, b"arrived");
    let entry = ended(Status::Truncated, 5000);
    fake.ring_context(context, DoorbellState::Done, entry);
    let (completion, buffer) = posted.wait(SOON).unwrap();
    assert!(completion.truncated);
    assert_eq!((completion.length, completion.tag), (5000, Tag(5)));
    let mut bytes = [0; 7];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"arrived");

    let posted = buffer.post_receive(&ANY).unwrap();
    let context = named(&fetch(&fake));
    assert_eq!(context.number, 1);
    fake.done(context, Status::PeerGone);
    let error = posted.wait(SOON).unwrap_err();
    assert_eq!(error.status(), Some(Status::PeerGone));
    assert_eq!(endpoint.pool().free(), POOL_PAGES);
}

#[test]
fn a_pooled_send_that_is_dropped_keeps_its_pages_until_it_has_ended() {
    let (fake, endpoint, _remote) = setup();
    let buffer = endpoint.pool().take(4).unwrap();
    drop(buffer.post_send(&TO, 8).unwrap());
    let context = named(&fetch(&fake));
    assert_eq!(endpoint.pool().free(), POOL_PAGES - 4);
    assert_eq!(fake.doorbell(context), DoorbellState::Used);
    fake.done(context, Status::PeerGone);
    assert_eq!(endpoint.pool().free(), POOL_PAGES);
    assert_eq!(fake.doorbell(context), DoorbellState::Free);
    assert_eq!(
        endpoint.statistics().failed_sends,
        0,
        "its failure is dropped"
    );
    // One that has ended gives them back at once.
    let buffer = endpoint.pool().take(4).unwrap();
    let mut sent = buffer.post_send(&TO, 8).unwrap();
    fake.done(named(&fetch(&fake)), Status::Ok);
    sent.wait_end(SOON).unwrap();
    drop(sent);
    assert_eq!(endpoint.pool().free(), POOL_PAGES);
}

#[test]
fn contexts_are_taken_behind_the_last_one_and_none_twice() {
    let (fake, endpoint, _remote) = setup();
    let mut requests: Vec<_> = (0..CONTEXTS).map(|_| short(&endpoint).unwrap()).collect();
    assert_eq!(numbers(&fake), (0..CONTEXTS).collect::<Vec<_>>());
    let error = short(&endpoint).unwrap_err();
    assert_eq!(
        error.to_string(),
        "all 32 Send contexts are under way: wait for one, or use send, which needs none"
    );
    assert!(fake.fetch().is_none());
    // Receives have their own.
    let buffer = endpoint.pool().take(1).unwrap();
    let received = buffer.post_receive(&ANY).unwrap();
    assert_eq!(named(&fetch(&fake)), receive(0));
    for number in [20, 7, 9] {
        fake.done(send(number), Status::Ok);
        requests[number].wait(SOON).unwrap();
    }
    // Behind 31, the last one: 7, then on from there.
    let more: Vec<_> = (0..3).map(|_| short(&endpoint).unwrap()).collect();
    assert_eq!(numbers(&fake), [7, 9, 20]);
    fake.done(send(3), Status::Ok);
    fake.done(send(25), Status::Ok);
    let last = [(); 2].map(|()| short(&endpoint).unwrap());
    assert_eq!(numbers(&fake), [25, 3]);
    fake.done(receive(0), Status::Ok);
    drop((received, more, last));
}

#[test]
fn nobody_is_told_of_a_send_without_a_notice() {
    let (fake, endpoint, _remote) = setup();
    let send_one = || endpoint.send_short(&TO, b"x").forget();
    for _ in 0..CONTEXTS {
        send_one().unwrap();
    }
    assert_error!(send_one(), Error::NoContext { contexts: 32, .. });
    assert_eq!(numbers(&fake).len(), CONTEXTS);
    assert_eq!(
        fake.context(send(0)).0.flags.get(),
        ContextFlags::REGION.bits()
    );
    fake.ring_context(send(4), DoorbellState::Free, CompletionEntry::default());
    fake.done(send(5), Status::NoSuchPort);
    send_one().unwrap();
    send_one().unwrap();
    assert_eq!(numbers(&fake), [4, 5]);
    assert_eq!(endpoint.statistics().failed_sends, 1);
    assert_error!(send_one(), Error::NoContext { .. });
}

#[test]
fn sends_of_contexts_stand_behind_those_before_them_and_need_no_place() {
    const PLAIN: u8 = qnic_abi::message::Opcode::Send as u8;
    let (fake, endpoint, _remote) = setup();
    let mut first = Vec::new();
    let mut plain = Vec::new();
    for _ in 0..PLACES_OF_ONE {
        plain.push(endpoint.send(&TO, b"x").post().unwrap());
        first.extend(fake.fetch_all());
    }
    fake.set_awake(false);
    let request = short(&endpoint).unwrap();
    assert_eq!(numbers(&fake), [0], "nothing waits before it");
    plain.push(endpoint.send(&TO, b"x").post().unwrap());
    let behind = [(); 2].map(|()| short(&endpoint).unwrap());
    plain.push(endpoint.send(&TO, b"x").post().unwrap());
    assert!(numbers(&fake).is_empty());
    fake.end(&first[0], Status::Ok);
    endpoint.statistics();
    let posted = fake.fetch_all();
    assert_eq!(opcodes(&posted), [PLAIN, SEND, SEND]);
    assert_eq!([named(&posted[1]), named(&posted[2])], [send(1), send(2)]);
    fake.end(&first[1], Status::Ok);
    endpoint.statistics();
    assert_eq!(opcodes(&fake.fetch_all()), [PLAIN]);
    drop((request, behind));
}

#[test]
fn a_reset_of_the_queue_frees_all_contexts() {
    let (fake, endpoint, _remote) = setup();
    let pool = endpoint.pool();
    let take = || pool.take(1).unwrap();
    let mut sent = take().post_send(&TO, 8).unwrap();
    let received = take().post_receive(&ANY).unwrap();
    drop(take().post_send(&TO, 8).unwrap());
    endpoint.send_short(&TO, b"x").forget().unwrap();
    let mut plain = Vec::new();
    for _ in 0..=PLACES_OF_ONE {
        plain.push(endpoint.send(&TO, b"x").post().unwrap());
        fake.fetch_all();
    }
    // It is filled, and waits behind the last one.
    let mut queued = short(&endpoint).unwrap();
    fake.fetch_all();
    fake.fail_queue(Status::Malformed);
    assert_error!(sent.test(), Error::QueueFailed(Status::Malformed));
    endpoint.reset_queue().unwrap();
    for number in 0..CONTEXTS {
        assert_eq!(fake.doorbell(send(number)), DoorbellState::Free);
        assert_eq!(fake.doorbell(receive(number)), DoorbellState::Free);
    }
    assert_eq!(pool.free(), POOL_PAGES - 2, "those of requests that live");
    assert_error!(sent.wait_end(SOON), Error::QueueReset);
    assert_error!(queued.wait(SOON), Error::QueueReset);
    assert_error!(received.wait(SOON), Error::QueueReset);
    drop(sent);
    assert_eq!(
        (pool.free(), endpoint.statistics().failed_sends),
        (POOL_PAGES, 0)
    );
    let mut new = short(&endpoint).unwrap();
    fake.done(named(&fetch(&fake)), Status::Ok);
    new.wait(SOON).unwrap();
}

#[test]
fn a_receive_that_finds_the_queue_full_takes_no_context() {
    let (fake, endpoint, _remote) = setup();
    let (_buffer, segment) = export(&endpoint, 8);
    let posted: Vec<_> = (0..qnic_abi::window::COMMAND_ENTRIES)
        .map(|_| endpoint.receive(&ANY, segment.part(0, 8)).post().unwrap())
        .collect();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut request = endpoint.receive(&ANY, Room::Parts(&[])).post().unwrap();
            request.wait(SOON).map(drop)
        });
        fake.await_request(Wake::Anything);
        // The thread looks once more before it sleeps, and holds a context for that moment.
        while fake.doorbell(receive(0)) != DoorbellState::Free {
            std::thread::yield_now();
        }
        let commands = fake.fetch_all();
        fake.publish();
        assert_eq!(named(&fake.await_command()), receive(0));
        fake.done(receive(0), Status::Ok);
        waiting.join().unwrap().unwrap();
        commands.iter().for_each(|it| fake.end(it, Status::Ok));
    });
    drop(posted);
}

/// Two threads that send without a break have each context once at a time (U9).
#[test]
fn threads_share_the_contexts() {
    const EACH: usize = 500;
    let (fake, endpoint, _remote) = setup();
    let run = || {
        for _ in 0..EACH {
            let mut request = loop {
                match short(&endpoint) {
                    Err(Error::NoContext { .. }) => std::thread::yield_now(),
                    other => break other.unwrap(),
                }
            };
            request.wait(SOON).unwrap();
        }
    };
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(run));
        for _ in 0..2 * EACH {
            let context = named(&fake.await_command());
            assert_eq!(fake.doorbell(context), DoorbellState::Used);
            fake.done(context, Status::Ok);
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    assert!(fake.fetch().is_none());
}
