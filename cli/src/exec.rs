//! `qnic exec`: boots a cluster, runs a program on it, takes it down.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use clap::Args;
use qnic_cluster::{Cancel, ClusterSpec, Progress, Runtime};
use qnic_trials::slurm::Work;
use qnic_trials::{duration, JunitFile, Outcome, Program, Setting, Terminal, Trial, Verdict};

use crate::slurm::{self, SlurmOptions, Wanted, SLURM};
use crate::ui;

/// Options of `qnic exec`.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo qnic exec pair.toml -- qnic-app info
  cargo qnic exec pair.toml --on a -- sh -c 'uname -r'
  cargo qnic exec pair.toml --host -- ./my-test            without guests, in seconds
  cargo qnic exec pair.toml --junit report.xml --artifacts out -- ./target/release/my-test
  cargo qnic exec pair.toml --set loss=5% --set kernel=backports --seed 7 -- ./my-test
  cargo qnic exec ring.toml --on slurm --hosts 3 -- ./my-test         on three hosts of Slurm
  cargo qnic exec ring.toml --on slurm --on a -- ./my-test            on node a of such a cluster

PROGRAM with a slash in it is a file of this machine, which is copied into each guest;
guest:PATH is one of the guest's, and a plain name is looked up there. It finds in its
environment QNIC_NODE (the number of its NIC), QNIC_NODES (how many nodes there are),
QNIC_NODE_NAME and QNIC_SEED. Faults by the clock ([[network.schedule]] of the file)
begin when it does. With --host each program is a process of this machine, which finds
its NIC by the library's host mode (QNIC_HOST_SOCKET); nothing is copied, and PROGRAM is
looked up here. One program of a node can have its NIC at a time.

Exit status: the program's own, of several nodes the first in the order of the file
that is not 0. Besides:
  123      the kernel of a guest panicked
  124      the time was over
  125      it could not be carried out: an error in the file, no boot, no space, …
  126      the program is there but cannot be executed
  127      there is no such program
  128 + n  signal n ended the program
  130      interrupted
In any case nothing is left running.")]
pub(crate) struct Options {
    #[command(flatten)]
    trial: TrialOptions,
    /// Seed of all chance, instead of the file's
    #[arg(long)]
    seed: Option<u64>,
}

/// Options that `exec` and `matrix` share.
#[derive(Args)]
pub(crate) struct TrialOptions {
    /// The cluster file
    pub(crate) file: PathBuf,
    /// The node that runs the program; all do without this. "slurm": the cluster is a job of Slurm
    #[arg(long, value_name = "NODE|all|slurm", default_value = "all")]
    on: Vec<String>,
    /// Nodes are processes of this machine instead of guests: seconds instead of a boot
    #[arg(long)]
    pub(crate) host: bool,
    /// Time for the program: seconds, or such as 2m
    #[arg(long, default_value = "10m", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Time for each guest to get ready
    #[arg(long, default_value = "3m", value_parser = duration)]
    pub(crate) boot_timeout: Duration,
    /// Change the cluster beside the file: loss, delay, kernel, memory, env.NAME, …
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
    /// Write a report as JUnit XML
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Keep consoles, outputs and counters here
    #[arg(long, value_name = "DIR")]
    pub(crate) artifacts: Option<PathBuf>,
    /// Keep what runs over the links, too, as pcapng
    #[arg(long, requires = "artifacts")]
    pub(crate) capture: bool,
    #[command(flatten)]
    pub(crate) slurm: SlurmOptions,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

impl TrialOptions {
    /// Returns true if the cluster is to be a job of Slurm.
    pub(crate) fn on_slurm(&self) -> bool {
        self.on.iter().any(|on| on == SLURM)
    }

    /// The node that runs the program; `None`: all.
    pub(crate) fn node(&self) -> Option<String> {
        let named = |on: &&String| *on != "all" && *on != SLURM;
        self.on.iter().find(named).cloned()
    }

    /// The trial of `spec`, to which settings were applied.
    pub(crate) fn trial(
        &self,
        spec: ClusterSpec,
        settings: Vec<Setting>,
        program: &Program,
        (runtime, progress): (&Runtime, Arc<dyn Progress>),
    ) -> Trial {
        Trial {
            spec,
            settings,
            program: program.clone(),
            on: self.node(),
            timeout: self.timeout,
            boot_timeout: self.boot_timeout,
            artifacts: self.artifacts.clone(),
            capture: self.capture,
            host: self.host,
            cell: None,
            runtime: runtime.clone(),
            progress,
            gate: None,
        }
    }

    /// The trial of `spec` as a job of Slurm.
    fn on_hosts(&self, spec: &ClusterSpec) -> Result<Wanted<'_>> {
        ensure!(
            self.junit.is_none(),
            "--junit does not go with --on slurm yet: --artifacts keeps what each host has"
        );
        let on = self.node();
        let known = |on: &String| spec.nodes.iter().any(|node| node.name == *on);
        if let Some(on) = on.as_ref().filter(|on| !known(on)) {
            bail!("there is no node \"{on}\"");
        }
        let mut words = self.program.clone();
        let program = Program::find(&words).map_err(anyhow::Error::msg)?;
        if let (Some((from, _)), Some(first)) = (program.copy(), words.first_mut()) {
            *first = std::path::absolute(from)?.into();
        }
        let artifacts = self.artifacts.as_ref().map(std::path::absolute);
        let work = Work::Program {
            words,
            on,
            timeout: self.timeout,
            artifacts: artifacts.transpose()?,
            capture: self.capture,
            settings: self.set.iter().map(ToString::to_string).collect(),
        };
        Ok(Wanted {
            slurm: &self.slurm,
            guests: !self.host,
            boot_timeout: self.boot_timeout,
            work,
        })
    }

    /// Makes the file of the report, if one is wanted.
    pub(crate) fn report(&self) -> Result<Option<JunitFile>> {
        let file = self.junit.as_ref().map(|path| {
            let made = JunitFile::create(path);
            made.with_context(|| format!("cannot write the report {}", path.display()))
        });
        file.transpose()
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let status = try_run(options).unwrap_or_else(|error| {
        ui::tell(&error);
        Verdict::IMPOSSIBLE
    });
    Ok(ExitCode::from(status))
}

fn try_run(options: &Options) -> Result<u8> {
    let trial = &options.trial;
    let mut spec = ClusterSpec::load(&trial.file)?;
    for setting in &trial.set {
        setting.apply(&mut spec).context("--set")?;
    }
    if let Some(seed) = options.seed {
        spec.network.get_or_insert_default().seed = seed;
    }
    let is_name = spec.nodes.iter().any(|node| node.name == SLURM);
    ensure!(
        !is_name,
        "a node is called \"{SLURM}\", which --on does not tell apart: call it otherwise"
    );
    if trial.on_slurm() {
        let wanted = trial.on_hosts(&spec)?;
        return slurm::exec(&spec, wanted);
    }
    trial.slurm.refuse()?;
    let cancel = Cancel::on_signals()?;
    let program = Program::find(&trial.program).map_err(anyhow::Error::msg)?;
    let runtime = ui::runtime()?;
    let parts = (&runtime, ui::progress());
    let prepared = trial.trial(spec, trial.set.clone(), &program, parts);
    prepared.check()?;
    let report = trial.report()?;
    let several = prepared.on.is_none() && prepared.spec.nodes.len() > 1;
    let outcome = prepared.run(&cancel, &Terminal::new(several));
    tell(&outcome);
    if let Some(report) = report {
        report
            .write(&outcome.name, &[outcome.suite()])
            .context("cannot write the report")?;
    }
    Ok(outcome.verdict.status())
}

/// Says on standard error how it ended, unless all went well.
fn tell(outcome: &Outcome) {
    match &outcome.verdict {
        Verdict::Passed => {}
        Verdict::Failed { .. } => eprintln!("qnic: {}: {}", outcome.name, outcome.verdict),
        verdict => {
            eprintln!("qnic: {}: {verdict}", outcome.name);
            print_details(outcome);
        }
    }
}

/// Shows what explains the failures that are not the program's.
pub(crate) fn print_details(outcome: &Outcome) {
    for case in &outcome.cases {
        if let qnic_trials::Ended::Failed { message, details } = &case.ended {
            eprintln!(
                "{} {}: {message}\n{}",
                case.class,
                case.name,
                details.trim_end()
            );
        }
    }
}
