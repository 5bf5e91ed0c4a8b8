//! Grids whose rows are distributed over the ranks.

use std::ops::Range;

use super::blocks::Blocks;
use super::plan::{Plan, Wanted};
use super::ranks::{Element, Ranks};
use crate::error::{ParallelError, Result};

/// What lies beyond the first and the last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edges {
    /// Rows that no rank has: their halo keeps what the program puts there.
    Fixed,
    /// The other end.
    Periodic,
}

/// A grid of rows and columns. Each rank has a block of rows, and a halo of rows above and below
/// it: copies of those of its neighbours.
///
/// ```text
///          local row
///            -halo … -1          halo: rows of the rank before
///             0 … own - 1        the block of this rank
///            own … own+halo-1    halo: rows of the rank behind
/// ```
/// A halo may reach over several ranks. A line is a grid of one column.
#[derive(Debug, Clone)]
pub struct Grid<T> {
    blocks: Blocks,
    rank: u32,
    columns: usize,
    halo: usize,
    edges: Edges,
    /// Halo above, block, halo below.
    cells: Vec<T>,
    exchange: Plan,
}

/// Where a row lies if the grid is continued beyond its ends.
fn wrap(row: isize, rows: usize, edges: Edges) -> Option<usize> {
    match edges {
        Edges::Fixed => usize::try_from(row).ok().filter(|row| *row < rows),
        Edges::Periodic if rows == 0 => None,
        Edges::Periodic => Some(row.rem_euclid(rows as isize) as usize),
    }
}

impl<T: Element> Grid<T> {
    /// A grid of so many rows and columns, with a halo of so many rows; each cell and each halo is
    /// `fill`.
    ///
    /// # Errors
    /// [`ParallelError::Unfit`]: it is too large for the address space.
    pub fn new(
        ranks: &Ranks,
        (rows, columns): (usize, usize),
        halo: usize,
        edges: Edges,
        fill: T,
    ) -> Result<Self> {
        let too_large = ParallelError::Unfit("the grid is too large for the address space");
        let all = halo.checked_mul(2).and_then(|halo| halo.checked_add(rows));
        let cells = all.and_then(|rows| rows.checked_mul(columns.max(1)));
        let bytes = cells.and_then(|cells| cells.checked_mul(size_of::<T>().max(1)));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(too_large.into());
        }
        let blocks = Blocks::new(rows, ranks.size());
        let wanted = |rank| {
            let own = blocks.of(rank);
            if own.is_empty() {
                return Vec::new();
            }
            let above = (0..halo).map(|slot| (slot, (own.start + slot) as isize - halo as isize));
            let below = (0..halo).map(|row| (halo + own.len() + row, (own.end + row) as isize));
            let inside = |(slot, row)| {
                let row = wrap(row, rows, edges)?;
                Some(Wanted { slot, row })
            };
            above.chain(below).filter_map(inside).collect()
        };
        let own = blocks.of(ranks.rank()).len();
        Ok(Grid {
            blocks,
            rank: ranks.rank(),
            columns,
            halo,
            edges,
            cells: vec![fill; (own + 2 * halo) * columns],
            exchange: Plan::new(ranks.rank(), &blocks, wanted),
        })
    }

    /// A line of so many cells.
    ///
    /// # Errors
    /// Those of [`Grid::new`]
    pub fn line(ranks: &Ranks, cells: usize, halo: usize, edges: Edges, fill: T) -> Result<Self> {
        Self::new(ranks, (cells, 1), halo, edges, fill)
    }

    /// How the rows are distributed.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Cells of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The rows of the grid that this rank has.
    pub fn own_rows(&self) -> Range<usize> {
        self.blocks.of(self.rank)
    }

    /// The cells of this rank's block, row by row.
    pub fn own(&self) -> &[T] {
        &self.cells[self.span()]
    }

    /// The same, to change.
    pub fn own_mut(&mut self) -> &mut [T] {
        let span = self.span();
        &mut self.cells[span]
    }

    /// A local row: 0 is the first of the block, -1 the one of the halo above it.
    ///
    /// # Panics
    /// If it lies outside of block and halo.
    pub fn row(&self, row: isize) -> &[T] {
        let at = self.slot(row) * self.columns;
        &self.cells[at..at + self.columns]
    }

    /// The same, to change.
    ///
    /// # Panics
    /// If it lies outside of block and halo.
    pub fn row_mut(&mut self, row: isize) -> &mut [T] {
        let at = self.slot(row) * self.columns;
        &mut self.cells[at..at + self.columns]
    }

    /// Changes each own cell to what is returned for its row and column of the grid.
    pub fn fill(&mut self, mut value: impl FnMut(usize, usize) -> T) {
        let (first, columns) = (self.own_rows().start, self.columns);
        for (index, cell) in self.own_mut().iter_mut().enumerate() {
            *cell = value(first + index / columns, index % columns);
        }
    }

    /// Fetches the rows of the halo from the ranks that have them.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn exchange_halo(&mut self, ranks: &mut Ranks) -> Result<()> {
        let slot = self.slots();
        self.exchange
            .run(ranks, self.columns, &mut self.cells, slot)
    }

    /// Moves all rows so many places towards the end, or, if that is negative, towards the start.
    /// With periodic edges, what leaves at one end comes in at the other; with fixed ones, `fill`
    /// comes in. The halo becomes stale.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn shift(&mut self, ranks: &mut Ranks, by: isize, fill: T) -> Result<()> {
        let (blocks, edges, halo) = (self.blocks, self.edges, self.halo);
        // Beyond the length of the grid, all shifts do the same, or repeat.
        let rows = blocks.rows() as isize;
        let by = match edges {
            Edges::Fixed => by.clamp(-rows, rows),
            Edges::Periodic => by.checked_rem(rows).unwrap_or(0),
        };
        let source = |row: usize| wrap(row as isize - by, blocks.rows(), edges);
        let wanted = |rank| {
            let own = blocks.of(rank);
            let place = |row: usize| {
                let slot = halo + row - own.start;
                let row = source(row)?;
                Some(Wanted { slot, row })
            };
            own.clone().filter_map(place).collect()
        };
        let plan = Plan::new(self.rank, &blocks, wanted);
        let slot = self.slots();
        plan.run(ranks, self.columns, &mut self.cells, slot)?;
        let empty = self.own_rows().filter(|row| source(*row).is_none());
        let first = self.own_rows().start;
        for row in empty {
            self.row_mut((row - first) as isize).fill(fill);
        }
        Ok(())
    }

    /// Replaces each cell by the fold of all cells up to it, row by row. Each rank folds its own
    /// cells, so that the result depends on the number of ranks if the fold is not associative.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn scan(&mut self, ranks: &mut Ranks, mut fold: impl FnMut(T, T) -> T) -> Result<()> {
        let own = self.own_mut();
        for index in 1..own.len() {
            own[index] = fold(own[index - 1], own[index]);
        }
        let last = own.last().copied().unwrap_or_else(T::new_zeroed);
        // Ranks without cells have nothing to add; they are the last ones.
        let counted = self.blocks.rows().min(self.blocks.ranks() as usize);
        if let Some(before) = ranks.fold_below(last, counted, &mut fold)? {
            let own = self.own_mut().iter_mut();
            own.for_each(|cell| *cell = fold(before, *cell));
        }
        Ok(())
    }

    /// All cells at rank 0, row by row; the others get none.
    ///
    /// # Errors
    /// Those of [`Ranks::barrier`]
    pub fn gather(&self, ranks: &mut Ranks) -> Result<Option<Vec<T>>> {
        let length = |rank| self.blocks.of(rank).len() * self.columns;
        let lengths: Vec<_> = (0..self.blocks.ranks()).map(length).collect();
        ranks.gather_lengths(self.own(), &lengths)
    }

    /// Where this rank has a row of the grid.
    fn slots(&self) -> impl Fn(usize) -> usize {
        let (halo, first) = (self.halo, self.own_rows().start);
        move |row| halo + row - first
    }

    /// Index of a local row among block and halo.
    fn slot(&self, row: isize) -> usize {
        let slot = row.checked_add_unsigned(self.halo);
        let slot = slot.and_then(|slot| usize::try_from(slot).ok());
        let last = self.own_rows().len() + 2 * self.halo;
        slot.filter(|slot| *slot < last)
            .unwrap_or_else(|| panic!("row {row} is neither in the block nor in the halo"))
    }

    /// The cells of the block.
    fn span(&self) -> Range<usize> {
        let begin = self.halo * self.columns;
        begin..begin + self.own_rows().len() * self.columns
    }
}
