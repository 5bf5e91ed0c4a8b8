//! What goes to and comes from one other process, sans-IO.
//!
//! ```text
//!   silent ── handshake ──► connected ── nothing received for 5 s ──► silent
//! ```
//!
//! A peer that was quiet for a second is pinged each 200 ms. After two seconds a handshake is
//! tried beside that: the peer may have begun anew. [`super::keying`] says how sessions
//! begin and follow each other; a datagram counts only within one of them, once.
//!
//! # Size of datagrams (U8)
//! Once connected, zero-filled probes of the sizes in [`SIZES`] show which sizes arrive;
//! the network is asked not to fragment. The NICs learn the size that was found, and make their
//! frames no longer (U5): only what is sent again, and was made before, may take fragments. Every ten
//! seconds a probe of the size in use is sent; when [`LOST_PROBES`] in a row get no
//! response, the search starts again from the smallest size. A path on which not even that
//! arrives takes handshakes and small frames, and no others: that is reported once.

use std::borrow::Cow;

use qnic_nic::env::Channel;
use qnic_nic::Time;

use super::datagram::{Handshake, Header, Kind, OVERHEAD};
use super::fragment::fragments;
use super::handshake::Pair;
use super::keying::{Doubt, Effect, Keying};
use super::session::Unopened;
use crate::carrier::{Outage, ProcessReport, OUTAGE};
use crate::codec::MAX_FRAME;

const MS: u64 = 1_000_000;
/// Time between pings to a peer that is quiet.
const PING_INTERVAL: u64 = 200 * MS;
/// A peer that has been quiet for so long is pinged.
const PING_AFTER: u64 = 1000 * MS;
/// After so long a handshake is tried.
const HANDSHAKE_AFTER: u64 = 2000 * MS;
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
    /// Sends what was completed: nothing that follows goes with it.
    fn flush(&mut self);
    /// How they travel.
    fn channel(&self) -> Channel;
}

/// Traffic with one other process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) report: ProcessReport,
    keying: Keying,
    /// Where datagrams are put together, and frames that may be too long for one.
    scratch: Vec<u8>,
    frame: Vec<u8>,
    probes: Probes,
    last_received: Time,
    next_ping: Time,
    outage: Outage,
    doubt: Option<Doubt>,
    /// [`Change::Narrow`] was reported.
    narrow: bool,
    /// [`Peer::max_frame`] when it was last asked for changes.
    known_max_frame: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Probes {
    rounds: u32,
    unanswered: u32,
    next: Time,
    /// The size in use has arrived.
    confirmed: bool,
}

/// What a datagram was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'a> {
    /// Not from the peer, as far as can be told: nothing has changed.
    Rejected,
    /// The peer's; nothing for the NICs is in it.
    Taken,
    /// A frame, or the fragment that completes one.
    Frame(Cow<'a, [u8]>),
}

/// A change to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Connected,
    /// It does not respond any more, or has never responded.
    Silent,
    /// It responds, but no datagram of the smallest of [`SIZES`] reaches it.
    Narrow,
}

impl Peer {
    /// Peer number `index` of a carrier, which listens on `address`; `stamp` is the wall clock.
    pub(super) fn new(pair: Pair, index: u16, address: String, stamp: u64) -> Self {
        Peer {
            report: ProcessReport {
                name: pair.peer.clone(),
                address,
                mtu: SIZES[SIZES.len() - 1] as u64,
                ..ProcessReport::default()
            },
            keying: Keying::new(pair, index, stamp),
            scratch: Vec::new(),
            frame: Vec::new(),
            probes: Probes::default(),
            last_received: Time(0),
            next_ping: Time(0),
            outage: Outage::since(Time(0)),
            doubt: None,
            narrow: false,
            known_max_frame: 0,
        }
    }

    /// Longest frame that one datagram takes.
    pub(super) fn max_frame(&self) -> usize {
        (self.report.mtu as usize - OVERHEAD).min(MAX_FRAME)
    }

    /// Returns true if that is another than at the last call.
    pub(super) fn take_path_change(&mut self) -> bool {
        let now = self.max_frame();
        std::mem::replace(&mut self.known_max_frame, now) != now
    }

    /// Its name in datagrams.
    pub(super) fn number(&self) -> u64 {
        self.keying.peer_number()
    }

    pub(super) fn pair(&self) -> &Pair {
        self.keying.pair()
    }

    /// Why there is no connection, as far as can be told.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        self.doubt
    }

    /// Sends a datagram, if there is a session.
    fn put(
        &mut self,
        kind: Kind,
        output: &mut dyn Output,
        fill: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> bool {
        let Some(session) = self.keying.current() else {
            return false;
        };
        let kind = (output.channel(), kind);
        let sealed = session.seal(kind, &mut self.scratch, output.buffer(), fill);
        if sealed {
            output.finish();
        }
        sealed
    }

    /// Sends a frame, in fragments if it is too long; drops it while there is no connection.
    pub(super) fn send(
        &mut self,
        output: &mut dyn Output,
        fill: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) {
        if !self.report.connected {
            self.report.dropped += 1;
            return;
        }
        let room = self.report.mtu as usize - OVERHEAD;
        if room >= MAX_FRAME {
            let sent = self.put(Kind::Frame, output, fill);
            self.report.frames_sent += u64::from(sent);
            return;
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        if fill(&mut frame) {
            self.report.frames_sent += 1;
            self.put_in_fragments(&frame, room, output);
        }
        self.frame = frame;
    }

    fn put_in_fragments(&mut self, frame: &[u8], room: usize, output: &mut dyn Output) {
        if frame.len() <= room {
            self.put(Kind::Frame, output, append(frame));
            return;
        }
        self.report.fragmented += 1;
        let number = self.keying.current().map_or(0, |it| it.frame_number());
        for fragment in fragments(number, frame, room) {
            self.put(Kind::Fragment, output, append(&fragment));
        }
    }

    /// Handles a datagram of a handshake that says that it is from this peer.
    pub(super) fn receive_handshake(
        &mut self,
        now: Time,
        header: &Handshake,
        datagram: &[u8],
        output: &mut dyn Output,
    ) -> (Received<'static>, Option<Change>) {
        let mut reply = |datagram: &[u8]| put_handshake(datagram, output);
        match self.keying.receive(now, header, datagram, &mut reply) {
            Effect::Rejected(doubt) => {
                self.doubt = Some(doubt);
                return (Received::Rejected, None);
            }
            Effect::Replayed => self.report.replayed += 1,
            Effect::Noted => {}
            Effect::Begun => {
                self.report.sessions += 1;
                let change = self.note_life(now);
                // The peer takes the session over when something comes in it.
                self.ping(now, output);
                return (Received::Taken, change);
            }
        }
        (Received::Taken, None)
    }

    /// Handles a datagram of a session with this peer; `scratch` is where it is decrypted.
    pub(super) fn receive<'a>(
        &mut self,
        now: Time,
        header: &Header,
        datagram: &'a [u8],
        scratch: &'a mut Vec<u8>,
        output: &mut dyn Output,
    ) -> (Received<'a>, Option<Change>) {
        let opened = match self.keying.open(header, datagram, scratch) {
            Ok(opened) => opened,
            Err(Unopened::Forged) => return (Received::Rejected, None),
            Err(Unopened::Replayed) => {
                self.report.replayed += 1;
                return (Received::Taken, None);
            }
        };
        self.report.sessions += u64::from(opened.begun);
        let contents = opened.contents;
        let session = self.keying.session(header.session.get());
        let completed = match (contents, session) {
            (Some((Kind::Fragment, body)), Some(session)) => session.reassembly.take(body),
            _ => Ok(None),
        };
        let change = self.note_life(now);
        let frame = match (contents, completed) {
            (Some((Kind::Frame, body)), _) => Some(body.into()),
            (_, Ok(Some(frame))) => Some(frame.into()),
            (None, _) | (_, Err(_)) => {
                self.report.malformed += 1;
                None
            }
            (Some((kind, body)), Ok(None)) => {
                self.receive_control(kind, body, output);
                None
            }
        };
        self.report.frames_received += u64::from(frame.is_some());
        (frame.map_or(Received::Taken, Received::Frame), change)
    }

    /// The peer has shown that it lives.
    fn note_life(&mut self, now: Time) -> Option<Change> {
        self.last_received = now;
        self.outage.end();
        if self.report.connected {
            return None;
        }
        self.report.connected = true;
        self.doubt = None;
        self.start_probes(now);
        Some(Change::Connected)
    }

    fn start_probes(&mut self, now: Time) {
        self.report.mtu = SIZES[SIZES.len() - 1] as u64;
        self.probes = Probes {
            next: now,
            ..Probes::default()
        };
    }

    fn receive_control(&mut self, kind: Kind, body: &[u8], output: &mut dyn Output) {
        match kind {
            Kind::Frame | Kind::Fragment | Kind::Pong => {}
            Kind::Ping => {
                self.put(Kind::Pong, output, append(&[]));
            }
            Kind::Probe => {
                let size = (body.len() + OVERHEAD) as u64;
                self.put(Kind::ProbeResponse, output, append(&size.to_le_bytes()));
            }
            Kind::ProbeResponse => match number(body) {
                Some(size) if SIZES.contains(&(size as usize)) => {
                    self.report.mtu = self.report.mtu.max(size);
                    self.probes.unanswered = 0;
                    self.probes.confirmed = true;
                    self.narrow = false;
                }
                _ => self.report.malformed += 1,
            },
        }
    }

    fn ping(&mut self, now: Time, output: &mut dyn Output) {
        self.next_ping = now.after(PING_INTERVAL);
        self.put(Kind::Ping, output, append(&[]));
    }

    /// Does what is due.
    pub(super) fn tick(&mut self, now: Time, output: &mut dyn Output) -> Option<Change> {
        let wanted = now >= self.handshake_wanted();
        self.keying
            .tick(now, wanted, &mut |datagram| put_handshake(datagram, output));
        let mut silent = self.outage.is_reported_at(now);
        let quiet = now >= self.last_received.after(OUTAGE);
        if self.report.connected && (quiet || self.keying.current().is_none()) {
            self.report.connected = false;
            silent = true;
        }
        if self.report.connected && now >= self.ping_due() {
            self.ping(now, output);
        }
        let mut narrow = false;
        if self.report.connected && now >= self.probes.next {
            narrow = self.probe(now, output);
        }
        match (silent, narrow) {
            (true, _) => Some(Change::Silent),
            (false, true) => Some(Change::Narrow),
            (false, false) => None,
        }
    }

    /// Until the peer knows of a session, it is pinged in it.
    fn ping_due(&self) -> Time {
        match self.keying.is_proved() {
            true => self.next_ping.max(self.last_received.after(PING_AFTER)),
            false => self.next_ping,
        }
    }

    /// From when on a handshake is wanted, if the peer stays quiet.
    fn handshake_wanted(&self) -> Time {
        match self.report.connected {
            true => self.last_received.after(HANDSHAKE_AFTER),
            false => Time(0),
        }
    }

    /// Sends the probes that are due. Returns true, once, if a search has found no size.
    fn probe(&mut self, now: Time, output: &mut dyn Output) -> bool {
        let mtu = self.report.mtu as usize;
        let Probes {
            rounds, confirmed, ..
        } = self.probes;
        if rounds < PROBE_ROUNDS && (mtu < SIZES[0] || !confirmed) {
            self.probes.rounds += 1;
            self.probes.next = now.after(PROBE_INTERVAL);
            let unknown = |size: &usize| *size > mtu || *size == mtu && !confirmed;
            for size in SIZES.into_iter().filter(unknown) {
                self.put_probe(size, output);
            }
            return false;
        }
        self.probes.next = now.after(CONFIRM_INTERVAL);
        if self.probes.unanswered >= LOST_PROBES {
            self.start_probes(now);
            return false;
        }
        self.probes.unanswered += 1;
        self.put_probe(mtu, output);
        !confirmed && !std::mem::replace(&mut self.narrow, true)
    }

    /// Sends a probe by itself: a call of the system that sends it together with others fails
    /// for all of them if it is too long.
    fn put_probe(&mut self, size: usize, output: &mut dyn Output) {
        output.flush();
        self.put(Kind::Probe, output, zeros(size));
        output.flush();
    }

    /// When [`Peer::tick`] must be called at the latest.
    pub(super) fn deadline(&self) -> Time {
        let connected = self.report.connected.then(|| {
            let outage = self.last_received.after(OUTAGE);
            outage.min(self.probes.next).min(self.ping_due())
        });
        let others = connected.into_iter().chain(self.outage.deadline());
        others.fold(self.keying.deadline(self.handshake_wanted()), Time::min)
    }
}

fn put_handshake(datagram: &[u8], output: &mut dyn Output) {
    output.buffer().extend_from_slice(datagram);
    output.finish();
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
