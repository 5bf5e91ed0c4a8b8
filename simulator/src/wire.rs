//! The wires: for each direction between two nodes and each channel one link
//! emulator ([`qnic_links::emulator`]), so that small frames overtake large ones (U4). A
//! frame travels as bytes with a checksum; what arrives corrupted is dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::NodeId;
use qnic_links::codec::Frame;
use qnic_links::emulator::{LinkEmulator, Verdict};
use qnic_links::Impairments;
use qnic_nic::{Channel, Path, Payload, Time, Wire};

use crate::memory::Memory;
use crate::schedule::{Event, Schedule};
use crate::sessions::SessionChecker;

/// Channels of a wire.
const CHANNELS: usize = 2;

/// So many frames in a thousand arrive once more, long after.
const LATE: u32 = 2;

/// How long after they were sent, in nanoseconds: either end may have died and come
/// back meanwhile.
const LATENESS: std::ops::Range<u64> = 50_000..30_000_000;

/// All wires of a cluster.
pub(crate) struct Network {
    schedule: Arc<Schedule>,
    nodes: usize,
    /// Nodes to which there is a way: a wire may know which are down, or may not.
    reachable: Vec<bool>,
    session_checker: SessionChecker,
    /// Frames arrive once more long after.
    late: bool,
    /// Those that do, with their destinations.
    copies: Vec<(usize, Vec<u8>)>,
    stages: Vec<LinkEmulator<()>>,
    /// What is under way, if the wire is the one within a device process.
    direct: Option<VecDeque<(usize, FrameHeader, Vec<u8>)>>,
    /// The event that is in the queue for a stage, by its time.
    armed: Vec<Option<u64>>,
    /// Frames that were sent.
    pub(crate) sent: u64,
    /// Frames that arrived corrupted.
    pub(crate) corrupted: u64,
}

/// A frame that has arrived intact.
pub(crate) struct Arrived {
    pub(crate) frame: FrameHeader,
    pub(crate) payload: Vec<u8>,
    /// It is of another incarnation, and must be dropped.
    pub(crate) stale: bool,
}

/// A short name of a frame for the trace.
pub(crate) fn name(frame: &FrameHeader) -> impl std::fmt::Display + use<'_> {
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
    pub(crate) fn new(
        schedule: Arc<Schedule>,
        nodes: usize,
        wires: Impairments,
        late: bool,
    ) -> Self {
        let count = CHANNELS * nodes * nodes;
        let stages = (0..count).map(|_| LinkEmulator::new(wires, schedule.any()));
        Network {
            stages: stages.collect(),
            armed: vec![None; count],
            reachable: vec![true; nodes],
            session_checker: SessionChecker::new(nodes),
            late,
            direct: None,
            copies: Vec::new(),
            schedule,
            nodes,
            sent: 0,
            corrupted: 0,
        }
    }

    /// Makes the wire the one within a device process.
    pub(crate) fn make_lossless(&mut self) {
        self.direct = Some(VecDeque::new());
    }

    /// Gives all wires new properties; partitions end, and nothing comes late.
    pub(crate) fn set_all(&mut self, wires: Impairments) {
        self.late = false;
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

    fn arm(&mut self, link: usize) {
        let Some(Time(deadline)) = self.stages[link].next_deadline() else {
            return;
        };
        if self.armed[link].is_none_or(|armed| deadline < armed) {
            self.armed[link] = Some(deadline);
            self.schedule.at(deadline, Event::Arrival(link));
        }
    }

    /// A NIC starts.
    pub(crate) fn started(&mut self, node: usize) {
        self.session_checker.started(node);
    }

    /// The next frame that has arrived over a wire, and its destination.
    pub(crate) fn poll(&mut self, link: usize) -> Option<(usize, Arrived)> {
        let now = Time(self.schedule.now());
        loop {
            self.armed[link] = self.armed[link].filter(|armed| *armed > now.0);
            let Some(arrival) = self.stages[link].poll(now) else {
                self.arm(link);
                return None;
            };
            let to = link / CHANNELS % self.nodes;
            match self.decode(&arrival.image) {
                Some(arrived) => return Some((to, arrived)),
                None => self.corrupted += 1,
            }
        }
    }

    /// Puts a frame on a lossless wire. It arrives at this very time, in order, if not
    /// within the call as in a device process: a NIC does nothing in between.
    fn send_directly(&mut self, to: usize, frame: &FrameHeader, payload: &Payload<'_, Memory>) {
        let mut bytes = vec![0; payload.len()];
        assert!(
            payload.read(&mut bytes).is_ok(),
            "the payload of a frame is out of reach"
        );
        self.session_checker.sent(frame);
        self.sent += 1;
        let from = frame.source_node;
        self.schedule
            .trace(format_args!("{from} -> {to}: {}", name(frame)));
        if let Some(direct) = &mut self.direct {
            direct.push_back((to, *frame, bytes));
        }
        self.schedule.at(self.schedule.now(), Event::Direct);
    }

    /// The oldest frame on a lossless wire, and its destination.
    pub(crate) fn direct(&mut self) -> Option<(usize, Arrived)> {
        let (to, frame, payload) = self.direct.as_mut()?.pop_front()?;
        Some((to, self.classify(frame, payload)))
    }

    /// The copy of that number, and its destination.
    pub(crate) fn late(&mut self, copy: usize) -> Option<(usize, Arrived)> {
        let (to, image) = std::mem::take(self.copies.get_mut(copy)?);
        let arrived = self.decode(&image)?;
        self.schedule
            .trace(format_args!("late, to {to}: {}", name(&arrived.frame)));
        Some((to, arrived))
    }

    fn decode(&mut self, image: &[u8]) -> Option<Arrived> {
        let frame = Frame::<Memory>::decode(image).ok()?;
        let mut payload = vec![0; frame.payload().len()];
        frame.payload().read(&mut payload).ok()?;
        Some(self.classify(*frame.header(), payload))
    }

    fn classify(&mut self, frame: FrameHeader, payload: Vec<u8>) -> Arrived {
        let stale = self.session_checker.is_stale(&frame);
        if !stale {
            self.session_checker.arrived(&frame);
        }
        Arrived {
            frame,
            payload,
            stale,
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
        let path = match self.network.direct {
            Some(_) => Path::PERFECT,
            None => Path::UNKNOWN,
        };
        reachable.is_some_and(|is| *is).then_some(path)
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
        if network.direct.is_some() {
            network.send_directly(to, frame, &payload);
            return true;
        }
        let Some(image) = Frame::new(frame, payload).encode() else {
            panic!("node {from}: the payload of a frame is out of reach");
        };
        network.session_checker.sent(frame);
        network.sent += 1;
        let link = network.links(from, to).start + channel as usize;
        let copy = (network.late && network.schedule.chance(LATE)).then(|| image.clone());
        let now = Time(network.schedule.now());
        let fate = network.stages[link].offer(now, image, ());
        let note = if fate == Verdict::Passes { "" } else { " LOST" };
        network
            .schedule
            .trace(format_args!("{from} -> {to}: {}{note}", name(frame)));
        network.arm(link);
        if let (Some(copy), Verdict::Passes) = (copy, fate) {
            network.copies.push((to, copy));
            let number = network.copies.len() - 1;
            network.schedule.after(LATENESS, Event::Late(number));
        }
        true
    }
}
