//! What the core holds, as tables for people.

use qnic_abi::VniId;

use super::awake::Attention;
use super::process::Process;
use super::Core;
use crate::env::Host;
use crate::occupants::VniReport;
use crate::table::Table;

impl Core {
    /// The parts of the SRAM (Q17), in the order of their offsets.
    pub(crate) fn memory_map(&self) -> Table {
        let rows = self.geometry.parts().map(|part| {
            vec![
                part.name.to_owned(),
                format!("{:#x}", part.offset),
                part.bytes.to_string(),
                part.writer.to_owned(),
            ]
        });
        Table::new(&["part", "offset", "bytes", "written by"], rows)
    }

    /// The command queue of each process, and what stands behind it. `inbox` says how many
    /// receives a process has posted, and how many messages and bytes wait for it.
    pub(crate) fn queue_table(&self, inbox: impl Fn(VniId) -> [u64; 3]) -> Table {
        let columns = [
            "VNI",
            "port",
            "queue",
            "commands",
            "under way",
            "segments",
            "faults",
            "completions",
            "receives",
            "messages",
            "staged bytes",
        ];
        let all = (0..).zip(&self.processes);
        let rows = all.filter_map(|(vni, process)| {
            let process = process.as_ref()?;
            let mut row = vec![
                vni.to_string(),
                process.port.0.to_string(),
                state(process).to_owned(),
                process.queue.head.to_string(),
                process.operations.count().to_string(),
                process.segments.count().to_string(),
                process.faults.count().to_string(),
                process.host_area.completions.waiting().to_string(),
            ];
            row.extend(inbox(VniId(vni)).map(|count| count.to_string()));
            Some(row)
        });
        Table::new(&columns, rows)
    }

    /// What the core knows of each process, by VNI.
    pub(crate) fn vni_reports<H: Host>(&self, host: &H) -> Vec<VniReport> {
        let all = (0..).zip(&self.processes);
        let reports = all.filter_map(|(vni, process)| {
            let process = process.as_ref()?;
            let queue = &process.queue;
            let (completions, notifications) = process.host_area.unread(host, queue.window);
            Some(VniReport {
                vni,
                port: process.port.0,
                pid: process.pid,
                queue: state(process),
                commands: queue.head,
                posted: queue.posted(host),
                operations: process.operations.count().into(),
                bytes_sent: process.bytes_sent,
                bytes_received: process.bytes_received,
                completions,
                notifications,
                faults: process.faults.count().into(),
                requests: process.requests_held() as u64,
                ..VniReport::default()
            })
        });
        reports.collect()
    }
}

/// What a command queue does.
fn state(process: &Process) -> &'static str {
    let queue = &process.queue;
    match (queue.failed, queue.stalled, queue.attention) {
        (Some(_), ..) => "failed",
        (None, true, _) => "stalled",
        (None, false, Attention::Active) => "active",
        (None, false, Attention::Idle(_)) => "idle",
        (None, false, Attention::Asleep) => "asleep",
    }
}
