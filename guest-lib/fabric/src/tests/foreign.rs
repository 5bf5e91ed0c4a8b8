//! Peers that are processes of the NIC without this provider: what they send is as they like.

use std::time::Duration;

use qnic::message::{Completion, Destination, MessageEndpoint, Pattern, Source, Tag};
use qnic::{
    Access, Buffer, Endpoint, ExportOptions, Importers, Nic, NodeId, Port, Segment, SegmentName,
};

use super::deliveries::send as deliver;
use super::harness::{close, Cluster, Side, BOTH, TAGGED};
use super::messages::pattern;
use super::refusals::open_on_port;
use crate::address::Address;
use crate::info::offer::WHOLE_MAX;
use crate::pointers::test::context;
use crate::sys::{self, ADDR_UNSPEC};

/// Long enough for anything that will happen at all.
const SOON: Option<Duration> = Some(Duration::from_secs(60));

/// A process with memory.
struct Foreign {
    endpoint: Endpoint,
    buffer: Buffer,
    memory: Segment,
}

impl Foreign {
    fn new(cluster: &Cluster, node: u16, bytes: usize) -> Self {
        let nic = Nic::open_host_with(cluster.socket(node), 96 << 20).unwrap();
        let endpoint = nic.register(Port(0)).unwrap();
        let buffer = endpoint.allocate(bytes).unwrap();
        let options = ExportOptions::new(Access::READ).importers(Importers::nobody());
        let memory = endpoint.export(SegmentName(1), &buffer, options).unwrap();
        Foreign {
            endpoint,
            buffer,
            memory,
        }
    }

    /// Receives a message that the provider has sent for its program.
    fn receive(&self) -> Completion {
        let part = self.memory.part(0, self.memory.len());
        let pattern = Pattern::any_tag(Source::Any);
        self.endpoint
            .receive(&pattern, part)
            .timeout(SOON)
            .wait()
            .unwrap()
    }

    /// Sends a message without bytes.
    fn tell(&self, (node, port): (NodeId, Port), at: u16, tag: Tag) {
        let to = Destination::tagged(node, port, tag).at(at_endpoint(at));
        self.endpoint.send(&to, b"").timeout(SOON).wait().unwrap();
    }

    /// Its address, as an endpoint of the provider would have it.
    fn address(&self) -> Address {
        Address {
            node: self.endpoint.node(),
            port: self.endpoint.port(),
            memory: Port(0),
            endpoint: 0,
            incarnation: 0,
            service: 0,
        }
    }
}

/// The tag of the answer to a message that an endpoint of the provider has sent.
fn answer(found: &Completion) -> Tag {
    Tag((found.mark & !(1 << 31)).into())
}

/// The name of a long one.
fn name(found: &Completion) -> u64 {
    (found.mark >> 7 & ((1 << 23) - 1)).into()
}

/// Of a long one: what asks for its pieces, and a piece.
fn go(found: &Completion) -> Tag {
    Tag(1 << 32 | name(found))
}

fn piece(found: &Completion, number: u64) -> Tag {
    Tag(name(found) << 16 | number)
}

/// Where answers go, and pieces.
const ANSWERS: u16 = 1;
const PIECES: u16 = 2;

fn at_endpoint(number: u16) -> MessageEndpoint {
    MessageEndpoint::new(number).unwrap()
}

fn process_of(side: &Side) -> (NodeId, Port) {
    let address = Address::from_bytes(&side.name).unwrap();
    (address.node, address.port)
}

/// This provider sends none as one message of the NIC. No byte that stands behind bounce memory is shown.
#[test]
fn a_message_that_is_longer_than_bounce_memory_is_truncated() {
    let cluster = Cluster::new(2);
    let side = Side::new(&cluster, 1, TAGGED, BOTH);
    const LENGTH: usize = WHOLE_MAX + 4096;
    let foreign = Foreign::new(&cluster, 0, LENGTH);
    let sent = pattern(LENGTH, 3);
    foreign.buffer.write(0, &sent).unwrap();
    let (node, port) = process_of(&side);
    let to = Destination::tagged(node, port, Tag(1));
    let mut room = vec![0; LENGTH + 100];
    side.receive(ADDR_UNSPEC, Some((1, 0)), &mut room, 1);
    let part = foreign.memory.part(0, LENGTH);
    let mut message = foreign.endpoint.send(&to, part).post().unwrap();
    let error = side.next().unwrap_err();
    assert_eq!((error.err, error.olen), (sys::FI_ETRUNC, 4096));
    assert_eq!(error.entry.len, WHOLE_MAX);
    assert!(room[..WHOLE_MAX] == sent[..WHOLE_MAX]);
    assert!(room[WHOLE_MAX..].iter().all(|byte| *byte == 0));
    let _: qnic::Result<Completion> = message.wait(SOON);
    side.close();
}

/// It answers while pieces of the message run; they end behind the beginning of the next message.
#[test]
fn pieces_of_a_message_that_has_ended_are_not_taken_for_those_of_the_next() {
    const LENGTH: usize = 18 << 20;
    const NAMES: usize = 2;
    let cluster = Cluster::new(3);
    let [a, b] = [0, 1].map(|node| Side::new(&cluster, node, TAGGED, BOTH));
    let foreign = Foreign::new(&cluster, 2, 4 << 20);
    let (to, to_foreign) = (a.insert(&b.name), a.insert(&foreign.address().to_bytes()));
    b.insert(&a.name);
    let own = process_of(&a);
    let sent = pattern(LENGTH, 3);
    let mut first = None;
    for round in 0..NAMES {
        a.send(to_foreign, Some(1), &sent, round);
        let found = foreign.receive();
        if first.is_none() {
            foreign.tell(own, ANSWERS, go(&found));
            let (node, port) = own;
            let second = Pattern::tagged(Source::Process(node, port), piece(&found, 2));
            let second = second.at(at_endpoint(PIECES));
            let probe = foreign.endpoint.probe(&second);
            probe.timeout(SOON).wait().unwrap();
            first = Some(found);
        }
        foreign.tell(own, ANSWERS, answer(&found));
        assert_eq!(a.next().unwrap().0.context, context(round));
    }
    a.send(to, Some(1), &sent, NAMES);
    for number in [1, 2] {
        let pattern = Pattern::tagged(Source::Any, piece(&first.unwrap(), number));
        let part = foreign.memory.part(0, 2 << 20);
        let pattern = pattern.at(at_endpoint(PIECES));
        let receive = foreign.endpoint.receive(&pattern, part);
        receive.timeout(SOON).wait().unwrap();
    }
    let mut room = vec![0; LENGTH];
    b.receive(ADDR_UNSPEC, Some((1, 0)), &mut room, 1);
    assert!(b.next().is_ok());
    assert_eq!(a.next().unwrap().0.context, context(NAMES));
    assert!(room == sent);
    a.close();
    b.close();
}

/// It comes late, when the next process on the port waits for an answer of the same receiver.
#[test]
fn an_answer_to_the_last_process_on_a_port_ends_nothing_of_the_next() {
    let cluster = Cluster::new(2);
    let last = Side::new(&cluster, 0, TAGGED, BOTH);
    let foreign = Foreign::new(&cluster, 1, 4096);
    assert_eq!(last.insert(&foreign.address().to_bytes()), 0);
    let own = process_of(&last);
    deliver(&last, 1, b"first", 1);
    let late = foreign.receive();
    assert_eq!(close(last.ep), 0);
    let next = open_on_port(&last);
    assert_eq!(process_of(&next), own);
    deliver(&next, 1, b"second", 2);
    let found = foreign.receive();
    foreign.tell(own, ANSWERS, answer(&late));
    let mut nothing = [];
    next.receive(ADDR_UNSPEC, Some((2, 0)), &mut nothing, 9);
    // Behind the answer.
    foreign.tell(own, 0, Tag(2));
    assert_eq!(next.next().unwrap().0.context, context(9));
    assert!(next.poll().is_none());
    foreign.tell(own, ANSWERS, answer(&found));
    assert_eq!(next.next().unwrap().0.context, context(2));
    next.close();
}

/// They would fill what a NIC keeps for a process, and keep answers out that are awaited.
#[test]
fn answers_that_nothing_awaits_do_not_stay_at_the_nic() {
    const ANSWERED: u64 = 6000;
    let cluster = Cluster::new(3);
    let [a, b] = [0, 1].map(|node| Side::new(&cluster, node, TAGGED, BOTH));
    let foreign = Foreign::new(&cluster, 2, 4096);
    assert_eq!(a.insert(&b.name), 0);
    b.insert(&a.name);
    for number in 0..ANSWERED {
        foreign.tell(process_of(&a), ANSWERS, Tag(number));
    }
    let mut room = [0; 6];
    b.receive(ADDR_UNSPEC, Some((2, 0)), &mut room, 2);
    deliver(&a, 2, b"letter", 3);
    assert_eq!(b.next().unwrap().0.context, context(2));
    assert_eq!(a.next().unwrap().0.context, context(3));
    a.close();
    b.close();
}

/// Short ones, long ones and those whose delivery is asked for: the NIC refuses them.
#[test]
fn messages_to_a_process_that_has_ended_reach_no_other_on_its_port() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Side::new(&cluster, node, TAGGED, BOTH));
    assert_eq!(a.insert(&b.name), 0);
    assert_eq!(close(b.ep), 0);
    let next = open_on_port(&b);
    let mut rooms = [[0; 5]; 2];
    for (number, room) in rooms.iter_mut().enumerate() {
        next.receive(ADDR_UNSPEC, Some((1, 0)), room, number);
    }
    let long = pattern(18 << 20, 3);
    a.send(0, Some(1), b"short", 1);
    a.send(0, Some(1), &long[..60_000], 2);
    a.send(0, Some(1), &long, 3);
    deliver(&a, 1, b"told", 4);
    let ended: Vec<_> = (0..4).map(|_| a.next().unwrap_err()).collect();
    assert!(ended.iter().all(|it| it.err == libc::ECONNABORTED));
    for number in 1..=4 {
        assert!(ended.iter().any(|it| it.entry.context == context(number)));
    }
    let to = a.insert(&next.name);
    a.send(to, Some(1), b"first", 5);
    assert_eq!(a.next().unwrap().0.context, context(5));
    assert_eq!(next.next().unwrap().0.context, context(0));
    assert!(next.poll().is_none());
    assert_eq!(&rooms[0], b"first");
    next.close();
    a.close();
}

/// Whether they are posted before it ends or behind.
#[test]
fn receives_from_a_process_that_has_ended_take_nothing_of_the_next_on_its_port() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Side::new(&cluster, node, TAGGED, BOTH));
    let former = a.insert(&b.name);
    assert_eq!(b.insert(&a.name), 0);
    let mut rooms = [[0; 5]; 3];
    let [before, behind, own] = &mut rooms;
    a.receive(former, Some((1, 0)), before, 1);
    assert_eq!(close(b.ep), 0);
    let ended = a.next().unwrap_err();
    let gone = (context(1), libc::ECONNABORTED);
    assert_eq!((ended.entry.context, ended.err), gone);
    let fails_at_once = |room: &mut [u8; 5]| {
        a.receive(former, Some((1, 0)), room, 2);
        let ended = a.next().unwrap_err();
        let gone = (context(2), libc::ECONNABORTED);
        assert_eq!((ended.entry.context, ended.err), gone);
    };
    fails_at_once(behind);
    let next = open_on_port(&b);
    let from = a.insert(&next.name);
    fails_at_once(behind);
    a.receive(from, Some((1, 0)), own, 3);
    next.send(0, Some(1), b"first", 4);
    let (entry, source) = a.next().unwrap();
    assert_eq!((entry.context, source), (context(3), from));
    assert!(a.poll().is_none());
    assert_eq!((&*behind, &*own), (&[0; 5], b"first"));
    next.close();
    a.close();
}

/// It says of many messages that pieces follow, and sends none: they are given up but for one of each name.
#[test]
fn messages_of_a_name_that_comes_again_are_given_up() {
    let cluster = Cluster::new(2);
    let side = Side::new(&cluster, 1, TAGGED, BOTH);
    let foreign = Foreign::new(&cluster, 0, 4096);
    let (node, port) = process_of(&side);
    let to = Destination::tagged(node, port, Tag(1));
    let mut rooms = [[0; 100]; 20];
    for (number, room) in rooms.iter_mut().enumerate() {
        side.receive(ADDR_UNSPEC, Some((1, 0)), room, number);
    }
    for number in 0..rooms.len() {
        // 20 more pieces of one of two names.
        let mark = 1 << 30 | (number as u32 % 2) << 7 | 5;
        let to = to.mark(mark);
        let message = foreign.endpoint.send(&to, b"first");
        message.timeout(SOON).wait().unwrap();
    }
    for number in 0..rooms.len() - 2 {
        let error = side.next().unwrap_err();
        assert_eq!(error.entry.context, context(number));
        assert_eq!(error.err, libc::ECONNABORTED);
    }
    assert!(side.poll().is_none());
    side.close();
}

/// NIC and library have room for fewer answers that it does not take.
#[test]
fn a_peer_that_takes_no_answers_holds_up_neither_others_nor_a_close() {
    let cluster = Cluster::new(3);
    let [a, b] = [1, 2].map(|node| Side::new(&cluster, node, TAGGED, BOTH));
    let foreign = Foreign::new(&cluster, 0, 4096);
    assert_eq!((a.insert(&b.name), b.insert(&a.name)), (0, 0));
    let (node, port) = process_of(&b);
    let to = Destination::tagged(node, port, Tag(1));
    for number in 0..40_000u16 {
        let mut nothing = [];
        b.receive(ADDR_UNSPEC, Some((1, 0)), &mut nothing, 1);
        let to = to.mark(1 << 29 | u32::from(number));
        let message = foreign.endpoint.send(&to, b"");
        message.timeout(SOON).wait().unwrap();
        assert!(b.next().is_ok());
    }
    let mut room = [0; 6];
    b.receive(ADDR_UNSPEC, Some((2, 0)), &mut room, 2);
    deliver(&a, 2, b"letter", 3);
    assert_eq!(b.next().unwrap().0.context, context(2));
    assert_eq!(a.next().unwrap().0.context, context(3));
    b.close();
    a.close();
}
