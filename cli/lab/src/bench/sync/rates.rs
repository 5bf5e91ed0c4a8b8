//! How many operations a single process, or a group of them, can issue (NetVM
//! figure 28), as ratios to reads of 4 bytes.
//!
//! NetVM's are computed: of a single process from the operations' overhead (table 31), of a
//! group from what the network interface of the owner needs (table 30). Here both are
//! measured: every process of the group works at objects of its own, all of them in the
//! memory of one owner.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{bail, ensure, Result};
use qnic::{Endpoint, Nic, Port, RemoteSegment, Segment, SegmentName};

use super::super::figures::{Figure, Row, Table};
use super::super::netvm;
use super::{exported, two_nodes, Objects, LIMIT};

/// Processes of a group.
const GROUP: usize = 4;
/// Operations, or pairs of them, of each process in a round.
const REPEATS: usize = 500;
const OWNER: SegmentName = SegmentName(0x76);
const OWN: SegmentName = SegmentName(0x77);

/// Operations in a step of each kind, in the order of [`netvm::RATES`].
const OPERATIONS: [usize; netvm::RATES.len()] = [1, 1, 2, 2, 2];

/// Operations per second, one value for each round: of a single process, of a group.
type Rates = [Vec<f64>; 2];

/// A process of the group.
struct Worker {
    endpoint: Endpoint,
    remote: RemoteSegment,
    own: Segment,
    objects: Objects,
}

impl Worker {
    fn new(nic: &Nic, owner: &Endpoint, number: usize) -> Result<Self> {
        let endpoint = nic.register(Port(20 + number as u16))?;
        let (_, own) = exported(&endpoint, OWN)?;
        let remote = endpoint.import(owner.node(), owner.port(), OWNER, LIMIT)?;
        Ok(Worker {
            objects: Objects::new(&endpoint, &remote, number as u64 * Objects::BYTES, 1)?,
            endpoint,
            remote,
            own,
        })
    }

    /// One step of a kind.
    fn step(&self, kind: usize) -> Result<()> {
        let objects = &self.objects;
        match kind {
            0 => Ok(self
                .endpoint
                .read_fenced(&self.remote, 0, self.own.part(0, 4))?),
            1 => {
                objects.word.swap(1)?;
                Ok(())
            }
            2 => Ok(objects.lock.acquire()?.release()?),
            3 => {
                let mut waiting = objects.queue.insert()?;
                ensure!(objects.queue.remove()?, "this process waits");
                Ok(waiting.wait(Some(LIMIT))?)
            }
            _ => {
                objects.semaphore.wait()?;
                Ok(objects.semaphore.signal()?)
            }
        }
    }
}

/// Measures both rates of each kind. The first round warms up and is not counted.
pub(super) fn measure(rounds: usize) -> Result<Table> {
    let (_nodes, near, far) = two_nodes()?;
    let owner = far.register(Port(9))?;
    let _objects = exported(&owner, OWNER)?;
    let workers: Result<Vec<_>> = (0..GROUP).map(|i| Worker::new(&near, &owner, i)).collect();
    let workers = workers?;
    let mut rates: Vec<Rates> = OPERATIONS.map(|_| Rates::default()).into();
    for round in 0..=rounds {
        for (kind, [single, group]) in rates.iter_mut().enumerate() {
            let values = (run(&workers[..1], kind)?, run(&workers, kind)?);
            if round > 0 {
                single.push(values.0);
                group.push(values.1);
            }
        }
    }
    Ok(table(&rates))
}

/// Operations per second of some processes, each in a thread of its own.
fn run(workers: &[Worker], kind: usize) -> Result<f64> {
    let ready = Barrier::new(workers.len() + 1);
    let seconds = std::thread::scope(|scope| -> Result<f64> {
        let threads = workers.iter().map(|worker| {
            let ready = &ready;
            scope.spawn(move || -> Result<()> {
                ready.wait();
                (0..REPEATS).try_for_each(|_| worker.step(kind))
            })
        });
        let threads: Vec<_> = threads.collect();
        ready.wait();
        let start = Instant::now();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a process of the group has panicked"),
            }
        }
        Ok(start.elapsed().as_secs_f64())
    })?;
    Ok((workers.len() * REPEATS * OPERATIONS[kind]) as f64 / seconds)
}

/// Rates and their ratios to those of the first kind, reads; NetVM's likewise.
fn table(rates: &[Rates]) -> Table {
    let reads = rates[0].clone();
    let (_, netvm_reads) = netvm::RATES[0];
    let rows = netvm::RATES.iter().zip(rates).map(|((name, netvm), rate)| {
        let here = |what, of: usize| {
            let figure = Figure::with_spread(what, "1/s", rate[of].clone());
            figure.ratio_to("ratio", &reads[of])
        };
        let netvm = |what, of: usize| {
            let figure = Figure::published(what, "µs", netvm[of]);
            figure.published_ratio("ratio", netvm_reads[of], netvm_reads[of] / netvm[of])
        };
        let figures = [
            here("single", 0),
            here("group", 1),
            netvm("NetVM single", 0),
            netvm("NetVM group", 1),
        ];
        Row::new(*name, figures)
    });
    let title = format!(
        "Operations per second of a single process and of {GROUP}, and their ratio to reads \
         (NetVM figure 28)"
    );
    Table::new("rates", title, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::super::super::text::tests::words_of_row;
    use super::*;

    #[test]
    fn rates_are_ratios_to_reads() {
        let mut rates: Vec<Rates> = vec![[vec![100.0], vec![200.0]]; OPERATIONS.len()];
        rates[1] = [vec![50.0], vec![150.0]];
        let table = table(&rates);
        let words = words_of_row(&table, "swap").join(" ");
        assert_eq!(
            words,
            "swap 50.00 (50.00 … 50.00) 0.50 150.0 (150.0 … 150.0) 0.75 10.55 0.88 4.31 0.63"
        );
        let words = words_of_row(&table, "read").join(" ");
        assert!(words.ends_with("9.25 1.00 2.72 1.00"), "{words}");
    }
}
