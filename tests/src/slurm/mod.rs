//! Clusters that Slurm places and starts, on a real Slurm of this machine (X16). It has three hosts, whose device
//! processes are joined by UDP.

mod real;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{ensure, Context, Result};
use qnic_cluster::spawn_bound;
use qnic_trials::nodes::until;
use tempfile::TempDir;

use crate::harness::{cases, Case};
use real::{descendants, expect, kill, RealSlurm, LIMIT};

pub(crate) const CASES: &[Case] = cases! { "slurm":
    a_program_runs_on_six_nodes_of_three_hosts => a_program_runs(),
    a_cancelled_job_and_a_killed_command_leave_nothing: 0 => ended_early(),
    a_host_that_dies_is_named_and_ends_the_job: 0 => a_host_dies(),
    a_job_that_runs_out_of_time_is_told_so: 0 => out_of_time(),
    guests_of_three_hosts_are_one_cluster: 2 => guests(),
};

/// A user of a Slurm, with a cluster file and a cache of jobs that all hosts see.
struct User {
    slurm: RealSlurm,
    dir: TempDir,
    /// Of its clusters.
    name: String,
}

impl User {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir().context("make a directory")?;
        // No other case has clusters of this name.
        let name = format!("s{}", std::process::id());
        for (file, count) in [("six.toml", 6), ("three.toml", 3)] {
            let text = format!("name = \"{name}\"\n[[node]]\nname = \"n\"\ncount = {count}\n");
            fs::write(dir.path().join(file), text)?;
        }
        let slurm = RealSlurm::start()?;
        Ok(User { slurm, dir, name })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command `qnic`.
    fn qnic(&self) -> Result<Command> {
        let own = std::env::current_exe().context("find this program")?;
        Ok(self.slurm.command(own.to_str().context("a name")?))
    }

    /// `qnic exec` of the six nodes on three hosts, without guests.
    fn exec(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.qnic()?;
        command.arg("exec").arg(self.path("six.toml"));
        command
            .args(["--on", "slurm", "--hosts", "3", "--host"])
            .args(words);
        // Without guests nothing is taken from the cache but jobs.
        command.env("QNIC_CACHE", self.path("cache"));
        Ok(command)
    }

    /// The same, started; it runs `sleep`, until the job runs.
    fn start_sleep(&self, options: &[&str]) -> Result<Started> {
        let log = self.path("log");
        let mut command = self.exec(options)?;
        let ready = self.path("ready");
        let script = format!("touch {}.$QNIC_NODE; exec sleep 1000", ready.display());
        command.args(["--", "sh", "-c", &script]);
        command.stdout(Stdio::from(fs::File::create(&log)?));
        command.stderr(Stdio::from(fs::File::options().append(true).open(&log)?));
        let child = spawn_bound(command)?;
        until(LIMIT, || {
            let missing = (0..6).find(|node| !self.path(&format!("ready.{node}")).exists());
            let said = fs::read_to_string(&log).unwrap_or_default();
            Ok(missing.map(|node| format!("n{node} runs nothing yet: {said}")))
        })?;
        for node in 0..6 {
            fs::remove_file(self.path(&format!("ready.{node}")))?;
        }
        Ok(Started { child, log })
    }

    /// No job, process or file is left.
    fn check_empty(&self) -> Result<()> {
        self.slurm.wait_empty()?;
        let jobs = files_in(&self.path("cache/jobs"));
        ensure!(jobs.is_empty(), "left: {jobs:?}");
        self.check_clusters()
    }

    fn check_clusters(&self) -> Result<()> {
        let own = format!("/tmp/qnic-{}", rustix::process::getuid().as_raw());
        let clusters = files_in(Path::new(&own));
        let ours = clusters.iter().filter(|name| name.starts_with(&self.name));
        let ours: Vec<_> = ours.collect();
        ensure!(ours.is_empty(), "left: {ours:?}");
        Ok(())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // A case that fails may have left the cluster in the user's own cache, where its guests' images are.
        if let Ok(cache) = qnic_images::Cache::of_user() {
            let left = cache.root().join("jobs").join(format!("up-{}", self.name));
            let _ = fs::remove_dir_all(left);
        }
    }
}

struct Started {
    child: Child,
    log: PathBuf,
}

impl Started {
    /// Waits for its end, and says whether status and words are these.
    fn ends(mut self, status: i32, words: &[&str]) -> Result<()> {
        let ended = self.child.wait()?;
        let said = fs::read(&self.log)?;
        let output = std::process::Output {
            status: ended,
            stdout: said,
            stderr: Vec::new(),
        };
        expect(&output, status, words)
    }
}

fn files_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The plan can be looked at; all nodes reach each other across hosts; the exit status is that of the first node
/// that fails; a node alone runs a program; artifacts are kept; keys are in files alone; a job in a job is refused.
fn a_program_runs() -> Result<()> {
    let user = User::new()?;
    let run = |words: &[&str]| user.exec(words)?.output().context("start qnic");
    let plan = run(&["--dry-run", "--", "true"])?;
    expect(
        &plan,
        0,
        &["host 1: n2, n3 (3 CPUs, 768MiB)", "asks for 3 hosts"],
    )?;
    let exchange = [
        "qnic-app",
        "collectives",
        "--nodes",
        "0,1,2,3,4,5",
        "--rounds",
        "2",
    ];
    let kept = user.path("kept").display().to_string();
    let ran = run(&[&["--artifacts", &kept, "--"], &exchange[..]].concat())?;
    expect(&ran, 0, &["runs on h1, h2, h3"])?;
    for (host, node) in [("host0", "n0"), ("host2", "n5")] {
        let nic = fs::read_to_string(user.path("kept").join(host).join(node).join("nic.json"))?;
        ensure!(nic.contains(&format!("\"{node}\"")), "{nic}");
    }
    let failed = run(&[
        "--",
        "sh",
        "-c",
        "echo $QNIC_NODE of $QNIC_NODES; exit $QNIC_NODE",
    ])?;
    expect(&failed, 1, &["n4 | 4 of 6", "status 1 on n1"])?;
    let alone = run(&[
        "--on",
        "n3",
        "--",
        "sh",
        "-c",
        "echo $SLURMD_NODENAME; exit 7",
    ])?;
    expect(&alone, 7, &["h2\n", "status 7 on n3"])?;
    let missing = run(&["--", "no-such-program"])?;
    expect(&missing, 127, &["no-such-program"])?;
    keys_are_in_files_alone(&user)?;
    let mut nested = user.slurm.command("srun");
    let own = std::env::current_exe()?;
    nested
        .arg("-n1")
        .arg(own)
        .arg("exec")
        .arg(user.path("six.toml"));
    let nested = nested
        .args(["--on", "slurm", "--host", "--", "true"])
        .output()?;
    expect(&nested, 125, &["is a part of job", "a step in a step"])?;
    user.check_empty()
}

/// No private key is in the arguments or the environment of any process.
fn keys_are_in_files_alone(user: &User) -> Result<()> {
    let started = user.start_sleep(&[])?;
    let jobs = user.path("cache/jobs");
    let job = files_in(&jobs).pop().context("no directory of a job")?;
    let mut keys = Vec::new();
    for host in 0..3 {
        let file = jobs.join(&job).join(format!("host{host}.key"));
        keys.push(fs::read_to_string(&file)?.trim().to_owned());
    }
    let mut seen = 0;
    for (pid, line) in descendants(|_| true)? {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let all = format!("{line} {}", String::from_utf8_lossy(&environment));
        ensure!(
            keys.iter().all(|key| !all.contains(key)),
            "{pid} shows a key: {line}"
        );
        seen += usize::from(line.contains("slurm-host"));
    }
    ensure!(seen >= 3, "{seen} tasks");
    // As Ctrl-C does.
    qnic_kill(&started.child, rustix::process::Signal::INT)?;
    started.ends(130, &["interrupted"])
}

fn qnic_kill(child: &Child, signal: rustix::process::Signal) -> Result<()> {
    let pid = rustix::process::Pid::from_child(child);
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// A job that is cancelled says so. When the command is killed, and srun with it, the job goes, too.
fn ended_early() -> Result<()> {
    let user = User::new()?;
    let started = user.start_sleep(&[])?;
    let job = user.slurm.job()?;
    user.slurm.ask("scancel", &[&job])?;
    started.ends(125, &[&format!("job {job} of Slurm was cancelled")])?;
    user.check_empty()?;
    let mut orphaned = user.start_sleep(&[])?;
    orphaned.child.kill()?;
    orphaned.child.wait()?;
    user.slurm.wait_empty()?;
    // The next command removes the files that the killed one had no time for.
    let next = user.exec(&["--", "true"])?.output()?;
    expect(&next, 0, &[])?;
    user.check_empty()?;
    // Nothing ends the tasks here but the end of their input.
    let started = user.start_sleep(&[])?;
    for (pid, _) in descendants(|line| line.contains("bin/srun "))? {
        kill(pid)?;
    }
    started.ends(125, &["srun has ended before all hosts"])?;
    user.slurm.wait_empty()
}

/// A host dies: Slurm finds that out, and everything is taken down.
fn a_host_dies() -> Result<()> {
    let mut user = User::new()?;
    let started = user.start_sleep(&[])?;
    user.slurm.kill_host(2)?;
    started.ends(125, &["has lost a host: h3"])?;
    user.check_empty()
}

/// The shortest time that Slurm knows is a minute.
fn out_of_time() -> Result<()> {
    let user = User::new()?;
    let started = user.start_sleep(&["--time", "1"])?;
    started.ends(124, &["ran out of its time"])?;
    user.check_empty()
}

/// A guest on each host: programs reach each other; a cluster that stays is listed, commands reach its nodes wherever
/// they are, and it goes.
fn guests() -> Result<()> {
    let user = User::new()?;
    let qnic = |words: &[&str]| user.qnic()?.args(words).output().context("start qnic");
    let file = user.path("three.toml").display().to_string();
    let on = ["--on", "slurm", "--hosts", "3"];
    let exchange = [
        "--", "qnic-app", "exchange", "--nodes", "0,1,2", "--rounds", "5",
    ];
    let ran = qnic(
        &[
            &["exec", &file, "--boot-timeout", "10m"],
            &on[..],
            &exchange,
        ]
        .concat(),
    )?;
    expect(
        &ran,
        0,
        &["n0 | {\"exchanged\":10}", "n2 | {\"exchanged\":10}"],
    )?;
    let up = qnic(&[&["up", &file, "--timeout", "600"], &on[..]].concat())?;
    expect(&up, 0, &["ready on h1, h2, h3"])?;
    let again = qnic(&[&["up", &file], &on[..]].concat())?;
    expect(&again, 1, &["on Slurm already"])?;
    expect(&qnic(&["ps"])?, 0, &["ready  h3    n2"])?;
    let of_user = ["--cluster", &user.name];
    let asked = [
        (
            vec!["run", "n2", "--", "sh", "-c", "hostname; exit 5"],
            5,
            "n2",
        ),
        (vec!["stats", "n1"], 0, "n1"),
        (vec!["logs", "n0"], 0, "==> device <=="),
        (vec!["run", "n9", "--", "true"], 125, "has no node \"n9\""),
    ];
    for (words, status, said) in asked {
        let words = [&words[..1], &of_user, &words[1..]].concat();
        expect(&qnic(&words)?, status, &[said])?;
    }
    expect(&qnic(&["down", &user.name])?, 0, &["ended"])?;
    user.slurm.wait_empty()?;
    user.check_clusters()
}
