//! A real Slurm on this machine: munge, a controller and three daemons that pass for three hosts, all as the user that
//! runs the test, with keys, ports and files of their own.
//!
//! ```text
//!   munged ── key, socket        slurmctld ── SlurmUser: this user
//!                                    │ TCP, 127.0.0.1
//!                       ┌────────────┼────────────┐
//!                 slurmd -N h1   slurmd -N h2   slurmd -N h3      each 16 CPUs and 8,000 MiB, whatever is there
//!                       │            │            │
//!                  slurmstepd     slurmstepd   slurmstepd ─► tasks
//! ```
//! All are descendants of the case, which ends them. Steps are in no cgroups: these would need a delegated tree.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use procfs::process::all_processes;
use qnic_cluster::{end_descendants, spawn_bound, Silent};
use qnic_images::{Cache, Error, Provisioner, Slurm};
use qnic_trials::nodes::until;
use rustix::process::{kill_process, Pid, Signal};
use tempfile::TempDir;

use crate::harness::Skip;

/// Longest time for daemons to start, and for a job to end, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Names of the hosts.
pub(crate) const HOSTS: [&str; 3] = ["h1", "h2", "h3"];

pub(crate) struct RealSlurm {
    dir: TempDir,
    /// munged, slurmctld, and slurmd of each host.
    daemons: Vec<Child>,
}

impl RealSlurm {
    /// Starts it, and waits until all hosts are idle. Without its packages a case cannot run here ([`Skip`]).
    pub(crate) fn start() -> Result<Self> {
        let provisioner = Provisioner::new(Cache::of_user()?, Arc::new(Silent));
        let slurm = provisioner.slurm().map_err(|error| match error {
            error @ (Error::MirrorUnreachable { .. } | Error::IncompleteMirror { .. }) => {
                anyhow::Error::new(error).context(Skip("Slurm's packages cannot be had"))
            }
            error => error.into(),
        })?;
        let dir = tempfile::Builder::new().prefix("qnic-slurm-").tempdir()?;
        // munge wants its socket to be reached by all users.
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711))?;
        let mut real = RealSlurm {
            dir,
            daemons: Vec::new(),
        };
        real.configure(&slurm)?;
        real.start_munge()?;
        real.daemon("slurmctld", &["-D"])?;
        for host in HOSTS {
            let stepd = real.path("bin/slurmstepd").display().to_string();
            real.daemon("slurmd", &["-D", "-N", host, "-d", &stepd])?;
        }
        until(LIMIT, || {
            let said = real.ask("sinfo", &["--noheader", "--Node", "--format=%N %t"])?;
            let idle = HOSTS
                .iter()
                .all(|host| said.contains(&format!("{host} idle")));
            Ok((!idle).then(|| format!("{said}\n{}", real.logs())))
        })?;
        Ok(real)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&self, slurm: &Slurm) -> Result<()> {
        for name in ["bin", "state", "spool", "run"] {
            fs::create_dir(self.path(name))?;
        }
        slurm.write_programs(&self.path("bin"), &self.path("slurm.conf"))?;
        // They are free now; another program may take one until its daemon does: then the start fails.
        let listeners: Result<Vec<_>, _> =
            (0..4).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
        let ports = listeners?
            .into_iter()
            .map(|one| Ok(one.local_addr()?.port()));
        let ports: Vec<u16> = ports.collect::<Result<_>>()?;
        let machine = rustix::system::uname();
        let machine = machine.nodename().to_str()?;
        let (dir, plugins) = (self.dir.path().display(), slurm.plugins());
        let user = rustix::process::getuid().as_raw();
        let mut text = format!(
            "ClusterName=qnic\nSlurmctldHost={machine}(127.0.0.1)\nSlurmctldPort={}\n\
             SlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/run/munge\nCredType=cred/munge\n\
             PluginDir={}\nStateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool/%n\n\
             SlurmctldPidFile={dir}/run/slurmctld.pid\nSlurmdPidFile={dir}/run/%n.pid\n\
             SlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/%n.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU_Memory\n\
             SlurmdParameters=config_overrides\nSlurmdTimeout=10\nKillWait=60\nMailProg=/bin/true\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP\n",
            ports[0],
            plugins.display()
        );
        for (host, port) in HOSTS.iter().zip(&ports[1..]) {
            fs::create_dir(self.path("spool").join(host))?;
            text += &format!(
                "NodeName={host} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=8000\n"
            );
        }
        fs::write(self.path("slurm.conf"), text).context("write slurm.conf")
    }

    fn start_munge(&mut self) -> Result<()> {
        let mut key = [0; 128];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut key)?;
        let file = self.path("munge.key");
        fs::write(&file, key)?;
        fs::set_permissions(&file, PermissionsExt::from_mode(0o400))?;
        let file_of =
            |option: &str, name: &str| format!("--{option}={}", self.path(name).display());
        let options = [
            "--foreground".to_owned(),
            file_of("key-file", "munge.key"),
            file_of("socket", "run/munge"),
            file_of("pid-file", "run/munge.pid"),
            file_of("log-file", "munge.log"),
            file_of("seed-file", "munge.seed"),
        ];
        self.daemon("munged", &options.each_ref().map(String::as_str))?;
        let socket = self.path("run/munge");
        until(LIMIT, || Ok((!socket.exists()).then(|| self.logs())))
    }

    fn daemon(&mut self, name: &str, words: &[&str]) -> Result<()> {
        let log = self.path(&format!("{name}-{}.out", self.daemons.len()));
        let mut command = self.command(name);
        command.args(words).stdout(fs::File::create(&log)?);
        command.stderr(fs::File::options().append(true).open(&log)?);
        let child = spawn_bound(command).with_context(|| format!("start {name}"))?;
        self.daemons.push(child);
        Ok(())
    }

    /// A command whose programs find this Slurm.
    pub(crate) fn command(&self, program: &str) -> Command {
        let own = self.path("bin").join(program);
        let mut command = Command::new(if own.exists() { own } else { program.into() });
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.env_remove("SLURM_JOB_ID").stdin(Stdio::null());
        command
    }

    /// What a command of Slurm prints.
    pub(crate) fn ask(&self, program: &str, words: &[&str]) -> Result<String> {
        let output = self.command(program).args(words).output();
        Ok(text_of(
            &output.with_context(|| format!("start {program}"))?,
        ))
    }

    /// Waits until the only job runs on all hosts, and returns its number.
    pub(crate) fn job(&self) -> Result<String> {
        let mut job = String::new();
        until(LIMIT, || {
            job = self.ask("squeue", &["--noheader", "--states=RUNNING", "--format=%i"])?;
            Ok(job
                .trim()
                .parse::<u32>()
                .is_err()
                .then(|| format!("no job runs: {job}")))
        })?;
        Ok(job.trim().to_owned())
    }

    /// Waits until no job is there, and no process of one.
    pub(crate) fn wait_empty(&self) -> Result<()> {
        until(LIMIT, || {
            let jobs = self.ask("squeue", &["--noheader", "--format=%i %T %r"])?;
            let left = processes_with("SLURM_JOB_ID=")?;
            let none = jobs.trim().is_empty() && left.is_empty();
            Ok((!none).then(|| format!("jobs: {jobs:?}, processes: {left:?}")))
        })
    }

    /// A host dies: its daemon is killed, and what runs its steps. The tasks lose their input, and have to end.
    pub(crate) fn kill_host(&mut self, host: usize) -> Result<()> {
        let daemon = self.daemons.get_mut(2 + host).context("no such host")?;
        daemon.kill()?;
        daemon.wait()?;
        // All that belongs to it logs there.
        let log = self.path(&format!("{}.log", HOSTS[host]));
        let mut killed = 0;
        for (pid, _) in descendants(|line| line.contains("slurmstepd-wlm"))? {
            let files = fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten();
            let mut files = files
                .flatten()
                .filter_map(|file| fs::read_link(file.path()).ok());
            if files.any(|file| file == log) {
                kill(pid)?;
                killed += 1;
            }
        }
        ensure!(killed > 0, "{} runs no step", HOSTS[host]);
        Ok(())
    }

    fn logs(&self) -> String {
        let files = fs::read_dir(self.dir.path())
            .into_iter()
            .flatten()
            .flatten();
        let logs = files.filter(|file| {
            let extension = file.path().extension().map(|it| it.to_owned());
            extension.is_some_and(|it| it == "out" || it == "log")
        });
        let tail = |path: &Path| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(5)..].join("\n")
        };
        let logs = logs.map(|file| format!("{}:\n{}", file.path().display(), tail(&file.path())));
        logs.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for RealSlurm {
    fn drop(&mut self) {
        // Steps, and what they run, are adopted by the case.
        end_descendants();
        for daemon in &mut self.daemons {
            let _ = daemon.wait();
        }
    }
}

pub(crate) fn text_of(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

pub(crate) fn kill(pid: i32) -> Result<()> {
    let pid = Pid::from_raw(pid).context("no process")?;
    // It may have ended just now.
    let _ = kill_process(pid, Signal::KILL);
    Ok(())
}

/// Descendants of this process by their command lines.
pub(crate) fn descendants(wanted: impl Fn(&str) -> bool) -> Result<Vec<(i32, String)>> {
    let own = std::process::id() as i32;
    let processes: Vec<_> = all_processes()?.filter_map(Result::ok).collect();
    let parents: std::collections::HashMap<_, _> = processes
        .iter()
        .filter_map(|process| Some((process.pid, process.stat().ok()?.ppid)))
        .collect();
    let is_ours = |mut pid: i32| loop {
        match parents.get(&pid) {
            Some(parent) if *parent == own => return true,
            Some(parent) if *parent > 1 => pid = *parent,
            _ => return false,
        }
    };
    let ours = processes.iter().filter(|process| is_ours(process.pid));
    let named = ours.map(|process| (process.pid, process.cmdline().unwrap_or_default().join(" ")));
    Ok(named.filter(|(_, line)| wanted(line)).collect())
}

/// Descendants of this process, daemons excepted, whose environment has this.
fn processes_with(variable: &str) -> Result<Vec<(i32, String)>> {
    let mut found = descendants(|_| true)?;
    found.retain(|(pid, _)| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|one| one.starts_with(variable.as_bytes()))
    });
    Ok(found)
}

/// Says what is wrong unless `output` ended with `status` and says all of `words`.
pub(crate) fn expect(output: &Output, status: i32, words: &[&str]) -> Result<()> {
    let text = text_of(output);
    ensure!(
        output.status.code() == Some(status),
        "{:?}, not {status}: {text}",
        output.status
    );
    for word in words {
        ensure!(text.contains(word), "no {word:?} in: {text}");
    }
    Ok(())
}
