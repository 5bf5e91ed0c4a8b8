//! The program `qnic-device` as a user meets it: messages, exit codes, signals.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use qnic_nic::trace::{Event, What, RECORD_BYTES};
use rustix::process::{kill_process, Pid, Signal};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_qnic-device"))
}

fn config(directory: &Path) -> String {
    let (socket, metrics) = (directory.join("a.sock"), directory.join("m.sock"));
    let http = directory.join("m.http");
    format!(
        "[[nic]]\nname = \"a\"\nnode = 0\nsocket = {socket:?}\nram = \"64MiB\"\n\
         [metrics]\nsocket = {metrics:?}\nhttp_socket = {http:?}\n"
    )
}

/// The program with this configuration.
fn configured(directory: &Path, text: &str) -> Command {
    let file = directory.join("q.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = program();
    command.arg("--config").arg(file);
    command
}

fn start(directory: &Path) -> Child {
    let mut command = configured(directory, &config(directory));
    command.args(["--log-format", "json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

#[test]
fn a_signal_ends_it_and_nothing_is_left() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let mut child = start(directory.path());
        let socket = directory.path().join("a.sock");
        let busy = UnixStream::connect(&socket).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(!socket.exists());
        assert!(!directory.path().join("m.sock").exists());
        assert!(!directory.path().join("m.http").exists());
        drop(busy);
    }
}

#[test]
fn it_starts_again_after_it_was_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = start(directory.path());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(directory.path().join("a.sock").exists());
    let mut child = start(directory.path());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn metrics_are_given() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = start(directory.path());
    let mut metrics = UnixStream::connect(directory.path().join("m.sock")).unwrap();
    let mut lines = BufReader::new(metrics.try_clone().unwrap());
    for (request, part) in [
        ("{\"cmd\":\"stats\"}\n", "\"name\":\"a\""),
        ("{\"cmd\":\"stats\"}\n", "\"rss_anon_bytes\":"),
        (
            "{\"cmd\":\"table\",\"node\":0,\"table\":\"map\"}\n",
            "[\"windows\",\"0x1000\",",
        ),
        (
            "{\"cmd\":\"table\",\"node\":0,\"table\":\"names\"}\n",
            "{\"columns\":[\"application\",\"process\",\"node\",\"port\"],\"rows\":[]",
        ),
        (
            "{\"cmd\":\"table\",\"node\":9,\"table\":\"map\"}\n",
            r#"node 9 has no NIC in this device process: \"qnic ps\" shows the nodes"#,
        ),
        // No driver has started it: its machine can be paused all the same.
        (
            "{\"cmd\":\"expect_pause\",\"node\":0}\n",
            "{\"expected\":false}",
        ),
        ("nonsense\n", "\"error\":"),
    ] {
        metrics.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert!(line.contains(part), "{line}");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Asks for a trace; the answer, and the stream behind it.
fn trace(directory: &Path, request: &str) -> (String, BufReader<UnixStream>) {
    let mut socket = UnixStream::connect(directory.join("m.sock")).unwrap();
    socket.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut stream = BufReader::new(socket);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    (line, stream)
}

#[test]
fn a_trace_ends_with_its_client_however_that_ends() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut child = start(directory);
    let all = r#"{"cmd":"trace"}"#;
    let accepted = "{\"sample\":1,\"tracing\":[{\"name\":\"a\",\"node\":0}]}\n";

    // It has enough.
    let (line, mut first) = trace(directory, all);
    assert_eq!(line, accepted);
    let (line, _) = trace(directory, all);
    assert!(line.contains("node 0 (a) is traced already"), "{line}");
    let mut record = [0; RECORD_BYTES];
    first.read_exact(&mut record).unwrap();
    let event = Event::read(&record).unwrap();
    assert_eq!((event.what, event.at), (What::Load, 0));
    first.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() % RECORD_BYTES, 0);

    // It is gone.
    let (line, second) = trace(directory, all);
    assert_eq!(line, accepted, "the first trace has ended with its stream");
    drop(second);
    let begun = Instant::now();
    while trace(directory, all).0 != accepted {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    // It asks for nothing that is here.
    let (line, mut none) = trace(directory, r#"{"cmd":"trace","nodes":["b"],"sample":7}"#);
    assert_eq!(line, "{\"sample\":7,\"tracing\":[]}\n");
    assert_eq!(none.read(&mut record).unwrap(), 0);

    // The process ends.
    let begun = Instant::now();
    let mut last = loop {
        let (line, stream) = trace(directory, all);
        if line == accepted {
            break stream;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    };
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    last.read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn prometheus_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = start(directory.path());
    let socket = directory.path().join("m.http");
    // It does not keep the one from its answer that comes after it, nor the end of the process.
    let _silent = UnixStream::connect(&socket).unwrap();
    let mut stream = UnixStream::connect(&socket).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for part in [
        "HTTP/1.1 200 OK\r\n",
        "# TYPE qnic_commands_total counter\nqnic_commands_total{node=\"a\"} 0\n",
        "qnic_nic_info{node=\"a\",number=\"0\",state=\"down\"} 1\n",
        "qnic_budget_limit{node=\"a\",budget=\"peers\"} ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn mistakes_have_their_exit_codes_and_messages() {
    let directory = tempfile::tempdir().unwrap();
    let good = config(directory.path());
    let check = |text: &str, code: i32, part: &str| {
        let output = configured(directory.path(), text).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(part), "{message}");
    };
    check("", 2, "at least one [[nic]]");
    check(&good.replace("node = 0", "node = -1"), 2, "q.toml:3:8: ");
    check(
        &good.replace("64MiB", "lots"),
        2,
        "nic[0].ram: expected a size",
    );
    check(
        &good.replace("a.sock", "no/a.sock"),
        1,
        "directory does not exist",
    );
    let listener = UnixListener::bind(directory.path().join("a.sock")).unwrap();
    check(&good, 1, "in use by another process");
    drop(listener);
    let missing = program().args(["--config", "/nowhere"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert_eq!(program().output().unwrap().status.code(), Some(2));
}

#[test]
fn the_configuration_can_be_printed() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = configured(directory.path(), &config(directory.path()));
    let output = command.arg("--print-config").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("doorbells = 14") && printed.contains("poll_window_us = 5"));
}
