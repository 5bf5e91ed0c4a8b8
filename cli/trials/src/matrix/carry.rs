//! How many trials a machine carries side by side.

use std::thread::available_parallelism;

use qnic_cluster::{available_memory, ByteSize, ClusterSpec};

/// Memory that a guest's QEMU takes beside the guest's, with its part of the device process.
const BESIDE_GUEST: ByteSize = ByteSize::mib(160);

/// What a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Memory that can be used.
    pub memory: ByteSize,
    /// Processors.
    pub processors: usize,
}

impl Machine {
    /// This machine. Where it does not tell how much it has, that is taken to be little.
    pub fn this() -> Self {
        Self {
            memory: available_memory().unwrap_or(ByteSize(0)),
            processors: available_parallelism().map_or(1, usize::from),
        }
    }
}

/// How many clusters like the largest of `specs` run on `machine` side by side: all guests
/// have their memory, and each virtual CPU a processor. At least one.
pub fn carried<'a>(machine: Machine, specs: impl IntoIterator<Item = &'a ClusterSpec>) -> usize {
    let (mut memory, mut cpus) = (1, 1);
    for spec in specs {
        let beside = BESIDE_GUEST.0 * spec.nodes.len() as u64;
        memory = memory.max(spec.total_memory().0.saturating_add(beside));
        let all: u64 = spec.nodes.iter().map(|node| u64::from(node.cpus)).sum();
        cpus = cpus.max(all);
    }
    let by_memory = machine.memory.0 / memory;
    let by_cpus = machine.processors as u64 / cpus;
    let carried = by_memory.min(by_cpus).max(1);
    usize::try_from(carried).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qnic_cluster::NodeSpec;

    #[test]
    fn the_scarcer_of_memory_and_processors_decides() {
        let small = ClusterSpec::new("c").with(NodeSpec::new("a"));
        let large = small.clone().with(NodeSpec::new("b"));
        let machine = |mib, processors| Machine {
            memory: ByteSize::mib(mib),
            processors,
        };
        assert_eq!(carried(machine(100_000, 8), [&small]), 8);
        assert_eq!(carried(machine(100_000, 8), [&small, &large]), 4);
        assert_eq!(carried(machine(1000, 8), [&small]), 2);
        assert_eq!(carried(machine(10, 1), [&large]), 1);
    }
}
