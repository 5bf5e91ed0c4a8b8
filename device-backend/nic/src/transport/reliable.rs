//! Reliable delivery on routes that may lose frames: copies, timers, sending again, probing (U1 to
//! U4, U10).
//!
//! ```text
//!   put ──► copy ──► wire              timer ──► lost ──► again, on the data channel
//!             ▲                          ▲
//!    Ack: received, and what is beyond ──┴── arrived: copy and timer are free
//!
//!   owes an answer, and silence ──► probe … ──► peer_timeout ──► given up
//! ```
//! On a lossless route there are neither copies nor timers.

use qnic_abi::wire::{Ack, Frame};
use qnic_shared::timing::Acknowledged;

use super::packets::Released;
use super::Transport;
use crate::config::retransmission;
use crate::env::{Channel, HostMemory, Payload, Sent, Time, Wire};
use crate::ids::PeerIndex;

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A packet that was not acknowledged.
    Packet(PeerIndex, u64),
    /// A peer that may be silent.
    Silence(PeerIndex),
    /// All peers, of which some may leave.
    Sweep,
    /// Nodes without a route that something waits for.
    Unreached,
}

/// A timer that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The transport has done what is to be done.
    Done,
    /// The caller has to look whether a peer is silent: [`Transport::check_silence`].
    Silence(PeerIndex),
    /// The caller has to look which peers may leave: [`Transport::sweep`].
    Sweep,
    /// The caller has to look which nodes are waited for: [`Transport::look_for_unreached`].
    Unreached,
}

/// How often a peer is asked and says nothing, before it is given up. It is asked more often in
/// [`Limits::peer_timeout`](crate::Limits::peer_timeout), unless this engine did not run
/// meanwhile.
const MIN_ASKED: u32 = 3;

impl Transport {
    /// Sends a numbered frame, and keeps a copy until it is received.
    pub(super) fn transmit_reliably<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
        frame: &mut Frame,
        payload: Payload<'_, M>,
    ) -> bool {
        let peer = &mut self.peers[index];
        if peer.packets.queue(frame, &payload).is_err() {
            return false;
        }
        let length = usize::from(frame.envelope.payload_length.get());
        let sent = self.send_packet(now, wire, index, frame, Channel::of(length));
        if !sent {
            self.peers[index].packets.withdraw();
        }
        self.watch(now, index);
        sent
    }

    /// Sends a packet that is queued or waits to be sent again; `frame` is its frame.
    fn send_packet<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
        frame: &mut Frame,
        channel: Channel,
    ) -> bool {
        let sequence = frame.envelope.sequence.get();
        let peer = &mut self.peers[index];
        let oldest = peer.packets.first() == Some(sequence);
        let timeout = peer
            .round_trip
            .timeout(&retransmission(&self.limits), oldest);
        peer.address(self.node, frame);
        let Some(packet) = peer.packets.get_mut(sequence) else {
            return true;
        };
        let payload = match packet.payload.is_empty() {
            true => Payload::None,
            false => Payload::Bytes(&packet.payload),
        };
        if wire.send(frame, payload, channel) == Sent::NoRoute {
            return false;
        }
        let alarm = Alarm::Packet(index, sequence);
        let timer = self.timers.check_in(now.after(timeout), alarm);
        self.peers[index].packets.sent(sequence, now, timer);
        true
    }

    /// Returns true if packets to a peer were lost that have to be sent again.
    #[inline]
    pub(crate) fn has_lost(&self, index: PeerIndex) -> bool {
        self.peers[index].may_resend()
    }

    /// Sends packets again that were lost, up to the bound of one poll. Returns false if
    /// there is no route to the peer. `resent` is told of each.
    pub(crate) fn send_lost<M: HostMemory, W: Wire<M>>(
        &mut self,
        now: Time,
        wire: &mut W,
        index: PeerIndex,
        resent: &mut dyn FnMut(&Frame),
    ) -> bool {
        for _ in 0..self.limits.fragments_per_poll.max(1) {
            let peer = &mut self.peers[index];
            if !peer.may_resend() {
                break;
            }
            let Some(mut frame) = peer.packets.next_waiting() else {
                break;
            };
            self.counters.frames_resent += 1;
            peer.resent += 1;
            resent(&frame);
            if !self.send_packet(now, wire, index, &mut frame, Channel::Data) {
                return false;
            }
        }
        true
    }

    /// The peer has received everything up to `received`.
    #[cold]
    pub(super) fn release_packets(&mut self, now: Time, index: PeerIndex, received: u64) {
        let mut news = Acknowledged::default();
        let mut progress = false;
        while let Some(released) = self.peers[index].packets.release_first(received, now) {
            let peer = &mut self.peers[index];
            peer.round_trip.progress();
            peer.probes = 0;
            self.note_released(now, index, released, &mut news);
            progress = true;
        }
        if progress {
            self.hasten_oldest(now, index);
            self.released(now, index, news);
        }
    }

    /// Fewer frames are on the wire: lets those go on that waited for that.
    fn released(&mut self, now: Time, index: PeerIndex, news: Acknowledged) {
        let peer = &mut self.peers[index];
        let used = peer.in_flight();
        let queue_delay = self.limits.queue_delay;
        peer.congestion.sample(now, news, used, queue_delay);
        if news.frames > 0 {
            peer.progress_at = now;
        }
        if self.peers[index].may_resend() {
            self.peers.mark_urgent(index);
        }
        self.unblock(index);
    }

    /// Lets the packet that has just become the oldest wait as long as the oldest does.
    fn hasten_oldest(&mut self, now: Time, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let timeout = peer.round_trip.timeout(&retransmission(&self.limits), true);
        if let Some((sequence, timer)) = peer.packets.oldest_in_flight() {
            self.timers.check_out(*timer);
            let alarm = Alarm::Packet(index, sequence);
            *timer = self.timers.check_in(now.after(timeout), alarm);
        }
    }

    fn note_released(
        &mut self,
        now: Time,
        index: PeerIndex,
        released: Released,
        news: &mut Acknowledged,
    ) {
        if let Some(timer) = released.timer {
            self.timers.check_out(timer);
            news.frames += 1;
        }
        if let Some(round_trip) = released.round_trip {
            let peer = &mut self.peers[index];
            peer.round_trip.sample(round_trip);
            let queued = released.queued && now.0.saturating_sub(round_trip) >= peer.pushed_at.0;
            if queued {
                news.trip = news.trip.min(round_trip);
            }
        }
    }

    /// Takes the bitmap of an Ack: what of a stretch beyond the first gap has arrived.
    /// Sends what must be lost again (U3).
    #[cold]
    pub(super) fn receive_sack(
        &mut self,
        now: Time,
        index: PeerIndex,
        acknowledge: u64,
        ack: &Ack,
    ) {
        let base = acknowledge.saturating_add(2 + u64::from(ack.offset.get()));
        let mut last = 0;
        let mut news = Acknowledged::default();
        for (number, word) in (0..).zip(ack.bitmap) {
            let mut word = word.get();
            while word != 0 {
                let sequence = base.saturating_add(number * 64 + u64::from(word.trailing_zeros()));
                word &= word - 1;
                last = sequence;
                let released = self.peers[index].packets.arrive(sequence, now);
                self.note_released(now, index, released, &mut news);
            }
        }
        // A wire may reorder: what was sent just now is late, not lost.
        let trip = self.peers[index].round_trip.typical();
        let latest = Time(now.0.saturating_sub(trip));
        let mut from = 0;
        while let Some(sequence) = self.peers[index].packets.find_lost(from, last, latest) {
            from = sequence + 1;
            self.lose(now, index, sequence);
        }
        self.released(now, index, news);
    }

    fn lose(&mut self, now: Time, index: PeerIndex, sequence: u64) {
        let peer = &mut self.peers[index];
        if let Some(timer) = peer.packets.lose(sequence) {
            peer.congestion.lost(now, peer.round_trip.typical());
            self.timers.check_out(timer);
            self.peers.mark_urgent(index);
        }
    }

    /// Handles the next timer that has expired.
    #[inline]
    pub(crate) fn expire(&mut self, now: Time) -> Option<Expired> {
        Some(match self.timers.pop_due(now)? {
            Alarm::Silence(index) => Expired::Silence(index),
            Alarm::Sweep => Expired::Sweep,
            Alarm::Unreached => Expired::Unreached,
            Alarm::Packet(index, sequence) => {
                self.packet_expired(now, index, sequence);
                Expired::Done
            }
        })
    }

    fn packet_expired(&mut self, now: Time, index: PeerIndex, sequence: u64) {
        let peer = &mut self.peers[index];
        let oldest = peer.packets.first() == Some(sequence);
        let late = peer.progress_at.after(
            peer.round_trip
                .timeout(&retransmission(&self.limits), oldest),
        );
        if late > now {
            // What is before it is still arriving.
            let alarm = Alarm::Packet(index, sequence);
            let timers = &mut self.timers;
            if peer
                .packets
                .wait_on(sequence, || timers.check_in(late, alarm))
            {
                return;
            }
        }
        // The timer is out of the wheel already.
        if peer.packets.lose(sequence).is_some() {
            self.counters.resend_timeouts += 1;
            peer.congestion.lost(now, peer.round_trip.typical());
            peer.pushed_at = now;
            if oldest {
                peer.round_trip.back_off();
            }
            self.peers.mark_urgent(index);
        }
    }

    /// Makes sure that the silence of a peer that owes an answer is noticed.
    pub(super) fn watch(&mut self, now: Time, index: PeerIndex) {
        let peer = &mut self.peers[index];
        if peer.watch.is_none() {
            // It owed nothing before: it had no reason to speak.
            peer.last_received = peer.last_received.max(now);
            self.arm(now, index);
        }
    }

    fn arm(&mut self, now: Time, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let trip = peer
            .round_trip
            .timeout(&retransmission(&self.limits), false);
        let interval = trip.saturating_mul(1 << peer.probes.min(16));
        let interval = interval.min(self.limits.peer_timeout / 8);
        let until = now.after(interval.max(1));
        peer.watch = Some(self.timers.check_in(until, Alarm::Silence(index)));
    }

    /// Sends a Hello again to a peer that says nothing, or probes it. Returns false if
    /// it has been silent for too long and has to be given up: this side has asked in vain
    /// all the time, and did not merely sleep. `awaited`: a protocol waits for an answer of
    /// it.
    pub(crate) fn check_silence(&mut self, now: Time, index: PeerIndex, awaited: bool) -> bool {
        let timeout = self.limits.peer_timeout;
        let peer = &mut self.peers[index];
        peer.watch = None;
        if peer.given_up.is_some() {
            self.ask(now, index);
            return true;
        }
        if !peer.owes_anything() && !awaited && !peer.hello_sent {
            return true;
        }
        let silent = now.0.saturating_sub(peer.last_received.0);
        if peer.last_received > peer.asked_at {
            peer.asked = 0;
        }
        if silent >= timeout && peer.asked >= MIN_ASKED {
            self.counters.peers_given_up += 1;
            return false;
        }
        let trip = peer
            .round_trip
            .timeout(&retransmission(&self.limits), false);
        if peer.hello_sent {
            peer.round_trip.back_off();
            peer.hello_pending = true;
        } else if silent >= trip.min(timeout / 8) {
            // What it said last may be lost, and it owes nothing that it knows of.
            peer.probe = true;
            peer.pushed_at = now;
            peer.probes = peer.probes.saturating_add(1);
        }
        peer.asked = peer.asked.saturating_add(1);
        peer.asked_at = now;
        self.peers.mark_urgent(index);
        self.arm(now, index);
        true
    }

    /// Forgets the copies and timers of a peer.
    pub(super) fn forget_packets(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let watch = peer.watch.take();
        for timer in peer.packets.clear().into_iter().chain(watch) {
            self.timers.check_out(timer);
        }
    }
}
