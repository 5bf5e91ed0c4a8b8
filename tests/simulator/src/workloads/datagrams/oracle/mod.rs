//! What datagrams promise (H1 to H3, H6, H8; docs/datagrams.md), checked while datagram workers send
//! and receive.
//!
//! The oracle learns of each command when it is issued, and looks at each completion when the NIC
//! stores it. From command to completion what a command names is lent to the NIC
//! ([`Memory::lend`]); the NIC may touch nothing else of it, and nothing after that.
//!
//! # What is certain
//! | of | it |
//! |---|---|
//! | a packet | has one completion. It is refused for a wrong address, and fails if the route or its receiver was disturbed; then no process receives it |
//! | a buffer | has one completion, and is untouched unless that says Ok |
//! | what a buffer has | is a packet that was sent to that port of that node, byte for byte, with its header, and nothing behind it |
//! | a steered buffer | has the packet that names it; the others have packets that name none, in the order of their posting |
//! | a wire | delivers a packet as often as it doubles frames: once, and on a bad wire twice more |
//! | Exhausted | as many buffers are posted as there may be |
//!
//! # What it cannot see
//! Whether a packet that is lost was lost on the wire. When nothing breaks any more, each worker
//! sends to each other one until a packet arrives, which has to be soon.
//!
//! [`Memory::lend`]: crate::machine::memory::Memory::lend

mod completions;
mod items;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::page_table::PageAccess;
use qnic_nic::Limits;

pub(crate) use items::{bytes_of, Buffer, Packet};

use crate::machine::platform::Machine;
use crate::per_slot::PerSlot;
use crate::process::watched::Watched;
use crate::routes::Routes;
use crate::settings::{Faults, Settings};
use crate::workload::Oracle;

/// What stands in a buffer that is posted.
pub(crate) const FILL: u8 = 0xee;

/// The process in a slot, or what is left of it.
#[derive(Default)]
struct Process {
    watched: Watched,
    machine: Option<Arc<Machine>>,
    /// By handle, which is the order of their posting.
    posted: BTreeMap<u64, Buffer>,
    /// Number of the packet, by handle.
    sends: BTreeMap<u64, u32>,
    /// Commands of before a reset of the queue, whose completions may wait for room.
    forgotten: BTreeSet<u64>,
    /// Nodes of which a packet has arrived that was sent when nothing breaks any more.
    opened_by: BTreeSet<usize>,
    /// When one has died in this slot last.
    ended: Option<u64>,
}

impl Process {
    /// # Panics
    /// If none lives there.
    fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("a process that lives")
    }
}

/// Checks all datagrams of one simulation.
pub(crate) struct DatagramOracle {
    processes: PerSlot<Process>,
    /// By number.
    packets: BTreeMap<u32, Packet>,
    routes: Routes,
    limits: Limits,
    /// How often a packet to another node may arrive.
    copies: u32,
    last_handle: u64,
    last_packet: u32,
    received: u64,
    /// Malformed commands that workers of each node have issued.
    malformed: BTreeMap<usize, u64>,
}

impl DatagramOracle {
    pub(super) fn new(settings: &Settings, routes: &Routes) -> Self {
        let process = |slot| Process {
            watched: Watched::new(slot, settings.slots[slot]),
            ..Process::default()
        };
        // A wire doubles a frame, and hands on one more copy much later.
        let copies = match settings.options.faults.contains(Faults::DUPLICATE) {
            true => 3,
            false => 1,
        };
        DatagramOracle {
            processes: PerSlot::new(settings.others(), process),
            packets: BTreeMap::new(),
            routes: routes.clone(),
            limits: settings.limits.clone(),
            copies,
            last_handle: 0,
            last_packet: 0,
            received: 0,
            malformed: BTreeMap::new(),
        }
    }

    fn on_node(&self, node: usize) -> Option<&Process> {
        self.processes.values().find(|it| it.watched.node == node)
    }

    /// A process begins in a slot.
    pub(crate) fn begin(&mut self, slot: usize, machine: &Arc<Machine>, space: u64) {
        let process = &mut self.processes[slot];
        *process = Process {
            watched: process.watched.next(machine, space),
            machine: Some(machine.clone()),
            ended: process.ended,
            ..Process::default()
        };
    }

    /// A new handle.
    pub(crate) fn handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    /// Number of a new packet, which its data and its header follow from.
    pub(crate) fn number(&mut self) -> u32 {
        self.last_packet += 1;
        self.last_packet
    }

    /// A process posts a buffer now, which is filled.
    pub(crate) fn post(&mut self, slot: usize, buffer: Buffer) {
        let process = &mut self.processes[slot];
        if !buffer.wrong {
            let memory = &process.machine().memory;
            let length = buffer.length.into();
            memory.lend(buffer.address, length, PageAccess::Write);
            let record = qnic_abi::datagram::RECORD_BYTES as u64;
            memory.lend(buffer.record, record, PageAccess::Write);
        }
        process.posted.insert(buffer.handle, buffer);
    }

    /// A process sends a packet now.
    pub(crate) fn send(&mut self, slot: usize, packet: Packet) {
        let process = &mut self.processes[slot];
        if packet.is_lent() {
            let length = packet.length.into();
            let memory = &process.machine().memory;
            memory.lend(packet.address, length, PageAccess::Read);
        }
        process.sends.insert(packet.handle, packet.number);
        self.packets.insert(packet.number, packet);
    }

    /// A process takes buffers of a port back now: that of a handle, or all.
    pub(crate) fn withdraw(&mut self, slot: usize, port: u16, handle: Option<u64>) {
        let posted = self.processes[slot].posted.values_mut();
        for buffer in posted.filter(|buffer| buffer.port == port) {
            buffer.withdrawn |= handle.is_none_or(|handle| handle == buffer.handle);
        }
    }

    /// A process issues a malformed command now.
    pub(crate) fn malform(&mut self, slot: usize) {
        let node = self.processes[slot].watched.node;
        *self.malformed.entry(node).or_default() += 1;
    }

    /// The queue of a process was reset: all is its own again.
    pub(crate) fn queue_reset(&mut self, slot: usize) {
        let process = &mut self.processes[slot];
        let posted = std::mem::take(&mut process.posted);
        let sends = std::mem::take(&mut process.sends);
        process.forgotten.extend(posted.keys().chain(sends.keys()));
        let memory = process.machine().memory.clone();
        for buffer in posted.values() {
            buffer.take_back(&memory);
        }
        for number in sends.values() {
            self.packets[number].take_back(&memory);
        }
    }

    /// Buffers that are posted, those that are `steered` or the others: node, port and handle.
    pub(crate) fn buffers(&self, steered: bool) -> Vec<(u16, u16, u64)> {
        let living = self.processes.values();
        let living = living.filter(|it| it.watched.is_alive());
        let buffers = living.flat_map(|process| {
            let node = process.watched.node as u16;
            process.posted.values().map(move |buffer| (node, buffer))
        });
        let chosen = buffers.filter(|(_, buffer)| buffer.steered == steered);
        chosen
            .map(|(node, buffer)| (node, buffer.port, buffer.handle))
            .collect()
    }

    /// Nodes with processes that a process has not reached since nothing breaks any more.
    pub(crate) fn not_opened(&self, slot: usize) -> Vec<u16> {
        let node = self.processes[slot].watched.node;
        let living = self.processes.values();
        let living = living.filter(|process| process.watched.is_registered());
        let missing = living.filter(|process| !process.opened_by.contains(&node));
        missing.map(|process| process.watched.node as u16).collect()
    }
}

impl Oracle for DatagramOracle {
    fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.processes[slot].watched.registered(frames);
    }

    fn end(&mut self, slot: usize, now: u64) {
        let process = &mut self.processes[slot];
        process.watched.end();
        process.posted.clear();
        process.sends.clear();
        process.ended = Some(now);
    }

    fn stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        for entry in self.processes[slot].watched.completions(offset, value) {
            self.completed(slot, &entry, now);
        }
    }

    /// Buffers that the processes of the node have posted.
    fn budget(&self, node: usize, name: &str) -> Option<u64> {
        let posted = self.on_node(node)?.posted.len() as u64;
        (name == "datagram_buffers").then_some(posted)
    }

    fn malformed(&self, node: usize) -> u64 {
        self.malformed.get(&node).copied().unwrap_or(0)
    }

    /// Nothing is under way but buffers, and all processes that live have reached each other, and
    /// themselves.
    fn is_settled(&self) -> bool {
        self.oldest().is_none()
    }

    fn oldest(&self) -> Option<String> {
        let mut sends = self.processes.values().flat_map(|it| it.sends.values());
        if let Some(number) = sends.next() {
            return Some(format!("it is not sent: {:?}", self.packets[number]));
        }
        let mut posted = self.processes.values().flat_map(|it| it.posted.values());
        if let Some(buffer) = posted.find(|buffer| buffer.withdrawn) {
            return Some(format!("it is not given back: {buffer:?}"));
        }
        let slots = self.processes.iter();
        let mut slots = slots.filter(|(_, process)| process.watched.is_registered());
        slots.find_map(|(slot, _)| {
            let missing = self.not_opened(slot);
            let says = format!("process {slot} does not reach nodes {missing:?}");
            (!missing.is_empty()).then_some(says)
        })
    }

    fn audit(&self) {
        let open = self.oldest();
        assert!(open.is_none(), "{open:?}");
    }

    /// Packets that were sent, and those that have arrived in a buffer; some of them more than once.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        let sent = self.packets.len() as u64;
        vec![("datagrams", sent), ("datagrams received", self.received)]
    }
}
