//! Data-parallel programs on a machine (S8): heat on a plate, a conjugate-gradient solver, the
//! game of life. Each compares its result with that of a serial run.
//!
//! | module | |
//! |---|---|
//! | `plate`, `gradient`, `game` | the programs |
//! | `picture` | grids as PNG files |

mod game;
mod gradient;
mod picture;
mod plate;

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use qnic::machine::Machine;
use qnic::parallel::{self, Element, Grid, Ranks};
use qnic::Nic;
use serde::Serialize;
use zerocopy::IntoBytes;

use qnic_apps::demo::node::{say, say_line};

pub(crate) use game::{run as game, Options as GameOptions};
pub(crate) use gradient::{run as gradient, Options as GradientOptions};
pub(crate) use plate::{run as plate, Options as HeatOptions};

/// Most cells of a grid.
const MAX_CELLS: usize = 1 << 26;

/// The run, as options of each program.
#[derive(Debug, Args)]
struct Run {
    /// Computes alone, without NIC and machine
    #[arg(long)]
    serial: bool,
    /// Does not compare with a serial run
    #[arg(long)]
    no_check: bool,
    /// Longest time to wait for another rank, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

/// What a program did. Rank 0 says it, and so does a serial run.
#[derive(Debug, Serialize)]
struct Report {
    program: &'static str,
    /// Ranks; 0 of a serial run.
    ranks: u32,
    interface: Option<String>,
    rows: usize,
    columns: usize,
    /// Steps, generations or iterations.
    steps: usize,
    /// CRC-32 of all cells, little-endian, row by row.
    crc32: u32,
    /// What it has come to: a mean, a residual, living cells.
    value: f64,
    seconds: f64,
    /// Greatest difference from a serial run, as part of the greatest value; none if not compared.
    difference: Option<f64>,
}

impl Run {
    /// Connects with the other ranks of the machine.
    fn ranks(&self) -> Result<Ranks> {
        let machine = Machine::from_environment()?;
        let nic = Nic::open().context("open the NIC")?;
        let timeout = Duration::from_secs(self.timeout);
        let start = timeout;
        let options = parallel::Options::new(start, timeout);
        let ranks = Ranks::connect(&nic, &machine, options).context("connect with the ranks")?;
        say("connected", std::process::id())?;
        Ok(ranks)
    }
}

/// A result: the cells of the whole grid, steps, value.
struct Solved<T> {
    cells: Vec<T>,
    steps: usize,
    value: f64,
}

/// Runs a program: `compute` by all ranks, `serial` alone; `compare` returns the difference, or an
/// error if that is too great.
fn run<T: Element>(
    program: &'static str,
    (rows, columns): (usize, usize),
    run: &Run,
    compute: impl FnOnce(&mut Ranks) -> Result<Option<Solved<T>>>,
    serial: impl FnOnce() -> Solved<T>,
    compare: impl FnOnce(&[T], &[T]) -> Result<f64>,
) -> Result<Option<Vec<T>>> {
    let cells = rows.checked_mul(columns).filter(|cells| *cells > 0);
    ensure!(
        cells.is_some_and(|cells| cells <= MAX_CELLS),
        "{rows} rows of {columns} columns: a grid has 1 to {MAX_CELLS} cells"
    );
    let start = Instant::now();
    let mut report = Report {
        program,
        ranks: 0,
        interface: None,
        rows,
        columns,
        steps: 0,
        crc32: 0,
        value: 0.0,
        seconds: 0.0,
        difference: None,
    };
    let mut serial = Some(serial);
    let solved = if run.serial {
        serial.take().map(|serial| serial())
    } else {
        let mut ranks = run.ranks()?;
        report.ranks = ranks.size();
        report.interface = Some(ranks.machine().interface().to_string());
        let solved = compute(&mut ranks)?;
        ranks.finish().context("finish")?;
        solved
    };
    let Some(solved) = solved else {
        return Ok(None);
    };
    report.seconds = start.elapsed().as_secs_f64();
    report.steps = solved.steps;
    report.value = solved.value;
    report.crc32 = crc32fast::hash(solved.cells.as_bytes());
    let serial = serial.filter(|_| !run.no_check);
    let compared = serial.map(|serial| compare(&solved.cells, &serial().cells));
    report.difference = compared.transpose().context("compare with a serial run")?;
    say_line(&report)?;
    Ok(Some(solved.cells))
}

/// A row behind a step, from the row above it, the row itself and the one below.
type Next<T> = fn(&[T], &[T], &[T], &mut [T]);

/// Makes steps on a grid with a halo of one row; returns all cells at rank 0.
fn steps<T: Element>(
    ranks: &mut Ranks,
    mut grid: Grid<T>,
    count: usize,
    next: Next<T>,
) -> Result<Option<Vec<T>>> {
    let mut new = grid.clone();
    for _ in 0..count {
        grid.exchange_halo(ranks)?;
        for row in 0..grid.own_rows().len() as isize {
            let (above, below) = (grid.row(row - 1), grid.row(row + 1));
            next(above, grid.row(row), below, new.row_mut(row));
        }
        std::mem::swap(&mut grid, &mut new);
    }
    Ok(grid.gather(ranks)?)
}

/// Returns an error unless two results are the same, byte for byte.
fn compare_bytes<T: Element>(cells: &[T], serial: &[T]) -> Result<f64> {
    let same = cells.as_bytes() == serial.as_bytes();
    ensure!(same, "the result is not that of the serial run");
    Ok(0.0)
}

/// A number for each cell, the same in each run: splitmix64.
fn scrambled(seed: u64, index: usize) -> u64 {
    let word = seed.wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
