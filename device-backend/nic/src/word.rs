//! Words of a node's memory that atomic operations change (N20).
//!
//! A processor makes an addition, an exchange and a compare-and-swap in one instruction. All
//! other changes are computed from what the word was, and stored if it is still that
//! ([`Change::after`]).
//!
//! # Floating point
//! A word of 32 or 64 bits is a number of IEEE 754. So that every NIC computes the same, a sum that
//! is no number has the bits of [`f64::NAN`] or [`f32::NAN`]. A minimum or maximum with a word that
//! is no number is the operand; an operand that is no number changes nothing. The two zeroes are
//! equal.

use std::cmp::Ordering;

/// A word that is changed by an atomic access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 32 bits.
    Four,
    /// 64 bits.
    Eight,
}

/// What the bits of a word stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// An integer from zero up.
    Unsigned,
    /// An integer in two's complement.
    Signed,
    /// A number of IEEE 754.
    Float,
}

/// How an atomic access changes a word. What exceeds the word is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Adds; wraps around.
    Add(u64),
    /// Exchanges.
    Swap(u64),
    /// Exchanges if the word is as expected.
    CompareSwap {
        /// What it has to be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// Exchanges the bits of one mask if those of another one are as expected.
    MaskedCompareSwap {
        /// What it has to be, and the bits that count.
        expected: (u64, u64),
        /// What it becomes, and the bits that change.
        new: (u64, u64),
    },
    /// Keeps the bits that are also in the operand.
    And(u64),
    /// Sets bits.
    Or(u64),
    /// Flips bits.
    Xor(u64),
    /// Becomes the operand if that is less, or greater, as a number of this kind.
    Extreme(Number, Ordering, u64),
    /// Adds floating-point numbers.
    AddFloat(u64),
}

impl Width {
    /// Its length in bytes, which its address is a multiple of.
    pub fn bytes(self) -> usize {
        match self {
            Width::Four => 4,
            Width::Eight => 8,
        }
    }

    fn cut(self, bits: u64) -> u64 {
        match self {
            Width::Four => bits & u64::from(u32::MAX),
            Width::Eight => bits,
        }
    }

    /// The bits as a signed number.
    fn signed(self, bits: u64) -> i64 {
        match self {
            Width::Four => (bits as i32).into(),
            Width::Eight => bits as i64,
        }
    }

    /// The bits as a floating-point number.
    fn float(self, bits: u64) -> f64 {
        match self {
            Width::Four => f32::from_bits(bits as u32).into(),
            Width::Eight => f64::from_bits(bits),
        }
    }

    fn add_floats(self, left: u64, right: u64) -> u64 {
        match self {
            Width::Four => {
                let sum = f32::from_bits(left as u32) + f32::from_bits(right as u32);
                let sum = if sum.is_nan() { f32::NAN } else { sum };
                sum.to_bits().into()
            }
            Width::Eight => {
                let sum = f64::from_bits(left) + f64::from_bits(right);
                let sum = if sum.is_nan() { f64::NAN } else { sum };
                sum.to_bits()
            }
        }
    }
}

impl Number {
    /// Returns true if a word becomes `operand`, which is to be less or greater.
    fn replaces(self, width: Width, word: u64, operand: u64, wanted: Ordering) -> bool {
        match self {
            Number::Unsigned => width.cut(operand).cmp(&width.cut(word)) == wanted,
            Number::Signed => width.signed(operand).cmp(&width.signed(word)) == wanted,
            Number::Float => {
                let (word, operand) = (width.float(word), width.float(operand));
                let order = operand.partial_cmp(&word);
                order.map_or(!operand.is_nan(), |order| order == wanted)
            }
        }
    }
}

impl Change {
    /// What a word becomes.
    pub fn after(self, width: Width, before: u64) -> u64 {
        let after = match self {
            Change::Add(value) => before.wrapping_add(value),
            Change::Swap(new) => new,
            Change::CompareSwap { expected, new } if before == width.cut(expected) => new,
            Change::MaskedCompareSwap {
                expected: (expected, compared),
                new: (new, changed),
            } if (before ^ expected) & width.cut(compared) == 0 => {
                (before & !changed) | (new & changed)
            }
            Change::CompareSwap { .. } | Change::MaskedCompareSwap { .. } => before,
            Change::And(value) => before & value,
            Change::Or(value) => before | value,
            Change::Xor(value) => before ^ value,
            Change::Extreme(number, wanted, value) => {
                match number.replaces(width, before, value, wanted) {
                    true => value,
                    false => before,
                }
            }
            Change::AddFloat(value) => width.add_floats(before, value),
        };
        width.cut(after)
    }

    /// Changes a little-endian word that one thread has to itself; returns what it was.
    pub fn apply(self, width: Width, word: &mut [u8]) -> u64 {
        let bytes = word.iter().rev();
        let before = bytes.fold(0, |value, byte| value << 8 | u64::from(*byte));
        let after = self.after(width, before).to_le_bytes();
        word.iter_mut()
            .zip(after)
            .for_each(|(slot, byte)| *slot = byte);
        before
    }
}
