//! Ranks of a machine on real NICs, by both interfaces (S8).

use std::time::{Duration, Instant};

use qnic::machine::{Interface, Machine};
use qnic::parallel::{Edges, Grid, Options, Ranks};
use qnic::{Error, Nic, NodeId, ParallelError};

use crate::cluster::{Cluster, SOON};

const PORT: u16 = 3000;
const KEY: u64 = 0x0123_4567_89ab_cdef;

const OPTIONS: Options = Options::new(SOON, SOON);

/// A thread for each rank, two on each node; returns what they return, by rank.
fn run<T: Send>(
    cluster: &Cluster,
    nodes: u16,
    interface: Interface,
    act: impl Fn(Ranks) -> T + Sync,
) -> Vec<T> {
    let nics: Vec<Nic> = (0..nodes).map(|node| cluster.nic(node)).collect();
    let places: Vec<_> = (0..2 * nodes).map(|rank| NodeId(rank % nodes)).collect();
    std::thread::scope(|scope| {
        let (nics, places, act) = (&nics, &places, &act);
        let rank = |rank: u32| {
            scope.spawn(move || {
                let machine = Machine::new(rank, places, interface, PORT).unwrap();
                let nic = &nics[usize::from(places[rank as usize].0)];
                act(Ranks::connect(nic, &machine.with_key(KEY), OPTIONS).unwrap())
            })
        };
        let threads: Vec<_> = (0..places.len() as u32).map(rank).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    })
}

/// A step of a stencil on the rows that a rank has.
fn step(grid: &mut Grid<f64>, ranks: &mut Ranks) {
    grid.exchange_halo(ranks).unwrap();
    let old = grid.clone();
    let last = grid.columns() - 1;
    for row in 0..grid.own_rows().len() as isize {
        for column in 1..last {
            let around = old.row(row - 1)[column] + old.row(row + 1)[column];
            let beside = old.row(row)[column - 1] + old.row(row)[column + 1];
            grid.row_mut(row)[column] = (around + beside) * 0.25;
        }
    }
}

/// The grid behind some steps, and sums that are folded in the order of ranks.
fn stencil(mut ranks: Ranks, (rows, columns): (usize, usize), steps: usize) -> (Vec<u8>, u64) {
    let mut grid = Grid::new(&ranks, (rows, columns), 1, Edges::Periodic, 0.0).unwrap();
    grid.fill(|row, column| ((row * 31 + column * 17) % 101) as f64 / 3.0);
    let mut sums = 0_u64;
    for _ in 0..steps {
        step(&mut grid, &mut ranks);
        let own: f64 = grid.own().iter().sum();
        let sum = ranks.all_reduce(own, |a, b| a + b).unwrap();
        sums = sums.wrapping_mul(31).wrapping_add(sum.to_bits());
    }
    let cells = grid.gather(&mut ranks).unwrap().unwrap_or_default();
    ranks.finish().unwrap();
    let cells = cells.iter().flat_map(|cell| cell.to_le_bytes()).collect();
    (cells, sums)
}

/// The same on one rank alone.
fn serial(size: (usize, usize), steps: usize) -> Vec<u8> {
    let cluster = Cluster::new(1);
    let machine = Machine::new(0, &[NodeId(0)], Interface::Qnic, PORT).unwrap();
    let ranks = Ranks::connect(&cluster.nic(0), &machine, OPTIONS).unwrap();
    stencil(ranks, size, steps).0
}

fn compare_interfaces(new: impl Fn() -> Cluster, size: (usize, usize), steps: usize) {
    let serial = serial(size, steps);
    let [qnic, pool] = [Interface::Qnic, Interface::Pool].map(|interface| {
        let cluster = new();
        run(&cluster, 2, interface, |ranks| stencil(ranks, size, steps))
    });
    assert!(qnic[0].0 == serial, "qnic: other bytes than the serial run");
    assert!(pool[0].0 == serial, "pool: other bytes than the serial run");
    // Sums are the same at all ranks and by either interface, to the last bit.
    let sums = qnic.iter().chain(&pool).map(|(_, sums)| sums);
    assert!(sums.clone().all(|sum| *sum == qnic[0].1), "{sums:?}");
}

#[test]
fn both_interfaces_compute_what_one_rank_computes() {
    compare_interfaces(|| Cluster::new(2), (37, 64), 50);
}

#[test]
fn both_interfaces_compute_the_same_on_bad_links() {
    compare_interfaces(|| Cluster::on_bad_links(2, 3.0), (16, 700), 10);
}

/// A row is longer than all that a stream has on its way: both neighbours send at once.
#[test]
fn rows_may_be_longer_than_a_window() {
    compare_interfaces(|| Cluster::new(2), (4, 150_000), 2);
}

fn a_rank_dies(interface: Interface) {
    let cluster = Cluster::new(2);
    let start = Instant::now();
    let errors = run(&cluster, 2, interface, |mut ranks| {
        ranks.barrier().unwrap();
        if ranks.rank() == 2 {
            // Dropped without finish, as when a program ends with an error.
            return None;
        }
        let mut grid = Grid::new(&ranks, (40, 10), 1, Edges::Fixed, 0_u32).unwrap();
        loop {
            if let Err(error) = grid.exchange_halo(&mut ranks) {
                return Some(error);
            }
        }
    });
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(errors.iter().flatten().count(), 3);
    for error in errors.into_iter().flatten() {
        let named = matches!(
            error,
            Error::Parallel(ParallelError::RankEnded {
                rank: 2,
                node: NodeId(0),
                ..
            })
        );
        assert!(named, "{error}");
    }
}

#[test]
fn a_rank_that_leaves_is_named_by_messages() {
    a_rank_dies(Interface::Qnic);
}

#[test]
fn a_rank_that_leaves_is_named_by_streams() {
    a_rank_dies(Interface::Pool);
}

#[test]
fn ranks_of_another_run_are_not_let_in() {
    let cluster = Cluster::new(2);
    let nics = [0, 1].map(|node| cluster.nic(node));
    let short = Options::new(Duration::from_millis(600), SOON);
    for interface in [Interface::Qnic, Interface::Pool] {
        std::thread::scope(|scope| {
            let rank = |rank: u32| {
                let nic = &nics[rank as usize];
                scope.spawn(move || {
                    let nodes = [NodeId(0), NodeId(1)];
                    let machine = Machine::new(rank, &nodes, interface, PORT).unwrap();
                    let machine = machine.with_key(KEY + u64::from(rank));
                    Ranks::connect(nic, &machine, short).map(drop)
                })
            };
            for thread in [0, 1].map(rank) {
                let error = thread.join().unwrap().unwrap_err();
                let missing = matches!(error, Error::Parallel(ParallelError::Missing { .. }));
                assert!(missing || matches!(error, Error::Group(_)), "{error}");
            }
        });
    }
}
