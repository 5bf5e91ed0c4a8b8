//! Order of the distribution's package versions, as its policy manual defines it.
//!
//! A version is `[epoch:]upstream[-revision]`. Digits compare as numbers, other
//! characters one by one with `~` before everything, also before the end, and
//! letters before all other characters.

use std::cmp::Ordering;

/// Compares two package versions.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let (epoch_a, rest_a) = epoch(a);
    let (epoch_b, rest_b) = epoch(b);
    let (upstream_a, revision_a) = rest_a.rsplit_once('-').unwrap_or((rest_a, ""));
    let (upstream_b, revision_b) = rest_b.rsplit_once('-').unwrap_or((rest_b, ""));
    compare_numbers(epoch_a, epoch_b)
        .then_with(|| compare_part(upstream_a, upstream_b))
        .then_with(|| compare_part(revision_a, revision_b))
}

fn epoch(version: &str) -> (&str, &str) {
    version.split_once(':').unwrap_or(("", version))
}

fn compare_part(mut a: &str, mut b: &str) -> Ordering {
    while !a.is_empty() || !b.is_empty() {
        let (text_a, rest_a) = split_at(a, |c| c.is_ascii_digit());
        let (text_b, rest_b) = split_at(b, |c| c.is_ascii_digit());
        let (number_a, tail_a) = split_at(rest_a, |c| !c.is_ascii_digit());
        let (number_b, tail_b) = split_at(rest_b, |c| !c.is_ascii_digit());
        let order = compare_text(text_a, text_b).then_with(|| compare_numbers(number_a, number_b));
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (tail_a, tail_b);
    }
    Ordering::Equal
}

fn split_at(text: &str, stop: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(stop).unwrap_or(text.len()))
}

/// Compares runs of digits of any length; no digits are zero.
fn compare_numbers(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

fn compare_text(a: &str, b: &str) -> Ordering {
    let weight = |c: Option<char>| match c {
        Some('~') => -1,
        None => 0,
        Some(c) if c.is_ascii_alphabetic() => c as i32,
        Some(c) => c as i32 + 256,
    };
    let (mut a, mut b) = (a.chars(), b.chars());
    loop {
        let (x, y) = (a.next(), b.next());
        match weight(x).cmp(&weight(y)) {
            Ordering::Equal if x.is_none() => return Ordering::Equal,
            Ordering::Equal => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::command::command;

    #[test]
    fn versions_are_ordered_as_policy_says() {
        let ascending = [
            "0.9~~",
            "0.9~rc1",
            "0.9",
            "0.9a",
            "0.9+b1",
            "0.10",
            "6.9.7-1",
            "6.12.94-1",
            "6.12.107-1~bpo12+1",
            "6.12.107-1",
            "6.12.107-1+b1",
            "7.2.9-1~bpo13+1",
            "7.2.12-1~bpo13+1",
            "1:0.1",
            "10:0",
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a} {b}");
            }
        }
    }

    proptest! {
        // The oracle is a process for each case.
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn the_order_is_the_package_managers(
            a in "([0-2]:)?[0-9][0-9a-b.~+]{0,5}(-[0-9a-b.~+]{1,3})?",
            b in "([0-2]:)?[0-9][0-9a-b.~+]{0,5}(-[0-9a-b.~+]{1,3})?",
        ) {
            let holds = |relation: &str| {
                let mut dpkg = command("dpkg");
                dpkg.args(["--compare-versions", &a, relation, &b]);
                dpkg.status().unwrap().success()
            };
            let expected = match (holds("lt"), holds("gt")) {
                (true, _) => Ordering::Less,
                (_, true) => Ordering::Greater,
                _ => Ordering::Equal,
            };
            prop_assert_eq!(compare(&a, &b), expected);
        }
    }

    #[test]
    fn leading_zeros_and_an_absent_epoch_do_not_count() {
        assert_eq!(compare("0:1.02-3", "1.2-03"), Ordering::Equal);
        assert_eq!(compare("1.0", "1.0-0"), Ordering::Equal);
    }
}
