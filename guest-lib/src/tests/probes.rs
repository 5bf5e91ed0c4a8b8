//! Probes and claims, beside a NIC that completes what the test says, when it says so.

use std::time::Duration;

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::message::{CancelCommand, Opcode, ProbeCommand, ReceiveCommand};

use super::messages::{inbox, opcodes, ANY, NOW, SOON};
use super::{fetch, setup};
use crate::message::{Claimed, Envelope, MessageEndpoint, Pattern, Source, Tag};
use crate::tests::fake_nic::{FakeNic, Fetched};
use crate::{Endpoint, Error, NodeId, Port, Segment, Status};

/// Lets a call wait for the answer to its one command, and gives it with a status.
fn answered<T: Send>(
    fake: &FakeNic,
    call: impl FnOnce() -> T + Send,
    (status, change): (Status, impl Fn(&mut CompletionEntry)),
) -> (T, Fetched) {
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        let command = fake.await_command();
        fake.end_with(&command, status, change);
        (called.join().unwrap(), command)
    })
}

fn flags(command: &Fetched) -> u32 {
    let probe: ProbeCommand = command.descriptor.read();
    assert_eq!(probe.header.opcode, Opcode::Probe as u8);
    probe.flags.get()
}

/// A message of a number that has arrived.
fn claim<'a>(fake: &FakeNic, endpoint: &'a Endpoint, number: u64) -> Claimed<'a> {
    let answer = (Status::Ok, |entry: &mut CompletionEntry| {
        entry.offset = number.into();
    });
    let (claimed, command) = answered(fake, || endpoint.probe(&ANY).try_claim().unwrap(), answer);
    assert_eq!(flags(&command), 2 | 8);
    claimed.expect("a message")
}

/// The claimed messages that commands discard.
fn discarded(commands: &[Fetched]) -> Vec<u64> {
    let number = |command: &Fetched| {
        let receive: ReceiveCommand = command.descriptor.read();
        assert_eq!(receive.header.opcode, Opcode::Receive as u8);
        assert_eq!((receive.flags.get(), receive.handle.get()), (8 | 16, 0));
        receive.tag.get()
    };
    commands.iter().map(number).collect()
}

#[test]
fn a_probe_says_what_it_looks_for_and_tells_what_is_there() {
    let (fake, endpoint, _remote) = setup();
    let third = MessageEndpoint::new(3).unwrap();
    let from = Source::Process(NodeId(4), Port(6));
    let pattern = Pattern::ignoring(from, Tag(0x100), 0xff).at(third);
    let answer = (Status::Ok, |entry: &mut CompletionEntry| {
        entry.length = 100_000.into();
        entry.immediate = 9.into();
    });
    let (found, command) = answered(
        &fake,
        || endpoint.probe(&pattern).timeout(SOON).wait(),
        answer,
    );
    let probe: ProbeCommand = command.descriptor.read();
    assert_eq!(
        (
            probe.header.remote_node.get(),
            probe.header.remote_port.get()
        ),
        (4, 6)
    );
    assert_eq!((probe.tag.get(), probe.ignore.get()), (0x100, 0xff));
    assert_eq!((probe.endpoint.get(), flags(&command)), (3, 4));
    let expected = Envelope {
        node: NodeId(1),
        port: Port(2),
        tag: Tag(5),
        length: 100_000,
        immediate: 9,
        mark: 0,
        incarnation: 0,
    };
    assert_eq!(found.unwrap(), expected);
    let untagged = Pattern::untagged(Source::Any);
    for status in [Status::Ok, Status::NoMessage] {
        let answer = (status, |_: &mut CompletionEntry| {});
        let (found, command) = answered(&fake, || endpoint.probe(&untagged).test(), answer);
        assert_eq!(
            (found.unwrap().is_some(), flags(&command)),
            (status == Status::Ok, 1 | 2)
        );
        let (found, command) = answered(&fake, || endpoint.probe(&ANY).discard(), answer);
        assert_eq!(
            (found.unwrap().is_some(), flags(&command)),
            (status == Status::Ok, 2 | 16)
        );
    }
    let answer = (Status::PeerGone, |_: &mut CompletionEntry| {});
    let (found, _) = answered(&fake, || endpoint.probe(&untagged).test(), answer);
    assert_eq!(found.unwrap_err().status(), Some(Status::PeerGone));
    assert!(fake.fetch().is_none());
}

#[test]
fn a_claimed_message_is_received_by_its_number() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let claimed = claim(&fake, &endpoint, 77);
    assert_eq!(
        (claimed.envelope().length, claimed.envelope().tag),
        (8, Tag(5))
    );
    let mut request = claimed.post_receive(segment.part(16, 8)).unwrap();
    let command = fetch(&fake);
    let receive: ReceiveCommand = command.descriptor.read();
    assert_eq!((receive.tag.get(), receive.flags.get()), (77, 8));
    assert_eq!((receive.ignore.get(), receive.length.get()), (0, 8));
    assert_eq!(receive.local_address.get(), segment.address() + 16);
    assert!(request.test().unwrap().is_none());
    fake.end(&command, Status::Ok);
    assert_eq!(request.wait(SOON).unwrap().length, 8);
    let gone = claim(&fake, &endpoint, 78);
    let answer = (Status::NoMessage, |_: &mut CompletionEntry| {});
    let (received, _) = answered(&fake, || gone.receive(segment.part(0, 0)), answer);
    assert_eq!(received.unwrap_err().status(), Some(Status::NoMessage));
    assert!(fake.fetch().is_none(), "what was received is not discarded");
}

#[test]
fn what_is_not_received_is_discarded() {
    let (fake, endpoint, _remote) = setup();
    let segment = inbox(&endpoint);
    let mut commands = Vec::new();
    let ways: [fn(Claimed<'_>, &Segment); 3] = [
        |claimed, _| drop(claimed),
        |claimed, _| claimed.discard(),
        |claimed, segment| {
            let outside = claimed.post_receive(segment.part(5000, 8));
            assert!(outside.is_err());
        },
    ];
    for (number, discard) in (1..).zip(ways) {
        discard(claim(&fake, &endpoint, number), &segment);
        commands.extend(fake.fetch_all());
    }
    assert_eq!(discarded(&commands), [1, 2, 3]);
    // Whatever becomes of that ends no request.
    let mut waits = endpoint.probe(&ANY).post_claim().unwrap();
    for command in &commands {
        fake.end(command, Status::NoMessage);
    }
    assert!(waits.test().unwrap().is_none());
}

#[test]
fn a_probe_or_claim_with_a_timeout_ends_with_it_unless_a_message_comes() {
    let (fake, endpoint, _remote) = setup();
    let short = Some(Duration::from_millis(2));
    for (end, found) in [(Status::Cancelled, false), (Status::Ok, true)] {
        for claims in [false, true] {
            std::thread::scope(|scope| {
                let ended = scope.spawn(|| match claims {
                    true => endpoint.probe(&ANY).timeout(short).claim().map(drop),
                    false => endpoint.probe(&ANY).timeout(short).wait().map(drop),
                });
                let probe = fake.await_command();
                assert_eq!(flags(&probe) & 4, 4);
                let cancel: CancelCommand = fake.await_command().descriptor.read();
                assert_eq!(cancel.header.opcode, Opcode::Cancel as u8);
                assert_eq!(cancel.handle.get(), probe.handle());
                fake.end_with(&probe, end, |entry| {
                    entry.offset = u64::from(claims && found).into();
                });
                match (ended.join().unwrap(), found) {
                    (Ok(()), true) | (Err(Error::TimedOut), false) => {}
                    (other, _) => panic!("{other:?}"),
                }
            });
            let dropped = discarded(&fake.fetch_all());
            assert_eq!(dropped.len(), usize::from(claims && found));
        }
    }
}

#[test]
fn a_claim_gives_its_message_once() {
    let (fake, endpoint, _remote) = setup();
    let mut claim = endpoint.probe(&ANY).post_claim().unwrap();
    let command = fetch(&fake);
    assert_eq!(flags(&command), 2 | 4 | 8);
    assert!(claim.test().unwrap().is_none());
    assert_error!(claim.wait(NOW), Error::TimedOut);
    fake.end_with(&command, Status::Ok, |entry| entry.offset = 5.into());
    let claimed = claim.wait(SOON).unwrap();
    let again = claim.test().unwrap_err();
    assert_eq!(again.status(), Some(Status::NoMessage));
    drop(claim);
    assert!(fake.fetch().is_none());
    drop(claimed);
    assert_eq!(discarded(&fake.fetch_all()), [5]);
}

#[test]
fn a_claim_that_is_dropped_is_cancelled_and_what_it_has_is_discarded() {
    let (fake, endpoint, _remote) = setup();
    for (end, expected) in [(Status::Cancelled, &[][..]), (Status::Ok, &[9][..])] {
        // Its end comes behind the drop, or is there before it.
        for late in [true, false] {
            let claim = endpoint.probe(&ANY).post_claim().unwrap();
            let command = fetch(&fake);
            let ends = || {
                fake.end_with(&command, end, |entry| {
                    entry.offset = if end == Status::Ok { 9 } else { 0 }.into();
                });
            };
            if !late {
                ends();
                endpoint.core().progress_messages();
            }
            drop(claim);
            if late {
                assert_eq!(opcodes(&fake.fetch_all()), [Opcode::Cancel as u8]);
                ends();
                endpoint.core().progress_messages();
            }
            assert_eq!(discarded(&fake.fetch_all()), expected);
        }
    }
}
