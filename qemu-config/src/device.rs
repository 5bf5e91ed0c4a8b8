//! The device process: its configuration, start, and statistics.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Serialize;

use crate::config::{for_device, DeviceNetwork};
use crate::dirs::ClusterDir;
use crate::follow::tail;
use crate::process::{ProcessId, MARKER};
use crate::socket::Socket;
use crate::spawn::{spawn, Bond};
use crate::state::write;
use crate::wait::{Patience, Stop};
use crate::{ByteSize, ClusterSpec, Error, Result};

/// Name of the device process in messages.
pub(crate) const DEVICE: &str = "device";

/// Lines of its log in an error.
const TAIL_LINES: usize = 20;

/// What the device process is started with.
#[derive(Serialize)]
struct Config {
    nic: Vec<Nic>,
    metrics: Metrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<DeviceNetwork>,
}

#[derive(Serialize)]
struct Nic {
    name: String,
    node: u16,
    socket: PathBuf,
    ram: ByteSize,
}

#[derive(Serialize)]
struct Metrics {
    socket: PathBuf,
}

/// The configuration file of the device process for `spec`.
pub(crate) fn config(spec: &ClusterSpec, dir: &ClusterDir) -> Result<String> {
    let nodes = spec.numbered().filter(|(node, _)| node.nic);
    let nic = nodes.map(|(node, number)| Nic {
        name: node.name.clone(),
        node: number,
        socket: dir.node(&node.name).nic(),
        ram: node.memory,
    });
    let config = Config {
        nic: nic.collect(),
        metrics: Metrics {
            socket: dir.device_control(),
        },
        network: for_device(spec),
    };
    toml::to_string(&config).map_err(Error::Describe)
}

/// Starts `program` for the NICs of `spec` and waits until its sockets listen.
pub(crate) fn start(
    program: &Path,
    spec: &ClusterSpec,
    dir: &ClusterDir,
    dies_with_us: bool,
    patience: &Patience,
) -> Result<Child> {
    write(&dir.device_config(), config(spec, dir)?.as_bytes())?;
    let log_path = dir.device_log();
    let log = File::create(&log_path).map_err(Error::io("create", &log_path))?;
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(dir.device_config())
        .args(["--log-format", "text"]);
    command
        .env(MARKER, dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = spawn(
        command,
        Bond {
            dies_with_us,
            nice: 0,
        },
    )
    .map_err(Error::io("start", program))?;
    if let Some(id) = ProcessId::of(child.id() as i32) {
        id.save(&dir.device_pid())?;
    }
    let announced = child
        .stdout
        .take()
        .map(|output| await_ready(output, patience));
    match announced {
        Some(Ok(())) => Ok(child),
        Some(Err(Some(Stop::Cancelled))) => Err(Error::Interrupted),
        _ => {
            let status = child.try_wait().ok().flatten();
            let what = match status {
                Some(status) => format!("ended before it was ready ({status})"),
                None => "did not get ready".to_owned(),
            };
            Err(Error::Failed {
                who: DEVICE.to_owned(),
                what,
                log: tail(&log_path, TAIL_LINES),
            })
        }
    }
}

/// The error for a device process that has ended.
pub(crate) fn ended(dir: &ClusterDir) -> Error {
    let log = tail(&dir.device_log(), TAIL_LINES);
    Error::Failed {
        who: DEVICE.to_owned(),
        what: "the device process has ended".to_owned(),
        log,
    }
}

/// Waits for the line `ready`; the error is the reason why the wait ended, if that
/// was not the end of the output.
fn await_ready(mut output: ChildStdout, patience: &Patience) -> Result<(), Option<Stop>> {
    use std::os::fd::AsFd;
    let mut said = Vec::new();
    loop {
        patience.readable(output.as_fd())?;
        let mut byte = [0];
        match output.read(&mut byte) {
            Ok(1) if byte == *b"\n" => break,
            Ok(1) => said.push(byte[0]),
            _ => return Err(None),
        }
    }
    if said == b"ready" {
        Ok(())
    } else {
        Err(None)
    }
}

/// Sends a request to the device process that listens at `socket`; an answer that
/// tells of an error is one.
pub(crate) fn ask(socket: &Path, request: &serde_json::Value) -> Result<serde_json::Value> {
    let silent = |error: std::io::Error| failed(format!("does not answer: {error}"));
    let mut connection = Socket::connect(socket, Patience::seconds(10)).map_err(silent)?;
    connection
        .write_all(format!("{request}\n").as_bytes())
        .map_err(silent)?;
    let mut line = String::new();
    BufReader::new(connection)
        .read_line(&mut line)
        .map_err(silent)?;
    accepted(&line)
}

/// The error for a device process that does not do what it should.
pub(crate) fn failed(what: String) -> Error {
    Error::Failed {
        who: DEVICE.to_owned(),
        what,
        log: String::new(),
    }
}

/// The answer in a line; one that tells of an error is one.
pub(crate) fn accepted(line: &str) -> Result<serde_json::Value> {
    let answer: serde_json::Value = serde_json::from_str(line)
        .map_err(|error| failed(format!("answered nonsense: {error}")))?;
    match answer.get("error") {
        Some(error) => Err(failed(error.as_str().unwrap_or("an error").to_owned())),
        None => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Runtime;
    use crate::NodeSpec;
    use std::os::unix::fs::PermissionsExt;

    fn spec() -> ClusterSpec {
        let plain = NodeSpec {
            nic: false,
            ..NodeSpec::new("plain")
        };
        ClusterSpec::new("c")
            .with(NodeSpec::new("a"))
            .with(plain)
            .with(NodeSpec::new("b"))
    }

    struct Fixture {
        home: tempfile::TempDir,
        dir: ClusterDir,
    }

    impl Fixture {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let runtime = Runtime::at(home.path().join("r"), home.path().join("d")).unwrap();
            let dir = runtime.dir("c");
            std::fs::create_dir_all(dir.path()).unwrap();
            Self { home, dir }
        }

        fn start(&self, script: &str) -> Result<Child> {
            let program = self.home.path().join("device");
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            start(&program, &spec(), &self.dir, true, &Patience::seconds(30))
        }
    }

    #[test]
    fn only_nodes_with_a_nic_are_configured_and_keep_their_numbers() {
        let fixture = Fixture::new();
        let text = config(&spec(), &fixture.dir).unwrap();
        let base = fixture.dir.path().display();
        let expected = format!(
            "[[nic]]\nname = \"a\"\nnode = 0\nsocket = \"{base}/nodes/a/nic.sock\"\nram = \"256MiB\"\n\n\
             [[nic]]\nname = \"b\"\nnode = 2\nsocket = \"{base}/nodes/b/nic.sock\"\nram = \"256MiB\"\n\n\
             [metrics]\nsocket = \"{base}/device.sock\"\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_ready_device_is_recorded() {
        let fixture = Fixture::new();
        let mut child = fixture.start("echo ready; exec tail -f /dev/null").unwrap();
        let id = ProcessId::load(&fixture.dir.device_pid()).unwrap();
        assert_eq!(id.pid, child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_device_that_ends_first_is_reported_with_its_log() {
        let fixture = Fixture::new();
        let error = fixture
            .start("echo 'nic a: path in use' >&2; exit 2")
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("device: "), "{error}");
        assert!(error.contains("nic a: path in use"), "{error}");
    }
}
