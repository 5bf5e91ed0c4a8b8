//! Copies of frames that a peer has not received, for sending again (U2).
//!
//! ```text
//!          ┌──────────────── a frame is numbered
//!          ▼
//!        Queued ──sent──► InFlight ──its timer expires, or later──► Waiting
//!                          │   ▲      ones have arrived before it     │
//!                          │   └────────────── sent again ────────────┘
//!                 received ▼
//!        (free) ◄─────── Arrived ◄── received, while Waiting
//! ```
//! A packet is in exactly one state. It has a timer only in flight. A packet that has arrived before
//! an earlier one keeps its place, without its bytes, until the earlier one has arrived. Buffers are
//! used again.
//!
//! A small packet takes the priority channel and may overtake bulk (U4). So while bulk is in flight,
//! the arrival of a small packet neither shows a loss on the data channel nor measures its queues.

use std::collections::VecDeque;

use qnic_abi::wire::Frame;
use qnic_shared::timing::TimerId;

use crate::env::{Channel, HostMemory, OutOfRange, Payload, Time};

/// Frames sent after a packet that arrive before it make it count as lost.
const REORDER: u64 = 3;

/// Buffers kept for later packets.
const SPARE: usize = 256;

/// Where a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It was never sent.
    Queued,
    /// It was sent; the timer says when to give it up for lost.
    InFlight(TimerId),
    /// It has to be sent again.
    Waiting,
    /// The peer has it.
    Arrived,
}

/// A frame and a copy of its payload.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) frame: Frame,
    pub(crate) payload: Vec<u8>,
    pub(crate) state: State,
    /// When it was sent last.
    sent: Time,
    /// It never takes the priority channel.
    bulk: bool,
    /// Which transmission to this peer that was.
    order: u64,
    /// It was sent more than once.
    again: bool,
}

/// What an acknowledgement has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Released {
    /// A round trip, if one could be measured.
    pub(crate) round_trip: Option<u64>,
    /// It says how long the queues on the way are.
    pub(crate) queued: bool,
    /// A timer to check out.
    pub(crate) timer: Option<TimerId>,
}

/// The packets of one peer, by number.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    /// Number of the first.
    first: u64,
    packets: VecDeque<Packet>,
    /// Numbers of packets that wait to be sent again, or did when they were put here.
    waiting: VecDeque<u64>,
    spare: Vec<Vec<u8>>,
    /// Transmissions so far.
    order: u64,
    /// The latest transmission that has arrived; and of those of bulk.
    arrived: u64,
    arrived_bulk: u64,
    /// Packets in flight; and those of bulk.
    in_flight: u32,
    bulk_in_flight: u32,
}

impl Packets {
    /// Returns true if the peer has received everything.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns true if a packet waits to be sent again.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many packets are in flight that take a channel when they are sent first.
    #[inline]
    pub(crate) fn in_flight_on(&self, channel: Channel) -> u32 {
        match channel {
            Channel::Priority => self.in_flight - self.bulk_in_flight,
            Channel::Data => self.bulk_in_flight,
        }
    }

    /// Number of the oldest packet.
    pub(crate) fn first(&self) -> Option<u64> {
        (!self.packets.is_empty()).then_some(self.first)
    }

    /// Number and timer of the oldest packet, if it is in flight.
    pub(crate) fn oldest_in_flight(&mut self) -> Option<(u64, &mut TimerId)> {
        match self.packets.front_mut().map(|packet| &mut packet.state) {
            Some(State::InFlight(timer)) => Some((self.first, timer)),
            _ => None,
        }
    }

    /// Copies the frame with the next number.
    ///
    /// # Errors
    /// [`OutOfRange`] if its payload cannot be read; nothing has changed then.
    pub(crate) fn queue<M: HostMemory>(
        &mut self,
        frame: &Frame,
        payload: &Payload<'_, M>,
    ) -> Result<(), OutOfRange> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        payload.read_into(&mut bytes)?;
        if self.packets.is_empty() {
            self.first = frame.envelope.sequence.get();
        }
        self.packets.push_back(Packet {
            frame: *frame,
            payload: bytes,
            state: State::Queued,
            sent: Time::default(),
            bulk: Channel::of(payload.len()) == Channel::Data,
            order: 0,
            again: false,
        });
        Ok(())
    }

    /// Takes back the packet that was queued last and could not be sent.
    pub(crate) fn withdraw(&mut self) {
        self.packets.pop_back();
    }

    fn get(&self, sequence: u64) -> Option<&Packet> {
        let index = sequence.checked_sub(self.first)?;
        self.packets.get(usize::try_from(index).ok()?)
    }

    pub(crate) fn get_mut(&mut self, sequence: u64) -> Option<&mut Packet> {
        let index = sequence.checked_sub(self.first)?;
        self.packets.get_mut(usize::try_from(index).ok()?)
    }

    /// Notes that a packet was sent, with this timer.
    pub(crate) fn sent(&mut self, sequence: u64, now: Time, timer: TimerId) {
        self.order += 1;
        let order = self.order;
        if let Some(packet) = self.get_mut(sequence) {
            packet.again = packet.state != State::Queued;
            packet.state = State::InFlight(timer);
            packet.sent = now;
            packet.order = order;
            let bulk = packet.bulk;
            self.in_flight += 1;
            self.bulk_in_flight += u32::from(bulk);
        }
    }

    /// The latest transmission that has arrived of those that do not overtake a packet.
    fn arrived_behind(&self, packet: &Packet) -> u64 {
        let is_first = !packet.bulk && !packet.again;
        match is_first || self.bulk_in_flight == 0 {
            true => self.arrived,
            false => self.arrived_bulk,
        }
    }

    /// Gives a packet in flight whose timer has expired another one, if nothing has arrived
    /// that was sent after it: those before it may be slow.
    pub(crate) fn wait_on(&mut self, sequence: u64, check_in: impl FnOnce() -> TimerId) -> bool {
        let Some(arrived) = self.get(sequence).map(|packet| self.arrived_behind(packet)) else {
            return false;
        };
        let Some(packet) = self.get_mut(sequence) else {
            return false;
        };
        let waits = matches!(packet.state, State::InFlight(_)) && packet.order > arrived;
        if waits {
            packet.state = State::InFlight(check_in());
        }
        waits
    }

    /// Notes that a packet in flight is lost. Returns its timer.
    pub(crate) fn lose(&mut self, sequence: u64) -> Option<TimerId> {
        let packet = self.get_mut(sequence)?;
        let State::InFlight(timer) = packet.state else {
            return None;
        };
        packet.state = State::Waiting;
        let bulk = packet.bulk;
        self.in_flight -= 1;
        self.bulk_in_flight -= u32::from(bulk);
        self.waiting.push_back(sequence);
        Some(timer)
    }

    /// The frame of the next packet to be sent again.
    pub(crate) fn next_waiting(&mut self) -> Option<Frame> {
        loop {
            let sequence = self.waiting.pop_front()?;
            let packet = self.get_mut(sequence);
            if let Some(packet) = packet.filter(|packet| packet.state == State::Waiting) {
                return Some(packet.frame);
            }
        }
    }

    /// Takes the oldest packet out if its number is at most `received`.
    pub(crate) fn release_first(&mut self, received: u64, now: Time) -> Option<Released> {
        if self.packets.is_empty() || self.first > received {
            return None;
        }
        let released = self.arrive(self.first, now);
        self.packets.pop_front();
        self.first += 1;
        if self.packets.is_empty() {
            self.waiting.clear();
        }
        Some(released)
    }

    /// Notes that the peer has a packet.
    pub(crate) fn arrive(&mut self, sequence: u64, now: Time) -> Released {
        let mut released = Released::default();
        let Some(packet) = self.get_mut(sequence) else {
            return released;
        };
        match packet.state {
            State::Arrived | State::Queued => return released,
            State::InFlight(timer) => released.timer = Some(timer),
            State::Waiting => {}
        }
        packet.state = State::Arrived;
        if !packet.again {
            released.round_trip = Some(now.0.saturating_sub(packet.sent.0));
        }
        let (order, bulk) = (packet.order, packet.bulk);
        let buffer = std::mem::take(&mut packet.payload);
        released.queued = bulk || self.bulk_in_flight == 0;
        if released.timer.is_some() {
            self.in_flight -= 1;
            self.bulk_in_flight -= u32::from(bulk);
        }
        if bulk {
            self.arrived_bulk = self.arrived_bulk.max(order);
        }
        if self.spare.len() < SPARE && buffer.capacity() > 0 {
            self.spare.push(buffer);
        }
        self.arrived = self.arrived.max(order);
        released
    }

    /// The first packet from `from` up to `end` that is in flight since before
    /// `latest`, though ones that were sent later have arrived.
    pub(crate) fn find_lost(&self, from: u64, end: u64, latest: Time) -> Option<u64> {
        let start = usize::try_from(from.max(self.first) - self.first).ok()?;
        let lost = |packet: &Packet| {
            matches!(packet.state, State::InFlight(_))
                && packet.order + REORDER <= self.arrived_behind(packet)
                && packet.sent <= latest
        };
        let range = self.packets.iter().enumerate().skip(start);
        let mut numbered = range.map(|(index, packet)| (self.first + index as u64, packet));
        numbered
            .find(|(sequence, packet)| *sequence > end || lost(packet))
            .map(|(sequence, _)| sequence)
            .filter(|sequence| *sequence <= end)
    }

    /// Forgets all packets; returns the timers of those in flight.
    pub(crate) fn clear(&mut self) -> Vec<TimerId> {
        self.waiting.clear();
        self.in_flight = 0;
        self.bulk_in_flight = 0;
        let timers = self
            .packets
            .drain(..)
            .filter_map(|packet| match packet.state {
                State::InFlight(timer) => Some(timer),
                _ => None,
            });
        timers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;
    use qnic_abi::wire::{kind, Empty};
    use qnic_shared::timing::TimerWheel;

    /// Packets that were sent at 0, one on each of these channels.
    fn sent(channels: &[Channel]) -> Packets {
        let (mut packets, mut timers) = (Packets::default(), TimerWheel::new());
        for (sequence, channel) in (1..).zip(channels) {
            let mut frame = Frame::new(&Empty::<{ kind::GOODBYE }>);
            frame.envelope.sequence = sequence.into();
            let payload = match channel {
                Priority => Payload::<Memory>::None,
                Data => Payload::Bytes(&[1; 4096]),
            };
            packets.queue(&frame, &payload).unwrap();
            let timer = timers.check_in(Time(100), ());
            packets.sent(sequence, Time(0), timer);
        }
        packets
    }

    use Channel::{Data, Priority};

    /// U4: small frames that overtake bulk do not make it count as lost, and what they measure
    /// says nothing of the queue that it waits in.
    #[test]
    fn small_frames_say_nothing_of_bulk_that_they_overtake() {
        let mut packets = sent(&[Data, Priority, Priority, Priority, Priority]);
        for sequence in 2..=5 {
            assert!(!packets.arrive(sequence, Time(10)).queued);
        }
        assert_eq!(packets.find_lost(0, 5, Time(10)), None);
        assert_eq!(packets.in_flight_on(Data), 1);
        assert_eq!(packets.in_flight_on(Priority), 0);
        assert!(packets.arrive(1, Time(50)).queued);
    }

    #[test]
    fn what_is_behind_says_that_a_packet_is_lost() {
        for first in [Data, Priority] {
            let mut packets = sent(&[first, Data, Data, Data]);
            for sequence in 2..=4 {
                assert!(packets.arrive(sequence, Time(10)).queued);
            }
            assert_eq!(packets.find_lost(0, 4, Time(10)), Some(1));
        }
    }

    /// A small packet is sent again on the data channel: without bulk others overtake it there
    /// only if it is lost.
    #[test]
    fn a_small_packet_is_lost_again() {
        for (last, lost) in [(Priority, Some(1)), (Data, None)] {
            let mut packets = sent(&[Priority, last, Priority, Priority, Priority]);
            assert!(packets.lose(1).is_some() && packets.next_waiting().is_some());
            let timer = TimerWheel::new().check_in(Time(100), ());
            packets.sent(1, Time(0), timer);
            // Others have been sent since.
            packets.arrived = packets.order + REORDER;
            assert_eq!(packets.find_lost(0, 1, Time(10)), lost);
        }
    }
}
