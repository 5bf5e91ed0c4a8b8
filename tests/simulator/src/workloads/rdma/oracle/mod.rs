//! What must be true, checked as soon as it can be known.
//!
//! The oracle sees each store of a NIC into a host area ([`RdmaOracle::stored`]):
//! a completion, an error or a notification is checked at the instant of that
//! store, against what stands in the memory of the other end at that instant (N9, N11, N18,
//! N20). What must hold at which store: `docs/simulation.md`.
//!
//! A transfer is *disturbed* when, while it runs, either end dies, is revoked or
//! reset, or the route between is cut: it may fail then, and what it wrote is open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use qnic_abi::host_area::{HOST_PAGES, OPERATIONS};
use qnic_abi::PAGE_SIZE;
use qnic_nic::Limits;

use super::increments::{self, Count, ROOM};

use self::notifications::ExpectedNotification;
use self::transfer::{Export, Op};
pub(crate) use self::transfer::{ExportState, Kind, Plan};
use crate::expected_bytes::{ExpectedByte, ExpectedBytes, Range};
use crate::machine::platform::Machine;
use crate::process::watched::{UnavailablePage, Watched};
use crate::routes::{pair, Routes};
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::workload::Oracle;

mod notifications;
mod stores;
mod transfer;

/// Bytes of a target that one sender writes to and reads from.
pub(crate) const SECTION: u64 = 3 * PAGE_SIZE as u64 + 700;

/// Bytes of the local segment that take what is read; as many in front of them
/// are the source of what is written.
pub(crate) const HALF: u64 = 5 * PAGE_SIZE as u64;

/// Of the handle of a fence; the other bits name the write that it is for.
pub(crate) const FENCE: u64 = 1 << 62;

/// How long a transfer may take that nothing disturbs, in nanoseconds, whatever becomes of others of its
/// process: less than it takes until a silent peer is given up (N15), and what is lost on its own route.
struct LongestWait {
    most: u64,
    /// For each window of frames that is lost.
    again: u64,
    window: u64,
}

impl LongestWait {
    fn new(limits: &Limits) -> Self {
        let half = limits.peer_timeout / 2;
        // Where a lost frame is sent again so seldom, the wire alone may take that long.
        let is_seldom = limits.retransmit_ceiling > half / 20;
        let most = match limits.operations {
            OPERATIONS if is_seldom => limits.peer_timeout,
            OPERATIONS => half,
            // The NICs run fewer at once than a process has.
            _ => u64::MAX,
        };
        LongestWait {
            most,
            // A round trip is shorter.
            again: 2 * limits.retransmit_ceiling,
            window: limits.window.into(),
        }
    }

    /// The same for a transfer on whose route so many frames were lost meanwhile.
    fn with(&self, losses: u64) -> u64 {
        self.most.saturating_add(losses / self.window * self.again)
    }
}

/// First number of the notifications of a sender to any target.
pub(crate) fn first_notification(sender: usize) -> u32 {
    1 + 2 * sender as u32
}

/// The process in a slot, or what is left of it.
#[derive(Default)]
struct Process {
    watched: Watched,
    /// First address of its target, and of its local segment.
    target: u64,
    local: u64,
    /// What must stand in its target, by sender, and in its word.
    sections: Vec<ExpectedBytes>,
    count: Count,
    /// Ranges of the local segment in use: sources of writes, and room for what is read.
    local_segment: ExpectedBytes,
    ops: Vec<Op>,
    /// Writes and others issued to each target: it is the lane.
    issued: BTreeMap<usize, [u64; 2]>,
    errors: u64,
    /// Writes for which a fence waits that was not told.
    fences: BTreeSet<u64>,
    /// Notifying writes, those of former incarnations too, by target, its incarnation,
    /// and number.
    notifications: BTreeMap<(usize, u32, u32), Vec<ExpectedNotification>>,
    signals: BTreeMap<u32, u64>,
    exports: BTreeMap<u64, Export>,
}

impl Process {
    fn new(watched: Watched, [target, local]: [u64; 2], count: usize) -> Self {
        Process {
            watched,
            target,
            local,
            sections: vec![ExpectedBytes::new(SECTION); count],
            local_segment: ExpectedBytes::new(2 * HALF),
            ..Process::default()
        }
    }
}

/// What was checked.
#[derive(Debug, Default)]
struct Checked {
    /// Transfers that ended well, and bytes of them; and those that failed, each with a reason.
    complete: u64,
    bytes: u64,
    failed: u64,
    notifications: u64,
    /// Increments that were executed for sure.
    increments: u64,
    /// Transfers that have told their end themselves.
    told: u64,
    /// Fences of sources that were told.
    fences: u64,
}

/// The oracle of one simulation.
pub(crate) struct RdmaOracle {
    processes: Vec<Process>,
    routes: Routes,
    next: u64,
    checked: Checked,
    /// There are streams of writes, none of which may fail, and nothing else is checked.
    streams: bool,
    longest_wait: LongestWait,
}

impl RdmaOracle {
    /// An oracle for slots which are all empty.
    pub(super) fn new(settings: &Settings, routes: &Routes, streams: bool) -> Self {
        let nodes = settings.slots[..settings.rdma_workers].iter().enumerate();
        let process =
            |(slot, node): (usize, &usize)| Process::new(Watched::new(slot, *node), [0; 2], 0);
        RdmaOracle {
            processes: nodes.map(process).collect(),
            routes: routes.clone(),
            next: 1,
            checked: Checked::default(),
            streams,
            longest_wait: LongestWait::new(&settings.limits),
        }
    }

    /// A process begins in a slot.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        machine: &Arc<Machine>,
        space: u64,
        addresses: [u64; 2],
    ) {
        let count = self.processes.len();
        let process = &mut self.processes[slot];
        let watched = process.watched.next(machine, space);
        let notifications = std::mem::take(&mut process.notifications);
        *process = Process::new(watched, addresses, count);
        process.notifications = notifications;
    }

    /// A segment of the target in a slot is exported.
    pub(crate) fn exported(&mut self, slot: usize, key: u64) {
        let process = &mut self.processes[slot];
        let export = Export {
            incarnation: process.watched.incarnation,
            state: ExportState::Live,
        };
        process.exports.insert(key, export);
    }

    /// A segment is being revoked, or is.
    pub(crate) fn revoke(&mut self, slot: usize, key: u64, state: ExportState) {
        if state == ExportState::Revoking {
            self.disturb_target(slot);
        }
        if let Some(export) = self.processes[slot].exports.get_mut(&key) {
            export.state = state;
        }
    }

    /// The local segment of a process is being revoked.
    pub(crate) fn revoke_local(&mut self, slot: usize) {
        for op in &mut self.processes[slot].ops {
            op.disturbed = true;
        }
    }

    /// Whether a key still opens something; `None` if it is not known.
    pub(crate) fn is_live(&self, slot: usize, key: u64) -> Option<bool> {
        let export = self.processes[slot].exports.get(&key)?;
        Some(export.state == ExportState::Live)
    }

    fn disturb_target(&mut self, slot: usize) {
        let incarnation = self.processes[slot].watched.incarnation;
        for process in &mut self.processes {
            for op in &mut process.ops {
                op.disturbed |= op.plan.target == slot && op.incarnation == incarnation;
            }
        }
    }

    /// Names a transfer that is going to be issued.
    pub(crate) fn name(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Tries to reserve the range of its target that a transfer uses.
    pub(crate) fn reserve(
        &mut self,
        id: u64,
        (slot, target): (usize, usize),
        range: Range,
    ) -> bool {
        let section = self.processes[target].sections.get_mut(slot);
        section.is_some_and(|section| section.reserve(range, id))
    }

    /// Tries to reserve a range of the local segment, too.
    pub(crate) fn reserve_local(&mut self, id: u64, slot: usize, range: Range) -> bool {
        self.processes[slot].local_segment.reserve(range, id)
    }

    /// Gives up the reservations for a transfer that is not issued after all.
    pub(crate) fn give_up(&mut self, id: u64, slot: usize, target: usize) {
        if let Some(section) = self.processes[target].sections.get_mut(slot) {
            section.release(id);
        }
        self.processes[slot].local_segment.release(id);
    }

    /// What a read of a section must give.
    pub(crate) fn expected(
        &self,
        (slot, target): (usize, usize),
        (start, length): Range,
    ) -> Vec<ExpectedByte> {
        let section = &self.processes[target].sections[slot];
        section.get(start, length).to_vec()
    }

    /// A transfer whose ranges are reserved is issued now.
    pub(crate) fn issue(&mut self, slot: usize, command: u64, now: u64, plan: Plan) {
        let target = &mut self.processes[plan.target];
        let export = target.exports.get(&plan.key).copied();
        let stale = export.is_none_or(|e| e.state == ExportState::Revoked);
        let revoking = export.is_some_and(|e| e.state == ExportState::Revoking);
        let incarnation = export.map_or(target.watched.incarnation, |export| export.incarnation);
        let node = target.watched.node;
        let good = plan.wrong.is_none() && !stale;
        if good && matches!(plan.kind, Kind::Write { .. }) {
            target.sections[slot].open(plan.start, plan.length);
        }
        let own = self.processes[slot].watched.node;
        let unsettled = self.routes.are_unsettled(node, own, now);
        let lacks_pages =
            [slot, plan.target].map(|end| self.processes[end].watched.lacks_pages(now));
        let process = &mut self.processes[slot];
        let issued = process.issued.entry(plan.target).or_default();
        let ordinal = &mut issued[usize::from(!matches!(plan.kind, Kind::Write { .. }))];
        let number = *ordinal;
        *ordinal += 1;
        if let Some(number) = plan.kind.notification().filter(|_| good) {
            let key = (plan.target, incarnation, number);
            let expected = ExpectedNotification {
                id: plan.id,
                certain: true,
            };
            process.notifications.entry(key).or_default().push(expected);
        }
        process.ops.push(Op {
            command,
            number,
            issued: now,
            losses: self.routes.losses(node, own),
            incarnation,
            stale,
            disturbed: revoking || unsettled || lacks_pages.contains(&true),
            failed: None,
            told: None,
            plan,
        });
    }

    /// A fence is issued behind a write.
    pub(crate) fn fence(&mut self, slot: usize, id: u64) {
        self.processes[slot].fences.insert(id);
    }

    /// Returns true if that fence waits.
    pub(crate) fn is_fenced(&self, slot: usize, id: u64) -> bool {
        self.processes[slot].fences.contains(&id)
    }

    pub(crate) fn open(&self, slot: usize) -> usize {
        self.processes[slot].ops.len()
    }

    /// Bytes of a target: a section for each sender, and the word.
    fn target_length(&self) -> u64 {
        self.processes.len() as u64 * SECTION + ROOM
    }

    fn peek(&self, slot: usize, address: u64, length: u64) -> Option<Vec<u8>> {
        self.processes[slot].watched.peek(address, length)
    }

    fn peek_section(
        &self,
        target: usize,
        sender: usize,
        start: u64,
        length: u64,
    ) -> Option<Vec<u8>> {
        let address = self.processes[target].target + sender as u64 * SECTION + start;
        self.peek(target, address, length)
    }

    /// Nothing is under way to a process any more: looks at all of its memory, and
    /// counts its notifications.
    fn audit_process(&self, slot: usize) {
        let process = &self.processes[slot];
        if !process.watched.is_alive() {
            return;
        }
        for (sender, section) in process.sections.iter().enumerate() {
            let memory = self.peek_section(slot, sender, 0, SECTION);
            let what = format!("the section of process {sender}");
            section.audit(slot, &what, &memory.expect("it is alive"));
            for notification in [0, 1].map(|kind| first_notification(sender) + kind) {
                self.audit_notification(slot, sender, notification);
            }
        }
        let word = increments::word(process.target + process.sections.len() as u64 * SECTION);
        let bytes = self.peek(slot, word, 8).expect("it is alive");
        let value = bytes.try_into().map(u64::from_le_bytes);
        process.count.audit(value.expect("eight bytes"));
    }
}

impl Oracle for RdmaOracle {
    fn registered(&mut self, slot: usize, frames: [u32; HOST_PAGES]) {
        self.processes[slot].watched.registered(frames);
    }

    /// What it has under way is open from now on, and so is what others have under way to it.
    fn end(&mut self, slot: usize, _now: u64) {
        self.disturb_target(slot);
        let process = &mut self.processes[slot];
        process.watched.end();
        process.exports.clear();
        // The frames of a dead process may still arrive: its ranges in other
        // targets stay reserved as long as those live.
        for op in std::mem::take(&mut self.processes[slot].ops) {
            self.drop_notification(slot, &op);
            self.count_open(&op);
        }
    }

    fn stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        self.word_stored(slot, offset, value, now);
    }

    fn disturb_route(&mut self, a: usize, b: usize) {
        let processes = self.processes.iter();
        let nodes: Vec<_> = processes.map(|process| process.watched.node).collect();
        for process in &mut self.processes {
            for op in &mut process.ops {
                op.disturbed |= pair(process.watched.node, nodes[op.plan.target]) == pair(a, b);
            }
        }
    }

    fn has_pages(&self) -> bool {
        true
    }

    fn make_unavailable(&mut self, slot: usize, schedule: &Schedule) -> Option<UnavailablePage> {
        let target = self.target_length();
        let process = &mut self.processes[slot];
        let page = process
            .watched
            .make_unavailable(|| match schedule.below(2) {
                0 => process.target + schedule.range(0..target),
                _ => process.local + schedule.range(0..2 * HALF),
            })?;
        self.revoke_local(slot);
        self.disturb_target(slot);
        Some(page)
    }

    fn make_available(&mut self, page: UnavailablePage, now: u64) {
        self.processes[page.slot].watched.make_available(page, now);
    }

    fn oldest(&self) -> Option<String> {
        let processes = self.processes.iter().enumerate();
        let open =
            processes.flat_map(|(slot, process)| process.ops.iter().map(move |op| (slot, op)));
        let (slot, op) = open.min_by_key(|(_, op)| op.issued)?;
        let (plan, name) = (&op.plan, op.plan.kind.name());
        Some(format!(
            "{name} {} of process {slot} to process {}, {} bytes, issued at {} ns, disturbed: {}",
            op.command, plan.target, plan.length, op.issued, op.disturbed
        ))
    }

    fn audit(&self) {
        (0..self.processes.len()).for_each(|slot| self.audit_process(slot));
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let checked = &self.checked;
        vec![
            ("transfers", checked.complete),
            ("bytes", checked.bytes),
            ("transfers failed", checked.failed),
            ("notifications", checked.notifications),
            ("increments", checked.increments),
            ("completions of transfers", checked.told),
            ("fences of sources", checked.fences),
        ]
    }
}
