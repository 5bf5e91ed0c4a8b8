//! What everybody can see, held against what must be.

use qnic_abi::{host_area, Status};

use super::{World, HALF};
use crate::oracle::{agrees, Kind, Op, LANE};

impl World {
    /// Looks at everything a process can see, and compares.
    pub(super) fn observe(&mut self) {
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
            // On a wire that is not perfect, others learn late of a process or a node
            // that has ended, and may take its successor for it.
            let late = matches!(status, Status::PeerGone | Status::NoSuchNode)
                && self.mix.loss.is_some()
                && self.mix.kill + self.mix.reset > 0;
            let excused = op.wrong == Some(*status) || op.disturbed || late;
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

    /// Lets everything come to its end, and looks at what is left. Returns how many
    /// frames went through bounce memory.
    pub(crate) fn finish(&mut self) -> u64 {
        let mut bounces = 0;
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
        let nodes = 0..self.cluster.nodes.len();
        let resent = |node| self.cluster.statistics(node).frames_resent.get();
        let resent: u64 = nodes.map(resent).sum();
        match self.mix.loss {
            None => assert_eq!(resent, 0, "on a perfect wire"),
            Some(loss) => assert!(loss < 100 || self.mix.reset > 0 || resent > 0),
        }
        for node in 0..self.cluster.nodes.len() {
            let statistics = self.cluster.statistics(node);
            assert_eq!(statistics.operations.get(), 0);
            assert_eq!(statistics.faults_pending.get(), 0);
            assert_eq!(statistics.frames_held.get(), 0);
            assert_eq!(statistics.bounce_bytes.get(), 0);
            bounces += statistics.bounces.get();
            assert_eq!(statistics.parked_imports.get(), 0);
            assert_eq!(statistics.malformed_commands.get(), 0);
            assert_eq!(statistics.malformed_frames.get(), 0);
            let this = &self.cluster.nodes[node];
            assert!(this.driver.all_unlocked(&this.host));
        }
        bounces
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
