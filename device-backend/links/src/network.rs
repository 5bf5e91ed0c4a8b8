//! The links between nodes, as this process realises them.
//!
//! ```text
//!   send(from, to, image) ─► route: link, link, … ─► arrived: (to, image)
//!                              each its [`Stage`]; a link without impairment is
//!                              passed at once
//! ```
//!
//! The topology gives each pair of nodes a route over links, each directed link has
//! a stage, and a frame passes the stages of its route one after the other: latencies
//! add up, the lowest rate holds. The process that *sends* a frame realises all links
//! of its route; so frames of several processes do not compete for the rate of a link
//! that they share.
//!
//! Every frame that is not handed over by a function call passes [`Network::send`] at
//! its start and [`Network::poll`] at its end.

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::wire::FrameHeader;
use qnic_abi::NodeId;
use qnic_nic::Time;
use serde::Serialize;

use crate::codec::{self, CHECKSUM_BYTES};
use crate::impairment::Impairments;
use crate::stage::{Arrival, Stage, StageCounters};
use crate::tap::{Marks, Outcome, Sighting, Tap, TapId, Taps};
use crate::topology::Topology;

/// Most nodes in one network, those of all processes.
pub const MAX_NODES: usize = 256;

/// What the network is made from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NetworkPlan {
    /// How nodes are joined, in the order of their numbers.
    pub topology: Topology,
    /// All nodes, those of other processes included.
    pub nodes: Vec<NodeId>,
    /// What a link does that `links` does not name.
    pub default: Impairments,
    /// What single links do, in one direction.
    pub links: Vec<(NodeId, NodeId, Impairments)>,
    /// Seed of all chance.
    pub seed: u64,
}

/// Links cannot be changed so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSet {
    /// The network was not made of links.
    #[error(
        "the links are fixed and perfect: give the configuration a [network] section, \
         which may be empty, to change them while it runs"
    )]
    Fixed,
    /// There is no such link.
    #[error("there is no such link, or no frame of this process takes it")]
    NoSuchLink,
}

/// Which links something is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkSet {
    /// Every link.
    All,
    /// All links that begin or end at a node.
    At(NodeId),
    /// One direction.
    OneWay(NodeId, NodeId),
    /// Both directions.
    Between(NodeId, NodeId),
}

impl LinkSet {
    pub(crate) fn holds(self, from: NodeId, to: NodeId) -> bool {
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
    /// What it does.
    pub impairments: Impairments,
    /// Frames under way.
    pub held: usize,
    /// What it has done; counts only while it is impaired.
    pub counters: StageCounters,
}

#[derive(Debug)]
struct Link {
    from: NodeId,
    to: NodeId,
    stage: Stage<Way>,
}

/// Where a frame goes on.
#[derive(Debug, Clone, Copy)]
struct Way {
    from: NodeId,
    to: NodeId,
    /// Links passed.
    hops: usize,
}

/// The links between nodes, as this process realises them.
#[derive(Debug, Default)]
pub struct Network {
    /// In the order of (from, to).
    links: Vec<Link>,
    /// Places in `links`, by (from, to).
    routes: BTreeMap<(NodeId, NodeId), Box<[usize]>>,
    /// Links on which frames may be under way.
    active: Vec<usize>,
    /// It was made by [`Network::new`]: links can be changed.
    changeable: bool,
    arrived: VecDeque<(NodeId, Vec<u8>)>,
    /// A link is impaired, or something is under way.
    busy: bool,
    damaged: u64,
    taps: Taps,
}

impl Network {
    /// The links that frames of the nodes `local` can take.
    ///
    /// # Errors
    /// A sentence that says why the nodes cannot be joined so, or which named link
    /// does not exist.
    pub fn new(plan: &NetworkPlan, local: &[NodeId]) -> Result<Self, String> {
        let mut nodes = plan.nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() > MAX_NODES {
            return Err(format!("{} nodes, at most {MAX_NODES}", nodes.len()));
        }
        plan.topology.check(nodes.len())?;
        let mut ways = BTreeMap::new();
        let sources = (0..nodes.len()).filter(|place| local.contains(&nodes[*place]));
        for (from, to) in sources.flat_map(|from| (0..nodes.len()).map(move |to| (from, to))) {
            let mut hops = vec![nodes[from]];
            let route = plan.topology.route(nodes.len(), from, to);
            hops.extend(route.into_iter().map(|place| nodes[place]));
            ways.insert((nodes[from], nodes[to]), hops);
        }
        let links = make_links(plan, &nodes, &ways)?;
        let place = |hop: &[NodeId]| {
            let found = links.binary_search_by_key(&(hop[0], hop[1]), |link| (link.from, link.to));
            found.unwrap_or_else(|_| unreachable!("every hop was made a link"))
        };
        let routes = ways.iter().map(|(ends, hops)| {
            let places = hops.windows(2).map(place);
            (*ends, places.collect())
        });
        let mut network = Network {
            routes: routes.collect(),
            changeable: true,
            ..Network::default()
        };
        network.links = links;
        network.settle();
        Ok(network)
    }

    /// Says whether there are no links: each node reaches each, always.
    pub fn is_fixed(&self) -> bool {
        !self.changeable
    }

    /// Says whether a frame now passes at once, unchanged, and behind all that were
    /// sent before on the same way.
    pub fn is_clear(&self, from: NodeId, to: NodeId) -> bool {
        !self.busy || {
            let route = self.routes.get(&(from, to));
            let clear = |link: &usize| self.links[*link].stage.is_clear();
            let waiting = self.arrived.iter().any(|(node, _)| *node == to);
            !waiting && route.is_none_or(|route| route.iter().all(clear))
        }
    }

    /// Sends a frame on its way.
    pub fn send(&mut self, now: Time, from: NodeId, to: NodeId, image: Vec<u8>) {
        self.go_on(now, image, Way { from, to, hops: 0 });
    }

    /// The next frame that has arrived intact, and the node it is for.
    pub fn poll(&mut self, now: Time) -> Option<(NodeId, Vec<u8>)> {
        while self.pass_on(now) {}
        while let Some((node, image)) = self.arrived.pop_front() {
            if codec::decode(&image).is_ok() {
                return Some((node, image));
            }
            self.damaged += 1;
        }
        if self.busy && self.active.is_empty() {
            self.settle();
        }
        None
    }

    /// When [`Network::poll`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        if !self.arrived.is_empty() {
            return Some(Time(0));
        }
        let stages = self.active.iter().map(|index| &self.links[*index].stage);
        stages.filter_map(Stage::next_deadline).min()
    }

    /// Changes what links do, from what they do now; says how many.
    ///
    /// # Errors
    /// [`NotSet`].
    pub fn set(
        &mut self,
        links: LinkSet,
        change: impl Fn(&mut Impairments),
    ) -> Result<usize, NotSet> {
        if self.is_fixed() {
            return Err(NotSet::Fixed);
        }
        let mut count = 0;
        for link in &mut self.links {
            if links.holds(link.from, link.to) {
                let mut settings = *link.stage.settings();
                change(&mut settings);
                link.stage.set(settings);
                count += 1;
            }
        }
        self.settle();
        match (links, count) {
            (LinkSet::All, _) | (_, 1..) => Ok(count),
            _ => Err(NotSet::NoSuchLink),
        }
    }

    /// Shows frames on these links to `tap` from now on, until [`Network::untap`].
    ///
    /// # Errors
    /// [`NotSet::NoSuchLink`] if a link is named and there is no such one.
    pub fn tap(&mut self, links: LinkSet, tap: Box<dyn Tap>) -> Result<TapId, NotSet> {
        let named = matches!(links, LinkSet::OneWay(..) | LinkSet::Between(..));
        let exists = |link: &Link| links.holds(link.from, link.to);
        if named && self.changeable && !self.links.iter().any(exists) {
            return Err(NotSet::NoSuchLink);
        }
        Ok(self.taps.add(links, tap))
    }

    /// Ends a tap; one that has ended is ignored.
    pub fn untap(&mut self, tap: TapId) {
        self.taps.remove(tap);
    }

    /// Says whether there is a tap: whoever sends past [`Network::send`] must show.
    pub(crate) fn is_tapped(&self) -> bool {
        self.taps.is_on()
    }

    /// Shows a frame that passes all links of a clear way at once; the link of the
    /// sighting is the way.
    pub(crate) fn show(&mut self, sighting: &Sighting<'_>) {
        match self.routes.get(&(sighting.from, sighting.to)) {
            Some(route) => {
                for link in route.iter().map(|place| &self.links[*place]) {
                    let (from, to) = (link.from, link.to);
                    self.taps.see(&Sighting {
                        from,
                        to,
                        ..*sighting
                    });
                }
            }
            None => self.taps.see(sighting),
        }
    }

    /// Shows a frame that has come from another process.
    #[cold]
    pub(crate) fn show_foreign(&mut self, at: Time, frame: &FrameHeader, bytes: &[u8]) {
        self.taps.see(&Sighting {
            at,
            from: NodeId(frame.source_node.get()),
            to: NodeId(frame.destination_node.get()),
            outcome: Outcome::Passes,
            marks: Marks::FOREIGN,
            bytes,
            length: bytes.len(),
        });
    }

    /// Every link.
    pub fn report(&self) -> Vec<LinkReport> {
        let report = |link: &Link| LinkReport {
            from: link.from.0,
            to: link.to.0,
            impairments: *link.stage.settings(),
            held: link.stage.held(),
            counters: *link.stage.counters(),
        };
        self.links.iter().map(report).collect()
    }

    /// Frames that arrived damaged: caught by the checksum.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Lets frames whose time has come pass to their next links; says whether there
    /// were any.
    fn pass_on(&mut self, now: Time) -> bool {
        let mut moved = false;
        let mut place = 0;
        while let Some(index) = self.active.get(place).copied() {
            while let Some(arrival) = self.poll_link(index, now) {
                moved = true;
                self.go_on(arrival.at, arrival.image, arrival.tag);
            }
            match self.links[index].stage.held() {
                0 => drop(self.active.swap_remove(place)),
                _ => place += 1,
            }
        }
        moved
    }

    /// The next frame that has come to the end of a link.
    fn poll_link(&mut self, index: usize, now: Time) -> Option<Arrival<Way>> {
        let Network { links, taps, .. } = self;
        let link = &mut links[index];
        let ends = (link.from, link.to);
        link.stage.poll_or_cut(now, |at, image| {
            if taps.is_on() {
                taps.see(&sighting(at, ends, Outcome::CutUnderWay, image));
            }
        })
    }

    fn settle(&mut self) {
        let clear = self.links.iter().all(|link| link.stage.is_clear());
        self.busy = !clear || !self.arrived.is_empty();
    }

    /// Lets a frame pass links until one holds it or it has arrived.
    fn go_on(&mut self, now: Time, image: Vec<u8>, mut way: Way) {
        let route = self.routes.get(&(way.from, way.to));
        let route = route.map_or(&[][..], |route| route);
        while let Some(index) = route.get(way.hops) {
            way.hops += 1;
            let link = &mut self.links[*index];
            let (ends, stage) = ((link.from, link.to), &mut link.stage);
            if stage.is_clear() {
                if self.taps.is_on() {
                    self.taps.see(&sighting(now, ends, Outcome::Passes, &image));
                }
                continue;
            }
            let idle = stage.held() == 0;
            if self.taps.is_on() {
                let (shown, before) = (image.clone(), *stage.counters());
                let fate = stage.offer(now, image, way);
                self.taps.see(&Sighting {
                    marks: Marks::between(&before, stage.counters()),
                    ..sighting(now, ends, fate.into(), &shown)
                });
            } else {
                stage.offer(now, image, way);
            }
            if idle && stage.held() > 0 {
                self.busy = true;
                self.active.push(*index);
            }
            return;
        }
        self.busy = true;
        self.arrived.push_back((way.to, image));
    }
}

/// A frame of this process on a link, from its image.
fn sighting(
    at: Time,
    (from, to): (NodeId, NodeId),
    outcome: Outcome,
    image: &[u8],
) -> Sighting<'_> {
    let length = image.len().saturating_sub(CHECKSUM_BYTES);
    Sighting {
        at,
        from,
        to,
        outcome,
        marks: Marks::empty(),
        bytes: &image[..length],
        length,
    }
}

/// The links of all ways, in the order of their ends.
fn make_links(
    plan: &NetworkPlan,
    nodes: &[NodeId],
    ways: &BTreeMap<(NodeId, NodeId), Vec<NodeId>>,
) -> Result<Vec<Link>, String> {
    let mut settings = BTreeMap::new();
    for hop in ways.values().flat_map(|hops| hops.windows(2)) {
        settings.insert((hop[0], hop[1]), plan.default);
    }
    for (from, to, impairments) in &plan.links {
        let place = |node| nodes.binary_search(node).ok();
        let joined = place(from)
            .zip(place(to))
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
        // Each link draws its own luck, whichever process realises it.
        stage: Stage::new(
            settings,
            plan.seed ^ u64::from(from.0) << 48 ^ u64::from(to.0) << 32,
        ),
    });
    Ok(links.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Probability, Span};
    use qnic_abi::wire::FrameHeader;
    use qnic_nic::env::Payload;
    use qnic_nic::testing::Memory;
    use zerocopy::FromZeros;

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

    fn image(number: u64) -> Vec<u8> {
        let mut frame = FrameHeader::new_zeroed();
        frame.sequence = number.into();
        codec::encode::<Memory>(&frame, &Payload::None).unwrap()
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
        network.send(Time(0), from, to, image(1));
        assert_eq!(network.poll(Time(1999)), None);
        assert_eq!(network.next_deadline(), Some(Time(2000)));
        assert_eq!(network.poll(Time(2000)), Some((to, image(1))));
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
            network.send(Time(0), NodeId(0), NodeId(1), image(number));
        }
        assert_eq!(network.poll(Time(0)), None);
        assert_eq!(network.damaged(), 100);
    }

    #[test]
    fn links_are_changed_one_by_one_and_the_way_is_clear_again() {
        let mut network = network(Topology::Ring, 4, Impairments::NONE);
        let (a, b, c) = (NodeId(0), NodeId(1), NodeId(2));
        let set = |to: Impairments| move |now: &mut Impairments| *now = to;
        assert_eq!(network.set(LinkSet::OneWay(a, b), set(delay(10))), Ok(1));
        assert!(!network.is_clear(a, b) && !network.is_clear(a, c));
        assert!(network.is_clear(b, a) && network.is_clear(b, c));
        network.send(Time(0), a, c, image(1));
        assert_eq!(network.set(LinkSet::All, set(Impairments::NONE)), Ok(8));
        assert!(!network.is_clear(a, b), "a frame is still under way");
        assert_eq!(network.poll(Time(10)), Some((c, image(1))));
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
