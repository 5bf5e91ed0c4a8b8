//! How many there are of each of a few things: at most some thousand, as each of them may have to
//! move for a new one. What is counted to zero leaves, and nothing is allocated for what comes and
//! goes.

/// Counts by key, in the order of the keys.
#[derive(Debug)]
pub(crate) struct Tally<K>(Vec<(K, u32)>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally(Vec::new())
    }
}

impl<K: Copy + Ord> Tally<K> {
    fn find(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    /// Counts one more of a key.
    pub(crate) fn add(&mut self, key: K) {
        match self.find(key) {
            Ok(index) => self.0[index].1 += 1,
            Err(index) => self.0.insert(index, (key, 1)),
        }
    }

    /// Counts one less of a key, if there is any.
    pub(crate) fn remove(&mut self, key: K) {
        if let Ok(index) = self.find(key) {
            let count = &mut self.0[index].1;
            *count -= 1;
            if *count == 0 {
                self.0.remove(index);
            }
        }
    }

    /// Returns true if there is any of the keys from `first` to `last`.
    pub(crate) fn any_in(&self, first: K, last: K) -> bool {
        let index = self.find(first).unwrap_or_else(|index| index);
        self.0.get(index).is_some_and(|(key, _)| *key <= last)
    }

    /// The keys of which there are any.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.0.iter().map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It counts as a map does in which nothing is zero.
        #[test]
        fn it_counts(steps in prop::collection::vec((any::<bool>(), 0u8..8), 0..200)) {
            let mut tally = Tally::default();
            let mut counts = BTreeMap::<u8, u32>::new();
            for (add, key) in steps {
                let count = counts.entry(key).or_default();
                match add {
                    true => {
                        tally.add(key);
                        *count += 1;
                    }
                    false => {
                        tally.remove(key);
                        *count = count.saturating_sub(1);
                    }
                }
                counts.retain(|_, count| *count > 0);
                prop_assert!(tally.keys().eq(counts.keys().copied()));
                for last in key..8 {
                    let any = counts.range(key..=last).next().is_some();
                    prop_assert_eq!(tally.any_in(key, last), any);
                }
            }
        }
    }
}
