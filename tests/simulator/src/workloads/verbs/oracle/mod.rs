//! The oracle of verbs workers: what is posted to queue pairs, and how it ends.
//!
//! It knows what processes post, and learns of completions when processes take them from their rings;
//! it looks at memory at that moment. It does not know when a NIC begins a work request. So a write
//! that has ended well is compared only where no later one of its queue pair goes, and data of a read
//! only where none goes that the read does not keep back by a fence.
//!
//! Unreliable connections, and queue pairs for datagrams, which stand as a connection here too, may lose what they
//! send, and on wires that double frames or change their order so do messages. But what comes is what was sent, and whole;
//! on lossless wires once, in order, and a write with an immediate with all of its bytes; and all that is posted has its
//! completion.
//!
//! A connection is *weak* if anything has happened that lets work of it fail. Then any error is
//! accepted that such a thing can have; but what has ended well is right in any case, nothing ends
//! twice or out of order, and all ends.

mod completions;
mod items;

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::verbs::Event;

pub(super) use self::items::{Address, Receive, Work};
use self::items::{Connection, Half};
use super::{BASE, BYTES};
use crate::machine::platform::Machine;
use crate::per_slot::PerSlot;
use crate::process::watched::{UnavailablePage, Watched};
use crate::routes::Routes;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::workload::Oracle;

/// A connection, and which of its halves.
pub(super) type Name = (u64, usize);

/// Numbers of receives have this bit.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The process in a slot.
struct Process {
    watched: Watched,
    /// Its NIC has its completion queue.
    has_queue: bool,
    /// Its NIC has its shared receive queue.
    shares: bool,
    /// Receives that it has posted there.
    shared: BTreeMap<u64, Receive>,
}

pub(super) struct VerbsOracle {
    routes: Routes,
    /// Wires lose nothing, and keep the order.
    lossless: bool,
    processes: PerSlot<Process>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl VerbsOracle {
    pub(super) fn new(settings: &Settings, routes: &Routes) -> Self {
        let process = |slot: usize| Process {
            watched: Watched::new(slot, settings.slots[slot]),
            has_queue: false,
            shares: false,
            shared: BTreeMap::new(),
        };
        VerbsOracle {
            routes: routes.clone(),
            lossless: settings.options.lossless,
            processes: PerSlot::new(settings.others(), process),
            connections: BTreeMap::new(),
            next: 0,
            counts: BTreeMap::new(),
        }
    }

    /// A process begins in a slot.
    pub(super) fn begin(&mut self, slot: usize, machine: &Arc<Machine>, space: u64) {
        let process = &mut self.processes[slot];
        process.watched = process.watched.next(machine, space);
        (process.has_queue, process.shares) = (false, false);
        process.shared.clear();
    }

    /// Its NIC has its completion queue, or not any more.
    pub(super) fn set_queue(&mut self, slot: usize, has_queue: bool) {
        self.processes[slot].has_queue = has_queue;
    }

    /// The same of its shared receive queue.
    pub(super) fn set_shares(&mut self, slot: usize, shares: bool) {
        self.processes[slot].shares = shares;
    }

    /// A receive is about to be posted to the shared queue of the process in a slot.
    pub(super) fn post_shared(&mut self, slot: usize, receive: Receive) {
        self.processes[slot].shared.insert(receive.id, receive);
    }

    /// Some other process that lives, or the same.
    pub(super) fn some_process(&self, schedule: &Schedule) -> Option<usize> {
        let living = self.processes.iter();
        let living: Vec<usize> = living
            .filter(|(_, process)| process.has_queue && process.watched.is_alive())
            .map(|(slot, _)| slot)
            .collect();
        (!living.is_empty()).then(|| living[schedule.below(living.len())])
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Counts something.
    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A queue pair is to be connected with one of the process in a slot.
    pub(super) fn offer(
        &mut self,
        (address, base): (Address, u64),
        to: usize,
        (weak, eager): (bool, bool),
        now: u64,
    ) -> u64 {
        let number = self.number();
        let lacks = self.lacks_pages(address.slot, now);
        let connection = Connection {
            to,
            halves: vec![Half::new(address, base, lacks)],
            begun: now,
            eager,
            weak: weak || lacks || self.lacks_pages(to, now),
        };
        self.connections.insert(number, connection);
        number
    }

    /// Connections that wait for the process in a slot.
    pub(super) fn offers(&self, slot: usize) -> Option<(u64, Address)> {
        let waits = |it: &&Connection| it.to == slot && it.halves.len() == 1 && !it.halves[0].over;
        let mut all = self.connections.iter();
        let (number, offer) = all.find(|(_, connection)| waits(connection))?;
        Some((*number, offer.halves[0].address))
    }

    /// Its second half is there. Returns false if the first is over.
    pub(super) fn accept(
        &mut self,
        connection: u64,
        (address, base): (Address, u64),
        now: u64,
    ) -> bool {
        let lacks = self.lacks_pages(address.slot, now);
        let connection = self.connections.get_mut(&connection);
        let open = connection.filter(|it| it.halves.len() == 1 && !it.halves[0].over);
        let halves = open.map(|it| it.halves.push(Half::new(address, base, lacks)));
        halves.is_some()
    }

    /// The peer of a half, if it is there.
    pub(super) fn peer(&self, (connection, side): Name) -> Option<Address> {
        let halves = &self.connections.get(&connection)?.halves;
        Some(halves.get(1 - side)?.address)
    }

    fn half(&mut self, (connection, side): Name) -> &mut Half {
        let connection = self.connections.get_mut(&connection);
        &mut connection.expect("a connection").halves[side]
    }

    /// It can send and receive.
    pub(super) fn set_ready(&mut self, name: Name) {
        self.half(name).ready = true;
    }

    /// Returns true if it may send.
    pub(super) fn may_send(&self, (connection, side): Name) -> bool {
        let connection = &self.connections[&connection];
        let ready = connection.halves.iter().all(|half| half.ready);
        let can = connection.halves.get(side).is_some_and(|half| half.ready);
        connection.halves.len() == 2 && (ready || connection.eager && side == 1 && can)
    }

    /// Returns true if its peer is no more.
    pub(super) fn is_over(&self, (connection, side): Name) -> bool {
        let connection = &self.connections[&connection];
        let peer = connection.halves.get(1 - side);
        peer.map_or(!self.processes[connection.to].watched.is_alive(), |peer| {
            peer.over
        })
    }

    /// It has nothing more to send. Returns true if neither side has.
    pub(super) fn finish(&mut self, name: Name) -> bool {
        let half = self.half(name);
        half.finished = half.works.is_empty();
        let halves = &self.connections[&name.0].halves;
        halves.len() == 2 && halves.iter().all(|half| half.finished)
    }

    /// Something was done that lets work of it fail.
    pub(super) fn weaken(&mut self, (connection, _): Name) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.weak = true;
        }
    }

    /// A half is about to take its key back.
    pub(super) fn take_key_back(&mut self, name: Name) {
        self.weaken(name);
        self.half(name).weak = true;
    }

    /// A work request is about to be posted.
    pub(super) fn post(&mut self, name: Name, work: Work) {
        let may_be_lost = self.connections[&name.0].may_lose(name.1, &work);
        let half = self.half(name);
        half.finished = false;
        if half.is_unreliable() && work.is_write() {
            half.writes.push(work.written(may_be_lost));
        }
        if work.needs_receive() {
            half.messages.push_back(work.message(may_be_lost));
        }
        half.mistaken |= work.wrong.is_some();
        half.works.push_back(work);
    }

    /// A receive is about to be posted.
    pub(super) fn post_receive(&mut self, name: Name, receive: Receive) {
        let half = self.half(name);
        half.mistaken |= receive.wrong;
        half.receives.push_back(receive);
    }

    /// It is about to be closed.
    pub(super) fn close(&mut self, name: Name) {
        self.half(name).over = true;
    }

    /// All of it has been flushed, and read. Then it is forgotten.
    pub(super) fn closed(&mut self, name: Name) {
        let connection = self.connections.get_mut(&name.0);
        let (half, peer) = connection.expect("a connection").split(name.1);
        let left = (&half.works, &half.receives);
        assert!(
            left.0.is_empty() && left.1.is_empty(),
            "{name:?} was flushed, and this has not ended: {left:?}"
        );
        assert!(
            half.blamed || !half.flushed,
            "{name:?}: all was flushed, and nothing says why"
        );
        if let Some(peer) = peer.filter(|peer| !peer.is_unreliable()) {
            let (received, confirmed) = (half.received, peer.confirmed);
            assert!(
                received >= confirmed,
                "{name:?} has received {received} messages, of which its peer says {confirmed}"
            );
        }
        half.gone = true;
        self.forget_gone();
    }

    fn forget_gone(&mut self) {
        self.connections
            .retain(|_, it| it.halves.iter().any(|half| !half.gone));
    }

    /// The driver has told something of a queue pair.
    pub(super) fn told(&self, (connection, side): Name, event: Event) {
        let connection = &self.connections[&connection];
        let half = &connection.halves[side];
        let explained = match event {
            Event::Established => true,
            Event::LastReceive => half.address.shares,
            // Its peer cannot let it fail.
            Event::Fatal if half.is_unreliable() => half.weak || half.mistaken,
            Event::AccessError | Event::RequestError if half.is_unreliable() => false,
            Event::AccessError | Event::RequestError | Event::Fatal => connection.may_fail(),
            _ => false,
        };
        assert!(explained, "half {side} has {event:?} for no reason");
    }

    fn lacks_pages(&self, slot: usize, now: u64) -> bool {
        self.processes[slot].watched.lacks_pages(now)
    }

    /// Those of the process in a slot may fail.
    fn weaken_slot(&mut self, slot: usize) {
        self.halves_of(slot).for_each(|half| half.weak = true);
        for connection in self.connections.values_mut() {
            let has = |half: &Half| half.address.slot == slot && !half.gone;
            connection.weak |= connection.to == slot || connection.halves.iter().any(has);
        }
    }

    /// Halves of the process in a slot that are there.
    fn halves_of(&mut self, slot: usize) -> impl Iterator<Item = &mut Half> {
        let halves = self.connections.values_mut().flat_map(|it| &mut it.halves);
        halves.filter(move |half| half.address.slot == slot && !half.gone)
    }
}

impl Oracle for VerbsOracle {
    fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.processes[slot].watched.registered(frames);
    }

    fn killed(&mut self, slot: usize) {
        self.halves_of(slot).for_each(|half| half.over = true);
    }

    fn end(&mut self, slot: usize, _now: u64) {
        for half in self.halves_of(slot) {
            (half.over, half.gone) = (true, true);
        }
        self.processes[slot].watched.end();
        self.forget_gone();
    }

    fn disturb_route(&mut self, a: usize, b: usize) {
        let nodes = (a.min(b), a.max(b));
        for connection in self.connections.values_mut() {
            let from = connection.halves[0].address.node;
            let to = self.processes[connection.to].watched.node;
            connection.weak |= nodes == (from.min(to), from.max(to));
        }
    }

    fn has_pages(&self) -> bool {
        true
    }

    fn make_unavailable(&mut self, slot: usize, schedule: &Schedule) -> Option<UnavailablePage> {
        self.weaken_slot(slot);
        let address = || BASE + schedule.range(0..BYTES);
        self.processes[slot].watched.make_unavailable(address)
    }

    fn make_available(&mut self, page: UnavailablePage, now: u64) {
        self.processes[page.slot].watched.make_available(page, now);
    }

    fn budget(&self, node: usize, name: &str) -> Option<u64> {
        let of_node = self.processes.values().filter(|it| it.watched.node == node);
        match name {
            "verbs_completion_queues" => Some(of_node.filter(|it| it.has_queue).count() as u64),
            "verbs_shared_receive_queues" => Some(of_node.filter(|it| it.shares).count() as u64),
            // Looked at when there are no connections.
            "verbs_queue_pairs" => Some(0),
            _ => None,
        }
    }

    fn is_settled(&self) -> bool {
        self.connections.is_empty()
    }

    fn oldest(&self) -> Option<String> {
        let halves = self.connections.iter();
        let halves =
            halves.flat_map(|(number, it)| it.halves.iter().map(move |half| (number, half)));
        let works = halves.flat_map(|(number, half)| {
            let of = (*number, half.address);
            half.works.iter().map(move |work| (of, work))
        });
        let oldest = works.min_by_key(|(_, work)| work.issued);
        oldest.map(|(of, work)| format!("of connection {of:?}: {work:?}"))
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts
            .iter()
            .map(|(name, count)| (*name, *count))
            .collect()
    }
}
