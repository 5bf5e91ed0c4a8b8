//! Nodes without virtual machines: each program is a process that connects to the
//! device process as a vhost-user front end (X2).

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use qnic_cluster::{host_program, APP, DEVICE};
use rustix::process::{kill_process, Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

use crate::nodes::{Ended, Nodes, Running};

/// Longest time for the device process to start or to answer.
const DEVICE_LIMIT: Duration = Duration::from_secs(20);

/// A device process and its sockets, in a directory of their own that goes with it.
pub struct HostNodes {
    dir: TempDir,
    app: PathBuf,
    count: usize,
    device: Process,
}

impl HostNodes {
    /// Builds what is needed and starts a device process with `count` NICs.
    ///
    /// # Errors
    /// A program cannot be built, or the device process does not get ready.
    pub fn start(count: usize) -> Result<Self> {
        let device = host_program(DEVICE).context("build the device process")?;
        let app = host_program(APP).context("build the node program")?;
        let dir = tempfile::Builder::new()
            .prefix("qnic-host-")
            .tempdir()
            .context("make a directory for the sockets")?;
        let config = dir.path().join("device.toml");
        std::fs::write(&config, config_text(dir.path(), count))
            .with_context(|| format!("write {}", config.display()))?;
        let mut command = Command::new(device);
        command.arg("--config").arg(&config);
        let log = dir.path().join("device.log");
        let mut device = Process::start(command, &log)?;
        match device.line(DEVICE_LIMIT) {
            Ok(Some(line)) if line == "ready" => (),
            other => bail!(
                "the device process did not get ready ({other:?}): {}",
                tail(&log)
            ),
        }
        Ok(HostNodes {
            dir,
            app,
            count,
            device,
        })
    }

    /// Socket of a node's NIC.
    pub fn socket(&self, node: usize) -> PathBuf {
        socket(self.dir.path(), node)
    }

    /// Process id of the device process.
    pub fn device_pid(&self) -> u32 {
        self.device.child.id()
    }

    /// Ends the device process as `kill -9` does.
    ///
    /// # Errors
    /// It could not be reached.
    pub fn kill_device(&mut self) -> Result<()> {
        self.device.kill()
    }

    /// Ends the device process in the orderly way and says how that went.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(mut self) -> Result<Ended> {
        self.device.signal(Signal::TERM)?;
        self.device.wait(DEVICE_LIMIT)
    }
}

fn socket(dir: &Path, node: usize) -> PathBuf {
    dir.join(format!("n{node}.sock"))
}

fn config_text(dir: &Path, count: usize) -> String {
    let mut text = String::new();
    for node in 0..count {
        let path = socket(dir, node);
        text.push_str(&format!(
            "[[nic]]\nname = \"n{node}\"\nnode = {node}\nsocket = {path:?}\nram = \"256MiB\"\n"
        ));
    }
    let control = dir.join("device.ctl");
    text.push_str(&format!("[metrics]\nsocket = {control:?}\n"));
    text
}

impl Nodes for HostNodes {
    fn count(&self) -> usize {
        self.count
    }

    fn start(&self, node: usize, arguments: &[&str]) -> Result<Box<dyn Running>> {
        ensure!(node < self.count, "there is no node {node}");
        let mut command = Command::new(&self.app);
        command
            .args(arguments)
            .env("QNIC_HOST_SOCKET", self.socket(node));
        let errors = tempfile::Builder::new()
            .prefix("app-")
            .tempfile_in(self.dir.path())?
            .into_temp_path()
            .keep()?;
        Ok(Box::new(Process::start(command, &errors)?))
    }

    fn device_stats(&self) -> Result<Value> {
        let path = self.dir.path().join("device.ctl");
        let mut socket = UnixStream::connect(&path).context("connect to the device process")?;
        socket.set_read_timeout(Some(DEVICE_LIMIT))?;
        socket.write_all(b"{\"cmd\":\"stats\"}\n")?;
        let mut line = String::new();
        BufReader::new(socket)
            .read_line(&mut line)
            .context("read the device's counters")?;
        serde_json::from_str(&line).with_context(|| format!("counters: {line:?}"))
    }
}

/// A child whose output is read by a thread of its own; it ends with this object.
struct Process {
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Result<Self> {
        let errors = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
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

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("a process without a number")?;
        kill_process(pid, signal).context("send a signal")
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

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill")
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

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        let _ = file.read_to_string(&mut text);
    }
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
