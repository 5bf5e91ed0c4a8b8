//! The links between nodes, as this process emulates them.
//!
//! ```text
//!   send(from, to, channel, image) ─► route: link, link, … ─► arrived: [`Arrived`]
//!                                       each a [`LinkEmulator`]; a frame passes a link
//!                                       without impairments at once
//! ```
//!
//! The topology gives each pair of nodes a route over directed links. A frame passes the links of
//! its route one after the other: delays add up, and the lowest rate determines the rate of the
//! route. The process that *sends* a frame emulates all links of its route, so frames of different
//! processes do not compete for the rate of a link that they share.
//!
//! Every frame that is not delivered by a function call enters at [`Network::send`] and
//! leaves at [`Network::poll`].

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::counters::Table as _;
use qnic_abi::NodeId;
use qnic_config::plan::{ImpairmentChange, Impairments, NetworkPlan};
use qnic_nic::env::Channel;
use qnic_nic::Time;
use serde::Serialize;

use crate::codec;
use crate::emulator::{Arrival, LinkCounters, LinkEmulator};
use crate::link_set::{Hop, LinkSet};
use crate::tap::{Outcome, Tap, TapFlags, TapId, TapRecord, Taps};

/// Why links cannot be changed or tapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The network has no links.
    #[error(
        "the links are fixed and lossless: give the configuration a [network] section, \
         which may be empty, to change them while it runs"
    )]
    Fixed,
    /// There is no such link.
    #[error("there is no such link, or no frame of this process takes it")]
    NoSuchLink,
}

/// What is to become of links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkChange {
    /// They get these impairments, and keep all others.
    Set(ImpairmentChange),
    /// They have no impairments.
    Clear,
    /// They have the impairments of the plan again.
    Restore,
}

qnic_abi::counters! {
    /// One direction of a link, as it is now.
    #[derive(Debug, Clone, PartialEq, Serialize)]
    pub struct LinkReport: u64 {
        {
            /// Node where it begins.
            pub from: u16,
            /// Node where it ends.
            pub to: u16,
            /// What it does to frames.
            pub impairments: Impairments,
            /// What it has done.
            pub counters: LinkCounters,
        }
        Gauge qnic_link_frames_in_transit "Frames in transit on one direction of a link." = in_transit;
    }
}

impl LinkReport {
    /// Adds what another engine has sent over the link.
    pub fn merge(&mut self, other: &LinkReport) {
        self.add(other);
        self.counters.add(&other.counters);
    }
}

/// The seed of one link, the same in whichever process emulates it.
fn link_seed(seed: u64, (from, to): Hop) -> u64 {
    seed ^ u64::from(from.0) << 48 ^ u64::from(to.0) << 32
}

/// Where a frame comes from and goes to.
#[derive(Debug, Clone, Copy)]
struct InTransit {
    from: NodeId,
    to: NodeId,
    channel: Channel,
    /// Links passed.
    hops: usize,
}

/// A frame at the end of its route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrived {
    /// Its destination.
    pub to: NodeId,
    /// How it travels, if it has to go on.
    pub channel: Channel,
    /// The frame ([`codec::Packet::encode`]).
    pub image: Vec<u8>,
}

/// The links between nodes, as this process emulates them.
#[derive(Debug, Default)]
pub struct Network {
    links: BTreeMap<Hop, LinkEmulator<InTransit>>,
    /// What each link does as it was planned.
    planned: BTreeMap<Hop, Impairments>,
    /// The links of each route, by (from, to).
    routes: BTreeMap<(NodeId, NodeId), Box<[Hop]>>,
    /// Links on which frames may be in transit.
    active: Vec<Hop>,
    /// It was made by [`Network::new`]: links can be changed.
    changeable: bool,
    /// As [`NetworkPlan::one_channel`].
    one_channel: bool,
    /// Frames at the end of their routes.
    arrived: VecDeque<Arrived>,
    /// A link is impaired, or a frame is in transit.
    busy: bool,
    damaged: u64,
    taps: Taps,
}

impl Network {
    /// The links that frames of the nodes `local` can take.
    ///
    /// # Errors
    /// Returns a sentence that says why the nodes cannot be joined so, or which named
    /// link does not exist.
    pub fn new(plan: &NetworkPlan, local: &[NodeId]) -> Result<Self, String> {
        plan.check()?;
        let nodes = &plan.nodes;
        let mut network = Network {
            changeable: true,
            one_channel: plan.one_channel,
            ..Network::default()
        };
        let sources = (0..nodes.len()).filter(|index| local.contains(&nodes[*index]));
        for (from, to) in sources.flat_map(|from| (0..nodes.len()).map(move |to| (from, to))) {
            let route = plan.topology.route(nodes.len(), from, to);
            let path: Vec<_> = std::iter::once(from).chain(route).collect();
            let hops = path.windows(2).map(|hop| (nodes[hop[0]], nodes[hop[1]]));
            let hops: Box<[Hop]> = hops.collect();
            for hop in &hops {
                let link = LinkEmulator::new(plan.default, link_seed(plan.seed, *hop));
                network.links.entry(*hop).or_insert(link);
            }
            network.routes.insert((nodes[from], nodes[to]), hops);
        }
        for (from, to, impairments) in &plan.links {
            if let Some(link) = network.links.get_mut(&(*from, *to)) {
                link.set(*impairments);
            }
        }
        let settings = network.links.iter();
        let settings = settings.map(|(hop, link)| (*hop, *link.settings()));
        network.planned = settings.collect();
        network.update_busy();
        Ok(network)
    }

    /// Returns true if there are no links: each node always reaches each other node.
    pub fn is_fixed(&self) -> bool {
        !self.changeable
    }

    /// How a frame travels that is to take `channel` if it can.
    pub(crate) fn channel(&self, channel: Channel) -> Channel {
        match self.one_channel {
            true => Channel::Data,
            false => channel,
        }
    }

    /// Returns true if a frame sent now passes at once, unchanged, and behind all that
    /// were sent before on the same route.
    pub fn is_clear(&self, from: NodeId, to: NodeId) -> bool {
        !self.busy || {
            let waiting = self.arrived.iter().any(|frame| frame.to == to);
            let clear = |hop: &Hop| self.links[hop].is_clear();
            !waiting && self.route(from, to).iter().all(clear)
        }
    }

    fn route(&self, from: NodeId, to: NodeId) -> &[Hop] {
        let route = self.routes.get(&(from, to));
        route.map_or(&[], |route| route)
    }

    /// Sends the image of a frame ([`codec::Packet::encode`]).
    pub fn send(
        &mut self,
        now: Time,
        (from, to): (NodeId, NodeId),
        channel: Channel,
        image: Vec<u8>,
    ) {
        let frame = InTransit {
            from,
            to,
            channel,
            hops: 0,
        };
        self.forward(now, image, frame);
    }

    /// The next frame that has arrived intact.
    pub fn poll(&mut self, now: Time) -> Option<Arrived> {
        while self.forward_due(now) {}
        while let Some(arrived) = self.arrived.pop_front() {
            if codec::strip_checksum(&arrived.image).is_ok() {
                return Some(arrived);
            }
            self.damaged += 1;
        }
        if self.busy && self.active.is_empty() {
            self.update_busy();
        }
        None
    }

    /// When [`Network::poll`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.arrived.is_empty() {
            return Some(Time(0));
        }
        let active = self.active.iter().map(|hop| &self.links[hop]);
        active.filter_map(LinkEmulator::next_deadline).min()
    }

    /// Changes the impairments of links and returns the number of links. With a seed, their random
    /// decisions begin anew from it.
    ///
    /// # Errors
    /// Returns [`LinkError`] if links cannot be changed, or none is in the set.
    pub fn set(
        &mut self,
        links: LinkSet,
        seed: Option<u64>,
        change: LinkChange,
    ) -> Result<usize, LinkError> {
        if self.is_fixed() {
            return Err(LinkError::Fixed);
        }
        let mut count = 0;
        for (hop, link) in &mut self.links {
            if links.contains(hop.0, hop.1) {
                link.set(match change {
                    LinkChange::Set(change) => change.applied_to(*link.settings()),
                    LinkChange::Clear => Impairments::NONE,
                    LinkChange::Restore => self.planned.get(hop).copied().unwrap_or_default(),
                });
                if let Some(seed) = seed {
                    link.reseed(link_seed(seed, *hop));
                }
                count += 1;
            }
        }
        self.update_busy();
        match (links, count) {
            (LinkSet::All, _) | (_, 1..) => Ok(count),
            _ => Err(LinkError::NoSuchLink),
        }
    }

    /// Returns true if the node has links and all that it sends on are partitioned.
    pub fn is_cut_off(&self, node: NodeId) -> bool {
        let own = self.links.iter().filter(|((from, _), _)| *from == node);
        let mut cut = own.map(|(_, link)| link.settings().partition).peekable();
        cut.peek().is_some() && cut.all(|cut| cut)
    }

    /// The links of a set.
    pub fn links_in(&self, links: LinkSet) -> Vec<(NodeId, NodeId)> {
        let all = self.links.keys().copied();
        all.filter(|(from, to)| links.contains(*from, *to))
            .collect()
    }

    /// Gives the frames on these links to `tap` from now on, until [`Network::untap`].
    ///
    /// # Errors
    /// Returns [`LinkError::NoSuchLink`] if a link is named and does not exist.
    pub fn tap(&mut self, links: LinkSet, tap: Box<dyn Tap>) -> Result<TapId, LinkError> {
        let named = matches!(links, LinkSet::OneWay(..) | LinkSet::Between(..));
        let exists = |(from, to): &Hop| links.contains(*from, *to);
        if named && self.changeable && !self.links.keys().any(exists) {
            return Err(LinkError::NoSuchLink);
        }
        Ok(self.taps.add(links, tap))
    }

    /// Ends a tap. A tap that has ended is ignored.
    pub fn untap(&mut self, tap: TapId) {
        self.taps.remove(tap);
    }

    /// Returns true if there is a tap: a caller that does not use [`Network::send`] must
    /// call [`Network::record`].
    pub(crate) fn is_tapped(&self) -> bool {
        self.taps.is_on()
    }

    /// Records a frame that passes all links of a clear route at once; `from` and `to`
    /// of the record are the ends of the route.
    pub(crate) fn record(&mut self, record: &TapRecord<'_>) {
        let Some(route) = self.routes.get(&(record.from, record.to)) else {
            return self.taps.record(record);
        };
        for (from, to) in route.iter().copied() {
            self.taps.record(&TapRecord {
                from,
                to,
                ..*record
            });
        }
    }

    /// Records a frame that has come from another process.
    #[cold]
    pub(crate) fn record_foreign(&mut self, at: Time, from: NodeId, to: NodeId, bytes: &[u8]) {
        self.taps.record(&TapRecord {
            flags: TapFlags::FOREIGN,
            ..TapRecord::passing(at, (from, to), bytes)
        });
    }

    /// Every link.
    pub fn report(&self) -> Vec<LinkReport> {
        let links = self.links.iter().map(|((from, to), link)| LinkReport {
            from: from.0,
            to: to.0,
            impairments: *link.settings(),
            in_transit: link.in_transit() as u64,
            counters: *link.counters(),
        });
        links.collect()
    }

    /// Frames that arrived damaged: their checksum did not match.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Forwards the frames that have come to the end of a link. Returns true if there
    /// were any.
    fn forward_due(&mut self, now: Time) -> bool {
        let mut forwarded = false;
        let mut position = 0;
        while let Some(hop) = self.active.get(position).copied() {
            while let Some(arrival) = self.poll_link(hop, now) {
                forwarded = true;
                self.forward(arrival.at, arrival.image, arrival.tag);
            }
            match self.links[&hop].in_transit() {
                0 => drop(self.active.swap_remove(position)),
                _ => position += 1,
            }
        }
        forwarded
    }

    /// The next frame that has come to the end of a link.
    fn poll_link(&mut self, hop: Hop, now: Time) -> Option<Arrival<InTransit>> {
        let Network { links, taps, .. } = self;
        links.get_mut(&hop)?.poll_or_cut(now, |at, image| {
            if taps.is_on() {
                taps.record(&tap_record(at, hop, Outcome::CutInTransit, image));
            }
        })
    }

    fn update_busy(&mut self) {
        let clear = self.links.values().all(LinkEmulator::is_clear);
        self.busy = !clear || !self.arrived.is_empty();
    }

    /// Moves a frame along its route until an impaired link takes it or it has arrived.
    fn forward(&mut self, now: Time, image: Vec<u8>, mut frame: InTransit) {
        let route = self.routes.get(&(frame.from, frame.to));
        let route = route.map_or(&[][..], |route| route);
        while let Some(hop) = route.get(frame.hops).copied() {
            frame.hops += 1;
            let Some(link) = self.links.get_mut(&hop).filter(|link| !link.is_clear()) else {
                if self.taps.is_on() {
                    self.taps
                        .record(&tap_record(now, hop, Outcome::Passes, &image));
                }
                continue;
            };
            let idle = link.in_transit() == 0;
            let shown = self.taps.is_on().then(|| image.clone());
            let before = *link.counters();
            let verdict = link.offer(now, frame.channel, image, frame);
            if let Some(shown) = shown {
                self.taps.record(&TapRecord {
                    flags: TapFlags::between(&before, link.counters()),
                    ..tap_record(now, hop, verdict.into(), &shown)
                });
            }
            if idle && link.in_transit() > 0 {
                self.busy = true;
                self.active.push(hop);
            }
            return;
        }
        self.busy = true;
        let InTransit { to, channel, .. } = frame;
        self.arrived.push_back(Arrived { to, channel, image });
    }
}

/// A record of a frame of this process on a link.
fn tap_record(at: Time, hop: Hop, outcome: Outcome, image: &[u8]) -> TapRecord<'_> {
    TapRecord {
        outcome,
        ..TapRecord::passing(at, hop, codec::without_checksum(image))
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
