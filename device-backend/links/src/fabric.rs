//! The wire between the NICs of one process.
//!
//! ```text
//!   Fabric   slot 0          slot 1          slot 2
//!          ┌────────────┐  ┌────────────┐  ┌────────────┐
//!          │ Nic, Host  │  │ Nic, Host  │  │ Nic, Host  │
//!          └─────┬──────┘  └─────▲──────┘  └────────────┘
//!                │ poll          │ handle_frame, while the payload still lies in
//!                └──[LocalWire]──┘ slot 0's memory: one copy in all
//! ```
//!
//! Sending is a call: when it returns, the peer has taken the frame, and the
//! payload was copied straight from the sending node's memory to the receiving
//! one's. The peer answers with its own next poll, so calls do not nest. Frames
//! are neither lost nor reordered; there is no way to a NIC that is not running.

use qnic_abi::wire::FrameHeader;
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, Host, Path, Payload, Time, Wire};
use qnic_nic::{Nic, Progress};

/// Two NICs have the same node number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is in the fabric already")]
pub struct DuplicateNode(pub NodeId);

/// The NICs of one process and the nodes they serve.
#[derive(Debug)]
pub struct Fabric<H> {
    slots: Vec<Slot<H>>,
    routes: Routes,
}

#[derive(Debug)]
struct Slot<H> {
    nic: Nic,
    host: H,
}

/// Slot of each node, in the order of node numbers.
#[derive(Debug, Default)]
struct Routes(Vec<(NodeId, usize)>);

impl Routes {
    fn find(&self, node: NodeId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&node, |route| route.0)
    }

    fn slot(&self, node: NodeId) -> Option<usize> {
        self.find(node).ok().map(|place| self.0[place].1)
    }
}

impl<H: Host> Fabric<H> {
    /// A fabric without NICs.
    pub const fn new() -> Self {
        Fabric {
            slots: Vec::new(),
            routes: Routes(Vec::new()),
        }
    }

    /// Adds a NIC and its node; slots are numbered from 0 in this order.
    ///
    /// # Errors
    /// [`DuplicateNode`] if another NIC has that node number.
    pub fn add(&mut self, nic: Nic, host: H) -> Result<usize, DuplicateNode> {
        let node = nic.geometry().node;
        let Err(place) = self.routes.find(node) else {
            return Err(DuplicateNode(node));
        };
        let slot = self.slots.len();
        self.routes.0.insert(place, (node, slot));
        self.slots.push(Slot { nic, host });
        Ok(slot)
    }

    /// Number of NICs.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Says whether there is no NIC.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The NIC of a slot.
    ///
    /// # Panics
    /// As all methods that take a slot: if there is no such slot.
    pub fn nic(&self, slot: usize) -> &Nic {
        &self.slots[slot].nic
    }

    /// The node of a slot.
    pub fn host(&self, slot: usize) -> &H {
        &self.slots[slot].host
    }

    /// The node of a slot, to be changed.
    pub fn host_mut(&mut self, slot: usize) -> &mut H {
        &mut self.slots[slot].host
    }

    /// Calls `work` with the NIC of a slot, its node and its wire, at time `now`.
    pub fn with<R>(
        &mut self,
        slot: usize,
        now: Time,
        work: impl FnOnce(&mut Nic, &H, &mut LocalWire<'_, H>) -> R,
    ) -> R {
        let (before, rest) = self.slots.split_at_mut(slot);
        let (this, after) = rest.split_at_mut(1);
        let mut wire = LocalWire {
            now,
            routes: &self.routes,
            before,
            after,
        };
        work(&mut this[0].nic, &this[0].host, &mut wire)
    }

    /// Polls the NIC of a slot.
    pub fn poll(&mut self, slot: usize, now: Time) -> Progress {
        self.with(slot, now, |nic, host, wire| nic.poll(now, host, wire))
    }
}

impl<H: Host> Default for Fabric<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// The way from one NIC to the others of its process.
#[derive(Debug)]
pub struct LocalWire<'a, H> {
    now: Time,
    routes: &'a Routes,
    before: &'a mut [Slot<H>],
    after: &'a mut [Slot<H>],
}

impl<H: Host> Wire<H::Memory> for LocalWire<'_, H> {
    fn path(&self, node: NodeId) -> Option<Path> {
        self.routes.slot(node).map(|_| Path::PERFECT)
    }

    fn send(&mut self, frame: &FrameHeader, payload: Payload<'_, H::Memory>, _: Channel) -> bool {
        let node = NodeId(frame.destination_node.get());
        let Some(slot) = self.routes.slot(node) else {
            return false;
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_abi::wire::{FRAME_MAGIC, HEADER_BYTES, WIRE_VERSION};
    use qnic_nic::testing::{Memory, SimHost, Sram};
    use qnic_nic::{Limits, NicConfig};
    use zerocopy::FromZeros;

    const NOW: Time = Time(1);

    fn nic(node: u16) -> Nic {
        let config = NicConfig {
            node: NodeId(node),
            frames: 256,
            windows: 4,
            doorbells: 2,
            limits: Limits::default(),
        };
        Nic::new(config).unwrap()
    }

    fn host(nic: &Nic) -> SimHost {
        SimHost {
            sram: Sram::new(nic.geometry().sram_bytes as usize),
            memory: Memory::new(256 << 12),
        }
    }

    /// NICs of these nodes, the first `running` of them started.
    fn fabric(nodes: &[u16], running: usize) -> Fabric<SimHost> {
        let mut fabric = Fabric::new();
        for node in nodes {
            let nic = nic(*node);
            let host = host(&nic);
            fabric.add(nic, host).unwrap();
        }
        for slot in 0..running {
            fabric.with(slot, NOW, |nic, host, _| nic.start(NOW, host, 1));
        }
        fabric
    }

    /// A frame that any NIC refuses and counts.
    fn frame(source: u16, destination: u16) -> FrameHeader {
        let mut frame = FrameHeader::new_zeroed();
        assert_eq!(size_of_val(&frame), HEADER_BYTES);
        frame.magic = FRAME_MAGIC.into();
        frame.version = WIRE_VERSION;
        frame.kind = 255;
        frame.source_node = source.into();
        frame.destination_node = destination.into();
        frame
    }

    fn send(fabric: &mut Fabric<SimHost>, slot: usize, destination: u16) -> bool {
        let source = fabric.nic(slot).geometry().node.0;
        fabric.with(slot, NOW, |_, _, wire| {
            let frame = frame(source, destination);
            wire.send(&frame, Payload::None, Channel::Data)
        })
    }

    fn taken(fabric: &Fabric<SimHost>) -> Vec<u64> {
        (0..fabric.len())
            .map(|slot| fabric.nic(slot).statistics().malformed_frames.get())
            .collect()
    }

    #[test]
    fn frames_reach_their_node_whatever_the_order_of_slots() {
        let mut fabric = fabric(&[7, 3, 9], 3);
        assert!(send(&mut fabric, 0, 9));
        assert!(send(&mut fabric, 2, 3));
        assert!(send(&mut fabric, 1, 9));
        assert_eq!(taken(&fabric), [0, 1, 2]);
    }

    #[test]
    fn there_is_no_way_to_nobody_oneself_or_a_nic_that_stands_still() {
        let mut fabric = fabric(&[0, 1, 2], 2);
        for destination in [0, 2, 3, u16::MAX] {
            assert!(!send(&mut fabric, 0, destination), "{destination}");
        }
        assert_eq!(taken(&fabric), [0, 0, 0]);
    }

    #[test]
    fn a_node_is_there_once() {
        let mut fabric = fabric(&[4], 0);
        let host = host(fabric.nic(0));
        assert_eq!(fabric.add(nic(4), host), Err(DuplicateNode(NodeId(4))));
        assert_eq!(fabric.len(), 1);
    }
}
