//! How operations go on and end, and what ends with a process, a segment or a peer.

use qnic_abi::command::Opcode;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{command_offset, AWAKE, COMMAND_ENTRIES};
use qnic_abi::wire::{FrameHeader, FrameKind};
use qnic_abi::{Port, SegmentId, SharedMemory, Status, VniId};

use crate::bounce::PageWork;
use crate::env::Host;
use crate::event::Pending;
use crate::fault::{Fault, Need, Waiter};
use crate::nic::Nic;
use crate::operation::{Next, Notice, Operation, OperationId, OperationTable};
use crate::process::{CommandQueue, Completion};
use crate::read::ReplyJob;
use crate::segment::PageKey;
use crate::transport::{header, PeerIndex};

impl Nic {
    /// The operation of that name, if it still runs.
    pub(crate) fn operation(&mut self, id: OperationId) -> Option<&mut Operation> {
        self.process(id.vni())?.operations.find(id)
    }

    /// The operation of that name, if it still runs and that peer is its other end.
    pub(crate) fn operation_at(
        &mut self,
        id: OperationId,
        peer: PeerIndex,
    ) -> Option<&mut Operation> {
        self.operation(id)
            .filter(|operation| operation.peer == peer)
    }

    /// [`Nic::reconsider`] for an operation that may have ended.
    pub(crate) fn reconsider_named<H: Host>(&mut self, host: &H, id: Option<OperationId>) {
        if let Some(id) = id.filter(|id| self.operation(*id).is_some()) {
            self.reconsider(host, id.vni(), id.slot());
        }
    }

    /// Lets an operation go on after anything about it has changed.
    pub(crate) fn reconsider<H: Host>(&mut self, host: &H, vni: VniId, slot: u8) {
        let Some(process) = self.processes[usize::from(vni.0)].as_deref_mut() else {
            return;
        };
        let operation = process.operations.get(slot);
        let first =
            operation.notice == Notice::Pending && process.streams.is_first(operation.stream);
        match operation.next(&self.config.limits, first) {
            Next::Send => {
                process.operations.set_ready(slot, true);
                self.schedule_process(vni);
            }
            Next::Wait => process.operations.set_ready(slot, false),
            Next::Finish(status) => self.finish(host, vni, slot, status),
        }
    }

    /// Gives an operation up.
    pub(crate) fn fail_operation<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        slot: u8,
        status: Status,
    ) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let operation = process.operations.get_mut(slot);
        operation.fail(status);
        let asked = operation.requested.len() as u32;
        let peer = operation.peer;
        operation.requested.clear();
        if matches!(status, Status::Aborted | Status::PeerGone) {
            self.counters.aborted += 1;
        }
        self.reconsider(host, vni, slot);
        if asked > 0 {
            self.reads_answered(host, peer, asked);
        }
    }

    fn finish<H: Host>(&mut self, host: &H, vni: VniId, slot: u8, status: Status) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let operation = process.operations.get(slot);
        let (number, order, stream) = (operation.number, operation.order, operation.stream);
        let opcode = operation.command.opcode;
        process.operations.release(slot);
        if status != Status::Ok {
            process
                .host_area
                .record_error(host.memory(), number, status);
            process.changed = true;
            process.publish = true;
        }
        let next = match opcode {
            Opcode::Write => {
                process.publish |= process.writes.end(order);
                process.streams.settle(stream)
            }
            Opcode::Read | Opcode::Atomic => {
                process.publish |= process.reads.end(order);
                None
            }
        };
        let stalled = process.queue.stalled;
        self.touch(vni);
        if stalled {
            self.heat(vni, None);
        }
        if let Some(next) = next {
            self.reconsider(host, vni, next);
        }
    }

    /// Puts a transfer behind a page fault; tells the driver unless it knows.
    pub(crate) fn wait_for_page(&mut self, vni: VniId, need: Need, waiter: Waiter) {
        let limit = self.config.limits.faults;
        let Some(process) = self.process(vni) else {
            return;
        };
        if process.faults.wait(need, waiter, limit) {
            self.events.push(Pending::PageFault(vni, need));
        }
    }

    /// The driver has answered a fault. Only its first page may have failed.
    pub(crate) fn fault_done<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        address: u64,
        status: Status,
    ) {
        let fault = self.process(vni).and_then(|p| p.faults.answer(address));
        if let Some(fault) = fault {
            self.release(host, vni, fault, status);
        }
    }

    /// Lets everybody try again who waits for a fault, or gives them up who wait
    /// for its first page, when that has failed.
    fn release<H: Host>(&mut self, host: &H, vni: VniId, fault: Fault, status: Status) {
        let reason = match status {
            // The owner went away before this NIC was told.
            Status::Ok | Status::Aborted | Status::NoSuchSegment => status,
            _ => Status::PageUnavailable,
        };
        for (page, waiter) in fault.waiters {
            let failed = (reason != Status::Ok && page == fault.need.page).then_some(reason);
            self.counters.restarts += u64::from(failed.is_none());
            match waiter {
                Waiter::Local(id) => self.restart(host, id, failed),
                Waiter::Bounced(bounced) => self.retry_bounced(host, bounced, failed),
                Waiter::Atomic(job) => self.retry_atomic(host, job, failed),
                Waiter::Reply(job) => match (failed, self.process(vni)) {
                    (None, Some(process)) => {
                        process.replies.push_back(job);
                        self.schedule_process(vni);
                    }
                    (status, _) => self.refuse_read(&job, status.unwrap_or(Status::NoSuchPort)),
                },
            }
        }
    }

    /// Lets an operation go on that has waited for a page of its own.
    fn restart<H: Host>(&mut self, host: &H, id: OperationId, failed: Option<Status>) {
        if let Some(operation) = self.operation(id) {
            operation.faulted = false;
            match failed {
                Some(reason) => self.fail_operation(host, id.vni(), id.slot(), reason),
                None => self.reconsider(host, id.vni(), id.slot()),
            }
        }
    }

    /// Lets go of what a peer has sent and waits here for pages: the conversation
    /// that it came in has ended.
    pub(crate) fn forget_waiting<H: Host>(&mut self, host: &H, index: PeerIndex) {
        for place in 0..self.processes.len() {
            let process = self.processes[place].as_deref_mut();
            let taken = process.map(|process| process.faults.take_waiters_of(index));
            for waiter in taken.into_iter().flatten() {
                if let Waiter::Bounced(bounced) = waiter {
                    self.drop_bounced(host, &bounced);
                }
            }
        }
    }

    /// Revokes a segment: no page is touched for it any more (N2).
    pub(crate) fn unexport<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        id: SegmentId,
    ) -> Result<(), Status> {
        let process = self.process(vni).ok_or(Status::NoSuchVni)?;
        let segment = process.segments.remove(id).ok_or(Status::NoSuchSegment)?;
        for slot in process.operations.active() {
            let Some(process) = self.process(vni) else {
                break;
            };
            let operation = process.operations.get(slot);
            let command = &operation.command;
            let uses = command.has_local() && command.local.segment == id;
            if uses && operation.id != OperationId::default() && operation.failure.is_none() {
                self.fail_operation(host, vni, slot, Status::Aborted);
            }
        }
        // Who waits for one of its pages tries again and is refused.
        if segment.page_key == PageKey::Physical {
            return Ok(());
        }
        // All of them are taken out first: who may still use the range under another
        // name waits again, in a new fault over it.
        let mut faults = Vec::new();
        if let Some(process) = self.process(vni) {
            while let Some(fault) = process.faults.forget(segment.address, segment.end()) {
                faults.push(fault);
            }
        }
        for fault in &faults {
            let gone = Pending::PageFault(vni, fault.need);
            self.events.retain(|event| *event != gone);
        }
        for fault in faults {
            self.release(host, vni, fault, Status::Ok);
        }
        Ok(())
    }

    /// Ends a process: nothing of it is touched any more (N8, X9).
    pub(crate) fn end_process<H: Host>(&mut self, host: &H, vni: VniId) -> Result<(), Status> {
        let slot = self.processes.get_mut(usize::from(vni.0));
        let mut process = slot.and_then(Option::take).ok_or(Status::NoSuchVni)?;
        let port = process.port;
        self.ports[usize::from(port.0)] = 0;
        self.forget_vni(vni);
        self.imports.abort(vni, &mut self.replies);
        let window = self.geometry.window_offset(vni);
        host.sram().store_u64(window + AWAKE, 0, Ordering::Release);
        self.drop_operations(host, &mut process.operations);
        for waiter in process.faults.take_waiters(|_| true) {
            match waiter {
                Waiter::Bounced(bounced) if bounced.work == PageWork::Write => {
                    self.refuse_bounced(&bounced, Status::PeerGone);
                }
                Waiter::Bounced(bounced) => self.drop_bounced(host, &bounced),
                Waiter::Local(_) | Waiter::Reply(_) | Waiter::Atomic(_) => {}
            }
        }
        for index in self.peers.all() {
            let peer = &mut self.peers[index];
            peer.receive.forget_notices(vni);
            peer.blocked_replies.retain(|(owner, _)| *owner != vni);
            if peer.node == self.config.node {
                self.abort_to(host, index, Some(port));
            } else if peer.session.is_known() {
                let mut gone = header(FrameKind::Gone);
                gone.source_port = port.0.into();
                self.peers.answer(index, gone);
            }
        }
        Ok(())
    }

    fn forget_vni(&mut self, vni: VniId) {
        self.hot.retain(|other| *other != vni);
        self.scheduled.retain(|other| *other != vni);
        self.touched.retain(|other| *other != vni);
        self.events.retain(|event| event.vni() != vni);
    }

    /// Drops operations without a word to their process.
    fn drop_operations<H: Host>(&mut self, host: &H, operations: &mut OperationTable) {
        self.counters.aborted += u64::from(operations.count());
        for slot in operations.active() {
            let operation = operations.get_mut(slot);
            let (asked, peer) = (operation.requested.len() as u32, operation.peer);
            operations.release(slot);
            if asked > 0 {
                self.reads_answered(host, peer, asked);
            }
        }
    }

    /// Starts the command queue of a process again.
    pub(crate) fn reset_queue<H: Host>(&mut self, host: &H, vni: VniId) -> Result<(), Status> {
        let window = self.geometry.window_offset(vni);
        let process = self.process(vni).ok_or(Status::NoSuchVni)?;
        let mut operations = std::mem::replace(&mut process.operations, OperationTable::new());
        process.queue = CommandQueue::new(window);
        process.writes = Completion::default();
        process.reads = Completion::default();
        process.streams.clear();
        process.publish = false;
        process.host_area.restart(host.memory());
        self.hot.retain(|other| *other != vni);
        self.events
            .retain(|event| !matches!(event, Pending::QueueFailed(failed, _) if *failed == vni));
        let sram = host.sram();
        for entry in 0..COMMAND_ENTRIES as u64 {
            sram.store_u64(window + command_offset(entry), 0, Ordering::Relaxed);
        }
        sram.store_u64(window + AWAKE, 0, Ordering::Release);
        self.drop_operations(host, &mut operations);
        let taken = self.process(vni).map(|process| {
            let faults = &mut process.faults;
            faults.take_waiters(|waiter| match waiter {
                Waiter::Local(_) => true,
                Waiter::Reply(_) | Waiter::Atomic(_) => false,
                Waiter::Bounced(bounced) => bounced.work == PageWork::Reply,
            })
        });
        for waiter in taken.into_iter().flatten() {
            if let Waiter::Bounced(bounced) = waiter {
                self.drop_bounced(host, &bounced);
            }
        }
        Ok(())
    }

    /// Gives up all operations whose other end is that peer, or one process there.
    pub(crate) fn abort_to<H: Host>(&mut self, host: &H, index: PeerIndex, port: Option<Port>) {
        for place in 0..self.processes.len() {
            let vni = VniId(place as u16);
            let Some(process) = self.process(vni) else {
                continue;
            };
            for slot in process.operations.active() {
                let Some(process) = self.process(vni) else {
                    break;
                };
                let operation = process.operations.get_mut(slot);
                let concerned = operation.id != OperationId::default()
                    && operation.peer == index
                    && port.is_none_or(|port| operation.command.remote.port == port);
                if !concerned {
                    continue;
                }
                let status = match port {
                    None if operation.sent == 0 => Status::NoSuchNode,
                    _ => Status::PeerGone,
                };
                if port.is_none() {
                    // No answer will come.
                    operation.in_flight = 0;
                    operation.requested.clear();
                }
                if operation.failure.is_none() || port.is_none() {
                    self.fail_operation(host, vni, slot, status);
                }
            }
        }
    }

    /// A process of a peer has ended.
    pub(crate) fn peer_process_gone<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
    ) {
        let port = Port(frame.source_port.get());
        let sequence = frame.sequence.get();
        // What another process of that port has sent since may have overtaken this.
        let ended = |job: &ReplyJob| job.is_of(index, port) && job.sequence() < sequence;
        for process in self.processes.iter_mut().flatten() {
            process.replies.retain(|job| !ended(job));
            process.faults.take_waiters(|waiter| match waiter {
                Waiter::Reply(job) => ended(job),
                Waiter::Atomic(job) => job.is_of(index, port) && job.sequence() < sequence,
                Waiter::Local(_) | Waiter::Bounced(_) => false,
            });
        }
        let replies = &mut self.peers[index].blocked_replies;
        replies.retain(|(_, job)| !ended(job));
        self.parked.forget_process(index, port, sequence);
        self.abort_to(host, index, Some(port));
    }
}
