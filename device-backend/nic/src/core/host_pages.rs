//! The pages of a host area.

use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::PAGE_SIZE;

use crate::env::HostMemory;

/// Where a host area lies in the memory of its node.
#[derive(Debug)]
pub(crate) struct Pages(pub(crate) [u64; HOST_PAGES]);

impl Pages {
    /// Stores a word with release.
    pub(crate) fn store<M: HostMemory>(&self, memory: &M, offset: usize, value: u64) {
        let page = self.0[offset / PAGE_SIZE];
        let _skipped = memory.store_u64(page + (offset % PAGE_SIZE) as u64, value);
    }

    /// Stores words side by side in one page, in no order among each other. A process that sees a
    /// word stored behind them sees them.
    pub(crate) fn store_all<M: HostMemory>(&self, memory: &M, offset: usize, words: &[u64]) {
        debug_assert!(offset % PAGE_SIZE + words.len() * 8 <= PAGE_SIZE);
        let page = self.0[offset / PAGE_SIZE];
        let _skipped = memory.store_words(page + (offset % PAGE_SIZE) as u64, words);
    }
}
