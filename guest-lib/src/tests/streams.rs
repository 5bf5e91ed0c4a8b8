//! Pools and streams of this library, on a network of drivers in this process (S1 to S6).

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use super::fake_pools::Network;
use crate::pool::PoolOptions;
use crate::stream::{Failure, Options, Streams};
use crate::{Error, NodeId, Status};

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));
const PORT: u16 = 2000;

fn small() -> Options {
    Options {
        pool: PoolOptions {
            frame_bytes: 1024,
            inputs: 32,
            outputs: 32,
        },
        connections: 8,
        ..Options::default()
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

#[test]
fn a_packet_is_sent_and_received_without_a_copy_in_the_driver() {
    let [one, two] = Network::nics(0);
    let options = PoolOptions::default();
    let sender = one.open_pools(0, options).unwrap();
    let receiver = two.open_pools(PORT, options).unwrap();
    assert!(sender.receive().unwrap().is_none());
    let mut frame = sender.output().unwrap().unwrap();
    frame.write(0, b"hello").unwrap();
    frame.send(NodeId(1), PORT, 5).unwrap();
    sender.flush().unwrap();
    receiver.wait_input(LIMIT).unwrap();
    let packet = receiver.receive().unwrap().unwrap();
    assert_eq!(packet.to_vec(), b"hello");
    assert_eq!((packet.node(), packet.port()), (NodeId(0), sender.port()));
    assert!(packet.read(3, &mut [0; 3]).is_err(), "beyond what has come");
    let timeout = Some(Duration::from_millis(1));
    assert!(matches!(receiver.wait_input(timeout), Err(Error::TimedOut)));
}

#[test]
fn pools_that_cannot_be_are_refused() {
    let [one] = Network::nics(0);
    let wrong = PoolOptions {
        frame_bytes: 40_000,
        ..PoolOptions::default()
    };
    let refused = one.open_pools(0, wrong).unwrap_err();
    assert_eq!(refused.status(), Some(Status::BadLength));
    let _pools = one.open_pools(PORT, PoolOptions::default()).unwrap();
    let refused = one.open_pools(PORT, PoolOptions::default()).unwrap_err();
    assert_eq!(refused.status(), Some(Status::PortInUse));
}

#[test]
fn frames_that_are_all_on_their_way_come_back() {
    let [one] = Network::nics(0);
    let options = PoolOptions {
        outputs: 2,
        ..PoolOptions::default()
    };
    let pools = one.open_pools(0, options).unwrap();
    for number in 0..20u8 {
        let mut frame = loop {
            match pools.output().unwrap() {
                Some(frame) => break frame,
                None => pools.wait_output(LIMIT).unwrap(),
            }
        };
        frame.write(0, &[number]).unwrap();
        frame.send(NodeId(9), PORT, 1).unwrap();
        assert!(frame.is_in_use() || frame.write(0, &[1]).is_ok());
    }
    let [first, second] = [0; 2].map(|_| {
        pools.wait_output(LIMIT).unwrap();
        pools.output().unwrap().unwrap()
    });
    assert!(pools.output().unwrap().is_none(), "there are two");
    drop((first, second));
    assert!(pools.output().unwrap().is_some());
}

#[test]
fn a_burst_costs_few_system_calls() {
    let [one, two] = Network::nics(0);
    let sender = one.open_pools(0, PoolOptions::default()).unwrap();
    let receiver = two.open_pools(PORT, PoolOptions::default()).unwrap();
    for _ in 0..200 {
        let mut frame = sender.output().unwrap().unwrap();
        frame.write(0, b"x").unwrap();
        frame.send(NodeId(1), PORT, 1).unwrap();
    }
    sender.flush().unwrap();
    let mut received = 0;
    while received < 200 {
        receiver.wait_input(LIMIT).unwrap();
        while receiver.receive().unwrap().is_some() {
            received += 1;
        }
    }
    // None if the driver was still at work when the burst came.
    assert!(sender.statistics().kicks <= 1);
    assert!(sender.statistics().calls_per_frame() <= 0.05);
    let (info, counted) = (receiver.info().unwrap(), receiver.statistics());
    assert_eq!(
        (info.frames_received.get(), counted.frames_received),
        (200, 200)
    );
    assert_eq!(info.waits.get(), counted.waits);
}

/// A server that sends everything back, for so many streams one after the other.
fn echo(streams: Streams, count: usize) -> std::thread::JoinHandle<()> {
    let listener = streams.listen().unwrap();
    std::thread::spawn(move || {
        for _ in 0..count {
            let mut stream = listener.accept(LIMIT).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
            stream.finish().unwrap();
            stream.wait_delivered(LIMIT).unwrap();
        }
    })
}

#[test]
fn a_stream_is_read_as_it_was_written_on_a_wire_that_loses_frames() {
    for (options, lose_one_of) in [
        (Options::default(), 0),
        (Options::default(), 20),
        (small(), 10),
    ] {
        let [one, two] = Network::nics(lose_one_of);
        let client = Streams::open(&one, 0, options.clone()).unwrap();
        let server = echo(Streams::open(&two, PORT, options).unwrap(), 2);
        for length in [0, 1_000_000] {
            let bytes = pattern(length);
            let mut stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
            stream.set_read_timeout(LIMIT);
            stream.write_all(&bytes).unwrap();
            stream.flush().unwrap();
            stream.finish().unwrap();
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap();
            assert!(back == bytes);
        }
        server.join().unwrap();
        let counters = client.counters();
        assert_eq!(counters.frames_outside + counters.malformed_frames, 0);
        assert_eq!(counters.data_frames_resent > 0, lose_one_of > 0);
    }
}

/// Only the thread that reads moves frames here: if it slept after the acknowledgement, the
/// answer behind it would not come.
#[test]
fn a_thread_looks_on_when_an_acknowledgement_comes_before_the_answer() {
    let [one, two] = Network::nics_that_look();
    let client = Streams::open(&one, 0, small()).unwrap();
    let server = Streams::open(&two, PORT, small()).unwrap();
    let listener = server.listen().unwrap();
    let server = std::thread::spawn(move || {
        let mut stream = listener.accept(LIMIT).unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        let before = server.pool_statistics().frames_sent;
        while server.pool_statistics().frames_sent == before {
            std::thread::yield_now();
        }
        stream.write_all(b"pong").unwrap();
        stream
    });
    let mut stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
    stream.write_all(b"ping").unwrap();
    stream.set_read_timeout(LIMIT);
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");
    drop(server.join().unwrap());
}

#[test]
fn many_threads_share_the_streams_of_a_process() {
    let [one, two] = Network::nics(50);
    let client = Streams::open(&one, 0, Options::default()).unwrap();
    let server = echo(Streams::open(&two, PORT, Options::default()).unwrap(), 6);
    std::thread::scope(|scope| {
        for number in 0..6 {
            let client = client.clone();
            scope.spawn(move || {
                let mut stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
                let bytes = pattern(50_000 + number);
                stream.write_all(&bytes).unwrap();
                stream.finish().unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).unwrap();
                assert!(back == bytes);
            });
        }
    });
    server.join().unwrap();
}

/// A program that writes, drops all it has, and exits: by then the peer's library has every byte (S6).
#[test]
fn the_last_handle_lingers_until_the_peer_has_what_was_written() {
    for lose_one_of in [0, 3] {
        let [one, two] = Network::nics(lose_one_of);
        let server = Streams::open(&two, PORT, Options::default()).unwrap();
        let listener = server.listen().unwrap();
        let client = Streams::open(&one, 0, Options::default()).unwrap();
        let mut stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
        let theirs = listener.accept(LIMIT).unwrap();
        let bytes = pattern(100_000);
        stream.write_all(&bytes).unwrap();
        drop((stream, client));
        let mut there = Vec::new();
        let mut piece = [0; 5000];
        loop {
            match theirs.try_receive(&mut piece).unwrap() {
                0 => break,
                count => there.extend_from_slice(&piece[..count]),
            }
        }
        assert!(there == bytes, "{} of {}", there.len(), bytes.len());
    }
}

#[test]
fn closing_says_what_has_become_of_the_tail() {
    let [one, two] = Network::nics(3);
    let server = Streams::open(&two, PORT, small()).unwrap();
    let listener = server.listen().unwrap();
    let client = Streams::open(&one, 0, small()).unwrap();
    let mut stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
    let theirs = listener.accept(LIMIT).unwrap();
    stream.write_all(b"all of it").unwrap();
    stream.close(LIMIT).unwrap();
    let mut there = [0; 20];
    assert_eq!(theirs.try_receive(&mut there).unwrap(), 9);
    drop(theirs);

    // The peer does not read, so its window closes.
    let stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
    let theirs = listener.accept(LIMIT).unwrap();
    while stream.try_send(&[7; 5000]).is_ok() {}
    let soon = Some(Duration::from_millis(20));
    assert!(matches!(stream.close(soon), Err(Error::TimedOut)));
    let stream = client.connect(NodeId(1), PORT, LIMIT).unwrap();
    drop((theirs, listener.accept(LIMIT).unwrap()));
    stream.send(b"x", LIMIT).unwrap();
    assert!(matches!(stream.close(LIMIT), Err(Error::Stream(_))));
}

#[test]
fn a_stream_that_waits_can_be_tried_and_ends_with_its_peer() {
    let [one, two] = Network::nics(0);
    let client = Streams::open(&one, 0, small()).unwrap();
    let refused = client.connect(NodeId(1), PORT, LIMIT).unwrap_err();
    assert!(
        matches!(refused, Error::Stream(Failure::Refused)),
        "no process is there: {refused}"
    );
    let server = Streams::open(&two, PORT, small()).unwrap();
    let refused = client.connect(NodeId(1), PORT, LIMIT).unwrap_err();
    assert!(
        matches!(refused, Error::Stream(Failure::Refused)),
        "{refused}"
    );

    let listener = server.listen().unwrap();
    assert!(server.listen().is_err(), "one listener");
    assert!(matches!(listener.try_accept(), Err(Error::WouldBlock)));
    let ours = client.connect(NodeId(1), PORT, LIMIT).unwrap();
    let theirs = listener.accept(LIMIT).unwrap();
    assert!(matches!(
        ours.try_receive(&mut [0; 4]),
        Err(Error::WouldBlock)
    ));
    let mut written = 0;
    let full = loop {
        match ours.try_send(&[7; 5000]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
        if written > 1_000_000 {
            panic!("no process reads, and yet there is always room");
        }
    };
    assert!(matches!(full, Error::WouldBlock));
    // It is not read: the stream is reset.
    assert_eq!(theirs.receive(&mut [0; 100], LIMIT).unwrap(), 100);
    drop(theirs);
    let mut ours = ours;
    let ended = loop {
        match ours.read(&mut [0; 100]) {
            Ok(0) => panic!("a reset is no end"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset);
    assert!(matches!(
        ours.send(b"x", LIMIT),
        Err(Error::Stream(Failure::Reset))
    ));
}

#[cfg(feature = "tokio")]
mod tasks {
    use std::future::poll_fn;
    use std::io;
    use std::pin::Pin;

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;
    use crate::stream::{AsyncListener, AsyncStream};

    async fn write_all(stream: &mut AsyncStream, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, bytes));
            bytes = &bytes[written.await?..];
        }
        poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await
    }

    async fn read_to_end(stream: &mut AsyncStream) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let mut bytes = [0; 3000];
            let mut buffer = ReadBuf::new(&mut bytes);
            poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut buffer)).await?;
            if buffer.filled().is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(buffer.filled());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn tasks_read_and_write() {
        let [one, two] = Network::nics(20);
        let client = Streams::open(&one, 0, Options::default()).unwrap();
        let server = Streams::open(&two, PORT, Options::default()).unwrap();
        let listener = AsyncListener::from(server.listen().unwrap());
        let echo = tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap();
            let bytes = read_to_end(&mut stream).await.unwrap();
            write_all(&mut stream, &bytes).await.unwrap();
        });
        let bytes = pattern(300_000);
        let mut stream = AsyncStream::connect(&client, NodeId(1), PORT)
            .await
            .unwrap();
        write_all(&mut stream, &bytes).await.unwrap();
        assert!(read_to_end(&mut stream).await.unwrap() == bytes);
        echo.await.unwrap();
    }
}
