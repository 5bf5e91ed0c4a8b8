//! The NIC: its three parts, and its entry points.
//!
//! | module | holds |
//! |---|---|
//! | `send` | from command queues to operations, turns, frames that go out, acknowledgements |
//! | `receive` | frames that come in, and what waits for pages |
//! | `control` | requests of the driver |
//! | `ending` | what ends with a process, a segment, a peer |
//! | `farewell` | what was sent before a reset that the driver has announced |
//! | `tracing` | what a trace is told |
//!
//! These modules join core, transport and protocols, which do not call each other.

mod control;
mod early;
mod ending;
mod farewell;
mod receive;
mod send;
mod tracing;

use farewell::Farewell;
use qnic_abi::attach::{DeviceConfig, CONFIG_MAGIC};
use qnic_abi::control::REPLY_BYTES;
use qnic_abi::counters::Table as _;
use qnic_abi::event::Event;
use qnic_abi::header::{Geometry, GeometryError, SramHeader, MAGIC};
use qnic_abi::shared::Ordering;
use qnic_abi::wire::Frame;
use qnic_abi::{NodeId, SharedMemory, Status, VniId, ABI_VERSION};
use zerocopy::IntoBytes;

use crate::budget::Budget;
use crate::config::{Limits, NicConfig};
use crate::core::{Core, Pending};
use crate::counters::Counters;
use crate::env::{Host, Payload, Receipt, Time, Wire};
use crate::injection::QueuePairFaults;
use crate::occupants::{PeerReport, VniReport};
use crate::protocols::{Context, Protocols};
use crate::stages::StageReport;
use crate::table::{Table, TableKind};
use crate::transport::{Expired, Transport};

/// Whether a poll found something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something was done, or more is left to do: poll again.
    Busy,
    /// Nothing was there.
    Idle,
}

/// What an entry point that sends borrows from its caller.
struct Io<'a, H, W> {
    now: Time,
    host: &'a H,
    wire: &'a mut W,
}

/// The control program of one NIC.
#[derive(Debug)]
pub struct Nic {
    config: NicConfig,
    unusable: Option<Status>,
    running: bool,
    /// Something has come since a poll found nothing that leaves this NIC something to do.
    disturbed: bool,
    /// All links of the node are cut.
    port_is_down: bool,
    /// The driver has announced a reset.
    reset_announced: bool,
    /// Its reply waits for peers.
    farewell: Option<Farewell>,
    core: Core,
    transport: Transport,
    protocols: Protocols,
}

impl Nic {
    /// Makes a NIC that is stopped.
    ///
    /// # Errors
    /// [`GeometryError`] if no SRAM can be laid out for these numbers.
    pub fn new(config: NicConfig) -> Result<Self, GeometryError> {
        Ok(Nic {
            core: Core::new(&config)?,
            transport: Transport::new(&config),
            protocols: Protocols::default(),
            unusable: None,
            running: false,
            disturbed: true,
            port_is_down: false,
            reset_announced: false,
            farewell: None,
            config,
        })
    }

    /// Forgets everything but peers and what must never repeat.
    fn clear(&mut self) {
        self.core.clear();
        self.protocols = Protocols::default();
        self.reset_announced = false;
        self.farewell = None;
    }

    /// Its bounds.
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The layout of its SRAM.
    pub fn geometry(&self) -> &Geometry {
        &self.core.geometry
    }

    /// Its virtio configuration space.
    pub fn config_space(&self) -> DeviceConfig {
        DeviceConfig {
            magic: CONFIG_MAGIC.into(),
            abi_version: ABI_VERSION.into(),
            node: self.config.node.0.into(),
            reserved0: 0.into(),
            sram_bytes: self.core.geometry.sram_bytes.into(),
            doorbells: self.config.doorbells.into(),
            windows: self.config.windows.into(),
            reserved1: [0.into(); 4],
        }
    }

    /// Returns true if it was started and not reset since. Frames to a NIC that is not
    /// running are lost; a [`Wire`] answers `false` for its node.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// Returns true if the driver has announced a reset
    /// ([`qnic_abi::control::Opcode::AnnounceReset`]).
    pub fn expects_reset(&self) -> bool {
        self.reset_announced
    }

    /// Says why this NIC cannot serve its guest, or with `Ok` that it can. Shows
    /// in the SRAM header from the next [`Nic::start`], and in the reply to Hello.
    pub fn set_unusable(&mut self, status: Status) {
        self.unusable = (status != Status::Ok).then_some(status);
    }

    /// Starts on fresh SRAM, in new sessions: zeroes windows and tables, writes the
    /// header, the magic last.
    ///
    /// `session` must be larger than any that a NIC of this node number has used
    /// with its peers, also in another process: the wall clock in nanoseconds will
    /// do. A smaller one costs a round trip more for each peer that remembers.
    ///
    /// # Panics
    /// If the SRAM is smaller than [`Nic::geometry`] says.
    pub fn start<H: Host>(&mut self, _now: Time, host: &H, session: u64) {
        self.clear();
        self.transport.start(session);
        let sram = host.sram();
        sram.store_u64(MAGIC, 0, Ordering::Relaxed);
        sram.fence();
        sram.clear();
        let mut header = self.core.geometry.header();
        header.state = self.unusable.unwrap_or(Status::Ok).code().into();
        let peer_timeout = self.core.limits.peer_timeout.div_ceil(1_000_000);
        header.peer_timeout_ms = u32::try_from(peer_timeout).unwrap_or(u32::MAX).into();
        let mut words = [0u64; size_of::<SramHeader>() / 8];
        words.as_mut_bytes().copy_from_slice(header.as_bytes());
        let words = words.map(u64::from_le);
        sram.write_words(8, &words[1..]);
        // Pairs with the driver's acquire load: a driver that sees the magic sees the
        // header.
        sram.store_u64(MAGIC, words[0], Ordering::Release);
        self.running = true;
        if self.port_is_down {
            self.core.events.tell_port(false);
        }
    }

    /// Says whether any link of the node passes frames. The driver hears of a change; the NIC itself goes by what
    /// its peers answer. It does, until this is called.
    pub fn set_port(&mut self, is_up: bool) {
        let changes = self.port_is_down == is_up;
        self.port_is_down = !is_up;
        if changes && self.running {
            self.core.events.tell_port(is_up);
        }
    }

    /// Forgets everything, tells peers, clears the magic. Touches neither SRAM
    /// nor memory of the node afterwards.
    pub fn reset<H: Host, W: Wire<H::Memory>>(&mut self, now: Time, host: &H, wire: &mut W) {
        if !self.running {
            return;
        }
        self.recall(host, wire);
        self.send_goodbyes(now, wire);
        host.sram().store_u64(MAGIC, 0, Ordering::Release);
        self.clear();
        self.transport.clear();
        self.running = false;
    }

    /// Handles one request of the driver. `None` says that the reply comes later,
    /// through [`Nic::poll_reply`], with this `token`.
    pub fn handle_control<H: Host, W: Wire<H::Memory>>(
        &mut self,
        now: Time,
        host: &H,
        wire: &mut W,
        request: &[u8],
        token: u64,
    ) -> Option<[u8; REPLY_BYTES]> {
        self.recall(host, wire);
        let mut io = Io { now, host, wire };
        let reply = self.request(now, host, request, token);
        self.add_wanted(&io);
        self.resume_unblocked(now, host);
        self.flush(&mut io, false);
        match reply {
            Some(reply) => Some(reply),
            None => self.failed_request(),
        }
    }

    /// The next late reply: the token of its request, and the reply.
    pub fn poll_reply(&mut self) -> Option<(u64, [u8; REPLY_BYTES])> {
        self.core.replies.pop_front()
    }

    /// Notes that a doorbell was rung.
    pub fn handle_doorbell(&mut self, doorbell: u32) {
        self.core.ring(doorbell);
    }

    /// Notes that frames on the wire may have another length than before ([`max_payload`](crate::Path::max_payload)).
    pub fn update_paths<M, W: Wire<M>>(&mut self, wire: &W) {
        self.transport.update_paths(wire);
    }

    /// Receives a frame from a peer. Answers go out with the next poll.
    pub fn handle_frame<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        frame: &Frame,
        payload: Payload<'_, H::Memory>,
    ) {
        let node = NodeId(frame.envelope.source_node.get());
        if node == self.config.node {
            self.transport.counters.malformed_frames += 1;
        } else if self.running {
            self.receive(now, host, frame, payload);
        }
    }

    /// How far this NIC has come with the frames of a node, which a wire tells at once
    /// ([`Wire::receipt`]): no Ack follows. `None`: there is nothing to tell.
    #[inline]
    pub fn receipt(&mut self, node: NodeId) -> Option<Receipt> {
        self.transport.receipt(node)
    }

    /// Returns true if nothing but writes has come since a [`Nic::poll`] found nothing, and the next
    /// one would find nothing either: it has no event and no reply more, and no other deadline.
    #[inline]
    pub fn is_undisturbed(&self) -> bool {
        !self.disturbed && !self.wants_poll()
    }

    /// The wire has found no route for a frame of this NIC that it had kept or taken
    /// ([`Wire`]): what runs with that peer is given up, unless another session has begun since.
    pub fn handle_returned<H: Host>(&mut self, now: Time, host: &H, frame: &Frame) {
        if let Some(index) = self.transport.session_of(frame) {
            self.peer_unreachable(now, host, index);
        }
    }

    /// Unlocks the pages of all frames that a wire has kept. Nothing reads them any more when it
    /// returns: before what the driver asks for is done, so before pages, processes and segments
    /// end (N8, X9).
    #[inline]
    fn recall<H: Host, W: Wire<H::Memory>>(&mut self, host: &H, wire: &mut W) {
        if self.core.has_kept() {
            wire.recall();
            self.core.release_kept(host, |_| true);
        }
    }

    /// Does a bounded amount of work: reads commands, sends frames, answers
    /// peers, writes back what processes wait for.
    #[inline(always)] // A poll that finds nothing is short: the call would be a good part of it.
    pub fn poll<H: Host, W: Wire<H::Memory>>(
        &mut self,
        now: Time,
        host: &H,
        wire: &mut W,
    ) -> Progress {
        if !self.running {
            return Progress::Idle;
        }
        let mut io = Io { now, host, wire };
        if self.core.has_kept() {
            let wire = &*io.wire;
            self.core.release_kept(host, |ticket| wire.is_done(ticket));
        }
        let (protocols, mut cx) = self.parts(now, host);
        let mut busy = protocols.expire(&mut cx);
        if self.core.has_due() {
            busy |= self.receive_due(now, host);
        }
        busy |= self.expire_timers(now, host);
        busy |= self.expire_faults(now, host);
        self.add_wanted(&io);
        busy |= self.flush(&mut io, false);
        busy |= self.core.flush_completions(host);
        busy |= self.serve_queues(&mut io);
        if self.core.is_look_due(now) {
            busy |= self.core.look_at_idle(now, host);
        } else if !busy && self.core.look_at_some_idle(now, host) {
            busy |= self.serve_queues(&mut io);
        }
        busy |= self.core.write_back_completions(host);
        busy |= self.end_farewell(now);
        match busy || self.core.has_turns() || self.transport.has_output(now) {
            true => Progress::Busy,
            false => {
                self.disturbed = false;
                Progress::Idle
            }
        }
    }

    /// Reads commands and sends what there is to be sent.
    #[inline]
    fn serve_queues<H: Host, W: Wire<H::Memory>>(&mut self, io: &mut Io<'_, H, W>) -> bool {
        let mut busy = self.fetch_commands(io);
        busy |= self.give_turns(io);
        busy | self.flush(io, true)
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        let (pending, event) = self.core.events.pop()?;
        if let Pending::Wake(vni) = pending {
            if let Some(process) = self.core.process_mut(vni) {
                process.wake_queued = false;
            }
        }
        Some(event)
    }

    /// Returns true if [`Nic::poll_event`] would return an event.
    pub fn has_event(&self) -> bool {
        !self.core.events.is_empty()
    }

    /// Returns true if pages are locked for frames that a wire keeps ([`crate::Sent::Kept`]).
    pub fn keeps_frames(&self) -> bool {
        self.core.has_kept()
    }

    /// When [`Nic::poll`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadlines = [
            self.protocols.deadline(),
            self.transport.deadline(),
            self.core.fault_deadline,
            self.farewell.as_ref().map(Farewell::deadline),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Returns true if the next [`Nic::poll`] may find something although the last one found
    /// nothing: command queues are active, or something is left to do. `false`: no poll is needed
    /// until a doorbell, a control request, a frame or [`Nic::next_deadline`]; but while
    /// [`Nic::has_idle_queues`], the caller goes on to [look](Nic::look_at_idle_queues) at these.
    pub fn wants_poll(&self) -> bool {
        self.running
            && (self.core.wants_poll()
                || self.core.has_kept()
                || self.transport.has_wanted()
                || self.transport.has_output(Time::default()))
    }

    /// Returns true if there are command queues that had no command for a while, and whose
    /// processes ring no doorbell all the same.
    pub fn has_idle_queues(&self) -> bool {
        self.core.has_idle_queues()
    }

    /// Looks at some [idle queues](Nic::has_idle_queues), as [`Nic::poll`] does when it finds nothing else.
    /// Returns true if one of them has a command, or has fallen asleep: poll then.
    pub fn look_at_idle_queues<H: Host>(&mut self, now: Time, host: &H) -> bool {
        self.running && (self.core.look_at_some_idle(now, host) || self.core.is_dirty())
    }

    /// Tells all processes that the NIC stops looking at their queues, and looks
    /// once more. `true`: sleep until a doorbell, a control request, a frame or
    /// [`Nic::next_deadline`]. `false`: there is work, or an event, after all.
    pub fn prepare_sleep<H: Host>(&mut self, host: &H) -> bool {
        if !self.running {
            return true;
        }
        !self.core.has_kept()
            && !self.transport.has_output(Time::default())
            && self.core.prepare_sleep(host)
    }

    /// What the NIC holds, and what it has counted since it was started.
    pub fn counters(&self) -> Counters {
        let mut counters = self.core.counters();
        counters.add(&self.transport.counters);
        counters.parked_imports = self.protocols.parked_imports() as u64;
        counters
    }

    /// How long operations and frames were in each stage ([`mod@crate::stages`]), since the NIC was
    /// started.
    pub fn stages(&self) -> Vec<StageReport> {
        self.core.sampler.report()
    }

    /// What guests and peers make this NIC keep, and how much that may be.
    pub fn budgets(&self) -> Vec<Budget> {
        let mut budgets = self.transport.budgets();
        budgets.extend(self.core.budgets());
        budgets.extend(self.protocols.budgets(&self.core.limits));
        budgets
    }

    /// Its processes, by VNI.
    pub fn vnis<H: Host>(&self, host: &H) -> Vec<VniReport> {
        let mut reports = self.core.vni_reports(host);
        let mut names = self.protocols.first_names();
        for report in &mut reports {
            let vni = VniId(report.vni);
            let [receives, messages, staged_bytes] = self.protocols.inbox_cells(vni);
            report.receives = receives;
            report.messages = messages;
            report.staged_bytes = staged_bytes;
            report.name = names.remove(&vni);
        }
        reports
    }

    /// The NICs that it talks to, by node.
    pub fn peers(&self) -> Vec<PeerReport> {
        self.transport.peer_reports()
    }

    /// What this NIC holds, for people; at most [`MAX_ROWS`](crate::MAX_ROWS) rows.
    pub fn table(&self, kind: TableKind) -> Table {
        match kind {
            TableKind::Map => self.core.memory_map(),
            TableKind::Names => self.protocols.name_table(),
            TableKind::Groups => self.protocols.group_table(),
            TableKind::QueuePairs => self.protocols.queue_pair_table(),
            TableKind::Queues => self.core.queue_table(|vni| self.protocols.inbox_cells(vni)),
        }
    }

    /// Injects faults into a queue pair of verbs, beside those that it still has. Returns false if there
    /// is none of that number, or the NIC is stopped. The NIC has to be polled.
    pub fn inject<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        queue_pair: u32,
        faults: QueuePairFaults,
    ) -> bool {
        let running = self.running;
        let (protocols, mut cx) = self.parts(now, host);
        running && protocols.inject(&mut cx, queue_pair, faults)
    }

    /// The protocols, and what they may touch.
    #[inline]
    fn parts<'a, H: Host>(
        &'a mut self,
        now: Time,
        host: &'a H,
    ) -> (&'a mut Protocols, Context<'a, H>) {
        let cx = Context {
            now,
            host,
            core: &mut self.core,
            transport: &mut self.transport,
        };
        (&mut self.protocols, cx)
    }

    /// Makes peers of nodes that are wanted, and tells protocols.
    #[inline]
    fn add_wanted<H: Host, W: Wire<H::Memory>>(&mut self, io: &Io<'_, H, W>) {
        if self.transport.has_wanted() {
            let some = self.transport.add_wanted(io.now, io.wire);
            let (protocols, mut cx) = self.parts(io.now, io.host);
            protocols.peers_added(&mut cx, some);
        }
    }

    fn expire_timers<H: Host>(&mut self, now: Time, host: &H) -> bool {
        let mut busy = false;
        while let Some(expired) = self.transport.expire(now) {
            busy = true;
            match expired {
                Expired::Done => {}
                Expired::Sweep => self.sweep_peers(now, host),
                Expired::Silence(index) => {
                    let awaited = self.protocols.awaits(self.transport.node_of(index));
                    if !self.transport.check_silence(now, index, awaited) {
                        self.peer_silent(now, host, index);
                    }
                }
                Expired::Unreached => {
                    let protocols = &self.protocols;
                    let awaits = |node| protocols.awaits(node);
                    self.transport.look_for_unreached(now, awaits);
                }
            }
        }
        busy
    }
}
