//! What `qnic-app` and `qnic-rmem` report, one JSON line each, so that the tools that start them
//! can read it.

use serde::{Deserialize, Serialize};

/// Distribution of a time, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of all rounds were faster.
    pub median_us: f64,
    /// 99 % of all rounds were faster.
    pub p99_us: f64,
    /// The fastest.
    pub min_us: f64,
    /// All together, divided by their number.
    pub mean_us: f64,
    /// Number of rounds.
    pub rounds: usize,
}

impl Latency {
    /// Summarizes times in nanoseconds; `None` if there are none.
    pub fn from_ns(mut times: Vec<u64>) -> Option<Self> {
        times.sort_unstable();
        let at = |part: usize| times.get((times.len() * part / 100).min(times.len() - 1));
        let us = |ns: u64| ns as f64 / 1000.0;
        Some(Latency {
            median_us: us(*times.get(times.len() / 2)?),
            p99_us: us(*at(99)?),
            min_us: us(*times.first()?),
            mean_us: us(times.iter().sum()) / times.len() as f64,
            rounds: times.len(),
        })
    }
}

/// One line of the demo: one size, aligned or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoRow {
    /// Bytes of a transfer.
    pub size: usize,
    /// Both sides start at a page border; else neither does.
    pub aligned: bool,
    /// The checksum that the far side computed is that of what was written, and
    /// nothing around it changed.
    pub write_ok: bool,
    /// What was read back is what was written.
    pub read_ok: bool,
    /// Half a round trip of writes of this size between two spinning processes.
    pub latency: Option<Latency>,
    /// Stream of writes, in MB/s (10^6 bytes).
    pub write_mb_s: f64,
    /// Stream of reads, in MB/s.
    pub read_mb_s: f64,
}

/// Last line of the demo's initiator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoEnd {
    /// Notifications that the target waited for and got.
    pub notifications: u64,
    /// Rows with an error.
    pub wrong: usize,
}

/// A line of the demo's initiator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DemoLine {
    /// Both sides have exported and imported; transfers begin.
    Connected {
        /// Node of the target.
        node: u16,
        /// Port of the target.
        port: u16,
        /// Most bytes that one frame to it carries.
        max_payload: u32,
    },
    /// One size.
    Row(DemoRow),
    /// The end.
    End(DemoEnd),
}

/// A line of the benchmark's initiator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// `write`, `read`, `write_notify` …
    pub operation: String,
    /// Bytes of a transfer.
    pub size: usize,
    /// Half a round trip, one for each time it was measured.
    pub latency: Vec<Latency>,
    /// MB/s (10^6 bytes), one value for each round.
    pub mb_s: Vec<f64>,
    /// A `memcpy` of the same size between memory of the same kind, in MB/s,
    /// interleaved with the rounds; empty where the node is not native.
    pub memcpy_mb_s: Vec<f64>,
}

impl BenchRow {
    /// A row without values.
    pub fn new(operation: &str, size: usize) -> Self {
        BenchRow {
            operation: operation.into(),
            size,
            ..BenchRow::default()
        }
    }
}

/// What a block device does with pages of 4 KiB anywhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskRow {
    /// They are written; else read.
    pub writes: bool,
    /// Of a page, one at a time.
    pub latency: Latency,
    /// Pages of many threads at once, in a second.
    pub each_second: f64,
}

/// Small messages sent one right after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessagesRow {
    /// What carried them.
    pub operation: String,
    /// How many there were.
    pub messages: u64,
    /// System calls of the sender.
    pub sender_calls: u64,
    /// Those of them that told the driver to look at the queues of shared pools.
    pub sender_kicks: Option<u64>,
    /// System calls of the receiver, where it says so.
    pub receiver_calls: Option<u64>,
    /// Time for each until the last one was received, in microseconds.
    pub message_us: f64,
}

/// A line of `qnic-app pool-bench`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolLine {
    /// Latency or bandwidth.
    Transfer(BenchRow),
    /// Small messages.
    Messages(MessagesRow),
    /// Bytes that the driver has copied while streams moved so many.
    Copied {
        /// Copied in the driver.
        copied: u64,
        /// Moved.
        moved: u64,
    },
}

/// What `qnic-app memory-server` says at its start and at its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerLine {
    /// The segments are exported.
    Serving {
        /// Process id.
        pid: u32,
        /// `VmLck` of the process, in KiB.
        locked_kib: u64,
        /// `VmPin` of the process, in KiB.
        pinned_kib: u64,
    },
    /// It was told to end; what must not change has not changed.
    Released,
}

/// What `qnic-app pressure` and its machine did and saw in a phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PressureReport {
    /// Memory exported, in KiB.
    pub exported_kib: u64,
    /// RAM of the machine, in KiB.
    pub ram_kib: u64,
    /// Rounds of transfers.
    pub rounds: u64,
    /// Writes to the peer.
    pub writes: u64,
    /// Reads from the peer.
    pub reads: u64,
    /// Parts of its own that the exporter checked and wrote anew meanwhile.
    pub owner_writes: u64,
    /// Bytes compared; none was wrong.
    pub compared_bytes: u64,
    /// Times that it forked.
    pub forks: u64,
    /// Pages that the machine brought in from swap.
    pub swapped_in: u64,
    /// Pages that the machine wrote to swap.
    pub swapped_out: u64,
    /// Pages of files that the machine had taken away and read again.
    pub read_again: u64,
    /// Pages that the machine wrote to a disk, swap or not.
    pub written_back: u64,
    /// Pages that the machine looked at when it compacted memory.
    pub compacted: u64,
    /// Times that the file was truncated.
    pub truncations: u64,
    /// Writes to the edge of the peer's file that were refused, because it had none.
    pub refused: u64,
    /// Highest `VmSwap` seen, in KiB.
    pub swap_peak_kib: u64,
    /// `VmLck` at the end, in KiB.
    pub locked_kib: u64,
    /// `VmPin` at the end, in KiB.
    pub pinned_kib: u64,
    /// Page faults that the driver served for the NIC.
    pub faults_served: u64,
    /// Frames that went through bounce memory at the NIC (N14).
    pub bounces: u64,
    /// Pages that the kernel took back.
    pub pages_invalidated: u64,
    /// Times that it had to wait for the NIC to let go of a page.
    pub lock_conflicts: u64,
}

/// What `qnic-app remap` did and saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RemapReport {
    /// Pages that were taken away while they were entered in the NIC's table and
    /// written to.
    pub races: u64,
    /// Rounds, in each of which the whole range was taken away once.
    pub rounds: u64,
    /// Rounds in which the segment was unexported first.
    pub unexported: u64,
    /// Sweeps over the whole range that the writer finished meanwhile.
    pub sweeps: u64,
    /// Times that the driver had to wait for the NIC to let go of a page.
    pub lock_conflicts: u64,
    /// Frames compared by number, and how many of them the canary had got from the
    /// range.
    pub frames_compared: u64,
    /// See `frames_compared`.
    pub frames_reused: u64,
    /// Time that it took, in seconds.
    pub seconds: f64,
}

/// What `qnic-app remap-writer` did and saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemapWriterReport {
    /// Sweeps without an error.
    pub sweeps: u64,
    /// Sweeps in which a write was refused.
    pub refused: u64,
    /// Imports after the segment was unexported.
    pub imports: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// What `qnic-app key-tester` tried.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysReport {
    /// Commands that its own NIC had to refuse, and did.
    pub refused_here: u64,
    /// Commands that its own NIC counted as refused.
    pub counted_here: u64,
    /// Commands that the owner's NIC had to refuse, and did.
    pub refused_there: u64,
}

/// A step of `qnic-app life` that held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeStep {
    /// What holds.
    pub held: String,
    /// What was seen, where that is of interest.
    pub seen: String,
}

/// One attempt of `qnic-app isolation-probe`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// What was tried.
    pub what: String,
    /// It was refused in the way that it must be.
    pub refused: bool,
    /// What came back.
    pub answer: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_of_a_hundred_rounds() {
        let latency = Latency::from_ns((1..=100).map(|n| n * 1000).collect()).unwrap();
        assert_eq!(latency.median_us, 51.0);
        assert_eq!(latency.p99_us, 100.0);
        assert_eq!(latency.min_us, 1.0);
        assert_eq!(latency.mean_us, 50.5);
        assert_eq!(Latency::from_ns(Vec::new()), None);
    }
}
