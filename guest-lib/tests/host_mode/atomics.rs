//! Atomic operations on remote words (N20).

use qnic::{Access, RemoteU32, RemoteU64, Status};

use crate::cluster::{in_threads, pair, peers, status, Cluster, Peer, BOTH};

#[test]
fn each_operation_does_what_it_says_on_own_and_foreign_words() {
    let pair = pair(4096);
    let (a, b) = (&pair.a, &pair.b);
    for owner in [a, b] {
        let segment = a.import(owner);
        let word: RemoteU32 = a.endpoint.atomic::<u32>(&segment, 4).unwrap();
        assert!(word.test_and_set().wait().unwrap());
        assert!(!word.test_and_set().wait().unwrap());
        assert_eq!(word.increment().wait().unwrap(), 1);
        assert_eq!(word.swap(7).wait().unwrap(), 2);
        assert_eq!(word.compare_swap(8, 9).wait().unwrap(), 7);
        assert_eq!(word.compare_swap(7, 0).wait().unwrap(), 7);
        assert_eq!(word.decrement().wait().unwrap(), 0);
        assert_eq!(word.fetch_add(3).wait().unwrap(), u32::MAX);
        assert_eq!(word.load().wait().unwrap(), 2);
        let wide: RemoteU64 = a.endpoint.atomic::<u64>(&segment, 8).unwrap();
        assert_eq!(wide.decrement().wait().unwrap(), 0);
        assert_eq!(
            wide.compare_swap(u64::MAX, 1 << 40).wait().unwrap(),
            u64::MAX
        );
        let words = [0, 4, 8, 16].map(|offset| owner.buffer.load_u32(offset).unwrap());
        assert_eq!(words, [0, 2, 0, 0], "no neighbour is touched");
        assert_eq!(owner.buffer.load_u64(8).unwrap(), 1 << 40);
        // What the owner stores, all see.
        owner.buffer.store_u64(8, 5).unwrap();
        assert_eq!(wide.load().wait().unwrap(), 5);
    }
}

/// Processes and threads of several nodes, the owner's own among them, add to one
/// word over links that lose 5 % of the frames: each value is seen once (U9, U10).
/// Bits, extremes, floating-point numbers and fields of a word, of 32 and 64 bits (N20).
#[test]
fn words_are_bits_and_numbers_of_either_kind() {
    let cluster = Cluster::new(2);
    let [a, b] = [0, 1].map(|node| Peer::new(&cluster.nic(node), 1, 4096));
    let remote = a.import(&b);
    let bits = a.endpoint.atomic::<u32>(&remote, 4).unwrap();
    bits.swap(0b1100).wait().unwrap();
    assert_eq!(bits.fetch_and(0b0110).wait().unwrap(), 0b1100);
    assert_eq!(bits.fetch_or(0b0011).wait().unwrap(), 0b0100);
    assert_eq!(bits.fetch_xor(0b0101).wait().unwrap(), 0b0111);
    assert_eq!(bits.fetch_min(1).wait().unwrap(), 0b0010);
    assert_eq!(bits.fetch_max(9).wait().unwrap(), 1);
    let low_byte = (0x09, 0xff);
    let changed = bits.masked_compare_swap(low_byte, (0xffff, 0xff00)).wait();
    assert_eq!(changed.unwrap(), 9);
    let refused = bits.masked_compare_swap((0x08, 0xff), (0, 0xff)).wait();
    assert_eq!(refused.unwrap(), 0xff09);
    assert_eq!(bits.load().wait().unwrap(), 0xff09);
    let mut begun = bits
        .masked_compare_swap(low_byte, (1, 0xff))
        .begin()
        .unwrap();
    assert_eq!(begun.wait(None).unwrap().immediate, 0xff09);
    assert_eq!(b.bytes(0, 12), [0, 0, 0, 0, 1, 0xff, 0, 0, 0, 0, 0, 0]);
    let signed = a.endpoint.atomic::<i64>(&remote, 8).unwrap();
    assert_eq!(signed.fetch_min(-5).wait().unwrap(), 0);
    assert_eq!(signed.fetch_max(-7).wait().unwrap(), -5);
    assert_eq!(signed.fetch_add(-1).wait().unwrap(), -5);
    assert_eq!(signed.load().wait().unwrap(), -6);
    let short = a.endpoint.atomic::<f32>(&remote, 16).unwrap();
    assert_eq!(short.fetch_add(1.5).wait().unwrap(), 0.0);
    assert_eq!(short.fetch_min(-0.25).wait().unwrap(), 1.5);
    assert_eq!(short.load().wait().unwrap(), -0.25);
    let long = a.endpoint.atomic::<f64>(&remote, 24).unwrap();
    long.swap(f64::NAN).wait().unwrap();
    assert!(long.fetch_max(2.0).wait().unwrap().is_nan());
    assert_eq!(long.fetch_max(f64::NAN).wait().unwrap(), 2.0);
    assert_eq!(long.fetch_add(0.5).wait().unwrap(), 2.0);
    assert_eq!(long.load().wait().unwrap(), 2.5);
}

#[test]
fn many_increment_one_word_and_each_value_is_seen_once() {
    const NODES: u16 = 3;
    const PORTS: u16 = 2;
    const THREADS: usize = 2;
    const ROUNDS: usize = 50;
    let cluster = Cluster::on_bad_links(NODES, 5.0);
    let nics: Vec<_> = (0..NODES).map(|node| cluster.nic(node)).collect();
    let peers = peers(&nics, PORTS, 4096);
    let word = |peer: &Peer| peer.endpoint.atomic::<u64>(&peer.import(&peers[0]), 64);
    let words: Vec<_> = peers.iter().map(|peer| word(peer).unwrap()).collect();
    let in_each_thread = words.iter().collect::<Vec<_>>().repeat(THREADS);
    let values = in_threads(&in_each_thread, |_, word| {
        let values = (0..ROUNDS).map(|_| word.increment().wait().unwrap());
        let values: Vec<_> = values.collect();
        assert!(values.is_sorted(), "each thread sees it grow");
        values
    });
    let mut seen = values.concat();
    seen.sort_unstable();
    let expected: Vec<u64> = (0..words.len() as u64 * (THREADS * ROUNDS) as u64).collect();
    assert!(seen == expected);
}

#[test]
fn what_is_wrong_is_said_by_name() {
    let cluster = Cluster::new(2);
    let nic = cluster.nic(1);
    let a = Peer::new(&cluster.nic(0), 1, 4096);
    let b = Peer::new(&nic, 1, 4096);
    let segment = a.import(&b);
    for (offset, width) in [(2, 4), (4096, 4), (4, 8)] {
        let wrong = match width {
            4 => a.endpoint.atomic::<u32>(&segment, offset).err(),
            _ => a.endpoint.atomic::<u64>(&segment, offset).err(),
        };
        assert!(wrong.is_some(), "{offset}, {width}");
    }
    for access in [Access::READ, Access::WRITE] {
        let closed = Peer::with_access(&nic, 2, 4096, access);
        let word = a.endpoint.atomic::<u32>(&a.import(&closed), 0).unwrap();
        let error = word.increment().wait().unwrap_err();
        assert_eq!(error.status(), Some(Status::AccessDenied));
        let text = error.to_string();
        assert!(text.starts_with("atomic operation on segment"), "{text}");
    }
    let word = a.endpoint.atomic::<u32>(&segment, 0).unwrap();
    word.increment().wait().unwrap();
    drop((b, segment));
    let gone = status(word.increment().wait());
    assert!(matches!(gone, Status::NoSuchPort | Status::NoSuchSegment));
    a.endpoint.flush().wait().unwrap();
    let heir = Peer::with_access(&nic, 1, 4096, BOTH);
    let word = a.endpoint.atomic::<u32>(&a.import(&heir), 0).unwrap();
    assert_eq!(word.increment().wait().unwrap(), 0);
}
