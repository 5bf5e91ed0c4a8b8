//! The NIC: its state and its entry points.

use std::collections::VecDeque;

use qnic_abi::attach::{DeviceConfig, CONFIG_MAGIC};
use qnic_abi::control::REPLY_BYTES;
use qnic_abi::event::Event;
use qnic_abi::header::{Geometry, GeometryError, SramHeader, MAGIC};
use qnic_abi::shared::Ordering;
use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::{Port, SharedMemory, Status, VniId, ABI_VERSION};
use zerocopy::IntoBytes;

use crate::bounce::BounceMemory;
use crate::config::NicConfig;
use crate::counters::Counters;
use crate::env::{Host, Payload, Time, Wire};
use crate::event::{EventQueue, Pending};
use crate::import::{ParkedImports, PendingImports};
use crate::process::Process;
use crate::transport::{header, Alarm, PeerTable, TimerWheel};

/// Whether a poll found something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something was done, or more is left to do: poll again.
    Busy,
    /// Nothing was there.
    Idle,
}

/// What an entry point borrows from its caller.
pub(crate) struct Io<'a, H, W> {
    pub(crate) now: Time,
    pub(crate) host: &'a H,
    pub(crate) wire: &'a mut W,
}

/// The control program of one NIC.
#[derive(Debug)]
pub struct Nic {
    pub(crate) config: NicConfig,
    pub(crate) geometry: Geometry,
    pub(crate) unusable: Option<Status>,
    running: bool,
    /// By VNI.
    pub(crate) processes: Vec<Option<Box<Process>>>,
    /// VNI + 1 by port, or 0.
    pub(crate) ports: Vec<u16>,
    pub(crate) peers: PeerTable,
    pub(crate) timers: TimerWheel<Alarm>,
    /// VNIs with something to send, in the order of their turns (Q10).
    pub(crate) scheduled: VecDeque<VniId>,
    /// VNIs whose command queues are polled.
    pub(crate) hot: Vec<VniId>,
    /// VNIs with something to publish.
    pub(crate) touched: Vec<VniId>,
    /// Bit *d* modulo 64: doorbell *d* was rung.
    pub(crate) rung: u64,
    pub(crate) imports: PendingImports,
    pub(crate) parked: ParkedImports,
    pub(crate) events: EventQueue,
    pub(crate) replies: VecDeque<(u64, [u8; REPLY_BYTES])>,
    /// Commands started since the NIC was made: names operations apart.
    pub(crate) running_number: u64,
    pub(crate) bounced: BounceMemory,
    pub(crate) counters: Counters,
}

impl Nic {
    /// Makes a NIC that is stopped.
    ///
    /// # Errors
    /// [`GeometryError`] if no SRAM can be laid out for these numbers.
    pub fn new(config: NicConfig) -> Result<Self, GeometryError> {
        let geometry = Geometry::new(config.node, config.frames, config.windows, config.doorbells)?;
        let mut nic = Nic {
            config,
            geometry,
            unusable: None,
            running: false,
            processes: Vec::new(),
            ports: Vec::new(),
            peers: PeerTable::default(),
            timers: TimerWheel::new(),
            scheduled: VecDeque::new(),
            hot: Vec::new(),
            touched: Vec::new(),
            rung: 0,
            imports: PendingImports::default(),
            parked: ParkedImports::default(),
            events: EventQueue::default(),
            replies: VecDeque::new(),
            running_number: 0,
            bounced: BounceMemory::default(),
            counters: Counters::default(),
        };
        nic.clear();
        Ok(nic)
    }

    /// Forgets everything but peers and what must never repeat.
    fn clear(&mut self) {
        self.processes.clear();
        let windows = self.geometry.windows as usize;
        self.processes.resize_with(windows, || None);
        self.ports.clear();
        self.scheduled.clear();
        self.hot.clear();
        self.touched.clear();
        self.rung = 0;
        self.imports = PendingImports::default();
        self.parked = ParkedImports::default();
        self.events = EventQueue::default();
        self.replies.clear();
        self.bounced = BounceMemory::default();
        self.counters = Counters::default();
    }

    /// The layout of its SRAM.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Its virtio configuration space.
    pub fn config_space(&self) -> DeviceConfig {
        DeviceConfig {
            magic: CONFIG_MAGIC.into(),
            abi_version: ABI_VERSION.into(),
            node: self.config.node.0.into(),
            reserved0: 0.into(),
            sram_bytes: self.geometry.sram_bytes.into(),
            doorbells: self.config.doorbells.into(),
            windows: self.config.windows.into(),
            reserved1: [0.into(); 4],
        }
    }

    /// Says whether it was started and not reset since. Frames to a NIC that is
    /// not running are lost; a [`Wire`] answers `false` for its node.
    pub fn is_running(&self) -> bool {
        self.running
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
        self.peers.raise_sessions(session);
        // Peers of before a start without a reset must start over.
        for index in self.peers.all() {
            let next = self.peers.new_session();
            self.forget_packets(index);
            self.peers[index].restart();
            self.peers[index].session.end_own(next);
            self.peers.introduce(index);
        }
        self.peers.add_own(self.config.node, &self.config.limits);
        let sram = host.sram();
        sram.store_u64(MAGIC, 0, Ordering::Relaxed);
        sram.fence();
        sram.clear();
        let mut header = self.geometry.header();
        header.state = self.unusable.unwrap_or(Status::Ok).code().into();
        let mut words = [0u64; size_of::<SramHeader>() / 8];
        words.as_mut_bytes().copy_from_slice(header.as_bytes());
        let words = words.map(u64::from_le);
        sram.write_words(8, &words[1..]);
        // Pairs with the driver's acquire load: who sees the magic sees the header.
        sram.store_u64(MAGIC, words[0], Ordering::Release);
        self.running = true;
    }

    /// Forgets everything, tells peers, clears the magic. Touches neither SRAM
    /// nor memory of the node afterwards.
    pub fn reset<H: Host, W: Wire<H::Memory>>(&mut self, now: Time, host: &H, wire: &mut W) {
        if !self.running {
            return;
        }
        let mut io = Io { now, host, wire };
        for index in self.peers.all() {
            let peer = &self.peers[index];
            if peer.node != self.config.node {
                let mut gone = header(FrameKind::Gone);
                let _unreachable = self.put(&mut io, index, &mut gone, Payload::None);
            }
        }
        host.sram().store_u64(MAGIC, 0, Ordering::Release);
        self.clear();
        self.peers.clear();
        self.timers.clear();
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
        let mut io = Io { now, host, wire };
        let reply = self.request(&mut io, request, token);
        self.flush(&mut io, false);
        reply
    }

    /// The next late reply: the token of its request, and the reply.
    pub fn poll_reply(&mut self) -> Option<(u64, [u8; REPLY_BYTES])> {
        self.replies.pop_front()
    }

    /// Notes that a doorbell was rung.
    pub fn handle_doorbell(&mut self, doorbell: u32) {
        if doorbell < self.config.doorbells {
            self.rung |= 1 << (doorbell % 64);
        }
    }

    /// Takes a frame from a peer. Answers go out with the next poll.
    pub fn handle_frame<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        frame: &FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) {
        let node = qnic_abi::NodeId(frame.source_node.get());
        if node == self.config.node {
            self.counters.malformed_frames += 1;
        } else if self.running {
            self.receive(now, host, frame, payload);
        }
    }

    /// Does a bounded amount of work: reads commands, sends frames, answers
    /// peers, publishes what processes wait for.
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
        let mut busy = false;
        if self.imports.is_waiting() || self.parked.is_waiting() {
            busy |= self.expire_imports(now);
        }
        busy |= self.expire_timers(now, host);
        busy |= self.flush(&mut io, false);
        busy |= self.fetch_hot(now, host);
        busy |= self.schedule(&mut io);
        busy |= self.flush(&mut io, true);
        busy |= self.publish(host);
        match busy || !self.scheduled.is_empty() || self.peers.has_output(now) {
            true => Progress::Busy,
            false => Progress::Idle,
        }
    }

    /// The next event for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        let (pending, event) = self.events.pop()?;
        if let Pending::Wake(vni) = pending {
            if let Some(process) = self.process(vni) {
                process.wake_queued = false;
            }
        }
        Some(event)
    }

    /// Says whether [`Nic::poll_event`] would return one.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// When [`Nic::poll`] must be called at the latest.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadlines = [
            self.imports.deadline(),
            self.parked.deadline(),
            self.timers.deadline(),
            self.peers.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// The process of a VNI.
    pub(crate) fn process(&mut self, vni: VniId) -> Option<&mut Process> {
        self.processes.get_mut(usize::from(vni.0))?.as_deref_mut()
    }

    /// The VNI whose process holds a port.
    pub(crate) fn vni_of(&self, port: Port) -> Option<VniId> {
        let place = self.ports.get(usize::from(port.0))?.checked_sub(1)?;
        Some(VniId(place))
    }
}
