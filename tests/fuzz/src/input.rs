//! What a target reads from its bytes.

use arbitrary::Unstructured;

/// The bytes of one input, read from the front. Behind their end all are zero.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    rest: Unstructured<'a>,
    hidden: Vec<u64>,
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Input {
            rest: Unstructured::new(data),
            hidden: Vec::new(),
        }
    }

    /// Words that no input brings: keys that an attacker does not have, and that libFuzzer
    /// would find in comparisons.
    pub(crate) fn hide(&mut self, words: &[u64]) {
        self.hidden.extend_from_slice(words);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.rest.arbitrary().unwrap_or(0)
    }

    pub(crate) fn short(&mut self) -> u16 {
        self.rest.arbitrary().unwrap_or(0)
    }

    pub(crate) fn raw(&mut self) -> u64 {
        let word = self.rest.arbitrary().unwrap_or(0);
        match self.hidden.contains(&word) {
            true => !word,
            false => word,
        }
    }

    /// Returns true for so many of 256 bytes; false at the end.
    pub(crate) fn chance(&mut self, of_256: u8) -> bool {
        self.byte() > u8::MAX - of_256
    }

    /// A number below `bound`, which is not zero; 0 at the end.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.rest.int_in_range(0..=bound - 1).unwrap_or(0)
    }

    /// One of a list that is not empty; the first at the end.
    pub(crate) fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Up to `most` bytes.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = most.min(self.rest.len());
        self.rest.bytes(length).unwrap_or_default()
    }

    /// The right number mostly, else one near it, at a border or anywhere: so a check that
    /// comes late is reached, and each check fails at times. The right one at the end.
    pub(crate) fn near(&mut self, right: u64) -> u64 {
        let word = match self.byte() {
            0..=175 => return right,
            176..=191 => right.wrapping_add(self.byte().into()),
            192..=203 => right.wrapping_sub(self.byte().into()),
            204..=211 => 0,
            212..=219 => u64::MAX - u64::from(self.byte()),
            220..=231 => 1 << (self.byte() % 64),
            232..=247 => self.short().into(),
            _ => self.raw(),
        };
        match self.hidden.contains(&word) {
            true => !word,
            false => word,
        }
    }

    /// The same, where any of `length` numbers from `first` on is right.
    pub(crate) fn near_within(&mut self, first: u64, length: u64) -> u64 {
        let right = first + u64::from(self.short()) % length;
        self.near(right)
    }

    /// The same for a shorter number.
    pub(crate) fn near16(&mut self, right: u16) -> u16 {
        self.near(right.into()) as u16
    }

    /// The same for a shorter number.
    pub(crate) fn near32(&mut self, right: u32) -> u32 {
        self.near(right.into()) as u32
    }

    /// The same for a shorter number.
    pub(crate) fn near8(&mut self, right: u8) -> u8 {
        self.near(right.into()) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_has_ended_brings_what_is_right() {
        let mut input = Input::new(&[]);
        assert_eq!((input.near(7), input.near16(8), input.below(5)), (7, 8, 0));
        assert!(!input.chance(255) && input.is_empty());
        assert!(input.bytes(9).is_empty());
    }

    #[test]
    fn every_way_to_be_wrong_is_reached() {
        let brings = |bytes: &[u8]| Input::new(bytes).near(1000);
        assert_eq!(brings(&[175]), 1000);
        assert_eq!((brings(&[176, 2]), brings(&[192, 2])), (1002, 998));
        assert_eq!((brings(&[204]), brings(&[212, 1])), (0, u64::MAX - 1));
        assert_eq!((brings(&[220, 9]), brings(&[232, 1, 2])), (512, 0x201));
        assert_eq!(brings(&[255, 1, 0, 0, 0, 0, 0, 0, 1]), 1 << 56 | 1);
    }
}
