//! What all commands share: the choice of a cluster, tables, progress, failures.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressStyle};
use qnic_cluster::{Cancel, Cluster, Error, Progress, Runtime};
use serde::Serialize;

use crate::name;

/// Exit status of a wrong command line or cluster file.
pub const WRONG_INPUT: u8 = 2;
/// The variable that names the cluster of a command which another has handed over.
pub(crate) const CLUSTER: &str = "QNIC_CLUSTER";
/// Exit status after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

const TICK: Duration = Duration::from_millis(120);

/// Progress on standard error: moving lines on a terminal, plain ones elsewhere.
pub(crate) fn progress() -> Arc<dyn Progress> {
    if io::stderr().is_terminal() {
        Arc::new(Moving::new())
    } else {
        Arc::new(Plain)
    }
}

/// Tells what went wrong.
pub(crate) fn tell(error: &anyhow::Error) {
    eprintln!("qnic: {}", name::in_text(&text_of(error)));
}

/// An error and its causes, without those that the error before quotes.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Tells what went wrong and gives the exit status for it.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    tell(error);
    ExitCode::from(match error.downcast_ref::<Error>() {
        Some(Error::Interrupted) => INTERRUPTED,
        Some(Error::Config(_) | Error::ClusterFile { .. }) => WRONG_INPUT,
        _ => 1,
    })
}

/// The directory of clusters. What dead programs left there is removed first.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let runtime = Runtime::from_env()?;
    for name in qnic_cluster::sweep(&runtime)? {
        eprintln!("qnic: removed cluster {name}, whose owner had died");
    }
    Ok(runtime)
}

/// The option that names a cluster.
#[derive(Args, Debug)]
pub struct ClusterOption {
    /// The cluster; needed if several run
    #[arg(long, short)]
    cluster: Option<String>,
}

impl ClusterOption {
    /// The cluster that is meant. Its waits end when `cancel` is pulled.
    ///
    /// # Errors
    /// As [`Cluster::find`].
    pub fn find(&self, cancel: Option<&Cancel>) -> anyhow::Result<Cluster> {
        let handed_over = std::env::var(CLUSTER).ok();
        find(handed_over.as_deref().or(self.cluster.as_deref()), cancel)
    }

    /// The cluster of `known`, which run on Slurm, that is meant, if it is one of them. Without a name it is the only
    /// one if no cluster runs here.
    pub(crate) fn on_slurm(&self, known: &[String]) -> anyhow::Result<Option<String>> {
        if known.is_empty() || std::env::var_os(CLUSTER).is_some() {
            return Ok(None);
        }
        let here = runtime()?.names();
        Ok(match (&self.cluster, known) {
            (Some(name), _) if here.contains(name) => None,
            (Some(name), _) => known.contains(name).then(|| name.clone()),
            (None, [only]) if here.is_empty() => Some(only.clone()),
            (None, _) if here.is_empty() => {
                let known = known.to_vec();
                return Err(Error::WhichCluster { known }.into());
            }
            (None, _) => None,
        })
    }
}

/// The cluster `name`, or the only one.
pub fn find(name: Option<&str>, cancel: Option<&Cancel>) -> anyhow::Result<Cluster> {
    Ok(Cluster::find(&runtime()?, name, cancel)?)
}

/// Prints `what` as a line of JSON, or as `text` shows it.
pub(crate) fn show<T: Serialize + ?Sized>(
    json: bool,
    what: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string(what)?),
        false => print!("{}", text(what)),
    }
    Ok(())
}

/// Rows as text with aligned columns.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns.unwrap_or(0)).map(width).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths);
        let cells: Vec<_> = cells
            .map(|(cell, &width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A spinner with a message, or nothing where it could not be seen.
pub(crate) fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner()
        .with_style(style("{spinner} {msg}"))
        .with_message(message.to_owned());
    bar.enable_steady_tick(TICK);
    bar
}

/// Shows on `bar` that `bytes` have gone.
pub(crate) fn show_bytes(bar: &ProgressBar, message: &str, bytes: u64) {
    bar.set_message(format!("{message}: {}", HumanBytes(bytes)));
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

struct Plain;

impl Progress for Plain {
    fn step(&self, message: &str) {
        eprintln!("{message}");
    }

    fn bytes(&self, _done: u64, _total: u64) {}

    fn node(&self, node: &str, state: &str) {
        eprintln!("{node}: {state}");
    }
}

/// One line for the step, one for each node and for what goes on beside the steps. Cleared when
/// dropped.
struct Moving {
    lines: MultiProgress,
    step: Mutex<(String, ProgressBar)>,
    others: Mutex<HashMap<String, ProgressBar>>,
}

impl Moving {
    fn new() -> Self {
        let lines = MultiProgress::new();
        let step = lines.add(spinner(""));
        Self {
            lines,
            step: Mutex::new((String::new(), step)),
            others: Mutex::default(),
        }
    }
}

impl Progress for Moving {
    fn step(&self, message: &str) {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.1.set_message(message.to_owned());
        step.0 = message.to_owned();
    }

    fn bytes(&self, done: u64, total: u64) {
        let step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        step.1.set_message(format!(
            "{}: {} of {}",
            step.0,
            HumanBytes(done),
            HumanBytes(total)
        ));
    }

    fn part(&self, part: &str, state: &str) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let line = others
            .entry(part.to_owned())
            .or_insert_with(|| self.lines.add(spinner("")));
        line.set_message(format!("{part}: {state}"));
    }

    fn node(&self, node: &str, state: &str) {
        self.part(node, state);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_was_quoted_is_not_told_again() {
        let cause = || std::io::Error::other("no such file");
        let error = anyhow::Error::new(cause()).context("cannot read x: no such file");
        assert_eq!(text_of(&error), "cannot read x: no such file");
        let error = anyhow::Error::new(cause())
            .context("cannot read x")
            .context("no cluster");
        assert_eq!(text_of(&error), "no cluster: cannot read x: no such file");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["A", "B"], ["long", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "A     B\nlong  x\n");
    }
}
