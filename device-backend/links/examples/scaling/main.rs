//! What a write of 8 bytes takes of an engine when there are several: `cargo qnic bench growth` runs
//! it, and computes from it what more processors would give.
//!
//! ```text
//!   thread 0                        thread 1
//!   ┌─ engine 0 ─┐  ┌─ engine 2 ─┐   ┌─ engine 1 ─┐
//!   │ 4 NICs     │  │ 4 NICs     │   │ 4 NICs     │     each NIC's process keeps 32 writes under way
//!   └────────────┘  └────────────┘   └────────────┘
//!         └── rings, both ways, between every two engines ──┘
//! ```
//! `scaling ENGINES THREADS within|across|even WRITES` prints the nanoseconds of a thread for each
//! write, to post it among them, when every process has written so often. Engines are dealt to
//! the threads in turn. Writes go to the next NIC of the same engine, to one of the next engine, or
//! to all NICs in turn.

mod node;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Barrier;
use std::time::Instant;

use node::{Node, Ram};
use qnic_abi::NodeId;
use qnic_links::fabric::Fabric;
use qnic_links::siblings::{mesh, Siblings};
use qnic_nic::{Progress, Time};

/// NICs of an engine.
const NICS: usize = 4;

/// Most engines: their NICs have numbers of 16 bits, and each two engines have two rings.
const MOST: usize = 64;

/// By then all writes are complete, in nanoseconds: one that gets lost is not waited for.
const LIMIT_NS: u64 = 300_000_000_000;

/// The doorbell of each process: a NIC has one.
const DOORBELL: u32 = 0;

/// Where writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Within,
    Across,
    Even,
}

impl Pattern {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "within" => Some(Pattern::Within),
            "across" => Some(Pattern::Across),
            "even" => Some(Pattern::Even),
            _ => None,
        }
    }

    /// The node that the write of that number goes to.
    fn target(self, node: usize, number: u64, engines: usize) -> usize {
        let (engine, nic) = (node / NICS, node % NICS);
        let nodes = engines * NICS;
        match self {
            Pattern::Within => engine * NICS + (nic + 1) % NICS,
            Pattern::Across => (node + NICS) % nodes,
            Pattern::Even => (node + 1 + number as usize % (nodes - 1)) % nodes,
        }
    }
}

/// One engine and the processes of its nodes.
struct Engine {
    fabric: Fabric<Node>,
    /// Of all engines.
    engines: usize,
    pattern: Pattern,
    writes: u64,
    finished: bool,
}

impl Engine {
    fn new(number: usize, all: &Run, siblings: Siblings<Ram>) -> Self {
        let mut fabric = Fabric::default();
        for slot in 0..NICS {
            let (nic, host) = Node::new(number * NICS + slot, 1);
            fabric.add(nic, host).expect("one of its number");
            fabric.with(slot, Time(1), |now, nic, host, wire| {
                host.start(now, nic, wire)
            });
        }
        let nodes =
            |engine: usize| (engine * NICS..(engine + 1) * NICS).map(|it| NodeId(it as u16));
        let nodes: Vec<Vec<NodeId>> = (0..all.engines).map(|it| nodes(it).collect()).collect();
        fabric.join_engines(siblings, &nodes).expect("other nodes");
        Engine {
            fabric,
            engines: all.engines,
            pattern: all.pattern,
            writes: all.writes,
            finished: false,
        }
    }

    /// What processes and engine do in a round. Returns true if this one ends the work of all
    /// processes.
    fn round(&mut self, now: Time) -> bool {
        let (engines, pattern, writes) = (self.engines, self.pattern, self.writes);
        let mut finished = true;
        for slot in 0..NICS {
            let target = |node, number| pattern.target(node, number, engines);
            if self.fabric.host(slot).post(0, writes, target) {
                self.fabric.nic_mut(slot).handle_doorbell(DOORBELL);
            }
            finished &= self.fabric.host(slot).done(0) == writes;
        }
        self.fabric.receive(now);
        let mut from = 0;
        while let Some(slot) = self.fabric.next_due(from) {
            from = slot + 1;
            if self.fabric.poll(slot, now) == Progress::Idle {
                self.fabric.rest(slot);
            }
        }
        self.fabric.flush(now);
        finished && !std::mem::replace(&mut self.finished, true)
    }
}

/// What is measured.
struct Run {
    engines: usize,
    threads: usize,
    pattern: Pattern,
    writes: u64,
}

impl Run {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [engines, threads, pattern, writes] = arguments else {
            return None;
        };
        let run = Run {
            engines: engines.parse().ok()?,
            threads: threads.parse().ok()?,
            pattern: Pattern::parse(pattern)?,
            writes: writes.parse().ok()?,
        };
        let possible =
            (1..=MOST).contains(&run.engines) && (1..=run.engines).contains(&run.threads);
        let somewhere = run.pattern != Pattern::Across || run.engines > 1;
        (possible && somewhere && run.writes > 0).then_some(run)
    }

    /// Nanoseconds of a thread for each write.
    fn measure(&self) -> f64 {
        let ways = mesh(self.engines).expect("event descriptors");
        let mut shares: Vec<Vec<(usize, Siblings<Ram>)>> = Vec::new();
        shares.resize_with(self.threads, Vec::new);
        for (number, siblings) in ways.into_iter().enumerate() {
            shares[number % self.threads].push((number, siblings));
        }
        let (barrier, left) = (Barrier::new(self.threads), AtomicUsize::new(self.engines));
        let nanoseconds = std::thread::scope(|scope| {
            let threads = shares.into_iter().map(|share| {
                let (barrier, left) = (&barrier, &left);
                scope.spawn(move || self.drive(share, barrier, left))
            });
            let threads: Vec<_> = threads.collect();
            let times = threads.into_iter().map(|it| it.join().expect("it ends"));
            times.fold(0.0, f64::max)
        });
        let writes = self.writes * (self.engines * NICS) as u64;
        nanoseconds * self.threads as f64 / writes as f64
    }

    /// Drives its share of the engines until all processes have ended; returns the time.
    fn drive(
        &self,
        share: Vec<(usize, Siblings<Ram>)>,
        barrier: &Barrier,
        left: &AtomicUsize,
    ) -> f64 {
        let engines = share.into_iter();
        let engines = engines.map(|(number, siblings)| Engine::new(number, self, siblings));
        let mut engines: Vec<Engine> = engines.collect();
        barrier.wait();
        let start = Instant::now();
        // What the others wait for is in rings; the number says only when to end.
        while left.load(Ordering::Relaxed) > 0 {
            for engine in &mut engines {
                let now = Time(2 + start.elapsed().as_nanos() as u64);
                assert!(
                    now.0 < LIMIT_NS,
                    "writes are not complete in time: run fewer"
                );
                if engine.round(now) {
                    left.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        let time = start.elapsed().as_nanos() as f64;
        for engine in &engines {
            for slot in 0..NICS {
                assert_eq!(engine.fabric.host(slot).errors(0), 0, "writes fail");
            }
        }
        time
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(run) = Run::parse(&arguments) else {
        eprintln!("usage: scaling ENGINES THREADS within|across|even WRITES");
        eprintln!(
            "1 to {MOST} engines, as many threads at most; `across` with two engines or more"
        );
        std::process::exit(2);
    };
    println!("{:.1}", run.measure());
}
