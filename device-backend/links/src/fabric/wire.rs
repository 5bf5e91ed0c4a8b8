//! The way from one NIC: by a call, over links, or to another process.

use qnic_abi::wire::{FrameHeader, HEADER_BYTES};
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, Host, HostMemory, Path, Payload, Time, Wire};
use zerocopy::IntoBytes;

use super::routes::Place;
use super::{Outside, Slot};
use crate::codec;
use crate::tap::{Marks, Outcome, Sighting};

/// A frame as taps see it; without its payload if that cannot be read.
#[cold]
fn image_to_show<M: HostMemory>(frame: &FrameHeader, payload: &Payload<'_, M>) -> Vec<u8> {
    let mut bytes = frame.as_bytes().to_vec();
    bytes.resize(HEADER_BYTES + payload.len(), 0);
    if payload.read(&mut bytes[HEADER_BYTES..]).is_err() {
        bytes.truncate(HEADER_BYTES);
    }
    bytes
}

/// The way from one NIC to the others.
#[derive(Debug)]
pub struct LocalWire<'a, H> {
    pub(super) now: Time,
    pub(super) node: NodeId,
    pub(super) outside: &'a mut Outside,
    /// The slots before and after that of the NIC.
    pub(super) before: &'a mut [Slot<H>],
    pub(super) after: &'a mut [Slot<H>],
}

impl<H: Host> LocalWire<'_, H> {
    /// Shows a frame that has passed at once to those who look.
    #[cold]
    fn show(&mut self, to: NodeId, bytes: &[u8], length: usize, taken: bool) {
        self.outside.network.show(&Sighting {
            at: self.now,
            from: self.node,
            to,
            outcome: match taken {
                true => Outcome::Passes,
                false => Outcome::Refused,
            },
            marks: Marks::empty(),
            bytes,
            length,
        });
    }

    /// Hands the frame over by a call.
    fn hand_over(
        &mut self,
        slot: usize,
        frame: &FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> bool {
        let this = self.before.len();
        let peer = match slot.checked_sub(this) {
            None => self.before.get_mut(slot),
            Some(0) => None,
            Some(distance) => self.after.get_mut(distance - 1),
        };
        match peer {
            Some(peer) if peer.nic.is_running() => {
                peer.nic.handle_frame(self.now, &peer.host, frame, payload);
                true
            }
            _ => false,
        }
    }
}

impl<H: Host> Wire<H::Memory> for LocalWire<'_, H> {
    fn path(&self, node: NodeId) -> Option<Path> {
        let perfect = match self.outside.routes.find(node)? {
            Place::Slot(_) => self.outside.network.is_fixed(),
            Place::Process { .. } => false,
        };
        Some(match perfect {
            true => Path::PERFECT,
            false => Path::UNKNOWN,
        })
    }

    fn send(&mut self, frame: &FrameHeader, payload: Payload<'_, H::Memory>, _: Channel) -> bool {
        let node = NodeId(frame.destination_node.get());
        let Some(place) = self.outside.routes.find(node) else {
            return false;
        };
        if !self.outside.network.is_clear(self.node, node) {
            if let Some(image) = codec::encode(frame, &payload) {
                let network = &mut self.outside.network;
                network.send(self.now, self.node, node, image);
            }
            return true;
        }
        let length = HEADER_BYTES + payload.len();
        let shown = self.outside.network.is_tapped();
        let shown = shown.then(|| image_to_show(frame, &payload));
        let taken = match place {
            Place::Slot(slot) => self.hand_over(slot, frame, payload),
            Place::Process { carrier, process } => {
                let carrier = &mut self.outside.carriers[carrier];
                carrier.send(self.now, process, &mut |buffer| {
                    codec::put_frame(buffer, frame, &payload).is_some()
                });
                true
            }
        };
        if let Some(bytes) = shown {
            self.show(node, &bytes, length, taken);
        }
        taken
    }
}
