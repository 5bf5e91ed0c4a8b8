//! Tests of the fabric: where each frame arrives, and what taps record of it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use qnic_abi::event::Kind;
use qnic_abi::verbs::Event as Happened;
use qnic_abi::wire::{HEADER_BYTES, MAX_SPAN};
use qnic_nic::env::{Channel, Payload, Sent, Wire};
use qnic_nic::testing::{Memory, SimHost, Sram};
use qnic_nic::{Limits, NicConfig};

use super::*;
use crate::carrier::CarrierReport;
use crate::codec::tests::{header, image};
use crate::tap::{Outcome, TapFlags, TapRecord};
use crate::testing::{change, impairments};

pub(super) const NOW: Time = Time(1);

fn nic(node: u16) -> Nic {
    let config = NicConfig {
        node: NodeId(node),
        frames: 256,
        windows: 4,
        doorbells: 2,
        limits: Limits::default(),
        routes: std::collections::BTreeMap::new(),
        nodes: Vec::new(),
    };
    Nic::new(config).unwrap()
}

fn host(nic: &Nic) -> SimHost {
    SimHost::new(
        Sram::new(nic.geometry().sram_bytes as usize),
        Memory::new(256 << 12),
    )
}

/// NICs of these nodes, the first `running` of them started.
pub(crate) fn fabric(nodes: &[u16], running: usize) -> Fabric<SimHost> {
    let mut fabric = Fabric::default();
    for node in nodes {
        let nic = nic(*node);
        let host = host(&nic);
        fabric.add(nic, host).unwrap();
    }
    for slot in 0..running {
        fabric.with(slot, NOW, |now, nic, host, _| nic.start(now, host, 1));
    }
    fabric
}

pub(super) fn send(fabric: &mut Fabric<SimHost>, slot: usize, destination: u16) -> bool {
    let source = fabric.nic(slot).geometry().node.0;
    fabric.with(slot, NOW, |_, _, _, wire| {
        let header = header(source, destination, 0);
        wire.send(&header, Payload::None, Channel::Data) != Sent::NoRoute
    })
}

pub(crate) fn taken(fabric: &Fabric<SimHost>) -> Vec<u64> {
    (0..fabric.slots.len())
        .map(|slot| fabric.nic(slot).counters().malformed_frames)
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
fn there_is_no_route_to_an_unknown_node_itself_or_a_stopped_nic() {
    let mut fabric = fabric(&[0, 1, 2], 2);
    for destination in [0, 2, 3, u16::MAX] {
        assert!(!send(&mut fabric, 0, destination), "{destination}");
    }
    assert_eq!(taken(&fabric), [0, 0, 0]);
}

/// What arrives meanwhile is delivered afterwards, in portions; then routes are as before.
#[test]
fn frames_to_a_suspended_nic_wait_for_it() {
    let mut fabric = fabric(&[0, 1], 2);
    fabric.suspend(1, NOW);
    for _ in 0..100 {
        assert!(send(&mut fabric, 0, 1));
    }
    assert!(!fabric.receive(NOW) && fabric.is_suspended(1));
    assert_eq!(fabric.poll(1, NOW), Progress::Idle);
    assert_eq!(taken(&fabric), [0, 0]);
    fabric.resume(1, NOW.after(1000));
    assert!(fabric.receive(NOW.after(1000)));
    let first = taken(&fabric)[1];
    assert!((1..100).contains(&first), "{first} at once");
    assert!(send(&mut fabric, 0, 1), "behind the others");
    while fabric.receive(NOW.after(1000)) {}
    assert_eq!(taken(&fabric), [0, 101]);
}

/// One sender cannot take the room of another, and there is an end to all of it.
#[test]
fn what_is_held_for_a_suspended_nic_is_bounded() {
    let mut fabric = fabric(&[0, 1, 2], 3);
    fabric.suspend(2, NOW);
    let payload = [7; MAX_SPAN];
    let flood = |fabric: &mut Fabric<SimHost>, slot: usize| {
        let header = header(slot as u16, 2, MAX_SPAN);
        fabric.with(slot, NOW, |_, _, _, wire| {
            let mut sends = || wire.send(&header, Payload::Bytes(&payload), Channel::Data);
            (0..100_000)
                .take_while(|_| sends() != Sent::NoRoute)
                .count()
        })
    };
    let limits = Limits::default();
    let window = limits.window as usize * qnic_abi::PAGE_SIZE / MAX_SPAN;
    let first = flood(&mut fabric, 0);
    assert!((window..3 * window).contains(&first), "{first} spans");
    assert_eq!(flood(&mut fabric, 0), 0);
    assert_eq!(
        flood(&mut fabric, 1),
        first,
        "another sender has its own share"
    );
    fabric.reset(2, NOW);
    assert!(!fabric.is_suspended(2) && !send(&mut fabric, 0, 2));
}

/// After the time for which a peer may be silent, there is no route to it any more.
#[test]
fn a_suspended_nic_leaves_its_peers_in_the_end() {
    let mut fabric = fabric(&[0, 1], 2);
    fabric.suspend(1, NOW);
    assert!(send(&mut fabric, 0, 1));
    let timeout = NOW.after(Limits::default().peer_timeout);
    assert_eq!(fabric.next_deadline(), Some(timeout));
    fabric.receive(timeout);
    assert_eq!(fabric.next_deadline(), None);
    assert!(!send(&mut fabric, 0, 1));
    fabric.resume(1, timeout.after(5));
    while fabric.receive(timeout.after(5)) {}
    assert_eq!(taken(&fabric), [0, 0], "what was held is gone");
    assert!(send(&mut fabric, 0, 1));
    assert_eq!(taken(&fabric), [0, 1]);
}

/// Where frames may be lost anyway, nothing is held: the sender repeats it.
#[test]
fn frames_on_lossy_routes_are_lost_to_a_suspended_nic() {
    let mut fabric = impaired(&[0, 1], "");
    fabric.suspend(1, NOW);
    assert!(send(&mut fabric, 0, 1));
    fabric.resume(1, NOW);
    fabric.receive(NOW);
    assert_eq!(taken(&fabric), [0, 0]);
}

/// The clock of a NIC does not go on while its node stands still.
#[test]
fn a_suspended_nic_misses_no_time() {
    let mut fabric = fabric(&[0, 1], 2);
    let clock = |fabric: &mut Fabric<SimHost>, slot, now| {
        fabric.with(slot, Time(now), |now, _, _, _| now.0)
    };
    fabric.suspend(1, Time(100));
    assert_eq!(clock(&mut fabric, 1, 250), 100);
    fabric.resume(1, Time(300));
    assert_eq!(clock(&mut fabric, 1, 310), 110);
    fabric.suspend(1, Time(400));
    fabric.suspend(1, Time(450));
    fabric.resume(1, Time(500));
    assert_eq!(clock(&mut fabric, 1, 501), 201);
    assert_eq!(clock(&mut fabric, 0, 501), 501);
}

pub(super) fn impaired(nodes: &[u16], default: &str) -> Fabric<SimHost> {
    let mut fabric = fabric(nodes, nodes.len());
    let plan = NetworkPlan {
        nodes: nodes.iter().copied().map(NodeId).collect(),
        default: impairments(default),
        ..NetworkPlan::default()
    };
    fabric.join(&plan).unwrap();
    fabric
}

#[test]
fn a_route_is_lossless_only_if_it_stays_so() {
    let path = |fabric: &mut Fabric<SimHost>, node| {
        let path = fabric.with(0, NOW, |_, _, _, wire| wire.path(NodeId(node)));
        path.map(|path| path.lossless)
    };
    let mut fixed = fabric(&[0, 1], 2);
    assert_eq!(path(&mut fixed, 1), Some(true));
    assert_eq!(path(&mut fixed, 2), None);
    let all = fixed
        .network_mut()
        .set(LinkSet::All, None, LinkChange::Clear);
    assert_eq!(all, Err(LinkError::Fixed));
    let mut joined = impaired(&[0, 1], "");
    assert_eq!(path(&mut joined, 1), Some(false));
}

/// X18: what programs of libibverbs see of a partition.
#[test]
fn the_port_of_a_node_is_down_when_all_its_links_are_cut() {
    let mut fabric = impaired(&[0, 1, 2], "");
    let events = |fabric: &mut Fabric<SimHost>| -> Vec<_> {
        let events = [0, 1, 2].map(|slot| fabric.nic_mut(slot).poll_event());
        let said = events.map(|event| event.map(|event| (event.kind.get(), event.flags.get())));
        said.to_vec()
    };
    let set = |fabric: &mut Fabric<SimHost>, (from, to), what| {
        let link = LinkSet::OneWay(NodeId(from), NodeId(to));
        fabric.set_links(link, None, change(what)).unwrap();
        events(fabric)
    };
    let port = |said: Happened| Some((Kind::Verbs as u32, said as u16));
    assert_eq!(set(&mut fabric, (0, 1), "partition"), [None; 3]);
    let down = set(&mut fabric, (0, 2), "partition");
    assert_eq!(down, [port(Happened::PortDown), None, None]);
    // A driver that starts later hears of it, too.
    fabric.with(0, NOW, |now, nic, host, _| nic.start(now, host, 9));
    assert_eq!(set(&mut fabric, (1, 2), "delay 1us"), down);
    let up = fabric.set_links(LinkSet::All, None, LinkChange::Clear);
    assert_eq!(up, Ok(6));
    assert_eq!(events(&mut fabric), [port(Happened::PortUp), None, None]);
}

#[test]
fn an_impaired_link_delivers_later_with_what_it_was_given() {
    let mut fabric = impaired(&[0, 1], "delay 1us");
    assert!(send(&mut fabric, 0, 1));
    assert_eq!(fabric.next_deadline(), Some(NOW.after(1000)));
    assert!(!fabric.receive(NOW.after(999)));
    assert_eq!(taken(&fabric), [0, 0]);
    assert!(fabric.receive(NOW.after(1000)));
    assert_eq!(taken(&fabric), [0, 1]);
}

#[test]
fn damaged_frames_do_not_reach_a_nic() {
    let mut fabric = impaired(&[0, 1], "corrupt 100%");
    for _ in 0..50 {
        assert!(send(&mut fabric, 0, 1));
    }
    fabric.receive(NOW);
    assert_eq!(taken(&fabric), [0, 0]);
    assert_eq!(fabric.network().damaged(), 50);
}

/// Ends of the link, what becomes of the frame, and the node that sent it.
type Note = (u16, u16, Outcome, TapFlags, u16);

#[derive(Debug, Default, Clone)]
struct Notes(Arc<Mutex<Vec<Note>>>);

impl Tap for Notes {
    fn record(&mut self, record: &TapRecord<'_>) {
        let frame = Packet::<Memory>::parse(record.bytes).unwrap();
        assert_eq!(record.length, frame.length());
        let (from, to) = (record.from.0, record.to.0);
        let sender = frame.source().0;
        let note = (from, to, record.outcome, record.flags, sender);
        self.0.lock().unwrap().push(note);
    }
}

impl Notes {
    fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn taps_record_what_is_delivered_by_a_call_until_they_end() {
    let mut fabric = fabric(&[0, 1, 2], 2);
    let (all, some) = (Notes::default(), Notes::default());
    let id = fabric.tap(LinkSet::All, Box::new(all.clone())).unwrap();
    let one_way = LinkSet::OneWay(NodeId(1), NodeId(0));
    fabric.tap(one_way, Box::new(some.clone())).unwrap();
    for (slot, to) in [(0, 1), (0, 2), (1, 0)] {
        send(&mut fabric, slot, to);
    }
    let none = TapFlags::empty();
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
        assert_eq!(refused, Err(LinkError::NoSuchLink));
    }
}

/// What a tap recorded: number of bytes, and the length of the frame.
#[derive(Debug, Default, Clone)]
pub(super) struct Lengths(pub(super) Arc<Mutex<Vec<(usize, usize)>>>);

impl Tap for Lengths {
    fn record(&mut self, record: &TapRecord<'_>) {
        let lengths = (record.bytes.len(), record.length);
        self.0.lock().unwrap().push(lengths);
    }
}

#[test]
fn taps_record_all_of_a_page_span() {
    let mut fabric = fabric(&[0, 1], 2);
    let tap = Lengths::default();
    fabric.tap(LinkSet::All, Box::new(tap.clone())).unwrap();
    let header = header(0, 1, MAX_SPAN);
    fabric.with(0, NOW, |_, _, _, wire| {
        let sent = wire.send(&header, Payload::Bytes(&[7; MAX_SPAN]), Channel::Data);
        assert_eq!(sent, Sent::Taken);
    });
    let length = header.header().len() + MAX_SPAN;
    assert_eq!(tap.0.lock().unwrap()[..], [(length, length)]);
}

/// Frames from 0 to 2 of a ring of four go by node 1.
#[test]
fn taps_record_each_link_and_what_it_does() {
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
    assert_eq!(no_link, Err(LinkError::NoSuchLink));
    let none = TapFlags::empty();
    let hop = |from, to, outcome, flags| (from, to, outcome, flags, 0);
    let [first, second] = [(0, 1), (1, 2)].map(|(from, to)| hop(from, to, Outcome::Passes, none));
    assert!(send(&mut fabric, 0, 2));
    assert_eq!(notes.take(), [first, second]);

    let set = |fabric: &mut Fabric<SimHost>, to| {
        let link = LinkSet::OneWay(NodeId(1), NodeId(2));
        let network = fabric.network_mut();
        network.set(link, None, LinkChange::Clear).unwrap();
        network.set(link, None, change(to)).unwrap();
    };
    set(&mut fabric, "corrupt 100% duplicate 100%");
    send(&mut fabric, 0, 2);
    fabric.receive(NOW);
    let flags = TapFlags::CORRUPTED | TapFlags::DUPLICATED;
    assert_eq!(notes.take(), [first, hop(1, 2, Outcome::Passes, flags)]);
    set(&mut fabric, "loss 100%");
    send(&mut fabric, 0, 2);
    assert_eq!(notes.take(), [first, hop(1, 2, Outcome::Lost, none)]);

    set(&mut fabric, "delay 1us");
    send(&mut fabric, 0, 2);
    set(&mut fabric, "delay 1us partition");
    send(&mut fabric, 0, 2);
    fabric.receive(NOW.after(1000));
    let [cut, late] = [Outcome::Cut, Outcome::CutInTransit].map(|what| hop(1, 2, what, none));
    assert_eq!(notes.take(), [first, second, first, cut, late]);
}

/// A carrier that keeps what is sent and hands in what it is given.
#[derive(Debug, Default)]
pub(super) struct Probe {
    pub(super) sent: Vec<(usize, Channel, Vec<u8>)>,
    pub(super) coming: Vec<(usize, Vec<u8>)>,
    max_frame: usize,
    pub(super) changed: bool,
}

pub(super) type Shared = Arc<Mutex<Probe>>;

#[derive(Debug)]
struct ProbeCarrier(Shared, std::fs::File);

/// NICs of these nodes, which run, and a carrier to other processes.
pub(super) fn probed(nodes: &[u16], others: &[Vec<NodeId>]) -> (Fabric<SimHost>, Shared) {
    let mut fabric = fabric(nodes, nodes.len());
    let probe = Shared::default();
    let null = std::fs::File::open("/dev/null").unwrap();
    let carrier = ProbeCarrier(probe.clone(), null);
    fabric.connect(Box::new(carrier), others).unwrap();
    (fabric, probe)
}

impl Carrier for ProbeCarrier {
    fn send(
        &mut self,
        _: Time,
        process: usize,
        channel: Channel,
        fill: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    ) {
        let mut bytes = Vec::new();
        assert!(fill(&mut bytes));
        self.0.lock().unwrap().sent.push((process, channel, bytes));
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

    fn max_frame(&self, _: usize) -> usize {
        self.0.lock().unwrap().max_frame
    }

    fn take_path_change(&mut self) -> bool {
        std::mem::take(&mut self.0.lock().unwrap().changed)
    }

    fn report(&self) -> CarrierReport {
        CarrierReport {
            kind: "probe",
            address: String::new(),
            rejected: 0,
            processes: Vec::new(),
        }
    }
}

#[test]
fn other_processes_are_reached_and_send_only_for_their_nodes() {
    let (mut fabric, probe) = probed(&[0, 1], &[vec![NodeId(5)], vec![NodeId(6)]]);
    let notes = Notes::default();
    fabric.tap(LinkSet::All, Box::new(notes.clone())).unwrap();
    assert!(send(&mut fabric, 0, 6));
    assert_eq!(probe.lock().unwrap().sent[0].0, 1);
    let bytes = |from, to| codec::without_checksum(&image(from, to)).to_vec();
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
    let there = (0, 6, Outcome::Passes, TapFlags::empty(), 0);
    let back = (5, 1, Outcome::Passes, TapFlags::FOREIGN, 5);
    assert_eq!(notes.take(), [there, back]);
}

/// U8: the length of datagrams reaches the NICs.
#[test]
fn frames_to_another_process_are_as_long_as_its_carrier_takes() {
    let (mut fabric, probe) = probed(&[0], &[vec![NodeId(5)]]);
    for length in [4096, 1024] {
        probe.lock().unwrap().max_frame = HEADER_BYTES + length;
        let path = fabric.with(0, NOW, |_, _, _, wire| wire.path(NodeId(5)));
        assert_eq!(path.map(|path| path.max_payload), Some(length as u32));
    }
}

/// Over an emulated link with a rate, and on to another process (U4).
#[test]
fn a_frame_keeps_its_channel_to_the_end_of_its_route() {
    use Channel::{Data, Priority};
    assert_eq!(channels_behind_a_slow_link(false), [Data, Priority, Data]);
    assert_eq!(channels_behind_a_slow_link(true), [Data; 3]);
}

/// Sends two long frames and a short one, and returns how they go on.
fn channels_behind_a_slow_link(one_channel: bool) -> Vec<Channel> {
    let (mut fabric, probe) = probed(&[0], &[vec![NodeId(5)]]);
    let plan = NetworkPlan {
        nodes: vec![NodeId(0), NodeId(5)],
        default: impairments("rate 8Mbit"),
        one_channel,
        ..NetworkPlan::default()
    };
    fabric.join(&plan).unwrap();
    let frames = [
        (Channel::Data, 4096),
        (Channel::Data, 4096),
        (Channel::Priority, 8),
    ];
    for (channel, length) in frames {
        let (header, payload) = (header(0, 5, length), vec![7; length]);
        fabric.with(0, NOW, |_, _, _, wire| {
            let sent = wire.send(&header, Payload::Bytes(&payload), channel);
            assert_eq!(sent, Sent::Taken);
        });
    }
    while let Some(at) = fabric.network().next_deadline() {
        fabric.receive(at);
    }
    let sent = &probe.lock().unwrap().sent;
    sent.iter().map(|(_, channel, _)| *channel).collect()
}

#[test]
fn a_node_is_there_once() {
    let mut fabric = fabric(&[4], 0);
    let host = host(fabric.nic(0));
    assert_eq!(fabric.add(nic(4), host), Err(DuplicateNode(NodeId(4))));
    assert_eq!(fabric.slots.len(), 1);
}
