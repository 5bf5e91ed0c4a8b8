//! Channels: messages, flow control, ends (N19).

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::Duration;

use qnic::channel::{Reader, Writer, PROBE_INTERVAL};
use qnic::{
    Access, ChannelOptions, Endpoint, Error, NodeId, NotificationId, Port, Receiver, SegmentName,
    Sender, Signal, Status,
};

use crate::cluster::{id, pattern, status, Cluster, BOTH, SOON};

const NAME: SegmentName = SegmentName(0xc4a);
const SENT: NotificationId = id(10);
const REPLENISH: NotificationId = id(11);
const SHORT: Option<Duration> = Some(Duration::from_millis(5));

struct Ends {
    sender: Sender,
    receiver: Receiver,
    sending: Endpoint,
    receiving: Endpoint,
    _cluster: Cluster,
}

fn ends(options: &ChannelOptions) -> Ends {
    let cluster = Cluster::new(2);
    let [sending, receiving] = [0, 1].map(|node| cluster.nic(node).register(Port(1)).unwrap());
    let receiver = Receiver::open(&receiving, NAME, options).unwrap();
    let sender = Sender::connect(&sending, (NodeId(1), Port(1), NAME), REPLENISH, SOON);
    Ends {
        sender: sender.unwrap(),
        receiver,
        sending,
        receiving,
        _cluster: cluster,
    }
}

#[test]
fn messages_of_all_lengths_arrive_in_order_and_in_place() {
    let mut ends = ends(&ChannelOptions::new(8, 10_000, SENT));
    let length = |number: usize| [0, 1, 80, 81, 4096, 9999, 10_000][number % 7];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..500 {
                let message = pattern(number, length(number));
                ends.sender.send(&message, Some(SOON)).unwrap();
            }
            ends.sender.flush().unwrap();
        });
        for number in 0..500 {
            let message = ends.receiver.recv(Some(SOON)).unwrap();
            assert_eq!(message.len(), length(number));
            let right = message.to_vec() == pattern(number, length(number));
            assert!(right, "{number}");
            assert!(message.read(1, &mut vec![0; length(number)]).is_err());
        }
    });
    assert!(ends.receiver.try_recv().unwrap().is_none());
    ends.sending.flush().wait().unwrap();
    ends.receiving.flush().wait().unwrap();
}

/// A message in hand is not written over, however fast the sender is; and a sender
/// without credit waits, and goes on when there is some.
#[test]
fn a_full_channel_holds_the_sender_back() {
    for (slots, refill) in [(2, 1), (5, 1), (5, 4), (16, 7)] {
        let mut options = ChannelOptions::new(slots, 64, SENT);
        options.refill = refill;
        let mut ends = ends(&options);
        for number in 0..slots as u64 - 1 {
            let message = number.to_le_bytes();
            ends.sender.send(&message, Some(SOON)).unwrap();
        }
        assert_error!(ends.sender.send(b"x", SHORT), Error::TimedOut);
        for number in 0..1000u64 {
            let first = ends.receiver.recv(Some(SOON)).unwrap();
            assert_eq!(first.to_vec(), number.to_le_bytes());
            drop(first);
            if (number + 1) % refill as u64 == 0 {
                for more in 0..refill as u64 {
                    let next = number + 1 - refill as u64 + slots as u64 - 1 + more;
                    ends.sender.send(&next.to_le_bytes(), Some(SOON)).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_closed_channel_delivers_what_was_sent_then_ends() {
    let mut ends = ends(&ChannelOptions::new(8, 100, SENT));
    for number in 0..5u8 {
        ends.sender.send(&[number; 100], None).unwrap();
    }
    ends.sender.close().unwrap();
    for number in 0..5u8 {
        let message = ends.receiver.recv(Some(SOON)).unwrap();
        assert_eq!(message.to_vec(), [number; 100]);
    }
    for _ in 0..2 {
        assert_error!(ends.receiver.recv(Some(SOON)), Error::ChannelClosed);
    }
    ends.sending.flush().wait().unwrap();
}

#[test]
fn a_sender_without_credit_learns_that_the_receiver_closed() {
    let mut ends = ends(&ChannelOptions::new(2, 8, SENT));
    ends.sender.send(b"1", None).unwrap();
    // The receiver knows the sender from now on.
    assert_eq!(ends.receiver.recv(Some(SOON)).unwrap().to_vec(), b"1");
    ends.sender.send(b"2", Some(SOON)).unwrap();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| ends.sender.send(b"3", None));
        drop(ends.receiver);
        assert_error!(blocked.join().unwrap(), Error::ChannelClosed);
    });
    assert_error!(ends.sender.send(b"4", None), Error::ChannelClosed);
    // Its failures are no other's.
    drop(ends.sender);
    ends.sending.flush().wait().unwrap();
}

/// A stranger that may write to the channel's segment says hello wrongly.
#[test]
fn a_channel_that_is_broken_stays_broken() {
    let cluster = Cluster::new(2);
    let [stranger, receiving] = [0, 1].map(|node| cluster.nic(node).register(Port(1)).unwrap());
    let options = ChannelOptions::new(4, 64, SENT);
    let mut receiver = Receiver::open(&receiving, NAME, &options).unwrap();
    let channel = stranger.import(NodeId(1), Port(1), NAME, SOON).unwrap();
    let memory = stranger.allocate(4096).unwrap();
    let segment = stranger.export(NAME, &memory, Access::all()).unwrap();
    // The head of a channel and a hello begin with the same word.
    let head = segment.part(0, 8);
    stranger.read(&channel, 0, head).fenced().unwrap();
    let mut hello = memory.read_vec(0, 8).unwrap();
    hello.extend([0xff; 24]);
    let said = stranger
        .write(&channel, 0x40, &hello[..])
        .notify(SENT)
        .fenced();
    said.unwrap();
    for _ in 0..3 {
        assert_error!(receiver.recv(None), Error::ChannelBroken(_));
    }
}

#[test]
fn a_receiver_that_never_met_its_sender_can_close() {
    let ends = ends(&ChannelOptions::new(2, 8, SENT));
    let mut sender = ends.sender;
    sender.send(b"1", None).unwrap();
    drop(ends.receiver);
    let mut sends = std::iter::repeat_with(|| sender.send(b"2", None));
    assert_error!(sends.find(Result::is_err).unwrap(), Error::ChannelClosed);
}

/// Silence is no end: the sender is asked, and its NIC answers.
#[test]
fn a_silent_sender_is_not_taken_for_a_dead_one() {
    let mut ends = ends(&ChannelOptions::new(4, 100, SENT));
    let (sender, receiver) = (&mut ends.sender, &mut ends.receiver);
    sender.send(b"last words", None).unwrap();
    sender.flush().unwrap();
    let message = receiver.recv(Some(SOON)).unwrap().to_vec();
    assert_eq!(message, b"last words");
    let silence = Some(3 * PROBE_INTERVAL);
    assert_error!(receiver.recv(silence), Error::TimedOut);
    receiver.check_peer().unwrap();
    sender.send(b"more", None).unwrap();
    assert_eq!(receiver.recv(Some(SOON)).unwrap().to_vec(), b"more");
}

#[test]
fn what_makes_no_channel_is_refused() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| cluster.nic(node).register(Port(1)).unwrap());
    let options = ChannelOptions::new(1, 8, SENT);
    assert_error!(Receiver::open(&b, NAME, &options), Error::BadChannel(_));
    let buffer = b.allocate(4096).unwrap();
    let _segment = b.export(NAME, &buffer, BOTH).unwrap();
    let connect = |name, wait| Sender::connect(&a, (NodeId(1), Port(1), name), REPLENISH, wait);
    for head in [0, u64::from_le_bytes(*b"qnicchan")] {
        buffer.store_u64(0, head).unwrap();
        assert_error!(connect(NAME, SOON), Error::BadChannel(_));
    }
    let nobody = status(connect(SegmentName(1), Duration::ZERO));
    assert_eq!(nobody, Status::NameNotFound);
}

#[test]
fn long_messages_are_refused_and_nothing_is_sent() {
    let mut ends = ends(&ChannelOptions::new(2, 10, SENT));
    let (length, limit) = match ends.sender.send(&[0; 11], None) {
        Err(Error::MessageTooLong { length, limit }) => (length, limit),
        other => panic!("{other:?}"),
    };
    assert_eq!((length, limit), (11, 10));
    ends.sender.send(&[7; 10], None).unwrap();
    let message = ends.receiver.recv(Some(SOON)).unwrap();
    assert_eq!(message.to_vec(), [7; 10]);
}

#[test]
fn streams_carry_bytes_and_end() {
    let ends = ends(&ChannelOptions::new(4, 1000, SENT));
    let bytes = pattern(5, 123_456);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = Writer::new(ends.sender);
            for part in bytes.chunks(7001) {
                writer.write_all(part).unwrap();
            }
            writer.flush().unwrap();
            writer.into_inner().close().unwrap();
        });
        let mut reader = Reader::new(ends.receiver);
        reader.set_timeout(Some(SOON));
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert!(got == bytes);
    });
}

#[test]
fn a_stream_whose_reader_is_gone_is_a_broken_pipe() {
    let ends = ends(&ChannelOptions::new(4, 1000, SENT));
    drop(ends.receiver);
    let mut writer = Writer::new(ends.sender);
    let error = std::iter::repeat_with(|| writer.write_all(&[1; 5000])).find_map(Result::err);
    assert_eq!(error.unwrap().kind(), std::io::ErrorKind::BrokenPipe);
}

/// Many to one: a channel for each sender, all in one queue.
#[test]
fn a_receiver_of_many_channels_takes_them_from_its_queue() {
    const SENDERS: u16 = 4;
    let cluster = Cluster::new(2);
    let endpoint = cluster.nic(0).register(Port(1)).unwrap();
    let queue = endpoint.queue();
    let nic = cluster.nic(1);
    let id = |sender| id(100 + u32::from(sender));
    let name = |sender| SegmentName(u64::from(sender));
    let mut receivers: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let options = ChannelOptions::new(4, 64, id(sender));
            queue.watch(id(sender)).unwrap();
            Receiver::open(&endpoint, name(sender), &options).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let nic = &nic;
            scope.spawn(move || {
                let endpoint = nic.register(Port(10 + sender)).unwrap();
                let channel = Sender::connect(
                    &endpoint,
                    (NodeId(0), Port(1), name(sender)),
                    REPLENISH,
                    SOON,
                );
                let mut channel = channel.unwrap();
                for number in 0..200u64 {
                    channel.send(&number.to_le_bytes(), Some(SOON)).unwrap();
                }
                channel.close().unwrap();
            });
        }
        let mut next = vec![0u64; SENDERS.into()];
        let mut open = SENDERS;
        while open > 0 {
            let Signal::Counted(id) = queue.wait(Some(SOON)).unwrap() else {
                panic!("no one-shot notification was sent");
            };
            let index = id.number() as usize - 100;
            match receivers[index].try_recv() {
                Ok(Some(message)) => {
                    assert_eq!(message.to_vec(), next[index].to_le_bytes());
                    next[index] += 1;
                }
                Ok(None) => {}
                Err(Error::ChannelClosed) => open -= 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(next, [200; SENDERS as usize]);
    });
}

#[test]
fn a_handler_takes_the_messages_of_a_channel() {
    let ends = ends(&ChannelOptions::new(3, 64, SENT));
    let (got, messages) = mpsc::channel();
    let armed = ends.receiver.handle(move |message| {
        got.send(message.map(|message| message.to_vec())).unwrap();
    });
    let armed = armed.unwrap();
    let mut sender = ends.sender;
    for number in 0..300u64 {
        sender.send(&number.to_le_bytes(), Some(SOON)).unwrap();
    }
    sender.close().unwrap();
    for number in 0..300u64 {
        let message = messages.recv_timeout(SOON).unwrap().unwrap();
        assert_eq!(message, number.to_le_bytes());
    }
    assert_error!(messages.recv_timeout(SOON).unwrap(), Error::ChannelClosed);
    drop(armed);
    assert!(messages.recv().is_err());
}
