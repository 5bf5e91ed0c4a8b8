//! One figure of two runs.

use qnic_cli::lab::bench::By;
use serde::Serialize;

use super::super::figures::{median, Figure, Role, Spread};
use super::super::goal::Better;
use super::super::rank;

/// A difference of this probability, or less, is more than chance.
pub(in crate::bench) const ALPHA: f64 = 0.01;

/// What is to be said of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::bench) enum Verdict {
    /// Worse by more than chance and threshold.
    Regressed,
    /// Better by more than chance and threshold.
    Improved,
    /// Different by more than chance; by less than the threshold, or the figure has no better side, or
    /// it is a peer's.
    Differs,
    /// No more different than by chance.
    Same,
    /// Too few rounds to tell.
    TooFew,
    /// One run has not measured it, or it has no ratio and ratios are compared.
    NotCompared,
}

/// One figure of two runs.
#[derive(Debug, Clone, Serialize)]
pub(in crate::bench) struct Compared {
    /// Its id in both.
    pub(in crate::bench) id: String,
    /// Its unit in NEW; of ratios none.
    pub(in crate::bench) unit: String,
    pub(in crate::bench) role: Role,
    pub(in crate::bench) better: Option<Better>,
    /// What is compared: of the figures, or of their ratios.
    pub(in crate::bench) old: Option<Spread>,
    pub(in crate::bench) new: Option<Spread>,
    /// The median of NEW divided by that of OLD; none if that is 0.
    pub(in crate::bench) ratio: Option<f64>,
    /// The probability of such a difference by chance.
    pub(in crate::bench) probability: Option<f64>,
    pub(in crate::bench) verdict: Verdict,
    /// One of both suites was measured on a busy machine.
    pub(in crate::bench) busy: bool,
    /// Its goal was met in OLD, and is missed in NEW.
    pub(in crate::bench) goal_lost: bool,
}

impl Compared {
    pub(in crate::bench) fn new(
        old: &Figure,
        new: &Figure,
        by: By,
        threshold: f64,
        busy: bool,
    ) -> Self {
        let of = |figure: &Figure| match (by, figure.unit == new.unit) {
            (By::Figures, true) => figure.samples.clone(),
            // What was counted in other units is no smaller for a smaller number.
            (By::Figures, false) => Vec::new(),
            (By::Ratios, _) => of_ratio(figure),
        };
        let (before, after) = (of(old), of(new));
        let (from, to) = (median(&before), median(&after));
        let both = !before.is_empty() && !after.is_empty();
        let probability = both.then(|| rank::probability(&before, &after));
        let met = |figure: &Figure| figure.goal.as_ref().and_then(|goal| goal.met);
        let unit = if by == By::Ratios { "" } else { &new.unit };
        Compared {
            id: new.id.clone(),
            unit: unit.to_owned(),
            role: new.role,
            better: new.better,
            old: Spread::of(&before),
            new: Spread::of(&after),
            ratio: Some(to / from).filter(|ratio| ratio.is_finite()),
            probability,
            verdict: match probability {
                None => Verdict::NotCompared,
                Some(_) if rank::least(before.len(), after.len()) > ALPHA => Verdict::TooFew,
                Some(probability) if probability > ALPHA => Verdict::Same,
                Some(_) if new.role != Role::Own => Verdict::Differs,
                Some(_) => beyond(from, to, new.better, threshold),
            },
            busy,
            goal_lost: met(old) == Some(true) && met(new) == Some(false),
        }
    }
}

/// The samples, each divided by the floor of its round; by the floor's median if not each round has
/// one. Empty without a floor of the same run.
fn of_ratio(figure: &Figure) -> Vec<f64> {
    let floor = figure.ratio.as_ref().map(|ratio| &ratio.floor_samples);
    let floor = floor.map_or(&[][..], Vec::as_slice);
    let middle = median(floor);
    let each = figure.samples.iter().enumerate();
    let ratios = each.map(
        |(round, sample)| match floor.len() == figure.samples.len() {
            true => sample / floor[round],
            false => sample / middle,
        },
    );
    ratios.filter(|ratio| ratio.is_finite()).collect()
}

/// What a difference that is more than chance means.
fn beyond(old: f64, new: f64, better: Option<Better>, threshold: f64) -> Verdict {
    let grown = new > old * (1.0 + threshold);
    let shrunk = new * (1.0 + threshold) < old;
    match (better, grown, shrunk) {
        (Some(Better::Lower), true, _) | (Some(Better::Higher), _, true) => Verdict::Regressed,
        (Some(Better::Lower), _, true) | (Some(Better::Higher), true, _) => Verdict::Improved,
        _ => Verdict::Differs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(unit: &str, samples: &[f64]) -> Figure {
        Figure::new("x", unit, samples.to_vec())
    }

    #[test]
    fn the_unit_says_what_is_worse() {
        let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0]);
        let compared =
            |old: &Figure, new: &Figure| Compared::new(old, new, By::Figures, 0.05, false).verdict;
        for (unit, old, new, verdict) in [
            ("ns", &low[..], &high[..], Verdict::Regressed),
            ("ns", &high, &low, Verdict::Improved),
            ("MB/s", &low, &high, Verdict::Improved),
            ("MB/s", &high, &low, Verdict::Regressed),
            ("bytes", &low, &high, Verdict::Differs),
            ("ns", &low, &[], Verdict::NotCompared),
            // What cost nothing and costs something now has no ratio, and is worse.
            ("each", &[0.0; 5], &low, Verdict::Regressed),
        ] {
            assert_eq!(
                compared(&figure(unit, old), &figure(unit, new)),
                verdict,
                "{unit}"
            );
        }
        let mut of_peer = figure("ns", &high);
        of_peer.role = Role::Peer;
        assert_eq!(compared(&figure("ns", &low), &of_peer), Verdict::Differs);
        assert_eq!(
            compared(&figure("ms", &low), &figure("ns", &high)),
            Verdict::NotCompared
        );
    }

    #[test]
    fn ratios_are_those_of_each_round() {
        let mut of_rounds = figure("ns", &[2.0, 4.0, 6.0]).ratio_to("of floor", &[1.0, 2.0, 3.0]);
        assert_eq!(of_ratio(&of_rounds), [2.0, 2.0, 2.0]);
        of_rounds = of_rounds.ratio_to("of floor", &[4.0]);
        assert_eq!(of_ratio(&of_rounds), [0.5, 1.0, 1.5]);
        assert_eq!(of_ratio(&figure("ns", &[1.0])), [0.0; 0]);
    }
}
