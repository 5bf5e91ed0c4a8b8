//! Which suites run, and how far the run is.

use std::fmt::Write as _;

use qnic_cli::lab::bench::Suite;

use super::load;
use super::suites::{Entry, ALL};

/// Seconds that looking at the load takes beside each suite.
const AROUND: f64 = 2.0 * load::SPAN.as_secs_f64();

/// Suites that run one after the other, and how long that takes.
pub(super) struct Plan {
    /// Suites, and the rounds of each.
    pub(super) suites: Vec<(&'static Entry, usize)>,
    /// Seconds that those took that are done.
    taken: f64,
    done: usize,
}

impl Plan {
    /// The suites `wanted`, each once, or all if none is named.
    pub(super) fn new(wanted: &[Suite], rounds: Option<usize>) -> Self {
        let named = |suite: &Suite| wanted.iter().any(|it| it.parts().contains(suite));
        let wanted = |entry: &&Entry| wanted.is_empty() || named(&entry.suite);
        let suites = ALL.iter().filter(wanted);
        Plan {
            suites: suites
                .map(|entry| (entry, rounds.unwrap_or(entry.rounds)))
                .collect(),
            taken: 0.0,
            done: 0,
        }
    }

    fn seconds((entry, rounds): &(&Entry, usize)) -> f64 {
        entry.estimate(*rounds) + AROUND
    }

    /// Says that a suite has ended, after so many seconds.
    pub(super) fn ended(&mut self, seconds: f64) {
        self.done += 1;
        self.taken += seconds;
    }

    /// Seconds that are left: those of two cores, by what this machine took for what is done.
    pub(super) fn left(&self) -> f64 {
        let sum = |part: &[(&Entry, usize)]| part.iter().map(Self::seconds).sum::<f64>();
        let (done, left) = self.suites.split_at(self.done);
        let pace = match sum(done) {
            0.0 => 1.0,
            // One suite that was quick says little about the others.
            done => (self.taken / done).clamp(0.5, 10.0),
        };
        sum(left) * pace
    }

    /// The plan for people.
    pub(super) fn show(&self) -> String {
        let mut text = format!(
            "{} of {} suites, {} on two cores:\n",
            self.suites.len(),
            ALL.len(),
            about(self.left())
        );
        for suite in &self.suites {
            let (entry, rounds) = suite;
            let time = about(Self::seconds(suite));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  {:<10}  {rounds:>2} rounds, {time}: {}",
                entry.id, entry.title
            );
        }
        text
    }

    /// Where the run is, when the next suite begins.
    pub(super) fn progress(&self) -> String {
        let left = about(self.left());
        let (number, all) = (self.done + 1, self.suites.len());
        match self.suites.get(self.done) {
            Some((entry, rounds)) => format!(
                "[{number} of {all}] {}, {rounds} rounds; {left} left",
                entry.id
            ),
            None => "all suites have run".to_owned(),
        }
    }
}

/// A time as people say it.
fn about(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 90.0 => format!("about {:.0} s", (seconds / 5.0).ceil() * 5.0),
        seconds => format!("about {:.0} min", (seconds / 60.0).ceil()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_goes_by_what_this_machine_took() {
        let mut plan = Plan::new(&[Suite::Sync, Suite::Host, Suite::Sync], Some(3));
        let ids: Vec<_> = plan.suites.iter().map(|(entry, _)| entry.id).collect();
        assert_eq!(ids, ["host", "sync"]);
        let sync = Plan::seconds(&plan.suites[1]);
        let first = Plan::seconds(&plan.suites[0]);
        assert_eq!(plan.left(), first + sync);
        assert!(plan
            .progress()
            .starts_with("[1 of 2] host, 3 rounds; about "));
        plan.ended(2.0 * first);
        assert_eq!(plan.left(), 2.0 * sync);
        assert!(plan.progress().starts_with("[2 of 2] sync"));
        plan.ended(1.0);
        assert_eq!(plan.left(), 0.0);
    }

    #[test]
    fn a_name_for_several_suites_runs_each_once() {
        let plan = Plan::new(&[Suite::Sync, Suite::Paper], None);
        let ids: Vec<_> = plan.suites.iter().map(|(entry, _)| entry.id).collect();
        assert_eq!(ids, ["memory", "sync", "curves"]);
    }

    #[test]
    fn without_a_name_all_suites_run() {
        let plan = Plan::new(&[], None);
        assert_eq!(plan.suites.len(), ALL.len());
        assert!(plan
            .suites
            .iter()
            .all(|(entry, rounds)| entry.rounds == *rounds));
        let text = plan.show();
        assert!(text.contains("min on two cores"), "{text}");
        assert!(ALL.iter().all(|entry| text.contains(entry.title)), "{text}");
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(about(41.0), "about 45 s");
        assert_eq!(about(90.0), "about 2 min");
    }
}
