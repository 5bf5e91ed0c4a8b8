//! NICs of several nodes, joined by a lossless wire or by one that is not, under
//! virtual time.

use std::collections::{BTreeMap, BTreeSet};

use qnic_abi::control::{
    FaultDone, Hello, Imported, Opcode, ReplyHeader, RequestHeader, REPLY_BYTES, REQUEST_BYTES,
};
use qnic_abi::event::{Event, Kind, FAULT_WRITE};
use qnic_abi::page_table::PageAccess;
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, Status, VniId, ABI_VERSION, PAGE_SIZE};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::kept_wire::KeptFrames;
use super::lossy_wire::InTransit;
use super::{LossyWire, Memory, SimDriver, SimHost, Sram};
use crate::{
    Channel, Counters, Host, Limits, Nic, NicConfig, Path, Payload, Progress, Receipt, Sent,
    Ticket, Time, Wire,
};

/// Idle queues that a NIC looks at with one look.
const LOOKED_AT: u32 = 8;

/// One simulated node.
#[derive(Debug)]
pub struct SimNode {
    /// Its NIC.
    pub nic: Nic,
    /// Its memory and SRAM.
    pub host: SimHost,
    /// Its driver.
    pub driver: SimDriver,
    /// Faults that were reported and not answered.
    pub faults: Vec<Event>,
    /// Events other than faults.
    pub events: Vec<Event>,
    /// Late replies: token and reply.
    pub replies: Vec<(u64, [u8; REPLY_BYTES])>,
}

/// Nodes 0 to n.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes, by node number.
    pub nodes: Vec<SimNode>,
    /// Virtual time.
    pub now: Time,
    /// Answer page faults as soon as they are reported.
    pub answer_faults: bool,
    /// Nodes that cannot be reached.
    pub cut: BTreeSet<u16>,
    /// A lossy wire loses the frames between the nodes below this number and the others.
    pub border: Option<u16>,
    /// Nodes outside of the cluster, and the frames that were sent to them.
    pub outside: BTreeMap<u16, Vec<Frame>>,
    /// Most payload bytes in a frame, on all wires.
    pub max_payload: u32,
    /// The wire says that it is lossless, and without [lossy_wire](Cluster::set_lossy_wire) is.
    pub lossless: bool,
    /// The wire that calls NICs has receipts, as that within an engine.
    pub receipts: bool,
    /// Frames under way, on a wire that is not lossless.
    in_transit: Option<InTransit>,
    /// Frames under way, on a wire that keeps them.
    pub(super) kept: Option<KeptFrames>,
    next_token: u64,
    next_session: u64,
}

/// The wire as one node sees it.
struct Links<'a> {
    before: &'a mut [SimNode],
    behind: &'a mut [SimNode],
    own: usize,
    now: Time,
    cut: &'a BTreeSet<u16>,
    border: Option<u16>,
    outside: &'a mut BTreeMap<u16, Vec<Frame>>,
    max_payload: u32,
    lossless: bool,
    receipts: bool,
    in_transit: &'a mut Option<InTransit>,
    /// This node's memory.
    memory: &'a Memory,
    kept: &'a mut Option<KeptFrames>,
}

impl Links<'_> {
    /// A node that runs, and to which there is a route.
    fn running(&mut self, number: u16) -> Option<&mut SimNode> {
        let node = match usize::from(number) {
            node if node < self.own => self.before.get_mut(node),
            node => self.behind.get_mut(node - self.own - 1),
        };
        let cut = self.cut;
        node.filter(|node| node.nic.is_running() && !cut.contains(&number))
    }

    /// Returns true if a lossy wire loses what goes to this node.
    fn is_cut_from(&self, number: u16) -> bool {
        let own = self.own as u16;
        let splits = |border| (own < border) != (number < border);
        self.cut.contains(&number) || self.cut.contains(&own) || self.border.is_some_and(splits)
    }
}

impl Wire<Memory> for Links<'_> {
    fn path(&self, _: NodeId) -> Option<Path> {
        Some(Path {
            lossless: self.lossless && self.in_transit.is_none(),
            max_payload: self.max_payload,
        })
    }

    fn send(&mut self, frame: &Frame, payload: Payload<'_, Memory>, channel: Channel) -> Sent {
        let number = frame.envelope.destination_node.get();
        assert!(payload.len() <= self.max_payload as usize);
        if let Some(frames) = self.outside.get_mut(&number) {
            frames.push(*frame);
            return Sent::Taken;
        }
        let is_lost = self.is_cut_from(number);
        if let Some(in_transit) = self.in_transit {
            if !is_lost {
                in_transit.take(self.now, frame, &payload, channel);
            }
            return Sent::Taken;
        }
        if let Some(kept) = self.kept {
            return kept.push(frame, &payload);
        }
        let now = self.now;
        match self.running(number) {
            Some(node) => {
                node.nic.handle_frame(now, &node.host, frame, payload);
                Sent::Taken
            }
            None => Sent::NoRoute,
        }
    }

    fn receipt(&mut self, node: NodeId) -> Option<Receipt> {
        let own = NodeId(self.own as u16);
        let gives = self.receipts && self.in_transit.is_none() && self.kept.is_none();
        self.running(node.0).filter(|_| gives)?.nic.receipt(own)
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.is_done(ticket))
    }

    fn recall(&mut self) {
        if let Some(kept) = self.kept {
            kept.recall(self.own, self.memory);
        }
    }
}

impl Cluster {
    /// Started nodes with so many frames of memory and windows each.
    ///
    /// # Panics
    /// If the NIC refuses these numbers.
    pub fn new(nodes: u16, frames: u64, windows: u32, limits: &Limits) -> Self {
        Cluster::routed(nodes, frames, windows, limits, |_| BTreeMap::new())
    }

    /// The same, with what each knows of the routes.
    ///
    /// # Panics
    /// As of [`Cluster::new`].
    pub fn routed(
        nodes: u16,
        frames: u64,
        windows: u32,
        limits: &Limits,
        routes: impl Fn(u16) -> BTreeMap<NodeId, NodeId>,
    ) -> Self {
        let mut cluster = Cluster {
            nodes: Vec::new(),
            now: Time(0),
            answer_faults: true,
            cut: BTreeSet::new(),
            border: None,
            outside: BTreeMap::new(),
            max_payload: Path::LOSSLESS.max_payload,
            lossless: true,
            receipts: false,
            in_transit: None,
            kept: None,
            next_token: 0,
            next_session: 0,
        };
        for node in 0..nodes {
            let config = NicConfig {
                node: NodeId(node),
                frames,
                windows,
                doorbells: 4,
                limits: limits.clone(),
                routes: routes(node),
                nodes: (0..nodes).map(NodeId).collect(),
            };
            let nic = Nic::new(config).expect("a geometry");
            let geometry = *nic.geometry();
            cluster.nodes.push(SimNode {
                nic,
                host: SimHost::new(
                    Sram::new(geometry.sram_bytes as usize),
                    Memory::new(frames as usize * PAGE_SIZE),
                ),
                driver: SimDriver::new(geometry),
                faults: Vec::new(),
                events: Vec::new(),
                replies: Vec::new(),
            });
            cluster.start(usize::from(node));
        }
        cluster
    }

    /// Joins the nodes by a wire that is not lossless from now on. Nodes that are
    /// cut off lose their frames on it. No NIC may have talked to another before.
    pub fn set_lossy_wire(&mut self, lossy_wire: LossyWire, seed: u64) {
        self.in_transit = Some(InTransit::new(lossy_wire, seed));
    }

    /// From now on frames of the data channel wait for so many nanoseconds on the lossy wire, and those of the
    /// priority channel overtake them.
    ///
    /// # Panics
    /// If there is no such wire.
    pub fn set_backlog(&mut self, nanoseconds: u64) {
        let wire = self.in_transit.as_mut().expect("a lossy wire");
        wire.backlog = nanoseconds;
    }

    /// Hands over the frames that have arrived; says whether there were any.
    fn hand_over(&mut self) -> bool {
        let now = self.now;
        let mut landed = false;
        while let Some(flight) = self
            .in_transit
            .as_mut()
            .and_then(|in_transit| in_transit.arrival(now))
        {
            landed = true;
            let number = usize::from(flight.frame.envelope.destination_node.get());
            let Some(node) = self.nodes.get_mut(number) else {
                continue;
            };
            let payload = match flight.payload.is_empty() {
                true => Payload::None,
                false => Payload::Bytes(&flight.payload),
            };
            node.nic
                .handle_frame(now, &node.host, &flight.frame, payload);
        }
        landed
    }

    /// Lets time pass until the next frame arrives or a NIC wants to be polled, if
    /// that is due before `limit`.
    fn skip(&mut self, limit: Time) -> bool {
        let nics = self
            .nodes
            .iter()
            .filter_map(|node| node.nic.next_deadline());
        let arrival = self.in_transit.as_ref().and_then(InTransit::next);
        match nics.chain(arrival).min() {
            Some(time) if time < limit => {
                self.now = self.now.max(time);
                self.set_clocks();
                true
            }
            _ => false,
        }
    }

    /// The clocks of all nodes show the time.
    fn set_clocks(&self) {
        for node in &self.nodes {
            node.host.clock.set(self.now);
        }
    }

    /// Starts a NIC that is new or was reset.
    ///
    /// # Panics
    /// If it refuses the driver's Hello.
    pub fn start(&mut self, node: usize) {
        let now = self.now;
        let this = &mut self.nodes[node];
        self.next_session += 1000;
        this.nic.start(now, &this.host, self.next_session);
        let hello = Hello {
            abi_version: ABI_VERSION.into(),
            reserved: 0.into(),
            frames: this.nic.geometry().frames.into(),
        };
        let status = self.control(node, Opcode::Hello, VniId(0), &hello);
        assert_eq!(status, Status::Ok);
    }

    /// Resets a NIC; its driver forgets all pages.
    pub fn reset(&mut self, node: usize) {
        let (nic, host, mut links) = self.split(node);
        let now = links.now;
        nic.reset(now, host, &mut links);
        let this = &mut self.nodes[node];
        this.driver = SimDriver::new(*this.nic.geometry());
        this.faults.clear();
    }

    fn split(&mut self, node: usize) -> (&mut Nic, &SimHost, Links<'_>) {
        let (before, rest) = self.nodes.split_at_mut(node);
        let (this, behind) = rest.split_first_mut().expect("a node of the cluster");
        let SimNode { nic, host, .. } = this;
        let links = Links {
            before,
            behind,
            own: node,
            now: self.now,
            cut: &self.cut,
            border: self.border,
            outside: &mut self.outside,
            max_payload: self.max_payload,
            lossless: self.lossless,
            receipts: self.receipts,
            in_transit: &mut self.in_transit,
            memory: host.memory(),
            kept: &mut self.kept,
        };
        (nic, host, links)
    }

    /// Tells a NIC that [`Cluster::max_payload`] is another than before.
    pub fn update_paths(&mut self, node: usize) {
        let (nic, _, links) = self.split(node);
        nic.update_paths(&links);
    }

    /// Sends a request; `None` says that the reply comes later, with the token.
    pub fn request<B: IntoBytes + Immutable>(
        &mut self,
        node: usize,
        opcode: Opcode,
        vni: VniId,
        body: &B,
    ) -> (u64, Option<[u8; REPLY_BYTES]>) {
        let request = request_bytes(opcode, vni, body);
        self.next_token += 1;
        let token = self.next_token;
        (token, self.raw_request(node, &request, token))
    }

    /// Sends any bytes as a request.
    pub fn raw_request(
        &mut self,
        node: usize,
        request: &[u8],
        token: u64,
    ) -> Option<[u8; REPLY_BYTES]> {
        let (nic, host, mut links) = self.split(node);
        let now = links.now;
        nic.handle_control(now, host, &mut links, request, token)
    }

    /// Sends a request that is answered at once.
    ///
    /// # Panics
    /// If it is not.
    pub fn control<B: IntoBytes + Immutable>(
        &mut self,
        node: usize,
        opcode: Opcode,
        vni: VniId,
        body: &B,
    ) -> Status {
        let (_, reply) = self.request(node, opcode, vni, body);
        status_of(&reply.expect("a reply at once"))
    }

    /// Polls a NIC once, after handing over what has arrived anywhere; serves its
    /// events. Part of the loop that calls it: the programs that count instructions measure NICs, and
    /// not calls.
    #[inline(always)]
    pub fn poll(&mut self, node: usize) -> Progress {
        self.hand_over();
        let (nic, host, mut links) = self.split(node);
        let now = links.now;
        let progress = nic.poll(now, host, &mut links);
        match self.serve(node) {
            true => Progress::Busy,
            false => progress,
        }
    }

    /// Takes events and replies of a NIC; answers faults if so configured. Returns true if it
    /// did, which may give the NIC something to do.
    pub fn serve(&mut self, node: usize) -> bool {
        let this = &mut self.nodes[node];
        while let Some(reply) = this.nic.poll_reply() {
            this.replies.push(reply);
        }
        while let Some(event) = this.nic.poll_event() {
            match Kind::try_from(event.kind.get()) {
                Ok(Kind::PageFault) => this.faults.push(event),
                _ => this.events.push(event),
            }
        }
        let mut answered = false;
        while self.answer_faults && !self.nodes[node].faults.is_empty() {
            self.answer_fault(node, 0, u32::MAX);
            answered = true;
        }
        answered
    }

    /// Brings in up to `limit` pages of a fault that was reported, and answers it.
    pub fn answer_fault(&mut self, node: usize, index: usize, limit: u32) {
        let this = &mut self.nodes[node];
        let fault = this.faults.remove(index);
        let vni = VniId(fault.vni.get());
        let access = match fault.flags.get() & FAULT_WRITE {
            0 => PageAccess::Read,
            _ => PageAccess::Write,
        };
        let mut result = Ok(());
        for page in 0..fault.pages.get().min(limit.max(1)) {
            let address = fault.address.get() + u64::from(page) * PAGE_SIZE as u64;
            let entered = this.driver.fault_in(&this.host, vni, address, access);
            if entered.is_err() {
                result = if page == 0 { entered } else { Ok(()) };
                break;
            }
        }
        let status = result.err().unwrap_or(Status::Ok);
        let body = FaultDone {
            fault: fault.fault,
            status: status.code().into(),
            reserved: Default::default(),
        };
        self.control(node, Opcode::FaultDone, vni, &body);
    }

    /// Rings a doorbell.
    pub fn ring(&mut self, node: usize, vni: VniId) {
        let nic = &mut self.nodes[node].nic;
        let doorbells = nic.geometry().doorbells;
        nic.handle_doorbell(u32::from(vni.0) % doorbells);
    }

    /// Asks a NIC whether it can sleep.
    pub fn sleeps(&mut self, node: usize) -> bool {
        let this = &mut self.nodes[node];
        let asleep = this.nic.prepare_sleep(&this.host);
        self.serve(node);
        asleep
    }

    /// Lets time pass.
    pub fn advance(&mut self, nanoseconds: u64) {
        self.now = self.now.after(nanoseconds);
        self.set_clocks();
    }

    /// Polls all NICs until none has work; returns the number of rounds. On a wire
    /// that is not lossless, lets time pass, up to a minute, until nothing is under
    /// way and no NIC waits for anything.
    ///
    /// # Panics
    /// If they are still busy after a million rounds.
    pub fn run(&mut self) -> u32 {
        let limit = self.now.after(60_000_000_000);
        for round in 0..1_000_000 {
            let mut busy = self.hand_over() | self.arrive();
            for node in 0..self.nodes.len() {
                busy |= self.poll(node) == Progress::Busy;
            }
            busy = busy || self.look();
            if !busy && (self.in_transit.is_none() || !self.skip(limit)) {
                return round;
            }
        }
        panic!("the NICs never become idle");
    }

    /// Looks at all idle queues, some at a time, as an engine does that has nothing else to do.
    fn look(&mut self) -> bool {
        let now = self.now;
        let mut nodes = self.nodes.iter_mut();
        nodes.any(|node| {
            let looks = node.nic.geometry().windows.div_ceil(LOOKED_AT);
            (0..looks).any(|_| node.nic.look_at_idle_queues(now, &node.host))
        })
    }

    /// Runs until all NICs are asleep: every queue cold, everything published.
    ///
    /// # Panics
    /// If they never are.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            self.run();
            self.advance(10_000);
            let mut asleep = true;
            for node in 0..self.nodes.len() {
                asleep &= self.sleeps(node);
            }
            if asleep {
                return;
            }
        }
        panic!("the NICs never sleep");
    }

    /// What a NIC has counted.
    pub fn counters(&self, node: usize) -> Counters {
        self.nodes[node].nic.counters()
    }

    /// The reply to an import, if it is there.
    ///
    /// # Panics
    /// If the reply is malformed.
    pub fn import_reply(&mut self, node: usize, token: u64) -> Option<Result<Imported, Status>> {
        let replies = &mut self.nodes[node].replies;
        let index = replies.iter().position(|reply| reply.0 == token)?;
        let bytes = replies.remove(index).1;
        let body = &bytes[size_of::<ReplyHeader>()..];
        Some(match status_of(&bytes) {
            Status::Ok => Ok(Imported::read_from_prefix(body).expect("a whole body").0),
            status => Err(status),
        })
    }
}

/// A request as a driver writes it.
pub fn request_bytes<B: IntoBytes + Immutable>(
    opcode: Opcode,
    vni: VniId,
    body: &B,
) -> [u8; REQUEST_BYTES] {
    let header = RequestHeader {
        opcode: (opcode as u32).into(),
        vni: vni.0.into(),
        reserved: 0.into(),
    };
    let mut request = [0; REQUEST_BYTES];
    let (front, rest) = request.split_at_mut(size_of::<RequestHeader>());
    front.copy_from_slice(header.as_bytes());
    rest[..size_of::<B>()].copy_from_slice(body.as_bytes());
    request
}

/// The status of a reply.
///
/// # Panics
/// If it has none that is known.
pub fn status_of(reply: &[u8; REPLY_BYTES]) -> Status {
    let header = ReplyHeader::read_from_prefix(reply)
        .expect("a whole header")
        .0;
    Status::try_from(header.status.get()).expect("a known status")
}
