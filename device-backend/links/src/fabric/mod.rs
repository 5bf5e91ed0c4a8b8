//! The NICs of one process, and the router that takes their frames.
//!
//! ```text
//!   Fabric   slot 0          slot 1          slot 2
//!          ┌────────────┐  ┌────────────┐  ┌────────────┐
//!          │ Nic, Host  │  │ Nic, Host  │  │ Nic, Host  │
//!          └─────┬──────┘  └─────▲──────┘  └────────────┘
//!                │ poll          │ handle_frame, while the payload still lies in
//!                ├──[LocalWire]──┤ slot 0's memory: one copy in all
//!                │               │
//!                ├─[Network]─────┤ a link on the way is impaired: the frame as bytes,
//!                │     │         │ with a checksum
//!                └─────┴─[Carrier]──► NICs of other processes
//! ```
//!
//! Where no link on the way is impaired, sending to a NIC of this process is a call:
//! when it returns, the peer has taken the frame, and the payload was copied straight
//! from the sending node's memory to the receiving one's. The peer answers with its
//! own next poll, so calls do not nest. Frames are then neither lost nor reordered;
//! there is no way to a NIC that is not running. Such a way is perfect if it stays so:
//! if [`Fabric::join`] has not made links of it that can be changed at run time.
//!
//! Everything else arrives with [`Fabric::receive`].

mod routes;
mod wire;

use qnic_abi::wire::FrameHeader;
use qnic_abi::NodeId;
use qnic_nic::env::{Host, Payload, Time};
use qnic_nic::{Nic, Progress};

use crate::carrier::Carrier;
use crate::codec;
use crate::network::{LinkSet, Network, NetworkPlan, NotSet};
use crate::tap::{Tap, TapId};
use routes::{Place, Routes};
pub use wire::LocalWire;

/// Two NICs have the same node number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is in the fabric already")]
pub struct DuplicateNode(pub NodeId);

/// The NICs of one process and the nodes they serve.
#[derive(Debug)]
pub struct Fabric<H> {
    slots: Vec<Slot<H>>,
    outside: Outside,
}

#[derive(Debug)]
struct Slot<H> {
    nic: Nic,
    host: H,
}

/// What lies between the NICs.
#[derive(Debug, Default)]
struct Outside {
    routes: Routes,
    network: Network,
    carriers: Vec<Box<dyn Carrier>>,
    /// Frames from other processes that were for no NIC here, or not from a NIC
    /// of the process that sent them.
    misdirected: u64,
}

impl<H: Host> Fabric<H> {
    /// A fabric without NICs.
    pub fn new() -> Self {
        Fabric {
            slots: Vec::new(),
            outside: Outside::default(),
        }
    }

    /// Adds a NIC and its node; slots are numbered from 0 in this order.
    ///
    /// # Errors
    /// [`DuplicateNode`] if another NIC has that node number.
    pub fn add(&mut self, nic: Nic, host: H) -> Result<usize, DuplicateNode> {
        let slot = self.slots.len();
        let node = nic.geometry().node;
        self.outside.routes.add(node, Place::Slot(slot))?;
        self.slots.push(Slot { nic, host });
        Ok(slot)
    }

    /// Adds a way to other processes, with the nodes that each of them has.
    ///
    /// # Errors
    /// [`DuplicateNode`] if a node is there already.
    pub fn connect(
        &mut self,
        carrier: Box<dyn Carrier>,
        processes: &[Vec<NodeId>],
    ) -> Result<(), DuplicateNode> {
        let place = self.outside.carriers.len();
        self.outside.carriers.push(carrier);
        for (process, nodes) in processes.iter().enumerate() {
            let way = Place::Process {
                carrier: place,
                process,
            };
            for node in nodes {
                self.outside.routes.add(*node, way)?;
            }
        }
        Ok(())
    }

    /// Joins the NICs by links that can be changed: the way between any two is no
    /// longer perfect, as a conversation must survive what its links may come to do.
    /// Without this call, each NIC reaches each, and that cannot be changed.
    ///
    /// # Errors
    /// As [`Network::new`].
    pub fn join(&mut self, plan: &NetworkPlan) -> Result<(), String> {
        let local = self.slots.iter().map(|slot| slot.nic.geometry().node);
        self.outside.network = Network::new(plan, &local.collect::<Vec<_>>())?;
        Ok(())
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

    /// The links.
    pub fn network(&self) -> &Network {
        &self.outside.network
    }

    /// The links, to be changed.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.outside.network
    }

    /// Shows frames on these links to `tap`, until [`Network::untap`]. Without
    /// [`Fabric::join`], every two nodes have a link.
    ///
    /// # Errors
    /// [`NotSet::NoSuchLink`] if a node or a link is named and there is no such one.
    pub fn tap(&mut self, links: LinkSet, tap: Box<dyn Tap>) -> Result<TapId, NotSet> {
        let routes = &self.outside.routes;
        let known = |node| routes.find(node).is_some();
        let exist = match links {
            LinkSet::All => true,
            LinkSet::At(node) => known(node),
            LinkSet::OneWay(a, b) | LinkSet::Between(a, b) => a != b && known(a) && known(b),
        };
        match exist {
            true => self.outside.network.tap(links, tap),
            false => Err(NotSet::NoSuchLink),
        }
    }

    /// The ways to other processes.
    pub fn carriers(&self) -> &[Box<dyn Carrier>] {
        &self.outside.carriers
    }

    /// Frames from other processes that were for no NIC here, or not from a NIC of
    /// the process that sent them. They are ignored.
    pub fn misdirected(&self) -> u64 {
        self.outside.misdirected
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
            node: this[0].nic.geometry().node,
            outside: &mut self.outside,
            before,
            after,
        };
        work(&mut this[0].nic, &this[0].host, &mut wire)
    }

    /// Polls the NIC of a slot.
    pub fn poll(&mut self, slot: usize, now: Time) -> Progress {
        self.with(slot, now, |nic, host, wire| nic.poll(now, host, wire))
    }

    /// Takes in what has come over links and from other processes, and sends on what
    /// is due. Says whether there was anything.
    pub fn receive(&mut self, now: Time) -> bool {
        let Outside {
            routes,
            network,
            carriers,
            misdirected,
        } = &mut self.outside;
        let mut busy = false;
        while let Some((node, image)) = network.poll(now) {
            busy = true;
            // The network gives out only what decodes.
            let Ok((frame, payload)) = codec::decode(&image) else {
                continue;
            };
            match routes.find(node) {
                Some(Place::Slot(slot)) => deliver(&mut self.slots[slot], now, &frame, payload),
                Some(Place::Process { carrier, process }) => {
                    let payload = Payload::<H::Memory>::Bytes(payload);
                    carriers[carrier].send(now, process, &mut |buffer| {
                        codec::put_frame(buffer, &frame, &payload).is_some()
                    });
                }
                None => {}
            }
        }
        for (place, carrier) in carriers.iter_mut().enumerate() {
            let slots = &mut self.slots;
            busy |= carrier.receive(now, &mut |process, bytes| {
                let way = Place::Process {
                    carrier: place,
                    process,
                };
                let frame = codec::split_frame(bytes).ok();
                let frame = frame
                    .filter(|(frame, _)| routes.find(NodeId(frame.source_node.get())) == Some(way));
                let target = frame.and_then(|(frame, payload)| {
                    match routes.find(NodeId(frame.destination_node.get())) {
                        Some(Place::Slot(slot)) => Some((slot, frame, payload)),
                        _ => None,
                    }
                });
                match target {
                    Some((slot, frame, payload)) => {
                        if network.is_tapped() {
                            network.show_foreign(now, &frame, bytes);
                        }
                        deliver(&mut slots[slot], now, &frame, payload);
                    }
                    None => *misdirected += 1,
                }
            });
        }
        busy
    }

    /// Hands to the system what NICs have sent to other processes.
    pub fn flush(&mut self, now: Time) {
        for carrier in &mut self.outside.carriers {
            carrier.flush(now);
        }
    }

    /// Says that nothing will be polled for a while; `false` if something has come.
    pub fn prepare_sleep(&mut self) -> bool {
        let mut carriers = self.outside.carriers.iter_mut();
        carriers.all(|carrier| carrier.prepare_sleep())
    }

    /// When a NIC must be polled, or [`Fabric::receive`] called, at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let nics = self.slots.iter().map(|slot| slot.nic.next_deadline());
        let carriers = self.outside.carriers.iter().map(|way| way.next_deadline());
        let network = self.outside.network.next_deadline();
        nics.chain(carriers).flatten().chain(network).min()
    }
}

impl<H: Host> Default for Fabric<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// Hands a frame that came as bytes to a NIC; one that stands still loses it.
fn deliver<H: Host>(slot: &mut Slot<H>, now: Time, frame: &FrameHeader, payload: &[u8]) {
    if !slot.nic.is_running() {
        return;
    }
    let payload = match payload {
        [] => Payload::None,
        bytes => Payload::Bytes(bytes),
    };
    slot.nic.handle_frame(now, &slot.host, frame, payload);
}

#[cfg(test)]
mod tests;
