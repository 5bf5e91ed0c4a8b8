//! Two peers on a network under a clock of the test. Only their ephemeral keys are chance,
//! and nothing but bytes depends on these.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::super::keying::{REKEY_AFTER, REKEY_DATAGRAMS, SESSION_LIFE};
use super::*;
use qnic_config::plan::PrivateKey;

/// What a peer sends. Datagrams of one length leave in one call, with a shorter one behind
/// them, as by segmentation offload: a path that is too narrow for one loses all of these.
#[derive(Default)]
struct Sent {
    buffer: Vec<u8>,
    datagrams: Vec<Vec<u8>>,
    /// Length of the first datagram of the call that each one leaves in.
    longest: Vec<usize>,
    flushed: bool,
}

impl Output for Sent {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    fn finish(&mut self) {
        let datagram = std::mem::take(&mut self.buffer);
        let last = self.datagrams.last().map(Vec::len);
        let segment = self.longest.last().copied();
        let joins = !self.flushed && last == segment && Some(datagram.len()) <= segment;
        let longest = segment.filter(|_| joins).unwrap_or(datagram.len());
        self.longest.push(longest);
        self.datagrams.push(datagram);
        self.flushed = false;
    }

    fn flush(&mut self) {
        self.flushed = true;
    }

    fn channel(&self) -> Channel {
        Channel::Data
    }
}

/// After which delays copies of a datagram arrive.
type Delays = Box<dyn FnMut() -> Vec<u64>>;

/// Two peers on a path that takes datagrams of up to `mtu` bytes.
struct Pair {
    now: Time,
    mtu: usize,
    encrypt: bool,
    ends: [Peer; 2],
    fate: Delays,
    /// By the time of arrival and a serial number: the receiving end, and the bytes.
    on_the_way: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    serial: u64,
    /// What each end had to log.
    changes: [Vec<Change>; 2],
    /// Everything that was ever sent to each, also what was lost.
    recorded: [Vec<Vec<u8>>; 2],
    /// Frames that have arrived at each.
    arrived: [Vec<Vec<u8>>; 2],
    /// All frames of [`stream`] so far, and those that arrived at each.
    streamed: u64,
    seen: [HashSet<Vec<u8>>; 2],
}

fn peer(end: usize, stamp: u64, encrypt: bool) -> Peer {
    let names = ["west", "east"].map(str::to_owned);
    let keys = [1, 2].map(|byte| PrivateKey::from_bytes([byte; 32]));
    let pair = super::Pair {
        own: names[end].clone(),
        peer: names[1 - end].clone(),
        private: keys[end].clone(),
        public: keys[1 - end].public(),
        encrypt,
    };
    Peer::new(pair, 7, "x".to_owned(), stamp)
}

impl Pair {
    fn of(mtu: usize, encrypt: bool) -> Self {
        Pair {
            now: Time(0),
            mtu,
            encrypt,
            ends: [peer(0, 100, encrypt), peer(1, 200, encrypt)],
            fate: Box::new(|| vec![0]),
            on_the_way: BTreeMap::new(),
            serial: 0,
            changes: [Vec::new(), Vec::new()],
            recorded: [Vec::new(), Vec::new()],
            arrived: [Vec::new(), Vec::new()],
            streamed: 0,
            seen: [HashSet::new(), HashSet::new()],
        }
    }

    fn new(mtu: usize) -> Self {
        Self::of(mtu, true)
    }

    /// Two that are connected.
    fn connected() -> Self {
        let mut pair = Self::new(9000);
        pair.run(2000 * MS);
        assert!(pair.are_connected());
        pair
    }

    fn are_connected(&self) -> bool {
        self.ends.iter().all(|end| end.report.connected)
    }

    fn restart(&mut self, end: usize, stamp: u64) {
        self.ends[end] = peer(end, stamp, self.encrypt);
    }

    /// Gives `end` a datagram; what it was is returned, and answers are on the way.
    fn give(&mut self, end: usize, datagram: &[u8]) -> Received<'static> {
        let (mut scratch, mut out) = (Vec::new(), Sent::default());
        let (peer, now) = (&mut self.ends[end], self.now);
        let received = match (Header::of(datagram), Handshake::of(datagram)) {
            (Some((header, _)), _) => {
                peer.receive(now, header, datagram, &mut scratch, &mut out)
                    .0
            }
            (None, Some(header)) => peer.receive_handshake(now, header, datagram, &mut out).0,
            (None, None) => Received::Rejected,
        };
        let received = match received {
            Received::Frame(frame) => Received::Frame(frame.into_owned().into()),
            Received::Rejected => Received::Rejected,
            Received::Taken => Received::Taken,
        };
        self.put(end, out);
        received
    }

    /// Puts what `end` has sent on the way.
    fn put(&mut self, end: usize, sent: Sent) {
        for (datagram, longest) in sent.datagrams.into_iter().zip(sent.longest) {
            self.recorded[1 - end].push(datagram.clone());
            if longest > self.mtu {
                continue;
            }
            for delay in (self.fate)() {
                self.serial += 1;
                let at = (self.now.after(delay), self.serial);
                self.on_the_way.insert(at, (1 - end, datagram.clone()));
            }
        }
    }

    /// Delivers what has arrived.
    fn deliver(&mut self) {
        while let Some(first) = self.on_the_way.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            let (end, datagram) = first.remove();
            if let Received::Frame(frame) = self.give(end, &datagram) {
                self.arrived[end].push(frame.into_owned());
            }
        }
    }

    fn run(&mut self, nanoseconds: u64) {
        let until = self.now.after(nanoseconds);
        while self.now < until {
            for end in 0..2 {
                let mut sent = Sent::default();
                let change = self.ends[end].tick(self.now, &mut sent);
                self.changes[end].extend(change);
                self.put(end, sent);
            }
            self.deliver();
            let deadlines = self.ends.iter().map(Peer::deadline);
            let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
            let next = deadlines.chain(arrival).min().unwrap();
            self.now = next.max(self.now.after(1)).min(until);
        }
    }

    /// Sends a frame from `end`; returns the frames that arrive at once.
    fn send(&mut self, end: usize, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut sent = Sent::default();
        self.ends[end].send(&mut sent, &mut |out| {
            out.extend_from_slice(frame);
            true
        });
        self.put(end, sent);
        self.arrived[1 - end].clear();
        self.deliver();
        self.arrived[1 - end].clone()
    }

    /// Takes what has arrived, of [`stream`].
    fn collect(&mut self) {
        for (seen, arrived) in self.seen.iter_mut().zip(&mut self.arrived) {
            for frame in arrived.drain(..) {
                assert!(seen.insert(frame), "a frame came twice");
            }
        }
    }

    /// The session in which each end sends.
    fn sessions(&mut self) -> [u32; 2] {
        let session = |end: &mut Peer| end.keying.current().unwrap().own;
        let [west, east] = &mut self.ends;
        [session(west), session(east)]
    }
}

/// Peers find each other and the MTU of the path (U8).
#[test]
fn peers_connect_find_the_size_and_exchange_frames() {
    for (mtu, found) in [(9000, SIZES[0]), (1500, 1472), (1450, 1400), (1280, 1232)] {
        for encrypt in [true, false] {
            let mut pair = Pair::of(mtu, encrypt);
            assert!(pair.send(0, b"early").is_empty());
            assert_eq!(pair.ends[0].report.dropped, 1);
            pair.run(2000 * MS);
            for end in [0, 1] {
                assert!(pair.ends[end].report.connected);
                assert_eq!(pair.ends[end].report.mtu, found as u64);
                assert_eq!(pair.ends[end].report.sessions, 1);
                for length in [1, 150, 1400, MAX_FRAME] {
                    let frame = vec![length as u8; length];
                    assert_eq!(pair.send(end, &frame), [frame]);
                }
            }
        }
    }
}

/// What a frame says is on the wire only if encryption is switched off.
#[test]
fn contents_are_not_readable_on_the_wire() {
    let secret = b"the secret of the guest";
    for (encrypt, mtu) in [(true, 9000), (true, 1280), (false, 9000)] {
        let mut pair = Pair::of(mtu, encrypt);
        pair.run(2000 * MS);
        let frame = secret.repeat(MAX_FRAME / secret.len());
        assert_eq!(pair.send(0, &frame), [frame]);
        let shows = |sent: &Vec<u8>| sent.windows(8).any(|part| part == &secret[..8]);
        assert_eq!(pair.recorded[1].iter().any(shows), !encrypt);
        // What is sent again looks different: keys and counters are never used twice.
        pair.send(0, secret);
        pair.send(0, secret);
        let last = pair.recorded[1].iter().rev().take(2);
        let tails: HashSet<_> = last.map(|sent| &sent[sent.len() - 16..]).collect();
        assert_eq!(tails.len(), 2);
    }
}

#[test]
fn a_path_that_gets_narrower_is_noticed() {
    let mut pair = Pair::connected();
    pair.mtu = 1500;
    pair.run(60_000 * MS);
    assert_eq!(pair.ends[0].report.mtu, 1472);
    assert_eq!(pair.send(0, &[1; MAX_FRAME]), [vec![1; MAX_FRAME]]);
}

/// Handshakes get through, and nothing that is longer: both ends say so, once (U8).
#[test]
fn a_path_that_is_too_narrow_is_reported_by_both_ends() {
    let mut pair = Pair::new(1000);
    pair.run(120_000 * MS);
    assert!(pair.are_connected());
    assert_eq!(pair.changes, [[Change::Narrow], [Change::Narrow]]);
    let mut wide = Pair::connected();
    wide.run(120_000 * MS);
    assert!(wide.changes.iter().all(Vec::is_empty));
}

#[test]
fn silence_ends_a_connection_and_a_handshake_begins_it_again() {
    let mut pair = Pair::connected();
    pair.mtu = 0;
    pair.run(OUTAGE + 2000 * MS);
    assert!(pair.ends.iter().all(|end| !end.report.connected));
    pair.mtu = 9000;
    pair.run(1000 * MS);
    assert!(pair.are_connected());
}

/// Whatever was sent to a peer, in the present sessions or in earlier ones, has no
/// effect when it arrives again.
#[test]
fn what_was_recorded_cannot_be_played_back() {
    let mut pair = Pair::connected();
    assert_eq!(pair.send(0, b"pay 100").len(), 1);
    for restarted in [None, Some(0), Some(1)] {
        match restarted {
            Some(0) => pair.restart(0, 300),
            Some(_) => pair.restart(1, 400),
            None => {}
        }
        for connected in [false, true] {
            for datagram in pair.recorded[1].clone() {
                let received = pair.give(1, &datagram);
                assert!(!matches!(received, Received::Frame(_)), "{restarted:?}");
            }
            if connected {
                assert_eq!(pair.send(0, b"goes on"), [b"goes on"], "{restarted:?}");
            }
            pair.run(7000 * MS);
        }
        assert_eq!(pair.send(0, b"new"), [b"new"], "{restarted:?}");
        assert_eq!(pair.send(1, b"new"), [b"new"], "{restarted:?}");
    }
}

/// An initiation that was held back on its way is good, and yet no sign of life: the session
/// that it begins is never taken over.
#[test]
fn an_initiation_alone_does_not_replace_a_session() {
    let mut pair = Pair::connected();
    for end in [0, 1] {
        let mut withheld = Sent::default();
        let _ = peer(end, 1_000_000, true).tick(Time(0), &mut withheld);
        let before = pair.sessions();
        for datagram in &withheld.datagrams {
            assert_eq!(pair.give(1 - end, datagram), Received::Taken);
            let next = format!("{:?}", pair.ends[1 - end].keying);
            assert!(next.contains("next: Some"), "it was answered");
        }
        for _ in 0..50 {
            assert_eq!(pair.send(0, b"ping"), [b"ping"]);
            assert_eq!(pair.send(1, b"pong"), [b"pong"]);
            pair.run(1000 * MS);
        }
        assert_eq!(pair.sessions(), before);
    }
}

/// A process without the key changes nothing, whatever it makes of what it has seen.
#[test]
fn forged_datagrams_change_no_state() {
    for established in [false, true] {
        let mut pair = Pair::new(9000);
        if established {
            pair.run(2000 * MS);
        } else {
            pair.mtu = 0;
            pair.run(400 * MS);
        }
        for datagram in pair.recorded[1].clone() {
            let before = format!("{:?}", pair.ends[1].keying);
            for bit in (0..datagram.len() * 8).step_by(37) {
                let mut forged = datagram.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(pair.give(1, &forged), Received::Rejected, "bit {bit}");
            }
            assert_eq!(format!("{:?}", pair.ends[1].keying), before);
        }
    }
}

#[test]
fn a_clock_that_went_back_does_not_lock_a_peer_out() {
    for end in [0, 1] {
        let mut pair = Pair::connected();
        pair.restart(end, 5);
        pair.run(7000 * MS);
        assert_eq!(pair.send(end, b"here again"), [b"here again"]);
        assert_eq!(pair.send(1 - end, b"here again"), [b"here again"]);
    }
}

#[test]
fn a_peer_that_never_responds_is_reported_once() {
    let mut peer = peer(0, 1, true);
    let mut reports = 0;
    let mut now = Time(0);
    while now < Time(3 * OUTAGE) {
        let change = peer.tick(now, &mut Sent::default());
        reports += u32::from(change == Some(Change::Silent));
        now = peer.deadline().max(now.after(1));
    }
    assert_eq!(reports, 1);
}

/// Sends a frame from each end each 10 ms for `milliseconds`; how many arrived meanwhile.
fn stream(pair: &mut Pair, milliseconds: u64) -> [usize; 2] {
    let seen = |pair: &Pair| [0, 1].map(|end| pair.seen[end].len());
    let before = seen(pair);
    for _ in 0..milliseconds / 10 {
        for end in [0, 1] {
            pair.streamed += 1;
            let frame = pair.streamed.to_le_bytes();
            // `send` forgets what arrived before.
            pair.collect();
            pair.send(end, &frame);
        }
        pair.run(10 * MS);
    }
    pair.collect();
    let after = seen(pair);
    [0, 1].map(|end| after[end] - before[end])
}

/// Keys change every two minutes, and no frame is lost for that, although datagrams of a
/// session are still on the way when the next one begins.
#[test]
fn new_keys_lose_no_frame() {
    let mut pair = Pair::connected();
    let mut delays = (0..).map(|number: u64| vec![(number * 7 % 10) * MS]);
    pair.fate = Box::new(move || delays.next().unwrap());
    let milliseconds = 3 * REKEY_AFTER / MS + 1000;
    let count = (milliseconds / 10) as usize;
    assert_eq!(stream(&mut pair, milliseconds), [count, count]);
    for end in &pair.ends {
        assert_eq!(end.report.sessions, 4);
    }
}

/// A third of all datagrams is lost, and half of what is left arrives twice or late.
#[test]
fn keys_change_under_loss() {
    let mut pair = Pair::connected();
    let mut random = fastrand::Rng::with_seed(1);
    pair.fate = Box::new(move || match random.u8(0..6) {
        0 | 1 => vec![],
        2 => vec![random.u64(0..50 * MS), random.u64(0..50 * MS)],
        3 => vec![random.u64(0..300 * MS)],
        _ => vec![0],
    });
    let milliseconds = 3 * REKEY_AFTER / MS + 10_000;
    let least = (milliseconds / 10 * 6 / 10) as usize;
    let arrived = stream(&mut pair, milliseconds);
    assert!(arrived.iter().all(|count| *count > least), "{arrived:?}");
    assert!(pair.are_connected());
    for end in &pair.ends {
        assert!((4..8).contains(&end.report.sessions), "{:?}", end.report);
    }
}

#[test]
fn many_datagrams_bring_new_keys() {
    for end in [0, 1] {
        let mut pair = Pair::connected();
        pair.ends[end].keying.current().unwrap().counter = REKEY_DATAGRAMS;
        pair.run(1000 * MS);
        assert_eq!(pair.ends[end].report.sessions, 2);
        assert_eq!(pair.send(end, b"goes on"), [b"goes on"]);
    }
}

/// Keys are forgotten in time, whatever the other side does.
#[test]
fn old_keys_are_forgotten() {
    let mut pair = Pair::connected();
    pair.fate = Box::new(Vec::new);
    pair.run(SESSION_LIFE + 1000 * MS);
    for end in &mut pair.ends {
        assert!(end.keying.current().is_none());
    }
    let recorded = pair.recorded.clone();
    for end in [0, 1] {
        for datagram in recorded[end].iter().filter(|one| Header::of(one).is_some()) {
            assert_eq!(pair.give(end, datagram), Received::Rejected);
        }
    }
}

/// What happens to a datagram, or to the ends.
#[derive(Debug, Clone)]
enum Event {
    Lost,
    Late(u64),
    Twice(u64, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let delay = 0..1500 * MS;
    prop_oneof![
        2 => Just(Event::Lost),
        3 => delay.clone().prop_map(Event::Late),
        2 => (delay.clone(), delay).prop_map(|(first, second)| Event::Twice(first, second)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a network loses, delays, doubles and reorders datagrams, and whenever the ends
    /// begin anew: once it is good, they are connected within seconds; no frame arrives twice
    /// or changed; and nothing is kept but one initiation and three sessions.
    #[test]
    fn handshakes_get_through(
        events in prop::collection::vec(event(), 1..60),
        restarts in prop::collection::vec((0u64..4000, 0usize..2), 0..3),
        encrypt: bool,
    ) {
        let mut pair = Pair::of(9000, encrypt);
        let mut events = events.into_iter().cycle();
        pair.fate = Box::new(move || match events.next() {
            Some(Event::Late(delay)) => vec![delay],
            Some(Event::Twice(first, second)) => vec![first, second],
            _ => Vec::new(),
        });
        for (number, (after, end)) in (1u64..).zip(restarts) {
            stream(&mut pair, after);
            pair.restart(end, 1000 * number);
        }
        stream(&mut pair, 4000);
        pair.fate = Box::new(|| vec![0]);
        pair.run(3000 * MS);
        prop_assert!(pair.are_connected());
        for end in [0, 1] {
            let arrived = pair.send(end, b"through");
            prop_assert_eq!(arrived.last(), Some(&b"through".to_vec()));
        }
    }

    /// No bit of a datagram can be changed, encrypted or not.
    #[test]
    fn no_bit_of_a_datagram_can_be_changed(
        frame in prop::collection::vec(any::<u8>(), 1..300),
        bit: usize,
        encrypt: bool,
    ) {
        let mut pair = Pair::of(9000, encrypt);
        pair.run(2000 * MS);
        pair.fate = Box::new(Vec::new);
        pair.send(0, &frame);
        let datagram = pair.recorded[1].last().unwrap().clone();
        let mut forged = datagram.clone();
        let bit = bit % (forged.len() * 8);
        forged[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(pair.give(1, &forged), Received::Rejected);
        prop_assert_eq!(pair.give(1, &datagram), Received::Frame(frame.into()));
        prop_assert_eq!(pair.give(1, &datagram), Received::Taken);
    }
}
