//! Every byte arrives, and only where it belongs (N9, N10).

use crate::cluster::{pattern, Cluster, Peer, ONE, SOON};

const LENGTHS: [usize; 14] = [
    0,
    1,
    7,
    8,
    95,
    96,
    97,
    4095,
    4096,
    4097,
    8192,
    65_536,
    (1 << 20) - 1,
    (1 << 20) + 3,
];
const OFFSETS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 3), (4095, 4093), (7, 4096)];
const ROOM: usize = (1 << 20) + 16_384;

/// Checks that `length` bytes at `offset` are `wanted`, and all others zero.
fn check(bytes: &[u8], offset: usize, wanted: &[u8], what: &str) {
    let (front, rest) = bytes.split_at(offset);
    let (middle, back) = rest.split_at(wanted.len());
    assert!(middle == wanted, "{what}: wrong bytes");
    assert!(
        front.iter().chain(back).all(|byte| *byte == 0),
        "{what}: bytes beside the range were touched"
    );
}

#[test]
fn writes_of_every_length_and_alignment_arrive() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, ROOM),
        Peer::new(&cluster.nic(1), 1, ROOM),
    );
    let remote = a.import(&b);
    let arrived = b.endpoint.notification(ONE);
    for (index, length) in LENGTHS.into_iter().enumerate() {
        for (from, to) in OFFSETS {
            let what = format!("{length} bytes from {from} to {to}");
            let bytes = pattern(index + from, length);
            a.buffer.write(from, &bytes).unwrap();
            b.buffer.write(0, &vec![0; ROOM]).unwrap();
            let source = a.segment.part(from, length);
            a.endpoint
                .write_notify(&remote, to as u64, source, ONE)
                .unwrap();
            arrived.take(Some(SOON)).unwrap();
            check(&b.buffer.read_vec(0, ROOM).unwrap(), to, &bytes, &what);
        }
    }
    a.endpoint.flush().unwrap();
}

#[test]
fn reads_of_every_length_and_alignment_arrive() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, ROOM),
        Peer::new(&cluster.nic(1), 1, ROOM),
    );
    let remote = a.import(&b);
    for (index, length) in LENGTHS.into_iter().enumerate() {
        for (from, to) in OFFSETS {
            let what = format!("{length} bytes from {from} to {to}");
            let bytes = pattern(index + to, length);
            b.buffer.write(from, &bytes).unwrap();
            a.buffer.write(0, &vec![0; ROOM]).unwrap();
            let destination = a.segment.part(to, length);
            a.endpoint
                .read_fenced(&remote, from as u64, destination)
                .unwrap();
            check(&a.buffer.read_vec(0, ROOM).unwrap(), to, &bytes, &what);
        }
    }
}

#[test]
fn a_fenced_write_is_in_the_destinations_memory() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, ROOM),
        Peer::new(&cluster.nic(1), 1, ROOM),
    );
    let remote = a.import(&b);
    for round in 0..50 {
        let bytes = pattern(round, 100_000);
        a.buffer.write(0, &bytes).unwrap();
        let source = a.segment.part(0, bytes.len());
        a.endpoint.write_fenced(&remote, 5, source).unwrap();
        assert!(b.buffer.read_vec(5, bytes.len()).unwrap() == bytes);
    }
}

#[test]
fn a_process_can_transfer_to_its_own_node_and_to_itself() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let (a, b) = (Peer::new(&nic, 1, 10_000), Peer::new(&nic, 2, 10_000));
    let bytes = pattern(3, 5000);
    a.buffer.write(0, &bytes).unwrap();
    for to in [&b, &a] {
        let remote = a.import(to);
        let source = a.segment.part(0, bytes.len());
        a.endpoint
            .write_fenced_notify(&remote, 5000, source, ONE)
            .unwrap();
        to.endpoint.notification(ONE).take(Some(SOON)).unwrap();
        assert!(to.buffer.read_vec(5000, bytes.len()).unwrap() == bytes);
    }
}

#[test]
fn a_full_queue_delays_and_loses_nothing() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, ROOM),
        Peer::new(&cluster.nic(1), 1, ROOM),
    );
    let remote = a.import(&b);
    for number in 0..20_000u64 {
        let offset = number * 8 % 65_536;
        a.endpoint
            .write_notify(&remote, offset, &number.to_le_bytes(), ONE)
            .unwrap();
    }
    a.endpoint.flush_writes().unwrap();
    assert_eq!(
        b.endpoint.notification(ONE).wait(Some(SOON)).unwrap(),
        20_000
    );
    for number in 20_000 - 8192..20_000u64 {
        let offset = (number * 8 % 65_536) as usize;
        assert_eq!(b.buffer.load_u64(offset).unwrap(), number);
    }
}

/// Who has seen a signal sees all that its sender wrote before (N18).
#[test]
fn a_notification_comes_after_all_earlier_writes() {
    let cluster = Cluster::new(2);
    let (a, b) = (
        Peer::new(&cluster.nic(0), 1, ROOM),
        Peer::new(&cluster.nic(1), 1, ROOM),
    );
    let remote = a.import(&b);
    for round in 0..20 {
        let bytes = pattern(round, 1 << 20);
        a.endpoint.flush_writes().unwrap();
        a.buffer.write(0, &bytes).unwrap();
        for part in 0..16 {
            let at = part << 16;
            let source = a.segment.part(at, 1 << 16);
            a.endpoint.write(&remote, at as u64, source).unwrap();
        }
        a.endpoint.write_notify(&remote, 0, b"", ONE).unwrap();
        b.endpoint.notification(ONE).take(Some(SOON)).unwrap();
        assert!(
            b.buffer.read_vec(0, 1 << 20).unwrap() == bytes,
            "round {round}"
        );
    }
    a.endpoint.flush().unwrap();
}
