//! The benchmark: latency and bandwidth over size against a demo target, with a
//! native memcpy floor interleaved where this process runs natively.

use anyhow::Result;
use clap::Args;
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::BenchRow;

use crate::demo::Initiator;
use crate::floor;
use crate::node::say_line;

/// Options of the benchmark.
#[derive(Args)]
pub(crate) struct Options {
    /// Node on which the target runs
    #[arg(long)]
    peer: u16,
    /// Sizes of transfers, in bytes
    #[arg(
        long,
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
}

/// Measures all sizes; prints one [`BenchRow`] for each operation and size.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut initiator = Initiator::connect(options.peer)?;
    for size in &options.sizes {
        for row in rows(&mut initiator, *size, options)? {
            say_line(&row)?;
        }
    }
    initiator.finish()
}

fn rows(initiator: &mut Initiator, size: usize, options: &Options) -> Result<[BenchRow; 2]> {
    let count = (options.round_bytes / size).clamp(4, 20_000);
    let (from, to) = (PAGE_SIZE, PAGE_SIZE);
    let (mut write, mut read) = (BenchRow::new("write", size), BenchRow::new("read", size));
    write.latency.extend(initiator.latency(size, to)?);
    if options.rounds == 0 {
        return Ok([write, read]);
    }
    // The first round warms caches and page tables, and is not counted.
    initiator.write_stream(size, count, from, to)?;
    initiator.read_stream(size, count, from, to)?;
    for _ in 0..options.rounds {
        if options.floor {
            let (source, destination) = initiator.floor_memory();
            let floor = floor::memcpy_mb_s(&destination.buffer, &source.buffer, from, size, count)?;
            write.memcpy_mb_s.push(floor);
            read.memcpy_mb_s.push(floor);
        }
        write.push(initiator.write_stream(size, count, from, to)?);
        read.push(initiator.read_stream(size, count, from, to)?);
    }
    Ok([write, read])
}
