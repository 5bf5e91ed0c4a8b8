//! Frames that come before others and are to be received in order (`core::early`).

use qnic_abi::wire::{Class, Frame};
use qnic_abi::Status;

use super::Nic;
use crate::core::TURN;
use crate::env::{Host, Payload, Time};
use crate::frame::{Arrival, StoredFrame};
use crate::ids::PeerIndex;
use crate::protocols::Received;

impl Nic {
    /// Keeps a frame that is to be received in order until what is missing before it has come: one of
    /// class Windowed in its place in the window, others up to a bound.
    #[cold]
    pub(super) fn keep_early<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        (class, index): (Class, PeerIndex),
        frame: &Frame,
        payload: Payload<'_, H::Memory>,
    ) {
        let windowed = class == Class::Windowed;
        let has_room = windowed || self.core.may_keep_early(index);
        if !self.transport.admit(now, index, frame, !has_room) {
            return;
        }
        let arrival = Arrival {
            peer: index,
            frame,
            payload,
            silenced: false,
            received: self.sample_arrival(host, frame),
        };
        let sequence = frame.envelope.sequence.get();
        let held = windowed.then(|| self.transport.hold(index, sequence));
        match (self.core.store(&arrival, held), held) {
            (Ok(stored), _) => self.core.keep_early(stored),
            (Err(_), Some(held)) => {
                let status = Status::PageUnavailable;
                self.transport.refuse_held(held, frame, status);
            }
            (Err(_), None) => {}
        }
    }

    /// Receives frames of a peer that were kept and are next: a few.
    #[cold]
    pub(super) fn receive_early<H: Host>(&mut self, now: Time, host: &H, index: PeerIndex) {
        let received = self.transport.received(index);
        for _ in 0..TURN {
            let Some(stored) = self.core.take_early(index, received) else {
                break;
            };
            self.receive_kept(now, host, stored);
        }
        self.core.note_due(index, received);
    }

    /// Receives frames of one peer that an earlier call has left. Returns true if there were any.
    pub(super) fn receive_due<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let Some(index) = self.core.next_due() else {
            return false;
        };
        self.receive_early(now, host, index);
        self.signal_due(host, index);
        true
    }

    fn receive_kept<H: Host>(&mut self, now: Time, host: &H, stored: Box<StoredFrame>) {
        let (protocols, mut cx) = self.parts(now, host);
        let windowed = stored.held.is_some();
        let arrival = Arrival {
            received: stored.received,
            ..stored.arrival()
        };
        let received = protocols.receive(&mut cx, &arrival);
        match received {
            Received::Done if stored.received.is_some() => self.sample_delivered(host, &arrival),
            _ if stored.received.is_some_and(|sampled| sampled.traced) => {
                self.trace_received(host, &arrival, received);
            }
            _ => {}
        }
        match received {
            Received::Wait(vni, range) if windowed => {
                self.wait_in_bounce_memory(vni, range, stored);
            }
            Received::Refuse(status) if windowed => self.refuse_stored(&stored, status),
            received => {
                self.keep_or_refuse::<H::Memory>(&stored.arrival(), received);
                self.drop_stored(host, &stored);
            }
        }
    }
}
