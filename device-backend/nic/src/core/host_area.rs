//! What the NIC tells a process through its host area ([`qnic_abi::host_area`]).
//!
//! The counts are in the NIC's own memory. Guest memory gets copies, which the NIC never reads. It
//! stores data before error records, those before their count, and that before the completion
//! counters.
//!
//! A store can fail only if the node's memory has shrunk since the process was registered. Then no
//! process can look there, and the store is skipped.

use qnic_abi::context::POOL_PAGES;
use qnic_abi::host_area::{
    self, result_offset, CompletionEntry, ErrorRecord, COUNTERS, DOORBELL_STATE, ERROR_RECORDS,
    ERROR_RING, HOST_PAGES, LANES, POOL,
};
use qnic_abi::window::Changes;
use qnic_abi::{Status, PAGE_SIZE};

use super::completion_queue::CompletionQueue;
use super::host_pages::Pages;
use super::lanes::Lanes;
use super::notification::Notifications;
use crate::env::{Host, HostMemory};

/// Host area of one process.
#[derive(Debug)]
pub(crate) struct HostArea {
    pages: Pages,
    notifications: Notifications,
    pub(super) completions: CompletionQueue,
    errors: u64,
    head: u64,
}

impl HostArea {
    /// An area in these pages, with its counters at 0.
    pub(crate) fn new<M: HostMemory>(memory: &M, pages: [u64; HOST_PAGES]) -> Result<Self, Status> {
        let usable =
            |page: &u64| page % PAGE_SIZE as u64 == 0 && memory.contains(*page, PAGE_SIZE as u64);
        if !pages.iter().all(usable) {
            return Err(Status::BadAddress);
        }
        let mut area = HostArea {
            pages: Pages(pages),
            notifications: Notifications::new(),
            completions: CompletionQueue::default(),
            errors: 0,
            head: 0,
        };
        area.restart(memory);
        Ok(area)
    }

    /// Sets the counters of the command queue back to 0; notifications stay.
    pub(crate) fn restart<M: HostMemory>(&mut self, memory: &M) {
        self.errors = 0;
        self.head = 0;
        self.pages.store_all(memory, COUNTERS, &[0; 2 * LANES]);
        for offset in [host_area::HEAD, host_area::ERRORS, host_area::QUEUE_STATUS] {
            self.store(memory, offset, 0);
        }
    }

    fn store<M: HostMemory>(&self, memory: &M, offset: usize, value: u64) {
        self.pages.store(memory, offset, value);
    }

    /// The pages of the buffer pool (Q7).
    pub(crate) fn pool(&self) -> [u64; POOL_PAGES] {
        std::array::from_fn(|page| self.pages.0[POOL / PAGE_SIZE + page])
    }

    /// Stores a doorbell of a context: the word with its state last.
    pub(super) fn ring_context<M: HostMemory>(
        &self,
        memory: &M,
        offset: usize,
        entry: CompletionEntry,
    ) {
        let words: [u64; size_of::<CompletionEntry>() / 8] = zerocopy::transmute!(entry);
        let state = DOORBELL_STATE / 8;
        let others = (0..words.len()).filter(|index| *index != state);
        // The state last, with release, as all stores to the host area: the process's acquire
        // load of it sees the other words, and the data.
        for index in others.chain([state]) {
            self.store(memory, offset + index * 8, u64::from_le(words[index]));
        }
    }

    /// Delivers a notification of the process with the window at this offset.
    pub(crate) fn signal<H: Host>(&mut self, host: &H, window: usize, notification: u32) {
        self.notifications
            .signal(host, &self.pages, window, notification);
    }

    /// How many completions and notifications the process has not read, by the heads in its window at
    /// this offset: at most as many as their queues have entries, and the completions that wait.
    pub(super) fn unread<H: Host>(&self, host: &H, window: usize) -> (u64, u64) {
        let completions = self.completions.unread(host, window);
        (completions, self.notifications.unread(host, window))
    }

    /// Puts a completion into the queue, or lets it wait for room. Returns true if it is in the
    /// queue.
    pub(super) fn complete<H: Host>(&mut self, host: &H, entry: CompletionEntry) -> bool {
        self.completions.push(host, &self.pages, entry)
    }

    /// Puts completions that wait into the queue, as far as it has room. Returns true if there
    /// were any.
    pub(super) fn flush_completions<H: Host>(&mut self, host: &H, window: usize) -> bool {
        self.completions.flush(host, &self.pages, window)
    }

    /// Stores what an operation brings: value and detail.
    pub(crate) fn store_result<M: HostMemory>(&self, memory: &M, record: u16, result: [u64; 2]) {
        let offset = result_offset(usize::from(record));
        self.store(memory, offset, result[0]);
        self.store(memory, offset + 8, result[1]);
    }

    /// Reports a command that failed: its number, and its lane.
    #[cold]
    pub(crate) fn record_error<M: HostMemory>(
        &mut self,
        memory: &M,
        (command, lane): (u64, u8),
        status: Status,
    ) {
        let entry = self.errors as usize % ERROR_RECORDS;
        let offset = ERROR_RING + entry * size_of::<ErrorRecord>();
        self.store(memory, offset, command);
        let reason = u64::from(status.code()) | u64::from(lane) << 32;
        self.store(memory, offset + 8, reason);
        self.errors += 1;
        self.store(memory, host_area::ERRORS, self.errors);
    }

    /// Reports that the command queue has stopped.
    pub(crate) fn fail_queue<M: HostMemory>(&mut self, memory: &M, status: Status) {
        self.store(memory, host_area::QUEUE_STATUS, u64::from(status.code()));
    }

    /// Commands that the process does not know yet to have been read.
    pub(crate) fn unpublished_head(&self, head: u64) -> u64 {
        head - self.head
    }

    /// Publishes how many commands were read. Returns true if that has changed.
    pub(crate) fn publish_head<M: HostMemory>(&mut self, memory: &M, head: u64) -> bool {
        let changed = self.head != head;
        if changed {
            self.head = head;
            self.store(memory, host_area::HEAD, head);
        }
        changed
    }

    /// Publishes the completion counters that are due; `all`: those that have changed. Returns
    /// which.
    pub(super) fn publish_completions<M: HostMemory>(
        &self,
        memory: &M,
        lanes: &mut Lanes,
        all: bool,
    ) -> Changes {
        lanes.publish(memory, &self.pages, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;
    use zerocopy::FromBytes;

    fn word(memory: &Memory, address: u64) -> u64 {
        let mut bytes = [0; 8];
        memory.read(address, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// Its first pages, and zero for the others.
    fn area_of(first: [u64; 6]) -> [u64; HOST_PAGES] {
        std::array::from_fn(|page| first.get(page).copied().unwrap_or(0))
    }

    #[test]
    fn areas_outside_of_memory_are_refused() {
        let memory = Memory::new(4 * PAGE_SIZE);
        for pages in [
            area_of([0, 0x1000, 0x2000, 0, 0x1000, 0x4000]),
            area_of([1, 0x1000, 0x2000, 0, 0x1000, 0x3000]),
            [u64::MAX - 4095; HOST_PAGES],
        ] {
            let refused = HostArea::new(&memory, pages);
            assert_eq!(refused.err(), Some(Status::BadAddress));
        }
    }

    #[test]
    fn every_word_stands_where_the_abi_says() {
        let memory = Memory::new(HOST_PAGES * PAGE_SIZE);
        let place = |page: usize| ((HOST_PAGES - 1 - page) * PAGE_SIZE) as u64;
        let at = |offset: usize| place(offset / PAGE_SIZE) + (offset % PAGE_SIZE) as u64;
        let mut area = HostArea::new(&memory, std::array::from_fn(place)).unwrap();
        for command in 0..=ERROR_RECORDS as u64 {
            area.record_error(&memory, (command, 7), Status::BadKey);
        }
        let mut bytes = [0; 16];
        memory.read(at(ERROR_RING), &mut bytes).unwrap();
        let record = ErrorRecord::read_from_bytes(&bytes).unwrap();
        assert_eq!(record.command.get(), ERROR_RECORDS as u64);
        assert_eq!(record.status.get(), Status::BadKey.code());
        assert_eq!(record.lane.get(), 7);
        assert_eq!(word(&memory, at(host_area::ERRORS)), 1025);
        area.store_result(&memory, 191, [7, 8]);
        assert_eq!(word(&memory, at(result_offset(191))), 7);
        assert_eq!(word(&memory, at(result_offset(191)) + 8), 8);
        assert!(area.publish_head(&memory, 3));
        assert!(!area.publish_head(&memory, 3));
        assert_eq!(word(&memory, at(host_area::HEAD)), 3);
        area.restart(&memory);
        assert_eq!(word(&memory, at(host_area::ERRORS)), 0);
    }
}
