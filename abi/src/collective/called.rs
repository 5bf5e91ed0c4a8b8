//! What a member has called, in the words that ends of groups and completions say it with.

use super::{Collective, Element, Operator, MAX_LENGTH};

/// A call of a collective.
///
/// Its word, and beside it the label:
/// ```text
///   bits  0 … 36 | 37 … 48 | 49 … 51    | 52 … 54  | 55 … 57 | 58 … 63
///         length | root    | collective | operator | element | zero
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// Which it is.
    pub collective: Collective,
    /// What is reduced, and how; `None`: nothing.
    pub reduction: Option<(Operator, Element)>,
    /// Bytes, up to [`MAX_LENGTH`].
    pub length: u64,
    /// Rank of the process that gives, or gets; zero if it is all.
    pub root: u32,
    /// As in the command.
    pub label: u16,
}

const ROOT: u32 = 37;
const COLLECTIVE: u32 = 49;
const OPERATOR: u32 = 52;
const ELEMENT: u32 = 55;
const END: u32 = 58;

const _: () = assert!(MAX_LENGTH < 1 << ROOT && super::MAX_MEMBERS <= 1 << (COLLECTIVE - ROOT));

const fn bits(word: u64, from: u32, to: u32) -> u64 {
    word >> from & ((1 << (to - from)) - 1)
}

impl Called {
    /// The word that says it, without the label.
    pub fn word(&self) -> u64 {
        let (operator, element) = self.reduction.map_or((0, 0), |(operator, element)| {
            (operator as u64, element as u64)
        });
        self.length
            | u64::from(self.root) << ROOT
            | (self.collective as u64) << COLLECTIVE
            | operator << OPERATOR
            | element << ELEMENT
    }

    /// What a word and a label say; `None`: nothing.
    pub fn of_word(word: u64, label: u16) -> Option<Self> {
        let collective = bits(word, COLLECTIVE, OPERATOR) as u8;
        let operator = bits(word, OPERATOR, ELEMENT) as u8;
        let element = bits(word, ELEMENT, END) as u8;
        let reduction = match (operator, element) {
            (0, 0) => None,
            _ => Some((operator.try_into().ok()?, element.try_into().ok()?)),
        };
        Some(Called {
            collective: collective.try_into().ok()?,
            reduction,
            length: bits(word, 0, ROOT),
            root: bits(word, ROOT, COLLECTIVE) as u32,
            label,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_called() {
        let largest = Called {
            collective: Collective::Reduce,
            reduction: Some((Operator::Xor, Element::F64)),
            length: MAX_LENGTH,
            root: super::super::MAX_MEMBERS - 1,
            label: u16::MAX,
        };
        let barrier = Called {
            collective: Collective::Barrier,
            reduction: None,
            length: 0,
            root: 0,
            label: 0,
        };
        for called in [largest, barrier] {
            assert_eq!(Called::of_word(called.word(), called.label), Some(called));
        }
        let no_element = barrier.word() | 1 << OPERATOR;
        let no_collective = 5 << COLLECTIVE;
        for word in [0, no_element, no_collective, u64::MAX] {
            assert_eq!(Called::of_word(word, 1), None, "{word:#x}");
        }
    }
}
