//! What reductions must give, without the NIC's code.

use qnic_abi::collective::{Element, Operator};

/// Makes one of two elements, for each pair.
pub(super) fn combine(operator: Operator, element: Element, left: &[u8], right: &[u8]) -> Vec<u8> {
    let width = element.bytes() as usize;
    let pairs = left.chunks_exact(width).zip(right.chunks_exact(width));
    let mut bytes = Vec::with_capacity(left.len());
    for (left, right) in pairs {
        match element {
            Element::F32 => {
                let [left, right] =
                    [left, right].map(|it| f32::from_le_bytes(it.try_into().expect("4 bytes")));
                // No double rounding: the sum and the product of two are exact in 64 bits, or
                // are rounded to 32 as if they were.
                let value = float(operator, left.into(), right.into()) as f32;
                bytes.extend(value.to_le_bytes());
            }
            Element::F64 => {
                let [left, right] =
                    [left, right].map(|it| f64::from_le_bytes(it.try_into().expect("8 bytes")));
                bytes.extend(float(operator, left, right).to_le_bytes());
            }
            _ => {
                let signed = matches!(element, Element::I32 | Element::I64);
                let [left, right] = [left, right].map(|it| integer(it, signed));
                let value = match operator {
                    Operator::Sum => left.wrapping_add(right),
                    Operator::Product => left.wrapping_mul(right),
                    Operator::Minimum => left.min(right),
                    Operator::Maximum => left.max(right),
                    Operator::And => left & right,
                    Operator::Or => left | right,
                    Operator::Xor => left ^ right,
                };
                bytes.extend(&value.to_le_bytes()[..width]);
            }
        }
    }
    bytes
}

fn float(operator: Operator, left: f64, right: f64) -> f64 {
    match operator {
        Operator::Sum => left + right,
        Operator::Product => left * right,
        Operator::Minimum => left.min(right),
        Operator::Maximum => left.max(right),
        Operator::And | Operator::Or | Operator::Xor => unreachable!("no plan has it"),
    }
}

/// An integer of up to 64 bits.
fn integer(bytes: &[u8], signed: bool) -> i128 {
    let negative = signed && bytes.last().is_some_and(|byte| *byte >= 0x80);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_and_keep_their_sign() {
        let sum = combine(
            Operator::Sum,
            Element::U32,
            &u32::MAX.to_le_bytes(),
            &3u32.to_le_bytes(),
        );
        assert_eq!(sum, 2u32.to_le_bytes());
        let (less, more) = ((-5i64).to_le_bytes(), 4i64.to_le_bytes());
        let minimum = |element| combine(Operator::Minimum, element, &less, &more);
        assert_eq!(minimum(Element::I64), less);
        assert_eq!(minimum(Element::U64), more);
        let product = combine(Operator::Product, Element::I64, &less, &more);
        assert_eq!(product, (-20i64).to_le_bytes());
    }
}
