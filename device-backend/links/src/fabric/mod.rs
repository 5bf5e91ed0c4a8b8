//! The NICs of one engine, and the router between them and to all others.
//!
//! ```text
//!   Fabric   slot 0          slot 1          slot 2
//!          ┌────────────┐  ┌────────────┐  ┌────────────┐
//!          │ Nic, Host  │  │ Nic, Host  │  │ Nic, Host  │
//!          └─────┬──────┘  └─────▲──────┘  └────────────┘
//!                │ poll          │ handle_frame, while the payload still lies in
//!                ├──[LocalWire]──┤ slot 0's memory: one copy in all
//!                │               │
//!                ├─[Network]─────┤ a link of the route is impaired: the frame as
//!                │     │         │ bytes, with a checksum
//!                ├─────┴─[Siblings]─► NICs of other engines of the process: the payload
//!                │                    lies in slot 0's memory until they have copied it
//!                └───────[Carrier]──► NICs of other processes
//! ```
//!
//! Where no link of the route is impaired, sending to a NIC of this fabric is a call.
//! When it returns, the peer has received the frame, and the payload was copied straight
//! from the memory of the sending node to that of the receiving one. The peer responds
//! with its own next poll, so calls do not nest. Frames are then neither lost nor reordered; there
//! is no route to a NIC that is not running. Such a route is *lossless* only if it stays so: if
//! [`Fabric::join`] has not made it a route over links that can be changed at run time. A route to
//! another engine is lossless under the same condition: its rings lose nothing, and frames that
//! find no route come back ([`siblings`](crate::siblings)).
//!
//! Everything else arrives with [`Fabric::receive`].
//!
//! The NIC of a node that stands still is suspended (module `slot`). Only NICs that have something
//! to do get turns (module `due`).

mod due;
mod engines;
mod ethernet;
mod routes;
mod slot;
mod wire;

use std::fmt::Debug;

use qnic_abi::NodeId;
use qnic_config::plan::NetworkPlan;
use qnic_nic::env::{Host, Time};
use qnic_nic::{Nic, Progress};

use crate::carrier::Carrier;
use crate::codec::{self, Packet};
use crate::link_set::LinkSet;
use crate::network::{LinkChange, LinkError, Network};
use crate::siblings::{Delivery, Siblings};
use crate::tap::{Tap, TapId};
use due::Due;
use engines::{send_to_engine, take_from_engine};
use routes::{Route, Routes};
use slot::Slot;
pub use wire::LocalWire;

/// Two NICs have the same node number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is in the fabric already")]
pub struct DuplicateNode(pub NodeId);

/// The NICs of one engine, and the nodes that they serve.
#[derive(Debug)]
pub struct Fabric<H: Host<Memory: Debug>> {
    slots: Vec<Slot<H>>,
    /// Slots that are suspended, or hold frames of before.
    standing: Vec<usize>,
    switch: Switch<H::Memory>,
    /// The addresses of Ethernet ports.
    ethernet: crate::ethernet::Switch,
}

/// What the NICs share.
#[derive(Debug)]
struct Switch<M: Debug> {
    routes: Routes,
    due: Due,
    network: Network,
    /// The other engines of the process, if there are any.
    siblings: Option<Siblings<M>>,
    carriers: Vec<Box<dyn Carrier>>,
    /// As [`Fabric::misdirected`].
    misdirected: u64,
}

impl<H: Host<Memory: Clone + Debug>> Fabric<H> {
    /// Adds a NIC and its node. Slots are numbered from 0 in this order.
    ///
    /// # Errors
    /// Returns [`DuplicateNode`] if another NIC has that node number.
    pub fn add(&mut self, nic: Nic, host: H) -> Result<usize, DuplicateNode> {
        let slot = self.slots.len();
        let node = nic.geometry().node;
        self.switch.routes.add(node, Route::Local(slot))?;
        self.slots.push(Slot::new(nic, host));
        self.switch.due.add();
        Ok(slot)
    }

    /// Adds a carrier to other processes, with the nodes of each of them.
    ///
    /// # Errors
    /// Returns [`DuplicateNode`] if a node is there already.
    pub fn connect(
        &mut self,
        carrier: Box<dyn Carrier>,
        processes: &[Vec<NodeId>],
    ) -> Result<(), DuplicateNode> {
        let index = self.switch.carriers.len();
        self.switch.carriers.push(carrier);
        for (process, nodes) in processes.iter().enumerate() {
            let carrier = index;
            let route = Route::Remote { carrier, process };
            for node in nodes {
                self.switch.routes.add(*node, route)?;
            }
        }
        Ok(())
    }

    /// Adds the other engines of the process, with the nodes of each, by its number; those of
    /// this one are left out.
    ///
    /// # Errors
    /// Returns [`DuplicateNode`] if a node is there already.
    pub fn join_engines(
        &mut self,
        siblings: Siblings<H::Memory>,
        engines: &[Vec<NodeId>],
    ) -> Result<(), DuplicateNode> {
        for (engine, nodes) in engines.iter().enumerate() {
            let Some(way) = siblings.way_to(engine) else {
                continue;
            };
            for node in nodes {
                self.switch.routes.add(*node, Route::Sibling(way))?;
            }
        }
        self.switch.siblings = Some(siblings);
        Ok(())
    }

    /// The other engines of the process.
    pub fn siblings(&self) -> Option<&Siblings<H::Memory>> {
        self.switch.siblings.as_ref()
    }

    /// Joins the NICs by links that can be changed at run time. No route is lossless any
    /// longer, since a session has to survive every change. Without this call each NIC
    /// reaches each other NIC, and that cannot be changed.
    ///
    /// # Errors
    /// As [`Network::new`].
    pub fn join(&mut self, plan: &NetworkPlan) -> Result<(), String> {
        let local = self.slots.iter().map(|slot| slot.nic.geometry().node);
        self.switch.network = Network::new(plan, &local.collect::<Vec<_>>())?;
        self.tell_ports();
        Ok(())
    }

    /// Changes links ([`Network::set`]), and tells each NIC that this cuts off or joins again.
    ///
    /// # Errors
    /// As [`Network::set`].
    pub fn set_links(
        &mut self,
        links: LinkSet,
        seed: Option<u64>,
        change: LinkChange,
    ) -> Result<usize, LinkError> {
        let changed = self.switch.network.set(links, seed, change);
        self.tell_ports();
        changed
    }

    fn tell_ports(&mut self) {
        for slot in 0..self.slots.len() {
            let node = self.nic(slot).geometry().node;
            let is_up = !self.switch.network.is_cut_off(node);
            self.nic_mut(slot).set_port(is_up);
        }
    }

    /// The NIC of a slot.
    ///
    /// # Panics
    /// As all methods that take a slot: if there is no such slot.
    pub fn nic(&self, slot: usize) -> &Nic {
        &self.slots[slot].nic
    }

    /// The NIC of a slot, to be changed; it is due then.
    pub fn nic_mut(&mut self, slot: usize) -> &mut Nic {
        self.make_due(slot);
        &mut self.slots[slot].nic
    }

    /// The node of a slot.
    pub fn host(&self, slot: usize) -> &H {
        &self.slots[slot].host
    }

    /// The node of a slot, to be changed; its NIC is due then. Frames whose payload lies in the
    /// node's memory are recalled before, so nothing reads that memory any more.
    pub fn host_mut(&mut self, slot: usize) -> &mut H {
        self.recall(slot);
        self.make_due(slot);
        &mut self.slots[slot].host
    }

    /// The links.
    pub fn network(&self) -> &Network {
        &self.switch.network
    }

    /// The links, to be changed.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.switch.network
    }

    /// Gives the frames on these links to `tap`, until [`Network::untap`]. Without
    /// [`Fabric::join`], every two nodes have a link.
    ///
    /// # Errors
    /// Returns [`LinkError::NoSuchLink`] if a node or a link is named and does not exist.
    pub fn tap(&mut self, links: LinkSet, tap: Box<dyn Tap>) -> Result<TapId, LinkError> {
        let routes = &self.switch.routes;
        let known = |node| routes.find(node).is_some();
        let exist = match links {
            LinkSet::All => true,
            LinkSet::At(node) => known(node),
            LinkSet::OneWay(a, b) | LinkSet::Between(a, b) => a != b && known(a) && known(b),
        };
        match exist {
            true => self.switch.network.tap(links, tap),
            false => Err(LinkError::NoSuchLink),
        }
    }

    /// The carriers to other processes.
    pub fn carriers(&self) -> &[Box<dyn Carrier>] {
        &self.switch.carriers
    }

    /// Frames from other processes whose destination is no NIC here, or whose source is
    /// no NIC of the process that sent them. They are dropped.
    pub fn misdirected(&self) -> u64 {
        self.switch.misdirected
    }

    /// The NIC of a slot has something to do.
    #[inline]
    pub fn make_due(&mut self, slot: usize) {
        self.switch.due.mark(slot);
    }

    /// The first slot from `from` on whose NIC has something to do. NICs that are not returned need
    /// no turn.
    #[inline]
    pub fn next_due(&self, from: usize) -> Option<usize> {
        self.switch.due.next(from)
    }

    /// The NIC of a slot has had its turn and found nothing. It needs none until it is due again:
    /// by a call of this fabric that changes it, by a frame, by its deadline, or by
    /// [`look`](Self::look); unless it has active command queues.
    pub fn rest(&mut self, slot: usize) {
        let suspended = self.is_suspended(slot);
        if suspended || !self.slots[slot].nic.wants_poll() {
            let deadline = self.slots[slot].deadline();
            self.switch.due.rest(slot, deadline);
            if !suspended && self.slots[slot].nic.has_idle_queues() {
                self.switch.due.watch(slot);
            }
        }
    }

    /// Looks for commands at NICs that are at rest and whose processes ring no doorbell yet, at
    /// `most` of them, in turn. Returns true if one has something to do: it is due then.
    pub fn look(&mut self, now: Time, most: usize) -> bool {
        let mut found = false;
        for _ in 0..most.min(self.switch.due.watched()) {
            let Some(slot) = self.switch.due.next_watched() else {
                break;
            };
            if !self.switch.due.is_marked(slot) {
                let it = &mut self.slots[slot];
                let time = it.time(now);
                if it.nic.look_at_idle_queues(time, &it.host) {
                    self.make_due(slot);
                    found = true;
                }
            }
            // One that is due looks itself.
            if self.switch.due.is_marked(slot) || !self.slots[slot].nic.has_idle_queues() {
                self.switch.due.unwatch(slot);
            }
        }
        found
    }

    /// Makes the NICs due at which [`look`](Self::look) would look: they have to [prepare to
    /// sleep](Nic::prepare_sleep), too.
    pub fn make_watched_due(&mut self) {
        self.switch.due.mark_watched();
    }

    /// Calls `work` with the time by the clock of a NIC, the NIC, its node and its wire, at
    /// time `now`. The NIC is due then.
    pub fn with<R>(
        &mut self,
        slot: usize,
        now: Time,
        work: impl FnOnce(Time, &mut Nic, &H, &mut LocalWire<'_, H>) -> R,
    ) -> R {
        self.make_due(slot);
        let (this, mut wire) = self.split(slot, now);
        let time = this.time(now);
        work(time, &mut this.nic, &this.host, &mut wire)
    }

    /// A slot, and the wire from it to the others.
    fn split(&mut self, slot: usize, now: Time) -> (&mut Slot<H>, LocalWire<'_, H>) {
        let (before, rest) = self.slots.split_at_mut(slot);
        let (this, after) = rest.split_at_mut(1);
        let this = &mut this[0];
        let wire = LocalWire {
            now,
            node: this.nic.geometry().node,
            switch: &mut self.switch,
            before,
            after,
        };
        (this, wire)
    }

    /// Polls the NIC of a slot, unless it is suspended.
    pub fn poll(&mut self, slot: usize, now: Time) -> Progress {
        if self.is_suspended(slot) {
            return Progress::Idle;
        }
        self.with(slot, now, |time, nic, host, wire| {
            nic.poll(time, host, wire)
        })
    }

    /// Copies what frames for other engines have left in the memory of a slot's node. When it
    /// returns, nothing reads that memory but the NIC of the slot.
    fn recall(&mut self, slot: usize) {
        let nic = &self.slots[slot].nic;
        if let (Some(siblings), true) = (&mut self.switch.siblings, nic.keeps_frames()) {
            siblings.recall(nic.geometry().node);
        }
    }

    /// The node of a slot stands still: from now on its NIC does nothing, and the NIC's clock does
    /// not go on. Its peers wait for it as for any silent node.
    pub fn suspend(&mut self, slot: usize, now: Time) {
        self.recall(slot);
        self.make_due(slot);
        self.slots[slot].suspend(now);
        if !self.standing.contains(&slot) {
            self.standing.push(slot);
        }
    }

    /// The node of a slot goes on where it was. What has arrived meanwhile over lossless
    /// routes is delivered, if the peers have not given it up.
    pub fn resume(&mut self, slot: usize, now: Time) {
        self.make_due(slot);
        self.slots[slot].resume(now);
    }

    /// Resets the NIC of a slot, suspended or not.
    pub fn reset(&mut self, slot: usize, now: Time) {
        self.slots[slot].forget(now);
        self.with(slot, now, |time, nic, host, wire| {
            nic.reset(time, host, wire)
        });
    }

    /// Returns true from [`Fabric::suspend`] to [`Fabric::resume`] or [`Fabric::reset`].
    pub fn is_suspended(&self, slot: usize) -> bool {
        self.slots[slot].is_suspended()
    }

    /// Has NICs say goodbye whose nodes stand still for too long, and delivers what was held for
    /// those that go on. Returns true if there was anything of that.
    #[cold]
    fn serve_standing(&mut self, now: Time) -> bool {
        let mut busy = false;
        for slot in self.standing.clone() {
            if self.slots[slot].takes_leave(now) {
                self.with(slot, now, |time, nic, _, wire| {
                    nic.send_goodbyes(time, wire);
                });
            }
            if self.slots[slot].deliver_held(now) {
                busy = true;
                self.make_due(slot);
            }
        }
        let slots = &self.slots;
        self.standing.retain(|slot| slots[*slot].stands());
        busy
    }

    /// Delivers what has arrived over links and from other processes, and forwards what
    /// is due. Returns true if there was anything.
    pub fn receive(&mut self, now: Time) -> bool {
        let mut busy = !self.standing.is_empty() && self.serve_standing(now);
        let slots = &mut self.slots;
        let Switch {
            routes,
            due,
            network,
            siblings,
            carriers,
            misdirected,
        } = &mut self.switch;
        due.expire(now);
        if let Some(siblings) = siblings {
            busy |= siblings.receive(|outboxes, way, frame| {
                let taken = take_from_engine(slots, routes, outboxes, way, frame, now);
                match taken {
                    Some(slot) => due.mark(slot),
                    None => *misdirected += 1,
                }
            });
        }
        while let Some(frame) = network.poll(now) {
            busy = true;
            let bytes = codec::without_checksum(&frame.image);
            match (routes.find(frame.to), Packet::parse(bytes)) {
                (Some(Route::Local(slot)), Ok(packet)) => {
                    due.mark(slot);
                    slots[slot].deliver(now, &packet, false);
                }
                (Some(Route::Sibling(way)), Ok(packet)) => {
                    let (delivery, channel) = (Delivery::Lossy, frame.channel);
                    send_to_engine(siblings.as_mut(), way, delivery, channel, &packet);
                }
                (Some(Route::Remote { carrier, process }), _) => {
                    carriers[carrier].send(now, process, frame.channel, &mut |buffer| {
                        buffer.extend_from_slice(bytes);
                        true
                    });
                }
                _ => {}
            }
        }
        for (carrier, receiver) in carriers.iter_mut().enumerate() {
            busy |= receiver.receive(now, &mut |process, bytes| {
                let sender = Some(Route::Remote { carrier, process });
                let frame = Packet::parse(bytes).ok();
                let frame = frame.filter(|frame| routes.find(frame.source()) == sender);
                let target = frame.and_then(|frame| match routes.find(frame.destination()) {
                    Some(Route::Local(slot)) => Some((slot, frame)),
                    _ => None,
                });
                let Some((slot, frame)) = target else {
                    *misdirected += 1;
                    return;
                };
                if network.is_tapped() {
                    network.record_foreign(now, frame.source(), frame.destination(), bytes);
                }
                due.mark(slot);
                slots[slot].deliver(now, &frame, false);
            });
        }
        self.update_paths(now);
        busy
    }

    /// Tells the NICs if frames to other processes may have another length now.
    fn update_paths(&mut self, now: Time) {
        let mut changed = false;
        for carrier in &mut self.switch.carriers {
            changed |= carrier.take_path_change();
        }
        for slot in 0..self.slots.len() * usize::from(changed) {
            self.with(slot, now, |_, nic, _, wire| nic.update_paths(wire));
        }
    }

    /// Hands to the operating system what NICs have sent to other processes, and wakes the engines
    /// that something was sent to.
    pub fn flush(&mut self, now: Time) {
        if let Some(siblings) = &mut self.switch.siblings {
            siblings.flush();
        }
        for carrier in &mut self.switch.carriers {
            carrier.flush(now);
        }
    }

    /// Announces that nothing will be polled for a while. Returns false if something has
    /// arrived.
    pub fn prepare_sleep(&mut self) -> bool {
        let siblings = &mut self.switch.siblings;
        let mut carriers = self.switch.carriers.iter_mut();
        carriers.all(|carrier| carrier.prepare_sleep())
            && siblings.as_mut().is_none_or(Siblings::prepare_sleep)
    }

    /// When a NIC must be polled, or [`Fabric::receive`] called, at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let due = &self.switch.due;
        let slots = self.slots.iter().enumerate();
        let nics = slots.map(|(slot, nic)| match due.is_marked(slot) {
            true => nic.deadline(),
            false => due.deadline(slot),
        });
        let carriers = self.switch.carriers.iter();
        let carriers = carriers.map(|carrier| carrier.next_deadline());
        let network = self.switch.network.next_deadline();
        nics.chain(carriers).flatten().chain(network).min()
    }
}

impl<H: Host<Memory: Debug>> Default for Fabric<H> {
    /// A fabric without NICs.
    fn default() -> Self {
        Fabric {
            slots: Vec::new(),
            standing: Vec::new(),
            switch: Switch {
                routes: Routes::default(),
                due: Due::default(),
                network: Network::default(),
                siblings: None,
                carriers: Vec::new(),
                misdirected: 0,
            },
            ethernet: crate::ethernet::Switch::default(),
        }
    }
}

#[cfg(test)]
mod due_tests;
#[cfg(test)]
mod engine_tests;
#[cfg(test)]
mod ethernet_tests;
#[cfg(test)]
mod recall_tests;
#[cfg(test)]
pub(crate) mod tests;
