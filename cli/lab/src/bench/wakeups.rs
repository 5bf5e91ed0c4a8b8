//! What it takes to wake a receiver that sleeps in another guest (P5): a notification of qnic beside
//! the bare interrupt that QEMU's ivshmem-doorbell raises ([`super::sharing`]).
//!
//! Both take turns in each round, in guests of the same kernel and size: two with NICs, two with
//! ivshmem. The others sleep meanwhile. A receiver of qnic sleeps in either way that does not spin
//! first: as the thread that calls handlers, or in poll.

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use qnic_apps::report::{BenchRow, Latency};
use qnic_trials::nodes::vm::VmNodes;
use qnic_trials::nodes::Nodes;
use rustix::event::{eventfd, EventfdFlags};

use super::figures::{Figure, Row, Table};
use super::goal::Goal;
use super::merge;
use super::point_to_point::rows_of;
use super::sharing::Sharing;

/// What a notification may take of a bare interrupt.
const GOAL: f64 = 1.5;

/// The bare interrupt, and the receivers of qnic by what their programs call them.
const INTERRUPT: (&str, &str) = ("ivshmem-doorbell", "ivshmem-doorbell, interrupt");
const RECEIVERS: [(&str, &str); 2] = [
    ("handler", "qnic, handler"),
    ("descriptor", "qnic, poll of a descriptor"),
];

/// Two threads of the host that wake each other: the least that a wake-up of the device process takes.
const HOST: (&str, &str) = ("host-eventfd", "host, eventfd");

/// Round trips between these two in a round.
const HOST_TRIPS: usize = 2000;

/// What all rounds have measured.
#[derive(Default)]
pub(super) struct Wakeups {
    rows: Vec<BenchRow>,
    /// Why there is no more of qnic, of threads of the host, and of interrupts.
    own_missing: Option<String>,
    host_missing: Option<String>,
    interrupts_missing: Option<String>,
}

impl Wakeups {
    /// Prepares the guests with ivshmem; those that cannot run are missing for the reason given.
    pub(super) fn prepare(&mut self, sharing: Result<&Sharing, &String>) {
        let prepared = match sharing {
            Ok(sharing) => sharing.bind().map_err(|error| format!("{error:#}")),
            Err(why) => Err(why.clone()),
        };
        self.interrupts_missing = prepared.err();
    }

    /// A round between guests with NICs, and between those with ivshmem.
    pub(super) fn round(&mut self, nodes: &VmNodes, sharing: Option<&Sharing>) {
        if let (Some(sharing), None) = (sharing, &self.interrupts_missing) {
            match sharing.by_doorbell() {
                Ok(row) => merge(&mut self.rows, row),
                Err(error) => self.interrupts_missing = Some(format!("{error:#}")),
            }
        }
        match on_the_host() {
            Ok(row) => merge(&mut self.rows, row),
            Err(error) => self.host_missing = Some(format!("{error:#}")),
        }
        if self.own_missing.is_none() {
            match by_notifications(nodes) {
                Ok(rows) => rows.into_iter().for_each(|row| merge(&mut self.rows, row)),
                Err(error) => self.own_missing = Some(format!("{error:#}")),
            }
        }
    }

    pub(super) fn table(&self) -> Table {
        let times = |operation: &str, pick: fn(&Latency) -> f64| -> Vec<f64> {
            let row = self.rows.iter().find(|row| row.operation == operation);
            let all = row.into_iter().flat_map(|row| &row.latency);
            all.map(pick).collect()
        };
        let interrupts = times(INTERRUPT.0, |it| it.median_us);
        let row = |(operation, name): (&str, &str), goal: Option<Goal>| {
            let half = times(operation, |it| it.median_us);
            let half = Figure::with_spread("half round trip", "µs", half);
            let figures = [
                half.ratio_to("of the interrupt", &interrupts)
                    .ratio_goal(goal),
                Figure::new("99 %", "µs", times(operation, |it| it.p99_us)),
                Figure::new("least", "µs", times(operation, |it| it.min_us)),
            ];
            Row::new(name, figures)
        };
        let mut rows = [INTERRUPT, HOST]
            .map(|it| row(it, None).of_peer(true))
            .to_vec();
        let goal = Goal::at_most(GOAL).code("P5");
        rows.extend(RECEIVERS.map(|receiver| row(receiver, Some(goal.clone()))));
        let title = "Half a round trip between two guests whose receivers sleep";
        let mut table = Table::new("guest-wakeups", title, rows);
        let missing = [
            (INTERRUPT.1, &self.interrupts_missing),
            (HOST.1, &self.host_missing),
            ("qnic", &self.own_missing),
        ];
        let notes = missing.into_iter().filter_map(|(name, why)| {
            let why = why.as_ref()?;
            Some(format!("{name}: not measured: {why}"))
        });
        table.notes.extend(notes);
        table
    }
}

/// A round of notifications, of all receivers.
fn by_notifications(nodes: &dyn Nodes) -> Result<Vec<BenchRow>> {
    let echo = nodes.start(1, "wakeup-bench --peer 0 --echo")?;
    let initiator = nodes.start(0, "wakeup-bench --peer 1")?;
    rows_of(initiator, echo)
}

/// A round of two threads that block in a read of their eventfds, in turn.
fn on_the_host() -> Result<BenchRow> {
    let [ping, pong] = [0; 2].map(|count| eventfd(count, EventfdFlags::empty()));
    let (ping, pong) = (
        ping.context("make an eventfd")?,
        pong.context("make an eventfd")?,
    );
    let wait = |fd| rustix::io::read(fd, &mut [0; 8]).map(drop);
    let wake = |fd| rustix::io::write(fd, &1u64.to_ne_bytes()).map(drop);
    let halves = std::thread::scope(|scope| -> Result<Vec<u64>> {
        let echo = scope
            .spawn(|| (0..HOST_TRIPS).try_for_each(|_| wait(&ping).and_then(|()| wake(&pong))));
        let mut halves = Vec::with_capacity(HOST_TRIPS);
        for _ in 0..HOST_TRIPS {
            let start = Instant::now();
            wake(&ping)?;
            wait(&pong)?;
            halves.push(start.elapsed().as_nanos() as u64 / 2);
        }
        let echoed = echo.join();
        ensure!(matches!(echoed, Ok(Ok(()))), "the other thread: {echoed:?}");
        Ok(halves)
    })?;
    let mut row = BenchRow::new(HOST.0, 8);
    row.latency.extend(Latency::from_ns(halves));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::text::tests::words_of_row;

    fn row(operation: &str, median_us: f64) -> BenchRow {
        let mut row = BenchRow::new(operation, 8);
        row.latency.push(Latency {
            median_us,
            p99_us: 3.0 * median_us,
            min_us: 1.0,
            mean_us: median_us,
            rounds: 5,
        });
        row
    }

    #[test]
    fn each_receiver_is_compared_with_the_bare_interrupt() {
        let wakeups = Wakeups {
            rows: vec![
                row("ivshmem-doorbell", 100.0),
                row("handler", 140.0),
                row("descriptor", 160.0),
            ],
            ..Wakeups::default()
        };
        let table = wakeups.table();
        let words = |name: &str| words_of_row(&table, name).join(" ");
        let handler = words("qnic, handler");
        assert!(handler.ends_with("1.40 ≤ 1.5 420.0 1.00"), "{handler}");
        let polled = words("qnic, poll of a descriptor");
        assert!(polled.contains("1.60 ≤ 1.5, missed"), "{polled}");
        assert_eq!(table.notes, [""; 0]);
    }

    #[test]
    fn threads_of_the_host_wake_each_other() {
        let row = on_the_host().unwrap();
        assert_eq!(row.latency[0].rounds as usize, HOST_TRIPS);
        assert!(row.latency[0].median_us > 0.0);
    }

    #[test]
    fn guests_that_cannot_run_are_named_with_the_reason() {
        let mut wakeups = Wakeups::default();
        wakeups.prepare(Err(&"no IOMMU".to_owned()));
        let table = wakeups.table();
        let note = "ivshmem-doorbell, interrupt: not measured: no IOMMU";
        assert_eq!(table.notes, [note]);
        let goals = table.figures().filter_map(|figure| figure.goal.as_ref());
        assert!(goals.into_iter().all(|goal| goal.met.is_none()));
    }
}
