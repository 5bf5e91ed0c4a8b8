//! Nodes without virtual machines: each program is a process that connects to the
//! device process as a vhost-user front end (X2).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{add_stats, programs, spawn_bound, ByteSize, Program, APP, DEVICE};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::{json, Value};
use tempfile::TempDir;

use crate::nodes::{Ended, Nodes, Running};

/// Longest time for the device process to start or to answer.
const DEVICE_LIMIT: Duration = Duration::from_secs(20);

/// Memory of a node unless a plan says otherwise, as the library has it.
const MEMORY: ByteSize = ByteSize::mib(128);

/// Device processes and their sockets, in a directory of their own that goes with them.
pub struct HostNodes {
    dir: TempDir,
    program: PathBuf,
    app: PathBuf,
    plans: Vec<DevicePlan>,
    devices: Vec<Process>,
}

/// What one of several device processes runs.
#[derive(Debug, Clone, Default)]
pub struct DevicePlan {
    /// Its nodes.
    pub nodes: Vec<usize>,
    /// More of its configuration, such as `[network]`.
    pub more: String,
    /// Command in front of it, such as `ip netns exec x`; may be empty.
    pub prefix: Vec<String>,
    /// Memory of each of its nodes, if not the usual 128 MiB.
    pub memory: Option<ByteSize>,
    /// Name of its NICs, if these are further ones of nodes of another process.
    pub nic: Option<String>,
}

impl DevicePlan {
    /// One process that runs this many nodes, with more of its configuration.
    pub fn alone(count: usize, more: &str) -> Self {
        DevicePlan {
            nodes: (0..count).collect(),
            more: more.to_owned(),
            ..DevicePlan::default()
        }
    }

    /// One of two joined processes that run `count` nodes each: `network` is more of
    /// `[network]`, `carrier` the section of its carrier, `other` the other's address.
    pub fn one_of_two(
        here: usize,
        count: usize,
        network: &str,
        carrier: &str,
        other: &str,
    ) -> Self {
        let nodes = |process: usize| (process * count..(process + 1) * count).collect::<Vec<_>>();
        let others = nodes(1 - here);
        let other = format!("[[network.process]]\n{other}\nnodes = {others:?}\n");
        DevicePlan {
            nodes: nodes(here),
            more: format!("[network]\n{network}{carrier}\n{other}"),
            ..DevicePlan::default()
        }
    }
}

impl HostNodes {
    /// Builds what is needed and starts a device process with `count` NICs.
    pub fn start(count: usize) -> Result<Self> {
        Self::start_with(count, "")
    }

    /// The same, with more of a configuration, such as `[network]`.
    pub fn start_with(count: usize, more: &str) -> Result<Self> {
        Self::start_several(&[DevicePlan::alone(count, more)])
    }

    /// Builds what is needed and starts several device processes.
    pub fn start_several(plans: &[DevicePlan]) -> Result<Self> {
        Self::start_program(APP, plans)
    }

    /// The same with another program than [`APP`] on the nodes.
    pub fn start_program(app: Program<'static>, plans: &[DevicePlan]) -> Result<Self> {
        let programs = programs([DEVICE, app]);
        let [program, app] = programs.context("build the device process and the node program")?;
        let dir = tempfile::Builder::new().prefix("qnic-host-").tempdir();
        let mut nodes = HostNodes {
            dir: dir.context("make a directory for the sockets")?,
            program,
            app,
            plans: plans.to_vec(),
            devices: Vec::new(),
        };
        for device in 0..plans.len() {
            nodes.devices.push(nodes.start_device(device)?);
        }
        Ok(nodes)
    }

    /// The socket through which a device process is asked.
    pub fn control(&self, device: usize) -> PathBuf {
        self.dir.path().join(format!("device{device}.ctl"))
    }

    /// Asks a device process; an answer that tells of an error is one.
    pub fn ask_device(&self, device: usize, request: &Value) -> Result<Value> {
        Ok(self.request(device, request)?.0)
    }

    /// The same, with what comes behind the answer.
    pub fn request(
        &self,
        device: usize,
        request: &Value,
    ) -> Result<(Value, BufReader<UnixStream>)> {
        let socket = UnixStream::connect(self.control(device));
        let mut socket = socket.context("connect to the device process")?;
        socket.set_read_timeout(Some(DEVICE_LIMIT))?;
        socket.write_all(format!("{request}\n").as_bytes())?;
        let mut stream = BufReader::new(socket);
        let mut line = String::new();
        let read = stream.read_line(&mut line);
        read.context("read the device's answer")?;
        let answer = serde_json::from_str(&line);
        let answer: Value = answer.with_context(|| format!("answer: {line:?}"))?;
        ensure!(answer.get("error").is_none(), "{answer}");
        Ok((answer, stream))
    }

    /// The end of what a device process has logged.
    pub fn device_log(&self, device: usize) -> String {
        tail(&self.devices[device].log)
    }

    /// Socket of a node's first NIC.
    pub fn socket(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("n{node}.sock"))
    }

    /// Ends a device process as `kill -9` does.
    pub fn kill_device(&mut self, device: usize) -> Result<()> {
        self.devices[device].kill()
    }

    /// Sends a signal to a device process.
    pub fn signal_device(&mut self, device: usize, number: u8) -> Result<()> {
        self.devices[device].signal(number)
    }

    /// Starts a device process again that has ended; its log begins anew.
    pub fn restart_device(&mut self, device: usize) -> Result<()> {
        self.devices[device] = self.start_device(device)?;
        Ok(())
    }

    fn start_device(&self, device: usize) -> Result<Process> {
        let (dir, plan) = (self.dir.path(), &self.plans[device]);
        let config = dir.join(format!("device{device}.toml"));
        std::fs::write(&config, self.config_text(device))
            .with_context(|| format!("write {}", config.display()))?;
        let program = [self.program.as_os_str()];
        let mut words = plan.prefix.iter().map(OsStr::new).chain(program);
        let mut command = Command::new(words.next().context("no program")?);
        command.args(words).arg("--config").arg(&config);
        let log = dir.join(format!("device{device}.log"));
        let mut process = Process::start(command, &log)?;
        match process.line(DEVICE_LIMIT) {
            Ok(Some(line)) if line == "ready" => Ok(process),
            other => bail!(
                "the device process did not get ready ({other:?}): {}",
                tail(&log)
            ),
        }
    }

    fn config_text(&self, device: usize) -> String {
        let (plan, control) = (&self.plans[device], self.control(device));
        let mut text = String::new();
        // Room for what a node keeps beside its processes.
        let ram = ByteSize(2 * plan.memory.unwrap_or(MEMORY).0);
        for node in &plan.nodes {
            let path = match &plan.nic {
                Some(nic) => self.dir.path().join(format!("n{node}.{nic}.sock")),
                None => self.socket(*node),
            };
            text += &format!(
                "[[nic]]\nname = \"n{node}\"\nnode = {node}\nsocket = {path:?}\nram = \"{ram}\"\n"
            );
        }
        text + &format!("[metrics]\nsocket = {control:?}\n{}", plan.more)
    }
}

impl Nodes for HostNodes {
    fn count(&self) -> usize {
        let first = self.plans.iter().filter(|plan| plan.nic.is_none());
        first.map(|plan| plan.nodes.len()).sum()
    }

    fn start_on(
        &self,
        node: usize,
        nic: Option<&str>,
        arguments: &str,
    ) -> Result<Box<dyn Running>> {
        ensure!(node < self.count(), "there is no node {node}");
        let mut command = Command::new(&self.app);
        command
            .args(arguments.split_whitespace())
            .env("QNIC_HOST_SOCKET", self.socket(node));
        if let Some(nic) = nic {
            command.env("QNIC_NIC", nic);
        }
        let plan = self.plans.iter().find(|plan| plan.nodes.contains(&node));
        if let Some(memory) = plan.and_then(|plan| plan.memory) {
            command.env("QNIC_HOST_MEMORY", memory.to_string());
        }
        let errors = tempfile::Builder::new()
            .prefix("app-")
            .tempfile_in(self.dir.path())?
            .into_temp_path()
            .keep()?;
        Ok(Box::new(Process::start(command, &errors)?))
    }

    fn device_stats(&self) -> Result<Value> {
        let stats = json!({ "cmd": "stats" });
        let mut all = Value::Null;
        for device in 0..self.devices.len() {
            add_stats(&mut all, self.ask_device(device, &stats)?);
        }
        Ok(all)
    }
}

/// A child whose output is read by a thread of its own; it ends with this object, and with this
/// process.
struct Process {
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Result<Self> {
        let errors = File::create(log).with_context(|| format!("create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        let what = format!("{command:?}");
        let mut child = spawn_bound(command).with_context(|| format!("start {what}"))?;
        let output = child.stdout.take().context("the child has no output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                // An end of the receiver or of the pipe ends the thread.
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process {
            child,
            lines,
            log: log.to_owned(),
        })
    }
}

impl Running for Process {
    fn line(&mut self, limit: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("no line in {limit:?}: {}", tail(&self.log)),
        }
    }

    fn signal(&mut self, number: u8) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("a child without a number")?;
        let signal = Signal::from_named_raw(number.into()).context("no such signal")?;
        kill_process(pid, signal).with_context(|| format!("signal {number}"))
    }

    fn wait(&mut self, limit: Duration) -> Result<Ended> {
        let mut lines = Vec::new();
        // The output ends with the program: reading to its end waits for that.
        while let Some(line) = self.line(limit)? {
            lines.push(line);
        }
        let status = self.child.wait().context("wait")?;
        let signal = || status.signal().map_or(1, |signal| 128 + signal);
        Ok(Ended {
            status: status.code().unwrap_or_else(signal),
            lines,
            errors: tail(&self.log),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either call fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of a log, without the stack that `RUST_BACKTRACE` adds to an error: it would
/// leave no room for the error.
fn tail(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines();
    let lines: Vec<_> = lines
        .take_while(|line| *line != "Stack backtrace:")
        .collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
