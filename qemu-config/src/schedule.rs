//! Plays the schedule of a cluster: makes its links do at each time what the file says.

use std::time::Instant;

use serde::Serialize;

use crate::wait::{Deadline, Stop};
use crate::{Cancel, Cluster, Result, Step, StepChange};

/// A step of the schedule that was taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Taken {
    /// When it was to be taken, in seconds after the start.
    pub planned_seconds: f64,
    /// When it was, in seconds after the start.
    pub taken_seconds: f64,
    /// The links: as in a cluster file.
    pub links: String,
    /// What they do from then on, such as `loss 5%`, or `heal`.
    pub change: String,
    /// Directions of links that changed.
    pub directions: u64,
}

impl Cluster {
    /// Takes `steps`, which are in the order of their times, from now on, and tells of each.
    /// Returns when all were taken or `stop` is pulled.
    ///
    /// # Errors
    /// As [`Cluster::set_links`]; the steps after it are not taken.
    pub fn play(&self, steps: &[Step], stop: &Cancel, told: &mut dyn FnMut(Taken)) -> Result<()> {
        let start = Instant::now();
        play(steps, start, stop, &mut |step| {
            let directions = self.apply(step)?;
            told(Taken {
                planned_seconds: step.at.as_secs_f64(),
                taken_seconds: start.elapsed().as_secs_f64(),
                links: step.links.to_string(),
                change: step.change.to_string(),
                directions,
            });
            Ok(())
        })
    }
}

fn play(
    steps: &[Step],
    start: Instant,
    stop: &Cancel,
    apply: &mut dyn FnMut(&Step) -> Result<()>,
) -> Result<()> {
    for step in steps {
        let left = step.at.saturating_sub(start.elapsed());
        let wait = Deadline::new(Some(left), Some(stop));
        if wait.over() == Stop::Cancelled {
            return Ok(());
        }
        apply(step)?;
    }
    Ok(())
}

impl std::fmt::Display for StepChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepChange::Set(change) = self else {
            return f.write_str("heal");
        };
        let named = serde_json::to_value(change).unwrap_or_default();
        let named = named.as_object().into_iter().flatten();
        let words: Vec<_> = named
            .map(|(name, value)| match value.as_str() {
                Some(text) => format!("{name} {text}"),
                None => format!("{name} {value}"),
            })
            .collect();
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ImpairmentChange, Links, Probability};

    fn step(milliseconds: u64, loss: f64) -> Step {
        let change = ImpairmentChange {
            loss: Some(Probability::percent(loss)),
            ..ImpairmentChange::default()
        };
        Step {
            at: Duration::from_millis(milliseconds),
            links: Links::All,
            change: StepChange::Set(change),
            seed: 1,
        }
    }

    #[test]
    fn steps_are_taken_at_their_times_and_in_their_order() {
        let steps = [step(0, 1.0), step(20, 2.0), step(20, 3.0), step(40, 4.0)];
        let (stop, start) = (Cancel::new().unwrap(), Instant::now());
        let mut taken = Vec::new();
        play(&steps, start, &stop, &mut |step| {
            taken.push(step.change.to_string());
            assert!(start.elapsed() >= step.at, "{step:?}");
            Ok(())
        })
        .unwrap();
        assert_eq!(taken, ["loss 1%", "loss 2%", "loss 3%", "loss 4%"]);
    }

    #[test]
    fn a_pulled_cancel_ends_it_before_the_next_step() {
        let steps = [step(0, 1.0), step(600_000, 2.0)];
        let stop = Cancel::new().unwrap();
        let mut count = 0;
        play(&steps, Instant::now(), &stop, &mut |_| {
            count += 1;
            stop.cancel();
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 1);
    }

    #[test]
    fn a_change_is_shown_as_on_the_command_line() {
        let change = ImpairmentChange {
            partition: Some(true),
            rate: Some(None),
            ..ImpairmentChange::default()
        };
        assert_eq!(
            StepChange::Set(change).to_string(),
            "partition true rate null"
        );
        assert_eq!(StepChange::Heal.to_string(), "heal");
    }
}
