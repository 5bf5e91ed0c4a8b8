//! Which suites run, and how far the run is.

use qnic_cli::lab::bench::Suite;

use super::load;
use super::spec::{self, Suite as Spec};
use super::suites::{self, Measure};

/// Seconds that looking at the load takes beside each suite.
const AROUND: f64 = 2.0 * load::SPAN.as_secs_f64();

/// A suite, and how many rounds it runs.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    pub(super) spec: &'static Spec,
    pub(super) measure: Measure,
    pub(super) rounds: usize,
}

impl Planned {
    fn seconds(&self) -> f64 {
        self.spec.estimate(self.rounds) + AROUND
    }
}

/// Suites that run one after the other, and how long that takes.
pub(super) struct Plan {
    pub(super) suites: Vec<Planned>,
    /// Seconds that those took that are done.
    taken: f64,
    done: usize,
}

impl Plan {
    /// The suites `wanted`, each once, or all if none is named.
    pub(super) fn new(wanted: &[Suite], rounds: Option<usize>) -> Self {
        let planned = spec::suites().iter().filter_map(|spec| {
            let (suite, measure) = suites::of(&spec.id)?;
            let named = wanted.iter().any(|it| it.parts().contains(&suite));
            let rounds = rounds.unwrap_or(spec.rounds);
            (named || wanted.is_empty()).then_some(Planned {
                spec,
                measure,
                rounds,
            })
        });
        Plan {
            suites: planned.collect(),
            taken: 0.0,
            done: 0,
        }
    }

    /// Says that a suite has ended, after so many seconds.
    pub(super) fn ended(&mut self, seconds: f64) {
        self.done += 1;
        self.taken += seconds;
    }

    /// Seconds that are left: those of two cores, by what this machine took for what is done.
    pub(super) fn left(&self) -> f64 {
        let sum = |part: &[Planned]| part.iter().map(Planned::seconds).sum::<f64>();
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
        let (count, all) = (self.suites.len(), spec::suites().len());
        let mut text = format!(
            "{count} of {all} suites, {} on two cores:\n",
            about(self.left())
        );
        for planned in &self.suites {
            let Planned { spec, rounds, .. } = planned;
            let time = about(planned.seconds());
            text += &format!(
                "  {:<10}  {rounds:>2} rounds, {time}: {}\n",
                spec.id, spec.title
            );
        }
        text
    }

    /// Where the run is, when the next suite begins.
    pub(super) fn progress(&self) -> String {
        let left = about(self.left());
        let (number, all) = (self.done + 1, self.suites.len());
        match self.suites.get(self.done) {
            Some(Planned { spec, rounds, .. }) => {
                format!(
                    "[{number} of {all}] {}, {rounds} rounds; {left} left",
                    spec.id
                )
            }
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

    fn ids(plan: &Plan) -> Vec<&str> {
        plan.suites.iter().map(|it| it.spec.id.as_str()).collect()
    }

    #[test]
    fn what_is_left_goes_by_what_this_machine_took() {
        let mut plan = Plan::new(&[Suite::Sync, Suite::Host, Suite::Sync], Some(3));
        assert_eq!(ids(&plan), ["host", "sync"]);
        let [first, sync] = [0, 1].map(|index| plan.suites[index].seconds());
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
        assert_eq!(ids(&plan), ["memory", "sync", "curves", "paper-guest"]);
    }

    #[test]
    fn without_a_name_all_suites_run() {
        let plan = Plan::new(&[], None);
        assert_eq!(plan.suites.len(), spec::suites().len());
        assert!(plan.suites.iter().all(|it| it.rounds == it.spec.rounds));
        let text = plan.show();
        assert!(text.contains("min on two cores"), "{text}");
        assert!(
            plan.suites.iter().all(|it| text.contains(&it.spec.title)),
            "{text}"
        );
    }

    #[test]
    fn times_are_rounded_up() {
        assert_eq!(about(41.0), "about 45 s");
        assert_eq!(about(90.0), "about 2 min");
    }
}
