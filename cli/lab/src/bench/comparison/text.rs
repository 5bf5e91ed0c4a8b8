//! A comparison, as a file has it, and for a terminal.

use std::fmt;

use serde::Serialize;

use super::super::figures::Spread;
use super::super::machine::{Machine, Sources};
use super::super::numbers::number;
use super::super::text::aligned;
use super::verdict::{Compared, Verdict};

/// What the file says that it is.
pub(in crate::bench) const FORMAT: &str = "qnic-bench-comparison";

/// The version of the file's schema.
pub(in crate::bench) const VERSION: u32 = 1;

/// One of two runs.
#[derive(Debug, Serialize)]
pub(in crate::bench) struct Side {
    /// Its file.
    pub(in crate::bench) file: String,
    /// When it began.
    pub(in crate::bench) started: String,
    pub(in crate::bench) machine: Machine,
    pub(in crate::bench) sources: Sources,
    /// Suites that are compared and were measured on a busy machine.
    pub(in crate::bench) busy: Vec<String>,
}

/// Two runs, compared.
#[derive(Debug, Serialize)]
pub(in crate::bench) struct Comparison {
    pub(in crate::bench) format: &'static str,
    pub(in crate::bench) version: u32,
    pub(in crate::bench) old: Side,
    pub(in crate::bench) new: Side,
    /// In what their machines differ; empty for the same.
    pub(in crate::bench) machines: Vec<String>,
    /// What of each figure is compared: `figures` or `ratios`.
    pub(in crate::bench) by: &'static str,
    /// By how much a figure may be worse.
    pub(in crate::bench) threshold: f64,
    /// A difference of this probability, or less, is more than chance.
    pub(in crate::bench) alpha: f64,
    /// Suites that are compared.
    pub(in crate::bench) suites: Vec<String>,
    /// Suites that only NEW has.
    pub(in crate::bench) added_suites: Vec<String>,
    /// Figures that both have, in the order of NEW.
    pub(in crate::bench) figures: Vec<Compared>,
    /// Figures that only OLD has, or only NEW.
    pub(in crate::bench) gone: Vec<String>,
    pub(in crate::bench) added: Vec<String>,
}

impl Comparison {
    /// Its figures with that verdict.
    pub(in crate::bench) fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Compared> {
        let all = self.figures.iter();
        all.filter(move |figure| figure.verdict == verdict)
    }
}

/// Verdicts in the order in which they are read, and how they are headed.
pub(in crate::bench) const HEADS: [(Verdict, &str); 6] = [
    (Verdict::Regressed, "Regressed"),
    (Verdict::Improved, "Improved"),
    (
        Verdict::Differs,
        "Different by more than chance; within the threshold, or a peer's",
    ),
    (Verdict::Same, "No more different than by chance"),
    (Verdict::TooFew, "Too few rounds to tell"),
    (Verdict::NotCompared, "Not measured by both"),
];

impl Comparison {
    /// What is wrong with it as a whole, a line each.
    pub(in crate::bench) fn warnings(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.machines.is_empty() {
            let what = self.machines.join("; ");
            let only = match self.by {
                "ratios" => "only ratios are compared",
                _ => "figures say little",
            };
            lines.push(format!("TWO MACHINES, so {only}: {what}"));
        }
        for (name, side) in [("OLD", &self.old), ("NEW", &self.new)] {
            if !side.busy.is_empty() {
                let suites = side.busy.join(", ");
                lines.push(format!("A BUSY MACHINE measured in {name}: {suites}"));
            }
        }
        lines
    }

    /// How many figures would differ by chance alone.
    pub(in crate::bench) fn by_chance(&self) -> f64 {
        let tested =
            |figure: &&Compared| !matches!(figure.verdict, Verdict::TooFew | Verdict::NotCompared);
        self.alpha * self.figures.iter().filter(tested).count() as f64
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit: String = self.sources.commit.chars().take(12).collect();
        let modified = if self.sources.modified {
            ", modified"
        } else {
            ""
        };
        write!(
            f,
            "{}: begun {}, commit {commit}{modified}",
            self.file, self.started
        )
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.warnings() {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "OLD {}\nNEW {}", self.old, self.new)?;
        writeln!(
            f,
            "Compared by {}: {}; threshold {:.1} %, p ≤ {}",
            self.by,
            self.suites.join(", "),
            self.threshold * 100.0,
            self.alpha
        )?;
        for (verdict, head) in HEADS {
            let lines: Vec<_> = self.with(verdict).map(cells).collect();
            if !lines.is_empty() {
                writeln!(f, "\n{head}: {}", lines.len())?;
                f.write_str(&aligned("  ", &lines))?;
            }
        }
        for (head, names) in [
            ("Suites that only NEW has", &self.added_suites),
            ("Figures that only OLD has", &self.gone),
            ("Figures that only NEW has", &self.added),
        ] {
            if !names.is_empty() {
                writeln!(f, "\n{head}: {}", names.len())?;
                names.iter().try_for_each(|name| writeln!(f, "  {name}"))?;
            }
        }
        let count = |verdict| self.with(verdict).count();
        writeln!(
            f,
            "\n{} regressed, {} improved of {} figures; by chance alone {:.1} would differ",
            count(Verdict::Regressed),
            count(Verdict::Improved),
            self.figures.len(),
            self.by_chance()
        )
    }
}

/// A figure in words: its id, both medians with their spreads, the ratio, the probability.
pub(in crate::bench) fn cells(figure: &Compared) -> [String; 6] {
    let side = |spread: Option<Spread>| match spread {
        None => "-".to_owned(),
        Some(Spread { median, low, high }) => {
            let [median, low, high] = [median, low, high].map(number);
            format!("{median} ({low} … {high})")
        }
    };
    let ratio = figure.ratio.map(|ratio| format!("{ratio:.3}"));
    let probability = figure.probability.map(|it| match it {
        it if it < 1e-4 => "p < 0.0001".to_owned(),
        it => format!("p {it:.4}"),
    });
    let mut notes = Vec::new();
    if figure.goal_lost {
        notes.push("goal missed since");
    }
    if figure.busy {
        notes.push("busy");
    }
    [
        format!("{} {}", figure.id, figure.unit)
            .trim_end()
            .to_owned(),
        side(figure.old),
        side(figure.new),
        ratio.unwrap_or("-".into()),
        probability.unwrap_or("-".into()),
        notes.join(", "),
    ]
}
