//! The cluster, its processes, and what happens to them.

use std::collections::BTreeMap;

use qnic_abi::command::{CommandFlags, Descriptor, Opcode, INLINE_CAPACITY};
use qnic_abi::{host_area, Access, Port, Status, VniId};
use qnic_nic::testing::{Cluster, SimProcess, SimSegment};
use qnic_nic::Limits;

use crate::mix::{Mix, Random};
use crate::oracle::{agrees, Kind, Lane, Op, LANE};

/// Length of the half of the local segment that holds what is written, and of the
/// half that takes what is read.
const HALF: u64 = 6 * 4096;

struct Player {
    sim: SimProcess,
    life: u32,
    /// Others write to it and read from it: one lane for each.
    target: SimSegment,
    lanes: Vec<Lane>,
    /// Source of writes, and place for what is read.
    local: SimSegment,
    reading: Lane,
    ops: Vec<Op>,
    writes: u64,
    reads: u64,
    errors: u64,
    /// Notifying writes, of former lives too, by (target, life, notification), oldest first: the id of
    /// each, and whether it must arrive.
    notices: BTreeMap<(usize, u32, u32), Vec<(u64, bool)>>,
}

/// What can happen in a step.
type Action = fn(&mut World);

pub(crate) struct World {
    mix: Mix,
    random: Random,
    cluster: Cluster,
    players: Vec<Player>,
    /// Notifications seen, by (target, life, sender, notification).
    seen: BTreeMap<(usize, u32, usize, u32), u64>,
    next_op: u64,
    next_name: u64,
    unavailable: Vec<(usize, VniId, u64)>,
}

impl World {
    pub(crate) fn new(seed: u64, mix: Mix) -> Self {
        let limits = Limits {
            faults: 1 + (seed % 5) as u32,
            frames_per_write: 1 + (seed % 7) as u32,
            requests_per_read: 1 + (seed % 3) as u32,
            frames_per_poll: 1 + (seed % 64) as u32,
            operations: 1 + (seed % 64) as u32,
            ..Limits::default()
        };
        let mut cluster = Cluster::new(mix.nodes, mix.frames, 4, &limits);
        cluster.answer_faults = false;
        let mut world = World {
            random: Random(seed),
            cluster,
            players: Vec::new(),
            seen: BTreeMap::new(),
            next_op: 0,
            next_name: 1,
            unavailable: Vec::new(),
            mix,
        };
        for place in 0..world.mix.processes {
            let player = world.join(place, 0);
            world.players.push(player);
        }
        world
    }

    fn join(&mut self, place: usize, life: u32) -> Player {
        let node = place % usize::from(self.mix.nodes);
        let vni = VniId((place / usize::from(self.mix.nodes)) as u16);
        let cluster = &mut self.cluster;
        let sim = SimProcess::register(cluster, node, vni, Port(50 + place as u16)).unwrap();
        let length = LANE * self.mix.processes as u64;
        let target = (0x40_0000 + 77 * place as u64, length);
        let local = (0x80_0000 + 99 * place as u64, 2 * HALF);
        let name = self.next_name;
        self.next_name += 2;
        let all = Access::all();
        let target = sim.export(cluster, 0, name, target, all).unwrap();
        let local = sim.export(cluster, 1, name + 1, local, all).unwrap();
        let mut bytes = vec![0; HALF as usize];
        for byte in &mut bytes {
            *byte = self.random.below(256) as u8;
        }
        sim.write(&mut self.cluster, local.address, &bytes);
        let mut reading = Lane::new();
        reading.reserve(0, 0, 0);
        Player {
            sim,
            life,
            target,
            lanes: vec![Lane::new(); self.mix.processes],
            local,
            reading,
            ops: Vec::new(),
            writes: 0,
            reads: 0,
            errors: 0,
            notices: BTreeMap::new(),
        }
    }

    pub(crate) fn step(&mut self) {
        let mix = self.mix.clone();
        let actions: [(u64, Action); 9] = [
            (mix.issue, Self::issue),
            (mix.poll, Self::poll),
            (mix.evict, Self::evict),
            (mix.answer, Self::answer),
            (mix.advance, Self::advance),
            (mix.unavailable, Self::toggle_page),
            (mix.revoke, Self::revoke),
            (mix.kill, Self::kill),
            (mix.reset, Self::reset),
        ];
        let mut choice = self
            .random
            .below(actions.iter().map(|action| action.0).sum());
        for (weight, action) in actions {
            if choice < weight {
                action(self);
                break;
            }
            choice -= weight;
        }
        self.observe();
    }

    fn node(&mut self) -> usize {
        self.random.below(u64::from(self.mix.nodes)) as usize
    }

    fn poll(&mut self) {
        let node = self.node();
        self.cluster.poll(node);
        let host = &self.cluster.nodes[node].host;
        assert!(self.cluster.nodes[node].driver.all_unlocked(host));
    }

    fn evict(&mut self) {
        let node = self.node();
        let resident = self.cluster.nodes[node].driver.resident();
        if !resident.is_empty() {
            let (vni, page) = resident[self.random.below(resident.len() as u64) as usize];
            self.cluster.evict(node, vni, page);
        }
    }

    fn answer(&mut self) {
        let node = self.node();
        let faults = self.cluster.nodes[node].faults.len() as u64;
        if faults > 0 {
            let place = self.random.below(faults) as usize;
            let limit = 1 + self.random.below(8) as u32;
            self.cluster.answer_fault(node, place, limit);
        }
    }

    fn advance(&mut self) {
        let time = self.random.below(6000);
        self.cluster.advance(time);
        let node = self.node();
        if self.random.one_in(3) {
            self.cluster.sleeps(node);
        }
    }

    fn toggle_page(&mut self) {
        if let Some((node, vni, page)) = self.unavailable.pop() {
            let driver = &mut self.cluster.nodes[node].driver;
            driver.set_available(vni, page, true);
            return;
        }
        let place = self.random.below(self.players.len() as u64) as usize;
        let player = &self.players[place];
        let (node, vni, life) = (player.sim.node, player.sim.vni, player.life);
        let segment = if self.random.one_in(2) {
            player.target
        } else {
            player.local
        };
        let page = segment.address + self.random.below(segment.length);
        self.cluster.evict(node, vni, page);
        let driver = &mut self.cluster.nodes[node].driver;
        driver.set_available(vni, page, false);
        self.unavailable.push((node, vni, page));
        self.disturb(|place_of, op| place_of == place || op.target == (place, life));
    }

    /// Transfers under way that this concerns may fail from now on.
    fn disturb(&mut self, concerned: impl Fn(usize, &Op) -> bool) {
        for (place, player) in self.players.iter_mut().enumerate() {
            for op in &mut player.ops {
                op.disturbed |= concerned(place, op);
            }
        }
    }

    fn revoke(&mut self) {
        let place = self.random.below(self.players.len() as u64) as usize;
        let life = self.players[place].life;
        let remote = self.random.one_in(2);
        self.disturb(|own, op| match remote {
            true => op.target == (place, life),
            false => own == place,
        });
        let player = &self.players[place];
        let segment = if remote { player.target } else { player.local };
        let status = player.sim.unexport(&mut self.cluster, segment.id);
        assert_eq!(status, Status::Ok);
        let name = self.next_name;
        self.next_name += 1;
        let range = (segment.address, segment.length);
        let id = segment.id.0;
        let again = player
            .sim
            .export(&mut self.cluster, id, name, range, Access::all());
        match remote {
            true => self.players[place].target = again.unwrap(),
            false => self.players[place].local = again.unwrap(),
        }
    }

    fn kill(&mut self) {
        let place = self.random.below(self.players.len() as u64) as usize;
        self.end(place, |sim, cluster| sim.end(cluster));
        let life = self.players[place].life + 1;
        self.replace(place, life);
    }

    /// Another process takes the place of one that has ended.
    fn replace(&mut self, place: usize, life: u32) {
        let fresh = self.join(place, life);
        let old = std::mem::replace(&mut self.players[place], fresh);
        self.players[place].notices = old.notices;
    }

    /// Takes a process out of the books, then out of the cluster.
    fn end(&mut self, place: usize, end: impl FnOnce(SimProcess, &mut Cluster)) {
        self.observe();
        let life = self.players[place].life;
        self.disturb(|_, op| op.target == (place, life));
        self.close(place);
        let node = self.players[place].sim.node;
        let vni = self.players[place].sim.vni;
        self.unavailable
            .retain(|page| (page.0, page.1) != (node, vni));
        self.cluster.nodes[node]
            .faults
            .retain(|fault| fault.vni.get() != vni.0);
        let port = self.players[place].sim.port;
        let stub = SimProcess::ended(node, vni, port);
        let sim = std::mem::replace(&mut self.players[place].sim, stub);
        end(sim, &mut self.cluster);
    }

    /// The transfers of a process are over, no matter how.
    fn close(&mut self, place: usize) {
        for op in std::mem::take(&mut self.players[place].ops) {
            let (target, life) = op.target;
            if op.is_write() {
                self.drop_notice(place, &op);
            }
            if self.players[target].life == life {
                self.players[target].lanes[place].release(op.id);
            }
        }
    }

    /// A notification of this write may or may not arrive.
    fn drop_notice(&mut self, place: usize, op: &Op) {
        if let Some(notification) = op.notification() {
            let key = (op.target.0, op.target.1, notification);
            let notices = self.players[place].notices.get_mut(&key).unwrap();
            let notice = notices.iter_mut().find(|notice| notice.0 == op.id);
            notice.unwrap().1 = false;
        }
    }

    fn reset(&mut self) {
        let node = self.node();
        for place in 0..self.players.len() {
            if self.players[place].sim.node == node {
                self.end(place, |_, _| {});
            }
        }
        self.disturb(|_, op| op.node == node);
        self.cluster.reset(node);
        self.unavailable.retain(|page| page.0 != node);
        self.cluster.start(node);
        for place in 0..self.players.len() {
            if self.players[place].sim.node == node {
                let life = self.players[place].life + 1;
                self.replace(place, life);
            }
        }
    }

    fn issue(&mut self) {
        let count = self.players.len() as u64;
        let place = self.random.below(count) as usize;
        let target = self.random.below(count) as usize;
        let length = match self.random.below(4) {
            0 => self.random.below(20),
            1 => self.random.below(97),
            2 => self.random.below(4097),
            _ => self.random.below(LANE / 2),
        };
        let start = self.random.below(LANE - length + 1);
        let id = self.next_op;
        if !self.players[target].lanes[place].reserve(start, length, id) {
            return;
        }
        let issued = match self.random.below(3) {
            0 => self.read(place, target, (start, length)),
            _ => self.write(place, target, (start, length)),
        };
        match issued {
            true => self.next_op += 1,
            false => self.players[target].lanes[place].release(id),
        }
    }

    fn write(&mut self, place: usize, target: usize, (start, length): (u64, u64)) -> bool {
        let inline = length <= INLINE_CAPACITY as u64 && self.random.one_in(2);
        let from = self.random.below(HALF - length);
        let notification = self.random.one_in(3).then(|| {
            let kind = self.random.below(2);
            1 + place as u32 * 2 + kind as u32
        });
        let remote = (&self.players[target].target, place as u64 * LANE + start);
        let mut payload = vec![0; length as usize];
        let mut command = if inline {
            for byte in &mut payload {
                *byte = self.random.below(256) as u8;
            }
            SimProcess::inline_descriptor(remote, length)
        } else {
            let player = &self.players[place];
            let source = player.local.address + from;
            payload = player.sim.read(&self.cluster, source, length as usize);
            SimProcess::descriptor(Opcode::Write, (&player.local, from), remote, length)
        };
        if let Some(notification) = notification {
            command.flags |= CommandFlags::NOTIFY.bits();
            command.notification = notification.into();
        }
        let inline_bytes = if inline { &payload[..] } else { &[] };
        let kind = Kind::Write {
            data: payload.clone(),
            notification,
        };
        if !self.start(place, target, (start, length), command, inline_bytes, kind) {
            return false;
        }
        self.players[target].lanes[place].open(start, length);
        true
    }

    fn read(&mut self, place: usize, target: usize, (start, length): (u64, u64)) -> bool {
        let local = self.random.below(LANE - length + 1);
        let expected = self.players[target].lanes[place].get(start, length);
        let id = self.next_op;
        let player = &mut self.players[place];
        if !player.reading.reserve(local, length, id) {
            return false;
        }
        let remote = (&self.players[target].target, place as u64 * LANE + start);
        let own = (&self.players[place].local, HALF + local);
        let command = SimProcess::descriptor(Opcode::Read, own, remote, length);
        let kind = Kind::Read { expected, local };
        let issued = self.start(place, target, (start, length), command, &[], kind);
        if !issued {
            self.players[place].reading.release(id);
        }
        issued
    }

    fn start(
        &mut self,
        place: usize,
        target: usize,
        (start, length): (u64, u64),
        mut command: Descriptor,
        inline: &[u8],
        kind: Kind,
    ) -> bool {
        if self.random.one_in(4) {
            command.flags |= CommandFlags::PUBLISH.bits();
        }
        let wrong = self.random.one_in(40).then_some(Status::BadKey);
        if wrong.is_some() {
            command.remote_key = (command.remote_key.get() ^ 1 << 60).into();
        }
        let aimed = (target, self.players[target].life);
        let node = self.players[target].sim.node;
        let unavailable = !self.unavailable.is_empty();
        let player = &mut self.players[place];
        let Some(number) = player.sim.issue(&mut self.cluster, &command, inline) else {
            return false;
        };
        let is_write = matches!(kind, Kind::Write { .. });
        let counter = if is_write {
            &mut player.writes
        } else {
            &mut player.reads
        };
        let op = Op {
            id: self.next_op,
            command: number,
            number: *counter,
            target: aimed,
            node,
            start,
            length,
            kind,
            wrong,
            disturbed: unavailable,
            failed: None,
        };
        *counter += 1;
        if let Some(notification) = op.notification() {
            let key = (aimed.0, aimed.1, notification);
            let notices = player.notices.entry(key).or_default();
            notices.push((op.id, wrong.is_none()));
        }
        player.ops.push(op);
        true
    }

    /// Looks at everything a process can see, and compares.
    fn observe(&mut self) {
        for place in 0..self.players.len() {
            if !self.players[place].sim.is_registered() {
                continue;
            }
            self.observe_errors(place);
            self.observe_completions(place);
        }
        for place in 0..self.players.len() {
            if self.players[place].sim.is_registered() {
                self.observe_notifications(place);
            }
        }
    }

    fn observe_errors(&mut self, place: usize) {
        let player = &mut self.players[place];
        let count = player.sim.word(&self.cluster, host_area::ERRORS);
        let records = player.sim.errors(&self.cluster);
        let new = (count - player.errors) as usize;
        player.errors = count;
        for (command, status) in &records[records.len() - new..] {
            let op = player.ops.iter_mut().find(|op| op.command == *command);
            let op = op.expect("an error of a transfer under way");
            let known = op.failed.replace(*status);
            assert_eq!(known, None, "a transfer fails once");
            let excused = op.wrong == Some(*status) || op.disturbed;
            assert!(excused, "failed for no reason: {status:?} {op:?}");
        }
    }

    fn observe_completions(&mut self, place: usize) {
        let (writes, reads) = self.players[place].sim.done(&self.cluster);
        let ops = std::mem::take(&mut self.players[place].ops);
        let (done, open): (Vec<_>, Vec<_>) = ops.into_iter().partition(|op| match op.is_write() {
            true => op.number < writes,
            false => op.number < reads,
        });
        self.players[place].ops = open;
        for op in done {
            self.complete(place, op);
        }
    }

    fn complete(&mut self, place: usize, op: Op) {
        let (target, life) = op.target;
        let failed = op.failed.is_some();
        assert!(failed || op.wrong.is_none(), "a wrong transfer succeeded");
        let alive = self.players[target].life == life;
        match &op.kind {
            Kind::Write { data, .. } if !failed && alive => {
                assert!(
                    self.is_delivered(place, &op),
                    "complete, not delivered: {op:?}"
                );
                self.players[target].lanes[place].set(op.start, data);
            }
            Kind::Write { .. } if failed => self.drop_notice(place, &op),
            Kind::Write { .. } => {}
            Kind::Read { expected, local } => {
                self.players[place].reading.release(op.id);
                if !failed {
                    let player = &self.players[place];
                    let at = player.local.address + HALF + local;
                    let got = player.sim.read(&self.cluster, at, op.length as usize);
                    assert!(agrees(&got, expected), "wrong bytes were read");
                }
            }
        }
        if alive {
            self.players[target].lanes[place].release(op.id);
        }
    }

    fn is_delivered(&self, place: usize, op: &Op) -> bool {
        let Kind::Write { data, .. } = &op.kind else {
            return true;
        };
        let target = &self.players[op.target.0];
        let at = target.target.address + place as u64 * LANE + op.start;
        target.sim.read(&self.cluster, at, data.len()) == *data
    }

    /// Every notification that has come must have come after the data (N18).
    fn observe_notifications(&mut self, target: usize) {
        let life = self.players[target].life;
        for sender in 0..self.players.len() {
            for notification in [1 + sender as u32 * 2, 2 + sender as u32 * 2] {
                let count = self.players[target]
                    .sim
                    .signals(&self.cluster, notification);
                let key = (target, life, sender, notification);
                let seen = self.seen.insert(key, count).unwrap_or(0);
                assert!(count >= seen);
                let notices = self.players[sender]
                    .notices
                    .get(&(target, life, notification));
                let Some(notices) = notices.filter(|_| count > seen) else {
                    continue;
                };
                // Those that must arrive come in order; the others may be missing.
                let sure = notices.iter().filter(|notice| notice.1);
                let uncertain = notices.iter().filter(|notice| !notice.1).count() as u64;
                let before = count.saturating_sub(uncertain) as usize;
                let Some((last, _)) = sure.take(before).last() else {
                    continue;
                };
                let node = self.players[target].sim.node;
                for op in &self.players[sender].ops {
                    let covered = op.id <= *last && op.is_write() && op.node == node;
                    let counts = op.failed.is_none() && op.wrong.is_none() && !op.disturbed;
                    if covered && counts {
                        assert!(self.is_delivered(sender, op), "notified too early");
                    }
                }
            }
        }
    }

    /// Lets everything come to its end, and looks at what is left.
    pub(crate) fn finish(&mut self) {
        for (node, vni, page) in std::mem::take(&mut self.unavailable) {
            let driver = &mut self.cluster.nodes[node].driver;
            driver.set_available(vni, page, true);
        }
        self.cluster.answer_faults = true;
        for node in 0..self.cluster.nodes.len() {
            self.cluster.serve(node);
        }
        self.cluster.settle();
        self.observe();
        for (place, player) in self.players.iter().enumerate() {
            assert!(player.ops.is_empty(), "never completed: {:?}", player.ops);
            for (sender, lane) in player.lanes.iter().enumerate() {
                let at = player.target.address + sender as u64 * LANE;
                let got = player.sim.read(&self.cluster, at, LANE as usize);
                assert!(agrees(&got, &lane.get(0, LANE)), "a byte was touched");
                self.check_notifications(place, sender);
            }
        }
        for node in 0..self.cluster.nodes.len() {
            let statistics = self.cluster.statistics(node);
            assert_eq!(statistics.operations.get(), 0);
            assert_eq!(statistics.faults_pending.get(), 0);
            assert_eq!(statistics.parked_imports.get(), 0);
            assert_eq!(statistics.malformed_commands.get(), 0);
            assert_eq!(statistics.malformed_frames.get(), 0);
            let this = &self.cluster.nodes[node];
            assert!(this.driver.all_unlocked(&this.host));
        }
    }

    fn check_notifications(&self, target: usize, sender: usize) {
        let life = self.players[target].life;
        for notification in [1 + sender as u32 * 2, 2 + sender as u32 * 2] {
            let count = self.players[target]
                .sim
                .signals(&self.cluster, notification);
            let key = (target, life, notification);
            let empty = Vec::new();
            let notices = self.players[sender].notices.get(&key).unwrap_or(&empty);
            let sure = notices.iter().filter(|notice| notice.1).count() as u64;
            assert!(count >= sure, "a notification was lost");
            let all = notices.len() as u64;
            assert!(count <= all, "a notification was doubled");
        }
    }
}
