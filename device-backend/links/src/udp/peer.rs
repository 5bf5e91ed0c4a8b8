//! The session with one other process, sans-IO.
//!
//! ```text
//!   silent ── Hello each 200 ms ──► response: connected ── nothing received for 5 s ──► silent
//! ```
//!
//! Each side names its session by a number that only grows (the wall clock at its start).
//! A datagram is accepted only if it names the present session of the receiver: then a
//! process with the key has made it after this session began. Of those datagrams, one
//! with a larger session of the peer than the known one begins a new session of the peer,
//! one with a smaller session is old, and within a session each counter is accepted once.
//! So nothing recorded from the network can be played back.
//!
//! If the clock of a process went back, the response to its Hello says which session its
//! peer knows, and the process takes a larger number.
//!
//! # Size of datagrams (U8)
//! Once connected, zero-filled probes of the sizes in [`SIZES`] show which sizes arrive;
//! the network is asked not to fragment. Longer frames are sent in fragments. Every ten
//! seconds a probe of the size in use is sent; when [`LOST_PROBES`] in a row get no
//! response, the search starts again from the smallest size.

use std::borrow::Cow;

use qnic_nic::Time;

use super::datagram::{process_number, ClusterKey, Header, Kind, OVERHEAD};
use super::fragment::{fragments, Reassembly};
use super::replay::ReplayWindow;
use crate::carrier::{Outage, ProcessReport, OUTAGE};
use crate::codec::MAX_FRAME;

const MS: u64 = 1_000_000;
/// Time between Hellos to a peer that is silent.
const HELLO_INTERVAL: u64 = 200 * MS;
/// A peer that has been silent for so long is sent a Hello.
const HELLO_AFTER: u64 = 1000 * MS;
/// Time between probes while sizes are searched.
const PROBE_INTERVAL: u64 = 300 * MS;
/// Rounds of probes in a search.
const PROBE_ROUNDS: u32 = 4;
/// Time between probes of the size in use.
const CONFIRM_INTERVAL: u64 = 10_000 * MS;
/// Probes of the size in use that may be lost in a row.
const LOST_PROBES: u32 = 3;

/// Sizes of datagrams that are tried: a whole frame; an Ethernet frame without and
/// with a typical tunnel; the minimum of IPv6.
pub(super) const SIZES: [usize; 4] = [MAX_FRAME + OVERHEAD, 1472, 1400, 1232];

/// Where complete datagrams go.
pub(super) trait Output {
    /// The buffer to which one datagram is appended …
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// … before this call completes it.
    fn finish(&mut self);
}

/// The session with one other process.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) report: ProcessReport,
    pub(super) number: u64,
    own_number: u64,
    own_session: u64,
    session: Option<u64>,
    counter: u64,
    window: ReplayWindow,
    reassembly: Reassembly,
    next_frame: u64,
    scratch: Vec<u8>,
    probes: Probes,
    last_received: Time,
    next_hello: Time,
    outage: Outage,
}

#[derive(Debug, Clone, Copy, Default)]
struct Probes {
    rounds: u32,
    unanswered: u32,
    next: Time,
}

/// The frame that a datagram contained or completed.
pub(super) type Received<'a> = Option<Cow<'a, [u8]>>;

/// A change to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Connected,
    /// It does not respond any more, or has never responded.
    Silent,
}

impl Peer {
    /// A peer called `name`; `session` is the wall clock.
    pub(super) fn new(own: &str, name: &str, address: String, session: u64) -> Self {
        Peer {
            report: ProcessReport {
                name: name.to_owned(),
                address,
                mtu: SIZES[SIZES.len() - 1] as u64,
                ..ProcessReport::default()
            },
            number: process_number(name),
            own_number: process_number(own),
            own_session: session.max(1),
            outage: Outage::since(Time(0)),
            ..Peer::default()
        }
    }

    fn put(
        &mut self,
        key: &ClusterKey,
        kind: Kind,
        output: &mut dyn Output,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let sessions = [self.own_session, self.session.unwrap_or(0)];
        let header = Header::new(kind, [self.own_number, self.number], sessions, self.counter);
        self.counter += 1;
        let sealed = header.seal(key, output.buffer(), fill);
        if sealed {
            output.finish();
        }
        sealed
    }

    fn put_number(&mut self, key: &ClusterKey, kind: Kind, number: u64, output: &mut dyn Output) {
        self.put(key, kind, output, append(&number.to_le_bytes()));
    }

    /// Sends a frame, in fragments if it is too long; drops it while there is no connection.
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
                for fragment in fragments(number, &frame, room) {
                    self.put(key, Kind::Fragment, output, append(&fragment));
                }
            }
        }
        self.scratch = frame;
    }

    /// Handles an authentic datagram from this peer.
    pub(super) fn receive<'a>(
        &mut self,
        now: Time,
        key: &ClusterKey,
        header: &Header,
        body: &'a [u8],
        output: &mut dyn Output,
    ) -> (Received<'a>, Option<Change>) {
        let session = header.source_session.get();
        if header.destination_session != self.own_session {
            self.receive_for_other_session(key, header.kind, session, body, output);
            return (None, None);
        }
        match self.session {
            Some(known) if session < known => {
                self.report.replayed += 1;
                return (None, None);
            }
            Some(known) if session == known => {}
            _ => self.begin_session(now, session),
        }
        if !self.window.take(header.counter.get()) {
            self.report.replayed += 1;
            return (None, None);
        }
        self.last_received = now;
        self.outage.end();
        let change = (!self.report.connected).then_some(Change::Connected);
        self.report.connected = true;
        (
            self.receive_body(now, key, header.kind, body, output),
            change,
        )
    }

    /// A datagram for another session of this process: only a Hello gets a response,
    /// with the present session.
    fn receive_for_other_session(
        &mut self,
        key: &ClusterKey,
        kind: Kind,
        session: u64,
        body: &[u8],
        output: &mut dyn Output,
    ) {
        if kind != Kind::Hello || number(body).is_none() {
            self.report.replayed += 1;
            return;
        }
        // The Hello may be a replay, so it changes nothing here. The response names the
        // session that it came from: only a peer in that session accepts the response.
        let known = self.session;
        self.session = Some(session);
        self.put_number(key, Kind::HelloResponse, known.unwrap_or(0), output);
        self.session = known;
    }

    /// A new session of the peer begins.
    fn begin_session(&mut self, now: Time, session: u64) {
        self.session = Some(session);
        self.window = ReplayWindow::default();
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

    fn receive_body<'a>(
        &mut self,
        now: Time,
        key: &ClusterKey,
        kind: Kind,
        body: &'a [u8],
        output: &mut dyn Output,
    ) -> Received<'a> {
        match kind {
            Kind::Frame => {
                self.report.frames_received += 1;
                return Some(body.into());
            }
            Kind::Fragment => match self.reassembly.take(body) {
                Ok(Some(frame)) => {
                    self.report.frames_received += 1;
                    return Some(frame.into());
                }
                Ok(None) => {}
                Err(_) => self.report.malformed += 1,
            },
            Kind::Probe => {
                let size = (body.len() + OVERHEAD) as u64;
                self.put_number(key, Kind::ProbeResponse, size, output);
            }
            Kind::ProbeResponse => match number(body) {
                Some(size) if SIZES.contains(&(size as usize)) => {
                    self.report.mtu = self.report.mtu.max(size);
                    self.probes.unanswered = 0;
                }
                _ => self.report.malformed += 1,
            },
            Kind::Hello => {
                let known = self.session.unwrap_or(0);
                self.put_number(key, Kind::HelloResponse, known, output);
            }
            Kind::HelloResponse => match number(body) {
                Some(known) if known > self.own_session => {
                    // The clock went back: the peer takes this session for an old one.
                    self.own_session = known.saturating_add(1);
                    self.next_hello = now;
                    self.counter = 0;
                }
                Some(_) => {}
                None => self.report.malformed += 1,
            },
        }
        None
    }

    /// Does what is due.
    pub(super) fn tick(
        &mut self,
        now: Time,
        key: &ClusterKey,
        output: &mut dyn Output,
    ) -> Option<Change> {
        let mut silent = self.outage.is_reported_at(now);
        if self.report.connected && now >= self.last_received.after(OUTAGE) {
            self.report.connected = false;
            silent = true;
        }
        if now >= self.hello_due() {
            self.next_hello = now.after(HELLO_INTERVAL);
            let known = self.session.unwrap_or(0);
            self.put_number(key, Kind::Hello, known, output);
        }
        if self.report.connected && now >= self.probes.next {
            self.probe(now, key, output);
        }
        silent.then_some(Change::Silent)
    }

    fn hello_due(&self) -> Time {
        match self.report.connected {
            true => self.next_hello.max(self.last_received.after(HELLO_AFTER)),
            false => self.next_hello,
        }
    }

    fn probe(&mut self, now: Time, key: &ClusterKey, output: &mut dyn Output) {
        let mtu = self.report.mtu as usize;
        if self.probes.rounds < PROBE_ROUNDS && mtu < SIZES[0] {
            self.probes.rounds += 1;
            self.probes.next = now.after(PROBE_INTERVAL);
            for size in SIZES.into_iter().filter(|size| *size > mtu) {
                self.put(key, Kind::Probe, output, zeros(size));
            }
            return;
        }
        self.probes.next = now.after(CONFIRM_INTERVAL);
        if self.probes.unanswered >= LOST_PROBES {
            self.start_probes(now);
            return;
        }
        self.probes.unanswered += 1;
        self.put(key, Kind::Probe, output, zeros(mtu));
    }

    /// When [`Peer::tick`] must be called at the latest.
    pub(super) fn deadline(&self) -> Time {
        let connected = self.report.connected;
        let connected = connected.then(|| self.probes.next.min(self.last_received.after(OUTAGE)));
        let others = connected.into_iter().chain(self.outage.deadline());
        others.fold(self.hello_due(), Time::min)
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
