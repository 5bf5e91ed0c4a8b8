//! Grids and reductions of any size on any number of ranks, against the serial result. The ranks
//! are threads, and queues between them the interface.

use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use proptest::prelude::*;
use qnic_abi::NodeId;

use super::fabric::{Fabric, Fault, Incoming, Label, Outcome, Outgoing};
use super::{Edges, Grid, Ranks};
use crate::error::{Error, ParallelError};
use crate::machine::{Interface, Machine};

type Frame = (Label, Vec<u8>);

/// Queues to and from each rank.
#[derive(Debug)]
struct Queues {
    to: Vec<Sender<Frame>>,
    from: Vec<Receiver<Frame>>,
}

impl Fabric for Queues {
    fn exchange(
        &mut self,
        label: Label,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        limit: Duration,
    ) -> Outcome {
        for send in sends {
            // A rank that is gone is noticed when something is to come from it.
            let _ = self.to[send.rank as usize].send((label, send.bytes.to_vec()));
        }
        for receive in receives {
            let rank = receive.rank;
            let frame = self.from[rank as usize].recv_timeout(limit);
            let (found, bytes) = frame.map_err(|error| match error {
                RecvTimeoutError::Timeout => Fault::Silent { rank },
                RecvTimeoutError::Disconnected => Fault::Ended {
                    rank,
                    cause: "its queue is closed".into(),
                },
            })?;
            let expected = (label, receive.bytes.len() as u64);
            Fault::compare(rank, expected, (found, bytes.len() as u64))?;
            receive.bytes.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn end(&mut self, reason: u32) {
        for to in &self.to {
            let _ = to.send((Label::end(reason), Vec::new()));
        }
    }

    fn flush(&mut self, _limit: Duration) -> Outcome {
        Ok(())
    }
}

/// Runs a thread for each of so many ranks, and returns what they return, by rank.
fn run<T: Send>(size: u32, act: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    run_within(size, Duration::from_secs(30), act)
}

fn run_within<T: Send>(size: u32, limit: Duration, act: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let mut all: Vec<_> = (0..size)
        .map(|_| Queues {
            to: Vec::new(),
            from: Vec::new(),
        })
        .collect();
    for from in 0..size as usize {
        for to in 0..size as usize {
            let (sender, receiver) = channel();
            all[from].to.push(sender);
            all[to].from.push(receiver);
        }
    }
    let nodes: Vec<_> = (0..size).map(|rank| NodeId(rank as u16)).collect();
    std::thread::scope(|scope| {
        let (nodes, act) = (&nodes, &act);
        let rank = |(rank, queues): (u32, Queues)| {
            scope.spawn(move || {
                let machine = Machine::new(rank, nodes, Interface::Pool, 2000).unwrap();
                act(Ranks::over(Box::new(queues), machine, limit))
            })
        };
        let threads: Vec<_> = (0..).zip(all).map(rank).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

/// A value that differs from cell to cell, and does not fold associatively as a float.
fn value(index: usize) -> f64 {
    ((index * 2_654_435_761) % 1_000_003) as f64 / 7.0 - 50_000.0
}

#[test]
fn all_ranks_reduce_in_the_order_of_ranks() {
    for size in [1, 2, 5, 16] {
        let all = (0..size as usize).map(value);
        let serial = all.clone().reduce(|a, b| a + b).unwrap();
        let prefixes = all.clone().scan(0.0, |sum, value| {
            *sum += value;
            Some(*sum)
        });
        let prefixes: Vec<f64> = prefixes.collect();
        let got = run(size, |mut ranks| {
            let own = value(ranks.rank() as usize);
            let mut each = [own, -own];
            ranks.all_reduce_each(&mut each, |a, b| a + b).unwrap();
            let sum = ranks.all_reduce(own, |a, b| a + b).unwrap();
            let up_to = ranks.scan(own, |a, b| a + b).unwrap();
            let below = ranks.exclusive_scan(own, |a, b| a + b).unwrap();
            let gathered = ranks.gather(&[own]).unwrap();
            assert_eq!(gathered.is_some(), ranks.rank() == 0);
            assert!(gathered.is_none_or(|values| values.into_iter().eq(all.clone())));
            ranks.finish().unwrap();
            (sum, each, up_to, below)
        });
        for (rank, (sum, each, up_to, below)) in got.into_iter().enumerate() {
            assert_eq!(sum.to_bits(), serial.to_bits());
            assert_eq!(each, [serial, -serial]);
            assert_eq!(up_to.to_bits(), prefixes[rank].to_bits());
            assert_eq!(below, rank.checked_sub(1).map(|rank| prefixes[rank]));
        }
    }
}

/// A row of the whole grid, as its halo sees it.
fn continued(rows: usize, row: isize, edges: Edges) -> Option<usize> {
    let inside = (0..rows as isize).contains(&row);
    match edges {
        Edges::Fixed => inside.then_some(row as usize),
        Edges::Periodic => Some(row.rem_euclid(rows as isize) as usize),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Halos over several ranks, ranks without rows, both kinds of edges (S8).
    #[test]
    fn halos_are_the_rows_of_the_others(
        size in 1_u32..7,
        rows in 1_usize..30,
        columns in 1_usize..5,
        halo in 0_usize..9,
        periodic: bool,
    ) {
        let edges = if periodic { Edges::Periodic } else { Edges::Fixed };
        run(size, |mut ranks| {
            let mut grid = Grid::new(&ranks, (rows, columns), halo, edges, -1.0).unwrap();
            let at = |row: usize, column: usize| value(row * columns + column);
            grid.fill(at);
            grid.exchange_halo(&mut ranks).unwrap();
            let own = grid.own_rows();
            let locals = -(halo as isize)..(own.len() + halo) as isize;
            for local in locals.filter(|_| !own.is_empty()) {
                let row = continued(rows, own.start as isize + local, edges);
                for (column, found) in grid.row(local).iter().enumerate() {
                    assert_eq!(*found, row.map_or(-1.0, |row| at(row, column)));
                }
            }
            let gathered = grid.gather(&mut ranks).unwrap();
            let all = (0..rows * columns).map(value);
            assert!(gathered.is_none_or(|cells| cells.into_iter().eq(all)));
            ranks.finish().unwrap();
        });
    }

    /// Shifts of any distance.
    #[test]
    fn a_shift_moves_each_row(
        size in 1_u32..6,
        rows in 1_usize..25,
        by in -60_isize..60,
        halo in 0_usize..3,
        periodic: bool,
    ) {
        let edges = if periodic { Edges::Periodic } else { Edges::Fixed };
        run(size, |mut ranks| {
            let mut grid = Grid::new(&ranks, (rows, 2), halo, edges, 0_u16).unwrap();
            grid.fill(|row, column| (row * 2 + column) as u16);
            grid.shift(&mut ranks, by, 7777).unwrap();
            let expected = |index: usize| {
                let row = continued(rows, (index / 2) as isize - by, edges);
                row.map_or(7777, |row| (row * 2 + index % 2) as u16)
            };
            let gathered = grid.gather(&mut ranks).unwrap();
            let all = (0..rows * 2).map(expected);
            assert!(gathered.is_none_or(|cells| cells.into_iter().eq(all)));
            ranks.finish().unwrap();
        });
    }

    /// Prefix sums of a line whose ranks may have no cells.
    #[test]
    fn a_scan_is_the_serial_one(size in 1_u32..8, cells in 0_usize..40) {
        let mut serial: Vec<u64> = (0..cells as u64).map(|cell| cell * cell + 3).collect();
        for index in 1..cells {
            serial[index] += serial[index - 1];
        }
        run(size, |mut ranks| {
            let mut line = Grid::line(&ranks, cells, 0, Edges::Fixed, 0_u64).unwrap();
            line.fill(|cell, _| (cell * cell + 3) as u64);
            line.scan(&mut ranks, |a, b| a + b).unwrap();
            let gathered = line.gather(&mut ranks).unwrap();
            assert!(gathered.is_none_or(|found| found == serial));
            ranks.finish().unwrap();
        });
    }
}

#[test]
fn a_rank_that_leaves_is_named_to_all() {
    let got = run(4, |mut ranks| {
        if ranks.rank() == 2 {
            return None;
        }
        let first = ranks.barrier().unwrap_err();
        // All later calls say the same.
        assert_eq!(ranks.barrier().unwrap_err().to_string(), first.to_string());
        Some(first)
    });
    for error in got.into_iter().flatten() {
        let named = matches!(
            error,
            Error::Parallel(ParallelError::RankEnded {
                rank: 2,
                node: NodeId(2),
                ..
            })
        );
        assert!(named, "{error}");
    }
}

#[test]
fn a_rank_that_hangs_is_named_within_the_limit() {
    use std::sync::Barrier;
    let over = Barrier::new(3);
    let got = run_within(3, Duration::from_millis(200), |mut ranks| {
        let error = (ranks.rank() != 1).then(|| ranks.barrier().unwrap_err());
        over.wait();
        error
    });
    let silent = got[0].as_ref().unwrap();
    let is_named = matches!(
        silent,
        Error::Parallel(ParallelError::Silent { rank: 1, .. })
    );
    assert!(is_named, "{silent}");
}

#[test]
fn ranks_that_make_different_calls_are_told_so() {
    let got = run(2, |mut ranks| match ranks.rank() {
        0 => ranks.gather(&[1_u64]).map(drop).unwrap_err(),
        _ => ranks
            .gather(&[1_u32, 2, 3])
            .and_then(|_| ranks.barrier())
            .unwrap_err(),
    });
    let differs = matches!(
        got[0],
        Error::Parallel(ParallelError::Differs { rank: 1, .. })
    );
    assert!(differs, "{}", got[0]);
    let ended = matches!(
        got[1],
        Error::Parallel(ParallelError::RankEnded { rank: 0, .. })
    );
    assert!(ended, "{}", got[1]);
}

#[test]
fn a_grid_beyond_the_address_space_is_refused() {
    run(1, |ranks| {
        for (rows, columns, halo) in [
            (usize::MAX, 1, 0),
            (1, 1, usize::MAX),
            (1 << 40, 1 << 40, 0),
        ] {
            let grid = Grid::new(&ranks, (rows, columns), halo, Edges::Fixed, 0_u8);
            assert!(matches!(
                grid,
                Err(Error::Parallel(ParallelError::Unfit(_)))
            ));
        }
        ranks.finish().unwrap();
    });
}
