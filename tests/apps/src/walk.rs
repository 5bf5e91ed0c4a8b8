//! Where the transfers of a stream lie, and the copies that it is compared with.
//!
//! A stream of short transfers goes through as much memory as one of long ones. On one and the same
//! page, a copy by one processor would measure its first-level cache, which no transfer from another
//! processor's memory can meet.

/// Bytes that a stream goes through on either side, then from the beginning again; one transfer, if
/// that is longer.
pub const WALK: usize = 1 << 20;

/// Offsets of `count` transfers of `size` bytes, one behind the other. They end within [`WALK`], or
/// within `size`.
pub fn offsets(size: usize, count: usize) -> impl Iterator<Item = usize> {
    let places = (WALK / size.max(1)).max(1);
    (0..count).map(move |number| number % places * size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_follow_each_other_and_begin_again() {
        let of = |size, count| offsets(size, count).collect::<Vec<_>>();
        assert_eq!(of(WALK / 2, 3), [0, WALK / 2, 0]);
        assert_eq!(of(WALK, 2), [0, 0]);
        assert_eq!(of(2 * WALK, 2), [0, 0]);
        assert_eq!(of(3, 4), [0, 3, 6, 9]);
        for size in [1, 7, 4096, 65_537] {
            let last = offsets(size, WALK).max();
            assert!(last.is_some_and(|last| last + size <= WALK), "{size}");
            assert!(last.is_some_and(|last| last + 2 * size > WALK), "{size}");
        }
    }
}
