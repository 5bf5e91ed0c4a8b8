//! `qnic doctor`: what was found, what will be used, what is missing.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::{decide, AccelChoice, ByteSize, Runtime};
use qnic_images::{Cache, Report, State};
use serde::Serialize;

use crate::ui;

/// Memory that the smallest useful cluster, two guests and what builds them, needs.
const LEAST_MEMORY: ByteSize = ByteSize::mib(1024);

/// Options of `qnic doctor`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic doctor
  cargo qnic doctor --json | jq '.findings[] | select(.state == \"missing\")'

States: ok (there, and used), later (not there yet; it is made or downloaded when
first needed), missing (do what it says).

Exit status: 0 if nothing is missing, 1 otherwise.")]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Diagnosis {
    good: bool,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
struct Finding {
    subject: String,
    state: &'static str,
    detail: String,
}

impl Finding {
    fn new(subject: &str, state: State, detail: impl Into<String>) -> Self {
        let state = match state {
            State::Ready => "ok",
            State::ToCome => "later",
            State::Missing => "missing",
        };
        Self {
            subject: subject.to_owned(),
            state,
            detail: detail.into(),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut findings = vec![accelerator(), memory(), clusters(), drivers()];
    let report = Report::of(&Cache::of_user()?);
    let found = report.findings.into_iter();
    findings.extend(found.map(|one| Finding::new(&one.subject, one.state, one.detail)));
    let good = findings.iter().all(|finding| finding.state != "missing");
    let diagnosis = Diagnosis { good, findings };
    ui::show(options.json, &diagnosis, text)?;
    Ok(ExitCode::from(u8::from(!good)))
}

fn accelerator() -> Finding {
    match decide(AccelChoice::Auto) {
        Ok(decision) => {
            let detail = format!("{} will be used; {}", decision.accel, decision.reason);
            Finding::new("accelerator", State::Ready, detail)
        }
        Err(error) => Finding::new("accelerator", State::Missing, error.to_string()),
    }
}

fn memory() -> Finding {
    let Some(available) = qnic_cluster::available_memory() else {
        let unknown = "/proc/meminfo does not say how much is free";
        return Finding::new("memory", State::Ready, unknown);
    };
    let mut detail = format!("{}MiB free", available.whole_mib());
    if available >= LEAST_MEMORY {
        return Finding::new("memory", State::Ready, detail);
    }
    detail += &format!("; end something: two guests need {LEAST_MEMORY}");
    Finding::new("memory", State::Missing, detail)
}

fn clusters() -> Finding {
    match Runtime::from_env() {
        Ok(runtime) => {
            let running = runtime.names().len();
            let detail = format!("{}; {running} running", runtime.root().display());
            Finding::new("clusters", State::Ready, detail)
        }
        Err(error) => Finding::new("clusters", State::Missing, error.to_string()),
    }
}

fn drivers() -> Finding {
    let detail =
        "qnic.ko, which pins nothing; a process through VFIO, which pins its memory, on nodes \
                  with driver = \"vfio\" (docs/vfio.md)";
    Finding::new("drivers", State::Ready, detail)
}

fn text(diagnosis: &Diagnosis) -> String {
    let row = |finding: &Finding| {
        let state = format!("{:7}", finding.state);
        [state, finding.subject.clone(), finding.detail.clone()]
    };
    let rows: Vec<_> = diagnosis.findings.iter().map(row).collect();
    let verdict = match diagnosis.good {
        true => "nothing is missing",
        false => "something is missing: see above",
    };
    format!("{}{verdict}\n", ui::aligned(&rows))
}
