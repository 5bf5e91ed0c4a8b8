//! Completion of operations (N12), writing counters back to the host area, and waking processes that wait
//! for it (N17).
//!
//! ```text
//!   finish ──┬─► its own completion, if it has a handle: at once
//!            ├─► an error record, if it failed
//!            └─► its lane ──► counters: when they are due
//! ```

use qnic_abi::host_area::{CompletionEntry, CompletionKind};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{Changes, SIGNAL_WAKE_REQUEST, WAKE_REQUEST};
use qnic_abi::{SharedMemory, Status, VniId};

use super::events::Pending;
use super::operation::Operation;
use super::order::Counter;
use super::process::Process;
use super::sampling::Unpublished;
use super::Core;
use crate::env::{Host, HostMemory};
use crate::ids::OperationId;

impl Process {
    /// Takes the sampled operation that its process can see by now, if there is one.
    #[cold]
    pub(super) fn take_published(&mut self) -> Option<Unpublished> {
        let Unpublished {
            lane,
            counter,
            order,
            ..
        } = self.unpublished?;
        let published = self.lanes.is_published(lane, counter, order);
        published.then(|| self.unpublished.take())?
    }

    /// Tells the end of an operation with a handle.
    #[cold]
    fn complete_transfer<H: Host>(
        &mut self,
        host: &H,
        handle: u64,
        status: Status,
        (value, detail): (u64, u64),
    ) {
        let entry = CompletionEntry {
            handle: handle.into(),
            tag: value.into(),
            immediate: detail.into(),
            status: status.code().into(),
            kind: CompletionKind::Transfer as u8,
            ..CompletionEntry::default()
        };
        let stored = self.host_area.complete(host, entry);
        self.note(Changes::ANYTHING, stored);
    }

    /// Writes completions back that are due; all if the process asked for it, or if nothing else
    /// runs that could write them back later.
    /// Returns true if a sampled operation may be visible by now.
    fn write_back<M: HostMemory>(&mut self, memory: &M) -> bool {
        let all = std::mem::take(&mut self.write_back) || self.operations.counted() == 0;
        let published = self
            .host_area
            .publish_completions(memory, &mut self.lanes, all);
        self.changes |= published;
        !published.is_empty() && (self.unpublished.is_some() || self.lanes.is_traced())
    }
}

impl Core {
    /// Ends an operation. An error is recorded for its process.
    #[inline]
    pub(crate) fn finish<H: Host>(&mut self, host: &H, id: OperationId, status: Status) {
        self.finish_with(host, id, status, (0, 0));
    }

    /// The same for one that has brought a value and a detail, which its completion tells.
    pub(crate) fn finish_with<H: Host>(
        &mut self,
        host: &H,
        id: OperationId,
        status: Status,
        result: (u64, u64),
    ) {
        let vni = id.vni();
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let Some(operation) = process.operations.end(id) else {
            return;
        };
        let Operation {
            number,
            counter,
            lane,
            order,
            handle,
            sampled,
            ..
        } = *operation;
        if handle != 0 {
            process.complete_transfer(host, handle, status, result);
        }
        if status != Status::Ok && counter != Counter::Own {
            process
                .host_area
                .record_error(host.memory(), (number, lane), status);
            process.changes = Changes::ANYTHING;
            process.write_back = true;
        }
        process.lanes.end(lane, counter, order);
        let stalled = process.queue.stalled;
        if !std::mem::replace(&mut process.dirty, true) {
            self.dirty.push(vni);
        }
        if stalled {
            self.activate(vni, None);
        }
        if sampled {
            self.sample_ended(host, id, (lane, counter, order), status);
        }
    }

    /// Notes that the completions of a process are to be written back.
    pub(crate) fn mark_dirty(&mut self, vni: VniId) {
        let process = self.process_mut(vni);
        if process.is_some_and(|process| !std::mem::replace(&mut process.dirty, true)) {
            self.dirty.push(vni);
        }
    }

    /// Returns true if there is something to write back.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Writes completions back that are due, then wakes processes that asked for it.
    #[inline]
    pub(crate) fn write_back_completions<H: Host>(&mut self, host: &H) -> bool {
        let dirty = !self.dirty.is_empty();
        if dirty {
            self.write_back_dirty(host);
        }
        dirty
    }

    fn write_back_dirty<H: Host>(&mut self, host: &H) {
        let mut changed = false;
        for index in 0..self.dirty.len() {
            let vni = self.dirty[index];
            let process = self.process(vni);
            if process.is_some_and(|process| process.host_area.completions.waiting() > 0) {
                self.flush_completions_of(host, vni);
            }
            if let Some(process) = self.process_mut(vni) {
                process.dirty = false;
                let sampled = process.write_back(host.memory());
                changed |= !process.changes.is_empty();
                if sampled {
                    self.sample_published(host, vni);
                }
            }
        }
        if changed {
            // Pairs with the process's fence between its wake request and its
            // last look at the host area.
            host.sram().fence();
            for index in 0..self.dirty.len() {
                self.offer_wake(host, self.dirty[index]);
            }
        }
        self.dirty.clear();
    }

    fn offer_wake<H: Host>(&mut self, host: &H, vni: VniId) {
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        let changes = std::mem::take(&mut process.changes);
        let signalled = match std::mem::take(&mut process.signalled) {
            true => Changes::ANYTHING,
            false => Changes::empty(),
        };
        let mut asked = false;
        let words = [(WAKE_REQUEST, changes), (SIGNAL_WAKE_REQUEST, signalled)];
        for ((word, changes), seen) in words.into_iter().zip(&mut process.wakes_seen) {
            if !changes.is_empty() {
                let word = process.queue.window + word;
                let request = host.sram().load_u64(word, Ordering::Acquire);
                if request != *seen && changes.answer(request) {
                    *seen = request;
                    asked = true;
                }
            }
        }
        if asked && !std::mem::replace(&mut process.wake_queued, true) {
            self.events.push(Pending::Wake(vni));
        }
    }
}
