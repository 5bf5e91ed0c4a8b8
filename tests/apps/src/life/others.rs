//! Exporters that end: by exec, by exit, by signal.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use qnic::{Nic, Port, RemoteSegment, Status};
use qnic_abi::PAGE_SIZE;

use super::{held, Stage, PAGES};
use crate::mapping;
use qnic_apps::demo::node::Exported;
use qnic_apps::demo::options::{ANSWER_LIMIT, DATA, START_LIMIT};

/// Ports of the processes that end.
const EXECUTING: Port = Port(75);
const KILLED: Port = Port(76);

/// Exporters that end while a peer writes to them.
pub(super) fn steps(stage: &Stage) -> Result<()> {
    let mut other = Other::start(EXECUTING)?;
    let remote = other.import(stage)?;
    stage.write(&remote, 80)?;
    other.go_on()?;
    let status = write_until_refused(stage, &remote)?;
    other.kill()?;
    held(
        "exec ends the export, though the file stays open",
        format!("{status:?}"),
    )?;
    let mut other = Other::start(KILLED)?;
    let remote = other.import(stage)?;
    stage.write(&remote, 81)?;
    other.kill()?;
    let status = write_until_refused(stage, &remote)?;
    held("a signal ends the export", format!("{status:?}"))
}

/// Writes until the peer is refused because the exporter has ended.
fn write_until_refused(stage: &Stage, remote: &RemoteSegment) -> Result<Status> {
    let start = Instant::now();
    while start.elapsed() < ANSWER_LIMIT {
        let Err(error) = stage.write(remote, 82) else {
            continue;
        };
        return match error.status() {
            Some(
                status @ (Status::NoSuchPort
                | Status::NoSuchSegment
                | Status::Aborted
                | Status::PeerGone),
            ) => Ok(status),
            _ => Err(error).context("refused in another way"),
        };
    }
    bail!("writes to a process that has ended succeed for {ANSWER_LIMIT:?}")
}

/// Another process that exports [`DATA`].
struct Other {
    child: Child,
    input: ChildStdin,
    port: Port,
}

impl Other {
    fn start(port: Port) -> Result<Self> {
        let own = std::env::current_exe().context("find this program")?;
        let mut child = Command::new(own)
            .args(["life", "--execute", &port.0.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start another process")?;
        let output = child.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(!line.is_empty(), "the other process did not export");
        Ok(Other {
            input: child.stdin.take().context("no input")?,
            child,
            port,
        })
    }

    fn import(&self, stage: &Stage) -> Result<RemoteSegment> {
        let node = stage.exporter.node();
        Ok(stage.peer.import(node, self.port, DATA, START_LIMIT)?)
    }

    fn go_on(&mut self) -> Result<()> {
        self.input
            .write_all(b"\n")
            .context("tell the other process")
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

/// The other process: exports, and once it is told to, becomes another program that
/// has the device file open still.
pub(super) fn execute(nic: &Nic, port: Port) -> Result<()> {
    let endpoint = nic.register(port)?;
    let _data = Exported::new(&endpoint, DATA, PAGES * PAGE_SIZE)?;
    let mut kept = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.starts_with("/dev/qnic0") {
            let fd = entry.file_name().to_string_lossy().parse()?;
            mapping::keep_across_exec(fd)?;
            kept += 1;
        }
    }
    ensure!(kept > 0, "no device file is open");
    println!("exported");
    std::io::stdin().read_line(&mut String::new())?;
    Err(Command::new("sleep").arg("600").exec().into())
}
