//! Data-parallel programs on a machine (S8; docs/parallel.md): grids that are distributed over its
//! ranks, and what the ranks reduce, scan and gather.
//!
//! ```text
//!   Machine ─► Ranks::connect ─► Ranks ─┬─ barrier, reduce, all_reduce, scan, gather, broadcast
//!                                       └─ finish
//!   Grid::new(&ranks) ─► Grid: exchange_halo, shift, scan, gather
//! ```
//!
//! ```no_run
//! use qnic::machine::Machine;
//! use qnic::parallel::{Edges, Grid, Options, Ranks};
//! use qnic::Nic;
//!
//! # fn main() -> qnic::Result<()> {
//! let machine = Machine::from_environment()?;
//! let mut ranks = Ranks::connect(&Nic::open()?, &machine, Options::default())?;
//!
//! // Each cell becomes the mean of those above and below it.
//! let mut grid = Grid::new(&ranks, (1000, 1000), 1, Edges::Periodic, 0.0)?;
//! grid.fill(|row, column| (row * column) as f64);
//! grid.exchange_halo(&mut ranks)?;
//! let old = grid.clone();
//! for row in 0..grid.own_rows().len() as isize {
//!     for column in 0..grid.columns() {
//!         let sum: f64 = old.row(row - 1)[column] + old.row(row + 1)[column];
//!         grid.row_mut(row)[column] = sum / 2.0;
//!     }
//! }
//! let greatest = grid.own().iter().copied().fold(0.0, f64::max);
//! println!("{}", ranks.all_reduce(greatest, f64::max)?);
//! ranks.finish()
//! # }
//! ```
//!
//! # Invariants
//! - All ranks make the same calls in the same order. Each exchange carries the number and the kind
//!   of its call, so a rank that makes another call is noticed ([`ParallelError::Differs`]).
//! - Values are folded in the order of ranks, at rank 0. Results are the same in each run and by
//!   each interface, byte for byte.
//! - Each call ends: when a rank dies, the others learn its name; when one is silent for longer than
//!   [`Options::timeout`], they give up. A rank that has failed tells all others why, and from then on
//!   all their calls fail for this reason.
//!
//! | module | |
//! |---|---|
//! | `fabric` | what is needed of an interface: exchanges with labels |
//! | `messages`, `streams` | the interfaces: `qnic` and `pool` |
//! | `ranks` | the ranks, and values of each |
//! | `blocks` | which rank has which rows |
//! | `plan` | which rows go where |
//! | `grid` | grids |
//!
//! [`ParallelError::Differs`]: crate::ParallelError::Differs

mod blocks;
mod fabric;
mod grid;
mod messages;
mod plan;
mod ranks;
mod streams;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use grid::{Edges, Grid};
pub use ranks::{Element, Options, Ranks};
