//! Copies of many words of memory that other processes write at the same time (unsafe shell).
//!
//! # Invariants
//! - An aligned word of eight bytes is read or written as a whole, like a relaxed atomic.
//! - No reference to the bytes of shared memory is formed.
//!
//! Compilers turn relaxed atomics into a loop of words. In an emulated guest each of its
//! steps costs as much as a vector of sixteen bytes does, so blocks go through vector registers.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one step of the vector loop moves.
const BLOCK: usize = 64;
/// Words of a block.
const BLOCK_WORDS: usize = BLOCK / 8;

/// Copies `words` to `bytes`, which are as many.
pub(crate) fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let Parts { front, blocks, .. } = Parts::of(words);
    let (first, rest) = words.split_at(front);
    let (middle, last) = rest.split_at(blocks * BLOCK_WORDS);
    let (start, rest) = bytes.split_at_mut(first.len() * 8);
    let (body, end) = rest.split_at_mut(blocks * BLOCK);
    load_words(first, start);
    load_blocks(middle, body);
    load_words(last, end);
}

/// Copies `bytes` to `words`, which are as many.
pub(crate) fn store(words: &[AtomicU64], bytes: &[u8]) {
    let Parts { front, blocks, .. } = Parts::of(words);
    let (first, rest) = words.split_at(front);
    let (middle, last) = rest.split_at(blocks * BLOCK_WORDS);
    let (start, rest) = bytes.split_at(first.len() * 8);
    let (body, end) = rest.split_at(blocks * BLOCK);
    store_words(first, start);
    store_blocks(middle, body);
    store_words(last, end);
}

fn load_words(words: &[AtomicU64], bytes: &mut [u8]) {
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}

fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    for (chunk, word) in bytes.chunks_exact(8).zip(words) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

/// How a range of words is copied.
struct Parts {
    /// Words before the first that a vector can start with.
    front: usize,
    /// Blocks behind them.
    blocks: usize,
}

impl Parts {
    /// Vectors are aligned in shared memory: a processor may tear one that is not.
    fn of(words: &[AtomicU64]) -> Self {
        let front = (words.as_ptr() as usize % 16 / 8).min(words.len());
        Parts {
            front,
            blocks: (words.len() - front) / BLOCK_WORDS,
        }
    }
}

/// Copies blocks through vector registers. `$load` and `$store` say which side is aligned.
#[cfg(target_arch = "x86_64")]
macro_rules! copy_blocks {
    ($load:literal $from:expr, $store:literal $to:expr, $blocks:expr) => {
        std::arch::asm!(
            "2:",
            concat!($load, " {a}, xmmword ptr [{from}]"),
            concat!($load, " {b}, xmmword ptr [{from} + 16]"),
            concat!($load, " {c}, xmmword ptr [{from} + 32]"),
            concat!($load, " {d}, xmmword ptr [{from} + 48]"),
            concat!($store, " xmmword ptr [{to}], {a}"),
            concat!($store, " xmmword ptr [{to} + 16], {b}"),
            concat!($store, " xmmword ptr [{to} + 32], {c}"),
            concat!($store, " xmmword ptr [{to} + 48], {d}"),
            "add {from}, 64",
            "add {to}, 64",
            "dec {left}",
            "jnz 2b",
            from = inout(reg) $from => _,
            to = inout(reg) $to => _,
            left = inout(reg) $blocks => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        )
    };
}

#[cfg(target_arch = "x86_64")]
fn load_blocks(words: &[AtomicU64], bytes: &mut [u8]) {
    let blocks = bytes.len() / BLOCK;
    assert!(words.len() == blocks * BLOCK_WORDS && bytes.len() == blocks * BLOCK);
    if blocks > 0 {
        // SAFETY: reads `words` and writes `bytes`, both for exactly their length, which the
        // assertion has shown to be that of the blocks. Both stay borrowed. The aligned halves of an
        // aligned vector are moved as wholes, as relaxed atomics are; `words` are aligned
        // ([`Parts::of`]).
        unsafe { copy_blocks!("movaps" words.as_ptr(), "movups" bytes.as_mut_ptr(), blocks) }
    }
}

#[cfg(target_arch = "x86_64")]
fn store_blocks(words: &[AtomicU64], bytes: &[u8]) {
    let blocks = bytes.len() / BLOCK;
    assert!(words.len() == blocks * BLOCK_WORDS && bytes.len() == blocks * BLOCK);
    if blocks > 0 {
        // SAFETY: as `load_blocks`; the words may be written through a shared reference, as they are
        // atomics.
        unsafe { copy_blocks!("movups" bytes.as_ptr(), "movaps" words.as_ptr(), blocks) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use {load_words as load_blocks, store_words as store_blocks};

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().unwrap());
        bytes.chunks_exact(8).map(word)
    }

    /// A writer and a reader at once: each word has one of the values that were written.
    #[test]
    fn words_are_not_torn() {
        const WORDS: usize = 61;
        let shared: Vec<AtomicU64> = (0..=WORDS).map(|_| AtomicU64::new(0)).collect();
        for front in 0..2 {
            let shared = &shared[front..front + WORDS];
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0..20_000_u32 {
                        store(shared, &[round.to_le_bytes()[0]; WORDS * 8]);
                    }
                    // The flag publishes nothing else, so it is relaxed.
                    over.store(true, Ordering::Relaxed);
                });
                let mut seen = vec![0; WORDS * 8];
                while !over.load(Ordering::Relaxed) {
                    load(shared, &mut seen);
                    for word in words(&seen) {
                        assert_eq!(word, u64::from(word as u8) * 0x0101_0101_0101_0101);
                    }
                }
            });
        }
    }
}
