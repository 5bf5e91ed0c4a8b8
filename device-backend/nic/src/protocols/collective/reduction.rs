//! How the bytes of two members become one (Q15, N26).
//!
//! Elements are little-endian everywhere. Contributions are reduced in a fixed order: each NIC takes
//! its members by rank, then the nodes below it by their place in the tree. So the result of floats
//! is the same on every member and in every run.

use qnic_abi::collective::{Element, Operator};

/// An operator on elements of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reduction {
    operator: Operator,
    element: Element,
}

/// Replaces each element of `into` by what `combine` makes of it and that of `from`.
macro_rules! each {
    ($type:ty, $into:ident, $from:ident, $combine:expr) => {{
        const BYTES: usize = size_of::<$type>();
        let combine: fn($type, $type) -> $type = $combine;
        let pairs = $into.chunks_exact_mut(BYTES).zip($from.chunks_exact(BYTES));
        for (into, from) in pairs {
            let mut bytes = [0; BYTES];
            bytes.copy_from_slice(into);
            let left = <$type>::from_le_bytes(bytes);
            bytes.copy_from_slice(from);
            let right = <$type>::from_le_bytes(bytes);
            into.copy_from_slice(&combine(left, right).to_le_bytes());
        }
    }};
}

macro_rules! integers {
    ($type:ty, $operator:expr, $into:ident, $from:ident) => {
        match $operator {
            Operator::Sum => each!($type, $into, $from, <$type>::wrapping_add),
            Operator::Product => each!($type, $into, $from, <$type>::wrapping_mul),
            Operator::Minimum => each!($type, $into, $from, |a, b| a.min(b)),
            Operator::Maximum => each!($type, $into, $from, |a, b| a.max(b)),
            Operator::And => each!($type, $into, $from, |a, b| a & b),
            Operator::Or => each!($type, $into, $from, |a, b| a | b),
            Operator::Xor => each!($type, $into, $from, |a, b| a ^ b),
        }
    };
}

macro_rules! floats {
    ($type:ty, $operator:expr, $into:ident, $from:ident) => {
        match $operator {
            Operator::Sum => each!($type, $into, $from, |a, b| a + b),
            Operator::Product => each!($type, $into, $from, |a, b| a * b),
            Operator::Minimum => each!($type, $into, $from, <$type>::min),
            Operator::Maximum => each!($type, $into, $from, <$type>::max),
            // No such reduction is made.
            Operator::And | Operator::Or | Operator::Xor => {}
        }
    };
}

impl Reduction {
    /// `None` if there is no such operator for elements of that type.
    pub(super) fn new(operator: Operator, element: Element) -> Option<Self> {
        let bitwise = matches!(operator, Operator::And | Operator::Or | Operator::Xor);
        let float = matches!(element, Element::F32 | Element::F64);
        (!bitwise || !float).then_some(Reduction { operator, element })
    }

    pub(super) fn operator(self) -> Operator {
        self.operator
    }

    pub(super) fn element(self) -> Element {
        self.element
    }

    /// Makes `into` the reduction of itself and `from`.
    pub(super) fn apply(self, into: &mut [u8], from: &[u8]) {
        match self.element {
            Element::U32 => integers!(u32, self.operator, into, from),
            Element::U64 => integers!(u64, self.operator, into, from),
            Element::I32 => integers!(i32, self.operator, into, from),
            Element::I64 => integers!(i64, self.operator, into, from),
            Element::F32 => floats!(f32, self.operator, into, from),
            Element::F64 => floats!(f64, self.operator, into, from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reduce(operator: Operator, element: Element, left: &[u8], right: &[u8]) -> Vec<u8> {
        let mut into = left.to_vec();
        let reduction = Reduction::new(operator, element).expect("an operator of that type");
        reduction.apply(&mut into, right);
        into
    }

    #[test]
    fn floats_have_no_bits_to_combine() {
        for operator in [Operator::And, Operator::Or, Operator::Xor] {
            assert_eq!(Reduction::new(operator, Element::F32), None);
            assert_eq!(Reduction::new(operator, Element::F64), None);
            assert!(Reduction::new(operator, Element::I64).is_some());
        }
    }

    #[test]
    fn of_a_number_and_none_the_number_counts() {
        let (nan, two) = (f64::NAN.to_le_bytes(), 2f64.to_le_bytes());
        for operator in [Operator::Minimum, Operator::Maximum] {
            assert_eq!(reduce(operator, Element::F64, &nan, &two), two);
            assert_eq!(reduce(operator, Element::F64, &two, &nan), two);
        }
    }

    proptest! {
        #[test]
        fn elements_are_combined_one_by_one(pairs in prop::collection::vec(any::<(i64, i64)>(), 0..20)) {
            let bytes = |side: fn(&(i64, i64)) -> i64| -> Vec<u8> {
                pairs.iter().flat_map(|pair| side(pair).to_le_bytes()).collect()
            };
            let (left, right) = (bytes(|pair| pair.0), bytes(|pair| pair.1));
            type Expected = fn(i64, i64) -> i64;
            let operators: [(Operator, Expected); 7] = [
                (Operator::Sum, i64::wrapping_add),
                (Operator::Product, i64::wrapping_mul),
                (Operator::Minimum, Ord::min),
                (Operator::Maximum, Ord::max),
                (Operator::And, |a, b| a & b),
                (Operator::Or, |a, b| a | b),
                (Operator::Xor, |a, b| a ^ b),
            ];
            for (operator, expected) in operators {
                let result = reduce(operator, Element::I64, &left, &right);
                let expected = pairs.iter().flat_map(|(a, b)| expected(*a, *b).to_le_bytes());
                prop_assert_eq!(result, expected.collect::<Vec<u8>>());
            }
            let unsigned = reduce(Operator::Maximum, Element::U64, &left, &right);
            let expected = pairs.iter().flat_map(|(a, b)| (*a as u64).max(*b as u64).to_le_bytes());
            prop_assert_eq!(unsigned, expected.collect::<Vec<u8>>());
        }
    }
}
