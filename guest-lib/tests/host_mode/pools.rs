//! Shared pools, sockets and streams on the real driver and NIC (S1 to S6).

use std::time::Duration;

use qnic::datagram::Socket;
use qnic::pool::PoolOptions;
use qnic::stream::{Counters, Failure, Options, Streams};
use qnic::{CounterSource, Error, Nic, NodeId, Port, Status};
use qnic_abi::stream::HEADER_BYTES;

use crate::cluster::{pattern, Cluster, SOON};

const PORT: u16 = 2000;

#[test]
fn packets_go_from_frame_to_frame_without_a_copy_in_the_driver() {
    let cluster = Cluster::new(2);
    let nics = [cluster.nic(0), cluster.nic(1)];
    for frame_bytes in [4096, 32_768] {
        send_packets(&nics, frame_bytes);
    }
    for nic in nics {
        let counters = nic.counters(CounterSource::Datagrams).unwrap();
        assert_eq!(counters["bytes_copied"], 0);
        assert_eq!(counters["routes_narrowed"], 0);
    }
}

/// A live node answers for ports that no process has: connecting fails long before a time limit. A port
/// whose process reads slowly is no such port, though the NIC has no frame left for it.
#[test]
fn connecting_where_no_process_listens_is_refused_at_once() {
    let cluster = Cluster::new(3);
    let nics = [cluster.nic(0), cluster.nic(1), cluster.nic(2)];
    let streams = Streams::open(&nics[0], 0, Options::default()).unwrap();
    let connect = |node, port| {
        let error = streams.connect(NodeId(node), port, None).unwrap_err();
        let is_refused = matches!(error, Error::Stream(Failure::Refused));
        assert!(is_refused, "port {port} of node {node}: {error}");
    };
    // The driver of node 1 has no port at all, that of this node has another one, and that of node 2 had it.
    connect(1, PORT);
    connect(0, PORT);
    let there = Streams::open(&nics[2], PORT, Options::default()).unwrap();
    connect(2, PORT);
    connect(2, PORT + 1);
    let listener = there.listen().unwrap();
    streams.connect(NodeId(2), PORT, Some(SOON)).unwrap();
    drop((listener.accept(Some(SOON)).unwrap(), listener, there));
    connect(2, PORT);

    let socket = Socket::bind(&nics[0], 0).unwrap();
    let idle = nics[1].open_pools(PORT, PoolOptions::new(256, 2, 1));
    let idle = idle.unwrap();
    for _ in 0..8 {
        let sent = socket.send_to(b"more than it reads", NodeId(1), PORT, Some(SOON));
        sent.unwrap();
    }
    socket
        .send_to(b"x", NodeId(1), PORT + 1, Some(SOON))
        .unwrap();
    let nothing = socket.receive(Some(Duration::from_millis(1)));
    while socket.statistics().unbound == 0 {
        let _ = socket.receive(Some(Duration::from_millis(1)));
    }
    assert!(matches!(nothing, Err(Error::TimedOut)));
    assert_eq!(
        socket.statistics().unbound,
        1,
        "the port of {idle:?} is bound"
    );
}

/// Any two nodes can be checked though no process runs on the other one, and both are named if they cannot
/// talk (U8).
#[test]
fn any_two_nodes_can_be_checked() {
    for (cluster, is_lossless) in [
        (Cluster::new(2), true),
        (Cluster::on_bad_links(2, 20.0), false),
    ] {
        let [a, b] = [cluster.nic(0), cluster.nic(1)];
        let path = a.check_path(NodeId(1), SOON).unwrap();
        assert_eq!(path.lossless, is_lossless);
        let most = if is_lossless { 32_768 } else { 4096 };
        assert_eq!(path.max_payload, most);
        assert!(path.window > 0 && path.round_trip.unwrap() > Duration::ZERO);
        // The endpoint asks as well, and knows from then on.
        let path = b.register(Port(3)).unwrap().path(NodeId(0)).unwrap();
        assert_eq!(path.max_payload, most);
        a.check_path(NodeId(0), SOON).unwrap();
        let Err(Error::NoPath(no_path)) = a.check_path(NodeId(9), SOON) else {
            panic!("there is no node 9");
        };
        assert_eq!((no_path.from, no_path.to), (NodeId(0), NodeId(9)));
        let text = no_path.to_string();
        assert!(text.starts_with("node 0 and node 9 cannot talk"), "{text}");
    }
}

/// A window that the configuration makes small leaves routes lossless (N18).
#[test]
fn a_configured_window_leaves_routes_lossless() {
    let cluster = Cluster::with_window(2, 64);
    let [a, _b] = [cluster.nic(0), cluster.nic(1)];
    let path = a.check_path(NodeId(1), SOON).unwrap();
    assert_eq!((path.lossless, path.window), (true, 64));
}

/// Sends packets of all lengths up to that of a frame, one after the other.
fn send_packets(nics: &[Nic; 2], frame_bytes: usize) {
    let options = PoolOptions::new(frame_bytes, 64, 64);
    let sender = nics[0].open_pools(0, options).unwrap();
    let receiver = nics[1].open_pools(PORT, options).unwrap();
    let taken = nics[1].open_pools(PORT, options).unwrap_err();
    assert_eq!(taken.status(), Some(Status::PortInUse));
    for round in 0..1000 {
        let bytes = pattern(round, 1 + round * frame_bytes / 1000);
        let mut frame = loop {
            match sender.output().unwrap() {
                Some(frame) => break frame,
                None => sender.wait_output(Some(SOON)).unwrap(),
            }
        };
        frame.write(0, &bytes).unwrap();
        frame.send(NodeId(1), PORT, bytes.len()).unwrap();
        sender.flush().unwrap();
        receiver.wait_input(Some(SOON)).unwrap();
        let packet = receiver.receive().unwrap().unwrap();
        assert_eq!(packet.to_vec(), bytes);
        assert_eq!((packet.node(), packet.port()), (NodeId(0), sender.port()));
    }
    let info = receiver.info().unwrap();
    assert_eq!(info.frames_received.get(), 1000);
    assert_eq!(
        (info.packets_dropped.get(), info.malformed_slots.get()),
        (0, 0)
    );
}

/// A sender knows nothing of the frames of the receiver.
#[test]
fn packets_that_are_longer_than_a_frame_are_dropped_and_take_none() {
    const FRAME: usize = 256;
    const FRAMES: usize = 4;
    let cluster = Cluster::new(2);
    let (a, b) = (cluster.nic(0), cluster.nic(1));
    let sender = a.open_pools(0, PoolOptions::default()).unwrap();
    let options = PoolOptions::new(FRAME, FRAMES, 1);
    let receiver = b.open_pools(PORT, options).unwrap();
    let long = [FRAME + 1, 2 * FRAME, 4096].repeat(FRAMES);
    let short = [FRAME, 1, FRAME - 1, FRAME];
    for length in long.iter().chain(&short) {
        let mut frame = sender.output().unwrap().unwrap();
        frame.write(0, &pattern(*length, *length)).unwrap();
        frame.send(NodeId(1), PORT, *length).unwrap();
    }
    sender.flush().unwrap();
    // There is a frame for each of those that fit.
    for length in short {
        receiver.wait_input(Some(SOON)).unwrap();
        let packet = receiver.receive().unwrap().unwrap();
        assert!(packet.to_vec() == pattern(length, length));
    }
    assert!(receiver.receive().unwrap().is_none());
    assert_eq!(
        receiver.info().unwrap().frames_received.get(),
        FRAMES as u64
    );
}

#[test]
fn messages_of_sockets_arrive_whole() {
    let cluster = Cluster::new(2);
    let (a, b) = (cluster.nic(0), cluster.nic(1));
    let (here, there) = (
        Socket::bind(&a, 0).unwrap(),
        Socket::bind(&b, PORT).unwrap(),
    );
    for length in [1, 4000, 5000, 65_536] {
        let message = pattern(length, length);
        here.send_to(&message, NodeId(1), PORT, Some(SOON)).unwrap();
        let received = there.receive(Some(SOON)).unwrap();
        assert_eq!(received.bytes, message);
        there
            .send_to(b"got it", received.node, received.port, Some(SOON))
            .unwrap();
        assert_eq!(here.receive(Some(SOON)).unwrap().bytes, b"got it");
    }
}

/// Frames of streams are as long as the route carries: most cost one packet of the NIC, and nothing
/// of them is copied in the driver.
#[test]
fn a_stream_has_long_frames_where_the_route_carries_them() {
    const BYTES: usize = 4 << 20;
    for (cluster, most) in [
        (Cluster::new(2), 16_384),
        (Cluster::on_bad_links(2, 0.0), 4096),
    ] {
        let (counters, copied) = exchange(&cluster, BYTES);
        let frames = BYTES.div_ceil(most - HEADER_BYTES) as u64;
        let data = counters.data_frames_sent - counters.data_frames_resent;
        // The end may be a frame of its own.
        assert!(
            (frames..=frames + 1).contains(&data),
            "{data} frames, not {frames}"
        );
        assert_eq!(copied, 0);
    }
}

/// A burst through a stream, on links that lose, double and reorder.
#[test]
fn a_stream_over_bad_links_is_what_was_sent() {
    exchange(&Cluster::on_bad_links(2, 3.0), 4 << 20);
}

/// Sends so many bytes through a stream, which arrive; returns what the sender has counted, and how
/// many the receiving driver has copied.
fn exchange(cluster: &Cluster, length: usize) -> (Counters, u64) {
    let (a, b) = (cluster.nic(0), cluster.nic(1));
    let (here, there) = (
        Streams::open(&a, 0, Options::default()).unwrap(),
        Streams::open(&b, PORT, Options::default()).unwrap(),
    );
    let listener = there.listen().unwrap();
    let sent = pattern(7, length);
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let stream = listener.accept(Some(SOON)).unwrap();
            let mut bytes = vec![0; length];
            let mut count = 0;
            while count < length {
                count += stream.receive(&mut bytes[count..], Some(SOON)).unwrap();
            }
            bytes
        });
        let stream = here.connect(NodeId(1), PORT, Some(SOON)).unwrap();
        let mut count = 0;
        while count < length {
            count += stream.send(&sent[count..], Some(SOON)).unwrap();
        }
        stream.finish().unwrap();
        receiver.join().unwrap()
    });
    assert!(received == sent, "other bytes arrived");
    let copied = b.counters(CounterSource::Datagrams).unwrap()["bytes_copied"];
    (here.counters(), copied)
}

/// A listener to which no peer speaks learns of the end of the device, and its thread ends (S6).
#[test]
fn an_idle_listener_ends_with_its_device() {
    let mut cluster = Cluster::new(1);
    let streams = Streams::open(&cluster.nic(0), PORT, Options::default()).unwrap();
    let listener = streams.listen().unwrap();
    let accepts = std::thread::spawn(move || listener.accept(Some(SOON)).map(drop));
    cluster.kill_device();
    assert_error!(accepts.join().unwrap(), Error::DeviceGone);
    assert_error!(streams.listen().unwrap().accept(None), Error::DeviceGone);
}

#[test]
fn pools_learn_of_the_end_of_the_device() {
    let mut cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let pools = nic.open_pools(0, PoolOptions::default()).unwrap();
    cluster.kill_device();
    let ended = loop {
        match pools.wait_input(Some(SOON)) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(ended, Error::DeviceGone), "{ended}");
}
