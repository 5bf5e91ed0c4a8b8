//! The suites that `qnic bench` knows, and how long each takes.

use anyhow::Result;
use qnic_cli::lab::bench::Suite;

use super::figures::Table;
use super::{
    collective, curves, engine, engines, growth, kernel, memory, message, peers, point_to_point,
    remote_memory, scaling, sync, wire,
};

/// All that grows: what is beside a write, and engines.
fn growing(rounds: usize) -> Result<Vec<Table>> {
    let tables = [
        growth::measure(rounds)?,
        engines::measure(rounds)?,
        scaling::measure(rounds)?,
    ];
    Ok(tables.concat())
}

/// A suite.
pub(super) struct Entry {
    pub(super) suite: Suite,
    /// Its name on the command line.
    pub(super) id: &'static str,
    /// What it measures.
    pub(super) title: &'static str,
    /// Rounds unless the command line names a number. A rank test needs five to tell two runs
    /// apart; all suites together take 15 minutes on two quiet cores.
    pub(super) rounds: usize,
    /// Seconds on two cores: of what does not depend on the rounds, and of a round.
    pub(super) seconds: (f64, f64),
    /// Measures.
    pub(super) measure: fn(usize) -> Result<Vec<Table>>,
}

impl Entry {
    /// Seconds that so many rounds take on two cores.
    pub(super) fn estimate(&self, rounds: usize) -> f64 {
        self.seconds.0 + self.seconds.1 * rounds as f64
    }
}

/// All of them, in the order in which they run: the short ones first.
pub(super) const ALL: &[Entry] = &[
    Entry {
        suite: Suite::Engine,
        id: "engine",
        title: "The engine without I/O",
        rounds: 9,
        seconds: (2.0, 6.5),
        measure: engine::measure,
    },
    Entry {
        suite: Suite::Host,
        id: "host",
        title: "Transfers between processes of this machine",
        rounds: 9,
        seconds: (1.0, 9.0),
        measure: point_to_point::host,
    },
    Entry {
        suite: Suite::Memory,
        id: "memory",
        title: "The page table, and transfers without pinning",
        rounds: 9,
        seconds: (1.0, 0.5),
        measure: memory::measure,
    },
    Entry {
        suite: Suite::Sync,
        id: "sync",
        title: "Notifications, atomic operations, locks, queues, semaphores",
        rounds: 9,
        seconds: (1.0, 1.0),
        measure: sync::measure,
    },
    Entry {
        suite: Suite::Curves,
        id: "curves",
        title: "Transfers, notifications and channels by length",
        rounds: 7,
        seconds: (1.0, 2.5),
        measure: curves::measure,
    },
    Entry {
        suite: Suite::Peers,
        id: "peers",
        title: "Writes beside libfabric, UCX, Soft-RoCE, TCP and ivshmem",
        rounds: 7,
        seconds: (40.0, 41.0),
        measure: peers::measure,
    },
    Entry {
        suite: Suite::Message,
        id: "message",
        title: "Tagged messages",
        rounds: 9,
        seconds: (1.0, 2.5),
        measure: message::measure,
    },
    Entry {
        suite: Suite::Collective,
        id: "collective",
        title: "Collectives",
        rounds: 5,
        seconds: (1.0, 2.0),
        measure: collective::measure,
    },
    Entry {
        suite: Suite::Growth,
        id: "growth",
        title: "Small writes as there is more beside them",
        rounds: 7,
        seconds: (1.0, 8.0),
        measure: growing,
    },
    Entry {
        suite: Suite::Wire,
        id: "wire",
        title: "Links between device processes, and loss",
        rounds: 7,
        seconds: (10.0, 9.0),
        measure: wire::measure,
    },
    Entry {
        suite: Suite::Vm,
        id: "vm",
        title: "Transfers between guests",
        rounds: 7,
        seconds: (10.0, 12.0),
        measure: point_to_point::vm,
    },
    Entry {
        suite: Suite::Kernel,
        id: "kernel",
        title: "Streams, datagram sockets and remote memory between guests",
        rounds: 5,
        seconds: (15.0, 7.0),
        measure: |rounds| Ok([kernel::measure(rounds)?, remote_memory::measure(rounds)?].concat()),
    },
];

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn each_suite_of_the_command_line_is_known_by_that_name() {
        let single = |suite: &&Suite| suite.parts() == [**suite];
        let suites: Vec<_> = Suite::value_variants().iter().filter(single).collect();
        assert_eq!(ALL.len(), suites.len());
        for suite in suites {
            let entry = ALL.iter().find(|entry| entry.suite == *suite);
            let name = suite.to_possible_value().unwrap();
            assert_eq!(entry.map(|it| it.id), Some(name.get_name()));
        }
    }

    #[test]
    fn all_of_them_take_half_an_hour() {
        let seconds: f64 = ALL.iter().map(|entry| entry.estimate(entry.rounds)).sum();
        assert!(seconds < 1800.0, "{seconds}");
        // With fewer, a rank test cannot tell two runs apart.
        assert!(ALL.iter().all(|entry| entry.rounds >= 5));
    }
}
