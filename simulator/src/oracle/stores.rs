//! What a NIC's store into a host area says, checked at that instant.

use qnic_abi::host_area::{self, ERROR_RECORDS, ERROR_RING, SIGNALS};
use qnic_abi::Status;

use super::transfer::{Kind, Op, Plan};
use super::{Oracle, View};
use crate::expected_bytes::difference;

impl Oracle {
    /// A NIC has stored a word of a host area.
    pub(crate) fn stored(&mut self, slot: usize, offset: usize, value: u64) {
        let alive = self.processes[slot].view.is_some();
        if !alive || value == 0 {
            return;
        }
        match offset {
            host_area::ERRORS => self.errors(slot, value),
            host_area::WRITES_DONE => self.complete(slot, value, true),
            host_area::READS_DONE => self.complete(slot, value, false),
            SIGNALS.. => self.signalled(slot, ((offset - SIGNALS) / 8) as u32, value),
            _ => {}
        }
    }

    fn errors(&mut self, slot: usize, count: u64) {
        let process = &mut self.processes[slot];
        let Some(View {
            machine,
            host_area: Some(frames),
            ..
        }) = &process.view
        else {
            panic!("process {slot}: an error before it is registered");
        };
        while process.errors < count {
            let record = ERROR_RING + process.errors as usize % ERROR_RECORDS * 16;
            let mut bytes = [0; 16];
            machine.memory.load(frames[0], record, &mut bytes);
            let [command, status] = zerocopy::transmute!(bytes);
            let (command, status) = (u64::from_le(command), u64::from_le(status));
            let status = u32::try_from(status)
                .ok()
                .and_then(|code| Status::try_from(code).ok());
            let status = status.expect("an error record has a status");
            process.errors += 1;
            let op = process.ops.iter_mut().find(|op| op.command == command);
            let Some(op) = op else {
                panic!("process {slot}: command {command} fails ({status}) but is not under way");
            };
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

    fn complete(&mut self, slot: usize, count: u64, writes: bool) {
        let issued = self.processes[slot].issued[usize::from(!writes)];
        assert!(count <= issued, "process {slot}: more complete than issued");
        let ops = std::mem::take(&mut self.processes[slot].ops);
        let done = |op: &Op| op.is_write() == writes && op.number < count;
        let (done, open): (Vec<_>, Vec<_>) = ops.into_iter().partition(done);
        self.processes[slot].ops = open;
        for op in done {
            self.complete_one(slot, &op);
        }
    }

    fn complete_one(&mut self, slot: usize, op: &Op) {
        let target = op.plan.target;
        let there = self.processes[target].incarnation == op.incarnation
            && self.processes[target].view.is_some();
        if let Some(status) = op.failed {
            self.report.failed += 1;
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
            self.report.complete += 1;
            self.report.bytes += op.plan.length;
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
            let found = self.result(slot, *record);
            self.processes[target].count.found(found);
            self.report.increments += 1;
        }
        if there {
            let section = &mut self.processes[target].sections[slot];
            if let (Kind::Write { data, .. }, None) = (&op.plan.kind, op.failed) {
                section.set(op.plan.start, data);
            }
            section.release(op.plan.id);
        }
    }

    /// The value in a result record of a process.
    fn result(&self, slot: usize, record: usize) -> u64 {
        let view = self.processes[slot].view.as_ref();
        let frames = view.and_then(|view| Some((view, view.host_area?)));
        let (view, frames) = frames.expect("it is alive");
        let mut bytes = [0; 8];
        let offset = host_area::result_offset(record);
        view.machine.memory.load(frames[0], offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// An increment has failed, or its issuer has died: it may have been executed,
    /// unless it was refused.
    pub(super) fn count_open(&mut self, op: &Op) {
        let target = &mut self.processes[op.plan.target];
        let refused = op.failed.is_some() && !op.disturbed;
        if matches!(op.plan.kind, Kind::Increment { .. })
            && target.incarnation == op.incarnation
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
