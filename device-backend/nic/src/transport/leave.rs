//! Peers that leave: with which nothing is under way, on either side (X8).
//!
//! ```text
//!   this side                                     the peer
//!   quiet for a sweep: closed ──── Leave 1 ─────► quiet, too: its session ends, and it
//!   session ends ◄──────────────── Goodbye ────── forgets this side
//!   and forgets the peer
//!
//!   closed, and something is to be sent:
//!   Hello, leaves 1 ────────────────────────────► takes Leave 1 for void from now on
//!   open again ◄────────── HelloReply, leaves 1 ── or says that the session has ended
//! ```
//! A side that has asked sends nothing numbered until the peer has said whether the session goes
//! on. What the peer has said of a Leave holds: no Goodbye answers one that a HelloReply has
//! named as void, not even one that had arrived before the Hello and was not answered yet. So
//! nothing is ever sent into a session that the peer has ended, and when it has, nothing ran in
//! it: this side begins another one, larger than all before, and what waits for it is sent
//! there, once. A Leave that is late changes nothing: it is void, or names fewer frames than
//! have been sent since. Both sides count Leaves from the beginning of a session: a Hello that
//! names another session of its receiver makes none void in this one.
//!
//! *Quiet* is a peer that has delivered everything, and is owed nothing. While peers are so
//! many that they have to share windows or places, they are swept each
//! [`Limits::idle_peer`](crate::Limits::idle_peer); one leaves whose numbers have not changed
//! since the last sweep. Few peers stay, and no timer runs for them.
//!
//! Whether operations run with a peer is known only after a look at all operations. So a Leave is
//! looked at once in half of that time for each peer, and others are dropped: whoever means it
//! asks again with its next sweep.

use qnic_abi::wire::{Frame, Leave};

use super::reliable::Alarm;
use super::Transport;
use crate::env::{HostMemory, Payload, Sent, Time, Wire};
use crate::ids::PeerIndex;

/// Longest time in nanoseconds for which Leaves of a peer are dropped after one that was looked
/// at.
const LONGEST_PAUSE: u64 = 5_000_000_000;

/// How far leaving has come, for one peer.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// This side has asked to leave, and sends nothing numbered.
    pub(super) closed: bool,
    /// How often it has asked in this session.
    pub(super) count: u32,
    /// It has to ask, once more.
    pub(super) due: bool,
    /// The last Leave of the peer that is to be looked at with the next flush.
    asked: u32,
    /// Before this time, no other one is.
    next_look: Time,
    /// What the peer has asked up to here counts no more.
    pub(super) void: u32,
    /// The numbers of both directions at the last sweep.
    mark: (u64, u64),
}

impl Leaving {
    /// Returns true if a Leave has to be sent, or was received.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.due | self.is_asked()
    }

    /// Returns true if the peer has asked, and has not taken that back.
    #[inline]
    fn is_asked(&self) -> bool {
        self.asked > self.void
    }
}

impl Transport {
    /// Makes sure that peers are swept, if they are many.
    pub(super) fn schedule_sweep(&mut self, now: Time) {
        if !self.sweeping && self.peers.is_crowded() {
            self.sweeping = true;
            let next = now.after(self.limits.idle_peer.max(1));
            self.timers.check_in(next, Alarm::Sweep);
        }
    }

    /// Looks at all peers. Returns those that may leave, if nothing else refers to them.
    #[cold]
    pub(crate) fn sweep(&mut self, now: Time) -> Vec<PeerIndex> {
        self.sweeping = false;
        let mut peers = self.peers.all();
        let crowded = self.peers.is_crowded();
        self.schedule_sweep(now);
        peers.retain(|index| {
            if !crowded || self.is_own(*index) {
                return false;
            }
            let peer = &mut self.peers[*index];
            let numbers = (peer.send.next(), peer.receive.received());
            let unchanged = std::mem::replace(&mut peer.leaving.mark, numbers) == numbers;
            unchanged && peer.is_quiet()
        });
        peers
    }

    /// Asks a peer to leave. One whose session is not known need not be asked: returns
    /// true if it can go.
    pub(crate) fn leave(&mut self, index: PeerIndex) -> bool {
        let peer = &mut self.peers[index];
        if !peer.session.is_known() {
            return true;
        }
        if !peer.leaving.closed {
            peer.leaving.closed = true;
            peer.leaving.count += 1;
            peer.send.close();
        }
        peer.leaving.due = true;
        self.peers.mark_urgent(index);
        false
    }

    /// Asks, if that is due. Returns false if there is no route to the peer.
    pub(crate) fn send_leave<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
    ) -> bool {
        let peer = &mut self.peers[index];
        if !std::mem::take(&mut peer.leaving.due) || !peer.leaving.closed {
            return true;
        }
        let mut leave = Frame::new(&Leave {
            leaves: peer.leaving.count.into(),
            reserved: 0.into(),
            next: peer.send.next().into(),
        });
        self.put(now, wire, index, &mut leave, Payload::None) != Sent::NoRoute
    }

    /// A peer asks. It is answered with the next flush, if it still can leave then.
    #[cold]
    pub(super) fn receive_leave(&mut self, index: PeerIndex, frame: &Frame) {
        let leave: Leave = frame.body();
        let peer = &mut self.peers[index];
        let arrived = peer.receive.received() + 1 == leave.next.get();
        if arrived && peer.is_quiet() {
            peer.leaving.asked = peer.leaving.asked.max(leave.leaves.get());
            self.peers.mark_urgent(index);
        }
    }

    /// Returns true if a Leave has to be sent to a peer, or was received.
    #[inline]
    pub(crate) fn has_leave(&self, index: PeerIndex) -> bool {
        self.peers[index].leaving.is_pending()
    }

    /// Returns true if a peer has asked to leave, and it may unless something else refers to
    /// it: the caller has a look at all operations. If it asks over and over, that is true now and
    /// then only.
    pub(crate) fn take_asked(&mut self, now: Time, index: PeerIndex) -> bool {
        let pause = (self.limits.idle_peer / 2).min(LONGEST_PAUSE);
        let peer = &mut self.peers[index];
        let asked = peer.leaving.is_asked();
        peer.leaving.asked = 0;
        if !asked || !peer.is_quiet() || now < peer.leaving.next_look {
            return false;
        }
        peer.leaving.next_look = now.after(pause);
        true
    }

    /// Agrees: the session ends, and what the peer has sent in it counts no more.
    pub(crate) fn agree<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
    ) {
        self.send_goodbye(now, wire, index);
        let session = &mut self.peers[index].session;
        session.end_peer(session.peer(), session.own());
        self.end_session(index);
    }
}
