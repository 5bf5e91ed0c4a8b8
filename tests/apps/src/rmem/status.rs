//! What `qnic-rmem status` shows: for people, and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use anyhow::Result;
use qnic::remote_memory::RemoteMemory;
use qnic_abi::volume::{
    MemoryInfo, ServerState, VolumeInfo, VolumeLatency, VolumeServer, MEMORY_LEAVING,
    MEMORY_SERVED, SERVER_FULL, SERVER_LEAVING, VOLUME_ACTIVE, VOLUME_DEGRADED, VOLUME_FULL,
    VOLUME_REPAIRS, VOLUME_TAKEN_BACK, VOLUME_THIN,
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
    /// Its servers may hold less than all of it.
    thin: bool,
    /// No block can be written that was not written before.
    full: bool,
    /// Servers have taken its memory back: all requests fail.
    taken_back: bool,
    /// Blocks with fewer live copies than they should have.
    degraded: u64,
    request_timeout_ms: u32,
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
    full: bool,
    pages: u64,
    granted: u64,
    reserved: u64,
    lease_ms: u64,
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
    /// Used, or reserved for a client.
    committed: u64,
    lease_ms: u64,
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

    /// 3 if a volume is not as it should be.
    pub(crate) fn exit_code(&self) -> ExitCode {
        let is_well = |volume: &Volume| volume.troubles().is_empty();
        ExitCode::from(if self.volumes.iter().all(is_well) {
            0
        } else {
            3
        })
    }
}

impl Volume {
    /// What is not as it should be, in words.
    fn troubles(&self) -> Vec<String> {
        let troubles = [
            (
                !self.active && !self.taken_back,
                "its NIC is gone".to_owned(),
            ),
            (
                self.taken_back,
                "TAKEN BACK: servers have taken its memory back, all requests fail, detach it"
                    .to_owned(),
            ),
            (
                self.degraded > 0,
                format!("DEGRADED: {} blocks lack a live copy", self.degraded),
            ),
            (
                self.full,
                "FULL: servers have no room for blocks that were not written yet".to_owned(),
            ),
        ];
        let troubles = troubles.into_iter().filter(|(is_so, _)| *is_so);
        troubles.map(|(_, words)| words).collect()
    }

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
                leaving: call.flags.get() & SERVER_LEAVING != 0,
                full: call.flags.get() & SERVER_FULL != 0,
                pages: call.pages.get(),
                granted: call.granted.get(),
                reserved: call.reserved.get(),
                lease_ms: call.lease_ms.get(),
                round_trip_us: call.round_trip_ns.get() / 1000,
            })
        };
        let flags = info.flags.get();
        Ok(Volume {
            device: format!("/dev/qnicmem{}", info.volume),
            blocks: info.blocks.get(),
            replicas: info.replicas.get(),
            active: flags & VOLUME_ACTIVE != 0,
            thin: flags & VOLUME_THIN != 0,
            full: flags & VOLUME_FULL != 0,
            taken_back: flags & VOLUME_TAKEN_BACK != 0,
            degraded: match flags & VOLUME_DEGRADED {
                0 => 0,
                _ => info.degraded.get(),
            },
            request_timeout_ms: info.request_timeout_ms.get(),
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
            committed: info.committed.get(),
            lease_ms: info.lease_ms.get(),
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
                "memory for others: {:.1} of {:.1} MiB used, {:.1} with what is reserved, {} \
                 clients{}, lease {} s; {} pages stored, {} sent",
                mib(memory.used),
                mib(memory.pages),
                mib(memory.committed),
                memory.clients,
                if memory.leaving { ", leaving" } else { "" },
                memory.lease_ms / 1000,
                memory.counters["writes"],
                memory.counters["reads"],
            ),
        }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {:.1} MiB{}, {} replicas, requests end within {} s",
            self.device,
            mib(self.blocks),
            if self.thin { ", thin" } else { "" },
            self.replicas,
            self.request_timeout_ms / 1000
        )?;
        for trouble in self.troubles() {
            writeln!(f, "  {trouble}")?;
        }
        for server in &self.servers {
            let leaving = if server.leaving { ", leaving" } else { "" };
            let full = if server.full { ", full" } else { "" };
            writeln!(
                f,
                "  server {}: {}{leaving}{full}, {} of {} pages, {} reserved, lease {} s, round trip {} us",
                server.node,
                server.state,
                server.pages,
                server.granted,
                server.reserved,
                server.lease_ms / 1000,
                server.round_trip_us
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
            "  {} reads, {} writes, {} failed, {} of them as servers were full, {} with too few \
             copies; {} retransmissions, {} pages copied within this node",
            count("reads"),
            count("writes"),
            count("failed"),
            count("full"),
            count("degraded"),
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

    fn volume(degraded: u64, full: bool, taken_back: bool) -> Volume {
        let none = || Latency {
            median_us: 0,
            p99_us: 0,
            histogram: Vec::new(),
        };
        Volume {
            device: "/dev/qnicmem0".to_owned(),
            blocks: 256,
            replicas: 2,
            active: !taken_back,
            thin: true,
            full,
            taken_back,
            degraded,
            request_timeout_ms: 20_000,
            repair: Repair {
                running: false,
                position: 0,
                missing: 0,
                lost: 0,
                copied: 0,
            },
            servers: Vec::new(),
            retransmissions: 0,
            counters: VolumeInfo::default().counters.fields().into(),
            reads: none(),
            writes: none(),
        }
    }

    /// What is wrong with a volume stands in the text and in the exit status (H9).
    #[test]
    fn a_volume_in_trouble_says_so() {
        for (volume, word) in [
            (volume(0, false, false), None),
            (volume(7, false, false), Some("DEGRADED: 7 blocks")),
            (volume(0, true, false), Some("FULL:")),
            (volume(0, false, true), Some("TAKEN BACK:")),
        ] {
            let report = Report {
                volumes: vec![volume],
                memory: None,
            };
            let text = report.to_string();
            let code = if word.is_some() { 3 } else { 0 };
            assert_eq!(report.exit_code(), ExitCode::from(code), "{text}");
            assert!(text.contains(word.unwrap_or("/dev/qnicmem0")), "{text}");
            assert!(
                text.contains("1.0 MiB, thin, 2 replicas, requests end within 20 s"),
                "{text}"
            );
        }
    }

    #[test]
    fn quantiles_are_upper_ends_of_classes() {
        assert_eq!(quantile_us(&[0; 4], 500), 0);
        assert_eq!(quantile_us(&[1, 1, 2, 0], 500), 2);
        assert_eq!(quantile_us(&[1, 1, 2, 0], 990), 4);
    }
}
