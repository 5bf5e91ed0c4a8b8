//! The wires: for each direction between two nodes and each channel one impairment
//! stage ([`qnic_links::stage`]), so that small frames overtake large ones (U4). A
//! frame travels as bytes with a checksum; what arrives damaged is dropped.

use std::sync::Arc;

use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::NodeId;
use qnic_links::codec;
use qnic_links::stage::{Fate, Stage};
use qnic_links::Impairments;
use qnic_nic::{Channel, Path, Payload, Time, Wire};

use crate::conversation::Conversations;
use crate::memory::Memory;
use crate::schedule::{Event, Schedule};

/// Channels of a wire.
const CHANNELS: usize = 2;

/// All wires of a cluster.
pub(crate) struct Network {
    schedule: Arc<Schedule>,
    nodes: usize,
    /// Nodes to which there is a way: a wire may know which are down, or may not.
    reachable: Vec<bool>,
    conversations: Conversations,
    stages: Vec<Stage<()>>,
    /// The event that is in the queue for a stage, by its time.
    armed: Vec<Option<u64>>,
    /// Frames that were sent.
    pub(crate) sent: u64,
    /// Frames that arrived damaged.
    pub(crate) damaged: u64,
}

/// A short name of a frame for the trace.
fn name(frame: &FrameHeader) -> impl std::fmt::Display + use<'_> {
    struct Name<'a>(&'a FrameHeader);
    impl std::fmt::Display for Name<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let frame = self.0;
            match FrameKind::try_from(frame.kind) {
                Ok(kind) => write!(f, "{kind:?}")?,
                Err(number) => write!(f, "kind {number}")?,
            }
            write!(
                f,
                " {}>{} seq {} ack {}/{} op {:x} offset {} length {}",
                frame.source_session,
                frame.destination_session,
                frame.sequence,
                frame.acknowledge,
                frame.delivered,
                frame.operation,
                frame.offset,
                frame.payload_length
            )
        }
    }
    Name(frame)
}

impl Network {
    pub(crate) fn new(schedule: Arc<Schedule>, nodes: usize, wires: Impairments) -> Self {
        let count = CHANNELS * nodes * nodes;
        let stages = (0..count).map(|_| Stage::new(wires, schedule.any()));
        Network {
            stages: stages.collect(),
            armed: vec![None; count],
            reachable: vec![true; nodes],
            conversations: Conversations::new(nodes),
            schedule,
            nodes,
            sent: 0,
            damaged: 0,
        }
    }

    /// Gives all wires new properties; partitions end.
    pub(crate) fn set_all(&mut self, wires: Impairments) {
        self.stages.iter_mut().for_each(|stage| stage.set(wires));
    }

    /// The stages of one direction between two nodes.
    fn links(&self, from: usize, to: usize) -> std::ops::Range<usize> {
        let first = (from * self.nodes + to) * CHANNELS;
        first..first + CHANNELS
    }

    /// Cuts or mends one direction between two nodes.
    pub(crate) fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        for link in self.links(from, to) {
            let stage = &mut self.stages[link];
            let wires = Impairments {
                partition: cut,
                ..*stage.settings()
            };
            stage.set(wires);
        }
    }

    /// Says whether there is a way to a node.
    pub(crate) fn set_reachable(&mut self, node: usize, reachable: bool) {
        self.reachable[node] = reachable;
    }

    /// Drops everything that is on its way from a node.
    pub(crate) fn forget(&mut self, from: usize) {
        for link in self.links(from, 0).start..self.links(from, self.nodes - 1).end {
            let stage = &mut self.stages[link];
            *stage = Stage::new(*stage.settings(), self.schedule.any());
        }
    }

    fn arm(&mut self, link: usize) {
        let Some(Time(deadline)) = self.stages[link].next_deadline() else {
            return;
        };
        if self.armed[link].is_none_or(|armed| deadline < armed) {
            self.armed[link] = Some(deadline);
            self.schedule.at(deadline, Event::Arrival(link));
        }
    }

    /// The next frame that has arrived over a wire: its destination, and its bytes.
    pub(crate) fn poll(&mut self, link: usize) -> Option<(usize, FrameHeader, Vec<u8>)> {
        let now = Time(self.schedule.now());
        loop {
            self.armed[link] = self.armed[link].filter(|armed| *armed > now.0);
            let Some(arrival) = self.stages[link].poll(now) else {
                self.arm(link);
                return None;
            };
            match codec::decode(&arrival.image) {
                Ok((frame, payload)) => {
                    self.conversations.arrived(&frame);
                    let to = link / CHANNELS % self.nodes;
                    return Some((to, frame, payload.to_vec()));
                }
                Err(_) => self.damaged += 1,
            }
        }
    }
}

/// The wires as the NIC of one node sees them.
pub(crate) struct Outlet<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) from: usize,
}

impl Wire<Memory> for Outlet<'_> {
    fn path(&self, node: NodeId) -> Option<Path> {
        let reachable = self.network.reachable.get(usize::from(node.0));
        reachable.is_some_and(|is| *is).then_some(Path::UNKNOWN)
    }

    fn send(
        &mut self,
        frame: &FrameHeader,
        payload: Payload<'_, Memory>,
        channel: Channel,
    ) -> bool {
        let (from, network) = (self.from, &mut *self.network);
        let to = usize::from(frame.destination_node.get());
        if !network.reachable.get(to).is_some_and(|is| *is) {
            return false;
        }
        assert_ne!(to, from, "a NIC sends to itself over the wire");
        assert_eq!(
            usize::from(frame.source_node.get()),
            from,
            "a NIC sends in another's name"
        );
        let Some(image) = codec::encode(frame, &payload) else {
            panic!("node {from}: the payload of a frame is out of reach");
        };
        network.conversations.sent(frame);
        network.sent += 1;
        let link = network.links(from, to).start + channel as usize;
        let now = Time(network.schedule.now());
        let fate = network.stages[link].offer(now, image, ());
        let note = if fate == Fate::Passes { "" } else { " LOST" };
        network
            .schedule
            .trace(format_args!("{from} -> {to}: {}{note}", name(frame)));
        network.arm(link);
        true
    }
}
