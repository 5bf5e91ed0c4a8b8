//! The cluster, its processes, and what happens to them.

mod checks;
mod events;
mod issue;

use std::collections::BTreeMap;

use qnic_abi::{Access, Port, VniId, PAGE_SIZE};
use qnic_nic::testing::{Cluster, SimProcess, SimSegment, Weather};
use qnic_nic::Limits;

use crate::mix::{Mix, Random};
use crate::oracle::{Lane, Op, LANE};

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
    /// Most frames that may wait for pages on a node: the windows of all nodes (N15).
    most_held: u32,
    unavailable: Vec<(usize, VniId, u64)>,
}

impl World {
    pub(crate) fn new(seed: u64, mix: Mix) -> Self {
        let limits = Limits {
            faults: 1 + (seed % 5) as u32,
            window: 2 + (seed % 24) as u32,
            frames_per_write: 1 + (seed % 7) as u32,
            requests_per_read: 1 + (seed % 3) as u32,
            frames_per_poll: 1 + (seed % 64) as u32,
            operations: 1 + (seed % 64) as u32,
            ..Limits::default()
        };
        let limits = match mix.loss {
            None => limits,
            // In proportion to a wire of some microseconds.
            Some(_) => Limits {
                retransmit_initial: 400_000,
                retransmit_floor: 100_000,
                retransmit_floor_oldest: 50_000,
                retransmit_ceiling: 5_000_000,
                acknowledge_after: 10_000,
                ..limits
            },
        };
        let mut cluster = Cluster::new(mix.nodes, mix.frames, 4, &limits);
        cluster.answer_faults = false;
        if let Some(loss) = mix.loss {
            let weather = Weather {
                loss,
                duplication: loss,
                delay: 2_000,
                jitter: 10_000,
            };
            cluster.set_weather(weather, seed);
        }
        let mut world = World {
            random: Random(seed),
            cluster,
            players: Vec::new(),
            seen: BTreeMap::new(),
            next_op: 0,
            next_name: 1,
            unavailable: Vec::new(),
            most_held: limits.window * u32::from(mix.nodes),
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
        let statistics = self.cluster.statistics(node);
        let held = statistics.frames_held.get();
        assert!(held <= self.most_held, "{held} frames are held");
        assert!(statistics.bounce_bytes.get() <= u64::from(held) * PAGE_SIZE as u64);
    }
}
