//! Every byte arrives, and only where it belongs (N9, N10).

use crate::cluster::{pair, pattern, Cluster, Peer, ONE, SOON};

/// Around the longest that travels inline, a page, and 1 MiB.
const LENGTHS: [usize; 14] = [
    0, 1, 7, 8, 95, 96, 97, 4095, 4096, 4097, 8192, 65_536, 1_048_575, 1_048_579,
];
const OFFSETS: [(usize, usize); 5] = [(0, 0), (1, 0), (0, 3), (4095, 4093), (7, 4096)];
const ROOM: usize = (1 << 20) + 16_384;

/// Transfers bytes of every length and alignment from one peer to the other, and checks
/// that they arrive and no others change.
fn check_all(from: &Peer, to: &Peer, transfer: impl Fn(usize, usize, usize)) {
    for (index, length) in LENGTHS.into_iter().enumerate() {
        for (start, end) in OFFSETS {
            let bytes = pattern(index + start, length);
            from.fill(start, &bytes);
            to.fill(0, &vec![0; ROOM]);
            transfer(start, end, length);
            let mut expected = vec![0; ROOM];
            expected[end..][..length].copy_from_slice(&bytes);
            let arrived = to.bytes(0, ROOM) == expected;
            assert!(arrived, "{length} bytes from {start} to {end}");
        }
    }
}

#[test]
fn writes_of_every_length_and_alignment_arrive() {
    let pair = pair(ROOM);
    check_all(&pair.a, &pair.b, |from, to, length| {
        let source = pair.a.segment.part(from, length);
        pair.a.write_notify(&pair.remote, to as u64, source);
        pair.b.take(ONE);
    });
    pair.a.endpoint.flush().wait().unwrap();
}

#[test]
fn reads_of_every_length_and_alignment_arrive() {
    let pair = pair(ROOM);
    check_all(&pair.b, &pair.a, |from, to, length| {
        pair.a.read(&pair.remote, from as u64, to, length);
    });
}

#[test]
fn a_fenced_write_is_in_the_destinations_memory() {
    let pair = pair(ROOM);
    for round in 0..50 {
        let bytes = pattern(round, 100_000);
        pair.a.fill(0, &bytes);
        let source = pair.a.segment.part(0, bytes.len());
        pair.a.write(&pair.remote, 5, source);
        assert!(pair.b.bytes(5, bytes.len()) == bytes);
    }
}

#[test]
fn a_process_can_transfer_to_its_own_node_and_to_itself() {
    let cluster = Cluster::new(1);
    let nic = cluster.nic(0);
    let [a, b] = [1, 2].map(|port| Peer::new(&nic, port, 10_000));
    let bytes = pattern(3, 5000);
    a.fill(0, &bytes);
    for to in [&b, &a] {
        a.write_fenced_notify(&a.import(to), 5000, a.segment.part(0, bytes.len()));
        to.take(ONE);
        assert!(to.bytes(5000, bytes.len()) == bytes);
    }
}

#[test]
fn a_full_queue_delays_and_loses_nothing() {
    let pair = pair(ROOM);
    for number in 0..20_000u64 {
        let offset = number * 8 % 65_536;
        pair.a
            .write_notify(&pair.remote, offset, &number.to_le_bytes());
    }
    pair.a.endpoint.flush().writes().wait().unwrap();
    let signals = pair.b.endpoint.notification(ONE).wait(Some(SOON));
    assert_eq!(signals.unwrap(), 20_000);
    for number in 20_000 - 8192..20_000u64 {
        let offset = (number * 8 % 65_536) as usize;
        assert_eq!(pair.b.word(offset), number);
    }
}

/// A process that has seen a signal sees all that its sender wrote before (N18).
#[test]
fn a_notification_comes_after_all_earlier_writes() {
    let pair = pair(ROOM);
    let (a, b) = (&pair.a, &pair.b);
    for round in 0..20 {
        let bytes = pattern(round, 1 << 20);
        a.endpoint.flush().writes().wait().unwrap();
        a.fill(0, &bytes);
        for part in 0..16 {
            let at = part << 16;
            let source = a.segment.part(at, 1 << 16);
            let ticket = a.endpoint.write(&pair.remote, at as u64, source).post();
            drop(ticket.unwrap());
        }
        a.signal(&pair.remote, ONE);
        b.take(ONE);
        assert!(b.bytes(0, 1 << 20) == bytes, "round {round}");
    }
    a.endpoint.flush().wait().unwrap();
}
