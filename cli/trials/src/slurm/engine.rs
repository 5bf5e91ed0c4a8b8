//! The commands of Slurm: what they are asked, and what they say.

use std::env;
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{ByteSize, PROGRAMS};

use crate::slurm::job::JobDir;
use crate::slurm::plan::{Capacity, Plan};

/// Memory of hosts of which the administrator has not said it, in MiB.
const UNKNOWN: u64 = 1;
/// What a host's state begins with while Slurm starts nothing on it.
const UNUSABLE: [&str; 5] = ["down", "drain", "fail", "maint", "unk"];

/// Slurm, as its commands on this machine reach it.
#[derive(Clone, Copy, Debug)]
pub struct Engine(());

/// What a job asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// How many hosts.
    pub hosts: usize,
    /// Processors of each.
    pub cpus: usize,
    /// Memory of each; `None` where Slurm knows of none.
    pub memory: Option<ByteSize>,
    /// Of which partition; `None`: the usual one.
    pub partition: Option<String>,
    /// The time after which Slurm ends it, in Slurm's words; `None`: the partition's.
    pub time: Option<String>,
}

/// What Slurm says of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobState {
    /// In Slurm's words, such as `RUNNING`.
    pub state: String,
    /// Why it is so.
    pub reason: String,
}

impl JobState {
    /// Returns true if Slurm has ended it, and nothing of it runs any more.
    pub fn is_over(&self) -> bool {
        const GOING: [&str; 7] = [
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "STOPPED",
            "RESIZING",
        ];
        !GOING.contains(&self.state.as_str())
    }

    /// Why Slurm has ended a job that has not ended by itself, in words, and the exit status for that.
    pub(crate) fn end(&self) -> Option<(&'static str, u8)> {
        use crate::Verdict;
        Some(match self.state.as_str() {
            "TIMEOUT" | "DEADLINE" => ("ran out of its time", Verdict::TIMED_OUT),
            "CANCELLED" => ("was cancelled", Verdict::IMPOSSIBLE),
            "PREEMPTED" => ("was preempted", Verdict::IMPOSSIBLE),
            "OUT_OF_MEMORY" => ("had not enough memory", Verdict::IMPOSSIBLE),
            "NODE_FAIL" => ("has lost a host", Verdict::IMPOSSIBLE),
            "BOOT_FAIL" => ("got no hosts: they do not boot", Verdict::IMPOSSIBLE),
            _ => return None,
        })
    }
}

/// The number of the job that this process is part of.
fn in_a_job() -> Option<String> {
    env::var("SLURM_JOB_ID").ok()
}

impl Request {
    /// For `plan`, of which the hosts have `capacity`.
    pub fn new(plan: &Plan, capacity: Capacity, name: String) -> Self {
        Self {
            name,
            hosts: plan.parts().len(),
            cpus: plan.cpus(),
            memory: capacity.memory.map(|_| plan.memory()),
            partition: None,
            time: None,
        }
    }

    /// For a step on all hosts of the job that this process is a part of, with all that they have.
    pub fn inside(hosts: usize) -> Self {
        let cpus = env::var("SLURM_CPUS_PER_TASK").ok();
        Self {
            name: String::new(),
            hosts,
            cpus: cpus.and_then(|cpus| cpus.parse().ok()).unwrap_or(1),
            memory: None,
            partition: None,
            time: None,
        }
    }

    /// The options by which an allocation is asked for.
    fn allocation(&self) -> Vec<String> {
        let mut words = vec![format!("--job-name={}", self.name)];
        words.extend(self.partition.iter().map(|it| format!("--partition={it}")));
        words.extend(self.time.iter().map(|it| format!("--time={it}")));
        words
    }

    /// Those by which a step, or an allocation of one, is.
    fn tasks(&self) -> Vec<String> {
        let (hosts, cpus) = (self.hosts, self.cpus);
        let mut words = vec![
            format!("--nodes={hosts}"),
            format!("--ntasks={hosts}"),
            "--ntasks-per-node=1".to_owned(),
            format!("--cpus-per-task={cpus}"),
        ];
        let mib = self.memory.map(|memory| memory.0.div_ceil(1 << 20));
        words.extend(mib.map(|mib| format!("--mem={mib}M")));
        words
    }
}

impl Engine {
    /// Slurm, if its commands are there.
    ///
    /// # Errors
    /// Says what to do if they are not, or if this process is a part of a job.
    pub fn find() -> Result<Self> {
        if let Some(job) = in_a_job() {
            bail!(
                "this is a part of job {job} of Slurm, which refuses a step in a step: start it from outside of the job"
            );
        }
        let engine = Self(());
        engine.ask("srun", &["--version"]).context(
            "Slurm's commands are needed: run this where srun, sbatch, squeue, sinfo and scancel are in PATH",
        )?;
        Ok(engine)
    }

    /// Slurm for a process that is a part of a job.
    pub fn inside() -> Self {
        Self(())
    }

    /// What the smallest host of a partition has; without, of the usual one.
    ///
    /// # Errors
    /// Says what Slurm says.
    pub fn capacity(self, partition: Option<&str>) -> Result<Capacity> {
        let mut words = vec!["--noheader", "--format=%P|%c|%m|%t"];
        words.extend(partition.iter().flat_map(|name| ["--partition", name]));
        let said = self.ask("sinfo", &words)?;
        capacity_of(&said, partition)
    }

    /// How the hosts with these names are reached.
    pub(crate) fn addresses(self, hosts: &[String]) -> Result<Vec<String>> {
        let list = hosts.join(",");
        let words = ["--noheader", "--Node", "--nodes", &list, "--format=%N|%o"];
        let said = self.ask("sinfo", &words)?;
        let of = |host: &String| {
            let mut lines = said.lines().filter_map(|line| line.trim().split_once('|'));
            let found = lines.find(|(name, _)| name == host);
            let found = found.map(|(_, address)| address.to_owned());
            found.with_context(|| format!("sinfo does not know the host {host}"))
        };
        hosts.iter().map(of).collect()
    }

    /// Those of `hosts` that Slurm has given up.
    pub(crate) fn lost(self, hosts: &[String]) -> Vec<String> {
        let list = hosts.join(",");
        let words = ["--noheader", "--Node", "--nodes", &list, "--format=%N|%t"];
        let said = self.ask("sinfo", &words).unwrap_or_default();
        let lines = said.lines().filter_map(|line| line.trim().split_once('|'));
        let mut lost: Vec<_> = lines
            .filter(|(_, state)| state.starts_with("down"))
            .map(|(name, _)| name.to_owned())
            .collect();
        lost.dedup();
        lost
    }

    /// srun that allocates what `request` says, and runs a task on each host.
    pub fn allocate(self, request: &Request, dir: &JobDir) -> Command {
        let mut srun = self.tasks(request, dir);
        srun.args(request.allocation());
        task_of(srun, dir)
    }

    /// srun that runs a task on each host of the job that this process is a part of.
    pub fn step(self, request: &Request, dir: &JobDir) -> Command {
        task_of(self.tasks(request, dir), dir)
    }

    fn tasks(self, request: &Request, dir: &JobDir) -> Command {
        let mut srun = Command::new("srun");
        srun.args(request.tasks()).args([
            "--input=all",
            "--kill-on-bad-exit=1",
            "--mpi=none",
            "--cpu-bind=none",
            "--export=ALL",
        ]);
        // It may name a directory that other hosts do not have.
        srun.env_remove("XDG_RUNTIME_DIR");
        srun.env(PROGRAMS, dir.programs());
        srun
    }

    /// Has Slurm run the supervisor in a job. Returns its number.
    ///
    /// # Errors
    /// Says what Slurm says.
    pub fn submit(self, request: &Request, dir: &JobDir) -> Result<u32> {
        let (log, command) = (dir.log(), dir.command());
        let script = format!("#!/bin/sh\nexec {:?} slurm-job {:?}\n", command, dir.path());
        let file = dir.path().join("script");
        std::fs::write(&file, script).with_context(|| format!("write {}", file.display()))?;
        let mut sbatch = Command::new("sbatch");
        sbatch.args(request.tasks()).args(request.allocation());
        sbatch.args(["--parsable", "--no-requeue", "--export=ALL"]);
        sbatch.arg("--output").arg(log).arg(file);
        sbatch.env_remove("XDG_RUNTIME_DIR");
        let said = said_by("sbatch", &mut sbatch)?;
        let number = said.trim().split(';').next().and_then(|id| id.parse().ok());
        number.with_context(|| format!("sbatch has said {said:?}, and no number of a job"))
    }

    /// A command on one host of a job, beside what runs there.
    pub fn beside(self, job: u32, host: &str, dir: &JobDir) -> Command {
        let mut srun = Command::new("srun");
        srun.arg(format!("--jobid={job}"))
            .arg(format!("--nodelist={host}"));
        srun.args([
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            "--mpi=none",
            "--mem=0",
        ]);
        srun.args(["--cpu-bind=none", "--quiet", "--unbuffered", "--export=ALL"]);
        srun.env_remove("XDG_RUNTIME_DIR");
        srun.env(PROGRAMS, dir.programs());
        srun.arg(dir.command());
        srun
    }

    /// What Slurm says of a job; `None`: it has forgotten it.
    ///
    /// # Errors
    /// Returns an error if Slurm does not answer.
    pub fn state(self, job: u32) -> Result<Option<JobState>> {
        let jobs = format!("--jobs={job}");
        let words = ["--noheader", "--states=all", &jobs, "--format=%T|%r"];
        match self.ask("squeue", &words) {
            Ok(said) => Ok(state_of(&said)),
            Err(error) if format!("{error:#}").contains("Invalid job id") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has Slurm end a job.
    ///
    /// # Errors
    /// Says what Slurm says.
    pub fn cancel(self, job: u32) -> Result<()> {
        self.ask("scancel", &[&job.to_string()]).map(drop)
    }

    fn ask(self, program: &str, words: &[&str]) -> Result<String> {
        said_by(program, Command::new(program).args(words))
    }
}

fn task_of(mut srun: Command, dir: &JobDir) -> Command {
    srun.arg(dir.command()).arg("slurm-host").arg(dir.path());
    srun
}

fn said_by(program: &str, command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {program}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", wrong(program, why.trim()));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wrong(program: &str, why: &str) -> String {
    match why.is_empty() {
        true => format!("{program} has failed and said nothing"),
        false => why.to_owned(),
    }
}

/// Reads lines of partition, processors, memory in MiB and state.
fn capacity_of(said: &str, partition: Option<&str>) -> Result<Capacity> {
    let mut smallest: Option<(usize, u64)> = None;
    for line in said.lines() {
        let fields: Vec<_> = line.trim().split('|').collect();
        let [name, cpus, memory, state] = fields[..] else {
            bail!("sinfo has said {line:?}");
        };
        let wanted = partition.map_or(name.ends_with('*'), |it| name.trim_end_matches('*') == it);
        if !wanted || UNUSABLE.iter().any(|begin| state.starts_with(begin)) {
            continue;
        }
        // "16+": at least so much.
        let number = |text: &str| text.trim_end_matches('+').parse::<u64>();
        let found = (number(cpus)? as usize, number(memory)?);
        let (cpus, memory) = smallest.unwrap_or(found);
        smallest = Some((cpus.min(found.0), memory.min(found.1)));
    }
    let Some((cpus, memory)) = smallest else {
        let of = partition.map_or("the usual partition".to_owned(), |it| {
            format!("partition {it}")
        });
        bail!("no host of {of} can be used: see sinfo, or choose another with --partition");
    };
    Ok(Capacity {
        cpus: Some(cpus),
        memory: (memory > UNKNOWN).then(|| ByteSize::mib(memory)),
    })
}

fn state_of(said: &str) -> Option<JobState> {
    let (state, reason) = said.lines().next()?.trim().split_once('|')?;
    Some(JobState {
        state: state.to_owned(),
        reason: reason.to_owned(),
    })
}

/// The cluster of a job on one of its hosts: no other job or host of this machine has it at the same time.
pub fn cluster_name(name: &str, job: u32, host: usize) -> String {
    let suffix = format!("-{job}-{host}");
    let kept = qnic_cluster::MAX_NAME.saturating_sub(suffix.len());
    let stem: String = name.chars().take(kept).collect();
    format!("{}{suffix}", stem.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_usable_host_of_the_partition_counts() {
        let said = "big|64|256000|idle\nall*|16|8000|mix\nall*|8+|16000|alloc\nall*|2|100|down*\n";
        let of = |partition| capacity_of(said, partition).map(|it| it.to_string());
        assert_eq!(of(None).unwrap(), "8 processors and 8000MiB");
        assert_eq!(of(Some("big")).unwrap(), "64 processors and 250GiB");
        let none = of(Some("small")).unwrap_err().to_string();
        assert!(none.contains("partition small"), "{none}");
        let unknown = capacity_of("all*|4|1|idle\n", None).unwrap();
        assert_eq!(unknown.memory, None);
        assert!(capacity_of("garbage\n", None).is_err());
    }

    #[test]
    fn states_are_read_and_told_apart() {
        let running = state_of("RUNNING|None\n").unwrap();
        assert!(!running.is_over() && running.end().is_none());
        let over = state_of("TIMEOUT|TimeLimit\n").unwrap();
        assert_eq!((over.is_over(), over.end().unwrap().1), (true, 124));
        assert_eq!(state_of(""), None);
    }

    #[test]
    fn names_are_short_enough() {
        assert_eq!(cluster_name("pair", 12, 3), "pair-12-3");
        let long = cluster_name("a-name-of-24-characters-", 4_000_000, 120);
        assert!(long.len() <= qnic_cluster::MAX_NAME && long.ends_with("-4000000-120"));
    }
}
