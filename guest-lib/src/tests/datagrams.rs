//! Datagram sockets on a network of drivers in this process.

use std::time::Duration;

use super::fake_pools::Network;
use crate::datagram::{Socket, SocketOptions};
use crate::pool::PoolOptions;
use crate::{Error, NodeId};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const PORT: u16 = 2000;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|byte| ((byte * 7) >> 3) as u8).collect()
}

#[test]
fn messages_of_all_lengths_arrive_whole() {
    let [one, two] = Network::nics(0);
    let sender = Socket::bind(&one, 0).unwrap();
    let receiver = Socket::bind(&two, PORT).unwrap();
    for length in [0, 1, 2983, 2984, 2985, 4096, 65_535, 65_536] {
        let bytes = pattern(length);
        sender.send_to(&bytes, NodeId(1), PORT, LIMIT).unwrap();
        let received = receiver.receive(LIMIT).unwrap();
        assert!(received.bytes == bytes, "{length}");
        assert_eq!((received.node, received.port), (NodeId(0), sender.port()));
    }
    let long = sender.send_to(&pattern(65_537), NodeId(1), PORT, LIMIT);
    assert!(matches!(long, Err(Error::DatagramTooLong { .. })));
    let counters = receiver.statistics();
    assert_eq!(
        (counters.received, counters.malformed, counters.expired),
        (8, 0, 0)
    );
}

/// The driver's answer would be of access to segments.
#[test]
fn a_port_of_the_kernel_is_refused_with_what_to_do() {
    let [nic, _] = Network::nics(0);
    for port in [1, 1023] {
        let error = Socket::bind(&nic, port).unwrap_err();
        assert!(
            matches!(error, Error::ReservedPort(p) if p == port),
            "{error:?}"
        );
        assert!(error
            .to_string()
            .ends_with("choose one from 1024 up, or 0 for any free one"));
    }
    assert_eq!(Socket::bind(&nic, 1024).unwrap().port(), 1024);
}

#[test]
fn what_is_lost_is_counted_and_nothing_comes_in_part() {
    let [one, two] = Network::nics(10);
    let sender = Socket::bind(&one, 0).unwrap();
    let options = SocketOptions {
        join_timeout: Duration::from_millis(20),
        ..SocketOptions::default()
    };
    let receiver = Socket::bind_with(&two, PORT, options).unwrap();
    for _ in 0..10 {
        sender
            .send_to(&pattern(20_000), NodeId(1), PORT, LIMIT)
            .unwrap();
    }
    // Seven parts each: one of ten is lost, so some messages are whole.
    let soon = Some(Duration::from_millis(100));
    let mut whole = 0;
    while let Ok(datagram) = receiver.receive(soon) {
        assert!(datagram.bytes == pattern(20_000));
        whole += 1;
    }
    assert!((1..10).contains(&whole), "{whole}");
    // The timer runs when the next message comes.
    for _ in 0..2 {
        sender.send_to(b"x", NodeId(1), PORT, LIMIT).unwrap();
    }
    receiver.receive(LIMIT).unwrap();
    assert_eq!(receiver.statistics().expired, 10 - whole);
}

#[test]
fn batches_and_buffers() {
    let [one, two] = Network::nics(0);
    let options = SocketOptions {
        pool: PoolOptions {
            outputs: 4,
            ..PoolOptions::default()
        },
        ..SocketOptions::default()
    };
    let sender = Socket::bind_with(&one, 0, options).unwrap();
    let receiver = Socket::bind(&two, PORT).unwrap();
    let messages: Vec<_> = (0..100usize).map(pattern).collect();
    let to = |bytes: &'static [u8]| (bytes, NodeId(1), PORT);
    sender.send_batch([to(b"a"), to(b"bc")], LIMIT).unwrap();
    let list = messages.iter().map(|bytes| (&bytes[..], NodeId(1), PORT));
    sender.send_batch(list, LIMIT).unwrap();
    let mut received = Vec::new();
    while received.len() < 102 {
        received.extend(receiver.receive_batch(50, LIMIT).unwrap());
    }
    assert_eq!(received[1].bytes, b"bc");
    assert!(received[2..]
        .iter()
        .map(|datagram| &datagram.bytes)
        .eq(&messages));
    assert!(matches!(receiver.try_receive(), Err(Error::WouldBlock)));
    assert!(
        receiver.poll_input().unwrap().is_some(),
        "nothing is there: it can be polled"
    );

    sender
        .send_to(b"truncated", NodeId(1), PORT, LIMIT)
        .unwrap();
    let mut bytes = [0; 4];
    assert_eq!(receiver.recv_from(&mut bytes, LIMIT).unwrap().0, 4);
    assert_eq!((&bytes, receiver.statistics().truncated), (b"trun", 1));
}

/// A thread that waits looks at the queues before it sleeps: packets that come meanwhile cost no call
/// each, whether they come in bursts or one by one.
#[test]
fn a_socket_that_receives_bursts_makes_no_call_for_each_message() {
    const BATCHES: usize = 20;
    const BATCH: usize = 32;
    let [one, two] = Network::nics_of_the_patient();
    let sender = Socket::bind(&one, 0).unwrap();
    let receiver = Socket::bind(&two, PORT).unwrap();
    let echo = std::thread::spawn(move || {
        for _ in 0..BATCHES * BATCH {
            let message = receiver.receive(None).unwrap();
            receiver
                .send_to(&message.bytes, message.node, message.port, None)
                .unwrap();
        }
        // It stays open until all was sent.
        receiver
    });
    for batch in 0..BATCHES {
        for _ in 0..BATCH {
            sender
                .send_to(&pattern(batch), NodeId(1), PORT, None)
                .unwrap();
        }
        for _ in 0..BATCH {
            assert!(sender.receive(None).unwrap().bytes == pattern(batch));
        }
    }
    drop(echo.join().unwrap());
    assert_eq!(sender.statistics().pool.waits, 0);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_task_receives() {
    use crate::datagram::AsyncSocket;

    let [one, two] = Network::nics(0);
    let sender = Socket::bind(&one, 0).unwrap();
    let receiver = AsyncSocket::new(Socket::bind(&two, PORT).unwrap()).unwrap();
    let task = tokio::spawn(async move { receiver.receive().await.unwrap() });
    sender
        .send_to(&pattern(10_000), NodeId(1), PORT, LIMIT)
        .unwrap();
    assert!(task.await.unwrap().bytes == pattern(10_000));
}
