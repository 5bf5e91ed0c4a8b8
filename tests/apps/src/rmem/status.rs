//! What `qnic-rmem status` shows: for people, and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use qnic::remote_memory::RemoteMemory;
use qnic_abi::volume::{
    MemoryInfo, ServerState, VolumeInfo, VolumeLatency, VolumeServer, MEMORY_LEAVING,
    MEMORY_SERVED, VOLUME_ACTIVE, VOLUME_REPAIRS,
};
use qnic_abi::PAGE_SIZE;
use serde::Serialize;

/// Everything.
#[derive(Serialize)]
pub(crate) struct Report {
    volumes: Vec<Volume>,
    /// None if this node gives no memory.
    memory: Option<Memory>,
}

type Counters = BTreeMap<&'static str, u64>;

#[derive(Serialize)]
struct Volume {
    device: String,
    /// Of a page each.
    blocks: u64,
    replicas: u16,
    /// Requests are taken.
    active: bool,
    repair: Repair,
    servers: Vec<Server>,
    retransmissions: u64,
    counters: Counters,
    reads: Latency,
    writes: Latency,
}

#[derive(Serialize)]
struct Repair {
    running: bool,
    /// Blocks that it has looked at.
    position: u64,
    /// Blocks with too few copies, and no server to copy to.
    missing: u64,
    /// Blocks of which no copy is left.
    lost: u64,
    /// Pages that it has copied.
    copied: u64,
}

#[derive(Serialize)]
struct Server {
    node: u16,
    state: &'static str,
    leaving: bool,
    pages: u64,
    granted: u64,
    round_trip_us: u64,
}

/// Pages by the time that they took.
#[derive(Serialize)]
struct Latency {
    median_us: u64,
    p99_us: u64,
    /// Class 0: below a microsecond; class n: below 2ⁿ microseconds.
    histogram: Vec<u64>,
}

#[derive(Serialize)]
struct Memory {
    pages: u64,
    used: u64,
    clients: u64,
    leaving: bool,
    counters: Counters,
}

/// The upper end of the class that so many of a thousand do not exceed.
fn quantile_us(counts: &[u64], permille: u64) -> u64 {
    let all: u64 = counts.iter().sum();
    let mut below = 0;
    let class = counts.iter().position(|count| {
        below += count;
        all > 0 && below * 1000 >= all * permille
    });
    class.map_or(0, |class| 1 << class)
}

fn state_name(code: u16) -> &'static str {
    match ServerState::try_from(code) {
        Ok(ServerState::Detached) => "detached",
        Ok(ServerState::Live) => "live",
        Ok(ServerState::Silent) => "silent",
        Ok(ServerState::Dismissed) => "dismissed",
        Ok(ServerState::Gone) => "gone",
        Err(_) => "unknown",
    }
}

impl Report {
    /// Asks for everything.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn of(memory: &RemoteMemory) -> Result<Self> {
        let volumes = super::volumes(memory)?;
        let volumes = volumes.iter().map(|info| Volume::of(memory, info));
        let mut call = MemoryInfo::default();
        memory.memory(&mut call)?;
        Ok(Report {
            volumes: volumes.collect::<Result<_>>()?,
            memory: (call.flags.get() & MEMORY_SERVED != 0).then(|| Memory::of(&call)),
        })
    }
}

impl Volume {
    fn of(memory: &RemoteMemory, info: &VolumeInfo) -> Result<Self> {
        let latency = |writes: u32| -> Result<Latency> {
            let mut call = VolumeLatency {
                volume: info.volume,
                writes: writes.into(),
                ..VolumeLatency::default()
            };
            memory.latency(&mut call)?;
            let histogram: Vec<_> = call.counts.iter().map(|count| count.get()).collect();
            Ok(Latency {
                median_us: quantile_us(&histogram, 500),
                p99_us: quantile_us(&histogram, 990),
                histogram,
            })
        };
        let server = |server: u16| -> Result<Server> {
            let mut call = VolumeServer {
                volume: info.volume,
                server: server.into(),
                ..VolumeServer::default()
            };
            memory.server(&mut call)?;
            Ok(Server {
                node: call.node.get(),
                state: state_name(call.state.get()),
                leaving: call.leaving.get() != 0,
                pages: call.pages.get(),
                granted: call.granted.get(),
                round_trip_us: call.round_trip_ns.get() / 1000,
            })
        };
        let flags = info.flags.get();
        Ok(Volume {
            device: format!("/dev/qnicmem{}", info.volume),
            blocks: info.blocks.get(),
            replicas: info.replicas.get(),
            active: flags & VOLUME_ACTIVE != 0,
            repair: Repair {
                running: flags & VOLUME_REPAIRS != 0,
                position: info.repair_position.get(),
                missing: info.missing.get(),
                lost: info.lost.get(),
                copied: info.counters.repaired.get(),
            },
            servers: (0..info.server_count.get())
                .map(server)
                .collect::<Result<_>>()?,
            retransmissions: info.counters.retransmissions.get(),
            counters: info.counters.fields().into(),
            reads: latency(0)?,
            writes: latency(1)?,
        })
    }
}

impl Memory {
    fn of(info: &MemoryInfo) -> Self {
        Memory {
            pages: info.pages.get(),
            used: info.used.get(),
            clients: info.clients.get(),
            leaving: info.flags.get() & MEMORY_LEAVING != 0,
            counters: info.counters.fields().into(),
        }
    }
}

fn mib(pages: u64) -> f64 {
    pages as f64 * PAGE_SIZE as f64 / f64::from(1 << 20)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for volume in &self.volumes {
            volume.fmt(f)?;
        }
        if self.volumes.is_empty() {
            writeln!(f, "no volume is attached")?;
        }
        match &self.memory {
            None => writeln!(f, "no memory is given to others"),
            Some(memory) => writeln!(
                f,
                "memory for others: {:.1} of {:.1} MiB used, {} clients{}; {} pages stored, {} sent",
                mib(memory.used),
                mib(memory.pages),
                memory.clients,
                if memory.leaving { ", leaving" } else { "" },
                memory.counters["writes"],
                memory.counters["reads"],
            ),
        }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.active { "" } else { ", its NIC is gone" };
        writeln!(
            f,
            "{}: {:.1} MiB, {} replicas{state}",
            self.device,
            mib(self.blocks),
            self.replicas
        )?;
        for server in &self.servers {
            let leaving = if server.leaving { ", leaving" } else { "" };
            writeln!(
                f,
                "  server {}: {}{leaving}, {} of {} pages, round trip {} us",
                server.node, server.state, server.pages, server.granted, server.round_trip_us
            )?;
        }
        let repair = &self.repair;
        writeln!(
            f,
            "  repair: {}, {} pages copied, {} blocks lack a copy, {} are lost",
            match repair.running {
                true => format!("at block {} of {}", repair.position, self.blocks),
                false => "at rest".to_owned(),
            },
            repair.copied,
            repair.missing,
            repair.lost
        )?;
        let count = |name| self.counters[name];
        writeln!(
            f,
            "  {} reads, {} writes, {} failed; {} retransmissions, {} pages copied within this node",
            count("reads"),
            count("writes"),
            count("failed"),
            self.retransmissions,
            count("pages_copied")
        )?;
        for (name, latency) in [("reads", &self.reads), ("writes", &self.writes)] {
            writeln!(
                f,
                "  latency of {name}: half within {} us, 99% within {} us",
                latency.median_us, latency.p99_us
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_ends_of_classes() {
        assert_eq!(quantile_us(&[0; 4], 500), 0);
        assert_eq!(quantile_us(&[1, 1, 2, 0], 500), 2);
        assert_eq!(quantile_us(&[1, 1, 2, 0], 990), 4);
    }
}
