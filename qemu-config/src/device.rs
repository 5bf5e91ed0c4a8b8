//! The device processes: configuration, start, and questions to them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::dirs::{create_log, write, ClusterDir, DEVICE};
use crate::follow::tail;
use crate::process::{ProcessId, MARKER};
use crate::socket::Socket;
use crate::spawn::spawn;
use crate::wait::{Deadline, Stop};
use crate::{ending, ClusterSpec, Error, Result};

/// Lines of its log in an error.
const TAIL_LINES: usize = 20;

/// The device process `program`, with the command `prefix` in front of it.
pub(crate) fn command(program: &Path, prefix: &[String]) -> Command {
    match prefix.split_first() {
        None => Command::new(program),
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// Starts `command` as a device process of `spec` and waits until its sockets listen.
pub(crate) fn start(
    mut command: Command,
    spec: &ClusterSpec,
    dir: &ClusterDir,
    process: Option<&str>,
    dies_with_us: bool,
    deadline: &Deadline,
) -> Result<Child> {
    let files = dir.device(process);
    let config = spec.device_config(dir, process);
    config.check()?;
    let config = toml::to_string(&config).map_err(Error::Describe)?;
    write(&files.config(), config.as_bytes())?;
    let log_path = files.log();
    let log = create_log(&log_path)?;
    let program = PathBuf::from(command.get_program());
    let arguments = ["--log-format", "text", "--config"];
    command.args(arguments).arg(files.config());
    command
        .env(MARKER, dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let child = spawn(command, dies_with_us, 0);
    let mut child = child.map_err(Error::io("start", &program))?;
    if let Some(id) = ProcessId::of(child.id() as i32) {
        id.save(&files.pid())?;
    }
    let output = child.stdout.take();
    match output.map(|output| await_ready(output, deadline)) {
        Some(Ok(())) => Ok(child),
        Some(Err(Some(Stop::Cancelled))) => Err(Error::Interrupted),
        _ => {
            let what = match child.try_wait() {
                Ok(Some(status)) => format!("ended before it was ready ({status})"),
                _ => "did not get ready".to_owned(),
            };
            Err(failed_with_log(dir, process, what))
        }
    }
}

/// What a device process is called.
pub(crate) fn name(process: Option<&str>) -> String {
    match process {
        None => DEVICE.to_owned(),
        Some(name) => format!("{DEVICE} {name}"),
    }
}

/// The error for a device process that has ended.
pub(crate) fn ended(dir: &ClusterDir, process: Option<&str>) -> Error {
    let id = ProcessId::load(&dir.device(process).pid());
    let how = id.map(ending::how).unwrap_or_default();
    failed_with_log(dir, process, format!("the device process has ended{how}"))
}

fn failed_with_log(dir: &ClusterDir, process: Option<&str>, what: impl Into<String>) -> Error {
    Error::Failed {
        subject: name(process),
        what: what.into(),
        log: tail(&dir.device(process).log(), TAIL_LINES),
    }
}

/// Waits for the line `ready`. The error is the reason why the wait ended; none if the output
/// ended.
fn await_ready(mut output: ChildStdout, deadline: &Deadline) -> Result<(), Option<Stop>> {
    let mut said = Vec::new();
    loop {
        deadline.readable(output.as_fd())?;
        let mut byte = [0];
        match output.read(&mut byte) {
            Ok(1) if byte == *b"\n" => break,
            Ok(1) => said.push(byte[0]),
            _ => return Err(None),
        }
    }
    (said == b"ready").then_some(()).ok_or(None)
}

/// Sends a request to the device process that listens at `socket`; an answer that
/// tells of an error is one.
///
/// # Errors
/// [`Error::Failed`] if it does not answer, or with an error.
pub fn ask(socket: &Path, request: &Value) -> Result<Value> {
    let connection = Socket::connect(socket, Deadline::seconds(10)).map_err(silent)?;
    exchange(&mut BufReader::new(connection.clone()), connection, request)
}

/// Sends a request, and takes the answer, which may be an error.
pub(crate) fn exchange(
    from: &mut impl BufRead,
    mut to: impl Write,
    request: &Value,
) -> Result<Value> {
    to.write_all(format!("{request}\n").as_bytes())
        .map_err(silent)?;
    let mut line = String::new();
    from.read_line(&mut line).map_err(silent)?;
    let answer: Value = serde_json::from_str(&line)
        .map_err(|error| failed(format!("answered nonsense: {error}")))?;
    match answer.get("error") {
        Some(error) => Err(failed(error.as_str().unwrap_or("an error").to_owned())),
        None => Ok(answer),
    }
}

/// The error for a device process that breaks a connection.
pub(crate) fn silent(error: std::io::Error) -> Error {
    failed(format!("does not answer: {error}"))
}

/// Writes the name of a network to its NICs and links.
pub(crate) fn name_network(stats: &mut Value, network: Option<&str>) {
    let Some(network) = network else { return };
    for list in ["/nics", "/network/links"] {
        let list = stats.pointer_mut(list).and_then(Value::as_array_mut);
        for one in list.into_iter().flatten() {
            one["network"] = network.into();
        }
    }
}

/// Adds the statistics of another device process: its NICs, links, counters and carriers.
/// `all` is null at first.
pub fn add_stats(all: &mut Value, mut more: Value) {
    if all.is_null() {
        *all = more;
        return;
    }
    // The first may have a lossless wire.
    if all["network"].is_null() {
        all["network"] = more["network"].take();
    }
    for list in ["/nics", "/network/links", "/network/carriers"] {
        let more = more.pointer_mut(list).and_then(Value::as_array_mut);
        let all = all.pointer_mut(list).and_then(Value::as_array_mut);
        if let (Some(all), Some(more)) = (all, more) {
            all.append(more);
        }
    }
    for sum in ["/network/damaged", "/network/misdirected"] {
        let more = more.pointer(sum).and_then(Value::as_u64).unwrap_or(0);
        if let Some(all) = all.pointer_mut(sum) {
            *all = (all.as_u64().unwrap_or(0) + more).into();
        }
    }
}

/// The error for a device process that does not do what it should.
pub(crate) fn failed(what: String) -> Error {
    Error::Failed {
        subject: DEVICE.to_owned(),
        what,
        log: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;
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

    struct Fixture(TestDir);

    impl Fixture {
        fn new() -> Self {
            let dir = TestDir::new();
            dir.node();
            Self(dir)
        }

        fn start(&self, script: &str) -> Result<Child> {
            self.start_behind(&[], script)
        }

        fn start_behind(&self, prefix: &[&str], script: &str) -> Result<Child> {
            let program = self.0.path().join("device");
            std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            let prefix: Vec<_> = prefix.iter().map(|word| (*word).to_owned()).collect();
            let (command, limit) = (command(&program, &prefix), Deadline::seconds(30));
            start(command, &spec(), &self.0.dir, None, true, &limit)
        }
    }

    #[test]
    fn a_ready_device_is_recorded() {
        let fixture = Fixture::new();
        let mut child = fixture.start("echo ready; exec tail -f /dev/null").unwrap();
        let id = ProcessId::load(&fixture.0.dir.device(None).pid()).unwrap();
        assert_eq!(id.pid, child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_command_in_front_of_the_device_becomes_it() {
        let fixture = Fixture::new();
        let script = "test \"$PREFIX\" = there && echo ready; exec tail -f /dev/null";
        let mut child = fixture
            .start_behind(&["env", "PREFIX=there"], script)
            .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = fixture.start_behind(&["/nowhere/x"], script).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x"), "{error}");
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

    /// A second network beside a lossless one, whose process answers first (S7).
    #[test]
    fn what_is_on_a_network_of_its_own_has_its_name() {
        let mut beside = serde_json::json!({
            "nics": [{ "node": 0 }], "network": { "links": [{ "from": 0 }] },
        });
        name_network(&mut beside, Some("disks"));
        let mut all = serde_json::json!({ "nics": [{ "node": 0 }], "network": null });
        name_network(&mut all, None);
        add_stats(&mut all, beside);
        let expected = serde_json::json!({
            "nics": [{ "node": 0 }, { "node": 0, "network": "disks" }],
            "network": { "links": [{ "from": 0, "network": "disks" }] },
        });
        assert_eq!(all, expected);
    }

    #[test]
    fn statistics_of_several_processes_become_one() {
        let stats = |name: &str| {
            serde_json::json!({
                "nics": [{ "name": name }],
                "network": { "links": [1], "damaged": 2, "misdirected": 3, "carriers": [name] },
            })
        };
        let mut all = Value::Null;
        add_stats(&mut all, stats("a"));
        assert_eq!(all, stats("a"));
        add_stats(&mut all, stats("b"));
        let expected = serde_json::json!({
            "nics": [{ "name": "a" }, { "name": "b" }],
            "network": { "links": [1, 1], "damaged": 4, "misdirected": 6, "carriers": ["a", "b"] },
        });
        assert_eq!(all, expected);
    }
}
