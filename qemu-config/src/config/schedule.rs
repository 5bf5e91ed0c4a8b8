//! Faults by the clock: what links do at which time of a run.
//!
//! ```toml
//! [[network.schedule]]
//! at = "2s"                          # after the start of the schedule
//! links = "a:b"                      # "all", a node, "a:b", "a>b"
//! impairments = { loss = "5%" }      # what changes; the rest stays
//!
//! [[network.schedule]]
//! at = "4s"
//! links = "all"
//! partition = true                   # or false
//!
//! [[network.schedule]]
//! at = "6s"
//! links = "all"
//! heal = true                        # what the file says of the links holds again
//! repeat = { every = "10s", times = 3 }   # at 6 s, 16 s and 26 s, each
//! jitter = "500ms"                   # up to this earlier or later, by the seed
//! ```
//!
//! [`ClusterSpec::schedule`](super::ClusterSpec::schedule) is a function of the file and its seed: the same seed gives the
//! same times, and each step gives its links a seed of their own. What a link does to the
//! frames after a step therefore does not depend on how many passed before it.

use std::time::Duration;

use qnic_config::plan::units::Span;
use qnic_config::plan::{ImpairmentChange, Topology};
use qnic_config::{check_link, index_of, require, ConfigError};
use serde::{Deserialize, Serialize};

use crate::Links;

/// Most steps of a schedule, repetitions included.
const MAX_STEPS: u64 = 10_000;

/// One entry of a schedule: exactly one of `impairments`, `partition` and `heal` is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Time after the start of the schedule.
    pub at: Span,
    /// The links that change.
    pub links: Links,
    /// What they do from then on; what is not named stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impairments: Option<ImpairmentChange>,
    /// Whether nothing passes from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<bool>,
    /// The links do again what the file says.
    #[serde(default, skip_serializing_if = "is_false")]
    pub heal: bool,
    /// How often and when again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<RepeatSpec>,
    /// Largest deviation from each time, evenly distributed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jitter: Span,
}

/// How an entry of a schedule is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepeatSpec {
    /// Time from one to the next.
    pub every: Span,
    /// How often in all.
    pub times: u32,
}

/// A step of a schedule, with its chance drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Time after the start of the schedule.
    pub at: Duration,
    /// The links that change.
    pub links: Links,
    /// What they do from then on.
    pub change: StepChange,
    /// Seed of the links' chance from then on.
    pub seed: u64,
}

/// What a step makes of links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepChange {
    /// They do this, and otherwise what they did.
    Set(ImpairmentChange),
    /// They do again what the file says.
    Heal,
}

// Serde passes a reference.
fn is_false(heal: &bool) -> bool {
    !heal
}

fn is_zero(span: &Span) -> bool {
    *span == Span::ZERO
}

impl ScheduleSpec {
    fn times(&self) -> u32 {
        self.repeat.map_or(1, |repeat| repeat.times)
    }

    fn change(&self) -> StepChange {
        let partition = self.partition.map(|partition| ImpairmentChange {
            partition: Some(partition),
            ..ImpairmentChange::default()
        });
        let change = self.impairments.or(partition);
        change.map_or(StepChange::Heal, StepChange::Set)
    }

    /// The steps of the entry with this index.
    fn steps(&self, index: u64, seed: u64) -> impl Iterator<Item = Step> + '_ {
        (0..self.times()).map(move |turn| {
            let mut chance = chance_of(seed, index, turn.into());
            let every = self.repeat.map_or(0, |repeat| repeat.every.get());
            let jitter = self.jitter.get();
            let moved = chance.u64(0..=2 * jitter);
            let time = self.at.get() + every * u64::from(turn) + moved - jitter;
            Step {
                at: Duration::from_nanos(time),
                links: self.links.clone(),
                change: self.change(),
                seed: chance.u64(..),
            }
        })
    }
}

/// The chance of one step, whatever other steps there are.
fn chance_of(seed: u64, index: u64, turn: u64) -> fastrand::Rng {
    let mut chance = fastrand::Rng::with_seed(seed);
    for number in [index, turn] {
        chance = fastrand::Rng::with_seed(chance.u64(..) ^ number);
    }
    chance
}

/// The steps of a schedule in the order of their times, those of one time in its order.
pub(super) fn steps(entries: &[ScheduleSpec], seed: u64) -> Vec<Step> {
    let entries = entries.iter().zip(0..);
    let mut steps: Vec<_> = entries
        .flat_map(|(entry, index)| entry.steps(index, seed))
        .collect();
    steps.sort_by_key(|step| step.at);
    steps
}

/// Checks the schedule of a network of `nodes`.
pub(super) fn check(
    schedule: &[ScheduleSpec],
    topology: &Topology,
    nodes: &[&str],
) -> Result<(), ConfigError> {
    let mut steps = 0;
    for (index, entry) in schedule.iter().enumerate() {
        let key = format!("network.schedule[{index}]");
        check_links(&entry.links, topology, nodes, &format!("{key}.links"))?;
        check_change(entry, &key)?;
        if let Some(repeat) = entry.repeat {
            let message = "expected a time that is not 0";
            let every = format!("{key}.repeat.every");
            require(repeat.every > Span::ZERO, every, message)?;
            let message = "expected at least 1";
            require(repeat.times > 0, format!("{key}.repeat.times"), message)?;
        }
        steps += u64::from(entry.times());
        let message = format!("expected at most {MAX_STEPS} steps in all, found {steps}");
        require(steps <= MAX_STEPS, &key, message)?;
        let message = format!("expected at most the time \"at\", {}", entry.at);
        require(entry.jitter <= entry.at, format!("{key}.jitter"), message)?;
    }
    Ok(())
}

fn check_change(entry: &ScheduleSpec, key: &str) -> Result<(), ConfigError> {
    let given = [
        entry.impairments.is_some(),
        entry.partition.is_some(),
        entry.heal,
    ];
    let count = given.iter().filter(|given| **given).count();
    let message =
        format!("expected one of impairments, partition and heal = true, found {count} of them");
    require(count == 1, key, message)?;
    let something = entry.impairments != Some(ImpairmentChange::default());
    let message = "expected something that changes, such as { loss = \"5%\" }";
    require(something, format!("{key}.impairments"), message)
}

fn check_links(
    links: &Links,
    topology: &Topology,
    nodes: &[&str],
    key: &str,
) -> Result<(), ConfigError> {
    match links {
        Links::All => Ok(()),
        Links::At(node) => index_of(&node.as_str(), nodes, key).map(drop),
        Links::Between(a, b) | Links::OneWay(a, b) => {
            check_link(topology, nodes, [&a.as_str(), &b.as_str()], key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_errors, parse};
    use super::*;

    const WHOLE: &str = "\
name = \"c\"\n[[node]]\nname = \"n\"\ncount = 4\n[network]\ntopology = \"ring\"\nseed = 7
[[network.schedule]]\nat = \"2s\"\nlinks = \"n0:n1\"\nimpairments = { loss = \"5%\" }
[[network.schedule]]\nat = \"4s\"\nlinks = \"n2\"\npartition = true
[[network.schedule]]\nat = \"6s\"\nlinks = \"n0>n3\"\nheal = true\nrepeat = { every = \"10s\", times = 3 }\njitter = \"500ms\"\n";

    fn seconds(steps: &[Step]) -> Vec<f64> {
        steps.iter().map(|step| step.at.as_secs_f64()).collect()
    }

    #[test]
    fn a_schedule_is_understood_drawn_by_its_seed_and_printed_again() {
        let spec = parse(WHOLE).unwrap();
        assert_eq!(parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let steps = spec.schedule();
        assert_eq!(steps[0].at, Duration::from_secs(2));
        let loss = ImpairmentChange {
            loss: Some(qnic_config::plan::units::Probability::percent(5.0)),
            ..ImpairmentChange::default()
        };
        assert_eq!(steps[0].change, StepChange::Set(loss));
        assert_eq!(steps[1].links, Links::At("n2".into()));
        assert_eq!(steps.len(), 5);
        for (step, planned) in steps[2..].iter().zip([6.0, 16.0, 26.0]) {
            let off = step.at.as_secs_f64() - planned;
            assert!(off.abs() <= 0.5 && off != 0.0, "{step:?}");
            assert_eq!(step.change, StepChange::Heal);
        }
        assert_eq!(spec.schedule(), steps);
        let other = parse(&WHOLE.replace("seed = 7", "seed = 8")).unwrap();
        assert_ne!(seconds(&other.schedule()), seconds(&steps));
    }

    /// What is drawn for a step does not depend on the entries beside it, and no two steps
    /// draw the same.
    #[test]
    fn each_step_has_a_chance_of_its_own() {
        let whole = parse(WHOLE).unwrap().schedule();
        let longer = parse(&WHOLE.replace("times = 3", "times = 4")).unwrap();
        assert_eq!(longer.schedule()[..5], whole);
        let seeds: std::collections::BTreeSet<_> = whole.iter().map(|step| step.seed).collect();
        assert_eq!(seeds.len(), whole.len());
    }

    #[test]
    fn steps_of_one_time_keep_the_order_of_the_file() {
        let text = WHOLE.replace("\"4s\"", "\"2s\"");
        let steps = parse(&text).unwrap().schedule();
        assert_eq!(
            steps[0].links,
            Links::Between("n0".into(), "n1".into()),
            "{steps:?}"
        );
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let table = r#"
            "2s" => "soon" | c.toml:9:6: network.schedule[0].at: expected a time
            "2s" => "11m" | c.toml:9:6: network.schedule[0].at: expected a time
            n0:n1 => n0:n2 | c.toml:10:9: network.schedule[0].links: no link of this topology joins "n0" and "n2"
            n0:n1 => n0:x | c.toml:10:9: network.schedule[0].links: there is no node "x"
            n0:n1 => x | c.toml:10:9: network.schedule[0].links: there is no node "x"
            "5%" => "5" | c.toml:11:24: network.schedule[0].impairments.loss: expected a percentage
            loss = "5%" => | c.toml:11:15: network.schedule[0].impairments: expected something that changes
            loss => lots | c.toml:11:17: network.schedule[0].impairments.lots: unknown field `lots`
            impairments = { loss = "5%" } => heal = false | c.toml:8:1: network.schedule[0]: expected one of impairments, partition and heal = true, found 0
            partition = true => partition = true\nheal = true | c.toml:12:1: network.schedule[1]: expected one of impairments, partition and heal = true, found 2
            partition = true => partition = "yes" | c.toml:15:13: network.schedule[1].partition: invalid type
            every = "10s" => every = "0s" | c.toml:20:20: network.schedule[2].repeat.every: expected a time that is not 0
            times = 3 => times = 0 | c.toml:20:35: network.schedule[2].repeat.times: expected at least 1
            times = 3 => times = 9999 | c.toml:16:1: network.schedule[2]: expected at most 10000 steps in all, found 10001
            "500ms" => "7s" | c.toml:21:10: network.schedule[2].jitter: expected at most the time "at", 6s
            at = "4s" => | c.toml:12:1: network.schedule[1]: missing field `at`
            jitter => jiter | c.toml:21:1: network.schedule[2].jiter: unknown field `jiter`
        "#;
        assert_errors(WHOLE, table);
    }
}
