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

use qnic_abi::wire::{FrameHeader, HEADER_BYTES};
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, Host, HostMemory, Path, Payload, Time, Wire};
use qnic_nic::{Nic, Progress};
use zerocopy::IntoBytes;

use crate::carrier::Carrier;
use crate::codec;
use crate::network::{LinkSet, Network, NetworkPlan, NotSet};
use crate::tap::{Marks, Outcome, Sighting, Tap, TapId};

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

/// How a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It is in this process.
    Slot(usize),
    /// It is in another one.
    Process { carrier: usize, process: usize },
}

/// How each node is reached, in the order of node numbers.
#[derive(Debug, Default)]
struct Routes(Vec<(NodeId, Place)>);

impl Routes {
    fn find(&self, node: NodeId) -> Option<Place> {
        let place = self.0.binary_search_by_key(&node, |route| route.0).ok()?;
        Some(self.0[place].1)
    }

    fn add(&mut self, node: NodeId, way: Place) -> Result<(), DuplicateNode> {
        match self.0.binary_search_by_key(&node, |route| route.0) {
            Ok(_) => Err(DuplicateNode(node)),
            Err(place) => {
                self.0.insert(place, (node, way));
                Ok(())
            }
        }
    }
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

/// A frame as taps see it; without its payload if that cannot be read.
#[cold]
fn image_to_show<M: HostMemory>(frame: &FrameHeader, payload: &Payload<'_, M>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    if codec::put_frame(&mut bytes, frame, payload).is_none() {
        bytes.extend_from_slice(frame.as_bytes());
    }
    bytes
}

/// The way from one NIC to the others.
#[derive(Debug)]
pub struct LocalWire<'a, H> {
    now: Time,
    node: NodeId,
    outside: &'a mut Outside,
    before: &'a mut [Slot<H>],
    after: &'a mut [Slot<H>],
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::{Arc, Mutex};

    use crate::carrier::CarrierReport;
    use crate::units::{Probability, Span};
    use crate::{Impairments, LinkSet, NotSet};
    use qnic_abi::wire::{FRAME_MAGIC, HEADER_BYTES, WIRE_VERSION};
    use qnic_nic::testing::{Memory, SimHost, Sram};
    use qnic_nic::{Limits, NicConfig};
    use zerocopy::{FromZeros, IntoBytes};

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

    fn impaired(nodes: &[u16], default: Impairments) -> Fabric<SimHost> {
        let mut fabric = fabric(nodes, nodes.len());
        let plan = NetworkPlan {
            nodes: nodes.iter().copied().map(NodeId).collect(),
            default,
            ..NetworkPlan::default()
        };
        fabric.join(&plan).unwrap();
        fabric
    }

    #[test]
    fn a_way_is_perfect_only_if_it_stays_so() {
        let path = |fabric: &mut Fabric<SimHost>, node| {
            let path = fabric.with(0, NOW, |_, _, wire| wire.path(NodeId(node)));
            path.map(|path| path.perfect)
        };
        let mut fixed = fabric(&[0, 1], 2);
        assert_eq!(path(&mut fixed, 1), Some(true));
        assert_eq!(path(&mut fixed, 2), None);
        let all = fixed.network_mut().set(LinkSet::All, |_| {});
        assert_eq!(all, Err(NotSet::Fixed));
        let mut joined = impaired(&[0, 1], Impairments::NONE);
        assert_eq!(path(&mut joined, 1), Some(false));
    }

    #[test]
    fn an_impaired_link_delivers_later_with_what_it_was_given() {
        let delay = Impairments {
            delay: Span::nanoseconds(1000),
            ..Impairments::NONE
        };
        let mut fabric = impaired(&[0, 1], delay);
        assert!(send(&mut fabric, 0, 1));
        assert_eq!(fabric.next_deadline(), Some(NOW.after(1000)));
        assert!(!fabric.receive(NOW.after(999)));
        assert_eq!(taken(&fabric), [0, 0]);
        assert!(fabric.receive(NOW.after(1000)));
        assert_eq!(taken(&fabric), [0, 1]);
    }

    #[test]
    fn damaged_frames_do_not_reach_a_nic() {
        let corrupt = Impairments {
            corrupt: Probability::percent(100.0),
            ..Impairments::NONE
        };
        let mut fabric = impaired(&[0, 1], corrupt);
        for _ in 0..50 {
            assert!(send(&mut fabric, 0, 1));
        }
        fabric.receive(NOW);
        assert_eq!(taken(&fabric), [0, 0]);
        assert_eq!(fabric.network().damaged(), 50);
    }

    #[derive(Debug, Default, Clone)]
    struct Notes(Arc<Mutex<Vec<(u16, u16, Outcome, Marks, u16)>>>);

    impl Tap for Notes {
        fn see(&mut self, sighting: &Sighting<'_>) {
            let (frame, payload) = codec::split_frame(sighting.bytes).unwrap();
            assert_eq!(sighting.length, HEADER_BYTES + payload.len());
            let (from, to) = (sighting.from.0, sighting.to.0);
            let sender = frame.source_node.get();
            let note = (from, to, sighting.outcome, sighting.marks, sender);
            self.0.lock().unwrap().push(note);
        }
    }

    impl Notes {
        fn take(&self) -> Vec<(u16, u16, Outcome, Marks, u16)> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    #[test]
    fn taps_see_what_is_handed_over_by_a_call_until_they_end() {
        let mut fabric = fabric(&[0, 1, 2], 2);
        let (all, some) = (Notes::default(), Notes::default());
        let id = fabric.tap(LinkSet::All, Box::new(all.clone())).unwrap();
        let one_way = LinkSet::OneWay(NodeId(1), NodeId(0));
        fabric.tap(one_way, Box::new(some.clone())).unwrap();
        for (slot, to) in [(0, 1), (0, 2), (1, 0)] {
            send(&mut fabric, slot, to);
        }
        let none = Marks::empty();
        let last = (1, 0, Outcome::Passes, none, 1);
        let first = (0, 1, Outcome::Passes, none, 0);
        assert_eq!(all.take(), [first, (0, 2, Outcome::Refused, none, 0), last]);
        assert_eq!(some.take(), [last]);
        fabric.network_mut().untap(id);
        assert!(send(&mut fabric, 0, 1));
        assert_eq!(all.take(), []);
        for links in [
            LinkSet::At(NodeId(9)),
            LinkSet::OneWay(NodeId(0), NodeId(0)),
        ] {
            let refused = fabric.tap(links, Box::new(all.clone()));
            assert_eq!(refused, Err(NotSet::NoSuchLink));
        }
    }

    /// Frames from 0 to 2 of a ring of four go by node 1.
    #[test]
    fn taps_see_each_link_and_what_it_does() {
        let mut fabric = fabric(&[0, 1, 2, 3], 4);
        let plan = NetworkPlan {
            topology: crate::Topology::Ring,
            nodes: (0..4).map(NodeId).collect(),
            ..NetworkPlan::default()
        };
        fabric.join(&plan).unwrap();
        let notes = Notes::default();
        fabric.tap(LinkSet::All, Box::new(notes.clone())).unwrap();
        let far = LinkSet::OneWay(NodeId(0), NodeId(2));
        let no_link = fabric.tap(far, Box::new(notes.clone()));
        assert_eq!(no_link, Err(NotSet::NoSuchLink));
        let none = Marks::empty();
        let hop = |from, to, outcome, marks| (from, to, outcome, marks, 0);
        let [first, second] =
            [(0, 1), (1, 2)].map(|(from, to)| hop(from, to, Outcome::Passes, none));
        assert!(send(&mut fabric, 0, 2));
        assert_eq!(notes.take(), [first, second]);

        let set = |fabric: &mut Fabric<SimHost>, to: Impairments| {
            let link = LinkSet::OneWay(NodeId(1), NodeId(2));
            fabric.network_mut().set(link, |now| *now = to).unwrap();
        };
        let certain = Probability::percent(100.0);
        let corrupt = Impairments {
            corrupt: certain,
            duplicate: certain,
            ..Impairments::NONE
        };
        set(&mut fabric, corrupt);
        send(&mut fabric, 0, 2);
        fabric.receive(NOW);
        let marks = Marks::CORRUPTED | Marks::DUPLICATED;
        assert_eq!(notes.take(), [first, hop(1, 2, Outcome::Passes, marks)]);
        set(
            &mut fabric,
            Impairments {
                loss: certain,
                ..Impairments::NONE
            },
        );
        send(&mut fabric, 0, 2);
        assert_eq!(notes.take(), [first, hop(1, 2, Outcome::Lost, none)]);

        let slow = Impairments {
            delay: Span::nanoseconds(1000),
            ..Impairments::NONE
        };
        set(&mut fabric, slow);
        send(&mut fabric, 0, 2);
        set(
            &mut fabric,
            Impairments {
                partition: true,
                ..slow
            },
        );
        send(&mut fabric, 0, 2);
        fabric.receive(NOW.after(1000));
        let [cut, late] = [Outcome::Cut, Outcome::CutUnderWay].map(|what| hop(1, 2, what, none));
        assert_eq!(notes.take(), [first, second, first, cut, late]);
    }

    /// A carrier that keeps what is sent and hands in what it is given.
    #[derive(Debug, Default)]
    struct Probe {
        sent: Vec<(usize, Vec<u8>)>,
        coming: Vec<(usize, Vec<u8>)>,
    }

    #[derive(Debug)]
    struct ProbeCarrier(Arc<Mutex<Probe>>, std::fs::File);

    impl Carrier for ProbeCarrier {
        fn send(&mut self, _: Time, process: usize, fill: &mut dyn FnMut(&mut Vec<u8>) -> bool) {
            let mut bytes = Vec::new();
            assert!(fill(&mut bytes));
            self.0.lock().unwrap().sent.push((process, bytes));
        }

        fn flush(&mut self, _: Time) {}

        fn receive(&mut self, _: Time, take: &mut dyn FnMut(usize, &[u8])) -> bool {
            let coming = std::mem::take(&mut self.0.lock().unwrap().coming);
            for (process, bytes) in &coming {
                take(*process, bytes);
            }
            !coming.is_empty()
        }

        fn prepare_sleep(&mut self) -> bool {
            self.0.lock().unwrap().coming.is_empty()
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.1.as_fd()
        }

        fn next_deadline(&self) -> Option<Time> {
            None
        }

        fn report(&self) -> CarrierReport {
            CarrierReport {
                kind: "probe",
                address: String::new(),
                strangers: 0,
                processes: Vec::new(),
            }
        }
    }

    #[test]
    fn other_processes_are_reached_and_speak_only_for_their_nodes() {
        let mut fabric = fabric(&[0, 1], 2);
        let probe = Arc::new(Mutex::new(Probe::default()));
        let nodes = [vec![NodeId(5)], vec![NodeId(6)]];
        let null = std::fs::File::open("/dev/null").unwrap();
        let carrier = ProbeCarrier(probe.clone(), null);
        fabric.connect(Box::new(carrier), &nodes).unwrap();
        let notes = Notes::default();
        fabric.tap(LinkSet::All, Box::new(notes.clone())).unwrap();
        assert!(send(&mut fabric, 0, 6));
        assert_eq!(probe.lock().unwrap().sent[0].0, 1);
        let bytes = |source, destination| frame(source, destination).as_bytes().to_vec();
        probe.lock().unwrap().coming = vec![
            (0, bytes(5, 1)),
            (0, bytes(6, 1)),
            (0, bytes(0, 1)),
            (0, bytes(5, 6)),
            (0, bytes(5, 77)),
            (0, vec![1, 2, 3]),
        ];
        assert!(!fabric.prepare_sleep());
        assert!(fabric.receive(NOW));
        assert_eq!(taken(&fabric), [0, 1]);
        assert_eq!(fabric.misdirected(), 5);
        let there = (0, 6, Outcome::Passes, Marks::empty(), 0);
        let back = (5, 1, Outcome::Passes, Marks::FOREIGN, 5);
        assert_eq!(notes.take(), [there, back]);
    }

    #[test]
    fn a_node_is_there_once() {
        let mut fabric = fabric(&[4], 0);
        let host = host(fabric.nic(0));
        assert_eq!(fabric.add(nic(4), host), Err(DuplicateNode(NodeId(4))));
        assert_eq!(fabric.len(), 1);
    }
}
