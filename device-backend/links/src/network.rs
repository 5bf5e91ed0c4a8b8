//! The links between nodes, as this process emulates them.
//!
//! ```text
//!   send(from, to, image) ─► route: link, link, … ─► arrived: (to, image)
//!                              each a [`LinkEmulator`]; a frame passes a link without
//!                              impairments at once
//! ```
//!
//! The topology gives each pair of nodes a route over directed links. A frame passes the
//! links of its route one after the other: latencies add up, the lowest rate holds. The
//! process that *sends* a frame emulates all links of its route, so frames of different
//! processes do not compete for the rate of a link that they share.
//!
//! Every frame that is not delivered by a function call enters at [`Network::send`] and
//! leaves at [`Network::poll`].

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::NodeId;
use qnic_nic::Time;
use serde::{Deserialize, Deserializer, Serialize};

use crate::codec;
use crate::emulator::{Arrival, LinkCounters, LinkEmulator};
use crate::impairment::Impairments;
use crate::tap::{Outcome, Tap, TapFlags, TapId, TapRecord, Taps};
use crate::topology::Topology;

/// Most nodes in one network, those of all processes.
pub const MAX_NODES: usize = 256;

/// What a network is made from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NetworkPlan {
    /// How nodes are joined, in the order of their numbers.
    pub topology: Topology,
    /// All nodes, those of other processes included.
    pub nodes: Vec<NodeId>,
    /// Impairments of the links that `links` does not name.
    pub default: Impairments,
    /// Impairments of single links, in one direction.
    pub links: Vec<(NodeId, NodeId, Impairments)>,
    /// Seed of all randomness.
    pub seed: u64,
}

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

/// A set of links. In JSON: `"all"`, `{"at":1}`, `{"one_way":[0,1]}`, `{"between":[0,1]}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkSet {
    /// Every link.
    All,
    /// All links that begin or end at a node.
    At(#[serde(deserialize_with = "node")] NodeId),
    /// One direction.
    OneWay(
        #[serde(deserialize_with = "node")] NodeId,
        #[serde(deserialize_with = "node")] NodeId,
    ),
    /// Both directions.
    Between(
        #[serde(deserialize_with = "node")] NodeId,
        #[serde(deserialize_with = "node")] NodeId,
    ),
}

fn node<'de, D: Deserializer<'de>>(number: D) -> Result<NodeId, D::Error> {
    u16::deserialize(number).map(NodeId)
}

impl LinkSet {
    /// Returns true if it contains the link from `from` to `to`.
    pub(crate) fn contains(self, from: NodeId, to: NodeId) -> bool {
        match self {
            LinkSet::All => true,
            LinkSet::At(node) => node == from || node == to,
            LinkSet::OneWay(a, b) => (a, b) == (from, to),
            LinkSet::Between(a, b) => (a, b) == (from, to) || (b, a) == (from, to),
        }
    }
}

/// One direction of a link, as it is now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkReport {
    /// Node where it begins.
    pub from: u16,
    /// Node where it ends.
    pub to: u16,
    /// What it does to frames.
    pub impairments: Impairments,
    /// Frames in transit.
    pub in_transit: usize,
    /// What it has done; counts only while it is impaired.
    pub counters: LinkCounters,
}

#[derive(Debug)]
struct Link {
    from: NodeId,
    to: NodeId,
    emulator: LinkEmulator<InTransit>,
}

/// Where a frame comes from and goes to.
#[derive(Debug, Clone, Copy)]
struct InTransit {
    from: NodeId,
    to: NodeId,
    /// Links passed.
    hops: usize,
}

/// The links between nodes, as this process emulates them.
#[derive(Debug, Default)]
pub struct Network {
    /// In the order of (from, to).
    links: Vec<Link>,
    /// Indices of `links`, by (from, to).
    routes: BTreeMap<(NodeId, NodeId), Box<[usize]>>,
    /// Links on which frames may be in transit.
    active: Vec<usize>,
    /// It was made by [`Network::new`]: links can be changed.
    changeable: bool,
    /// Frames at the end of their routes.
    arrived: VecDeque<(NodeId, Vec<u8>)>,
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
        let mut nodes = plan.nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() > MAX_NODES {
            return Err(format!("{} nodes, at most {MAX_NODES}", nodes.len()));
        }
        plan.topology.check(nodes.len())?;
        let mut paths = BTreeMap::new();
        let sources = (0..nodes.len()).filter(|index| local.contains(&nodes[*index]));
        for (from, to) in sources.flat_map(|from| (0..nodes.len()).map(move |to| (from, to))) {
            let mut path = vec![nodes[from]];
            let route = plan.topology.route(nodes.len(), from, to);
            path.extend(route.into_iter().map(|index| nodes[index]));
            paths.insert((nodes[from], nodes[to]), path);
        }
        let links = make_links(plan, &nodes, &paths)?;
        let index = |hop: &[NodeId]| {
            let found = links.binary_search_by_key(&(hop[0], hop[1]), |link| (link.from, link.to));
            found.unwrap_or_else(|_| unreachable!("every hop was made a link"))
        };
        let routes = paths.iter().map(|(ends, path)| {
            let indices = path.windows(2).map(index);
            (*ends, indices.collect())
        });
        let mut network = Network {
            routes: routes.collect(),
            changeable: true,
            ..Network::default()
        };
        network.links = links;
        network.update_busy();
        Ok(network)
    }

    /// Returns true if there are no links: each node always reaches each other node.
    pub fn is_fixed(&self) -> bool {
        !self.changeable
    }

    /// Returns true if a frame sent now passes at once, unchanged, and behind all that
    /// were sent before on the same route.
    pub fn is_clear(&self, from: NodeId, to: NodeId) -> bool {
        !self.busy || {
            let waiting = self.arrived.iter().any(|(node, _)| *node == to);
            let clear = |link: &usize| self.links[*link].emulator.is_clear();
            !waiting && self.route(from, to).iter().all(clear)
        }
    }

    fn route(&self, from: NodeId, to: NodeId) -> &[usize] {
        let route = self.routes.get(&(from, to));
        route.map_or(&[], |route| route)
    }

    /// Sends the image of a frame ([`codec::Frame::encode`]).
    pub fn send(&mut self, now: Time, from: NodeId, to: NodeId, image: Vec<u8>) {
        self.forward(now, image, InTransit { from, to, hops: 0 });
    }

    /// The image of the next frame that has arrived intact, and the node it is for.
    pub fn poll(&mut self, now: Time) -> Option<(NodeId, Vec<u8>)> {
        while self.forward_due(now) {}
        while let Some((node, image)) = self.arrived.pop_front() {
            if codec::strip_checksum(&image).is_ok() {
                return Some((node, image));
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
        let active = self.active.iter().map(|index| &self.links[*index]);
        active
            .filter_map(|link| link.emulator.next_deadline())
            .min()
    }

    /// Changes the impairments of links and returns the number of links.
    ///
    /// # Errors
    /// Returns [`LinkError`] if links cannot be changed, or none is in the set.
    pub fn set(
        &mut self,
        links: LinkSet,
        change: impl Fn(&mut Impairments),
    ) -> Result<usize, LinkError> {
        if self.is_fixed() {
            return Err(LinkError::Fixed);
        }
        let mut count = 0;
        for link in &mut self.links {
            if links.contains(link.from, link.to) {
                let mut settings = *link.emulator.settings();
                change(&mut settings);
                link.emulator.set(settings);
                count += 1;
            }
        }
        self.update_busy();
        match (links, count) {
            (LinkSet::All, _) | (_, 1..) => Ok(count),
            _ => Err(LinkError::NoSuchLink),
        }
    }

    /// Gives the frames on these links to `tap` from now on, until [`Network::untap`].
    ///
    /// # Errors
    /// Returns [`LinkError::NoSuchLink`] if a link is named and does not exist.
    pub fn tap(&mut self, links: LinkSet, tap: Box<dyn Tap>) -> Result<TapId, LinkError> {
        let named = matches!(links, LinkSet::OneWay(..) | LinkSet::Between(..));
        let exists = |link: &Link| links.contains(link.from, link.to);
        if named && self.changeable && !self.links.iter().any(exists) {
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
        for Link { from, to, .. } in route.iter().map(|index| &self.links[*index]) {
            let (from, to) = (*from, *to);
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
            at,
            from,
            to,
            outcome: Outcome::Passes,
            flags: TapFlags::FOREIGN,
            bytes,
            length: bytes.len(),
        });
    }

    /// Every link.
    pub fn report(&self) -> Vec<LinkReport> {
        let report = |link: &Link| LinkReport {
            from: link.from.0,
            to: link.to.0,
            impairments: *link.emulator.settings(),
            in_transit: link.emulator.in_transit(),
            counters: *link.emulator.counters(),
        };
        self.links.iter().map(report).collect()
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
        while let Some(index) = self.active.get(position).copied() {
            while let Some(arrival) = self.poll_link(index, now) {
                forwarded = true;
                self.forward(arrival.at, arrival.image, arrival.tag);
            }
            match self.links[index].emulator.in_transit() {
                0 => drop(self.active.swap_remove(position)),
                _ => position += 1,
            }
        }
        forwarded
    }

    /// The next frame that has come to the end of a link.
    fn poll_link(&mut self, index: usize, now: Time) -> Option<Arrival<InTransit>> {
        let Network { links, taps, .. } = self;
        let link = &mut links[index];
        let ends = (link.from, link.to);
        link.emulator.poll_or_cut(now, |at, image| {
            if taps.is_on() {
                taps.record(&tap_record(at, ends, Outcome::CutInTransit, image));
            }
        })
    }

    fn update_busy(&mut self) {
        let clear = self.links.iter().all(|link| link.emulator.is_clear());
        self.busy = !clear || !self.arrived.is_empty();
    }

    /// Moves a frame along its route until an impaired link takes it or it has arrived.
    fn forward(&mut self, now: Time, image: Vec<u8>, mut frame: InTransit) {
        let route = self.routes.get(&(frame.from, frame.to));
        let route = route.map_or(&[][..], |route| route);
        while let Some(index) = route.get(frame.hops) {
            frame.hops += 1;
            let Link { from, to, emulator } = &mut self.links[*index];
            let ends = (*from, *to);
            if emulator.is_clear() {
                if self.taps.is_on() {
                    self.taps
                        .record(&tap_record(now, ends, Outcome::Passes, &image));
                }
                continue;
            }
            let idle = emulator.in_transit() == 0;
            let shown = self.taps.is_on().then(|| image.clone());
            let before = *emulator.counters();
            let verdict = emulator.offer(now, image, frame);
            if let Some(shown) = shown {
                self.taps.record(&TapRecord {
                    flags: TapFlags::between(&before, emulator.counters()),
                    ..tap_record(now, ends, verdict.into(), &shown)
                });
            }
            if idle && emulator.in_transit() > 0 {
                self.busy = true;
                self.active.push(*index);
            }
            return;
        }
        self.busy = true;
        self.arrived.push_back((frame.to, image));
    }
}

/// A record of a frame of this process on the link between `from` and `to`.
fn tap_record(
    at: Time,
    (from, to): (NodeId, NodeId),
    outcome: Outcome,
    image: &[u8],
) -> TapRecord<'_> {
    let bytes = codec::without_checksum(image);
    TapRecord {
        at,
        from,
        to,
        outcome,
        flags: TapFlags::empty(),
        bytes,
        length: bytes.len(),
    }
}

/// The links of all paths, in the order of their ends.
fn make_links(
    plan: &NetworkPlan,
    nodes: &[NodeId],
    paths: &BTreeMap<(NodeId, NodeId), Vec<NodeId>>,
) -> Result<Vec<Link>, String> {
    let mut settings = BTreeMap::new();
    for hop in paths.values().flat_map(|path| path.windows(2)) {
        settings.insert((hop[0], hop[1]), plan.default);
    }
    for (from, to, impairments) in &plan.links {
        let index = |node| nodes.binary_search(node).ok();
        let joined = index(from)
            .zip(index(to))
            .is_some_and(|(from, to)| plan.topology.joins(nodes.len(), from, to));
        if !joined {
            return Err(format!("no link joins {from} and {to}"));
        }
        if let Some(known) = settings.get_mut(&(*from, *to)) {
            *known = *impairments;
        }
    }
    let links = settings.into_iter().map(|((from, to), settings)| Link {
        from,
        to,
        // A link has the same randomness in whichever process emulates it.
        emulator: LinkEmulator::new(
            settings,
            plan.seed ^ u64::from(from.0) << 48 ^ u64::from(to.0) << 32,
        ),
    });
    Ok(links.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::image;
    use crate::units::{Probability, Span};

    fn nodes(count: u16) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    fn network(topology: Topology, count: u16, default: Impairments) -> Network {
        let plan = NetworkPlan {
            topology,
            nodes: nodes(count),
            default,
            links: Vec::new(),
            seed: 1,
        };
        Network::new(&plan, &nodes(count)).unwrap()
    }

    fn delay(nanoseconds: u64) -> Impairments {
        Impairments {
            delay: Span::nanoseconds(nanoseconds),
            ..Impairments::NONE
        }
    }

    #[test]
    fn latencies_of_the_hops_add_up() {
        let mut network = network(Topology::Torus { columns: 3 }, 9, delay(1000));
        let (from, to) = (NodeId(0), NodeId(4));
        assert!(!network.is_clear(from, to));
        network.send(Time(0), from, to, image(0, 4));
        assert_eq!(network.poll(Time(1999)), None);
        assert_eq!(network.next_deadline(), Some(Time(2000)));
        assert_eq!(network.poll(Time(2000)), Some((to, image(0, 4))));
    }

    #[test]
    fn a_network_without_impairments_is_clear() {
        let network = network(Topology::Mesh, 4, Impairments::NONE);
        assert!(network.is_clear(NodeId(0), NodeId(3)));
        assert_eq!(network.report().len(), 12);
    }

    #[test]
    fn damage_is_caught_and_counted() {
        let corrupt = Impairments {
            corrupt: Probability::percent(100.0),
            ..Impairments::NONE
        };
        let mut network = network(Topology::Ring, 4, corrupt);
        for number in 0..100 {
            network.send(Time(0), NodeId(0), NodeId(1), image(number, 1));
        }
        assert_eq!(network.poll(Time(0)), None);
        assert_eq!(network.damaged(), 100);
    }

    #[test]
    fn links_change_one_by_one_and_the_route_is_clear_again() {
        let mut network = network(Topology::Ring, 4, Impairments::NONE);
        let (a, b, c) = (NodeId(0), NodeId(1), NodeId(2));
        let set = |to: Impairments| move |now: &mut Impairments| *now = to;
        assert_eq!(network.set(LinkSet::OneWay(a, b), set(delay(10))), Ok(1));
        assert!(!network.is_clear(a, b) && !network.is_clear(a, c));
        assert!(network.is_clear(b, a) && network.is_clear(b, c));
        network.send(Time(0), a, c, image(0, 4));
        assert_eq!(network.set(LinkSet::All, set(Impairments::NONE)), Ok(8));
        assert!(!network.is_clear(a, b), "a frame is still in transit");
        assert_eq!(network.poll(Time(10)), Some((c, image(0, 4))));
        assert_eq!(network.poll(Time(10)), None);
        assert!(network.is_clear(a, b));
        assert!(network.set(LinkSet::Between(a, c), set(delay(1))).is_err());
        assert_eq!(network.set(LinkSet::At(b), set(delay(1))), Ok(4));
    }

    #[test]
    fn only_links_that_exist_can_be_named() {
        let mut plan = NetworkPlan {
            topology: Topology::Ring,
            nodes: nodes(4),
            links: vec![(NodeId(0), NodeId(1), delay(5))],
            ..NetworkPlan::default()
        };
        let network = Network::new(&plan, &nodes(2)).unwrap();
        let first = &network.report()[0];
        assert_eq!((first.from, first.to, first.impairments), (0, 1, delay(5)));
        plan.links.push((NodeId(0), NodeId(2), delay(5)));
        assert!(Network::new(&plan, &nodes(2)).is_err());
        plan.links[1] = (NodeId(0), NodeId(9), delay(5));
        assert!(Network::new(&plan, &nodes(2)).is_err());
    }
}
