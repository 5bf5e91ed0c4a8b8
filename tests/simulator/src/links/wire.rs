//! The wires: for each direction between two nodes and each channel one link
//! emulator ([`qnic_links::emulator`]), so that small frames overtake large ones (U4). A
//! frame travels as bytes with a checksum; what arrives corrupted is dropped.

use std::sync::Arc;

use qnic_abi::datagram;
use qnic_abi::names::kind_name;
use qnic_abi::wire::Frame;
use qnic_abi::NodeId;
use qnic_links::codec::Packet;
use qnic_links::emulator::{LinkCounters, LinkEmulator, Verdict};
use qnic_links::Impairments;
use qnic_nic::testing::KeptPayload;
use qnic_nic::{Channel, Path, Payload, Sent, Ticket, Time, Wire};

use crate::links::direct::Direct;
use crate::links::late::LateCopies;
use crate::links::sessions::{ends, SessionChecker};
use crate::machine::memory::Memory;
use crate::routes::Routes;
use crate::schedule::{trace, Event, Schedule};
use crate::settings::{Faults, Options, Settings};

/// Channels of a wire.
const CHANNELS: usize = 2;

/// All wires of a cluster.
pub(crate) struct Network {
    schedule: Arc<Schedule>,
    nodes: usize,
    /// Told what is lost.
    routes: Routes,
    /// Nodes to which there is a route: a wire may know which are down, or may not.
    pub(crate) reachable: Vec<bool>,
    pub(crate) session_checker: SessionChecker,
    /// Frames that arrive once more, much later.
    late: LateCopies,
    /// Most bytes of payload in a frame.
    max_payload: u32,
    /// Each frame carries the time at which it was sent.
    emulators: Vec<LinkEmulator<Time>>,
    /// All nodes share the link to one.
    shared: bool,
    /// Longest time that a frame was on a link, in nanoseconds.
    pub(crate) longest_transit: u64,
    /// What is under way, if the wire is the one within a device process.
    direct: Option<Direct>,
    /// The event that is in the queue for an emulator, by its time.
    armed: Vec<Option<u64>>,
    pub(crate) sent: u64,
    /// Frames that arrived corrupted.
    pub(crate) corrupted: u64,
}

/// A frame that has arrived intact.
pub(crate) struct Arrived {
    pub(crate) frame: Frame,
    pub(crate) content: KeptPayload,
    /// It comes back to its sender.
    pub(crate) returned: bool,
    /// It is of another incarnation, and must be dropped.
    pub(crate) stale: bool,
}

/// What a frame is, for traces: its kind and number, bytes of payload, and what it
/// acknowledges as arrived and as delivered.
pub(crate) fn summary(frame: &Frame) -> String {
    let envelope = &frame.envelope;
    let name = kind_name(envelope.kind).map(str::to_owned);
    let mut text = name.unwrap_or_else(|| format!("kind {}", envelope.kind));
    if envelope.sequence.get() != 0 {
        text += &format!(" #{}", envelope.sequence);
    }
    if envelope.payload_length.get() != 0 {
        text += &format!(", {} bytes", envelope.payload_length);
    }
    let acks = (envelope.acknowledge.get(), envelope.delivered.get());
    if acks != (0, 0) {
        text += &format!(", ack {}/{}", acks.0, acks.1);
    }
    text
}

/// Fields of a frame that help to find a mistake.
pub(crate) fn details(frame: &Frame) -> String {
    let envelope = &frame.envelope;
    format!(
        "{}>{} op {:x}",
        envelope.source_session, envelope.destination_session, envelope.operation
    )
}

/// What an emulator has done between two looks at its counters.
fn wire_did(before: &LinkCounters, after: &LinkCounters) -> String {
    let done = [
        ("LOST", after.lost - before.lost),
        ("CUT", after.cut - before.cut),
        ("OVERFLOWED", after.overflowed - before.overflowed),
        ("DUPLICATED", after.duplicated - before.duplicated),
        ("REORDERED", after.reordered - before.reordered),
        ("CORRUPTED", after.corrupted - before.corrupted),
    ];
    let done = done.into_iter().filter(|(_, count)| *count > 0);
    done.map(|(what, _)| format!(" {what}")).collect()
}

impl Network {
    pub(crate) fn new(schedule: Arc<Schedule>, settings: &Settings, routes: &Routes) -> Self {
        let Options {
            nodes,
            faults,
            lossless,
            engines,
            ..
        } = settings.options;
        let count = CHANNELS * nodes * nodes;
        let emulators = (0..count).map(|_| LinkEmulator::new(settings.wires, schedule.any()));
        Network {
            emulators: emulators.collect(),
            routes: routes.clone(),
            shared: settings.shared_links,
            longest_transit: 0,
            armed: vec![None; count],
            reachable: vec![true; nodes],
            session_checker: SessionChecker::new(nodes),
            late: LateCopies::new(
                schedule.clone(),
                faults.contains(Faults::DUPLICATE),
                nodes * nodes,
            ),
            max_payload: settings.max_payload,
            direct: lossless.then(|| Direct::new(schedule.clone(), nodes, engines)),
            schedule,
            nodes,
            sent: 0,
            corrupted: 0,
        }
    }

    /// Gives all wires new properties; partitions end, and nothing comes late.
    pub(crate) fn set_all(&mut self, wires: Impairments) {
        self.late.stop();
        for emulator in &mut self.emulators {
            emulator.set(wires);
        }
    }

    /// Numbers of the emulators of one direction between two nodes.
    fn links(&self, from: usize, to: usize) -> std::ops::Range<usize> {
        let from = if self.shared { 0 } else { from };
        let first = (from * self.nodes + to) * CHANNELS;
        first..first + CHANNELS
    }

    /// Cuts or mends one direction between two nodes.
    pub(crate) fn set_cut(&mut self, from: usize, to: usize, cut: bool) {
        for link in self.links(from, to) {
            let emulator = &mut self.emulators[link];
            let wires = Impairments {
                partition: cut,
                ..*emulator.settings()
            };
            emulator.set(wires);
        }
    }

    fn arm(&mut self, link: usize) {
        let Some(Time(deadline)) = self.emulators[link].next_deadline() else {
            return;
        };
        if self.armed[link].is_none_or(|armed| deadline < armed) {
            self.armed[link] = Some(deadline);
            self.schedule.at(deadline, Event::Arrival(link));
        }
    }

    /// The next frame that has arrived over a wire.
    pub(crate) fn poll(&mut self, link: usize) -> Option<Arrived> {
        let now = Time(self.schedule.now());
        loop {
            self.armed[link] = self.armed[link].filter(|armed| *armed > now.0);
            let Some(arrival) = self.emulators[link].poll(now) else {
                self.arm(link);
                return None;
            };
            let transit = arrival.at.0.saturating_sub(arrival.tag.0);
            self.longest_transit = self.longest_transit.max(transit);
            if let Some(arrived) = self.decode(&arrival.image) {
                return Some(arrived);
            }
            let (from, to) = (link / CHANNELS / self.nodes, link / CHANNELS % self.nodes);
            trace!(self.schedule, "{to} <- {from}: a corrupted frame");
            self.corrupted += 1;
        }
    }

    /// Puts a frame on a lossless wire.
    fn send_directly(
        &mut self,
        frame: &Frame,
        payload: &Payload<'_, Memory>,
        channel: Channel,
    ) -> Option<Sent> {
        let sent = self.direct.as_mut()?.send(frame, payload, channel);
        self.session_checker.sent(frame);
        self.sent += 1;
        self.trace_sent(frame, "");
        Some(sent)
    }

    /// The oldest frame on a lossless wire, in a ring of that way.
    pub(crate) fn direct(&mut self, way: usize, is_small: bool) -> Option<Arrived> {
        let passing = self.direct.as_mut()?.arrive(way, is_small)?;
        Some(match passing.returned {
            true => Arrived {
                frame: passing.frame,
                content: passing.content,
                returned: true,
                stale: false,
            },
            false => self.classify(passing.frame, passing.content),
        })
    }

    /// A frame has arrived at a node that does not run: from a ring it comes back.
    pub(crate) fn give_back(&mut self, arrived: &Arrived) {
        if let Some(direct) = &mut self.direct {
            direct.give_back(&arrived.frame);
        }
    }

    /// The copy of that number.
    pub(crate) fn late(&mut self, copy: usize) -> Option<Arrived> {
        let image = self.late.take(copy)?;
        self.decode(&image)
    }

    fn trace_sent(&self, frame: &Frame, wire_did: &str) {
        let (from, to) = ends(frame);
        let (summary, details) = (summary(frame), details(frame));
        trace!(
            self.schedule,
            "{from} -> {to}: {summary}{wire_did} | {details}"
        );
    }

    fn decode(&mut self, image: &[u8]) -> Option<Arrived> {
        let packet = Packet::<Memory>::decode(image).ok()?;
        let mut payload = vec![0; packet.payload().len()];
        packet.payload().read(&mut payload).ok()?;
        let header = *packet.frame();
        let (from, to) = ends(&header);
        let (summary, details) = (summary(&header), details(&header));
        trace!(self.schedule, "{to} <- {from}: {summary} | {details}");
        Some(self.classify(header, KeptPayload::Bytes(payload)))
    }

    fn classify(&mut self, frame: Frame, content: KeptPayload) -> Arrived {
        let stale = self.session_checker.is_stale(&frame);
        if !stale {
            self.session_checker.arrived(&frame);
        }
        Arrived {
            frame,
            content,
            returned: false,
            stale,
        }
    }
}

/// The wires as the NIC of one node sees them.
pub(crate) struct Outlet<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) from: usize,
    /// That node's memory.
    pub(crate) memory: &'a Memory,
}

impl Wire<Memory> for Outlet<'_> {
    fn path(&self, node: NodeId) -> Option<Path> {
        let reachable = self.network.reachable.get(usize::from(node.0));
        let path = match self.network.direct {
            Some(_) => Path::LOSSLESS,
            None => Path {
                max_payload: self.network.max_payload,
                ..Path::UNKNOWN
            },
        };
        reachable.is_some_and(|is| *is).then_some(path)
    }

    fn send(&mut self, frame: &Frame, payload: Payload<'_, Memory>, channel: Channel) -> Sent {
        let (from, network) = (self.from, &mut *self.network);
        let (source, to) = ends(frame);
        if !network.reachable.get(to).is_some_and(|is| *is) {
            return Sent::NoRoute;
        }
        assert_ne!(to, from, "a NIC sends to itself over the wire");
        assert_eq!(source, from, "a NIC names another as the sender");
        if let Some(sent) = network.send_directly(frame, &payload, channel) {
            return sent;
        }
        let Some(image) = Packet::new(frame, payload).encode() else {
            panic!("node {from}: the payload of a frame is out of reach");
        };
        network.session_checker.sent(frame);
        network.sent += 1;
        let links = network.links(from, to);
        let link = links.start + channel as usize;
        let lateness = network.late.lateness(links.start / CHANNELS);
        let copy = lateness.map(|lateness| (image.clone(), lateness));
        let now = Time(network.schedule.now());
        let emulator = &mut network.emulators[link];
        let before = *emulator.counters();
        let verdict = emulator.offer(now, channel, image, now);
        let after = emulator.counters();
        let arrives = verdict == Verdict::Passes && after.corrupted == before.corrupted;
        if !arrives && frame.envelope.kind != datagram::kind::DATAGRAM {
            network.routes.lose(from, to);
        }
        let done = wire_did(&before, after);
        network.trace_sent(frame, &done);
        network.arm(link);
        if let (Some((copy, lateness)), Verdict::Passes) = (copy, verdict) {
            network.late.keep(copy, lateness);
        }
        Sent::Taken
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        let direct = self.network.direct.as_ref();
        direct.is_none_or(|direct| direct.is_done(self.from, ticket))
    }

    fn recall(&mut self) {
        if let Some(direct) = &mut self.network.direct {
            direct.recall(self.from, self.memory);
        }
    }
}
