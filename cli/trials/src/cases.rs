//! Cases and suites: what a report tells of a run.

use std::time::Duration;

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it belongs to, such as `pair.a`: a cluster and a node.
    pub class: String,
    /// What it is, such as `boot`.
    pub name: String,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub ended: Ended,
    /// What it printed, or the end of that.
    pub output: String,
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As it should.
    Passed,
    /// It did not come to it.
    Skipped(String),
    /// Otherwise.
    Failed {
        /// Why, in a line.
        message: String,
        /// What may explain it, such as the end of a console.
        details: String,
    },
}

/// Cases that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// What it ran with.
    pub properties: Vec<(String, String)>,
    /// How long all of it took.
    pub took: Duration,
    /// What was tried, in order.
    pub cases: Vec<Case>,
}

impl Case {
    /// A case that passed and printed nothing.
    pub fn passed(class: impl Into<String>, name: impl Into<String>, took: Duration) -> Self {
        Self {
            class: class.into(),
            name: name.into(),
            took,
            ended: Ended::Passed,
            output: String::new(),
        }
    }

    /// The same, failed.
    #[must_use]
    pub fn failing(self, message: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            ended: Ended::Failed {
                message: message.into(),
                details: details.into(),
            },
            ..self
        }
    }

    /// A case that was not reached.
    #[must_use]
    pub fn skipped(self, why: impl Into<String>) -> Self {
        Self {
            ended: Ended::Skipped(why.into()),
            ..self
        }
    }

    /// Returns true if it failed.
    pub fn has_failed(&self) -> bool {
        matches!(self.ended, Ended::Failed { .. })
    }
}
