//! The game of life on a torus.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use qnic::parallel::{Edges, Grid, Ranks};

use super::{compare_bytes, picture, scrambled, Run, Solved};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qnic-app game-of-life --serial --generations 100
  cargo qnic machine run lab -- qnic-app game-of-life --rows 400 --columns 400 --seed 7

Rank 0 prints a JSON line, and writes the picture. The result is compared with that of a serial \
run, byte for byte: exit status 1 if they differ.")]
pub(crate) struct Options {
    /// Rows of the torus
    #[arg(long, default_value_t = 256)]
    rows: usize,
    /// Columns of the torus
    #[arg(long, default_value_t = 256)]
    columns: usize,
    /// Generations
    #[arg(long, default_value_t = 200)]
    generations: usize,
    /// Which cells live at first
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// PNG file for the result
    #[arg(long)]
    picture: Option<PathBuf>,
    #[command(flatten)]
    run: Run,
}

/// A row in the next generation.
fn next(above: &[u8], own: &[u8], below: &[u8], new: &mut [u8]) {
    let columns = own.len();
    for column in 0..columns {
        let (left, right) = ((column + columns - 1) % columns, (column + 1) % columns);
        let rows = [above, own, below];
        let all = rows
            .iter()
            .map(|row| row[left] + row[column] + row[right])
            .sum::<u8>();
        let around = all - own[column];
        new[column] = u8::from(around == 3 || (around == 2 && own[column] == 1));
    }
}

/// One cell of three lives at first.
fn first(options: &Options, row: usize, column: usize) -> u8 {
    let word = scrambled(options.seed, row * options.columns + column);
    u8::from(word % 3 == 0)
}

fn solved(cells: Vec<u8>, options: &Options) -> Solved<u8> {
    Solved {
        value: cells.iter().map(|cell| f64::from(*cell)).sum(),
        cells,
        steps: options.generations,
    }
}

fn compute(ranks: &mut Ranks, options: &Options) -> Result<Option<Solved<u8>>> {
    let size = (options.rows, options.columns);
    let mut grid = Grid::new(ranks, size, 1, Edges::Periodic, 0)?;
    grid.fill(|row, column| first(options, row, column));
    let cells = super::steps(ranks, grid, options.generations, next)?;
    Ok(cells.map(|cells| solved(cells, options)))
}

fn serial(options: &Options) -> Solved<u8> {
    let (rows, columns) = (options.rows, options.columns);
    let cell = |index: usize| first(options, index / columns, index % columns);
    let cells = (0..rows * columns).map(cell).collect();
    solved(generations(cells, columns, options.generations), options)
}

/// A torus after some generations.
fn generations(mut cells: Vec<u8>, columns: usize, count: usize) -> Vec<u8> {
    let rows = cells.len() / columns;
    let mut new = cells.clone();
    for _ in 0..count {
        let row = |index: usize| &cells[index % rows * columns..][..columns];
        for (index, new) in new.chunks_exact_mut(columns).enumerate() {
            next(row(index + rows - 1), row(index), row(index + 1), new);
        }
        std::mem::swap(&mut cells, &mut new);
    }
    cells
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let size = (options.rows, options.columns);
    let cells = super::run(
        "game-of-life",
        size,
        &options.run,
        |ranks| compute(ranks, options),
        || serial(options),
        compare_bytes,
    )?;
    if let (Some(path), Some(cells)) = (&options.picture, cells) {
        let colour = |cell: u8| [255 * (1 - cell.min(1)); 3];
        picture::write(path, options.columns, &cells, colour)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A glider moves by one cell to the right and down every four generations.
    #[test]
    fn a_glider_flies_around_the_torus() {
        let glider = [(0, 1), (1, 2), (2, 0), (2, 1), (2, 2)];
        let at = |shift: usize| {
            let mut cells = vec![0; 64];
            for (row, column) in glider {
                cells[(row + shift) % 8 * 8 + (column + shift) % 8] = 1;
            }
            cells
        };
        for shift in 0..9 {
            assert_eq!(generations(at(0), 8, 4 * shift), at(shift));
        }
    }
}
