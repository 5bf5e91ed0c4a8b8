//! Names of the clusters that trials boot.

use qnic_cluster::MAX_NAME;

/// A name for the cluster of a trial, made from `name`: no other trial of this machine has it
/// at the same time.
pub(crate) fn of_trial(name: &str, process: u32, cell: Option<usize>) -> String {
    let cell = cell.map_or(String::new(), |cell| format!("-{cell}"));
    let suffix = format!("-{process}{cell}");
    let kept = MAX_NAME.saturating_sub(suffix.len());
    let stem: String = name.chars().take(kept).collect();
    format!("{}{suffix}", stem.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_enough_and_differ() {
        assert_eq!(of_trial("pair", 12, None), "pair-12");
        assert_eq!(of_trial("pair", 12, Some(3)), "pair-12-3");
        let long = of_trial("a-name-of-24-characters-", u32::MAX, Some(9999));
        assert_eq!(long, "a-name-o-4294967295-9999");
        assert!(long.len() <= MAX_NAME);
    }
}
