//! A conjugate-gradient solver: Poisson's equation on a square grid, with zero beyond its edges.
//!
//! Sums are folded in the order of ranks, so a run is the same whatever the interface. Other
//! numbers of ranks round otherwise: results are compared with a serial run up to a tolerance.

use anyhow::{ensure, Result};
use clap::Args;
use qnic::parallel::{Edges, Grid, Ranks};

use super::{scrambled, Run, Solved};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qnic-app conjugate-gradient --serial --rows 64 --columns 64
  cargo qnic machine run lab -- qnic-app conjugate-gradient --rows 200 --columns 200

Rank 0 prints a JSON line. The result is compared with that of a serial run: exit status 1 if \
they differ by more than the tolerance times (rows + columns) squared, a bound of the matrix's \
condition, as part of the greatest value.")]
pub(crate) struct Options {
    /// Rows of the grid
    #[arg(long, default_value_t = 64)]
    rows: usize,
    /// Columns of the grid
    #[arg(long, default_value_t = 64)]
    columns: usize,
    /// Most iterations
    #[arg(long, default_value_t = 2000)]
    iterations: usize,
    /// The residual at which to stop, as part of that at first
    #[arg(long, default_value_t = 1e-10)]
    tolerance: f64,
    #[command(flatten)]
    run: Run,
}

/// The right side of the equation, from -1 to 1.
fn right_side(columns: usize, row: usize, column: usize) -> f64 {
    let word = scrambled(42, row * columns + column) >> 11;
    word as f64 / (1_u64 << 52) as f64 - 1.0
}

/// A row of the matrix times a vector: four times a cell minus those around it.
fn apply(above: &[f64], own: &[f64], below: &[f64], product: &mut [f64]) {
    for column in 0..own.len() {
        let left = column.checked_sub(1).map_or(0.0, |left| own[left]);
        let right = own.get(column + 1).copied().unwrap_or(0.0);
        let around = (above[column] + below[column]) + (left + right);
        product[column] = 4.0 * own[column] - around;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `a += factor * b`
fn add(a: &mut [f64], factor: f64, b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += factor * b);
}

/// `p = r + factor * p`
fn turn(p: &mut [f64], factor: f64, r: &[f64]) {
    p.iter_mut().zip(r).for_each(|(p, r)| *p = r + factor * *p);
}

fn compute(ranks: &mut Ranks, options: &Options) -> Result<Option<Solved<f64>>> {
    let size = (options.rows, options.columns);
    let sum = |ranks: &mut Ranks, own: f64| ranks.all_reduce(own, |a, b| a + b);
    let mut x = Grid::new(ranks, size, 0, Edges::Fixed, 0.0)?;
    let mut r = x.clone();
    r.fill(|row, column| right_side(options.columns, row, column));
    // Only the direction needs a halo. Beyond the edges of the grid it stays zero.
    let mut p = Grid::new(ranks, size, 1, Edges::Fixed, 0.0)?;
    p.own_mut().copy_from_slice(r.own());
    let mut product = x.clone();
    let first = sum(ranks, dot(r.own(), r.own()))?;
    let (mut square, mut steps) = (first, 0);
    while steps < options.iterations && square > options.tolerance.powi(2) * first {
        p.exchange_halo(ranks)?;
        for row in 0..p.own_rows().len() as isize {
            let (above, below) = (p.row(row - 1), p.row(row + 1));
            apply(above, p.row(row), below, product.row_mut(row));
        }
        let factor = square / sum(ranks, dot(p.own(), product.own()))?;
        add(x.own_mut(), factor, p.own());
        add(r.own_mut(), -factor, product.own());
        let before = square;
        square = sum(ranks, dot(r.own(), r.own()))?;
        turn(p.own_mut(), square / before, r.own());
        steps += 1;
    }
    let value = (square / first).sqrt();
    let cells = x.gather(ranks)?;
    Ok(cells.map(|cells| Solved {
        cells,
        steps,
        value,
    }))
}

/// The matrix times a vector.
fn product_of(cells: &[f64], columns: usize) -> Vec<f64> {
    let zero = vec![0.0; columns];
    let row = |index: usize| cells.get(index * columns..(index + 1) * columns);
    let mut product = vec![0.0; cells.len()];
    for (index, product) in product.chunks_exact_mut(columns).enumerate() {
        let above = index.checked_sub(1).and_then(row).unwrap_or(&zero);
        let below = row(index + 1).unwrap_or(&zero);
        apply(above, row(index).unwrap_or(&zero), below, product);
    }
    product
}

fn serial(options: &Options) -> Solved<f64> {
    let columns = options.columns;
    let cells = options.rows * columns;
    let mut x = vec![0.0; cells];
    let mut r: Vec<f64> = (0..cells)
        .map(|cell| right_side(columns, cell / columns, cell % columns))
        .collect();
    let mut p = r.clone();
    let first = dot(&r, &r);
    let (mut square, mut steps) = (first, 0);
    while steps < options.iterations && square > options.tolerance.powi(2) * first {
        let product = product_of(&p, columns);
        let factor = square / dot(&p, &product);
        add(&mut x, factor, &p);
        add(&mut r, -factor, &product);
        let before = square;
        square = dot(&r, &r);
        turn(&mut p, square / before, &r);
        steps += 1;
    }
    Solved {
        cells: x,
        steps,
        value: (square / first).sqrt(),
    }
}

/// Returns the greatest difference as part of the greatest value, or an error if that is too much.
fn compare(cells: &[f64], serial: &[f64], options: &Options) -> Result<f64> {
    let greatest = serial
        .iter()
        .fold(0.0_f64, |most, cell| most.max(cell.abs()));
    let differences = cells.iter().zip(serial).map(|(a, b)| (a - b).abs());
    // A result that is no number differs from each.
    let worse = |most: f64, next: f64| if next <= most { most } else { next };
    let difference = differences.fold(0.0, worse) / greatest.max(f64::MIN_POSITIVE);
    let limit = options.tolerance * ((options.rows + options.columns) as f64).powi(2);
    ensure!(
        difference <= limit,
        "the result differs from the serial run by {difference:e}: at most {limit:e}"
    );
    Ok(difference)
}

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(
        (1e-15..1.0).contains(&options.tolerance),
        "--tolerance: from 1e-15 to below 1"
    );
    let size = (options.rows, options.columns);
    super::run(
        "conjugate-gradient",
        size,
        &options.run,
        |ranks| compute(ranks, options),
        || serial(options),
        |cells, serial| compare(cells, serial, options),
    )?;
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
    fn the_solution_solves_the_equation() {
        let command = ["cg", "--rows", "20", "--columns", "13"];
        let options = Command::parse_from(command).options;
        let solved = serial(&options);
        assert!(solved.steps < 260, "{} iterations", solved.steps);
        let product = product_of(&solved.cells, 13);
        for (cell, found) in product.iter().enumerate() {
            let wanted = right_side(13, cell / 13, cell % 13);
            assert!((found - wanted).abs() < 1e-8, "{found} instead of {wanted}");
        }
    }

    #[test]
    fn another_result_is_noticed() {
        let options = Command::parse_from(["cg"]).options;
        assert_eq!(compare(&[1.0, 2.0], &[1.0, 2.0], &options).unwrap(), 0.0);
        for other in [2.1, f64::NAN, f64::INFINITY] {
            assert!(compare(&[1.0, other], &[1.0, 2.0], &options).is_err());
        }
    }
}
