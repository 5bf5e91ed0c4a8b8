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
//! case. One that names an incarnation of a process reaches no other one.
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
use qnic_nic::{Limits, STAGED_OVERHEAD};

pub(crate) use self::items::{How, Message, Pattern, Receive, Space};
use crate::expected_bytes::{ExpectedBytes, Range};
use crate::machine::platform::Machine;
use crate::per_slot::PerSlot;
use crate::process::watched::{UnavailablePage, Watched};
use crate::routes::Routes;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::workload::Oracle;

/// Bytes of the segment that a message worker sends from.
pub(crate) const OUTGOING: u64 = 40 * PAGE_SIZE as u64;

/// Bytes of the segment that it receives into.
pub(crate) const INCOMING: u64 = 48 * PAGE_SIZE as u64;

/// Bytes of its buffer pool.
pub(crate) const POOL_BYTES: u64 = (POOL_PAGES * PAGE_SIZE) as u64;

/// The process in a slot, or what is left of it.
#[derive(Default)]
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
    /// The incarnation that a process of this slot has stored last.
    announced: u32,
}

impl Process {
    fn new(watched: Watched, [outgoing, incoming]: [u64; 2], ended: Option<u64>) -> Self {
        Process {
            watched,
            outgoing,
            incoming,
            memory: ExpectedBytes::new(INCOMING + POOL_BYTES),
            ended,
            ..Process::default()
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
    processes: PerSlot<Process>,
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
    pub(super) fn new(settings: &Settings, routes: &Routes) -> Self {
        let process = |slot| Process::new(Watched::new(slot, settings.slots[slot]), [0; 2], None);
        MessageOracle {
            processes: PerSlot::new(settings.others(), process),
            messages: BTreeMap::new(),
            routes: routes.clone(),
            limits: settings.limits.clone(),
            next: 0,
            received: 0,
            bytes: 0,
        }
    }

    /// Node and port of the process in a slot.
    fn name(&self, slot: usize) -> (u16, u16) {
        self.processes[slot].watched.name()
    }

    /// The number of the process in a slot, of all that it has had.
    pub(crate) fn incarnation(&self, slot: usize) -> u32 {
        self.processes[slot].watched.incarnation
    }

    /// The process in a slot has stored its incarnation: others may name it.
    pub(crate) fn announce(&mut self, slot: usize) {
        let process = &mut self.processes[slot];
        process.announced = process.watched.incarnation;
    }

    /// The incarnation that is named of the process in a slot, which may have ended.
    pub(crate) fn announced(&self, slot: usize) -> u32 {
        self.processes[slot].announced
    }

    /// A process begins in a slot, with segments at these addresses.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        machine: &Arc<Machine>,
        space: u64,
        addresses: [u64; 2],
    ) {
        let process = &mut self.processes[slot];
        let watched = process.watched.next(machine, space);
        *process = Process {
            announced: process.announced,
            ..Process::new(watched, addresses, process.ended)
        };
    }

    /// Names a message or a receive that is going to be issued.
    pub(crate) fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Tries to reserve memory for a receive, or for a message in the pool.
    pub(crate) fn reserve(&mut self, slot: usize, handle: u64, range: Range) -> bool {
        self.processes[slot].memory.reserve(range, handle)
    }

    /// Gives up a reservation for what is not issued after all.
    pub(crate) fn release(&mut self, slot: usize, handle: u64) {
        self.processes[slot].memory.release(handle);
    }

    /// A process has written into its pool, which begins behind its segment.
    pub(crate) fn wrote(&mut self, slot: usize, start: u64, bytes: &[u8]) {
        self.processes[slot].memory.set(start, bytes);
    }

    /// A message is issued now.
    pub(crate) fn send(&mut self, id: u64, now: u64, mut message: Message) {
        let (from, to) = (message.from, message.to);
        let own = self.processes[from].watched.node;
        let target = &mut self.processes[to];
        let lacks = target.watched.lacks_pages(now);
        let away = !target.watched.is_registered() || target.revoking || lacks;
        let (node, incarnation) = (target.watched.node, target.watched.incarnation);
        let unsettled = self.routes.are_unsettled(own, node, now);
        let process = &mut self.processes[from];
        let another = message.named != 0 && message.named != incarnation;
        message.disturbed = away || another || unsettled || process.watched.lacks_pages(now);
        message.ends = (process.watched.incarnation, incarnation);
        if let Some((context, notify)) = message.context {
            process.contexts[0][context] = Some((id, notify));
        }
        process.sends.insert(id);
        self.messages.insert(id, message);
    }

    /// Returns true if a process has the share of another one's staging memory for a message, beside
    /// all that it has sent and that has not been received.
    pub(crate) fn has_share(&self, from: usize, to: usize, length: u64) -> bool {
        let incarnation = self.processes[to].watched.incarnation;
        let there = |it: &&Message| {
            let lives = it.ends.1 == incarnation || it.sent.is_none();
            (it.from, it.to) == (from, to) && it.received.is_none() && lives
        };
        let there = self.messages.values().filter(there);
        let cost = |length: u64| length + u64::from(STAGED_OVERHEAD);
        let used: u64 = there.map(|message| cost(message.length)).sum();
        used + cost(length) <= self.limits.staged_bytes_per_sender.into()
    }

    /// Returns true if a message of a process runs that was issued behind that number.
    pub(crate) fn sends_behind(&self, slot: usize, number: u64) -> bool {
        let mut sends = self.processes[slot].sends.range(number..);
        sends.next().is_some()
    }

    /// A receive is issued now.
    pub(crate) fn post(&mut self, slot: usize, now: u64, mut receive: Receive) {
        let process = &mut self.processes[slot];
        let (own, lacks) = (process.watched.node, process.watched.lacks_pages(now));
        let unsettled = receive.pattern.source.is_some_and(|(node, _)| {
            let node = usize::from(node);
            self.routes.are_unsettled(own, node, now)
        });
        receive.disturbed = lacks || unsettled;
        let process = &mut self.processes[slot];
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
        let process = &mut self.processes[slot];
        if let Some(index) = process.handles.get(&handle) {
            process.receives[*index].cancelled = true;
        }
    }

    /// The first message that must arrive and has not.
    fn owed(&self) -> Option<(&u64, &Message)> {
        let mut messages = self.messages.iter();
        messages.find(|(_, message)| message.is_owed())
    }
}

impl Oracle for MessageOracle {
    fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.processes[slot].watched.registered(frames);
    }

    fn end(&mut self, slot: usize, now: u64) {
        self.process_ends(slot, now);
    }

    fn stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        self.word_stored(slot, offset, value, now);
    }

    fn disturb_route(&mut self, a: usize, b: usize) {
        self.route_disturbed(a, b);
    }

    fn waits_for(&self, node: usize, since: u64) -> Option<String> {
        let processes = self.processes.iter();
        let others = processes.filter(|(_, it)| it.watched.node != node && it.watched.is_alive());
        let mut waiting = others.flat_map(|(slot, process)| {
            let open = process
                .receives
                .iter()
                .filter(|it| it.waits_for(node, since));
            open.map(move |receive| format!("process {slot}: {receive:?}"))
        });
        waiting.next()
    }

    fn has_pages(&self) -> bool {
        true
    }

    fn make_unavailable(&mut self, slot: usize, schedule: &Schedule) -> Option<UnavailablePage> {
        let process = &mut self.processes[slot];
        let page = process
            .watched
            .make_unavailable(|| match schedule.below(2) {
                0 => process.outgoing + schedule.range(0..OUTGOING),
                _ => process.incoming + schedule.range(0..INCOMING),
            })?;
        self.page_lost(slot);
        Some(page)
    }

    fn make_available(&mut self, page: UnavailablePage, now: u64) {
        self.processes[page.slot].watched.make_available(page, now);
    }

    /// Most receives that a process of the node has posted.
    fn budget(&self, node: usize, name: &str) -> Option<u64> {
        let here = self.processes.values();
        let here = here.filter(|it| it.watched.node == node && it.watched.is_registered());
        let most = here.map(|process| process.posted() as u64).max();
        (name == "receives_of_process").then_some(most.unwrap_or(0))
    }

    /// Each message that its sender was told to be received has been.
    fn is_settled(&self) -> bool {
        self.processes.values().all(|it| it.sends.is_empty()) && self.owed().is_none()
    }

    fn oldest(&self) -> Option<String> {
        let open = self.processes.values().flat_map(|process| &process.sends);
        let open = open.filter_map(|id| Some((id, self.messages.get(id)?)));
        let (id, message) = open.min_by_key(|(id, _)| **id).or_else(|| self.owed())?;
        Some(format!("message {id} is not received: {message:?}"))
    }

    /// Looks at what is posted still, too.
    fn audit(&self) {
        for (slot, process) in self.processes.iter() {
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
            expected.audit(slot, "the memory that it receives into", &memory);
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![("messages", self.received), ("message bytes", self.bytes)]
    }
}
