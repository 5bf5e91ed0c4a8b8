//! The sessions with one other process: how they begin, follow each other and end. Sans-IO.
//!
//! ```text
//!           own initiation answered ─────────────────────────────┐
//!                                                                ▼
//!   peer's initiation ──► next ── peer sends a datagram in it ──► current ──► previous ──► gone
//!                                                                sends        receives
//! ```
//!
//! - **A live session is never reset by a handshake.** An answered initiation of its own proves
//!   that the peer lives: the response needs this process's ephemeral key of now. An initiation
//!   of the peer may be a recording, so its session waits as `next` until a datagram comes in it,
//!   which needs the peer's ephemeral private key. What `current` and `previous` bring is
//!   accepted all the while, so a change of keys loses nothing that is on its way.
//! - **Stamps.** Each process numbers its initiations from its wall clock at the start. One that
//!   is not above the newest known is a recording or a copy: the copy of the newest is answered
//!   by the same response again, so that lost, doubled and late datagrams of a handshake do
//!   no harm. To an older one, *Stale* says what is known, in case the sender's clock went
//!   back; it counts only if it names the stamp that the sender waits for.
//! - **Both at once.** The process with the smaller number of the two waits for the response to its
//!   own initiation and ignores the peer's meanwhile; the other one answers. Recordings gain
//!   nothing: the first ignores them, and the second goes on with its own.
//! - **New keys** after [`REKEY_AFTER`] or [`REKEY_DATAGRAMS`]; keys are good for
//!   [`SESSION_LIFE`]. The process with the smaller number begins, the other one a while later
//!   if nothing happened.
//! - **Bounds.** One initiation and three sessions are kept, whatever arrives. An initiation
//!   costs a hash if its tag or its stamp is wrong; others are answered each
//!   [`ANSWER_INTERVAL`] at most.

use qnic_nic::Time;

use super::datagram::{Handshake, Header, Kind, Step};
use super::handshake::{Handshaker, Initiated, Pair};
use super::session::{Session, Unopened};

const MS: u64 = 1_000_000;
/// Time between two copies of an initiation that is not answered.
const RETRY_INTERVAL: u64 = 200 * MS;
/// Time after which an initiation that is not answered is replaced.
const INITIATION_LIFE: u64 = 5_000 * MS;
/// Time between two initiations of a peer that are answered.
const ANSWER_INTERVAL: u64 = 20 * MS;
/// Age of keys at which new ones are made.
pub(super) const REKEY_AFTER: u64 = 120_000 * MS;
/// What the second process waits beyond it.
const REKEY_PATIENCE: u64 = 15_000 * MS;
/// Datagrams sent at which new keys are made.
pub(super) const REKEY_DATAGRAMS: u64 = 1 << 28;
/// Age at which keys are forgotten.
pub(super) const SESSION_LIFE: u64 = 180_000 * MS;

/// Bits of a session's name that count; the others are the peer's index.
const SERIAL_BITS: u32 = 16;

/// The sessions with one other process.
#[derive(Debug)]
pub(super) struct Keying {
    handshaker: Handshaker,
    /// The peer's index at the carrier, where the names of its sessions begin.
    index: u16,
    serial: u16,
    /// Of the newest own initiation.
    stamp: u64,
    /// The newest of the peer's.
    peer_stamp: u64,
    initiation: Option<Initiation>,
    next_try: Time,
    answer_from: Time,
    next: Option<Next>,
    current: Option<Session>,
    previous: Option<Session>,
}

#[derive(Debug)]
struct Initiation {
    initiated: Initiated,
    session: u32,
    begun: Time,
}

/// A session that the peer has not proved to know, and the response that began it.
#[derive(Debug)]
struct Next {
    session: Session,
    response: Vec<u8>,
}

/// Why the peer does not become connected, as far as can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// A datagram in its name was made with other keys.
    Keys,
    /// It encrypts and this process does not, or the other way round.
    Encryption,
    /// It speaks another version.
    Version,
}

/// What a datagram of a handshake did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// It was not made by the peer, or not for this process as it is configured.
    Rejected(Doubt),
    /// It came before, or too late.
    Replayed,
    /// Nothing that the rest of the process sees.
    Noted,
    /// The peer answered: a session with it has begun.
    Begun,
}

/// The name of a session's peer: its index at the carrier.
pub(super) fn peer_index(session: u32) -> usize {
    (session >> SERIAL_BITS) as usize
}

impl Keying {
    /// Sessions with peer number `index` of a carrier; `stamp` is the wall clock.
    pub(super) fn new(pair: Pair, index: u16, stamp: u64) -> Self {
        Keying {
            handshaker: Handshaker::new(pair),
            index,
            serial: 0,
            stamp,
            peer_stamp: 0,
            initiation: None,
            next_try: Time(0),
            answer_from: Time(0),
            next: None,
            current: None,
            previous: None,
        }
    }

    pub(super) fn pair(&self) -> &Pair {
        self.handshaker.pair()
    }

    /// Name of the peer in datagrams.
    pub(super) fn peer_number(&self) -> u64 {
        self.handshaker.peer_number()
    }

    /// The session in which datagrams are sent.
    pub(super) fn current(&mut self) -> Option<&mut Session> {
        self.current.as_mut()
    }

    /// Whether the peer has sent anything in the session in which datagrams are sent.
    pub(super) fn is_proved(&self) -> bool {
        self.current.as_ref().is_some_and(|session| session.proved)
    }

    fn session_name(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        u32::from(self.index) << SERIAL_BITS | u32::from(self.serial)
    }

    /// Handles a datagram of a handshake; `reply` is given the answer.
    pub(super) fn receive(
        &mut self,
        now: Time,
        header: &Handshake,
        datagram: &[u8],
        reply: &mut dyn FnMut(&[u8]),
    ) -> Effect {
        if !header.is_of_this_version() {
            return Effect::Rejected(Doubt::Version);
        }
        let Some(message) = self.handshaker.message(header, datagram) else {
            return Effect::Rejected(Doubt::Keys);
        };
        if header.encrypted() != self.pair().encrypt {
            return Effect::Rejected(Doubt::Encryption);
        }
        match header.step {
            Step::Initiation => self.respond(now, header, message, reply),
            Step::Response => self.finish(now, header, message),
            Step::Stale => self.renew(now, header, message),
        }
    }

    fn respond(
        &mut self,
        now: Time,
        header: &Handshake,
        message: &[u8],
        reply: &mut dyn FnMut(&[u8]),
    ) -> Effect {
        let young = |it: &Initiation| now < it.begun.after(INITIATION_LIFE);
        if self.handshaker.is_first() && self.initiation.as_ref().is_some_and(young) {
            return Effect::Noted;
        }
        let stamp = header.stamp.get();
        if stamp < self.peer_stamp {
            reply(&self.handshaker.stale(header, self.peer_stamp));
            return Effect::Replayed;
        }
        if stamp == self.peer_stamp {
            let Some(next) = &self.next else {
                return Effect::Replayed;
            };
            reply(&next.response);
            return Effect::Noted;
        }
        if now < self.answer_from {
            return Effect::Noted;
        }
        self.answer_from = now.after(ANSWER_INTERVAL);
        let own = self.session_name();
        let Ok((agreed, response)) = self.handshaker.respond(header, message, own) else {
            return Effect::Rejected(Doubt::Keys);
        };
        reply(&response);
        self.peer_stamp = stamp;
        let session = Session::new(own, agreed.session, now, agreed.keys);
        self.next = Some(Next { session, response });
        Effect::Noted
    }

    /// The initiation that a datagram answers, if it is the one that waits.
    fn answered(&mut self, header: &Handshake) -> Option<Initiation> {
        let stamp = header.stamp.get();
        let awaited = |initiation: &mut Initiation| initiation.session == header.session.get();
        self.initiation
            .take_if(|it| stamp == self.stamp && awaited(it))
    }

    fn finish(&mut self, now: Time, header: &Handshake, message: &[u8]) -> Effect {
        let Some(Initiation {
            initiated, session, ..
        }) = self.answered(header)
        else {
            return Effect::Replayed;
        };
        let Ok(agreed) = self.handshaker.finish(initiated, message) else {
            return Effect::Rejected(Doubt::Keys);
        };
        let session = Session::new(session, agreed.session, now, agreed.keys);
        self.previous = self.current.replace(session);
        Effect::Begun
    }

    /// The peer knows larger stamps: begins again above them.
    fn renew(&mut self, now: Time, header: &Handshake, message: &[u8]) -> Effect {
        let known = message.try_into().map(u64::from_le_bytes);
        let (Ok(known), Some(_)) = (known, self.answered(header)) else {
            return Effect::Replayed;
        };
        self.stamp = self.stamp.max(known);
        self.next_try = now;
        Effect::Noted
    }

    /// The session that has this name here.
    pub(super) fn session(&mut self, name: u32) -> Option<&mut Session> {
        let next = self.next.as_mut().map(|next| &mut next.session);
        let sessions = [next, self.current.as_mut(), self.previous.as_mut()];
        let mut sessions = sessions.into_iter().flatten();
        sessions.find(|session| session.own == name)
    }

    /// Opens a datagram in the session that it names. If that waits for a sign of life, this
    /// is it.
    pub(super) fn open<'a>(
        &mut self,
        header: &Header,
        datagram: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<Opened<'a>, Unopened> {
        let name = header.session.get();
        let session = self.session(name).ok_or(Unopened::Forged)?;
        let contents = session.open(header, datagram, scratch)?;
        let next = self.next.take_if(|next| next.session.own == name);
        let begun = next.is_some();
        if let Some(next) = next {
            self.previous = self.current.replace(next.session);
            self.initiation = None;
        }
        Ok(Opened { contents, begun })
    }

    /// Does what is due: forgets old keys, and asks for new ones if they are due or `wanted`.
    pub(super) fn tick(&mut self, now: Time, wanted: bool, send: &mut dyn FnMut(&[u8])) {
        let old = |session: &mut Session| now >= session.begun.after(SESSION_LIFE);
        self.previous.take_if(old);
        self.current.take_if(old);
        self.next.take_if(|next| old(&mut next.session));
        if now < self.next_try || !(wanted || self.is_rekey_due(now)) {
            return;
        }
        self.next_try = now.after(RETRY_INTERVAL);
        self.initiation
            .take_if(|it| now >= it.begun.after(INITIATION_LIFE));
        if self.initiation.is_none() {
            self.stamp = self.stamp.saturating_add(1);
            let session = self.session_name();
            // Without random numbers it is tried again.
            let initiated = self.handshaker.initiate(self.stamp, session).ok();
            self.initiation = initiated.map(|initiated| Initiation {
                initiated,
                session,
                begun: now,
            });
        }
        if let Some(initiation) = &self.initiation {
            send(&initiation.initiated.datagram);
        }
    }

    /// When the keys must be renewed, as they get old.
    fn rekey_at(&self) -> Option<Time> {
        let patience = if self.handshaker.is_first() {
            0
        } else {
            REKEY_PATIENCE
        };
        let current = self.current.as_ref()?;
        Some(match current.counter >= REKEY_DATAGRAMS {
            true => current.begun,
            false => current.begun.after(REKEY_AFTER + patience),
        })
    }

    fn is_rekey_due(&self, now: Time) -> bool {
        self.rekey_at().is_some_and(|due| now >= due)
    }

    /// When [`Keying::tick`] must be called at the latest, if keys are wanted from `wanted` on.
    pub(super) fn deadline(&self, wanted: Time) -> Time {
        let asks = self.rekey_at().map_or(wanted, |due| due.min(wanted));
        let asks = asks.max(self.next_try);
        let next = self.next.as_ref().map(|next| &next.session);
        let sessions = [next, self.current.as_ref(), self.previous.as_ref()];
        let ends = sessions.into_iter().flatten();
        let ends = ends.map(|session| session.begun.after(SESSION_LIFE));
        ends.fold(asks, Time::min)
    }
}

/// A datagram of a session.
pub(super) struct Opened<'a> {
    /// Its kind and its body, if the kind is known.
    pub(super) contents: Option<(Kind, &'a [u8])>,
    /// Its session has become the current one with it.
    pub(super) begun: bool,
}
