//! Data to send: looks random, differs for each seed, and is made again at the far side
//! from the seed alone.

/// The pattern of `seed`, `length` bytes of it.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The words of `bytes`, without a rest.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes.chunks_exact(8);
    words.map(|word| u64::from_le_bytes(std::array::from_fn(|index| word[index])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_seed_and_repeat() {
        assert_eq!(bytes(7, 1000), bytes(7, 1000));
        assert_ne!(bytes(7, 1000), bytes(8, 1000));
        assert_eq!(bytes(7, 1000)[..16], bytes(7, 16)[..]);
        assert_eq!(bytes(9, 13).len(), 13);
        let whole: Vec<_> = words(&[1, 0, 0, 0, 0, 0, 0, 2, 9]).collect();
        assert_eq!(whole, [2 << 56 | 1]);
    }
}
