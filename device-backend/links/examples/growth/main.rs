//! What a write of 8 bytes costs an engine, against how many peers or processes take turns (P9), without
//! I/O and without another thread: rounds, turns, Acks and time of each.
//!
//! `growth peers|endpoints COUNT fenced|streamed WRITES`: one process writes to so many peers in turn,
//! or so many processes write to one peer. *Fenced*: each write is waited for, and the next one is
//! posted two rounds later. *Streamed*: as many as its queue takes. The time of the NICs is
//! that of rounds, of 100 ns each, so two runs do the same; under callgrind or cachegrind with twice
//! as many writes, what is not of a write drops out.

mod engine;
#[path = "../scaling/node.rs"]
mod node;

use std::time::Instant;

use engine::{Engine, Run};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(run) = Run::parse(&arguments) else {
        eprintln!("usage: growth peers|endpoints COUNT fenced|streamed WRITES");
        eprintln!("up to 1000 peers or endpoints");
        std::process::exit(2);
    };
    let mut engine = Engine::new(&run);
    // Sessions begin, and nothing is met for the first time any more.
    engine.run(&run, 4 * (run.peers * run.endpoints) as u64);
    let (rounds, turns, acks) = (engine.rounds, engine.turns, engine.acks(&run));
    let start = Instant::now();
    engine.run(&run, run.writes);
    let each = |count: u64| count as f64 / run.writes as f64;
    println!(
        "{:.1} ns, {:.2} rounds, {:.2} turns, {:.2} Acks",
        each(start.elapsed().as_nanos() as u64),
        each(engine.rounds - rounds),
        each(engine.turns - turns),
        each(engine.acks(&run) - acks)
    );
    assert_eq!(engine.errors(&run), 0, "writes fail");
}
