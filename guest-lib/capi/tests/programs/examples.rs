//! The examples, each against a Rust program on the other node.

use qnic::message::{Destination, Pattern, Source, Tag};
use qnic::{Access, NodeId, NotificationId, Port, SegmentName};

use crate::cluster::{file, Cluster, SOON};

const PORT: u16 = 7;
const PEER: (NodeId, Port) = (NodeId(0), Port(PORT));

fn example(name: &str) -> std::path::PathBuf {
    file(&format!("examples/{name}.c"))
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn hello_crosses_in_both_directions() {
    let cluster = Cluster::new();
    let program = cluster.start(&example("hello"), 0, &["1"]);
    let endpoint = cluster.rust(PORT);
    let letter = NotificationId::new(1).unwrap();
    let inbox = endpoint.allocate(4096).unwrap();
    let _segment = endpoint
        .export(SegmentName(1), &inbox, Access::WRITE)
        .unwrap();
    let theirs = endpoint
        .import(PEER.0, PEER.1, SegmentName(1), SOON)
        .unwrap();
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
fn two_c_programs_greet_each_other() {
    let cluster = Cluster::new();
    let other = cluster.start(&example("hello"), 1, &["0"]);
    let program = cluster.start(&example("hello"), 0, &["1"]);
    assert_eq!(program.finish(), "hello from node 1\n");
    assert_eq!(other.finish(), "hello from node 0\n");
}

#[test]
#[cfg_attr(not(has_asan), ignore = "no C compiler with AddressSanitizer")]
fn messages_cross_in_both_directions() {
    const PEER: (NodeId, Port) = (NodeId(0), Port(8));
    let cluster = Cluster::new();
    let program = cluster.start(&example("messages"), 0, &["1"]);
    let endpoint = cluster.rust(PEER.1 .0);
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
    let program = cluster.start(&example("atomics"), 0, &["1"]);
    let done = NotificationId::new(3).unwrap();
    endpoint.notification(done).take(Some(SOON)).unwrap();
    assert_eq!(words.read_vec(4096, 4096).unwrap(), [b'x'; 4096]);
    assert_eq!(words.load_u64(0).unwrap(), 99);
    assert_eq!(words.load_u32(8).unwrap(), 1);
    assert_eq!(f64::from_bits(words.load_u64(16).unwrap()), 2.0);
    let expected = "the words before sum up to 120\n16, 0, 1.5\nread 99 of 24 bytes, wrote 4096\n";
    assert_eq!(program.finish(), expected);
}
