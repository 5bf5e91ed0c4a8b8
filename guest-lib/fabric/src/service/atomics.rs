//! Atomic operations on elements: what each makes of the old value, the operand and the value compared with.
//!
//! Elements are integers of 8 to 64 bits, floats and doubles, in the byte order of the machine: nodes of a network
//! are of one kind. Integers wrap.

use std::ops::{Add, BitAnd, BitOr, BitXor, Mul, Not};

use crate::sys;

/// Most bytes of elements in an operation.
pub(crate) const BYTES_MAX: usize = 4096;

/// How a program asks for an operation: what it gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `fi_atomic`: nothing.
    Base,
    /// `fi_fetch_atomic`: the old elements.
    Fetch,
    /// `fi_compare_atomic`: the old elements; others are compared with them.
    Compare,
}

/// A type of elements, by its number in libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datatype(u8);

/// An operation, by its number in libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation(u8);

/// Bytes of the elements of each type, by number: integers, float, double.
const SIZES: [usize; 10] = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8];

impl Datatype {
    /// The type of this number, if there is one here.
    pub(crate) fn new(number: u32) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        SIZES.get(usize::from(number)).map(|_| Datatype(number))
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        SIZES[usize::from(self.0)]
    }

    fn is_integer(self) -> bool {
        self.0 < 8
    }
}

impl Operation {
    /// The operation of this number, if it can be asked for in this form and has a meaning for this type.
    pub(crate) fn new(number: u32, form: Form, datatype: Datatype) -> Option<Self> {
        let is_of_form = match number {
            sys::MIN..=sys::BXOR | sys::ATOMIC_WRITE => form != Form::Compare,
            sys::ATOMIC_READ => form == Form::Fetch,
            sys::CSWAP..=sys::MSWAP => form == Form::Compare,
            _ => false,
        };
        let is_bitwise = matches!(number, sys::BOR | sys::BAND | sys::BXOR | sys::MSWAP);
        let fits = is_of_form && (datatype.is_integer() || !is_bitwise);
        u8::try_from(number).ok().filter(|_| fits).map(Operation)
    }

    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// It changes nothing, and has no operand.
    pub(crate) fn is_read(self) -> bool {
        u32::from(self.0) == sys::ATOMIC_READ
    }

    /// What elements become. `compared` is empty unless they are compared.
    pub(crate) fn apply(
        self,
        datatype: Datatype,
        old: &[u8],
        operand: &[u8],
        compared: &[u8],
    ) -> Vec<u8> {
        macro_rules! each {
            ($($number:literal: $type:ty),*) => {
                match datatype.0 {
                    $($number => self.apply_to::<$type, { size_of::<$type>() }>(old, operand, compared),)*
                    _ => old.to_vec(),
                }
            };
        }
        each!(0: i8, 1: u8, 2: i16, 3: u16, 4: i32, 5: u32, 6: i64, 7: u64, 8: f32, 9: f64)
    }

    fn apply_to<T: Element<N>, const N: usize>(
        self,
        old: &[u8],
        operand: &[u8],
        compared: &[u8],
    ) -> Vec<u8> {
        let at = |bytes: &[u8], index: usize| {
            let element = bytes.get(index * N..(index + 1) * N);
            element.and_then(|it| it.try_into().ok()).map(T::from_bytes)
        };
        let number = u32::from(self.0);
        let changed = (0..old.len() / N).flat_map(|index| {
            let (was, operand) = (at(old, index), at(operand, index));
            let was = was.unwrap_or(T::ZERO);
            let compared = at(compared, index).unwrap_or(T::ZERO);
            operand
                .map_or(was, |operand| combine(number, was, operand, compared))
                .to_bytes()
        });
        changed.collect()
    }
}

/// A type of elements with `N` bytes.
trait Element<const N: usize>: Copy + PartialOrd {
    const ZERO: Self;
    fn from_bytes(bytes: [u8; N]) -> Self;
    fn to_bytes(self) -> [u8; N];
    fn of(truth: bool) -> Self;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    /// Of integers: or, and, xor of their bits, and `bits` chosen from `other` by a mask.
    fn or(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn masked(self, other: Self, mask: Self) -> Self;
}

fn combine<T: Element<N>, const N: usize>(number: u32, old: T, operand: T, compared: T) -> T {
    let truth = |value: T| value != T::ZERO;
    let swap = |is_met: bool| if is_met { operand } else { old };
    match number {
        sys::MIN => swap(operand < old),
        sys::MAX => swap(operand > old),
        sys::SUM => old.sum(operand),
        sys::PROD => old.product(operand),
        sys::LOR => T::of(truth(old) || truth(operand)),
        sys::LAND => T::of(truth(old) && truth(operand)),
        sys::LXOR => T::of(truth(old) != truth(operand)),
        sys::BOR => old.or(operand),
        sys::BAND => old.and(operand),
        sys::BXOR => old.xor(operand),
        sys::ATOMIC_WRITE => operand,
        sys::CSWAP => swap(compared == old),
        sys::CSWAP_NE => swap(compared != old),
        sys::CSWAP_LE => swap(compared <= old),
        sys::CSWAP_LT => swap(compared < old),
        sys::CSWAP_GE => swap(compared >= old),
        sys::CSWAP_GT => swap(compared > old),
        sys::MSWAP => old.masked(operand, compared),
        _ => old,
    }
}

macro_rules! elements {
    ($($type:ty)*, $zero:literal, $one:literal, $add:ident, $multiply:ident, $or:path, $and:path, $xor:path, $masked:path) => {
        $(impl Element<{ size_of::<$type>() }> for $type {
            const ZERO: Self = $zero;
            fn from_bytes(bytes: [u8; size_of::<$type>()]) -> Self {
                <$type>::from_ne_bytes(bytes)
            }
            fn to_bytes(self) -> [u8; size_of::<$type>()] {
                self.to_ne_bytes()
            }
            fn of(truth: bool) -> Self {
                if truth { $one } else { $zero }
            }
            fn sum(self, other: Self) -> Self {
                self.$add(other)
            }
            fn product(self, other: Self) -> Self {
                self.$multiply(other)
            }
            fn or(self, other: Self) -> Self {
                $or(self, other)
            }
            fn and(self, other: Self) -> Self {
                $and(self, other)
            }
            fn xor(self, other: Self) -> Self {
                $xor(self, other)
            }
            fn masked(self, other: Self, mask: Self) -> Self {
                $masked(self, other, mask)
            }
        })*
    };
}

elements!(
    i8 u8 i16 u16 i32 u32 i64 u64, 0, 1, wrapping_add, wrapping_mul, BitOr::bitor, BitAnd::bitand, BitXor::bitxor, masked
);
// `Operation::new` refuses what has no meaning for them.
elements!(f32 f64, 0.0, 1.0, add, mul, keep, keep, keep, keep_all);

fn masked<T>(old: T, new: T, mask: T) -> T
where
    T: Copy + BitAnd<Output = T> + BitOr<Output = T> + Not<Output = T>,
{
    (old & !mask) | (new & mask)
}

fn keep<T>(old: T, _: T) -> T {
    old
}

fn keep_all<T>(old: T, _: T, _: T) -> T {
    old
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(number: u32, form: Form, datatype: u32) -> (Operation, Datatype) {
        let datatype = Datatype::new(datatype).unwrap();
        (Operation::new(number, form, datatype).unwrap(), datatype)
    }

    /// Of the type i32.
    fn of_i32(number: u32, form: Form, old: i32, operand: i32, compared: i32) -> i32 {
        let (operation, datatype) = operation(number, form, 4);
        let [old, operand, compared] = [old, operand, compared].map(i32::to_ne_bytes);
        let new = operation.apply(datatype, &old, &operand, &compared);
        i32::from_ne_bytes(new.try_into().unwrap())
    }

    #[test]
    fn each_operation_is_the_one_of_its_number() {
        for (number, old, operand, new) in [
            (sys::MIN, 3, -4, -4),
            (sys::MAX, 3, -4, 3),
            (sys::SUM, i32::MAX, 1, i32::MIN),
            (sys::PROD, -3, 5, -15),
            (sys::LOR, 0, 9, 1),
            (sys::LAND, 7, 0, 0),
            (sys::BOR, 0b0101, 0b0011, 0b0111),
            (sys::BAND, 0b0101, 0b0011, 0b0001),
            (sys::LXOR, 7, 9, 0),
            (sys::BXOR, 0b0101, 0b0011, 0b0110),
            (sys::ATOMIC_WRITE, 1, 2, 2),
        ] {
            for form in [Form::Base, Form::Fetch] {
                assert_eq!(of_i32(number, form, old, operand, 0), new, "{number}");
            }
        }
        for (number, compared, new) in [
            (sys::CSWAP, 5, 9),
            (sys::CSWAP, 4, 5),
            (sys::CSWAP_NE, 5, 5),
            (sys::CSWAP_NE, 4, 9),
            (sys::CSWAP_LE, 5, 9),
            (sys::CSWAP_LE, 6, 5),
            (sys::CSWAP_LT, 4, 9),
            (sys::CSWAP_LT, 5, 5),
            (sys::CSWAP_GE, 5, 9),
            (sys::CSWAP_GE, 4, 5),
            (sys::CSWAP_GT, 6, 9),
            (sys::CSWAP_GT, 5, 5),
            (sys::MSWAP, 0b1100, 0b1001),
        ] {
            let found = of_i32(number, Form::Compare, 5, 9, compared);
            assert_eq!(found, new, "{number} {compared}");
        }
    }

    #[test]
    fn floats_are_numbers_and_several_elements_are_taken_one_by_one() {
        let bytes = |values: [f64; 2]| values.map(f64::to_ne_bytes).concat();
        let (sum, datatype) = operation(sys::SUM, Form::Base, 9);
        let new = sum.apply(datatype, &bytes([1.5, -2.0]), &bytes([0.25, 2.0]), &[]);
        assert_eq!(new, bytes([1.75, 0.0]));
        let (max, datatype) = operation(sys::MAX, Form::Fetch, 8);
        let new = max.apply(datatype, &1f32.to_ne_bytes(), &2f32.to_ne_bytes(), &[]);
        assert_eq!(new, 2f32.to_ne_bytes());
    }

    #[test]
    fn a_read_leaves_what_is_there() {
        let (read, datatype) = operation(sys::ATOMIC_READ, Form::Fetch, 1);
        assert!(read.is_read());
        assert_eq!(read.apply(datatype, &[1, 2, 3], &[], &[]), [1, 2, 3]);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        let (integer, float) = (Datatype::new(7).unwrap(), Datatype::new(8).unwrap());
        for (number, form, datatype) in [
            (sys::ATOMIC_READ, Form::Base, integer),
            (sys::SUM, Form::Compare, integer),
            (sys::CSWAP, Form::Fetch, integer),
            (sys::MSWAP + 1, Form::Compare, integer),
            (u32::MAX, Form::Base, integer),
            (sys::BXOR, Form::Base, float),
            (sys::MSWAP, Form::Compare, float),
        ] {
            assert_eq!(Operation::new(number, form, datatype), None);
        }
        assert_eq!(Datatype::new(10), None);
        assert_eq!(Datatype::new(256), None);
    }
}
