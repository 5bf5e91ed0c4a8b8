//! How a trial ended, and the exit status for that.

use std::fmt;
use std::time::Duration;

use crate::cases::{Case, Suite};
use crate::settings::Setting;

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The program returned 0 on every node.
    Passed,
    /// The program failed on this node.
    Failed {
        /// The first such node in the order of the file.
        node: String,
        /// Its status, as a shell gives it: 128 and the signal's number for a signal.
        status: u8,
    },
    /// The kernel of this node's guest panicked.
    Panicked(String),
    /// The program had its time, on this node first.
    TimedOut(String),
    /// The program could not be started on this node; the guest says why.
    NotStarted {
        /// The node.
        node: String,
        /// Returns true if there is no such program.
        missing: bool,
        /// What the guest said.
        message: String,
    },
    /// A signal came.
    Interrupted,
    /// The trial could not be carried out.
    Impossible(String),
}

impl Verdict {
    /// The kernel of a guest panicked.
    pub const PANICKED: u8 = 123;
    /// The time was over, as `timeout` says.
    pub const TIMED_OUT: u8 = 124;
    /// The trial could not be carried out.
    pub const IMPOSSIBLE: u8 = 125;
    /// The program is there but cannot be executed.
    pub const CANNOT_EXECUTE: u8 = 126;
    /// There is no such program.
    pub const NOT_FOUND: u8 = 127;
    /// A signal came.
    pub const INTERRUPTED: u8 = 130;

    /// The exit status that tells it.
    pub fn status(&self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed { status, .. } => *status,
            Self::Panicked(_) => Self::PANICKED,
            Self::TimedOut(_) => Self::TIMED_OUT,
            Self::NotStarted { missing: true, .. } => Self::NOT_FOUND,
            Self::NotStarted { .. } => Self::CANNOT_EXECUTE,
            Self::Interrupted => Self::INTERRUPTED,
            Self::Impossible(_) => Self::IMPOSSIBLE,
        }
    }

    /// Returns true if all went well.
    pub fn passed(&self) -> bool {
        *self == Self::Passed
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed { node, status } => write!(f, "status {status} on {node}"),
            Self::Panicked(node) => write!(f, "the kernel of {node} panicked"),
            Self::TimedOut(node) => write!(f, "timed out on {node}"),
            Self::NotStarted { message, .. } => f.write_str(message),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Impossible(why) => f.write_str(why),
        }
    }
}

/// What is known of a trial after its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The name of the cluster file.
    pub name: String,
    /// What was set beside the file.
    pub settings: Vec<Setting>,
    /// Seed of all chance.
    pub seed: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// What was done, for each node and phase.
    pub cases: Vec<Case>,
    /// How long it took.
    pub took: Duration,
}

impl Outcome {
    /// The cases as a suite of a report.
    pub fn suite(&self) -> Suite {
        let settings: Vec<_> = self.settings.iter().map(Setting::to_string).collect();
        let name = match settings.is_empty() {
            true => self.name.clone(),
            false => format!("{} {}", self.name, settings.join(" ")),
        };
        let pairs = self.settings.iter();
        let pairs = pairs.map(|one| (one.key().to_owned(), one.value().to_owned()));
        let mut properties: Vec<_> = pairs.collect();
        properties.push(("seed".to_owned(), self.seed.to_string()));
        Suite {
            name: format!("{name} seed={}", self.seed),
            properties,
            took: self.took,
            cases: self.cases.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_has_a_status_of_its_own() {
        let node = || "a".to_owned();
        let not_started = |missing| Verdict::NotStarted {
            node: node(),
            missing,
            message: String::new(),
        };
        let all = [
            Verdict::Passed,
            Verdict::Failed {
                node: node(),
                status: 7,
            },
            Verdict::Panicked(node()),
            Verdict::TimedOut(node()),
            not_started(true),
            not_started(false),
            Verdict::Interrupted,
            Verdict::Impossible(String::new()),
        ];
        let statuses = all.map(|verdict| verdict.status());
        assert_eq!(statuses, [0, 7, 123, 124, 127, 126, 130, 125]);
    }
}
