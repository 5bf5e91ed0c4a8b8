//! What must hold of a NIC as such: between two calls, when nothing is under way, and at the end.

use std::collections::BTreeSet;

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::page_table::LOCKS;
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_nic::TableKind;

use super::Node;
use crate::common::Phase;
use crate::machine::memory::Owner;

/// Budgets of which a NIC has used what processes have, when nothing is under way: nothing at all
/// unless a workload says otherwise.
const CHECKED: [&str; 18] = [
    "receives_of_process",
    "messages_of_process",
    "staged_bytes_of_process",
    "staged_bytes_of_peer",
    "envelopes_of_peer",
    "probes_of_process",
    "groups_of_process",
    "joins_of_peer",
    "bytes_of_group",
    "collectives_of_member",
    "multicasts_of_member",
    "group_frames_of_peer",
    "datagram_buffers",
    "names_of_process",
    "names_of_node",
    "lookups_of_process",
    "verbs_queue_pairs",
    "verbs_completion_queues",
];

impl Node {
    /// Between two calls a NIC holds no page but those of frames that the wire keeps, and bounce
    /// memory for its windows only.
    pub(super) fn check_holdings(&self) {
        let (Some(nic), Some(machine)) = (&self.nic, &self.machine) else {
            return;
        };
        let number = self.incarnation.node;
        let limits = &self.common.settings.limits;
        let frames = limits.window as usize * self.common.settings.options.nodes;
        let counters = nic.counters();
        let held = counters.frames_held as usize;
        assert!(
            held <= frames,
            "node {number}: {held} frames wait for pages, and {frames} fit into its windows"
        );
        let bytes = counters.bounce_bytes;
        assert!(
            bytes <= (held * PAGE_SIZE) as u64,
            "node {number}: {bytes} bytes of bounce memory for {held} frames"
        );
        if !nic.keeps_frames() {
            let frames = machine.geometry.frames as u32;
            let locks = machine.geometry.lock_word(0)..machine.geometry.lock_word(frames);
            let locked = machine
                .sram
                .first_set(locks.clone(), u64::from(LOCKS) << 32 | u64::from(LOCKS));
            let frame = locked.map(|at| (at - locks.start) / 4);
            assert_eq!(
                frame, None,
                "node {number}: a frame from there stays locked"
            );
        }
    }

    /// What its NIC keeps of groups, of messages and datagrams beside what processes have posted,
    /// and of names beside those that processes have, or does not know; `None` if there is nothing.
    pub(crate) fn left(&self) -> Option<String> {
        let nic = self.nic.as_ref().filter(|_| self.is_up)?;
        let number = self.incarnation.node;
        let names: BTreeSet<_> = self
            .workloads
            .oracles()
            .flat_map(|oracle| oracle.names())
            .collect();
        let known: BTreeSet<_> = nic.table(TableKind::Names).rows.into_iter().collect();
        let wrong: Vec<_> = names.symmetric_difference(&known).collect();
        if !wrong.is_empty() {
            return Some(format!(
                "node {number}: names: it does not know, or should not: {wrong:?}"
            ));
        }
        let had = |name: &str| {
            let oracles = self.workloads.oracles();
            let had = oracles.filter_map(|oracle| oracle.budget(number, name));
            had.max().unwrap_or(0)
        };
        let budgets = nic.budgets().into_iter();
        let mut left = budgets.filter(|budget| {
            let expected = match budget.name {
                // Ports of the driver core have some until they are closed.
                "datagram_buffers" if self.uses_ports() => budget.used,
                name if CHECKED.contains(&name) => had(name),
                _ => budget.used,
            };
            budget.used != expected
        });
        let budget = left.next()?;
        let (posted, buffers) = (had("receives_of_process"), had("datagram_buffers"));
        Some(format!(
            "node {number}: {budget:?}, and processes have posted {posted}, and buffers {buffers}"
        ))
    }

    /// Modules and processes of this node may have datagram ports.
    fn uses_ports(&self) -> bool {
        self.common.settings.engine && self.common.phase() != Phase::Exit
    }

    /// Nothing runs any more: nothing may be left.
    pub(crate) fn audit(&self) {
        let (Some(nic), Some(machine)) = (&self.nic, &self.machine) else {
            return;
        };
        let number = self.incarnation.node;
        let counters = nic.counters();
        // The driver itself stays a process of its NIC.
        let engine = machine.memory.frames_of(Owner::Engine);
        let drivers = u64::from(engine > 0);
        assert_eq!(
            engine,
            drivers as usize * HOST_PAGES,
            "node {number}: frames of datagrams are left"
        );
        let left = [
            ("processes", counters.processes - drivers),
            ("segments", counters.segments),
            ("operations", counters.operations),
            ("parked imports", counters.parked_imports),
            ("page faults", counters.faults_pending),
            ("frames of peers", counters.frames_held),
        ];
        for (what, count) in left {
            assert_eq!(count, 0, "node {number}: the NIC keeps {count} {what}");
        }
        if let Some(left) = self.left() {
            panic!("{left}");
        }
        let settings = &self.common.settings;
        let resent = match settings.options.lossless {
            true => counters.frames_resent,
            false => 0,
        };
        // Some workers issue some; a reset of the NIC forgets those before it.
        let by_workers: u64 = self
            .workloads
            .oracles()
            .map(|it| it.malformed(number))
            .sum();
        let malformed = counters.malformed_commands;
        let malformed = malformed.saturating_sub(by_workers);
        let wrong = [
            ("bytes of bounce memory", counters.bounce_bytes),
            ("malformed commands", malformed),
            ("malformed frames", counters.malformed_frames),
            ("frames sent again on a lossless wire", resent),
        ];
        for (what, count) in wrong {
            assert_eq!(count, 0, "node {number}: {count} {what}");
        }
        let frames = 0..machine.geometry.frames as u32;
        let mappings = frames.flat_map(|frame| machine.geometry.mappings(frame));
        for (frame, mapping) in mappings.map(|it| (machine.geometry.frame(it).unwrap_or(it), it)) {
            let tag = machine.geometry.vpn_word(mapping);
            let tag = machine.sram.load_u64(tag, Ordering::Relaxed);
            assert_eq!(tag, 0, "node {number}: frame {frame} is still mapped");
        }
        let spaces = machine.kernel.spaces();
        assert_eq!(spaces, 0, "node {number}: memory of a process is left");
        let (free, frames) = (machine.memory.free_frames(), machine.geometry.frames);
        let free = (free + engine) as u64;
        assert_eq!(free, frames, "node {number}: frames are lost");
    }
}
