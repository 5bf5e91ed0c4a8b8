//! What a NIC's store into a host area says, checked at that instant.

use qnic_abi::host_area::{
    self, CompletionEntry, COUNTERS, ERROR_RECORDS, ERROR_RING, LANES, NOTIFICATION_RING, SIGNALS,
};
use qnic_abi::Status;

use super::transfer::{Kind, Op, Plan};
use super::{RdmaOracle, FENCE};
use crate::expected_bytes::difference;

/// End of the completion counters.
const COUNTERS_END: usize = COUNTERS + LANES * 16;

impl RdmaOracle {
    /// A NIC has stored a word of a host area.
    pub(super) fn word_stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        if self.streams {
            let failed = offset == host_area::ERRORS && value != 0;
            assert!(!failed, "a write of the stream fails");
            return;
        }
        let alive = self.processes[slot].watched.is_alive();
        if !alive || value == 0 {
            return;
        }
        let watched = &mut self.processes[slot].watched;
        for entry in watched.completions(offset, value) {
            self.told(slot, &entry);
        }
        match offset {
            host_area::ERRORS => self.errors(slot, value),
            COUNTERS..COUNTERS_END => {
                let (lane, word) = ((offset - COUNTERS) / 16, (offset - COUNTERS) % 16);
                self.complete(slot, lane, (value, now), word == 0);
            }
            SIGNALS..NOTIFICATION_RING => {
                self.signalled(slot, ((offset - SIGNALS) / 8) as u32, value)
            }
            _ => {}
        }
    }

    /// A transfer tells that it has ended, whatever those before it do (N12).
    fn told(&mut self, slot: usize, entry: &CompletionEntry) {
        let handle = entry.handle.get();
        let status = Status::try_from(entry.status.get()).expect("a known status");
        if handle & FENCE != 0 {
            let id = handle & !FENCE;
            let waited = self.processes[slot].fences.remove(&id);
            assert!(
                waited,
                "process {slot}: the fence of {id} is told, and does not wait"
            );
            assert_eq!(status, Status::Ok, "process {slot}: the fence of {id}");
            self.checked.fences += 1;
            return;
        }
        let ops = &mut self.processes[slot].ops;
        let op = ops
            .iter_mut()
            .find(|op| op.plan.id == handle && op.plan.tells);
        let Some(op) = op else {
            panic!("process {slot}: {handle} ends ({status}) but is not under way");
        };
        let before = op.told.replace((status, entry.tag.get()));
        assert_eq!(before, None, "process {slot}: {handle} ends twice");
        let (target, incarnation) = (op.plan.target, op.incarnation);
        let watched = &self.processes[target].watched;
        let there = watched.incarnation == incarnation && watched.is_alive();
        let ops = &self.processes[slot].ops;
        let op = ops.iter().find(|op| op.plan.id == handle);
        let delivered = op.is_none_or(|op| self.is_delivered(slot, op));
        assert!(
            status != Status::Ok || !there || delivered,
            "process {slot}: told, but not in memory: {op:?}"
        );
        self.checked.told += 1;
    }

    fn errors(&mut self, slot: usize, count: u64) {
        while self.processes[slot].errors < count {
            let record = self.processes[slot].errors as usize % ERROR_RECORDS;
            let bytes: [u8; 16] = self.processes[slot].watched.load(ERROR_RING + record * 16);
            let [command, status] = zerocopy::transmute!(bytes);
            let (command, status) = (u64::from_le(command), u64::from_le(status));
            let lane = (status >> 32) as usize;
            let status = Status::try_from(status as u32).ok();
            let status = status.expect("an error record has a status");
            let process = &mut self.processes[slot];
            process.errors += 1;
            let op = process.ops.iter_mut().find(|op| op.command == command);
            let Some(op) = op else {
                panic!("process {slot}: command {command} fails ({status}) but is not under way");
            };
            assert_eq!(lane, op.plan.target, "process {slot}: lane of {command}");
            let before = op.failed.replace(status);
            assert_eq!(
                before, None,
                "process {slot}: command {command} fails twice"
            );
            let reason = op.plan.wrong == Some(status) || op.disturbed || op.stale;
            assert!(
                reason,
                "process {slot}: command {command} fails for no reason: {status}; {op:?}"
            );
        }
    }

    fn complete(&mut self, slot: usize, target: usize, (count, now): (u64, u64), writes: bool) {
        let issued = self.processes[slot].issued.get(&target);
        let issued = issued.map_or(0, |issued| issued[usize::from(!writes)]);
        assert!(count <= issued, "process {slot}: more complete than issued");
        let ops = std::mem::take(&mut self.processes[slot].ops);
        let done =
            |op: &Op| op.plan.target == target && op.is_write() == writes && op.number < count;
        let (done, open): (Vec<_>, Vec<_>) = ops.into_iter().partition(done);
        self.processes[slot].ops = open;
        let node = |slot: usize| self.processes[slot].watched.node;
        let losses = self.routes.losses(node(slot), node(target));
        for op in done {
            let (waited, losses) = (now - op.issued, losses - op.losses);
            assert!(
                !op.must_succeed() || waited < self.longest_wait.with(losses),
                "process {slot}: nothing disturbed a transfer for {waited} ns, in which {losses} frames \
                 were lost: {op:?}"
            );
            self.complete_one(slot, &op);
        }
    }

    fn complete_one(&mut self, slot: usize, op: &Op) {
        let status = op.failed.unwrap_or(Status::Ok);
        let told = op.told.map(|(status, _)| status);
        assert_eq!(
            told,
            op.plan.tells.then_some(status),
            "process {slot}: what a transfer tells: {op:?}"
        );
        let target = op.plan.target;
        let watched = &self.processes[target].watched;
        let there = watched.incarnation == op.incarnation && watched.is_alive();
        if let Some(status) = op.failed {
            self.checked.failed += 1;
            self.drop_notification(slot, op);
            self.count_open(op);
            let refused = op.plan.wrong == Some(status) && !op.disturbed;
            if there && refused && op.is_write() {
                self.check_untouched(slot, op);
            }
        } else {
            assert!(
                op.plan.wrong.is_none() && !op.stale,
                "process {slot}: a transfer that must be refused succeeds: {op:?}"
            );
            self.checked.complete += 1;
            self.checked.bytes += op.plan.length;
            if op.is_write() && there {
                assert!(
                    self.is_delivered(slot, op),
                    "process {slot}: complete, but not in memory: {op:?}"
                );
            }
        }
        let process = &mut self.processes[slot];
        process.local_segment.release(op.plan.id);
        if let (Kind::Read { expected, local }, None) = (&op.plan.kind, op.failed) {
            let at = self.processes[slot].local + local;
            let got = self.peek(slot, at, op.plan.length).expect("it is alive");
            let wrong = difference(&got, expected);
            assert_eq!(wrong, None, "process {slot}: wrong byte read: {op:?}");
        }
        if let (Kind::Increment { record }, None, true) = (&op.plan.kind, op.failed, there) {
            let watched = &self.processes[slot].watched;
            let record = || u64::from_le_bytes(watched.load(host_area::result_offset(*record)));
            let found = op.told.map_or_else(record, |(_, value)| value);
            self.processes[target].count.found(found);
            self.checked.increments += 1;
        }
        if there {
            let section = &mut self.processes[target].sections[slot];
            if let (Kind::Write { data, .. }, None) = (&op.plan.kind, op.failed) {
                section.set(op.plan.start, data);
            }
            section.release(op.plan.id);
        }
    }

    /// An increment has failed, or its issuer has died: it may have been executed,
    /// unless it was refused.
    pub(super) fn count_open(&mut self, op: &Op) {
        let target = &mut self.processes[op.plan.target];
        let refused = op.failed.is_some() && !op.disturbed;
        if matches!(op.plan.kind, Kind::Increment { .. })
            && target.watched.incarnation == op.incarnation
            && !refused
        {
            target.count.ended_open();
        }
    }

    fn check_untouched(&self, slot: usize, op: &Op) {
        let Plan {
            target,
            start,
            length,
            ..
        } = op.plan;
        let expected = self.processes[target].sections[slot].get(start, length);
        if let Some(memory) = self.peek_section(target, slot, start, length) {
            let changed = difference(&memory, expected);
            assert_eq!(
                changed, None,
                "process {slot}: a refused write has changed memory: {op:?}"
            );
        }
    }

    pub(super) fn is_delivered(&self, slot: usize, op: &Op) -> bool {
        let Kind::Write { data, .. } = &op.plan.kind else {
            return true;
        };
        let memory = self.peek_section(op.plan.target, slot, op.plan.start, op.plan.length);
        memory.is_none_or(|memory| memory == *data)
    }
}
