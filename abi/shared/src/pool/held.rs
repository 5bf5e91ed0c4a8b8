//! The frames of a pool that one side owns.

use qnic_abi::pool::MAX_FRAMES;

const WORDS: usize = MAX_FRAMES / 64;

/// A set of frames, in private memory.
#[derive(Debug)]
pub(crate) struct Held {
    words: [u64; WORDS],
    count: usize,
}

impl Held {
    /// None of `count` frames, or all.
    pub(crate) fn new(count: usize, all: bool) -> Self {
        let mut held = Held {
            words: [0; WORDS],
            count,
        };
        if all {
            (0..count).for_each(|index| {
                held.insert(index);
            });
        }
        held
    }

    /// Adds a frame. Returns false if it is there already, or is no frame of the pool.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        if index >= self.count {
            return false;
        }
        let bit = 1 << (index % 64);
        let word = &mut self.words[index / 64];
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes a frame.
    pub(crate) fn remove(&mut self, index: usize) {
        self.words[index / 64] &= !(1 << (index % 64));
    }
}
