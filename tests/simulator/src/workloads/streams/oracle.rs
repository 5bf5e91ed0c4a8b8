//! What must hold of streams (S6).
//!
//! A stream is one direction of a connection. Its first eight bytes are its number, and each
//! further byte follows from number and place, so a reader knows what it must find:
//!
//! - bytes come in order and once: each is the one of its place;
//! - none comes that was not written, and the end comes behind all of them;
//! - a stream is read by one connection, of the slot that it was written for;
//! - a connection fails only with a reason: its route was disturbed, its peer has died or given it
//!   up, or the peer has too many of them;
//! - the death of a peer is told in time, and so is its silence.

use std::collections::BTreeMap;

use qnic::stream_protocol::Failure;

use crate::routes::Routes;
use crate::settings::Settings;
use crate::workload::Oracle;

/// A peer that says nothing is asked, and given up, after so long, in nanoseconds.
pub(crate) const KEEP_ALIVE: u64 = 30_000_000;
pub(crate) const PEER_TIMEOUT: u64 = 900_000_000;

/// One that does not answer at all is given up after so long.
pub(crate) const OPEN_TIMEOUT: u64 = 600_000_000;

/// By how much later a program may hear of that: frames that the wires still had, a slow node.
const LATE: u64 = 150_000_000;

/// Bytes of a stream that are its number.
pub(crate) const NUMBER: usize = 8;

/// A process: its slot, and the how manieth there it is.
pub(crate) type Life = (usize, u32);

/// The processes of one slot.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    life: u32,
    alive: bool,
    /// When the last one has begun, died, or given a connection up.
    changed: u64,
}

/// One stream.
#[derive(Debug)]
struct Stream {
    from: Life,
    to: usize,
    written: u64,
    ended: bool,
    /// The reader, and how far it is.
    reader: Option<Life>,
    read: u64,
}

/// All streams.
#[derive(Debug)]
pub(crate) struct StreamOracle {
    /// Node of each slot.
    nodes: Vec<usize>,
    slots: Vec<Slot>,
    /// When processes have died that others may have connections with.
    deaths: BTreeMap<Life, u64>,
    streams: Vec<Stream>,
    routes: Routes,
    bytes_read: u64,
}

/// The byte at a place of a stream.
pub(crate) fn byte(stream: u64, place: u64) -> u8 {
    match usize::try_from(place) {
        Ok(place) if place < NUMBER => stream.to_le_bytes()[place],
        _ => {
            let mixed = (stream << 32 ^ place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 56) as u8
        }
    }
}

impl StreamOracle {
    pub(super) fn new(settings: &Settings, routes: &Routes) -> Self {
        StreamOracle {
            nodes: settings.slots.clone(),
            slots: vec![Slot::default(); settings.slots.len()],
            deaths: BTreeMap::new(),
            streams: Vec::new(),
            routes: routes.clone(),
            bytes_read: 0,
        }
    }

    /// A process listens.
    pub(crate) fn begin(&mut self, slot: usize, now: u64) -> Life {
        let it = &mut self.slots[slot];
        *it = Slot {
            life: it.life + 1,
            alive: true,
            changed: now,
        };
        (slot, it.life)
    }

    /// The process in a slot gives a connection up.
    pub(crate) fn gives_up(&mut self, slot: usize, now: u64) {
        self.slots[slot].changed = now;
    }

    /// A process listens in that slot.
    pub(crate) fn is_alive(&self, slot: usize) -> bool {
        self.slots[slot].alive
    }

    /// A stream of which nothing is written; returns its number.
    pub(crate) fn stream(&mut self, from: Life, to: usize) -> u64 {
        self.streams.push(Stream {
            from,
            to,
            written: 0,
            ended: false,
            reader: None,
            read: 0,
        });
        self.streams.len() as u64
    }

    fn of(&mut self, number: u64) -> Option<&mut Stream> {
        let index = number.checked_sub(1)?;
        self.streams.get_mut(usize::try_from(index).ok()?)
    }

    /// So many more bytes were written.
    pub(crate) fn wrote(&mut self, stream: u64, count: usize) {
        if let Some(stream) = self.of(stream) {
            stream.written += count as u64;
        }
    }

    /// Nothing more will be written.
    pub(crate) fn finished(&mut self, stream: u64) {
        if let Some(stream) = self.of(stream) {
            stream.ended = true;
        }
    }

    /// A connection with the process in a slot begins with this number: returns its writer.
    ///
    /// # Panics
    /// If it is no stream for it.
    pub(crate) fn claim(&mut self, number: u64, reader: Life, peer: usize) -> Life {
        let stream = self.of(number);
        let Some(stream) = stream else {
            panic!("stream worker {}: {number:#x} is no stream", reader.0);
        };
        let (from, to) = (stream.from, stream.to);
        assert_eq!((from.0, to), (peer, reader.0), "stream {number}: its ends");
        let earlier = stream.reader.replace(reader);
        assert_eq!(earlier, None, "stream {number} comes twice");
        from
    }

    /// So many bytes were read, all of them right.
    pub(crate) fn got(&mut self, number: u64, count: usize) {
        self.bytes_read += count as u64;
        if let Some(stream) = self.of(number) {
            stream.read += count as u64;
            let (read, written) = (stream.read, stream.written);
            assert!(
                read <= written,
                "stream {number}: {read} bytes are read, {written} were written"
            );
        }
    }

    /// The end was read.
    pub(crate) fn ended(&mut self, number: Option<u64>) {
        let stream = number.and_then(|number| self.of(number));
        let stream = stream.expect("a stream ends before its number");
        let (read, written) = (stream.read, stream.written);
        assert!(
            stream.ended && read == written,
            "stream {number:?} ends after {read} bytes, {written} were written"
        );
    }

    /// A connection of the process in a slot has failed, which began at that time.
    pub(crate) fn failed(&self, slot: usize, peer: usize, since: u64, failure: Failure) {
        let since = since.saturating_sub(OPEN_TIMEOUT);
        let (a, b) = (self.nodes[slot], self.nodes[peer]);
        let disturbed = self.routes.whole_since(a, b) > since;
        let other = self.slots[peer];
        let excused = disturbed || !other.alive || other.changed > since;
        assert!(
            excused || failure == Failure::Full,
            "stream worker {slot}: a connection with {peer} fails for no reason: {failure}"
        );
    }

    /// A connection is there, and was not told to have failed.
    ///
    /// # Panics
    /// If it should have been.
    pub(crate) fn lives(&self, slot: usize, peer: Life, now: u64) {
        if let Some(died) = self.deaths.get(&peer) {
            let limit = died + PEER_TIMEOUT + 2 * KEEP_ALIVE + LATE;
            assert!(
                now <= limit,
                "stream worker {slot}: it is not told that {} has died",
                peer.0
            );
        }
    }

    /// A connection that began at that time is not open.
    ///
    /// # Panics
    /// If it should be, or have failed.
    pub(crate) fn opens(&self, slot: usize, since: u64, now: u64) {
        let limit = since + OPEN_TIMEOUT + LATE;
        assert!(
            now <= limit,
            "stream worker {slot}: a connection is neither open nor refused"
        );
    }
}

impl Oracle for StreamOracle {
    fn end(&mut self, slot: usize, now: u64) {
        let it = &mut self.slots[slot];
        if std::mem::replace(&mut it.alive, false) {
            it.changed = now;
            self.deaths.insert((slot, it.life), now);
        }
    }

    /// Bytes that were read.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("stream bytes", self.bytes_read)]
    }
}
