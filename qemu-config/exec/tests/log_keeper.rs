//! The program beside processes that write more than they should.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use qnic_exec::log::MOST;

/// A process that writes 64 MiB to each of its logs once it is told to, then waits for its end.
fn writer(script: &str) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn logs_stay_small_and_the_program_ends_with_their_writers() {
    let dir = tempfile::tempdir().unwrap();
    let logs = ["a", "b", "c"].map(|name| dir.path().join(name));
    for log in &logs {
        std::fs::write(log, "begin\n").unwrap();
    }
    let flood = |log: &std::path::Path| {
        let log = log.display();
        let line = "read go; yes 0123456789abcde | head -c 67108864 >> ";
        writer(&format!("{line} {log}; echo end >> {log}; read end"))
    };
    let mut writers = [flood(&logs[0]), flood(&logs[1])];
    let pids = writers.each_ref().map(|writer| writer.id().to_string());
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_qnic-log-keeper"))
        .arg(pids.join(","))
        .args(&logs)
        .spawn()
        .unwrap();
    for writer in &mut writers {
        let mut input = writer.stdin.take().unwrap();
        input.write_all(b"go\nend\n").unwrap();
        drop(input);
    }
    for writer in &mut writers {
        assert!(writer.wait().unwrap().success());
    }
    assert!(keeper.wait().unwrap().success());
    for log in &logs[..2] {
        let (data, file) = (std::fs::read(log).unwrap(), std::fs::metadata(log).unwrap());
        assert!(data.len() > 64 << 20);
        let bytes = file.blocks() * 512;
        assert!(bytes <= MOST, "{bytes}");
        assert!(data.starts_with(b"begin\n0123") && data.ends_with(b"abcde\nend\n"));
    }
    assert_eq!(std::fs::read(&logs[2]).unwrap(), b"begin\n");
}

#[test]
fn a_wrong_command_line_is_refused() {
    for arguments in [&[][..], &["x"], &["0"], &["1,,2", "log"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qnic-log-keeper"));
        let status = command.args(arguments).stderr(Stdio::null()).status();
        assert_eq!(status.unwrap().code(), Some(2), "{arguments:?}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_qnic-log-keeper"));
    let own = std::process::id().to_string();
    command.args([&own, "/nowhere/log"]).stderr(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(1));
}
