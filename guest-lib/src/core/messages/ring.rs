//! The process's side of the completion queue: entries in the host area, head in the window
//! (`qnic_abi::host_area`, "Completion queue").
//!
//! Written against [`SharedMemory`], so that loom runs it against the NIC's side.

use qnic_abi::host_area::{
    completion_offset, CompletionEntry, COMPLETIONS_WAITING, COMPLETION_ENTRIES, COMPLETION_TAIL,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::COMPLETION_HEAD;
use qnic_abi::SharedMemory;

/// Words of an entry.
const ENTRY_WORDS: usize = size_of::<CompletionEntry>() / 8;

/// Entries that are read before the NIC is told: the word and its fence cost more than an entry. A
/// full queue has more of them, so a process that has read a full queue tells the NIC.
const COMPLETION_HEAD_STEP: u64 = COMPLETION_ENTRIES / 8;

/// How far the process has read.
#[derive(Debug, Default)]
pub(crate) struct CompletionReader {
    head: u64,
    /// What the NIC knows of it.
    told: u64,
}

impl CompletionReader {
    /// Entries taken so far.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Entries ever put into the queue.
    ///
    /// Acquire: the entries stand before the tail, and what they tell of before them (partner:
    /// the NIC's release stores).
    pub(crate) fn tail<M: SharedMemory + ?Sized>(area: &M) -> u64 {
        area.load_u64(COMPLETION_TAIL, Ordering::Acquire)
    }

    /// Hands all entries that are there to `take`, oldest first. Returns true if the doorbell
    /// must be rung: completions wait for the room that this has made.
    pub(crate) fn drain<M: SharedMemory + ?Sized>(
        &mut self,
        window: &M,
        area: &M,
        mut take: impl FnMut(&CompletionEntry),
    ) -> bool {
        let tail = Self::tail(area);
        let count = tail.wrapping_sub(self.head).min(COMPLETION_ENTRIES);
        if count == 0 {
            return false;
        }
        for _ in 0..count {
            let mut words = [0u64; ENTRY_WORDS];
            area.read_words(completion_offset(self.head), &mut words);
            take(&zerocopy::transmute!(words.map(u64::to_le)));
            self.head = self.head.wrapping_add(1);
        }
        if self.head.wrapping_sub(self.told) < COMPLETION_HEAD_STEP {
            return false;
        }
        self.told = self.head;
        // Release: the entries are read before the NIC uses their places again (partner: the
        // NIC's acquire load).
        window.store_u64(COMPLETION_HEAD, self.head, Ordering::Release);
        // Partner: the NIC's fence between its store of the word below and its last look at
        // the head. Either the NIC sees the head, or this load sees that something waits.
        window.fence();
        area.load_u64(COMPLETIONS_WAITING, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::host_area::HOST_PAGES;
    use qnic_abi::PAGE_SIZE;
    use qnic_shared::region::SharedRegion;

    use super::*;

    /// However few entries a look finds, the NIC knows all but the last few to be read; and a
    /// queue that was full is told of at once.
    #[test]
    fn the_nic_is_told_in_steps() {
        let window = SharedRegion::anonymous(PAGE_SIZE).unwrap();
        let area = SharedRegion::anonymous(HOST_PAGES * PAGE_SIZE).unwrap();
        let mut reader = CompletionReader::default();
        let mut drain = |tail: u64| {
            area.store_u64(COMPLETION_TAIL, tail, Ordering::Release);
            let mut taken = 0;
            assert!(!reader.drain(&window, &area, |_| taken += 1));
            (taken, window.load_u64(COMPLETION_HEAD, Ordering::Acquire))
        };
        let mut told = 0;
        for tail in 1..=1000 {
            let (taken, head) = drain(tail);
            assert_eq!(taken, 1);
            assert!(head == told || head == tail, "{head} at {tail}");
            told = head;
            assert!(tail - told < COMPLETION_HEAD_STEP);
        }
        assert_eq!(told, 992);
        assert_eq!(drain(told + COMPLETION_ENTRIES), (248, 1248));
    }
}
