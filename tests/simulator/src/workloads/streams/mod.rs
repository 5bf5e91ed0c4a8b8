//! A stream worker: a process with shared pools of the real driver core (S1 to S5), on which it
//! runs the real protocol of streams (S6).
//!
//! ```text
//!   works: connects, accepts, writes, reads, gives up ──► serves, until nothing breaks any more;
//!                              │                          then a stream to and from each other one
//!                              └──► ends, and tells no peer ──► another one, on the same port
//! ```
//! The process moves frames as the library does: from the pools to the endpoint, and back. It reads
//! and writes when it likes, so windows close and pools are empty.

mod oracle;

mod pool;
mod talk;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use qnic::stream_protocol::{Address, Config, Endpoint};
use qnic_abi::pool::OpenPools;
use qnic_abi::{NodeId, Status};
use qnic_driver::{CallError, Driver};
use qnic_shared::timing::Time;

use crate::common::Phase;
use crate::machine::platform::SimPlatform;
use crate::process::worker::{Next, Worker};
use crate::process::{Ended, ProcessContext, Result};
use crate::schedule::{lock, trace, Schedule};
use crate::workload::{ends, Oracle, Seed, Workload};
use oracle::{Life, StreamOracle, KEEP_ALIVE, OPEN_TIMEOUT, PEER_TIMEOUT};
use pool::{ProcessPools, Received, Sending};
use talk::Talk;

type End = Endpoint<Sending, Received>;

const MS: u64 = 1_000_000;

/// Datagram port of all stream workers.
const PORT: u16 = 2000;

/// Connections of a worker.
const CONNECTIONS: usize = 6;

/// Most frames of a pool.
const MOST: u64 = 24;

/// Pages of a frame at most.
const PAGES: u64 = 4;

/// Frames of memory that a worker takes: its pools, in pages.
const FRAMES: u64 = 2 * MOST + 4;

/// The same for its pools in blocks of pages.
const BLOCK_FRAMES: u64 = 2 * MOST * PAGES;

/// How long a worker waits for memory of its pools: its predecessor lets go of it before.
const MEMORY_WAIT: u64 = 10_000 * MS;

/// How long a connection that has ended answers late frames.
const LINGER: u64 = 60 * MS;

/// How long a worker looks away at most.
const LOOK: u64 = 10 * MS;

/// Longest pause between two steps.
const PAUSE: u64 = 6 * MS;

/// By then all NICs have noticed that everything works again.
const SETTLE: u64 = 3500 * MS;

/// Stream workers and their oracle.
struct Streams {
    oracle: Mutex<StreamOracle>,
}

/// A stream worker on each node.
pub(super) fn new(seed: &mut Seed<'_>) -> Box<dyn Workload> {
    seed.settings.use_engine();
    seed.settings.limits.completions = seed.random.u32(1..=32);
    seed.settings.block_frames = BLOCK_FRAMES;
    seed.settings.frames += FRAMES + BLOCK_FRAMES;
    let oracle = Mutex::new(StreamOracle::new(seed.settings, seed.routes));
    Box::new(Streams { oracle })
}

impl Workload for Streams {
    fn run(&self, context: &ProcessContext) {
        let driver = lock(&context.machine.driver).clone();
        let ending = match driver {
            Some(driver) => context.use_streams(&driver, &self.oracle),
            None => Err(Ended),
        };
        ends(self, context, "stream worker", ending.is_ok());
    }

    fn oracle(&self) -> &Mutex<dyn Oracle> {
        &self.oracle
    }
}

impl ProcessContext {
    fn use_streams(
        &self,
        driver: &Arc<Driver<SimPlatform>>,
        oracle: &Mutex<StreamOracle>,
    ) -> Result<()> {
        let schedule = &self.common.schedule;
        let frames = |least: u64| schedule.range(least..MOST + 1) as u16;
        let bytes = [300, 1024, 2048, 4096, 6000, 16_384][schedule.below(6)];
        let call = OpenPools {
            port: PORT.into(),
            frame_bytes: bytes.into(),
            inputs: frames(12).into(),
            outputs: frames(12).into(),
            ..OpenPools::default()
        };
        let pools = self.open_pools(driver, &call)?;
        let config = Config {
            connections: CONNECTIONS,
            backlog: 4,
            backlog_per_node: 2,
            frame_bytes: bytes as usize,
            receive_frames: usize::from(call.inputs.get()) - 4,
            send_frames: usize::from(call.outputs.get()) - 4,
            keep_alive: KEEP_ALIVE,
            peer_timeout: PEER_TIMEOUT,
            open_timeout: OPEN_TIMEOUT,
            linger: LINGER,
            ..Config::default()
        };
        let mut end = Endpoint::new(fast(config), schedule.any()).expect("limits that fit");
        end.listen(true);
        let life = lock(oracle).begin(self.slot, schedule.now());
        trace!(
            schedule,
            "stream worker {}: listens, life {}",
            life.0,
            life.1
        );
        let worker = StreamWorker {
            oracle,
            context: self,
            schedule,
            life,
            pools: pools.clone(),
            spare: None,
            talks: Vec::new(),
        };
        let mut living = Living {
            worker,
            end,
            settled: None,
            missing: None,
        };
        living.live()?;
        living.worker.finish(living.end)
    }

    fn open_pools(
        &self,
        driver: &Arc<Driver<SimPlatform>>,
        call: &OpenPools,
    ) -> Result<Arc<ProcessPools>> {
        let limit = self.common.schedule.now() + MEMORY_WAIT;
        loop {
            let mut call = *call;
            match driver.open_pools(&mut call) {
                Ok(Some(pools)) => return Ok(ProcessPools::new(pools, &call)),
                // Its predecessor is not gone yet, or all windows are in use.
                Ok(None) => {
                    let status = call.status.get();
                    let later = [Status::PortInUse, Status::Exhausted].map(Status::code);
                    assert!(later.contains(&status), "pools are refused: {status}");
                    self.sleep(100_000)?;
                }
                Err(CallError::NoMemory) => {
                    let now = self.common.schedule.now();
                    let slot = self.slot;
                    assert!(
                        now < limit,
                        "stream worker {slot}: no memory for its pools: {call:?}"
                    );
                    self.sleep(100_000)?;
                }
                Err(CallError::NoDevice) => return Err(Ended),
                Err(error) => panic!("stream worker {}: {error}", self.slot),
            }
        }
    }
}

/// Times that fit short simulations.
fn fast(mut config: Config) -> Config {
    config.retransmission.initial = 10 * MS;
    config.retransmission.floor = MS;
    config.retransmission.floor_oldest = MS;
    config.retransmission.ceiling = 30 * MS;
    config
}

/// A process that listens.
struct StreamWorker<'a> {
    oracle: &'a Mutex<StreamOracle>,
    context: &'a ProcessContext,
    schedule: &'a Schedule,
    life: Life,
    pools: Arc<ProcessPools>,
    /// An output frame for headers without data.
    spare: Option<Sending>,
    talks: Vec<Talk>,
}

/// The same with its endpoint.
struct Living<'a> {
    worker: StreamWorker<'a>,
    end: End,
    /// From when on everything works again, once nothing breaks any more.
    settled: Option<u64>,
    /// Slots that it has had no connection with since then.
    missing: Option<BTreeSet<usize>>,
}

impl Worker for Living<'_> {
    fn context(&self) -> &ProcessContext {
        self.worker.context
    }

    fn step(&mut self) -> Result<Next> {
        let schedule = self.worker.schedule;
        if schedule.chance(200) {
            self.worker.connect_to_some(&mut self.end);
        }
        if schedule.chance(8) {
            self.worker.give_one_up(&mut self.end);
        }
        self.worker.step(&mut self.end)?;
        Ok(Next::GoOn)
    }

    fn pause(&mut self) -> Result<()> {
        let schedule = self.worker.schedule;
        let share = if schedule.chance(500) { 50 } else { 1 };
        let longest = schedule.range(0..PAUSE / share);
        self.worker.pause(&self.end, longest)
    }

    /// Goes on with the connections that there are, and those of others; when nothing breaks any
    /// more, has one with each other worker that is there.
    fn look(&mut self) -> Result<()> {
        let worker = &mut self.worker;
        worker.step(&mut self.end)?;
        let now = worker.schedule.now();
        if worker.hurries() && now >= *self.settled.get_or_insert(now + SETTLE) {
            let others = || worker.others().collect();
            let missing = self.missing.get_or_insert_with(others);
            worker.look_at_others(&mut self.end, missing);
        }
        worker.context.set_idle(worker.talks.is_empty());
        worker.pause(&self.end, LOOK)
    }
}

impl StreamWorker<'_> {
    fn now(&self) -> Time {
        Time(self.schedule.now())
    }

    /// The slot of the process at an address.
    fn slot_of(&self, address: Address) -> usize {
        assert_eq!(address.port, PORT, "only stream workers send to it");
        self.context.common.settings.rdma_workers + usize::from(address.node.0)
    }

    /// It does what it can at once: it begins nothing new.
    fn hurries(&self) -> bool {
        self.context.common.phase() != Phase::Work
    }

    /// Slots of the others that are there.
    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        let settings = &self.context.common.settings;
        let slots = settings.rdma_workers..settings.slots.len();
        slots.filter(|slot| *slot != self.life.0)
    }

    /// Connects to one after the other.
    fn look_at_others(&mut self, end: &mut End, missing: &mut BTreeSet<usize>) {
        let own = |talk: &Talk| talk.is_own;
        if self.talks.iter().any(own) {
            return;
        }
        match missing.pop_first() {
            Some(peer) if lock(self.oracle).is_alive(peer) => {
                self.connect(end, peer);
            }
            Some(_) => {}
            None => self.context.set_verified(),
        }
    }

    fn connect_to_some(&mut self, end: &mut End) {
        let others: Vec<_> = self.others().collect();
        let peer = others[self.schedule.below(others.len())];
        self.connect(end, peer);
    }

    fn connect(&mut self, end: &mut End, peer: usize) {
        let node = self.context.common.settings.slots[peer];
        let to = Address {
            node: NodeId(node as u16),
            port: PORT,
        };
        // Without one, all connections are in use.
        if let Ok(id) = end.connect(self.now(), to, self.pools.route_bytes(to.node)) {
            self.begin(id, to, true);
        }
    }

    fn give_one_up(&mut self, end: &mut End) {
        if self.talks.is_empty() {
            return;
        }
        let talk = self
            .talks
            .swap_remove(self.schedule.below(self.talks.len()));
        lock(self.oracle).gives_up(self.life.0, self.schedule.now());
        end.abort(talk.id);
    }

    /// Moves frames, and lets all connections go on.
    fn step(&mut self, end: &mut End) -> Result<()> {
        self.pump(end)?;
        while let Some((id, from)) = end.accept() {
            end.limit_frame_bytes(id, self.pools.route_bytes(from.node));
            self.begin(id, from, false);
        }
        self.talk(end);
        self.pump(end)
    }

    /// Moves frames in both directions.
    fn pump(&mut self, end: &mut End) -> Result<()> {
        let now = self.now();
        while let Some(frame) = self.pools.receive() {
            let from = Address {
                node: frame.node,
                port: frame.port,
            };
            end.handle_frame(now, from, frame);
        }
        end.tick(now);
        while let Some(mut spare) = self.spare.take().or_else(|| self.pools.output()) {
            let Some(transmit) = end.poll_transmit(now) else {
                self.spare = Some(spare);
                break;
            };
            let to = (transmit.to.node, transmit.to.port);
            match transmit.data {
                Some((frame, length)) => {
                    frame.send(to, &transmit.header, length);
                    self.spare = Some(spare);
                }
                None => spare.send(to, &transmit.header, 0),
            }
        }
        while end.poll_changed().is_some() {}
        let flushed = self.pools.flush();
        self.context.called("kick", flushed)
    }

    /// Waits for frames, or so long; not beyond what is due.
    fn pause(&mut self, end: &End, longest: u64) -> Result<()> {
        let now = self.schedule.now();
        let due = end
            .deadline()
            .map_or(u64::MAX, |at| at.0.saturating_sub(now));
        let waited = self.pools.wait(longest.min(due).max(1000));
        self.context.called("wait", waited)
    }

    /// All streams are over: what has lingered goes, and every frame is back.
    fn finish(mut self, mut end: End) -> Result<()> {
        let limit = self.schedule.now() + PEER_TIMEOUT + 10 * LINGER;
        while end.connections() > 0 || !self.talks.is_empty() {
            let left = (end.connections(), self.talks.len());
            assert!(
                self.schedule.now() < limit,
                "connections are left: {left:?}"
            );
            self.step(&mut end)?;
            self.pause(&end, LOOK)?;
        }
        drop(end);
        self.spare = None;
        while !self.pools.is_whole() {
            assert!(self.schedule.now() < limit, "frames of pools are lost");
            self.context.sleep(MS)?;
        }
        Ok(())
    }
}
