//! What happens to the cluster meanwhile: pages come and go, segments are revoked,
//! processes die, nodes are reset.

use qnic_abi::{Access, Status};
use qnic_nic::testing::{Cluster, SimProcess};

use super::World;
use crate::oracle::Op;

impl World {
    pub(super) fn evict(&mut self) {
        let node = self.node();
        let resident = self.cluster.nodes[node].driver.resident();
        if !resident.is_empty() {
            let (vni, page) = resident[self.random.below(resident.len() as u64) as usize];
            self.cluster.evict(node, vni, page);
        }
    }

    pub(super) fn answer(&mut self) {
        let node = self.node();
        let faults = self.cluster.nodes[node].faults.len() as u64;
        if faults > 0 {
            let place = self.random.below(faults) as usize;
            let limit = 1 + self.random.below(8) as u32;
            self.cluster.answer_fault(node, place, limit);
        }
    }

    pub(super) fn advance(&mut self) {
        let lossy = self.mix.loss.is_some();
        let time = self.random.below(if lossy { 30_000 } else { 6000 });
        self.cluster.advance(time);
        let node = self.node();
        if self.random.one_in(3) {
            self.cluster.sleeps(node);
        }
    }

    pub(super) fn toggle_page(&mut self) {
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

    pub(super) fn revoke(&mut self) {
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

    pub(super) fn kill(&mut self) {
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
    pub(super) fn drop_notice(&mut self, place: usize, op: &Op) {
        if let Some(notification) = op.notification() {
            let key = (op.target.0, op.target.1, notification);
            let notices = self.players[place].notices.get_mut(&key).unwrap();
            let notice = notices.iter_mut().find(|notice| notice.0 == op.id);
            notice.unwrap().1 = false;
        }
    }

    pub(super) fn reset(&mut self) {
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
}
