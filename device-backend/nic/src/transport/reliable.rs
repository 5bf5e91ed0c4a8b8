//! What a wire that is not perfect costs: copies, timers, sending again, probing
//! (U1 to U4, U10).
//!
//! ```text
//!   transmit ──► copy ──► wire         timer ──► lost ──► again, on the data channel
//!                  ▲                     ▲
//!    Ack: received, and what is beyond ──┴── arrived: copy and timer are free
//!
//!   owed an answer, and silence ──► probe … ──► peer_timeout ──► given up
//! ```
//! None of this runs on a perfect path: there are no copies and no timers there.

use qnic_abi::wire::{FrameFlags, FrameHeader, FrameKind};

use super::packets::Released;
use super::{header, PeerIndex};
use crate::env::{Channel, Host, Payload, Time, Wire};
use crate::nic::{Io, Nic};

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alarm {
    /// A packet that was not acknowledged.
    Packet(PeerIndex, u64),
    /// A peer that may be silent.
    Silence(PeerIndex),
}

impl Nic {
    /// Sends a numbered frame, and keeps a copy until it is received.
    pub(super) fn transmit_reliably<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        header: &mut FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> bool {
        let peer = &mut self.peers[index];
        header.payload_length = (payload.len() as u16).into();
        if peer.packets.queue(header, &payload).is_err() {
            return false;
        }
        let sequence = header.sequence.get();
        let sent = self.send_packet(io, index, sequence, Channel::of(payload.len()));
        if !sent {
            self.peers[index].packets.withdraw();
        }
        self.watch(io.now, index);
        sent
    }

    /// Sends a packet that is queued or waits to be sent again.
    fn send_packet<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        sequence: u64,
        channel: Channel,
    ) -> bool {
        let node = self.config.node;
        let peer = &mut self.peers[index];
        let oldest = peer.packets.first() == Some(sequence);
        let timeout = peer.round_trip.timeout(&self.config.limits, oldest);
        let mut header = match peer.packets.get_mut(sequence) {
            Some(packet) => packet.header,
            None => return true,
        };
        peer.address(node, &mut header);
        let Some(packet) = peer.packets.get_mut(sequence) else {
            return true;
        };
        let payload = match packet.payload.is_empty() {
            true => Payload::None,
            false => Payload::Bytes(&packet.payload),
        };
        if !io.wire.send(&header, payload, channel) {
            return false;
        }
        let alarm = Alarm::Packet(index, sequence);
        let timer = self.timers.check_in(io.now.after(timeout), alarm);
        self.peers[index].packets.sent(sequence, io.now, timer);
        true
    }

    /// Sends packets again that were lost, up to the bound of one poll. `false`: no
    /// way to the peer.
    pub(super) fn flush_lost<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
        busy: &mut bool,
    ) -> bool {
        for _ in 0..self.config.limits.frames_per_poll.max(1) {
            let Some(sequence) = self.peers[index].packets.next_waiting() else {
                break;
            };
            *busy = true;
            self.counters.frames_resent += 1;
            if !self.send_packet(io, index, sequence, Channel::Data) {
                return false;
            }
        }
        true
    }

    /// The peer has received everything up to `received`.
    #[cold]
    pub(super) fn release_packets(&mut self, now: Time, index: PeerIndex, received: u64) {
        let mut progress = false;
        while let Some(released) = self.peers[index].packets.release_first(received, now) {
            self.peers[index].round_trip.progress();
            self.peers[index].probes = 0;
            self.note_released(index, released);
            progress = true;
        }
        if progress {
            self.hasten_oldest(now, index);
        }
    }

    /// Lets the packet that has just become the oldest wait as long as the oldest does.
    fn hasten_oldest(&mut self, now: Time, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let timeout = peer.round_trip.timeout(&self.config.limits, true);
        if let Some((sequence, timer)) = peer.packets.oldest_in_flight() {
            self.timers.check_out(*timer);
            let alarm = Alarm::Packet(index, sequence);
            *timer = self.timers.check_in(now.after(timeout), alarm);
        }
    }

    fn note_released(&mut self, index: PeerIndex, released: Released) {
        if let Some(timer) = released.timer {
            self.timers.check_out(timer);
        }
        if let Some(round_trip) = released.round_trip {
            self.peers[index].round_trip.sample(round_trip);
        }
    }

    /// Takes the bit map of an Ack: what of a stretch beyond the first gap has arrived.
    /// Sends what must be lost again (U3).
    #[cold]
    pub(super) fn take_selective(&mut self, now: Time, index: PeerIndex, frame: &FrameHeader) {
        let base = frame.acknowledge.get().saturating_add(2);
        let base = base.saturating_add(frame.offset.get());
        let words = [frame.length, frame.address, frame.key, frame.argument];
        let mut last = 0;
        for (number, word) in (0..).zip(words) {
            let mut word = word.get();
            while word != 0 {
                let sequence = base.saturating_add(number * 64 + u64::from(word.trailing_zeros()));
                word &= word - 1;
                last = sequence;
                let released = self.peers[index].packets.arrive(sequence, now);
                self.note_released(index, released);
            }
        }
        // A wire may reorder: what was sent just now is late, not lost.
        let trip = self.peers[index].round_trip.usual();
        let latest = Time(now.0.saturating_sub(trip));
        let mut from = 0;
        while let Some(sequence) = self.peers[index].packets.find_lost(from, last, latest) {
            from = sequence + 1;
            self.lose(index, sequence);
        }
    }

    fn lose(&mut self, index: PeerIndex, sequence: u64) {
        if let Some(timer) = self.peers[index].packets.lose(sequence) {
            self.timers.check_out(timer);
            self.peers.hurry(index);
        }
    }

    /// Works off the timers that have expired.
    pub(crate) fn expire_timers<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let mut busy = false;
        while let Some(alarm) = self.timers.pop_due(now) {
            busy = true;
            match alarm {
                Alarm::Packet(index, sequence) => self.packet_expired(index, sequence),
                Alarm::Silence(index) => self.look_after(now, host, index),
            }
        }
        busy
    }

    fn packet_expired(&mut self, index: PeerIndex, sequence: u64) {
        let peer = &mut self.peers[index];
        // The timer is out of the wheel already.
        if peer.packets.lose(sequence).is_some() {
            self.counters.resend_timeouts += 1;
            if peer.packets.first() == Some(sequence) {
                peer.round_trip.back_off();
            }
            self.peers.hurry(index);
        }
    }

    /// Makes sure that the silence of a peer that owes an answer is noticed.
    pub(super) fn watch(&mut self, now: Time, index: PeerIndex) {
        let peer = &mut self.peers[index];
        if peer.watch.is_none() {
            // Nothing was owed before: it had no reason to speak.
            peer.heard = peer.heard.max(now);
            self.arm(now, index);
        }
    }

    fn arm(&mut self, now: Time, index: PeerIndex) {
        let limits = &self.config.limits;
        let peer = &mut self.peers[index];
        let trip = peer.round_trip.timeout(limits, false);
        let interval = trip.saturating_mul(1 << peer.probes.min(16));
        let interval = interval.min(limits.peer_timeout / 8);
        let until = now.after(interval.max(1));
        peer.watch = Some(self.timers.check_in(until, Alarm::Silence(index)));
    }

    /// Greets again, probes, or gives a peer up that says nothing.
    fn look_after<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let node = self.peers[index].node;
        let importing = self.imports.waits_for(node);
        let timeout = self.config.limits.peer_timeout;
        let peer = &mut self.peers[index];
        peer.watch = None;
        let owed = peer.is_owed() || importing;
        if !owed && !peer.greeted {
            return;
        }
        let silent = now.0.saturating_sub(peer.heard.0);
        if silent >= timeout {
            self.counters.peers_given_up += 1;
            return self.peer_unreachable(now, host, index);
        }
        if peer.greeted {
            peer.round_trip.back_off();
            peer.greet = true;
        } else if silent
            >= peer
                .round_trip
                .timeout(&self.config.limits, false)
                .min(timeout / 8)
        {
            // What it said last may be lost, and it owes nothing that it knows of.
            peer.probe = true;
            peer.probes = peer.probes.saturating_add(1);
        }
        self.peers.hurry(index);
        self.arm(now, index);
    }

    /// Sends an Ack: with what has arrived beyond a gap, and a question if one is due; more
    /// if one cannot tell all of which the peer may not know.
    pub(super) fn send_acknowledgement<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        index: PeerIndex,
    ) -> bool {
        loop {
            let mut ack = header(FrameKind::Ack);
            let peer = &mut self.peers[index];
            if std::mem::take(&mut peer.probe) {
                ack.flags = FrameFlags::PROBE.bits().into();
            }
            if let Some((offset, [a, b, c, d])) = peer.receive.take_beyond() {
                ack.offset = offset.into();
                ack.length = a.into();
                ack.address = b.into();
                ack.key = c.into();
                ack.argument = d.into();
            }
            self.counters.acknowledgements += 1;
            if !self.put(io, index, &mut ack, Payload::None) {
                return false;
            }
            if !self.peers[index].receive.has_unknown() {
                return true;
            }
        }
    }

    /// Forgets the copies and timers of a peer.
    pub(crate) fn forget_packets(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let watch = peer.watch.take();
        for timer in peer.packets.clear().into_iter().chain(watch) {
            self.timers.check_out(timer);
        }
    }
}
