//! Contexts on the fake NIC: what it is told, and what the platform hears.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::vec::Vec;

use qnic_abi::command::{CommandBody, Descriptor, COMMAND_BYTES};
use qnic_abi::event::{Event as Said, Kind};
use qnic_abi::host_area::HEAD;
use qnic_abi::verbs::commands::{VerbsArmCommand, VerbsSendCommand, SOLICITED_ONLY};
use qnic_abi::verbs::requests::{ModifyQueuePair, RING_BYTES};
use qnic_abi::verbs::rings::{QueueHeader, PRODUCER};
use qnic_abi::verbs::{Event, PathAddress, Rights, State, Transport, FIRST_QUEUE_PAIR};
use qnic_abi::window::command_offset;
use qnic_abi::{Access, NodeId, SharedMemory, Status, PAGE_SIZE};
use zerocopy::FromBytes;

use super::{Capacity, CompletionQueue, QueuePair, QueuePairOptions, Queues};
use crate::platform::{DeviceMemory, Platform};
use crate::testing::{Fake, PAGE};
use crate::{CallError, Driver, Failure, Handled, VerbsContext};

type Queue = CompletionQueue<Fake>;
type Pair = QueuePair<Fake>;

fn opened() -> (Fake, Arc<Driver<Fake>>, VerbsContext<Fake>) {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    let context = driver.open_verbs((), 100).unwrap();
    (fake, driver, context)
}

fn options() -> QueuePairOptions {
    QueuePairOptions {
        transport: Transport::Reliable,
        signal_all: false,
        domain: 1,
        sends: Capacity {
            requests: 100,
            sges: 4,
        },
        receives: Capacity {
            requests: 500,
            sges: 1,
        },
        inline: 60,
    }
}

fn pair(context: &VerbsContext<Fake>, queue: &Queue, owner: u64) -> Pair {
    let made = context.create_queue_pair(options(), both(queue), owner);
    made.unwrap()
}

/// A completion queue for both, and receives of its own.
fn both(queue: &Queue) -> Queues<'_, Fake> {
    Queues {
        sends: queue,
        receives: queue,
        shared: None,
    }
}

/// Gives the driver an event of verbs.
fn say(driver: &Driver<Fake>, token: u64, said: u16) -> Handled {
    let event = Said {
        kind: (Kind::Verbs as u32).into(),
        flags: said.into(),
        address: token.into(),
        ..Default::default()
    };
    driver.handle_event(&zerocopy::transmute!(event))
}

/// The command in a slot of the window of VNI 0.
fn command(fake: &Fake, driver: &Driver<Fake>, number: u64) -> Descriptor {
    let window = driver.geometry().window_offset(qnic_abi::VniId(0));
    let mut words = [0u64; COMMAND_BYTES / 8];
    fake.sram
        .read_words(window + command_offset(number), &mut words);
    let bytes: [u8; COMMAND_BYTES] = zerocopy::transmute!(words.map(u64::to_le));
    Descriptor::read_from_prefix(&bytes).unwrap().0
}

#[test]
fn rings_are_what_the_nic_is_told_and_the_process_maps() {
    let (fake, _driver, context) = opened();
    let queue = context.create_completion_queue(100, 1).unwrap();
    assert_eq!(queue.completions(), 127);
    let pair = pair(&context, &queue, 2);
    let made = pair.options();
    assert_eq!((made.sends.requests, made.receives.requests), (127, 511));
    // 272 bytes become 512, and 56 become 64.
    assert_eq!(
        (made.sends.sges, made.inline, made.receives.sges),
        (16, 304, 1)
    );
    let told = fake.nic().verbs.pairs[&pair.number()].1;
    assert_eq!((told.send_sges.get(), told.inline.get()), (16, 304));
    for (place, ring) in [
        (told.send, pair.sends()),
        (told.receive, pair.receives().unwrap()),
    ] {
        let header = page_at(&fake, place.first.get());
        let header = QueueHeader::read_from_prefix(&header).unwrap().0;
        assert_eq!(header.index_mask.get() + 1, place.entries.get());
        assert_eq!(1 << header.log2_entry.get(), place.entry_bytes.get());
        let list = page_at(&fake, place.list.get());
        let behind = list.chunks(8).take(place.pages.get().into());
        let behind = behind.map(|entry| u64::from_le_bytes(entry.try_into().unwrap()));
        let pages: Vec<_> = core::iter::once(place.first.get()).chain(behind).collect();
        let mapped = (0..ring.bytes() / PAGE_SIZE).map(|index| ring.page(index).unwrap().address());
        assert_eq!(pages, mapped.collect::<Vec<_>>());
        assert!(ring.page(pages.len()).is_none());
    }
}

fn page_at(fake: &Fake, address: u64) -> Vec<u8> {
    let (memory, offset) = fake.pages.at(address);
    let mut bytes = std::vec![0; PAGE_SIZE];
    memory.read_bytes(offset, &mut bytes);
    bytes
}

#[test]
fn what_is_too_large_is_refused_and_nothing_stays() {
    let (fake, _driver, context) = opened();
    let before = fake.pages.count();
    let too_many = (RING_BYTES / 64) as u32;
    let large = context.create_completion_queue(too_many, 1).err();
    assert_eq!(large, Some(Failure::Call(CallError::Invalid)));
    assert!(context.create_completion_queue(u32::MAX, 1).is_err());
    let queue = context.create_completion_queue(too_many - 1, 1).unwrap();
    let of_queue = fake.pages.count();
    for wrong in [
        QueuePairOptions {
            inline: 513,
            ..options()
        },
        QueuePairOptions {
            sends: Capacity {
                requests: 1,
                sges: 17,
            },
            ..options()
        },
        QueuePairOptions {
            receives: Capacity {
                requests: 1 << 16,
                sges: 1,
            },
            ..options()
        },
    ] {
        assert!(context.create_queue_pair(wrong, both(&queue), 2).is_err());
    }
    fake.nic().next.push_back(Ok(Status::Exhausted.code()));
    let refused = context.create_queue_pair(options(), both(&queue), 2).err();
    assert_eq!(refused, Some(Failure::Refused(Status::Exhausted)));
    assert_eq!(fake.pages.count(), of_queue);
    context.destroy_completion_queue(queue);
    assert_eq!(fake.pages.count(), before);
}

#[test]
fn queue_pairs_of_a_shared_receive_queue_have_no_receives() {
    let (fake, driver, context) = opened();
    let before = fake.pages.count();
    let queue = context.create_completion_queue(10, 1).unwrap();
    let wanted = Capacity {
        requests: 100,
        sges: 2,
    };
    let shared = context.create_shared_receive_queue(7, wanted, 3, 2);
    let shared = shared.unwrap();
    // 72 bytes become 128.
    let room = Capacity {
        requests: 127,
        sges: 5,
    };
    assert_eq!(shared.capacity(), room);
    let told = |fake: &Fake| fake.nic().verbs.shared[&(0, shared.number())];
    let made = told(&fake);
    assert_eq!(
        (made.domain.get(), made.limit.get(), made.sges.get()),
        (7, 3, 5)
    );
    assert_eq!(
        made.ring.first.get(),
        shared.ring().page(0).unwrap().address()
    );
    context.set_limit(&shared, 9).unwrap();
    assert_eq!(told(&fake).limit.get(), 9);
    let queues = Queues {
        shared: Some(&shared),
        ..both(&queue)
    };
    let pair = context.create_queue_pair(options(), queues, 3).unwrap();
    assert!(pair.receives().is_none());
    assert_eq!(pair.options().receives, Capacity::default());
    assert_eq!(
        fake.nic().verbs.pairs[&pair.number()].1.srq.get(),
        shared.number()
    );
    let token = told(&fake).token.get();
    assert_eq!(
        say(&driver, token, Event::LimitReached as u16),
        Handled::Done
    );
    assert_eq!(*fake.told.lock().unwrap(), [(2, Event::LimitReached)]);
    let too_many = Capacity {
        requests: 1,
        sges: 17,
    };
    assert!(context
        .create_shared_receive_queue(7, too_many, 0, 4)
        .is_err());
    context.destroy_queue_pair(pair);
    context.destroy_shared_receive_queue(shared);
    assert!(fake.nic().verbs.shared.is_empty());
    context.destroy_completion_queue(queue);
    assert_eq!(fake.pages.count(), before);
}

#[test]
fn an_unconnected_queue_pair_sends_as_its_own_node() {
    let (fake, driver, context) = opened();
    let queue = context.create_completion_queue(10, 1).unwrap();
    let options = QueuePairOptions {
        transport: Transport::Datagram,
        ..options()
    };
    let pair = context.create_queue_pair(options, both(&queue), 2).unwrap();
    let change = ModifyQueuePair {
        state: State::ReadyToSend as u8,
        qkey: 0x1111.into(),
        ..Default::default()
    };
    context.modify(&pair, change).unwrap();
    context.send(&pair).unwrap();
    let sent: VerbsSendCommand = command(&fake, &driver, 0).read();
    assert_eq!(
        sent.header.remote_node.get(),
        driver.geometry().node.0,
        "its work requests name their destinations"
    );
}

#[test]
fn numbers_of_queue_pairs_are_of_the_nic_and_not_soon_used_again() {
    let (fake, driver, context) = opened();
    let queue = context.create_completion_queue(1, 1).unwrap();
    let first = pair(&context, &queue, 2);
    assert_eq!(first.number(), FIRST_QUEUE_PAIR);
    context.destroy_queue_pair(first);
    let other = driver.open_verbs((), 101).unwrap();
    let others = other.create_completion_queue(1, 3).unwrap();
    let second = pair(&other, &others, 4);
    assert_eq!(second.number(), FIRST_QUEUE_PAIR + 1);
    // A number that is in use is left out.
    fake.nic().next.push_back(Ok(Status::NameExists.code()));
    let third = pair(&context, &queue, 5);
    assert_eq!(third.number(), FIRST_QUEUE_PAIR + 3);
    // The process ends with its context, and its objects with it.
    drop(other);
    assert_eq!(fake.nic().processes.len(), 1);
    let left: Vec<_> = fake.nic().verbs.pairs.keys().copied().collect();
    assert_eq!(left, [third.number()]);
}

#[test]
fn events_reach_the_owner_until_the_object_is_destroyed() {
    let (fake, driver, context) = opened();
    // More than the table has room for at first.
    let queues: Vec<_> = (0..100)
        .map(|owner| context.create_completion_queue(1, owner).unwrap())
        .collect();
    let tokens: Vec<u64> = {
        let nic = fake.nic();
        let of = |queue: &Queue| nic.verbs.queues[&(0, queue.number())].token.get();
        queues.iter().map(of).collect()
    };
    for (owner, token) in tokens.iter().enumerate() {
        assert_eq!(
            say(&driver, *token, Event::Completion as u16),
            Handled::Done
        );
        let told = core::mem::take(&mut *fake.told.lock().unwrap());
        assert_eq!(told, [(owner as u64, Event::Completion)]);
    }
    assert_eq!(say(&driver, tokens[0], 77), Handled::Refused);
    // What objects of another kind have does not reach an owner that takes it for one of those.
    for other in [Event::LimitReached, Event::Fatal, Event::PortUp] {
        assert_eq!(say(&driver, tokens[0], other as u16), Handled::Done);
    }
    assert!(fake.told.lock().unwrap().is_empty());
    fake.ports.lock().unwrap().clear();
    for (is_up, said) in [(false, Event::PortDown), (true, Event::PortUp)] {
        assert_eq!(say(&driver, 0, said as u16), Handled::Done);
        let told = core::mem::take(&mut *fake.ports.lock().unwrap());
        assert_eq!(told, [is_up]);
    }
    for queue in queues {
        context.destroy_completion_queue(queue);
    }
    for token in tokens {
        assert_eq!(say(&driver, token, Event::Completion as u16), Handled::Done);
    }
    assert!(fake.told.lock().unwrap().is_empty());
    let next = context.create_completion_queue(1, 7).unwrap();
    let token = fake.nic().verbs.queues[&(0, next.number())].token.get();
    assert_eq!(token, 101, "a token is not used again");
}

#[test]
fn memory_is_a_segment_that_no_process_imports() {
    let (fake, _driver, context) = opened();
    fake.kernel.map(16, 4, true);
    let (at, named) = ((16 * PAGE + 100, 3 * PAGE), 0x1000_0064);
    let writable = Rights::LOCAL_WRITE | Rights::REMOTE_READ;
    let key = context.register(5, at, named, writable).unwrap();
    let twice = context.register(5, at, named, Rights::REMOTE_READ).unwrap();
    {
        let nic = fake.nic();
        let memory = nic.verbs.memory[&(0, key)];
        assert_eq!((memory.domain.get(), memory.address.get()), (5, named));
        assert_eq!(memory.rights.get(), writable.bits() as u16);
        let access = |key: u32| nic.segments[&(0, (key >> 16) as u16)].access.get();
        assert_eq!(access(key), (Access::READ | Access::WRITE).bits());
        assert_eq!(access(twice), Access::READ.bits());
        let options = nic.segments[&(0, (key >> 16) as u16)].options;
        assert_eq!(options.listed(), Some(&[][..]));
    }
    context.deregister(key).unwrap();
    context.deregister(twice).unwrap();
    assert!(fake.nic().segments.is_empty() && fake.nic().verbs.memory.is_empty());
    let gone = context.deregister(key);
    assert_eq!(gone, Err(Failure::Refused(Status::NoSuchSegment)));
    // Memory that is not there, and a NIC that refuses the key: no segment stays.
    let absent = context.register(5, (99 * PAGE, PAGE), 0, writable);
    assert_eq!(absent, Err(Failure::Refused(Status::NotMapped)));
    fake.nic()
        .next
        .extend([Ok(Status::Ok.code()), Ok(Status::BadAddress.code())]);
    let refused = context.register(5, at, u64::MAX, writable);
    assert_eq!(refused, Err(Failure::Refused(Status::BadAddress)));
    assert!(fake.nic().segments.is_empty());
    // Pages that the process itself may only read are good for what is only read.
    fake.kernel.state().read_only.insert(17);
    assert!(context.register(5, at, named, writable).is_err());
    context.register(5, at, named, Rights::REMOTE_READ).unwrap();
}

#[test]
fn commands_name_the_peer_and_what_was_seen() {
    let (fake, driver, context) = opened();
    let queue = context.create_completion_queue(10, 1).unwrap();
    let pair = pair(&context, &queue, 2);
    let change = ModifyQueuePair {
        state: State::ReadyToSend as u8,
        path: PathAddress::new(NodeId(3), 1, false).0.into(),
        send_psn: 9.into(),
        ..Default::default()
    };
    context.modify(&pair, change).unwrap();
    let now = context.query(&pair).unwrap();
    assert_eq!(
        (now.state, now.send_psn.get()),
        (State::ReadyToSend as u8, 9)
    );
    context.send(&pair).unwrap();
    let sent: VerbsSendCommand = command(&fake, &driver, 0).read();
    assert_eq!(sent.header.opcode, VerbsSendCommand::OPCODE);
    assert_eq!(
        (sent.header.remote_node.get(), sent.qp.get()),
        (3, pair.number())
    );
    queue
        .ring()
        .page(0)
        .unwrap()
        .store_u32(PRODUCER, 6, Ordering::Release);
    context.arm(&queue, true).unwrap();
    let armed: VerbsArmCommand = command(&fake, &driver, 1).read();
    assert_eq!(armed.header.opcode, VerbsArmCommand::OPCODE);
    let said = (armed.cq.get(), armed.flags.get(), armed.seen.get());
    assert_eq!(said, (queue.number(), SOLICITED_ONLY, 6));
    assert_eq!(
        fake.rung.load(Ordering::Relaxed),
        1,
        "the NIC has not read the first one"
    );
}

#[test]
fn a_full_window_is_waited_for() {
    let (fake, driver, context) = opened();
    let queue = context.create_completion_queue(10, 1).unwrap();
    let entries = u64::from(driver.geometry().counts.command_entries);
    for _ in 0..entries {
        context.arm(&queue, false).unwrap();
    }
    assert_eq!(context.arm(&queue, false), Err(CallError::TimedOut));
    let area = context_area(&fake);
    let mut reads = 0;
    fake.on_yield(move |_| {
        reads += 1;
        area.store_u64(HEAD, reads, Ordering::Release);
    });
    context.arm(&queue, false).unwrap();
    driver.begin_removal();
    assert_eq!(context.arm(&queue, false), Err(CallError::NoDevice));
    // Objects end all the same.
    context.destroy_completion_queue(queue);
}

/// The first page of the host area of VNI 0.
fn context_area(fake: &Fake) -> <Fake as Platform>::Memory {
    let address = fake.nic().processes[&0].host_area[0].get();
    fake.pages.at(address).0
}
