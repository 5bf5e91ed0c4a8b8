//! Heat on a plate: each cell becomes the mean of the four around it. The upper edge is hot, the
//! others are cold.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use qnic::parallel::{Edges, Grid, Ranks};

use super::{compare_bytes, picture, Run, Solved};

/// Temperature of the upper edge; that of the others is 0.
const HOT: f64 = 100.0;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qnic-app heat --serial --picture alone.png
  cargo qnic machine run lab -- qnic-app heat --rows 512 --columns 512 --steps 2000

Rank 0 prints a JSON line, and writes the picture. The result is compared with that of a serial \
run, byte for byte: exit status 1 if they differ.")]
pub(crate) struct Options {
    /// Rows of the plate
    #[arg(long, default_value_t = 256)]
    rows: usize,
    /// Columns of the plate
    #[arg(long, default_value_t = 256)]
    columns: usize,
    /// Steps
    #[arg(long, default_value_t = 500)]
    steps: usize,
    /// PNG file for the result
    #[arg(long)]
    picture: Option<PathBuf>,
    #[command(flatten)]
    run: Run,
}

/// A row behind a step.
fn next(above: &[f64], own: &[f64], below: &[f64], new: &mut [f64]) {
    for column in 0..own.len() {
        let left = column.checked_sub(1).map_or(0.0, |left| own[left]);
        let right = own.get(column + 1).copied().unwrap_or(0.0);
        new[column] = ((above[column] + below[column]) + (left + right)) * 0.25;
    }
}

fn solved(cells: Vec<f64>, options: &Options) -> Solved<f64> {
    Solved {
        value: cells.iter().sum::<f64>() / cells.len().max(1) as f64,
        cells,
        steps: options.steps,
    }
}

fn compute(ranks: &mut Ranks, options: &Options) -> Result<Option<Solved<f64>>> {
    let size = (options.rows, options.columns);
    let mut grid = Grid::new(ranks, size, 1, Edges::Fixed, 0.0)?;
    if grid.own_rows().start == 0 {
        grid.row_mut(-1).fill(HOT);
    }
    let cells = super::steps(ranks, grid, options.steps, next)?;
    Ok(cells.map(|cells| solved(cells, options)))
}

fn serial(options: &Options) -> Solved<f64> {
    let columns = options.columns;
    let (hot, cold) = (vec![HOT; columns], vec![0.0; columns]);
    let mut cells = vec![0.0; options.rows * columns];
    let mut new = cells.clone();
    for _ in 0..options.steps {
        let row = |index: usize| cells.get(index * columns..(index + 1) * columns);
        for (index, new) in new.chunks_exact_mut(columns).enumerate() {
            let above = index.checked_sub(1).and_then(row).unwrap_or(&hot);
            let below = row(index + 1).unwrap_or(&cold);
            next(above, row(index).unwrap_or(&cold), below, new);
        }
        std::mem::swap(&mut cells, &mut new);
    }
    solved(cells, options)
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let size = (options.rows, options.columns);
    let cells = super::run(
        "heat",
        size,
        &options.run,
        |ranks| compute(ranks, options),
        || serial(options),
        compare_bytes,
    )?;
    if let (Some(path), Some(cells)) = (&options.picture, cells) {
        let colour = |cell: f64| picture::heat_colour(cell / HOT);
        picture::write(path, options.columns, &cells, colour)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn heat_comes_in_from_the_upper_edge() {
        let command = ["heat", "--rows", "9", "--columns", "5", "--steps", "400"];
        let solved = serial(&Command::parse_from(command).options);
        let middle: Vec<_> = solved.cells.chunks(5).map(|row| row[2]).collect();
        assert!(middle.is_sorted_by(|a, b| a > b), "{middle:?}");
        // Where nothing changes any more, a cell is the mean of those around it.
        let at = |row: usize, column: usize| solved.cells[row * 5 + column];
        let around = at(3, 2) + at(5, 2) + at(4, 1) + at(4, 3);
        assert!((at(4, 2) - around / 4.0).abs() < 1e-9);
    }
}
