//! The examples, each against a Rust program on the other node.

use std::time::Duration;

use qnic::datagram::Socket;
use qnic::group::{Application, Operator};
use qnic::message::{Destination, Pattern, Source, Tag};
use qnic::stream::Streams;
use qnic::sync::{Lock, Participant, Semaphore};
use qnic::{
    Access, ChannelOptions, Error, NodeId, NotificationId, Port, Receiver, SegmentName, Sender,
};

use crate::cluster::{file, Cluster, Program, SOON};

const PORT: u16 = 7;
const PEER: (NodeId, Port) = (NodeId(0), Port(PORT));

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn hello_crosses_in_both_directions() {
    let cluster = Cluster::new();
    let endpoint = cluster.rust(PORT);
    let program = cluster.example("hello", &["1"]);
    let letter = NotificationId::new(1).unwrap();
    let inbox = endpoint.allocate(4096).unwrap();
    let _segment = endpoint
        .export(SegmentName(1), &inbox, Access::WRITE)
        .unwrap();
    let theirs = endpoint.import(PEER.0, PEER.1, SegmentName(1), SOON);
    let theirs = theirs.unwrap();
    let greeting = b"hello from Rust\0";
    endpoint
        .write(&theirs, 0, greeting)
        .notify(letter)
        .timeout(SOON)
        .fenced()
        .unwrap();
    endpoint.notification(letter).take(Some(SOON)).unwrap();
    let expected = b"hello from node 0\0";
    assert_eq!(inbox.read_vec(0, expected.len()).unwrap(), expected);
    assert_eq!(program.finish(), "hello from Rust\n");
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn two_c_programs_say_hello() {
    let cluster = Cluster::new();
    // Both begin at once: an import waits for a node that is not there yet.
    let hello = cluster.compile(&file("examples/hello.c"));
    let programs = [(0, "1"), (1, "0")].map(|(node, peer)| cluster.start(&hello, node, &[peer]));
    let said = programs.map(Program::finish);
    assert_eq!(said, ["hello from node 1\n", "hello from node 0\n"]);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn messages_cross_in_both_directions() {
    const PEER: (NodeId, Port) = (NodeId(0), Port(8));
    let cluster = Cluster::new();
    let endpoint = cluster.rust(PEER.1 .0);
    let program = cluster.example("messages", &["1"]);
    let memory = endpoint.allocate(1 << 17).unwrap();
    let segment = endpoint
        .export(SegmentName(1), &memory, Access::READ)
        .unwrap();
    // Long enough not to travel inline.
    let question: Vec<u8> = (0..50_000u32).map(|index| index as u8).collect();
    memory.write(0, &question).unwrap();
    // The program has to be there before its node can be told.
    let there = Destination::tagged(PEER.0, PEER.1, Tag(5)).immediate(1234);
    let from = Pattern::tagged(Source::Process(PEER.0, PEER.1), Tag(6));
    let answer = endpoint
        .receive(&from, segment.part(65_536, 65_536))
        .timeout(SOON);
    let mut answer = answer.post().unwrap();
    endpoint.names().find("messages", 0, SOON).unwrap();
    let sent = endpoint.send(&there, segment.part(0, question.len()));
    sent.timeout(SOON).wait().unwrap();
    let answered = answer.wait(Some(SOON)).unwrap();
    assert_eq!((answered.length, answered.immediate), (50_000, 42));
    assert!(memory.read_vec(65_536, 50_000).unwrap() == question);

    let many = Pattern::tagged(Source::Any, Tag(7));
    let ready = endpoint
        .receive(&many, segment.part(0, 64))
        .timeout(SOON)
        .wait()
        .unwrap();
    assert_eq!(memory.read_vec(0, ready.length as usize).unwrap(), b"ready");
    let to = Destination::tagged(PEER.0, PEER.1, Tag(7));
    for text in ["one", "two", "three"] {
        endpoint
            .send(&to, text.as_bytes())
            .timeout(SOON)
            .wait()
            .unwrap();
    }
    let to = Destination::tagged(PEER.0, PEER.1, Tag(99));
    endpoint
        .send(&to, b"the last")
        .timeout(SOON)
        .wait()
        .unwrap();
    let said = program.finish();
    let expected = "50000 bytes from node 1 with 1234\none\ntwo\nthree\nthe last with tag 99\n";
    assert_eq!(said, expected);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn completions_and_atomic_operations_of_c() {
    let cluster = Cluster::new();
    let endpoint = cluster.rust(9);
    let words = endpoint.allocate(8192).unwrap();
    let both = Access::READ | Access::WRITE;
    let _segment = endpoint.export(SegmentName(1), &words, both).unwrap();
    words.store_u64(16, 1.5f64.to_bits()).unwrap();
    let program = cluster.example("atomics", &["1"]);
    let done = NotificationId::new(3).unwrap();
    endpoint.notification(done).take(Some(SOON)).unwrap();
    assert_eq!(words.read_vec(4096, 4096).unwrap(), [b'x'; 4096]);
    assert_eq!(words.load_u64(0).unwrap(), 99);
    assert_eq!(words.load_u32(8).unwrap(), 1);
    assert_eq!(f64::from_bits(words.load_u64(16).unwrap()), 2.0);
    let expected = "the words before sum up to 120\n16, 0, 1.5\nread 99 of 24 bytes, wrote 4096\n";
    assert_eq!(program.finish(), expected);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn a_lock_and_a_semaphore_between_c_and_rust() {
    const NUMBER: u64 = 128;
    let cluster = Cluster::new();
    let endpoint = cluster.rust(10);
    let objects = endpoint.allocate(4096).unwrap();
    let both = Access::READ | Access::WRITE;
    let _segment = endpoint.export(SegmentName(1), &objects, both).unwrap();
    let program = cluster.example("counter", &["1"]);
    let own = endpoint
        .import(NodeId(1), Port(10), SegmentName(1), SOON)
        .unwrap();
    let participant = Participant::new(&endpoint).unwrap();
    let lock = Lock::new(&participant, &own, 0).unwrap();
    let semaphore = Semaphore::new(&participant, &own, 64).unwrap();
    semaphore.signal().unwrap();
    for _ in 0..50 {
        let guard = lock.acquire().unwrap();
        let number = objects.load_u64(NUMBER as usize).unwrap() + 1;
        endpoint
            .write(&own, NUMBER, &number.to_le_bytes())
            .fenced()
            .unwrap();
        guard.release().unwrap();
    }
    assert_eq!(program.finish(), "counted 50 times\n");
    assert_eq!(objects.load_u64(NUMBER as usize).unwrap(), 100);
    assert_eq!(semaphore.value().unwrap(), 1);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn a_group_of_c_and_rust() {
    let cluster = Cluster::new();
    // Rank 0.
    let program = cluster.example("group", &["0"]);
    let endpoint = cluster.rust(11);
    let own = endpoint.allocate(16_384).unwrap();
    let memory = endpoint.export(SegmentName(1), &own, Access::READ).unwrap();
    for index in 0..1000 {
        own.store_u64(8 * index, (index as f64 + 0.5).to_bits())
            .unwrap();
    }
    let application = Application::join(&endpoint, "adders", 1, 2, SOON).unwrap();
    let part = memory.part(0, 8000);
    application
        .allreduce::<f64>(part, Operator::Sum)
        .timeout(SOON)
        .wait()
        .unwrap();
    let last = f64::from_bits(own.load_u64(8 * 999).unwrap());
    assert_eq!(last, 2.0 * 999.0 + 0.75);
    let all = Pattern::tagged(Source::Any, Tag(3));
    let received = endpoint
        .receive(&all, memory.part(8192, 64))
        .timeout(SOON)
        .wait()
        .unwrap();
    assert_eq!((received.length, received.immediate), (6, 7));
    assert_eq!(own.read_vec(8192, 6).unwrap(), b"to all");
    application.barrier().timeout(SOON).wait().unwrap();
    assert_eq!(program.finish(), "0.75 and 1998.75\n");
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn datagrams_and_streams_come_back_from_c() {
    let cluster = Cluster::new();
    let program = cluster.example("datagrams", &[]);
    let nic = cluster.nic();
    let socket = Socket::bind(&nic, 0).unwrap();
    let bytes: Vec<u8> = (0..10_000u32).map(|index| (index * 7) as u8).collect();
    // Datagrams to a port that is not open yet are lost.
    let ask = |_| {
        let sent = socket.send_to(&bytes, NodeId(0), 2000, Some(SOON));
        sent.unwrap();
        match socket.receive(Some(Duration::from_millis(100))) {
            Err(Error::TimedOut) => None,
            answer => Some(answer.unwrap()),
        }
    };
    let answer = (0..600).find_map(ask).unwrap();
    assert!(answer.bytes == bytes && answer.node == NodeId(0) && answer.port == 2000);

    let streams = Streams::open(&nic, 0, Default::default()).unwrap();
    let stream = streams.connect(NodeId(0), 2001, Some(SOON)).unwrap();
    let long: Vec<u8> = bytes.iter().copied().cycle().take(1_000_000).collect();
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &long[..];
            while !rest.is_empty() {
                rest = &rest[stream.send(rest, Some(SOON)).unwrap()..];
            }
            stream.finish().unwrap();
        });
        let mut room = vec![0; 65_536];
        loop {
            match stream.receive(&mut room, Some(SOON)).unwrap() {
                0 => break,
                count => back.extend_from_slice(&room[..count]),
            }
        }
    });
    assert!(back == long);
    stream.close(Some(SOON)).unwrap();
    let expected = "a datagram of 10000 bytes from node 1\na stream of 1000000 bytes\n";
    assert_eq!(program.finish(), expected);
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn channels_handlers_and_descriptors_of_c() {
    const PEER: (NodeId, Port) = (NodeId(0), Port(12));
    let [sent, replenish, handled, polled] =
        [1, 2, 3, 4].map(|id| NotificationId::new(id).unwrap());
    let cluster = Cluster::new();
    let endpoint = cluster.rust(12);
    let program = cluster.example("channels", &["1"]);
    endpoint.names().find("channels", 0, SOON).unwrap();
    let options = ChannelOptions::new(4, 100, sent);
    let mut receiver = Receiver::open(&endpoint, SegmentName(2), &options).unwrap();
    let there = (PEER.0, PEER.1, SegmentName(1));
    let mut sender = Sender::connect(&endpoint, there, replenish, SOON).unwrap();
    for number in 0..20u8 {
        let message = vec![number; usize::from(number) * 5];
        sender.send(&message, Some(SOON)).unwrap();
        assert_eq!(receiver.recv(Some(SOON)).unwrap().to_vec(), message);
    }
    sender.close().unwrap();
    assert!(matches!(
        receiver.recv(Some(SOON)),
        Err(Error::ChannelClosed)
    ));

    let bell = endpoint
        .import(PEER.0, PEER.1, SegmentName(5), SOON)
        .unwrap();
    for signal in [handled, handled, polled] {
        endpoint
            .write(&bell, 0, b"")
            .notify(signal)
            .timeout(SOON)
            .fenced()
            .unwrap();
    }
    let said = program.finish();
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(
        said.lines().all(|line| line == "notification 3 at port 12"),
        "{said}"
    );
}
