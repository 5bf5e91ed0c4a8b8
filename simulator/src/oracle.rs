//! What must be true, checked at the moment it can be known.
//!
//! The oracle sees each store of a NIC into a host area ([`crate::memory::Observer`]):
//! a completion, an error or a notification is checked at the instant of that
//! store, against what stands in the memory of the other end at that instant.
//!
//! | store | must hold |
//! |---|---|
//! | completion counter, write | every byte is in the memory of its target, once and right (N9) |
//! | completion counter, read | the bytes that were read are right |
//! | completion counter, increment | no other one has found the same value (N20) |
//! | error record | there is a reason: the command was wrong, or its end or the way there was disturbed; a refused one has touched nothing (N11) |
//! | signal counter | all earlier writes of the sender to that node are in memory (N18); never more signals than notifying writes |
//!
//! A transfer is *disturbed* when, while it runs, either end dies, is revoked or
//! reset, or the way between is cut: it may fail then, and what it wrote is open.

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic_abi::host_area::{self, ERROR_RECORDS, ERROR_RING, HOST_PAGES, SIGNALS, SIGNAL_COUNTERS};
use qnic_abi::{Status, PAGE_SIZE};

use crate::counting::{self, Count};
use crate::lane::{difference, Expected, Lane};
use crate::platform::Machine;

/// Bytes of a target that one sender writes to and reads from.
pub(crate) const LANE: u64 = 3 * PAGE_SIZE as u64 + 700;

/// Bytes of the local segment that take what is read; as many in front of them
/// are the source of what is written.
pub(crate) const HALF: u64 = 5 * PAGE_SIZE as u64;

/// First number of the notifications of a sender to any target.
pub(crate) fn first_notification(sender: usize) -> u32 {
    1 + 2 * sender as u32
}

/// What a transfer does.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Write {
        data: Vec<u8>,
        notification: Option<u32>,
    },
    Read {
        expected: Vec<Expected>,
        local: u64,
    },
    /// Increments the word of the target.
    Increment {
        /// Number of the result record.
        record: usize,
    },
}

/// Who may be told what a segment's key opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExportState {
    Live,
    /// The call that revokes it runs.
    Revoking,
    /// No transfer may use it any more.
    Revoked,
}

/// An export of a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Export {
    life: u32,
    state: ExportState,
}

/// A transfer that is about to be issued.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) id: u64,
    pub(crate) target: usize,
    /// Key of the target's segment.
    pub(crate) key: u64,
    /// Start in the lane.
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) kind: Kind,
    /// The error that it must end with.
    pub(crate) wrong: Option<Status>,
}

/// A transfer under way.
#[derive(Debug)]
struct Op {
    id: u64,
    /// Number of the command at its process.
    command: u64,
    /// Number among the writes, or all others, of its process.
    number: u64,
    issued: u64,
    life: u32,
    /// The key was revoked before it was issued.
    stale: bool,
    disturbed: bool,
    failed: Option<Status>,
    plan: Plan,
}

impl Op {
    fn is_write(&self) -> bool {
        matches!(self.plan.kind, Kind::Write { .. })
    }

    fn must_succeed(&self) -> bool {
        self.plan.wrong.is_none() && !self.stale && !self.disturbed && self.failed.is_none()
    }
}

/// One notifying write: its number, and whether it is sure to notify.
#[derive(Debug, Clone, Copy)]
struct Notice {
    id: u64,
    sure: bool,
}

/// Where a living process can be looked at.
struct View {
    machine: Arc<Machine>,
    space: u64,
    host_area: Option<[u32; HOST_PAGES]>,
}

/// The process at one place, or what is left of it.
struct Player {
    node: usize,
    life: u32,
    view: Option<View>,
    /// First address of its target, and of its local segment.
    target: u64,
    local: u64,
    lanes: Vec<Lane>,
    count: Count,
    reading: Lane,
    source: Lane,
    ops: Vec<Op>,
    issued: [u64; 2],
    errors: u64,
    /// Notifying writes, those of former lives too, by target, its life, and number.
    notices: BTreeMap<(usize, u32, u32), Vec<Notice>>,
    signals: BTreeMap<u32, u64>,
    exports: BTreeMap<u64, Export>,
}

/// Counts of what was checked, for people.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Checked {
    pub(crate) complete: u64,
    pub(crate) failed: u64,
    pub(crate) notifications: u64,
    pub(crate) increments: u64,
    pub(crate) bytes: u64,
}

/// The oracle of one simulation.
pub(crate) struct Oracle {
    players: Vec<Player>,
    /// Until when transfers between two nodes count as disturbed.
    unsettled: BTreeMap<(usize, usize), u64>,
    next: u64,
    pub(crate) checked: Checked,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Oracle {
    /// An oracle for places of these nodes, where nobody lives yet.
    pub(crate) fn new(nodes: &[usize]) -> Self {
        let player = |node: &usize| Player {
            node: *node,
            life: 0,
            view: None,
            target: 0,
            local: 0,
            lanes: Vec::new(),
            count: Count::default(),
            reading: Lane::new(0),
            source: Lane::new(0),
            ops: Vec::new(),
            issued: [0; 2],
            errors: 0,
            notices: BTreeMap::new(),
            signals: BTreeMap::new(),
            exports: BTreeMap::new(),
        };
        Oracle {
            players: nodes.iter().map(player).collect(),
            unsettled: BTreeMap::new(),
            next: 1,
            checked: Checked::default(),
        }
    }

    /// A process begins at a place.
    pub(crate) fn begin(
        &mut self,
        place: usize,
        machine: &Arc<Machine>,
        space: u64,
        (target, local): (u64, u64),
    ) {
        let count = self.players.len();
        let player = &mut self.players[place];
        player.life += 1;
        player.view = Some(View {
            machine: machine.clone(),
            space,
            host_area: None,
        });
        (player.target, player.local) = (target, local);
        player.lanes = vec![Lane::new(LANE); count];
        player.count = Count::default();
        player.reading = Lane::new(HALF);
        player.source = Lane::new(HALF);
        player.issued = [0; 2];
        player.errors = 0;
        player.signals.clear();
        player.exports.clear();
    }

    /// The process at a place is registered.
    pub(crate) fn registered(&mut self, place: usize, frames: [u32; HOST_PAGES]) {
        if let Some(view) = &mut self.players[place].view {
            view.host_area = Some(frames);
        }
    }

    /// The process at a place begins to die: what it has under way is open from
    /// now on, and so is what others have under way to it.
    pub(crate) fn end(&mut self, place: usize) {
        self.disturb_target(place);
        let player = &mut self.players[place];
        player.view = None;
        player.exports.clear();
        // The frames of a dead process may still arrive: its ranges in other
        // targets stay reserved as long as those live.
        for op in std::mem::take(&mut self.players[place].ops) {
            self.drop_notice(place, &op);
            self.count_open(&op);
        }
    }

    /// A segment of the target at a place is exported.
    pub(crate) fn exported(&mut self, place: usize, key: u64) {
        let player = &mut self.players[place];
        let export = Export {
            life: player.life,
            state: ExportState::Live,
        };
        player.exports.insert(key, export);
    }

    /// A segment is being revoked, or is.
    pub(crate) fn revoke(&mut self, place: usize, key: u64, state: ExportState) {
        if state == ExportState::Revoking {
            self.disturb_target(place);
        }
        if let Some(export) = self.players[place].exports.get_mut(&key) {
            export.state = state;
        }
    }

    /// The local segment of a process is being revoked.
    pub(crate) fn revoke_local(&mut self, place: usize) {
        for op in &mut self.players[place].ops {
            op.disturbed = true;
        }
    }

    /// Says whether a key still opens something, as far as is known.
    pub(crate) fn is_live(&self, place: usize, key: u64) -> Option<bool> {
        let export = self.players[place].exports.get(&key)?;
        Some(export.state == ExportState::Live)
    }

    fn disturb_target(&mut self, place: usize) {
        let life = self.players[place].life;
        for op in self.players.iter_mut().flat_map(|player| &mut player.ops) {
            op.disturbed |= op.plan.target == place && op.life == life;
        }
    }

    /// The way between two nodes is disturbed until a point in time.
    pub(crate) fn disturb_way(&mut self, a: usize, b: usize, until: u64) {
        let nodes: Vec<_> = self.players.iter().map(|player| player.node).collect();
        for player in &mut self.players {
            for op in &mut player.ops {
                op.disturbed |= pair(player.node, nodes[op.plan.target]) == pair(a, b);
            }
        }
        self.unsettled.insert(pair(a, b), until);
    }

    /// All ways from and to a node are disturbed until a point in time.
    pub(crate) fn disturb_node(&mut self, node: usize, until: u64) {
        let nodes: Vec<_> = self.players.iter().map(|player| player.node).collect();
        for other in nodes {
            if other != node {
                self.disturb_way(node, other, until);
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
        (place, target): (usize, usize),
        (start, length): (u64, u64),
    ) -> bool {
        let lanes = &mut self.players[target].lanes;
        lanes
            .get_mut(place)
            .is_some_and(|lane| lane.reserve(start, length, id))
    }

    /// Tries to reserve a part of the source, too.
    pub(crate) fn reserve_source(
        &mut self,
        id: u64,
        place: usize,
        (start, length): (u64, u64),
    ) -> bool {
        self.players[place].source.reserve(start, length, id)
    }

    /// Tries to reserve room for what is read, too.
    pub(crate) fn reserve_reading(
        &mut self,
        id: u64,
        place: usize,
        (start, length): (u64, u64),
    ) -> bool {
        self.players[place].reading.reserve(start, length, id)
    }

    /// Gives up the reservations for a transfer that is not issued after all.
    pub(crate) fn give_up(&mut self, id: u64, place: usize, target: usize) {
        if let Some(lane) = self.players[target].lanes.get_mut(place) {
            lane.release(id);
        }
        self.players[place].source.release(id);
        self.players[place].reading.release(id);
    }

    /// What a read of a lane must give.
    pub(crate) fn expected(
        &self,
        (place, target): (usize, usize),
        start: u64,
        length: u64,
    ) -> Vec<Expected> {
        self.players[target].lanes[place]
            .get(start, length)
            .to_vec()
    }

    /// A transfer whose ranges are reserved is issued now.
    pub(crate) fn issue(&mut self, place: usize, command: u64, now: u64, plan: Plan) {
        let target = &mut self.players[plan.target];
        let export = target.exports.get(&plan.key).copied();
        let stale = export.is_none_or(|e| e.state == ExportState::Revoked);
        let revoking = export.is_some_and(|e| e.state == ExportState::Revoking);
        let life = export.map_or(target.life, |export| export.life);
        let node = target.node;
        let good = plan.wrong.is_none() && !stale;
        if good && matches!(plan.kind, Kind::Write { .. }) {
            target.lanes[place].open(plan.start, plan.length);
        }
        let unsettled = self.unsettled.get(&pair(node, self.players[place].node));
        let player = &mut self.players[place];
        let ordinal = &mut player.issued[usize::from(!matches!(plan.kind, Kind::Write { .. }))];
        let number = *ordinal;
        *ordinal += 1;
        if let Kind::Write {
            notification: Some(notification),
            ..
        } = plan.kind
        {
            if good {
                let key = (plan.target, life, notification);
                let notice = Notice {
                    id: plan.id,
                    sure: true,
                };
                player.notices.entry(key).or_default().push(notice);
            }
        }
        player.ops.push(Op {
            id: plan.id,
            command,
            number,
            issued: now,
            life,
            stale,
            disturbed: revoking || unsettled.is_some_and(|until| now < *until),
            failed: None,
            plan,
        });
    }

    /// The oldest transfer that is under way, for people.
    pub(crate) fn oldest(&self) -> Option<String> {
        let open = self.players.iter().enumerate().flat_map(|(place, player)| {
            let ops = player.ops.iter();
            ops.map(move |op| (op.issued, place, op))
        });
        let (_, place, op) = open.min_by_key(|(issued, ..)| *issued)?;
        let kind = match op.plan.kind {
            Kind::Write { .. } => "write",
            Kind::Read { .. } => "read",
            Kind::Increment { .. } => "increment",
        };
        Some(format!(
            "{kind} {} of process {place} to process {}, {} bytes, issued at {} ns, disturbed: {}",
            op.command, op.plan.target, op.plan.length, op.issued, op.disturbed
        ))
    }

    /// Number of transfers under way of a process.
    pub(crate) fn open(&self, place: usize) -> usize {
        self.players[place].ops.len()
    }

    fn peek(&self, place: usize, address: u64, length: u64) -> Option<Vec<u8>> {
        let view = self.players[place].view.as_ref()?;
        let kernel = &view.machine.kernel;
        kernel.peek(view.space, address, length as usize)
    }

    fn peek_lane(&self, target: usize, sender: usize, start: u64, length: u64) -> Option<Vec<u8>> {
        let address = self.players[target].target + sender as u64 * LANE + start;
        self.peek(target, address, length)
    }

    /// A NIC has stored a word of a host area.
    pub(crate) fn stored(&mut self, place: usize, offset: usize, value: u64) {
        let alive = self.players[place].view.is_some();
        if !alive || value == 0 {
            return;
        }
        match offset {
            host_area::ERRORS => self.errors(place, value),
            host_area::WRITES_DONE => self.complete(place, value, true),
            host_area::READS_DONE => self.complete(place, value, false),
            SIGNALS.. => self.signalled(place, ((offset - SIGNALS) / 8) as u32, value),
            _ => {}
        }
    }

    fn errors(&mut self, place: usize, count: u64) {
        let player = &mut self.players[place];
        let Some(View {
            machine,
            host_area: Some(frames),
            ..
        }) = &player.view
        else {
            panic!("process {place}: an error before it is registered");
        };
        while player.errors < count {
            let record = ERROR_RING + player.errors as usize % ERROR_RECORDS * 16;
            let mut bytes = [0; 16];
            machine.memory.load(frames[0], record, &mut bytes);
            let [command, status] = zerocopy::transmute!(bytes);
            let (command, status) = (u64::from_le(command), u64::from_le(status));
            let status = u32::try_from(status)
                .ok()
                .and_then(|code| Status::try_from(code).ok());
            let status = status.expect("an error record has a status");
            player.errors += 1;
            let op = player.ops.iter_mut().find(|op| op.command == command);
            let Some(op) = op else {
                panic!("process {place}: command {command} fails ({status}) but is not under way");
            };
            let before = op.failed.replace(status);
            assert_eq!(
                before, None,
                "process {place}: command {command} fails twice"
            );
            let reason = op.plan.wrong == Some(status) || op.disturbed || op.stale;
            assert!(
                reason,
                "process {place}: command {command} fails for no reason: {status}; {op:?}"
            );
        }
    }

    fn complete(&mut self, place: usize, count: u64, writes: bool) {
        let issued = self.players[place].issued[usize::from(!writes)];
        assert!(
            count <= issued,
            "process {place}: more complete than issued"
        );
        let ops = std::mem::take(&mut self.players[place].ops);
        let done = |op: &Op| op.is_write() == writes && op.number < count;
        let (done, open): (Vec<_>, Vec<_>) = ops.into_iter().partition(done);
        self.players[place].ops = open;
        for op in done {
            self.complete_one(place, &op);
        }
    }

    fn complete_one(&mut self, place: usize, op: &Op) {
        let target = op.plan.target;
        let there = self.players[target].life == op.life && self.players[target].view.is_some();
        if let Some(status) = op.failed {
            self.checked.failed += 1;
            self.drop_notice(place, op);
            self.count_open(op);
            let refused = op.plan.wrong == Some(status) && !op.disturbed;
            if there && refused && op.is_write() {
                self.check_untouched(place, op);
            }
        } else {
            assert!(
                op.plan.wrong.is_none() && !op.stale,
                "process {place}: a transfer that must be refused succeeds: {op:?}"
            );
            self.checked.complete += 1;
            self.checked.bytes += op.plan.length;
            if op.is_write() && there {
                assert!(
                    self.is_delivered(place, op),
                    "process {place}: complete, but not in memory: {op:?}"
                );
            }
        }
        let player = &mut self.players[place];
        player.source.release(op.id);
        player.reading.release(op.id);
        if let (Kind::Read { expected, local }, None) = (&op.plan.kind, op.failed) {
            let at = self.players[place].local + HALF + local;
            let got = self.peek(place, at, op.plan.length).expect("it is alive");
            let wrong = difference(&got, expected);
            assert_eq!(wrong, None, "process {place}: wrong byte read: {op:?}");
        }
        if let (Kind::Increment { record }, None, true) = (&op.plan.kind, op.failed, there) {
            let found = self.result(place, *record);
            self.players[target].count.found(found);
            self.checked.increments += 1;
        }
        if there {
            let lane = &mut self.players[target].lanes[place];
            if let (Kind::Write { data, .. }, None) = (&op.plan.kind, op.failed) {
                lane.set(op.plan.start, data);
            }
            lane.release(op.id);
        }
    }

    /// The value in a result record of a process.
    fn result(&self, place: usize, record: usize) -> u64 {
        let view = self.players[place].view.as_ref();
        let frames = view.and_then(|view| Some((view, view.host_area?)));
        let (view, frames) = frames.expect("it is alive");
        let mut bytes = [0; 8];
        let offset = host_area::result_offset(record);
        view.machine.memory.load(frames[0], offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// An increment has failed, or its issuer has died: it may have been executed,
    /// unless it was refused.
    fn count_open(&mut self, op: &Op) {
        let target = &mut self.players[op.plan.target];
        let refused = op.failed.is_some() && !op.disturbed;
        if matches!(op.plan.kind, Kind::Increment { .. }) && target.life == op.life && !refused {
            target.count.ended_open();
        }
    }

    fn check_untouched(&self, place: usize, op: &Op) {
        let Plan {
            target,
            start,
            length,
            ..
        } = op.plan;
        let expected = self.players[target].lanes[place].get(start, length);
        if let Some(memory) = self.peek_lane(target, place, start, length) {
            let touched = difference(&memory, expected);
            assert_eq!(
                touched, None,
                "process {place}: a refused write has touched memory: {op:?}"
            );
        }
    }

    fn is_delivered(&self, place: usize, op: &Op) -> bool {
        let Kind::Write { data, .. } = &op.plan.kind else {
            return true;
        };
        let memory = self.peek_lane(op.plan.target, place, op.plan.start, op.plan.length);
        memory.is_none_or(|memory| memory == *data)
    }

    /// The notification of this write may arrive or not.
    fn drop_notice(&mut self, place: usize, op: &Op) {
        if let Kind::Write {
            notification: Some(notification),
            ..
        } = op.plan.kind
        {
            let key = (op.plan.target, op.life, notification);
            let notices = self.players[place].notices.get_mut(&key);
            let notices = notices.into_iter().flatten();
            for notice in notices.filter(|notice| notice.id == op.id) {
                notice.sure = false;
            }
        }
    }

    fn signalled(&mut self, target: usize, notification: u32, count: u64) {
        assert!(notification < SIGNAL_COUNTERS);
        self.checked.notifications += 1;
        let life = self.players[target].life;
        let seen = self.players[target].signals.insert(notification, count);
        assert_eq!(
            seen.unwrap_or(0) + 1,
            count,
            "process {target}: signal counter {notification} jumps"
        );
        let sender = (notification.saturating_sub(1) / 2) as usize;
        assert!(
            notification > 0 && sender < self.players.len(),
            "process {target}: signal {notification} that nobody sends"
        );
        let key = (target, life, notification);
        let notices = self.players[sender].notices.get(&key);
        let notices = notices.map_or(&[][..], Vec::as_slice);
        assert!(
            count <= notices.len() as u64,
            "process {target}: notification {notification} of process {sender} arrives twice"
        );
        // Those that are sure to arrive come in their order; others may be missing.
        let open = &self.players[sender].ops;
        let sure = |notice: &&Notice| {
            let op = open.iter().find(|op| op.id == notice.id);
            notice.sure && op.is_none_or(Op::must_succeed)
        };
        let uncertain = notices.len() - notices.iter().filter(sure).count();
        let arrived = (count as usize).saturating_sub(uncertain);
        let Some(last) = notices.iter().filter(sure).take(arrived).last() else {
            return;
        };
        let node = self.players[target].node;
        for op in open {
            let earlier = op.id <= last.id && op.is_write() && op.must_succeed();
            if earlier && self.players[op.plan.target].node == node {
                assert!(
                    self.is_delivered(sender, op),
                    "process {target}: notification {notification} comes before command {}: {op:?}",
                    op.command
                );
            }
        }
    }

    /// Nothing is under way to a process any more: looks at all of its memory, and
    /// counts its notifications.
    pub(crate) fn audit(&self, place: usize) {
        let player = &self.players[place];
        if player.view.is_none() {
            return;
        }
        for (sender, lane) in player.lanes.iter().enumerate() {
            let memory = self.peek_lane(place, sender, 0, LANE).expect("it is alive");
            if let Some(at) = difference(&memory, lane.all()) {
                panic!(
                    "process {place}: byte {at} of the lane of process {sender} is {:#x}, not {:?}",
                    memory[at],
                    lane.all()[at]
                );
            }
            for notification in [0, 1].map(|kind| first_notification(sender) + kind) {
                self.audit_notification(place, sender, notification);
            }
        }
        let word = counting::word(player.target + player.lanes.len() as u64 * LANE);
        let bytes = self.peek(place, word, 8).expect("it is alive");
        let value = bytes.try_into().map(u64::from_le_bytes);
        player.count.audit(value.expect("eight bytes"));
    }

    fn audit_notification(&self, target: usize, sender: usize, notification: u32) {
        let count = self.players[target].signals.get(&notification).copied();
        let key = (target, self.players[target].life, notification);
        let notices = self.players[sender].notices.get(&key);
        let sure = notices.map_or(0, |notices| notices.iter().filter(|n| n.sure).count());
        assert!(
            count.unwrap_or(0) >= sure as u64,
            "process {target}: notification {notification} of process {sender} is lost: \
             {count:?} of {sure}"
        );
    }
}
