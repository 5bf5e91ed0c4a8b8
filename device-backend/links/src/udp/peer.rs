//! The conversation with one other process, sans-IO.
//!
//! ```text
//!   silent ── Hello each 200 ms ──► answered: connected ── 5 s without a word ──► silent
//! ```
//!
//! Each side names its life by a session number that only grows (the wall clock at
//! its start). A datagram counts only if it names the session that *this* process
//! has now: so it was made after this process began, by somebody with the key. Among
//! those, one with a larger session than the peer's known one begins a new life of the peer,
//! one with a smaller one is of an old life, and within a life each counter is taken
//! once. So nothing recorded from the network can be played back.
//!
//! A peer whose clock went back learns from the answer to its Hello which session of
//! it is known, and takes a larger one.
//!
//! # Size of datagrams (U8)
//! Once connected, zero-filled probes of the sizes in [`SIZES`] find which arrive; the
//! network is asked not to fragment. Frames that are longer go in pieces. A probe of
//! the size in use is sent every ten seconds; when [`LOST_PROBES`] in a row are not
//! answered, the size falls back and is found anew.

use qnic_nic::Time;

use super::chunk::{split, Reassembly, MAX_FRAME};
use super::datagram::{process_number, Address, ClusterKey, Kind, OVERHEAD};
use super::window::Window;
use crate::carrier::ProcessReport;

const MS: u64 = 1_000_000;
/// Time between Hellos to a peer that is silent.
const HELLO_EVERY: u64 = 200 * MS;
/// A peer that has been silent for so long is asked whether it is there.
const ASK_AFTER: u64 = 1000 * MS;
/// A peer that has been silent for so long is not connected.
pub(super) const SILENCE: u64 = 5000 * MS;
/// Time between probes while sizes are being found.
const PROBE_EVERY: u64 = 300 * MS;
/// Rounds of probes that find the size.
const PROBE_ROUNDS: u32 = 4;
/// Time between probes of the size in use.
const CONFIRM_EVERY: u64 = 10_000 * MS;
/// Probes of the size in use that may be lost in a row.
const LOST_PROBES: u32 = 3;

/// Sizes of datagrams that are tried: a whole frame; an Ethernet frame without and
/// with some tunnel; what IPv6 promises.
pub(super) const SIZES: [usize; 4] = [MAX_FRAME + OVERHEAD, 1472, 1400, 1232];

/// Where finished datagrams go.
pub(super) trait Output {
    /// Appends one datagram to this buffer …
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// … and says that it is whole.
    fn finish(&mut self);
}

/// The conversation with one other process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) report: ProcessReport,
    pub(super) number: u64,
    own_number: u64,
    own_session: u64,
    session: Option<u64>,
    counter: u64,
    window: Window,
    reassembly: Reassembly,
    next_frame: u64,
    scratch: Vec<u8>,
    /// Largest datagram to try.
    limit: usize,
    probes: Probes,
    last_heard: Time,
    next_hello: Time,
    /// Since when it has been silent, until that was reported.
    silent_since: Option<Time>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Probes {
    rounds: u32,
    unanswered: u32,
    next: Time,
}

/// What a datagram brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Brought<'a> {
    Nothing,
    Frame(&'a [u8]),
    Reassembled(Vec<u8>),
}

/// Something for people to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Connected,
    /// It answered, and does not any more; or it never has.
    Silent,
}

impl Peer {
    /// A peer called `name`; `session` is the wall clock, `limit` the largest
    /// datagram to try.
    pub(super) fn new(own: &str, name: &str, address: String, session: u64, limit: usize) -> Self {
        let smallest = SIZES[SIZES.len() - 1];
        Peer {
            report: ProcessReport {
                name: name.to_owned(),
                address,
                mtu: smallest as u64,
                ..ProcessReport::default()
            },
            number: process_number(name),
            own_number: process_number(own),
            own_session: session.max(1),
            session: None,
            counter: 0,
            window: Window::default(),
            reassembly: Reassembly::default(),
            next_frame: 0,
            scratch: Vec::new(),
            limit: limit.max(smallest),
            probes: Probes::default(),
            last_heard: Time(0),
            next_hello: Time(0),
            silent_since: Some(Time(0)),
        }
    }

    fn put(
        &mut self,
        key: &ClusterKey,
        kind: Kind,
        output: &mut dyn Output,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let address = Address {
            kind,
            source: self.own_number,
            destination: self.number,
            source_session: self.own_session,
            destination_session: self.session.unwrap_or(0),
            counter: self.counter,
        };
        self.counter += 1;
        let sealed = address.seal(key, output.buffer(), fill);
        if sealed {
            output.finish();
        }
        sealed
    }

    fn put_number(&mut self, key: &ClusterKey, kind: Kind, number: u64, output: &mut dyn Output) {
        self.put(key, kind, output, |out| {
            out.extend_from_slice(&number.to_le_bytes());
            true
        });
    }

    /// Sends a frame, in pieces if need be; drops it while there is no connection.
    pub(super) fn send(
        &mut self,
        key: &ClusterKey,
        output: &mut dyn Output,
        fill: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) {
        if !self.report.connected {
            self.report.dropped += 1;
            return;
        }
        let room = self.report.mtu as usize - OVERHEAD;
        if room >= MAX_FRAME {
            let sent = self.put(key, Kind::Frame, output, fill);
            self.report.frames_sent += u64::from(sent);
            return;
        }
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        if fill(&mut frame) {
            self.report.frames_sent += 1;
            let number = self.next_frame;
            self.next_frame += 1;
            if frame.len() <= room {
                self.put(key, Kind::Frame, output, append(&frame));
            } else {
                for piece in split(number, &frame, room) {
                    self.put(key, Kind::Chunk, output, append(&piece));
                }
            }
        }
        self.scratch = frame;
    }

    /// Takes an authentic datagram from this peer.
    pub(super) fn receive<'a>(
        &mut self,
        now: Time,
        key: &ClusterKey,
        address: &Address,
        body: &'a [u8],
        output: &mut dyn Output,
    ) -> (Brought<'a>, Option<Change>) {
        if address.destination_session != self.own_session {
            self.take_stranger(key, address, body, output);
            return (Brought::Nothing, None);
        }
        match self.session {
            Some(known) if address.source_session < known => {
                self.report.replayed += 1;
                return (Brought::Nothing, None);
            }
            Some(known) if address.source_session == known => {}
            _ => self.meet(now, address.source_session),
        }
        if !self.window.take(address.counter) {
            self.report.replayed += 1;
            return (Brought::Nothing, None);
        }
        self.last_heard = now;
        self.silent_since = None;
        let change = (!self.report.connected).then_some(Change::Connected);
        self.report.connected = true;
        (self.take_body(now, key, address.kind, body, output), change)
    }

    /// A datagram for another life of this process: only a Hello is answered, with
    /// this life.
    fn take_stranger(
        &mut self,
        key: &ClusterKey,
        address: &Address,
        body: &[u8],
        output: &mut dyn Output,
    ) {
        if address.kind != Kind::Hello || number(body).is_none() {
            self.report.replayed += 1;
            return;
        }
        // Nothing is believed yet: the answer goes to the session that asked, and only
        // who holds that session can go on from it.
        let known = self.session;
        self.session = Some(address.source_session);
        self.put_number(key, Kind::HelloReply, known.unwrap_or(0), output);
        self.session = known;
    }

    /// A new life of the peer begins.
    fn meet(&mut self, now: Time, session: u64) {
        self.session = Some(session);
        self.window = Window::default();
        self.reassembly = Reassembly::default();
        self.start_probes(now);
    }

    fn start_probes(&mut self, now: Time) {
        self.report.mtu = SIZES[SIZES.len() - 1] as u64;
        self.probes = Probes {
            next: now,
            ..Probes::default()
        };
    }

    fn take_body<'a>(
        &mut self,
        now: Time,
        key: &ClusterKey,
        kind: Kind,
        body: &'a [u8],
        output: &mut dyn Output,
    ) -> Brought<'a> {
        match kind {
            Kind::Frame => {
                self.report.frames_received += 1;
                return Brought::Frame(body);
            }
            Kind::Chunk => match self.reassembly.take(body) {
                Ok(Some(frame)) => {
                    self.report.frames_received += 1;
                    return Brought::Reassembled(frame);
                }
                Ok(None) => {}
                Err(_) => self.report.malformed += 1,
            },
            Kind::Probe => {
                let size = (body.len() + OVERHEAD) as u64;
                self.put_number(key, Kind::ProbeReply, size, output);
            }
            Kind::ProbeReply => match number(body) {
                Some(size) if SIZES.contains(&(size as usize)) => {
                    self.report.mtu = self.report.mtu.max(size);
                    self.probes.unanswered = 0;
                }
                _ => self.report.malformed += 1,
            },
            Kind::Hello => {
                let known = self.session.unwrap_or(0);
                self.put_number(key, Kind::HelloReply, known, output);
            }
            Kind::HelloReply => match number(body) {
                Some(known) if known > self.own_session => {
                    // Our clock went back: what we send would be taken for old.
                    self.own_session = known.saturating_add(1);
                    self.next_hello = now;
                    self.counter = 0;
                }
                Some(_) => {}
                None => self.report.malformed += 1,
            },
        }
        Brought::Nothing
    }

    /// Does what is due.
    pub(super) fn tick(
        &mut self,
        now: Time,
        key: &ClusterKey,
        output: &mut dyn Output,
    ) -> Option<Change> {
        let mut change = None;
        if self.report.connected && now >= self.last_heard.after(SILENCE) {
            self.report.connected = false;
            change = Some(Change::Silent);
        }
        if let Some(since) = self
            .silent_since
            .filter(|since| now >= since.after(SILENCE))
        {
            let _reported = since;
            self.silent_since = None;
            change = Some(Change::Silent);
        }
        if now >= self.hello_due() {
            self.next_hello = now.after(HELLO_EVERY);
            let known = self.session.unwrap_or(0);
            self.put_number(key, Kind::Hello, known, output);
        }
        if self.report.connected && now >= self.probes.next {
            self.probe(now, key, output);
        }
        change
    }

    fn hello_due(&self) -> Time {
        match self.report.connected {
            true => self.next_hello.max(self.last_heard.after(ASK_AFTER)),
            false => self.next_hello,
        }
    }

    fn probe(&mut self, now: Time, key: &ClusterKey, output: &mut dyn Output) {
        let best = SIZES.into_iter().find(|size| *size <= self.limit);
        let found = best.is_some_and(|best| self.report.mtu >= best as u64);
        if self.probes.rounds < PROBE_ROUNDS && !found {
            self.probes.rounds += 1;
            self.probes.next = now.after(PROBE_EVERY);
            let larger = |size: &usize| *size <= self.limit && *size as u64 > self.report.mtu;
            for size in SIZES.into_iter().filter(larger).collect::<Vec<_>>() {
                self.put(key, Kind::Probe, output, zeros(size));
            }
            return;
        }
        self.probes.next = now.after(CONFIRM_EVERY);
        if self.probes.unanswered >= LOST_PROBES {
            self.start_probes(now);
            return;
        }
        self.probes.unanswered += 1;
        self.put(key, Kind::Probe, output, zeros(self.report.mtu as usize));
    }

    /// When [`Peer::tick`] must be called at the latest.
    pub(super) fn deadline(&self) -> Time {
        let mut deadline = self.hello_due();
        if self.report.connected {
            deadline = deadline.min(self.probes.next);
            deadline = deadline.min(self.last_heard.after(SILENCE));
        }
        match self.silent_since {
            Some(since) => deadline.min(since.after(SILENCE)),
            None => deadline,
        }
    }
}

fn append(bytes: &[u8]) -> impl FnOnce(&mut Vec<u8>) -> bool + '_ {
    |out| {
        out.extend_from_slice(bytes);
        true
    }
}

/// Fills a datagram up to `size` bytes in all.
fn zeros(size: usize) -> impl FnOnce(&mut Vec<u8>) -> bool {
    move |out| {
        out.resize(out.len() + size - OVERHEAD, 0);
        true
    }
}

fn number(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests;
