//! What messages promise (Q3, Q4, Q11 to Q13; docs/messages.md), checked while message workers
//! send and receive them.
//!
//! The oracle knows each command when it is issued, and sees each completion when the NIC stores
//! it: bytes are compared with the memory of the receive at that instant. A message is named by
//! its immediate data, so a completion tells which message a receive has taken.
//!
//! # What it can and cannot see
//! It does not see when a NIC gives a message to the matching, only commands and completions. It
//! knows the order of both of one process, so it checks what follows from these for any
//! order of arrival ([`order`]): a receive that was posted earlier, and takes the message too,
//! must have left before. It is still there if it ends later without a message, if it ends
//! never, or if it takes a message that was sent later. So it finds each message that overtakes
//! another one of its sender where two receives show it. It cannot tell in which order messages
//! of different senders arrive, nor that a receive is passed over for one that would have been
//! served by a third message.
//!
//! A message is *disturbed* when, while it runs, either process ends, revokes a segment or lacks
//! a page, or the route between is disturbed: it may fail then, or arrive; once at most in any
//! case.
//!
//! | module | holds |
//! |---|---|
//! | `items` | messages and receives |
//! | `completions` | what a completion says |
//! | `order` | which receive may take which message |
//! | `disturbances` | what excuses a failure |

mod completions;
mod disturbances;
mod items;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use qnic_abi::context::{CONTEXTS, POOL_PAGES};
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::PAGE_SIZE;
use qnic_nic::Limits;

pub(crate) use self::items::{How, Message, Pattern, Receive, Space};
use crate::expected_bytes::{difference, ExpectedBytes, Range};
use crate::machine::platform::Machine;
use crate::process::watched::Watched;
use crate::routes::Routes;
use crate::settings::{Others, Settings};

/// Bytes of the segment that a message worker sends from.
pub(crate) const OUTGOING: u64 = 40 * PAGE_SIZE as u64;

/// Bytes of the segment that it receives into.
pub(crate) const INCOMING: u64 = 48 * PAGE_SIZE as u64;

/// Bytes of its buffer pool.
pub(crate) const POOL_BYTES: u64 = (POOL_PAGES * PAGE_SIZE) as u64;

/// The process in a slot, or what is left of it.
struct Process {
    watched: Watched,
    /// First addresses of its segments.
    outgoing: u64,
    incoming: u64,
    /// What must stand in the segment that it receives into, and behind that in the pool.
    memory: ExpectedBytes,
    /// What has each context, by direction, and whether its end is told if all is well.
    contexts: [[Option<(u64, bool)>; CONTEXTS]; 2],
    /// Ends that were told.
    ends: u64,
    /// Messages under way.
    sends: BTreeSet<u64>,
    /// All receives, in the order of posting, and where each handle stands.
    receives: Vec<Receive>,
    handles: BTreeMap<u64, usize>,
    /// The segment that it receives into is being revoked.
    revoking: bool,
    /// When a process of this slot has last ended.
    ended: Option<u64>,
}

impl Process {
    fn new(watched: Watched, [outgoing, incoming]: [u64; 2], ended: Option<u64>) -> Self {
        Process {
            watched,
            outgoing,
            incoming,
            memory: ExpectedBytes::new(INCOMING + POOL_BYTES),
            contexts: [[None; CONTEXTS]; 2],
            ends: 0,
            sends: BTreeSet::new(),
            receives: Vec::new(),
            handles: BTreeMap::new(),
            revoking: false,
            ended,
        }
    }

    /// What stands in the memory that it receives into; `None` if it is dead.
    fn peek(&self, (start, length): Range) -> Option<Vec<u8>> {
        match start.checked_sub(INCOMING) {
            Some(start) => self.watched.peek_pool(start, length),
            None => self.watched.peek(self.incoming + start, length),
        }
    }

    fn posted(&self) -> usize {
        let posted = self.receives.iter();
        let posted = posted.filter(|receive| receive.end.is_none());
        posted.filter(|receive| receive.how == How::Receive).count()
    }
}

/// Checks all messages of one simulation.
pub(crate) struct MessageOracle {
    /// Slot of the first message worker.
    first: usize,
    processes: Vec<Process>,
    messages: BTreeMap<u64, Message>,
    routes: Routes,
    limits: Limits,
    next: u64,
    received: u64,
    bytes: u64,
}

/// The bytes of a message.
pub(crate) fn bytes_of(id: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    fastrand::Rng::with_seed(id).fill(&mut bytes);
    bytes
}

impl MessageOracle {
    pub(crate) fn new(settings: &Settings) -> Self {
        let slots = (settings.rdma_workers..).zip(settings.slots_of(Others::Messages));
        let process =
            |(slot, node): (usize, &usize)| Process::new(Watched::new(slot, *node), [0; 2], None);
        MessageOracle {
            first: settings.rdma_workers,
            processes: slots.map(process).collect(),
            messages: BTreeMap::new(),
            routes: Routes::default(),
            limits: settings.limits.clone(),
            next: 0,
            received: 0,
            bytes: 0,
        }
    }

    fn process(&mut self, slot: usize) -> &mut Process {
        &mut self.processes[slot - self.first]
    }

    /// Node and port of the process in a slot.
    fn name(&self, slot: usize) -> (u16, u16) {
        self.processes[slot - self.first].watched.name()
    }

    /// A process begins in a slot, with segments at these addresses.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        machine: &Arc<Machine>,
        space: u64,
        addresses: [u64; 2],
    ) {
        let process = self.process(slot);
        let watched = process.watched.next(machine, space);
        *process = Process::new(watched, addresses, process.ended);
    }

    pub(crate) fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.process(slot).watched.registered(frames);
    }

    /// Names a message or a receive that is going to be issued.
    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Tries to reserve memory for a receive, or for a message in the pool.
    pub(crate) fn reserve(&mut self, slot: usize, handle: u64, range: Range) -> bool {
        self.process(slot).memory.reserve(range, handle)
    }

    /// Gives up a reservation for what is not issued after all.
    pub(crate) fn release(&mut self, slot: usize, handle: u64) {
        self.process(slot).memory.release(handle);
    }

    /// A process has written into its pool, which begins behind its segment.
    pub(crate) fn wrote(&mut self, slot: usize, start: u64, bytes: &[u8]) {
        self.process(slot).memory.set(start, bytes);
    }

    /// A message is issued now.
    pub(crate) fn send(&mut self, id: u64, now: u64, mut message: Message) {
        let (from, to) = (message.from, message.to);
        let own = self.process(from).watched.node;
        let target = self.process(to);
        let lacks = target.watched.lacks_pages(now);
        let away = !target.watched.is_registered() || target.revoking || lacks;
        let (node, incarnation) = (target.watched.node, target.watched.incarnation);
        let unsettled = self.routes.are_unsettled(own, node, now);
        let process = self.process(from);
        message.disturbed = away || unsettled || process.watched.lacks_pages(now);
        message.ends = (process.watched.incarnation, incarnation);
        if let Some((context, notify)) = message.context {
            process.contexts[0][context] = Some((id, notify));
        }
        process.sends.insert(id);
        self.messages.insert(id, message);
    }

    /// A receive is issued now.
    pub(crate) fn post(&mut self, slot: usize, now: u64, mut receive: Receive) {
        let process = self.process(slot);
        let (own, lacks) = (process.watched.node, process.watched.lacks_pages(now));
        let unsettled = receive.pattern.source.is_some_and(|(node, _)| {
            let node = usize::from(node);
            self.routes.are_unsettled(own, node, now)
        });
        receive.disturbed = lacks || unsettled;
        let process = self.process(slot);
        process
            .handles
            .insert(receive.handle, process.receives.len());
        if let Some(context) = receive.context {
            process.contexts[1][context] = Some((receive.handle, true));
        }
        process.receives.push(receive);
    }

    /// The receive of a handle is cancelled now.
    pub(crate) fn cancel(&mut self, slot: usize, handle: u64) {
        let process = self.process(slot);
        if let Some(index) = process.handles.get(&handle) {
            process.receives[*index].cancelled = true;
        }
    }

    /// Returns true if nothing is under way between living processes: each message that its
    /// sender was told to be received has been.
    pub(crate) fn is_settled(&self) -> bool {
        self.processes
            .iter()
            .all(|process| process.sends.is_empty())
            && self.owed().is_none()
    }

    /// The first message that must arrive and has not.
    fn owed(&self) -> Option<(&u64, &Message)> {
        let mut messages = self.messages.iter();
        messages.find(|(_, message)| message.is_owed())
    }

    /// How many messages were received, and bytes of them.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.received, self.bytes)
    }

    /// Most receives that a process of a node has posted.
    pub(crate) fn most_posted(&self, node: usize) -> u64 {
        let processes = self.processes.iter();
        let here = processes
            .filter(|process| process.watched.node == node && process.watched.is_registered());
        here.map(|process| process.posted() as u64)
            .max()
            .unwrap_or(0)
    }

    /// What has been under way for the longest time, for messages.
    pub(crate) fn oldest(&self) -> Option<String> {
        let open = self.processes.iter().flat_map(|process| &process.sends);
        let open = open.filter_map(|id| Some((id, self.messages.get(id)?)));
        let (id, message) = open.min_by_key(|(id, _)| **id).or_else(|| self.owed())?;
        Some(format!("message {id} is not received: {message:?}"))
    }

    /// Nothing is under way any more: looks at all memory, and at what is posted still.
    ///
    /// # Panics
    /// If a byte or an order is wrong.
    pub(crate) fn audit(&self) {
        for (slot, process) in (self.first..).zip(&self.processes) {
            if !process.watched.is_registered() {
                continue;
            }
            self.check_order(process, true);
            let segment = process.peek((0, INCOMING));
            let mut memory = segment.expect("it is alive");
            memory.extend(process.peek((INCOMING, POOL_BYTES)).unwrap_or_default());
            // What a dead process has sent may come yet.
            let mut expected = process.memory.clone();
            for posted in process.receives.iter().filter(|it| it.end.is_none()) {
                expected.open(posted.range.0, posted.range.1);
            }
            if let Some(at) = difference(&memory, expected.all()) {
                panic!(
                    "process {slot}: byte {at} of the memory that it receives into is {:#x}, not {:?}",
                    memory[at],
                    expected.all()[at]
                );
            }
        }
    }
}
