//! `qnic doctor`: what was found, what will be used, what is missing.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use qnic_cluster::{decide, AccelChoice, ByteSize, Runtime};
use qnic_images::{Cache, Report, State};
use serde::Serialize;

/// Memory that the smallest useful cluster, two guests and what builds them, needs.
const LEAST_MEMORY: ByteSize = ByteSize::mib(1024);

/// Options of `qnic doctor`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic doctor
  cargo qnic doctor --json | jq '.findings[] | select(.state == \"missing\")'

States: ok (there, and used), later (not there yet; it is made or downloaded when
first needed), missing (somebody has to do what it says).

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

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut findings = vec![accelerator(), memory(), place()];
    let report = Report::of(&Cache::of_user()?);
    findings.extend(
        report
            .findings
            .into_iter()
            .map(|found| Finding::new(&found.subject, found.state, found.detail)),
    );
    let good = findings.iter().all(|finding| finding.state != "missing");
    let diagnosis = Diagnosis { good, findings };
    if options.json {
        println!("{}", serde_json::to_string(&diagnosis)?);
    } else {
        print!("{}", text(&diagnosis));
    }
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
        return Finding::new(
            "memory",
            State::Ready,
            "/proc/meminfo does not say how much is free",
        );
    };
    let enough = available >= LEAST_MEMORY;
    let state = if enough { State::Ready } else { State::Missing };
    let advice = if enough {
        String::new()
    } else {
        format!("; end something: two guests need {LEAST_MEMORY}")
    };
    Finding::new(
        "memory",
        state,
        format!("{}MiB free{advice}", available.whole_mib()),
    )
}

fn place() -> Finding {
    match Runtime::from_env() {
        Ok(runtime) => {
            let detail = format!(
                "{}; {} running",
                runtime.root().display(),
                runtime.names().len()
            );
            Finding::new("clusters", State::Ready, detail)
        }
        Err(error) => Finding::new("clusters", State::Missing, error.to_string()),
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let width = diagnosis
        .findings
        .iter()
        .map(|finding| finding.subject.len())
        .max()
        .unwrap_or(0);
    let line = |finding: &Finding| {
        format!(
            "{:7}  {:width$}  {}\n",
            finding.state, finding.subject, finding.detail
        )
    };
    let lines: String = diagnosis.findings.iter().map(line).collect();
    let verdict = if diagnosis.good {
        "nothing is missing"
    } else {
        "something is missing: see above"
    };
    format!("{lines}{verdict}\n")
}
