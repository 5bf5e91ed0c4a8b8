//! What a stretch of memory must hold while transfers to it run.

/// One byte: what must stand there, or `None` where a transfer under way, or one
/// that failed, leaves it open.
pub(crate) type ExpectedByte = Option<u8>;

/// Start and length.
pub(crate) type Range = (u64, u64);

/// Memory that transfers of one process go to, one after the other at each byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedBytes {
    bytes: Vec<ExpectedByte>,
    /// Ranges in use: start, end, operation.
    reserved: Vec<(u64, u64, u64)>,
}

impl ExpectedBytes {
    /// So many zeroes.
    pub(crate) fn new(length: u64) -> Self {
        ExpectedBytes {
            bytes: vec![Some(0); length as usize],
            reserved: Vec::new(),
        }
    }

    /// Reserves a range for an operation unless another one uses a part of it.
    pub(crate) fn reserve(&mut self, (start, length): Range, operation: u64) -> bool {
        let end = start + length;
        let free = !self.reserved.iter().any(|r| r.0 < end && start < r.1);
        if free {
            self.reserved.push((start, end, operation));
        }
        free
    }

    pub(crate) fn release(&mut self, operation: u64) {
        self.reserved.retain(|range| range.2 != operation);
    }

    /// From now on anything may stand there.
    pub(crate) fn open(&mut self, start: u64, length: u64) {
        self.bytes[start as usize..(start + length) as usize].fill(None);
    }

    /// This must stand there now.
    pub(crate) fn set(&mut self, start: u64, bytes: &[u8]) {
        for (expected, byte) in self.bytes[start as usize..].iter_mut().zip(bytes) {
            *expected = Some(*byte);
        }
    }

    /// What must stand in a range.
    pub(crate) fn get(&self, start: u64, length: u64) -> &[ExpectedByte] {
        &self.bytes[start as usize..(start + length) as usize]
    }

    /// Compares all of it with the memory of the process in a slot; `what` it is.
    ///
    /// # Panics
    /// If a byte is wrong.
    pub(crate) fn audit(&self, slot: usize, what: &str, memory: &[u8]) {
        if let Some(at) = difference(memory, &self.bytes) {
            let (found, expected) = (memory[at], self.bytes[at]);
            panic!("process {slot}: byte {at} of {what} is {found:#x}, not {expected:?}");
        }
    }
}

/// Where memory differs from what must stand there: the first such slot.
pub(crate) fn difference(memory: &[u8], expected: &[ExpectedByte]) -> Option<usize> {
    let mut pairs = memory.iter().zip(expected);
    pairs.position(|(byte, expected)| expected.is_some_and(|expected| expected != *byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_use_exclude_each_other() {
        let mut memory = ExpectedBytes::new(100);
        assert!(memory.reserve((10, 10), 1));
        assert!(!memory.reserve((19, 1), 2));
        assert!(memory.reserve((20, 80), 2));
        memory.release(1);
        assert!(memory.reserve((0, 20), 3));
    }

    #[test]
    fn open_bytes_hold_anything() {
        let mut memory = ExpectedBytes::new(4);
        memory.open(1, 2);
        memory.set(2, &[7]);
        assert_eq!(difference(&[0, 99, 7, 0], &memory.bytes), None);
        assert_eq!(difference(&[0, 99, 8, 0], &memory.bytes), Some(2));
        assert_eq!(difference(&[1, 99, 7, 0], &memory.bytes), Some(0));
    }
}
