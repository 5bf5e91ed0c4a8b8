//! The wire of one NIC: a function call, emulated links, another engine, or another process.

use std::fmt::Debug;

use qnic_abi::wire::{Frame, HEADER_BYTES};
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, Host, Path, Payload, Receipt, Sent, Ticket, Time, Wire};

use super::engines::send_to_engine;
use super::routes::Route;
use super::slot::Slot;
use super::Switch;
use crate::codec::Packet;
use crate::siblings::Delivery;
use crate::tap::{Outcome, TapRecord};

/// The wire from one NIC to the others.
#[derive(Debug)]
pub struct LocalWire<'a, H: Host<Memory: Debug>> {
    pub(super) now: Time,
    pub(super) node: NodeId,
    pub(super) switch: &'a mut Switch<H::Memory>,
    /// The slots before and after that of the NIC.
    pub(super) before: &'a mut [Slot<H>],
    pub(super) after: &'a mut [Slot<H>],
}

impl<H: Host<Memory: Clone + Debug>> LocalWire<'_, H> {
    /// The slot of another NIC of this process.
    #[inline]
    fn other(&mut self, slot: usize) -> Option<&mut Slot<H>> {
        match slot.checked_sub(self.before.len()) {
            None => self.before.get_mut(slot),
            Some(0) => None,
            Some(distance) => self.after.get_mut(distance - 1),
        }
    }

    /// Gives the frame to a NIC of this process by a call. Returns false if there is no route
    /// to it.
    fn deliver(&mut self, slot: usize, packet: &Packet<'_, H::Memory>) -> bool {
        let (now, lossless) = (self.now, self.switch.network.is_fixed());
        self.switch.due.call(slot);
        let peer = self.other(slot);
        peer.is_some_and(|peer| peer.deliver(now, packet, lossless))
    }
}

/// Payload of a frame that is so long, whatever its body.
fn max_payload(frame: usize) -> u32 {
    frame.saturating_sub(HEADER_BYTES) as u32
}

impl<H: Host<Memory: Clone + Debug>> Wire<H::Memory> for LocalWire<'_, H> {
    fn path(&self, node: NodeId) -> Option<Path> {
        Some(match self.switch.routes.find(node)? {
            Route::Local(_) | Route::Sibling(_) if self.switch.network.is_fixed() => Path::LOSSLESS,
            Route::Local(_) | Route::Sibling(_) => Path::UNKNOWN,
            Route::Remote { carrier, process } => Path {
                lossless: false,
                max_payload: max_payload(self.switch.carriers[carrier].max_frame(process)),
            },
        })
    }

    fn send(&mut self, frame: &Frame, payload: Payload<'_, H::Memory>, channel: Channel) -> Sent {
        let packet = Packet::new(frame, payload);
        let (now, from, to) = (self.now, self.node, packet.destination());
        let Some(route) = self.switch.routes.find(to) else {
            return Sent::NoRoute;
        };
        let network = &mut self.switch.network;
        let channel = network.channel(channel);
        if !network.is_clear(from, to) {
            if let Some(image) = packet.encode() {
                network.send(now, (from, to), channel, image);
            }
            return Sent::Taken;
        }
        // Before the destination can change the memory that the payload lies in.
        let shown = network.is_tapped().then(|| packet.snapshot());
        let sent = match route {
            Route::Local(slot) => match self.deliver(slot, &packet) {
                true => Sent::Taken,
                false => Sent::NoRoute,
            },
            Route::Sibling(way) => {
                let delivery = match self.switch.network.is_fixed() {
                    true => Delivery::Lossless,
                    false => Delivery::Lossy,
                };
                let siblings = self.switch.siblings.as_mut();
                send_to_engine(siblings, way, delivery, channel, &packet)
            }
            Route::Remote { carrier, process } => {
                let carrier = &mut self.switch.carriers[carrier];
                carrier.send(now, process, channel, &mut |buffer| {
                    packet.append_to(buffer)
                });
                Sent::Taken
            }
        };
        if let Some(bytes) = shown {
            let mut record = TapRecord::passing(now, (from, to), &bytes);
            record.length = packet.length();
            if sent == Sent::NoRoute {
                record.outcome = Outcome::Refused;
            }
            self.switch.network.record(&record);
        }
        sent
    }

    /// The NIC that gives it needs no turn, if it was at rest before these frames, and they have left it
    /// nothing else to do.
    fn receipt(&mut self, node: NodeId) -> Option<Receipt> {
        let Some(Route::Local(slot)) = self.switch.routes.find(node) else {
            return None;
        };
        if !self.switch.network.is_fixed() {
            return None;
        }
        let from = self.node;
        let called = self.switch.due.is_called(slot);
        let peer = self.other(slot)?;
        let receipt = peer.receipt(from)?;
        if called && peer.nic.is_undisturbed() {
            self.switch.due.dismiss(slot);
        }
        Some(receipt)
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        let siblings = self.switch.siblings.as_ref();
        siblings.is_none_or(|siblings| siblings.is_done(ticket))
    }

    fn recall(&mut self) {
        if let Some(siblings) = &mut self.switch.siblings {
            siblings.recall(self.node);
        }
    }
}
