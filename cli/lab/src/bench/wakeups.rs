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

use super::point_to_point::rows_of;
use super::tables::Tables;

pub(super) const TABLE: &str = "guest-wakeups";

/// The bare interrupt, and two threads of the host that wake each other: the least that a wake-up of the
/// device process takes.
const INTERRUPT: &str = "ivshmem-doorbell, interrupt";
const HOST: &str = "host, eventfd";

/// The receivers of qnic, by what their programs call them.
const OWN: &str = "qnic";
const RECEIVERS: [(&str, &str); 2] = [
    ("handler", "qnic, handler"),
    ("descriptor", "qnic, poll of a descriptor"),
];

/// Round trips between threads of the host in a round.
const HOST_TRIPS: usize = 2000;

/// Rows, whether they can be measured or not.
pub(super) fn declare(tables: &mut Tables) {
    for name in [INTERRUPT, HOST]
        .into_iter()
        .chain(RECEIVERS.map(|(_, name)| name))
    {
        tables.row(TABLE, name, None);
    }
}

/// Prepares the guests with ivshmem.
pub(super) fn prepare(tables: &mut Tables, bind: impl FnOnce() -> Result<()>) {
    tables.attempt(INTERRUPT, bind);
}

/// A round between guests with NICs, of the host, and between guests with ivshmem.
pub(super) fn round(
    tables: &mut Tables,
    nodes: &VmNodes,
    by_doorbell: impl FnOnce() -> Result<BenchRow>,
) {
    if let Some(row) = tables.attempt(INTERRUPT, by_doorbell) {
        tables.add_bench(TABLE, INTERRUPT, None, &row);
    }
    if let Some(row) = tables.attempt(HOST, on_the_host) {
        tables.add_bench(TABLE, HOST, None, &row);
    }
    for row in tables
        .attempt(OWN, || by_notifications(nodes))
        .unwrap_or_default()
    {
        for (_, name) in RECEIVERS
            .iter()
            .filter(|(operation, _)| *operation == row.operation)
        {
            tables.add_bench(TABLE, name, None, &row);
        }
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
    let mut row = BenchRow::new(HOST, 8);
    row.latency.extend(Latency::from_ns(halves));
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_host_wake_each_other() {
        let row = on_the_host().unwrap();
        assert_eq!(row.latency[0].rounds as usize, HOST_TRIPS);
        assert!(row.latency[0].median_us > 0.0);
    }
}
