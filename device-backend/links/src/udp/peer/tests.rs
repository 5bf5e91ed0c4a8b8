use super::*;

#[derive(Default)]
struct Sent {
    buffer: Vec<u8>,
    datagrams: Vec<Vec<u8>>,
}

impl Output for Sent {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    fn finish(&mut self) {
        self.datagrams.push(std::mem::take(&mut self.buffer));
    }
}

fn key() -> ClusterKey {
    ClusterKey::new(&[1; 32]).unwrap()
}

/// Two peers on a path that takes datagrams of up to `mtu` bytes, and everything
/// that was ever sent to each.
struct Pair {
    now: Time,
    mtu: usize,
    ends: [Peer; 2],
    recorded: [Vec<Vec<u8>>; 2],
}

fn peer(end: usize, session: u64) -> Peer {
    let names = ["west", "east"];
    Peer::new(names[end], names[1 - end], "x".to_owned(), session)
}

impl Pair {
    fn new(mtu: usize) -> Self {
        Pair {
            now: Time(0),
            mtu,
            ends: [peer(0, 100), peer(1, 200)],
            recorded: [Vec::new(), Vec::new()],
        }
    }

    /// Gives `end` a datagram; returns the frame in it.
    fn give(&mut self, end: usize, datagram: &[u8], out: &mut Sent) -> Option<Vec<u8>> {
        let key = key();
        let (header, body) = Header::open(&key, datagram)?;
        let (received, _) = self.ends[end].receive(self.now, &key, header, body, out);
        received.map(Cow::into_owned)
    }

    /// Carries datagrams from `end` and all responses; returns the frames that arrived.
    fn carry(&mut self, end: usize, sent: Sent) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut moving = vec![(1 - end, sent.datagrams)];
        while let Some((to, datagrams)) = moving.pop() {
            let mut responses = Sent::default();
            let mtu = self.mtu;
            for datagram in datagrams.into_iter().filter(|one| one.len() <= mtu) {
                frames.extend(self.give(to, &datagram, &mut responses));
                self.recorded[to].push(datagram);
            }
            if !responses.datagrams.is_empty() {
                moving.push((1 - to, responses.datagrams));
            }
        }
        frames
    }

    fn run(&mut self, nanoseconds: u64) {
        let until = self.now.after(nanoseconds);
        while self.now < until {
            for end in 0..2 {
                let mut sent = Sent::default();
                let _ = self.ends[end].tick(self.now, &key(), &mut sent);
                self.carry(end, sent);
            }
            let next = self.ends.iter().map(Peer::deadline).min().unwrap();
            self.now = next.max(self.now.after(1)).min(until);
        }
    }

    fn send(&mut self, end: usize, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut sent = Sent::default();
        self.ends[end].send(&key(), &mut sent, &mut |out| {
            out.extend_from_slice(frame);
            true
        });
        self.carry(end, sent)
    }
}

/// Peers find each other and the MTU of the path (U8).
#[test]
fn peers_connect_find_the_size_and_exchange_frames() {
    for (mtu, found) in [(9000, SIZES[0]), (1500, 1472), (1450, 1400), (1280, 1232)] {
        let mut pair = Pair::new(mtu);
        assert!(pair.send(0, b"early").is_empty());
        assert_eq!(pair.ends[0].report.dropped, 1);
        pair.run(2000 * MS);
        for end in [0, 1] {
            assert!(pair.ends[end].report.connected);
            assert_eq!(pair.ends[end].report.mtu, found as u64);
            for length in [1, 150, 1400, MAX_FRAME] {
                let frame = vec![length as u8; length];
                assert_eq!(pair.send(end, &frame), [frame]);
            }
        }
    }
}

#[test]
fn a_path_that_gets_narrower_is_noticed() {
    let mut pair = Pair::new(9000);
    pair.run(2000 * MS);
    pair.mtu = 1500;
    pair.run(60_000 * MS);
    assert_eq!(pair.ends[0].report.mtu, 1472);
    assert_eq!(pair.send(0, &[1; MAX_FRAME]), [vec![1; MAX_FRAME]]);
}

#[test]
fn silence_ends_a_connection_and_a_datagram_begins_it_again() {
    let mut pair = Pair::new(9000);
    pair.run(2000 * MS);
    pair.mtu = 0;
    pair.run(OUTAGE + 2000 * MS);
    assert!(pair.ends.iter().all(|end| !end.report.connected));
    pair.mtu = 9000;
    pair.run(1000 * MS);
    assert!(pair.ends.iter().all(|end| end.report.connected));
}

/// Whatever was sent to a peer, in the present sessions or in earlier ones, has no
/// effect when it arrives again.
#[test]
fn what_was_recorded_cannot_be_played_back() {
    let mut pair = Pair::new(9000);
    pair.run(2000 * MS);
    assert_eq!(pair.send(0, b"pay 100").len(), 1);
    for restarted in [None, Some(0), Some(1)] {
        match restarted {
            Some(0) => pair.ends[0] = peer(0, 300),
            Some(_) => pair.ends[1] = peer(1, 400),
            None => {}
        }
        for connected in [false, true] {
            let recorded = pair.recorded[1].clone();
            for datagram in &recorded {
                let mut out = Sent::default();
                assert_eq!(pair.give(1, datagram, &mut out), None);
            }
            if !connected {
                pair.run(7000 * MS);
            }
        }
        assert_eq!(
            pair.send(0, b"new session"),
            [b"new session"],
            "{restarted:?}"
        );
    }
}

#[test]
fn a_clock_that_went_back_does_not_lock_a_peer_out() {
    let mut pair = Pair::new(9000);
    pair.run(2000 * MS);
    pair.ends[0] = peer(0, 50);
    pair.run(7000 * MS);
    assert_eq!(pair.send(0, b"here again"), [b"here again"]);
}

#[test]
fn a_peer_that_never_responds_is_reported_once() {
    let mut peer = peer(0, 1);
    let mut reports = 0;
    let mut now = Time(0);
    while now < Time(3 * OUTAGE) {
        let change = peer.tick(now, &key(), &mut Sent::default());
        reports += u32::from(change == Some(Change::Silent));
        now = peer.deadline().max(now.after(1));
    }
    assert_eq!(reports, 1);
}
