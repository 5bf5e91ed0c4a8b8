//! Whether two lists of samples differ by more than chance: the rank test of Mann, Whitney and
//! Wilcoxon, two-sided.
//!
//! If both were of one distribution, each choice of as many ranks of all would be as likely as the
//! one that was seen. The probability of a sum of ranks at least as far from its mean is exact, also
//! where samples are equal and share a rank. Long lists take the normal approximation.

/// Most samples of both lists together that are counted exactly.
const EXACT: usize = 64;

/// The probability that two lists of one distribution differ at least as much as these; 1 if one
/// of them is empty.
pub(super) fn probability(one: &[f64], other: &[f64]) -> f64 {
    if one.is_empty() || other.is_empty() {
        return 1.0;
    }
    let ranks = doubled_ranks(one, other);
    let distance = |sum: usize| sum.abs_diff(mean(one.len(), ranks.len()));
    let seen = distance(ranks[..one.len()].iter().sum());
    if ranks.len() > EXACT {
        return approximation(&ranks, one.len(), seen);
    }
    let ways = ways(&ranks, one.len());
    let as_far = ways.iter().enumerate();
    let as_far = as_far.filter(|(sum, _)| distance(*sum) >= seen);
    let as_far: f64 = as_far.map(|(_, ways)| ways).sum();
    (as_far / ways.iter().sum::<f64>()).min(1.0)
}

/// The least probability that so many samples each can show.
pub(super) fn least(one: usize, other: usize) -> f64 {
    let ordered: Vec<f64> = (0..one + other).map(|rank| rank as f64).collect();
    probability(&ordered[..one], &ordered[one..])
}

/// The mean sum of `chosen` doubled ranks of `all`.
fn mean(chosen: usize, all: usize) -> usize {
    chosen * (all + 1)
}

/// Twice the rank of each sample, of `one` first. Equal samples share the mean of theirs, which
/// doubled is a whole number.
fn doubled_ranks(one: &[f64], other: &[f64]) -> Vec<usize> {
    let all: Vec<f64> = one.iter().chain(other).copied().collect();
    let rank = |sample: &f64| {
        let less = all.iter().filter(|it| *it < sample).count();
        let equal = all.iter().filter(|it| *it == sample).count();
        2 * less + equal + 1
    };
    all.iter().map(rank).collect()
}

/// In how many ways `chosen` of the ranks have each sum.
fn ways(ranks: &[usize], chosen: usize) -> Vec<f64> {
    let sums = ranks.iter().sum::<usize>() + 1;
    let mut ways = vec![vec![0.0; sums]; chosen + 1];
    ways[0][0] = 1.0;
    for rank in ranks {
        for count in (1..=chosen).rev() {
            for sum in (*rank..sums).rev() {
                ways[count][sum] += ways[count - 1][sum - rank];
            }
        }
    }
    ways.swap_remove(chosen)
}

/// The same by a normal distribution of that mean and variance, half a rank nearer.
fn approximation(ranks: &[usize], chosen: usize, distance: usize) -> f64 {
    let (all, chosen) = (ranks.len() as f64, chosen as f64);
    let square = |rank: &usize| (*rank as f64 - (all + 1.0)).powi(2);
    let squares: f64 = ranks.iter().map(square).sum();
    let variance = chosen * (all - chosen) / (all * (all - 1.0)) * squares;
    let nearer = distance.saturating_sub(1) as f64;
    match nearer {
        0.0 => 1.0,
        nearer => libm::erfc(nearer / (2.0 * variance).sqrt()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By all choices, one after the other, with ranks as the textbook has them.
    fn by_all_choices(one: &[f64], other: &[f64]) -> f64 {
        let all = [one, other].concat();
        let wins = |chosen: &dyn Fn(usize) -> bool| {
            let part = |of: bool| {
                let all = all.iter().enumerate();
                all.filter(move |(index, _)| chosen(*index) == of)
            };
            let pairs = part(true).flat_map(|(_, a)| part(false).map(move |(_, b)| (a, b)));
            let wins: f64 = pairs
                .map(|(a, b)| match a.total_cmp(b) {
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.5,
                    std::cmp::Ordering::Less => 0.0,
                })
                .sum();
            (wins - one.len() as f64 * other.len() as f64 / 2.0).abs()
        };
        let seen = wins(&|index| index < one.len());
        let (mut as_far, mut choices) = (0.0, 0.0);
        for mask in 0..1u32 << all.len() {
            if mask.count_ones() as usize == one.len() {
                choices += 1.0;
                if wins(&|index| mask >> index & 1 == 1) >= seen {
                    as_far += 1.0;
                }
            }
        }
        as_far / choices
    }

    proptest! {
        #[test]
        fn it_is_what_all_choices_give(
            // Few values, so that many samples are equal.
            one in prop::collection::vec(0..6u8, 1..6),
            other in prop::collection::vec(0..6u8, 1..6),
        ) {
            let [one, other] = [one, other].map(|it| it.into_iter().map(f64::from).collect::<Vec<_>>());
            let expected = by_all_choices(&one, &other);
            prop_assert!((probability(&one, &other) - expected).abs() < 1e-12);
            prop_assert!((probability(&other, &one) - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn tables_of_the_test_say_the_same() {
        // 2 of 252 choices, of 70, of 20: what published tables begin with.
        assert!((least(5, 5) - 2.0 / 252.0).abs() < 1e-12);
        assert!((least(4, 4) - 2.0 / 70.0).abs() < 1e-12);
        assert!((least(3, 3) - 0.1).abs() < 1e-12);
        assert_eq!(probability(&[1.0, 1.0], &[1.0, 1.0, 1.0]), 1.0);
        assert_eq!(probability(&[], &[1.0]), 1.0);
    }

    #[test]
    fn long_lists_go_on_where_short_ones_end() {
        let list = |from: usize, count: usize| -> Vec<f64> {
            (from..from + count)
                .map(|it| (it * 7 % 40) as f64)
                .collect()
        };
        let [one, other] = [list(0, 32), list(9, 32)];
        let exact = probability(&one, &other);
        let ranks = doubled_ranks(&one, &other);
        let sum: usize = ranks[..32].iter().sum();
        let near = approximation(&ranks, 32, sum.abs_diff(mean(32, 64)));
        assert!((exact - near).abs() < 0.01, "{exact} {near}");
        // Nothing overflows, and what is far apart is seen.
        let far: Vec<f64> = (0..500).map(|it| 1e3 + f64::from(it)).collect();
        assert!(probability(&list(0, 500), &far) < 1e-100);
        assert!(probability(&far, &far) > 0.99);
    }
}
