//! What is under way to one process delays nothing to another (N12, N15), and what nothing asks for
//! is counted (N11).

use qnic::{Error, SegmentName, Status};

use crate::cluster::{pair, status, Cluster, Pair, Peer, BOTH, SOON};

/// Name of a segment that is revoked.
const GONE: SegmentName = SegmentName(0x60e);

/// Writes to a silent process: more than fit on their way to it.
const MANY: usize = 1000;

/// A process with peers on two other nodes, one of which is cut off when much is under way to it.
pub(crate) struct Silent {
    pub(crate) cluster: Cluster,
    pub(crate) a: Peer,
    pub(crate) c: Peer,
    pub(crate) to_b: qnic::RemoteSegment,
    pub(crate) to_c: qnic::RemoteSegment,
}

pub(crate) fn silent() -> Silent {
    let cluster = Cluster::on_links(3);
    let [a, b, c] = [0, 1, 2].map(|node| Peer::new(&cluster.nic(node), 1, 65_536));
    let (to_b, to_c) = (a.import(&b), a.import(&c));
    a.write(&to_b, 0, b"1");
    a.write(&to_c, 0, b"1");
    cluster.net([0, 1], r#"{"partition":true}"#);
    // It stays registered: what is its own is at its NIC.
    std::mem::forget(b);
    Silent {
        cluster,
        a,
        c,
        to_b,
        to_c,
    }
}

#[test]
fn a_silent_process_holds_up_no_other() {
    let Silent {
        cluster,
        a,
        c,
        to_b,
        to_c,
    } = silent();
    let endpoint = &a.endpoint;
    let post = |number: usize| {
        let bytes = (number as u64).to_le_bytes();
        let write = endpoint.write(&to_b, number as u64 * 8, &bytes);
        write.timeout(SOON).post().unwrap()
    };
    let stuck: Vec<_> = (0..MANY).map(post).collect();
    // Fenced, by tickets, atomic, read, and more than a queue of plain ones.
    for round in 1..=2000u64 {
        let bytes = round.to_le_bytes();
        let write = endpoint.write(&to_c, 0, &bytes);
        drop(write.timeout(SOON).post().unwrap());
    }
    let [seven, eight] = [7u64, 8].map(u64::to_le_bytes);
    let fenced = endpoint.write(&to_c, 8, &seven);
    fenced.timeout(SOON).fenced().unwrap();
    assert_eq!((c.word(0), c.word(8)), (2000, 7));
    let mut ticket = endpoint.write(&to_c, 8, &eight).post().unwrap();
    ticket.wait_timeout(SOON).unwrap();
    let word = endpoint.atomic::<u64>(&to_c, 8).unwrap();
    assert_eq!(word.fetch_add(1).timeout(SOON).wait().unwrap(), 8);
    let read = endpoint.read(&to_c, 8, a.segment.part(0, 8));
    read.timeout(SOON).fenced().unwrap();
    assert_eq!(a.word(0), 9);
    let of_c = (to_c.node(), to_c.port());
    endpoint.flush().to(of_c).timeout(SOON).wait().unwrap();
    assert!(stuck.iter().all(|ticket| !ticket.has_ended()));
    cluster.net([0, 1], r#"{"partition":false}"#);
    for mut ticket in stuck {
        ticket.wait_timeout(SOON).unwrap();
    }
}

/// A fence of one side waits for no destination: the transport has the bytes (N9).
#[test]
fn sources_are_reusable_before_their_writes_are_delivered() {
    const LENGTH: usize = 16_000;
    let Silent {
        cluster,
        a,
        c: _c,
        to_b,
        to_c,
    } = silent();
    let before = vec![1; LENGTH];
    a.buffer.write(0, &before).unwrap();
    let part = || a.segment.part(0, LENGTH);
    let mut to_silent = a.endpoint.write(&to_b, 0, part()).post().unwrap();
    drop(a.endpoint.write(&to_c, 0, part()).post().unwrap());
    let flush = || a.endpoint.flush().timeout(SOON);
    flush()
        .to((to_b.node(), to_b.port()))
        .sources()
        .wait()
        .unwrap();
    flush().sources().wait().unwrap();
    assert!(!to_silent.has_ended());
    a.buffer.write(0, &[2; LENGTH]).unwrap();
    cluster.net([0, 1], r#"{"partition":false}"#);
    to_silent.wait_timeout(SOON).unwrap();
    flush().wait().unwrap();
    // Without writes under way there is nothing to wait for.
    flush().sources().wait().unwrap();
    for remote in [&to_b, &to_c] {
        let read = a.endpoint.read(remote, 0, part());
        read.timeout(SOON).fenced().unwrap();
        assert_eq!(a.buffer.read_vec(0, LENGTH).unwrap(), before);
    }
}

#[test]
fn one_process_leaves_room_to_others() {
    let Silent {
        cluster,
        a,
        c: _c,
        to_b,
        to_c,
    } = silent();
    let write = a.endpoint.write(&to_b, 0, b"x");
    // A queue that the NIC has still to read has no room either: only these must find some.
    let post = |_| write.timeout(SOON).post().unwrap();
    let stuck: Vec<_> = (0..1024 - 16).map(post).collect();
    let full = write.timeout(std::time::Duration::ZERO).post();
    assert!(matches!(full, Err(Error::QueueFull)), "{full:?}");
    let word = a.endpoint.atomic::<u64>(&to_c, 0).unwrap();
    for round in 0..100 {
        let write = a.endpoint.write(&to_c, 8, b"y");
        write.timeout(SOON).fenced().unwrap();
        let before = word.fetch_add(1).timeout(SOON).wait().unwrap();
        assert_eq!(before, u64::from(b'1') + round);
    }
    cluster.net([0, 1], r#"{"partition":false}"#);
    for mut ticket in stuck {
        ticket.wait_timeout(SOON).unwrap();
    }
}

#[test]
fn failures_of_dropped_tickets_are_counted() {
    let pair = pair(4096);
    let Pair { a, b, .. } = &pair;
    let exported = b.endpoint.allocate(4096).unwrap();
    let segment = b.endpoint.export(GONE, &exported, BOTH).unwrap();
    let (node, port) = (b.endpoint.node(), b.endpoint.port());
    let remote = a.endpoint.import(node, port, GONE, SOON).unwrap();
    drop(segment);
    for _ in 0..5000 {
        drop(a.endpoint.write(&remote, 0, b"x").post().unwrap());
    }
    let Error::Transfer(errors) = a.endpoint.flush().wait().unwrap_err() else {
        panic!("it says which transfers failed");
    };
    let more: u64 = errors.more.iter().map(|more| more.count).sum();
    assert_eq!((errors.failures.len(), more), (64, 5000 - 64));
    assert_eq!(errors.more.len(), 1);
    assert_eq!(errors.more[0].status, errors.failures[0].status);
    assert!(errors.to_string().ends_with("(and 4999 more)"), "{errors}");
    a.endpoint.flush().wait().unwrap();
    let refused = a.endpoint.write(&remote, 0, b"x").fenced();
    assert_eq!(status(refused), Status::NoSuchSegment);
}

#[test]
fn a_program_bounds_what_is_under_way() {
    let cluster = Cluster::on_links(3);
    let refused = cluster.nic(0).with_operations(15);
    assert!(matches!(refused, Err(Error::Operations(15))));
    let nic = cluster.nic(0).with_operations(40).unwrap();
    let a = Peer::new(&nic, 1, 4096);
    let [b, c] = [1, 2].map(|node| Peer::new(&cluster.nic(node), 1, 4096));
    let (to_b, to_c) = (a.import(&b), a.import(&c));
    a.write(&to_b, 0, b"1");
    a.write(&to_c, 0, b"1");
    cluster.net([0, 1], r#"{"partition":true}"#);
    let write = a.endpoint.write(&to_b, 0, b"x");
    let stuck: Vec<_> = (0..40 - 16)
        .map(|_| write.timeout(SOON).post().unwrap())
        .collect();
    let full = write.timeout(std::time::Duration::ZERO).post();
    assert!(matches!(full, Err(Error::QueueFull)), "{full:?}");
    for _ in 0..100 {
        let write = a.endpoint.write(&to_c, 8, b"y");
        write.timeout(SOON).fenced().unwrap();
    }
    cluster.net([0, 1], r#"{"partition":false}"#);
    for mut ticket in stuck {
        ticket.wait_timeout(SOON).unwrap();
    }
}
