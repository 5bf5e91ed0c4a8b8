//! Shared queues: many senders, one receiver (N26).

use std::time::Duration;

use qnic::sync::Participant;
use qnic::{Endpoint, Error, Nic, NodeId, NotificationId, Port, SegmentName};
use qnic::{SharedReceiver, SharedSender};

use crate::cluster::{pattern, Cluster, SOON};

const NAME: SegmentName = SegmentName(0x3a9e);
const SENT: NotificationId = NotificationId::new(10).unwrap();
const RECEIVER: Port = Port(99);

fn open(nic: &Nic, slots: u32, message_bytes: usize) -> (Endpoint, SharedReceiver) {
    let endpoint = nic.register(RECEIVER).unwrap();
    let participant = Participant::new(&endpoint).unwrap();
    let receiver = SharedReceiver::open(&participant, NAME, slots, message_bytes, SENT);
    (endpoint, receiver.unwrap())
}

fn connect(nic: &Nic, port: u16) -> (Endpoint, SharedSender) {
    let endpoint = nic.register(Port(port)).unwrap();
    let participant = Participant::new(&endpoint).unwrap();
    let sender = SharedSender::connect(&participant, (NodeId(0), RECEIVER, NAME), SOON);
    (endpoint, sender.unwrap())
}

/// More senders than slots, messages of several pages, on links that lose frames: each
/// message once, those of each sender in their order.
#[test]
fn messages_of_many_senders_arrive_whole_and_in_their_order() {
    const EACH: u64 = 25;
    const LONGEST: usize = 9000;
    let cluster = Cluster::on_bad_links(3, 2.0);
    let nics = [0, 1, 2].map(|node| cluster.nic(node));
    let (_endpoint, mut receiver) = open(&nics[0], 4, LONGEST);
    let senders: Vec<_> = nics
        .iter()
        .flat_map(|nic| [1, 2].map(|port| connect(nic, port)))
        .collect();
    let count = senders.len();
    let body = |sender: usize, number: u64| {
        let length = [0, 1, 80, 4080, 4096, LONGEST - 16][(sender + number as usize) % 6];
        pattern(sender * 1000 + number as usize, length)
    };
    std::thread::scope(|scope| {
        for (index, (_, mut sender)) in senders.into_iter().enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut message = (index as u64).to_le_bytes().to_vec();
                    message.extend(number.to_le_bytes());
                    message.extend(body(index, number));
                    sender.send(&message).unwrap();
                }
                sender.flush().unwrap();
            });
        }
        let mut next = vec![0; count];
        for _ in 0..count as u64 * EACH {
            let message = receiver.recv(Some(SOON)).unwrap();
            let word = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
            let (sender, number) = (word(0) as usize, word(8));
            assert_eq!(number, next[sender], "sender {sender}");
            assert!(message[16..] == body(sender, number), "{sender}, {number}");
            next[sender] += 1;
        }
        assert!(next.iter().all(|next| *next == EACH));
    });
    assert!(receiver.try_recv().unwrap().is_none());
    let short = Some(Duration::from_millis(5));
    assert_error!(receiver.recv(short), Error::TimedOut);
}

#[test]
fn a_full_queue_takes_no_more_until_something_is_received() {
    let cluster = Cluster::new(2);
    let (_endpoint, mut receiver) = open(&cluster.nic(0), 2, 8);
    let (_other, mut sender) = connect(&cluster.nic(1), 1);
    assert!(sender.try_send(b"one").unwrap());
    assert!(sender.try_send(b"two").unwrap());
    assert!(!sender.try_send(b"three").unwrap());
    let long = sender.try_send(b"too long!");
    assert_error!(long, Error::MessageTooLong { limit: 8, .. });
    assert_eq!(receiver.recv(Some(SOON)).unwrap(), b"one");
    assert!(sender.try_send(b"three").unwrap());
    // A sender whose time is up has sent nothing, and keeps its turn.
    let short = Duration::from_millis(1);
    for _ in 0..2 {
        let sent = sender.send_timeout(b"lost", short);
        assert_error!(sent, Error::TimedOut);
        assert!(!sender.try_send(b"lost").unwrap());
    }
    assert_eq!(receiver.recv(Some(SOON)).unwrap(), b"two");
    sender.send_timeout(b"four", SOON).unwrap();
    sender.flush_timeout(SOON).unwrap();
    assert_eq!(receiver.recv(Some(SOON)).unwrap(), b"three");
    assert_eq!(receiver.recv(Some(SOON)).unwrap(), b"four");
    drop(receiver);
    let mut rest = (0..3).map(|_| sender.send(b"five").and_then(|()| sender.flush()));
    assert!(rest.any(|result| result.is_err()), "the receiver is gone");
}

#[test]
fn an_index_without_a_message_is_noticed() {
    let cluster = Cluster::new(2);
    let (endpoint, mut receiver) = open(&cluster.nic(0), 4, 8);
    let (other, mut sender) = connect(&cluster.nic(1), 1);
    let home = other.import(NodeId(0), RECEIVER, NAME, SOON).unwrap();
    // As a sender does that dies in the middle of a message.
    other
        .atomic::<u64>(&home, 0x80)
        .unwrap()
        .fetch_add(1)
        .wait()
        .unwrap();
    sender.send(b"behind").unwrap();
    assert_error!(receiver.recv(None), Error::ChannelBroken(_));
    assert_error!(receiver.try_recv(), Error::ChannelBroken(_));
    // Another segment is no queue.
    let buffer = endpoint.allocate(4096).unwrap();
    let name = SegmentName(7);
    let _segment = endpoint.export(name, &buffer, qnic::Access::all()).unwrap();
    let participant = Participant::new(&endpoint).unwrap();
    let none = SharedSender::connect(&participant, (NodeId(0), RECEIVER, name), SOON);
    assert_error!(none, Error::BadChannel(_));
}
