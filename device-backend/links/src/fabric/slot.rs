//! One NIC of the process, its node, and its clock, which stands still while the node does.
//!
//! ```text
//!             suspend                  peer timeout
//!   runs ────────────────► suspended ───────────────► left: peers are told; there is no
//!     ▲                        │                        │   route to it any more
//!     └──── what was held ◄────┴──── resume ────────────┘
//!           is delivered
//! ```
//! A suspended NIC is not polled, and touches neither SRAM nor memory of its node. To its
//! peers it is silent: a frame that came over a route that loses frames is lost, since its
//! sender repeats it until it gives up. A lossless route repeats nothing, so its frames are
//! held here and delivered after the pause, in their order. What is held is bounded, for each
//! sender and in all; a sender beyond the bound is told that there is no route.
//!
//! On a lossless route no timer of a peer runs. So after the time for which a peer may be
//! silent, the NIC leaves: it ends its sessions, and what is held is dropped.

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::ethernet::kind::ETHERNET;
use qnic_abi::wire::{Frame, HEADER_BYTES};
use qnic_abi::{NodeId, PAGE_SIZE};
use qnic_nic::env::{Host, HostMemory, Payload, Receipt, Time};
use qnic_nic::{Limits, Nic};

use crate::codec::Packet;
use crate::ethernet::Port;

/// Held frames that are delivered in one round.
const BATCH: usize = 64;

#[derive(Debug)]
pub(super) struct Slot<H> {
    pub(super) nic: Nic,
    pub(super) host: H,
    /// How far its clock is behind that of the fabric, in nanoseconds.
    behind: u64,
    pause: Option<Pause>,
    held: Held,
    /// Frames that have come back in a pause, one of each session.
    back: Vec<Frame>,
    /// The Ethernet port of the node.
    pub(super) port: Option<Port>,
}

#[derive(Debug)]
struct Pause {
    /// When it began, by the clock of the fabric.
    since: Time,
    /// The sessions have been ended.
    left: bool,
}

impl<H: Host> Slot<H> {
    pub(super) fn new(nic: Nic, host: H) -> Self {
        Slot {
            held: Held::new(nic.limits()),
            nic,
            host,
            behind: 0,
            pause: None,
            back: Vec::new(),
            port: None,
        }
    }

    /// The clock of the NIC, when that of the fabric shows `now`.
    pub(super) fn time(&self, now: Time) -> Time {
        let now = self.pause.as_ref().map_or(now, |pause| pause.since);
        Time(now.0.saturating_sub(self.behind))
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.pause.is_some()
    }

    /// Returns true if it is suspended, or holds frames of a time when it was.
    pub(super) fn stands(&self) -> bool {
        self.pause.is_some() || !self.held.frames.is_empty()
    }

    pub(super) fn suspend(&mut self, now: Time) {
        self.pause.get_or_insert(Pause {
            since: now,
            left: false,
        });
    }

    pub(super) fn resume(&mut self, now: Time) {
        let left = self.start_clock(now);
        let time = self.time(now);
        if left {
            self.nic.end_sessions(time, &self.host);
        }
        for frame in std::mem::take(&mut self.back) {
            self.nic.handle_returned(time, &self.host, &frame);
        }
    }

    /// The NIC is about to be reset: nothing that came before is of use, and the node's memory,
    /// which may have another use by now, is not touched.
    pub(super) fn forget(&mut self, now: Time) {
        self.start_clock(now);
        self.held.clear();
        self.back.clear();
    }

    /// Ends a pause. Returns true if the sessions have been ended in it.
    fn start_clock(&mut self, now: Time) -> bool {
        let Some(pause) = self.pause.take() else {
            return false;
        };
        self.behind += now.0.saturating_sub(pause.since.0);
        pause.left
    }

    /// Says that the pause has lasted too long; once.
    pub(super) fn takes_leave(&mut self, now: Time) -> bool {
        let timeout = self.nic.limits().peer_timeout;
        match &mut self.pause {
            Some(pause) if !pause.left && now >= pause.since.after(timeout) => {
                pause.left = true;
                self.held.clear();
                true
            }
            _ => false,
        }
    }

    /// When something has to be done here, by the clock of the fabric.
    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.pause {
            Some(pause) if pause.left => None,
            Some(pause) => Some(pause.since.after(self.nic.limits().peer_timeout)),
            None => Some(self.nic.next_deadline()?.after(self.behind)),
        }
    }

    /// Gives a frame to the NIC. Returns false if there is no route to it, and the frame is
    /// lost: it does not run, has left, or has no room for more.
    pub(super) fn deliver(
        &mut self,
        now: Time,
        packet: &Packet<'_, H::Memory>,
        lossless: bool,
    ) -> bool {
        if packet.frame().envelope.kind == ETHERNET {
            self.deliver_ethernet(packet);
            return true;
        }
        if !self.nic.is_running() {
            return false;
        }
        let waits = self.stands();
        match &self.pause {
            Some(pause) if pause.left => false,
            _ if waits && lossless => self.held.push(packet),
            Some(_) => true,
            None => {
                let time = self.time(now);
                self.nic
                    .handle_frame(time, &self.host, packet.frame(), packet.payload());
                true
            }
        }
    }

    /// What the NIC says to a node of what it has received of it.
    #[inline]
    pub(super) fn receipt(&mut self, node: NodeId) -> Option<Receipt> {
        match self.stands() {
            true => None,
            false => self.nic.receipt(node),
        }
    }

    /// A frame that the NIC has sent comes back: there is no route to its destination. A NIC that is
    /// suspended learns of it afterwards.
    pub(super) fn take_back(&mut self, now: Time, frame: &Frame) {
        if self.pause.is_none() {
            let time = self.time(now);
            return self.nic.handle_returned(time, &self.host, frame);
        }
        let session = |frame: &Frame| {
            let envelope = &frame.envelope;
            let sessions = (envelope.source_session, envelope.destination_session);
            (envelope.destination_node, sessions)
        };
        // Nothing is sent in a pause, so a peer has one session at most.
        if !self
            .back
            .iter()
            .any(|other| session(other) == session(frame))
        {
            self.back.push(*frame);
        }
    }

    /// Delivers some of what was held. Returns true if there was anything.
    pub(super) fn deliver_held(&mut self, now: Time) -> bool {
        if self.pause.is_some() || self.held.frames.is_empty() {
            return false;
        }
        let time = self.time(now);
        for _ in 0..BATCH {
            let Some((frame, payload)) = self.held.pop() else {
                break;
            };
            let payload = match &payload[..] {
                [] => Payload::None,
                bytes => Payload::Bytes(bytes),
            };
            self.nic.handle_frame(time, &self.host, &frame, payload);
        }
        true
    }
}

/// Frames of lossless routes to a suspended NIC.
#[derive(Debug)]
struct Held {
    frames: VecDeque<(Frame, Vec<u8>)>,
    /// Bytes of each sender, and most of them.
    of_node: BTreeMap<NodeId, usize>,
    most_of_node: usize,
    /// Bytes of all senders, and most of them.
    bytes: usize,
    most: usize,
}

impl Held {
    /// As much as the NIC may keep in bounce memory, and of one sender two windows: one of
    /// data, and as much of requests and responses.
    fn new(limits: &Limits) -> Self {
        let fragment = PAGE_SIZE + HEADER_BYTES;
        Held {
            frames: VecDeque::new(),
            of_node: BTreeMap::new(),
            most_of_node: 2 * limits.window as usize * fragment,
            bytes: 0,
            most: limits.held_frames as usize * fragment,
        }
    }

    fn length(payload: usize) -> usize {
        size_of::<Frame>() + payload
    }

    /// Keeps a frame. Returns false if there is no room, or its payload cannot be read.
    fn push<M: HostMemory>(&mut self, packet: &Packet<'_, M>) -> bool {
        let length = Self::length(packet.payload().len());
        let of_node = self.of_node.entry(packet.source()).or_default();
        if *of_node + length > self.most_of_node || self.bytes + length > self.most {
            return false;
        }
        let mut payload = vec![0; packet.payload().len()];
        if packet.payload().read(&mut payload).is_err() {
            return false;
        }
        *of_node += length;
        self.bytes += length;
        self.frames.push_back((*packet.frame(), payload));
        true
    }

    fn pop(&mut self) -> Option<(Frame, Vec<u8>)> {
        let (frame, payload) = self.frames.pop_front()?;
        let length = Self::length(payload.len());
        let source = NodeId(frame.envelope.source_node.get());
        if let Some(of_node) = self.of_node.get_mut(&source) {
            *of_node -= length;
        }
        self.bytes -= length;
        if self.frames.is_empty() {
            self.clear();
        }
        Some((frame, payload))
    }

    fn clear(&mut self) {
        self.frames = VecDeque::new();
        self.of_node.clear();
        self.bytes = 0;
    }
}
