//! The benchmark: latency and bandwidth over size against a demo target, with a
//! native memcpy floor interleaved where this process runs natively.

use anyhow::Result;
use clap::Args;
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::BenchRow;
use qnic_apps::walk;

use crate::floor;
use qnic_apps::demo::node::say_line;
use qnic_apps::demo::{Initiator, Operation};

#[derive(Args)]
pub(crate) struct Options {
    /// Node on which the target runs
    #[arg(long)]
    peer: u16,
    /// Sizes of transfers, in bytes
    #[arg(
        long,
        value_name = "SIZE,…",
        value_delimiter = ',',
        default_value = "8,64,512,4096,65536,1048576"
    )]
    sizes: Vec<usize>,
    /// Rounds for each size, interleaved with the floor; 0 to measure latency alone
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes to move in a round
    #[arg(long, default_value_t = 64 << 20)]
    round_bytes: usize,
    /// Measure a memcpy of the same size beside each round
    #[arg(long)]
    floor: bool,
    /// Stay when all is measured, until killed: a NIC of host mode forgets its counters with its process
    #[arg(long)]
    stay: bool,
}

/// Measures all sizes; prints one [`BenchRow`] for each operation and size.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut initiator = Initiator::connect(options.peer)?;
    for size in &options.sizes {
        for row in rows(&mut initiator, *size, options)? {
            say_line(&row)?;
        }
    }
    if options.stay {
        loop {
            std::thread::park();
        }
    }
    initiator.finish()
}

fn rows(initiator: &mut Initiator, size: usize, options: &Options) -> Result<[BenchRow; 2]> {
    let count = (options.round_bytes / size).clamp(4, 20_000);
    let mut rows = [BenchRow::new("write", size), BenchRow::new("read", size)];
    let operations = [Operation::Write, Operation::Read];
    rows[0].latency.extend(initiator.latency(size, PAGE_SIZE)?);
    if options.rounds == 0 {
        return Ok(rows);
    }
    // The first round warms caches and page tables, and is not counted.
    for round in 0..=options.rounds {
        if options.floor && round > 0 {
            let (source, destination) = initiator.floor_memory();
            let (to, from) = (&destination.buffer, &source.buffer);
            let floor = floor::memcpy_mb_s(to, from, PAGE_SIZE, size, count)?;
            rows.iter_mut().for_each(|row| row.memcpy_mb_s.push(floor));
        }
        for (row, operation) in rows.iter_mut().zip(operations) {
            let mb_s =
                initiator.stream(operation, size, walk::offsets(size, count), [PAGE_SIZE; 2])?;
            if round > 0 {
                row.mb_s.push(mb_s);
            }
        }
    }
    Ok(rows)
}
