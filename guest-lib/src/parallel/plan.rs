//! Which rows go from which rank to which: worked out once, then carried out.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::blocks::Blocks;
use super::fabric::{Call, Incoming, Outgoing};
use super::ranks::{zeroed, Element, Ranks};
use crate::error::Result;

/// A row that a rank needs, and where it puts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Index of a row of its memory.
    pub(super) slot: usize,
    /// Row of the grid.
    pub(super) row: usize,
}

/// The rows that change places. Between two ranks they stand in the order in which the receiver
/// wants them, in one frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    local: Vec<Wanted>,
    /// Rows that go to a rank.
    sends: BTreeMap<u32, Vec<usize>>,
    /// Slots for the rows that come from a rank.
    receives: BTreeMap<u32, Vec<usize>>,
}

impl Plan {
    /// That of a rank, by what each rank wants.
    pub(super) fn new(own: u32, blocks: &Blocks, wanted: impl Fn(u32) -> Vec<Wanted>) -> Self {
        let mut plan = Plan::default();
        for rank in 0..blocks.ranks() {
            for it in wanted(rank) {
                match (rank == own, blocks.owner(it.row)) {
                    (true, owner) if owner == own => plan.local.push(it),
                    (true, owner) => plan.receives.entry(owner).or_default().push(it.slot),
                    (false, owner) if owner == own => {
                        plan.sends.entry(rank).or_default().push(it.row);
                    }
                    (false, _) => {}
                }
            }
        }
        plan
    }

    /// Carries it out in rows of `columns` cells; `slot` says where this rank has a row of the
    /// grid. If that fails, nothing has changed.
    pub(super) fn run<T: Element>(
        &self,
        ranks: &mut Ranks,
        columns: usize,
        cells: &mut [T],
        slot: impl Fn(usize) -> usize,
    ) -> Result<()> {
        let row = |row: usize| &cells[slot(row) * columns..][..columns];
        let rows = |(rank, rows): (&u32, &Vec<usize>)| {
            let rows = rows.iter().flat_map(|it| row(*it)).copied();
            (*rank, rows.collect::<Vec<T>>())
        };
        let outgoing: Vec<_> = self.sends.iter().map(rows).collect();
        let local: Vec<_> = self.local.iter().map(|it| row(it.row).to_vec()).collect();
        let room = |(rank, slots): (&u32, &Vec<usize>)| (*rank, zeroed::<T>(slots.len() * columns));
        let mut incoming: Vec<_> = self.receives.iter().map(room).collect();
        let sends: Vec<_> = outgoing
            .iter()
            .map(|(rank, rows)| Outgoing {
                rank: *rank,
                bytes: rows.as_bytes(),
            })
            .collect();
        let mut receives: Vec<_> = incoming
            .iter_mut()
            .map(|(rank, rows)| Incoming {
                rank: *rank,
                bytes: rows.as_mut_bytes(),
            })
            .collect();
        ranks.exchange(Call::Rows, &sends, &mut receives)?;
        let mut store = |slot: usize, row: &[T]| {
            cells[slot * columns..][..columns].copy_from_slice(row);
        };
        for (it, row) in self.local.iter().zip(&local) {
            store(it.slot, row);
        }
        for ((_, rows), slots) in incoming.iter().zip(self.receives.values()) {
            for (slot, row) in slots.iter().zip(rows.chunks(columns.max(1))) {
                store(*slot, row);
            }
        }
        Ok(())
    }
}
