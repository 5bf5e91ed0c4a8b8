//! One trial, from the boot to the end of its cluster.
//!
//! ```text
//!   boot ─▶ copy the program ─▶ captures ─▶ ┌ program on node, node, … ┐ ─▶ collect ─▶ end
//!                                           │ schedule                  │
//!                                           └ watch: panics, ends       ┘
//! ```
//! Everything waits with the same [`Stop`]: the first thing that goes wrong ends the waits
//! and says why. What is collected afterwards is asked for with waits of its own.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use qnic_cluster::{
    BootOptions, Broken, Cancel, Cluster, ClusterSpec, Mode, Node, Progress, Runtime, Taken, APP,
};
use serde_json::json;

use crate::artifacts::Artifacts;
use crate::cases::Case;
use crate::gate::{Gate, Step};
use crate::output::Screen;
use crate::program::Program;
use crate::running::{self, ProgramEnd, Ran};
use crate::settings::Setting;
use crate::stop::{Reason, Stop};
use crate::verdict::{Outcome, Verdict};
use crate::{boot, capture, names};

/// Lines of a console in a report.
const CONSOLE_LINES: usize = 40;

/// A trial, ready to run.
#[derive(Clone)]
pub struct Trial {
    /// The cluster of the file, with the settings applied.
    pub spec: ClusterSpec,
    /// Those settings.
    pub settings: Vec<Setting>,
    /// What runs.
    pub program: Program,
    /// The node that it runs on; `None`: all.
    pub on: Option<String>,
    /// Time for the program.
    pub timeout: Duration,
    /// Time for each guest to get ready.
    pub boot_timeout: Duration,
    /// Where to keep what it leaves.
    pub artifacts: Option<PathBuf>,
    /// Whether to keep what runs over the links, too.
    pub capture: bool,
    /// Its number among the trials of this process.
    pub cell: Option<usize>,
    /// Nodes are processes of this machine instead of guests.
    pub host: bool,
    /// Where clusters are.
    pub runtime: Runtime,
    /// What is told of the boot.
    pub progress: Arc<dyn Progress>,
    /// What brings it together with the trials of the cluster's other hosts; `None`: there are none.
    pub gate: Option<Arc<dyn Gate>>,
}

impl Trial {
    /// Checks what can be checked before anything is booted.
    ///
    /// # Errors
    /// [`qnic_cluster::Error::Config`] for the cluster, [`qnic_cluster::Error::NoSuchNode`].
    pub fn check(&self) -> qnic_cluster::Result<()> {
        self.spec.validate()?;
        let elsewhere = self.spec.network.iter().flat_map(|it| it.elsewhere.keys());
        let here = self.spec.nodes.iter().map(|node| &node.name);
        let known = here.chain(elsewhere).cloned();
        match &self.on {
            Some(name) if !known.clone().any(|node| node == *name) => {
                Err(qnic_cluster::Error::NoSuchNode {
                    cluster: self.spec.name.clone(),
                    name: name.clone(),
                    known: known.collect(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Runs it. `cancel` ends it early.
    pub fn run(&self, cancel: &Cancel, screen: &dyn Screen) -> Outcome {
        let start = Instant::now();
        let mut cases = Vec::new();
        let verdict = self.run_within(cancel, screen, &mut cases);
        screen.finish();
        let network = self.spec.network.as_ref();
        let mut outcome = Outcome {
            name: self.spec.name.clone(),
            settings: self.settings.clone(),
            seed: network.map_or(0, |network| network.seed),
            verdict: verdict.unwrap_or_else(Verdict::Impossible),
            cases,
            took: start.elapsed(),
        };
        if let (Some(dir), true) = (&self.artifacts, outcome.verdict != Verdict::Interrupted) {
            let kept = Artifacts::create(dir, []).and_then(|kept| kept.keep_result(&outcome));
            if let (Err(error), true) = (kept, outcome.verdict.passed()) {
                outcome.verdict = Verdict::Impossible(cannot_keep(dir, &error));
            }
        }
        outcome
    }

    fn run_within(
        &self,
        cancel: &Cancel,
        screen: &dyn Screen,
        cases: &mut Vec<Case>,
    ) -> Result<Verdict, String> {
        self.check().map_err(|error| error.to_string())?;
        let stop = Stop::new().map_err(|error| error.to_string())?;
        let over = Cancel::new().map_err(|error| error.to_string())?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if cancel.wait_before(&over) {
                    stop.pull(Reason::Interrupted);
                }
            });
            let verdict = self.boot_and_run(&stop, screen, cases);
            over.cancel();
            verdict
        })
    }

    fn boot_and_run(
        &self,
        stop: &Stop,
        screen: &dyn Screen,
        cases: &mut Vec<Case>,
    ) -> Result<Verdict, String> {
        let artifacts = self.make_artifacts()?;
        let mut spec = self.spec.clone();
        spec.name = names::of_trial(&self.spec.name, std::process::id(), self.cell);
        let options = BootOptions {
            mode: Mode::Attached,
            runtime: self.runtime.clone(),
            cancel: Some(stop.cancel.clone()),
            progress: Arc::clone(&self.progress),
            ready_limit: self.boot_timeout,
            device_prefix: Vec::new(),
            host: self.host,
            app: APP,
        };
        let (booted, booting) = boot::boot(&spec, options, &self.spec.name);
        cases.extend(booting);
        let cluster = match booted {
            Ok(cluster) => cluster,
            Err(_) if stop.reason() == Some(Reason::Interrupted) => {
                return Ok(Verdict::Interrupted)
            }
            Err(error) => return Err(error.to_string()),
        };
        let verdict = self.use_cluster(&cluster, stop, screen, artifacts.as_ref(), cases);
        let begun = Instant::now();
        let ended = cluster.end();
        let case = Case::passed(&self.spec.name, "end", begun.elapsed());
        match ended {
            Ok(()) => {
                cases.push(case);
                Ok(verdict)
            }
            Err(error) => {
                cases.push(case.failing(error.to_string(), ""));
                match verdict.passed() {
                    true => Err(error.to_string()),
                    false => Ok(verdict),
                }
            }
        }
    }

    fn make_artifacts(&self) -> Result<Option<Artifacts>, String> {
        let Some(dir) = &self.artifacts else {
            return Ok(None);
        };
        let nodes = self.spec.nodes.iter().map(|node| node.name.as_str());
        let made = Artifacts::create(dir, nodes).map_err(|error| cannot_keep(dir, &error))?;
        let text = self.spec.to_toml().map_err(|error| error.to_string())?;
        made.write("cluster.toml", text.as_bytes())
            .map_err(|error| cannot_keep(dir, &error))?;
        Ok(Some(made))
    }

    /// Does with a booted cluster what the trial is about.
    fn use_cluster(
        &self,
        cluster: &Cluster,
        stop: &Stop,
        screen: &dyn Screen,
        artifacts: Option<&Artifacts>,
        cases: &mut Vec<Case>,
    ) -> Verdict {
        let nodes = cluster.nodes().iter();
        let chosen = |node: &&Node| self.on.as_ref().is_none_or(|on| on == node.name());
        let nodes: Vec<_> = nodes.filter(chosen).collect();
        let mut verdict = match self.copy(&nodes, cases) {
            true => match self.pass(Step::Booted, stop) {
                Ok(()) => self.run_programs(cluster, &nodes, stop, (screen, artifacts), cases),
                Err(verdict) => verdict,
            },
            false => stopped(stop).unwrap_or_else(|| {
                Verdict::Impossible("the program cannot be copied into a guest".to_owned())
            }),
        };
        if let (Some(kept), true) = (artifacts, verdict != Verdict::Interrupted) {
            let case = self.collect(cluster, kept);
            if case.has_failed() && verdict.passed() {
                verdict = Verdict::Impossible("what was to be kept cannot be kept".to_owned());
            }
            cases.push(case);
        }
        verdict
    }

    /// Copies the program of this machine, if it is one. Returns false if that failed.
    fn copy(&self, nodes: &[&Node], cases: &mut Vec<Case>) -> bool {
        let copy = self.program.copy().filter(|_| !self.host);
        let Some((from, to)) = copy else {
            return true;
        };
        let copied = running::on_all(nodes, |node| {
            let begun = Instant::now();
            let copied = node.put(from, to, &|_| {});
            let case = Case::passed(self.class(node), "copy", begun.elapsed());
            match copied {
                Ok(()) => case,
                Err(error) => case.failing(error.to_string(), node.console_tail(CONSOLE_LINES)),
            }
        });
        let all = copied.iter().all(|case| !case.has_failed());
        cases.extend(copied);
        all
    }

    /// Waits until all hosts have done `step`.
    fn pass(&self, step: Step, stop: &Stop) -> Result<(), Verdict> {
        let (Some(gate), None) = (&self.gate, stop.reason()) else {
            return Ok(());
        };
        match gate.pass(step, &stop.cancel) {
            true => Ok(()),
            false => Err(stopped(stop).unwrap_or(Verdict::Interrupted)),
        }
    }

    fn class(&self, node: &Node) -> String {
        format!("{}.{}", self.spec.name, node.name())
    }

    /// Runs the program, beside captures, the schedule and what watches the cluster.
    fn run_programs(
        &self,
        cluster: &Cluster,
        nodes: &[&Node],
        stop: &Stop,
        (screen, artifacts): (&dyn Screen, Option<&Artifacts>),
        cases: &mut Vec<Case>,
    ) -> Verdict {
        let Ok(over) = Cancel::new() else {
            return Verdict::Impossible("this process has no descriptors left".to_owned());
        };
        let taken = Mutex::new(Vec::new());
        let ran = std::thread::scope(|scope| {
            let captures = match (self.capture, artifacts) {
                (true, Some(kept)) => capture::start(scope, cluster, kept, &over),
                _ => Ok(Vec::new()),
            };
            let captures = match captures {
                Ok(captures) => captures,
                Err(message) => {
                    over.cancel();
                    return Err(message);
                }
            };
            scope.spawn(|| watch(cluster, &over, stop));
            scope.spawn(|| self.play(cluster, &over, stop, &taken));
            let ran = running::on_all(nodes, |node| {
                let command = self.command(cluster, node);
                running::run(node, &command, self.timeout, (stop, screen, artifacts))
            });
            // What goes wrong here while others run is seen, too.
            let passed = self.pass(Step::Ran, stop);
            over.cancel();
            capture::finish(captures)?;
            Ok((ran, passed.err()))
        });
        if let Some(kept) = artifacts {
            let taken = taken.into_inner().unwrap_or_else(PoisonError::into_inner);
            // What cannot be written here is told when the rest is collected.
            let _ = kept.write_json("schedule.json", &json!(taken));
        }
        match ran {
            Ok((ran, held)) => {
                let verdict = verdict_of(&ran, stop);
                let verdict = held.filter(|_| verdict.passed()).unwrap_or(verdict);
                let named = ran.iter().zip(nodes);
                cases.extend(named.map(|(ran, node)| self.case(ran, node, &verdict)));
                verdict
            }
            Err(message) => Verdict::Impossible(message),
        }
    }

    fn command(&self, cluster: &Cluster, node: &Node) -> qnic_cluster::GuestCommand {
        let number = cluster.spec().node_number(node.name()).unwrap_or(0);
        let network = self.spec.network.as_ref();
        let seed = network.map_or(0, |network| network.seed);
        let elsewhere = network.map_or(0, |network| network.elsewhere.len());
        let command = match self.host {
            true => self.program.command_here(),
            false => self.program.command(),
        };
        let mut command = command
            .env("QNIC_NODE", number.to_string())
            .env(
                "QNIC_NODES",
                (cluster.nodes().len() + elsewhere).to_string(),
            )
            .env("QNIC_NODE_NAME", node.name())
            .env("QNIC_SEED", seed.to_string());
        for (name, value) in self.settings.iter().filter_map(Setting::variable) {
            command = command.env(name, value);
        }
        command
    }

    fn play(&self, cluster: &Cluster, over: &Cancel, stop: &Stop, taken: &Mutex<Vec<Taken>>) {
        let steps = self.spec.schedule();
        let played = cluster.play(&steps, over, &mut |step| {
            let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
            taken.push(step);
        });
        if let Err(error) = played {
            stop.pull(Reason::Failed(format!("the schedule: {error}")));
        }
    }

    fn case(&self, ran: &Ran, node: &Node, verdict: &Verdict) -> Case {
        let name = format!("run {}", self.program.name());
        let mut case = Case::passed(self.class(node), name, ran.took);
        case.output.clone_from(&ran.printed);
        let message = match &ran.end {
            ProgramEnd::Exited(exit) if exit.success() => match &ran.lost {
                None => return case,
                Some(error) => format!("its output cannot be kept: {error}"),
            },
            ProgramEnd::Exited(exit) => format!("status {}", exit.code()),
            ProgramEnd::NotStarted { message, .. } | ProgramEnd::Failed(message) => message.clone(),
            ProgramEnd::Stopped => format!("it was ended: {verdict}"),
        };
        let console = node.console_tail(CONSOLE_LINES);
        case.failing(message, format!("--- end of the console\n{console}"))
    }

    /// Keeps what the cluster has to tell, asked anew: the waits of the trial may have ended.
    fn collect(&self, cluster: &Cluster, kept: &Artifacts) -> Case {
        let begun = Instant::now();
        let asked = Cluster::open(&self.runtime, cluster.name(), None);
        let collected = asked
            .map_err(|error| error.to_string())
            .and_then(|cluster| kept.collect(&cluster).map_err(|error| error.to_string()));
        let case = Case::passed(&self.spec.name, "collect", begun.elapsed());
        match collected {
            Ok(()) => case,
            Err(error) => case.failing(error, ""),
        }
    }
}

fn cannot_keep(dir: &Path, error: &std::io::Error) -> String {
    format!("cannot keep anything in {}: {error}", dir.display())
}

/// Waits for what breaks the cluster, and ends the trial then.
fn watch(cluster: &Cluster, over: &Cancel, stop: &Stop) {
    match cluster.wait_broken(over) {
        Ok(None) => {}
        Ok(Some(Broken::Panicked { node })) => stop.pull(Reason::Panicked(node)),
        Ok(Some(Broken::Failed(error))) | Err(error) => {
            stop.pull(Reason::Failed(error.to_string()));
        }
    }
}

fn stopped(stop: &Stop) -> Option<Verdict> {
    Some(match stop.reason()? {
        Reason::Interrupted => Verdict::Interrupted,
        Reason::TimedOut(node) => Verdict::TimedOut(node),
        Reason::Panicked(node) => Verdict::Panicked(node),
        Reason::Failed(why) => Verdict::Impossible(why),
    })
}

/// What the ends of the programs mean for the trial.
fn verdict_of(ran: &[Ran], stop: &Stop) -> Verdict {
    let judged = ran.iter().find_map(|ran| {
        let node = ran.node.clone();
        Some(match &ran.end {
            ProgramEnd::Exited(exit) if exit.success() => return None,
            ProgramEnd::Exited(exit) => Verdict::Failed {
                node,
                status: exit.code(),
            },
            ProgramEnd::NotStarted { missing, message } => Verdict::NotStarted {
                node,
                missing: *missing,
                message: message.clone(),
            },
            ProgramEnd::Failed(message) => Verdict::Impossible(message.clone()),
            ProgramEnd::Stopped => return None,
        })
    });
    let lost = ran.iter().find_map(|ran| ran.lost.as_ref());
    let lost = lost.map(|error| Verdict::Impossible(format!("cannot keep outputs: {error}")));
    let verdict = stopped(stop).or(judged).or(lost);
    verdict.unwrap_or(Verdict::Passed)
}
