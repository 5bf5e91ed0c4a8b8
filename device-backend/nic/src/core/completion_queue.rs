//! The completion queue of a process ([`qnic_abi::host_area`]), at the NIC.
//!
//! ```text
//!   protocol ──► complete ── room ──────► ring in the host area ──► process
//!                   │                        ▲                        │ head, in its window
//!                   └─ none ─► waiting ──────┘ ◄──────────────────────┘
//! ```
//! # Invariants
//! - Completions are stored in the order in which they came; none is dropped, and none is
//!   overwritten before the process has said that it has read it.
//! - The process writes the head. A head beyond the tail, or too far behind it, makes no room: it
//!   costs that process its own completions, and no other process anything.
//! - What waits belongs to commands that were accepted. While [`Limits::completions`] or more
//!   wait, no command of the process is read, and no message is given to its receives; so
//!   what waits is bounded by that and by what was accepted before.
//!
//! [`Limits::completions`]: crate::Limits::completions

use std::collections::VecDeque;

use qnic_abi::host_area::{
    completion_offset, CompletionEntry, CompletionKind, COMPLETIONS_WAITING, COMPLETION_ENTRIES,
    COMPLETION_TAIL,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{Changes, COMPLETION_HEAD};
use qnic_abi::{SharedMemory, VniId};

use super::host_pages::Pages;
use super::Core;
use crate::env::{Host, HostMemory};

/// Words of an entry.
const ENTRY_WORDS: usize = size_of::<CompletionEntry>() / 8;

/// The completions of one process.
#[derive(Debug, Default)]
pub(crate) struct CompletionQueue {
    /// Entries ever stored.
    tail: u64,
    /// The head as it was when there seemed to be too little room: that word is the process's,
    /// and to look at it takes it away from the processor that runs the process.
    head: u64,
    waiting: VecDeque<CompletionEntry>,
    /// One of those that wait answers signal wake requests.
    signal_waits: bool,
    /// What the process was told of how many wait.
    told: u64,
}

impl CompletionQueue {
    /// How many wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many the process has not read, those included that wait. A head that is none is taken for
    /// one that is as far behind as can be.
    pub(super) fn unread<H: Host>(&self, host: &H, window: usize) -> u64 {
        // Relaxed: no entry is touched for it.
        let head = window + COMPLETION_HEAD;
        let head = host.sram().load_u64(head, Ordering::Relaxed);
        let stored = self.tail.wrapping_sub(head).min(COMPLETION_ENTRIES);
        stored + self.waiting.len() as u64
    }

    /// Stores what there is room for; says how many wait still. Returns true if any was stored.
    pub(super) fn flush<H: Host>(&mut self, host: &H, pages: &Pages, window: usize) -> bool {
        let mut stored = self.store(host, pages, window);
        while !self.waiting.is_empty() {
            let waiting = self.waiting.len() as u64;
            if self.told != waiting {
                self.told = waiting;
                pages.store(host.memory(), COMPLETIONS_WAITING, waiting);
            }
            // Pairs with the process's fence between its store of the head and its look at
            // the word above: either this sees the head, or the process rings.
            host.sram().fence();
            if !self.store(host, pages, window) {
                return stored;
            }
            stored = true;
        }
        if self.told != 0 {
            self.told = 0;
            pages.store(host.memory(), COMPLETIONS_WAITING, 0);
        }
        stored
    }

    /// Entries that may be stored, by the head that was seen last.
    fn room(&self) -> usize {
        let unread = self.tail.wrapping_sub(self.head);
        COMPLETION_ENTRIES.saturating_sub(unread) as usize
    }

    fn store<H: Host>(&mut self, host: &H, pages: &Pages, window: usize) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        if self.room() < self.waiting.len() {
            // Acquire: the process has read its entries before they are overwritten
            // (partner: its release store).
            let head = window + COMPLETION_HEAD;
            self.head = host.sram().load_u64(head, Ordering::Acquire);
        }
        let count = self.room().min(self.waiting.len());
        for entry in self.waiting.drain(..count) {
            store_entry(host.memory(), pages, self.tail, entry);
            self.tail += 1;
        }
        if count > 0 {
            pages.store(host.memory(), COMPLETION_TAIL, self.tail);
        }
        count > 0
    }

    /// Stores an entry at once, if none waits and there is room by the head that was seen last:
    /// the process, which may be spinning, need not wait for the poll to end. Otherwise the entry
    /// waits. Returns true if it was stored.
    pub(super) fn push<H: Host>(
        &mut self,
        host: &H,
        pages: &Pages,
        entry: CompletionEntry,
    ) -> bool {
        if !self.waiting.is_empty() || self.room() == 0 {
            self.waiting.push_back(entry);
            return false;
        }
        store_entry(host.memory(), pages, self.tail, entry);
        self.tail += 1;
        pages.store(host.memory(), COMPLETION_TAIL, self.tail);
        true
    }
}

fn store_entry<M: HostMemory>(memory: &M, pages: &Pages, number: u64, entry: CompletionEntry) {
    let words: [u64; ENTRY_WORDS] = zerocopy::transmute!(entry);
    pages.store_all(memory, completion_offset(number), &words.map(u64::from_le));
}

impl Core {
    /// Ends a command that tells of its end by an entry of the completion queue.
    #[inline(always)] // The entry is built where it is stored.
    pub(crate) fn complete<H: Host>(&mut self, host: &H, vni: VniId, entry: CompletionEntry) {
        self.sample_end(host, vni, &entry, false);
        if let Some(process) = self.process_mut(vni) {
            let stored = process.host_area.complete(host, entry);
            process.note(Changes::ANYTHING, stored);
            self.mark_dirty(vni);
        }
    }

    /// The same for a completion that also wakes a process which waits for what others do only
    /// ([`SIGNAL_WAKE_REQUEST`]).
    ///
    /// [`SIGNAL_WAKE_REQUEST`]: qnic_abi::window::SIGNAL_WAKE_REQUEST
    pub(crate) fn complete_signalled<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        entry: CompletionEntry,
    ) {
        self.complete(host, vni, entry);
        if let Some(process) = self.process_mut(vni) {
            let completions = &mut process.host_area.completions;
            // Without room, too: then the process is to make some.
            completions.signal_waits |= completions.waiting() > 0;
            process.changes = Changes::ANYTHING;
            process.signalled = true;
        }
    }

    /// Ends an operation of a context: stores its doorbell.
    pub(crate) fn ring_context<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        offset: usize,
        entry: CompletionEntry,
    ) {
        if entry.kind == CompletionKind::Receive as u8 {
            self.sample_end(host, vni, &entry, true);
        }
        if let Some(process) = self.process_mut(vni) {
            process.host_area.ring_context(host.memory(), offset, entry);
            process.changes = Changes::ANYTHING;
            self.mark_dirty(vni);
        }
    }

    /// Returns true if a process leaves so many completions unread that nothing more is begun
    /// for it.
    pub(crate) fn has_completion_backlog(&self, vni: VniId) -> bool {
        let limit = self.limits.completions;
        self.process(vni)
            .is_some_and(|process| process.has_completion_backlog(limit))
    }

    /// Stores completions that have waited for room. Returns true if there was room for any.
    #[inline]
    pub(crate) fn flush_completions<H: Host>(&mut self, host: &H) -> bool {
        !self.completions_waiting.is_empty() && self.flush_waiting(host)
    }

    #[cold]
    fn flush_waiting<H: Host>(&mut self, host: &H) -> bool {
        let mut stored = false;
        for vni in std::mem::take(&mut self.completions_waiting) {
            if self.flush_completions_of(host, vni) {
                stored = true;
                self.mark_dirty(vni);
            }
        }
        stored
    }

    /// Stores completions of a process that wait, as far as there is room. Lets its queue go on
    /// if that has stood still for them.
    pub(super) fn flush_completions_of<H: Host>(&mut self, host: &H, vni: VniId) -> bool {
        let limit = self.limits.completions;
        let Some(process) = self.process_mut(vni) else {
            return false;
        };
        if process.host_area.completions.waiting() == 0 {
            return false;
        }
        let had_backlog = process.has_completion_backlog(limit);
        let stored = process
            .host_area
            .flush_completions(host, process.queue.window);
        process.note(Changes::ANYTHING, stored);
        let completions = &mut process.host_area.completions;
        process.signalled |= stored && completions.signal_waits;
        completions.signal_waits &= completions.waiting() > 0;
        let relieved = had_backlog && !process.has_completion_backlog(limit);
        let waits = process.host_area.completions.waiting() > 0;
        if waits && !self.completions_waiting.contains(&vni) {
            self.completions_waiting.push(vni);
        }
        if relieved {
            self.activate(vni, None);
        }
        stored
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::host_area::HOST_PAGES;
    use qnic_abi::PAGE_SIZE;

    use super::*;
    use crate::testing::{Memory, SimHost, Sram};

    const WINDOW: usize = 0x1000;

    #[test]
    fn a_full_queue_keeps_the_order_and_a_lying_head_makes_no_room() {
        let host = SimHost::new(
            Sram::new(2 * PAGE_SIZE),
            Memory::new(HOST_PAGES * PAGE_SIZE),
        );
        let pages = Pages(std::array::from_fn(|page| (page * PAGE_SIZE) as u64));
        let mut queue = CompletionQueue::default();
        let head = |head: u64| {
            host.sram
                .store_u64(WINDOW + COMPLETION_HEAD, head, Ordering::Release);
        };
        let word = |offset: usize| host.memory.word(offset as u64);
        for handle in 0..600u64 {
            let entry = CompletionEntry {
                handle: handle.into(),
                ..CompletionEntry::default()
            };
            assert_eq!(queue.push(&host, &pages, entry), handle < 256);
        }
        assert!(!queue.flush(&host, &pages, WINDOW));
        assert_eq!(
            (word(COMPLETION_TAIL), word(COMPLETIONS_WAITING)),
            (256, 344)
        );
        for lie in [257, 1 << 40, u64::MAX] {
            head(lie);
            assert!(!queue.flush(&host, &pages, WINDOW));
        }
        head(10);
        assert!(queue.flush(&host, &pages, WINDOW));
        assert_eq!(word(COMPLETION_TAIL), 266);
        assert_eq!(word(completion_offset(256)), 256);
        assert_eq!(word(completion_offset(10)), 10, "unread");
        head(266);
        queue.flush(&host, &pages, WINDOW);
        head(522);
        queue.flush(&host, &pages, WINDOW);
        assert_eq!((word(COMPLETION_TAIL), word(COMPLETIONS_WAITING)), (600, 0));
        assert_eq!(word(completion_offset(599)), 599);
    }
}
