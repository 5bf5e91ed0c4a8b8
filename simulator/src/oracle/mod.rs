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

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::PAGE_SIZE;

use self::notices::Notice;
use self::transfer::{Export, Op};
pub(crate) use self::transfer::{ExportState, Kind, Plan};
use crate::counting::{self, Count};
use crate::lane::{difference, Expected, Lane};
use crate::platform::Machine;

mod notices;
mod stores;
mod transfer;

/// Bytes of a target that one sender writes to and reads from.
pub(crate) const LANE: u64 = 3 * PAGE_SIZE as u64 + 700;

/// Bytes of the local segment that take what is read; as many in front of them
/// are the source of what is written.
pub(crate) const HALF: u64 = 5 * PAGE_SIZE as u64;

/// First number of the notifications of a sender to any target.
pub(crate) fn first_notification(sender: usize) -> u32 {
    1 + 2 * sender as u32
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
}
