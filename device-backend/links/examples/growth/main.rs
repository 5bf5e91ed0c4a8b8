//! What a write of 8 bytes costs an engine, against how many peers or processes take turns (P9), without
//! I/O and without another thread: rounds, turns, Acks and time of each.
//!
//! `growth peers|endpoints COUNT fenced|streamed WRITES`: one process writes to so many peers in turn,
//! or so many processes write to one peer. *Fenced*: each write is waited for, and the next one is
//! posted two rounds later. *Streamed*: as many as its queue takes. The time of the NICs is
//! that of rounds, of 100 ns each, so two runs do the same; under callgrind or cachegrind with twice
//! as many writes, what is not of a write drops out.
//!
//! `growth floor COUNT LINES TURNS`: what it costs to touch so many lines of memory that no other cache has,
//! of each of COUNT places in turn, on [`PAGES`] pages each: the least that a write to so many peers takes
//! longer, if it touches so many lines for each of them (cachegrind's D1 misses of a write).

mod engine;
#[path = "../scaling/node.rs"]
mod node;

use std::time::Instant;

use engine::{Engine, Run};

/// Words of a line of the processor's caches.
const LINE: usize = 8;

/// Words of a page.
const PAGE: usize = 512;

/// Pages that a NIC touches for a write.
const PAGES: usize = 16;

/// Touches lines, one in four of them to change it, and prints nanoseconds of a turn.
fn floor(count: usize, lines: usize, turns: usize) {
    let mut memory = vec![1u64; count * PAGES * PAGE];
    let of_page = lines.div_ceil(PAGES);
    let mut sum = 0u64;
    let start = Instant::now();
    for turn in 0..turns {
        let place = turn % count * PAGES * PAGE;
        for line in 0..lines {
            let (page, row) = (line / of_page, line % of_page);
            // Not the same line of each page: those share a set of the cache.
            let word = place + page * PAGE + (page * 5 + row * 7 + place) * LINE % PAGE;
            sum = sum.wrapping_add(memory[word]);
            if line % 4 == 0 {
                memory[word] = sum;
            }
        }
    }
    let time = start.elapsed().as_nanos() as f64 / turns as f64;
    println!("{time:.1} ns ({})", std::hint::black_box(sum) % 10);
}

/// What `floor` is given.
fn parse_floor(arguments: &[String]) -> Option<[usize; 3]> {
    let [what, numbers @ ..] = arguments else {
        return None;
    };
    let numbers: Vec<usize> = numbers
        .iter()
        .map(|it| it.parse().ok())
        .collect::<Option<_>>()?;
    let [count, lines, turns] = numbers.try_into().ok()?;
    let possible = (1..=1000).contains(&count) && (1..=PAGES * PAGE / LINE).contains(&lines);
    (what == "floor" && possible && turns > 0).then_some([count, lines, turns])
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some([count, lines, turns]) = parse_floor(&arguments) {
        return floor(count, lines, turns);
    }
    let Some(run) = Run::parse(&arguments) else {
        eprintln!("usage: growth peers|endpoints COUNT fenced|streamed WRITES");
        eprintln!("       growth floor COUNT LINES TURNS");
        eprintln!("COUNT up to 1000; LINES up to 1024");
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
