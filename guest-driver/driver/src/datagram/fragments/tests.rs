use super::*;
use proptest::prelude::*;
use qnic_abi::NodeId;
use std::vec::Vec;

const FROM: Address = Address {
    node: NodeId(3),
    port: 5,
};

fn fragment(sequence: u32, number: u16, last: bool, length: usize) -> Fragment<u32> {
    Fragment {
        from: FROM,
        sequence,
        number,
        last,
        header: Header::new(b"h").unwrap(),
        length,
        memory: sequence * 100 + u32::from(number),
        own: true,
    }
}

fn dropped(outcome: Outcome<u32>) -> Option<(Reason, usize)> {
    match outcome {
        Outcome::Dropped(reason, parts) => Some((reason, parts.iter().flatten().count())),
        Outcome::Kept | Outcome::Whole(_) => None,
    }
}

#[test]
fn lies_drop_the_message_that_they_are_about() {
    let size = 1024;
    let cases = [
        ("another size", fragment(1, 1, false, 512)),
        ("a size that cannot be", fragment(1, 1, false, 1000)),
        ("behind the last", fragment(1, 7, false, size)),
        ("another last", fragment(1, 5, true, 10)),
        ("a last without data", fragment(1, 6, true, 0)),
        ("a last that is longer", fragment(1, 6, true, 2048)),
    ];
    for (what, wrong) in cases {
        let mut fragments = Fragments::new(16).unwrap();
        assert!(dropped(fragments.insert(0, fragment(1, 0, false, size))).is_none());
        assert!(dropped(fragments.insert(0, fragment(2, 0, false, size))).is_none());
        assert!(dropped(fragments.insert(0, fragment(1, 6, true, 100))).is_none());
        let outcome = dropped(fragments.insert(0, wrong));
        assert_eq!(outcome, Some((Reason::Malformed, 3)), "{what}");
        assert_eq!(fragments.kept, 1, "the other message stays");
    }
    let mut fragments = Fragments::new(16).unwrap();
    for wrong in [
        fragment(1, 16, true, 10),
        fragment(1, 0, false, 5000),
        fragment(1, 1, false, 16_384),
        fragment(1, 0, false, 32_768),
        fragment(1, 0, true, 32_769),
        fragment(1, 0, false, 256),
    ] {
        let outcome = dropped(fragments.insert(0, wrong));
        assert_eq!(outcome, Some((Reason::Malformed, 1)));
    }
    let mut other = fragment(1, 1, true, 10);
    other.header = Header::new(b"other").unwrap();
    assert!(dropped(fragments.insert(0, fragment(1, 0, false, 4096))).is_none());
    assert_eq!(
        dropped(fragments.insert(0, other)),
        Some((Reason::Malformed, 2))
    );
}

#[test]
fn a_timer_drops_the_half_that_waits() {
    let mut fragments = Fragments::new(16).unwrap();
    assert!(dropped(fragments.insert(5, fragment(1, 1, true, 7))).is_none());
    assert_eq!(fragments.deadline(), Some(5 + FRAGMENT_NS));
    assert!(fragments.expire(4 + FRAGMENT_NS).is_none());
    let parts = fragments.expire(5 + FRAGMENT_NS).unwrap();
    assert_eq!(parts.iter().flatten().count(), 1);
    assert!(fragments.expire(u64::MAX).is_none());
}

proptest! {
    /// Fragments of several messages in any order, some twice: each message is complete once, with
    /// each fragment at its place, and no fragment is left.
    #[test]
    fn fragments_come_in_any_order(
        messages in prop::collection::vec(
            (9..15u32).prop_flat_map(|shift| {
                ((1 << shift) + 1..=MAX_MESSAGE.min(MAX_FRAGMENTS << shift), Just(shift))
            }),
            1..6,
        ),
        swaps in prop::collection::vec((any::<usize>(), any::<usize>()), 0..200),
        doubled in any::<usize>(),
    ) {
        let mut wire = Vec::new();
        for (sequence, (length, shift)) in messages.iter().enumerate() {
            let size = 1usize << shift;
            let count = length.div_ceil(size);
            for number in 0..count {
                let bytes = size.min(length - number * size);
                wire.push((sequence as u32, number as u16, number + 1 == count, bytes));
            }
        }
        let again = wire[doubled % wire.len()];
        wire.push(again);
        for (a, b) in swaps {
            let count = wire.len();
            wire.swap(a % count, b % count);
        }
        let mut fragments = Fragments::new(200).unwrap();
        let mut whole = Vec::new();
        for (sequence, number, last, bytes) in wire {
            match fragments.insert(0, fragment(sequence, number, last, bytes)) {
                Outcome::Kept | Outcome::Dropped(Reason::Duplicate, _) => {}
                Outcome::Dropped(reason, _) => prop_assert!(false, "dropped: {reason:?}"),
                Outcome::Whole(it) => {
                    let first = it.parts[0].unwrap();
                    let (length, _) = messages[first as usize / 100];
                    prop_assert_eq!(it.length, length);
                    let parts: Vec<_> = it.parts.iter().flatten().copied().collect();
                    let expected: Vec<_> = (first..).take(parts.len()).collect();
                    prop_assert_eq!(parts, expected);
                    whole.push(first / 100);
                }
            }
        }
        whole.sort_unstable();
        whole.dedup();
        prop_assert_eq!(whole.len(), messages.len());
        // Duplicates that came after their message wait for the timer.
        while fragments.expire(u64::MAX).is_some() {}
        prop_assert_eq!(fragments.kept, 0);
    }
}
