//! A guest agent for guests that have none, or one that may start no programs: the commands of QEMU's agent
//! by which the host starts helpers, one line of JSON each.
//!
//! | command | answer |
//! |---|---|
//! | `guest-ping` | an empty object |
//! | `guest-sync` | the `id` that came with it |
//! | `guest-exec` | starts `path` with the arguments `arg`, without input and output; the `pid` |
//! | `guest-exec-status` | whether the program `pid` has ended; it is forgotten when it has |

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::buffer::spare_capacity;
use rustix::event::{epoll, poll, PollFd, PollFlags};
use rustix::io::{ioctl_fionbio, Errno};
use serde_json::{json, Value};

use crate::wire::CHUNK;

/// How each request begins.
const BEGIN: &[u8] = b"{\"execute\":";

/// Longest line that is understood, in bytes.
const MAX_LINE: usize = 64 << 10;

/// Serves the host over `port` for ever, whether it is connected or not.
///
/// # Errors
/// The port failed.
pub fn serve(port: OwnedFd) -> io::Result<()> {
    ioctl_fionbio(&port, true)?;
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // A port without a host is always hung up: only what changes wakes this process.
    let wanted = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&events, &port, epoll::EventData::new_u64(0), wanted)?;
    let mut port = File::from(port);
    let mut agent = Agent::default();
    let mut line = Vec::new();
    let mut happened = Vec::with_capacity(1);
    loop {
        happened.clear();
        match epoll::wait(&events, spare_capacity(&mut happened), None) {
            Ok(_) | Err(Errno::INTR) => agent.serve_all(&mut port, &mut line)?,
            Err(error) => return Err(error.into()),
        }
    }
}

#[derive(Default)]
struct Agent {
    programs: HashMap<u64, Child>,
}

impl Agent {
    /// Answers what has come; `line` is the part of a line that came before.
    fn serve_all(&mut self, port: &mut File, line: &mut Vec<u8>) -> io::Result<()> {
        let mut buffer = [0; CHUNK];
        loop {
            let read = match port.read(&mut buffer) {
                // There is no host. But the kernel may not have noticed the next one, of whose line the
                // beginning is here.
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for byte in &buffer[..read] {
                if *byte != b'\n' {
                    if line.len() == MAX_LINE {
                        line.clear();
                    }
                    line.push(*byte);
                    continue;
                }
                let mut answer = self.answer(line).to_string();
                answer.push('\n');
                send(port, answer.as_bytes())?;
                line.clear();
            }
        }
    }

    fn answer(&mut self, line: &[u8]) -> Value {
        let Ok(request) = serde_json::from_slice::<Value>(last_request(line)) else {
            return error("GenericError", "this is no JSON");
        };
        let arguments = &request["arguments"];
        match request["execute"].as_str() {
            Some("guest-ping") => json!({"return": {}}),
            Some("guest-sync") => json!({"return": arguments["id"]}),
            Some("guest-exec") => self.start(arguments),
            Some("guest-exec-status") => self.status(arguments),
            _ => error("CommandNotFound", "there is no such command"),
        }
    }

    fn start(&mut self, arguments: &Value) -> Value {
        let Some(path) = arguments["path"].as_str() else {
            return error("GenericError", "guest-exec names no path");
        };
        let words = arguments["arg"].as_array().into_iter().flatten();
        let mut command = Command::new(path);
        command.args(words.filter_map(Value::as_str));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                let pid = u64::from(child.id());
                self.programs.insert(pid, child);
                json!({"return": {"pid": pid}})
            }
            Err(why) => error("GenericError", &format!("{path}: {why}")),
        }
    }

    fn status(&mut self, arguments: &Value) -> Value {
        let pid = arguments["pid"].as_u64().unwrap_or(0);
        let Some(program) = self.programs.get_mut(&pid) else {
            return error("GenericError", "there is no such program");
        };
        match program.try_wait() {
            Ok(None) => json!({"return": {"exited": false}}),
            Ok(Some(_)) | Err(_) => {
                self.programs.remove(&pid);
                json!({"return": {"exited": true}})
            }
        }
    }
}

/// The request at the end of `line`: in front of it may be the beginning of one that its host has not ended.
fn last_request(line: &[u8]) -> &[u8] {
    let mut starts = (0..line.len()).rev();
    let start = starts.find(|start| line[*start..].starts_with(BEGIN));
    &line[start.unwrap_or(0)..]
}

fn error(class: &str, desc: &str) -> Value {
    json!({"error": {"class": class, "desc": desc}})
}

/// Writes all of `bytes`; waits while the port takes none.
fn send(port: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match port.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(port, PollFlags::OUT)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The lines of one connection, in pieces as they may come.
    #[test]
    fn what_the_host_asks_is_answered_line_by_line() {
        let (host, guest) = UnixStream::pair().unwrap();
        // It ends with the test.
        std::thread::spawn(move || serve(guest.into()));
        let mut answers = BufReader::new(host.try_clone().unwrap());
        let mut ask = |parts: &[&str]| -> Value {
            for part in parts {
                (&host).write_all(part.as_bytes()).unwrap();
            }
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            serde_json::from_str(&line).unwrap()
        };
        let sync = [
            r#"{"execute":"guest-sync","#,
            r#""arguments":{"id":77}}"#,
            "\n",
        ];
        assert_eq!(ask(&sync), json!({"return": 77}));
        let garbage = ask(&["\u{1}nonsense\n"]);
        assert_eq!(garbage["error"]["class"], "GenericError");
        let unknown = ask(&["{\"execute\":\"guest-shutdown\"}\n"]);
        assert_eq!(unknown["error"]["class"], "CommandNotFound");
        let none = r#"{"execute":"guest-exec","arguments":{"path":"/nowhere/x"}}"#;
        let none = ask(&[none, "\n"]);
        assert!(
            none["error"]["desc"]
                .as_str()
                .unwrap()
                .starts_with("/nowhere/x: "),
            "{none}"
        );
    }

    #[test]
    fn a_program_is_started_and_forgotten_when_it_has_ended() {
        let mut agent = Agent::default();
        let mut ask = |execute: &str, arguments: Value| {
            let request = json!({"execute": execute, "arguments": arguments});
            agent.answer(request.to_string().as_bytes())
        };
        let started = ask("guest-exec", json!({"path": "sh", "arg": ["-c", "exit 3"]}));
        let pid = &started["return"]["pid"];
        loop {
            let status = ask("guest-exec-status", json!({"pid": pid}));
            match status["return"]["exited"].as_bool().unwrap() {
                true => break,
                false => std::thread::yield_now(),
            }
        }
        let again = ask("guest-exec-status", json!({"pid": pid}));
        assert_eq!(again["error"]["class"], "GenericError", "{again}");
    }

    /// A host that goes in the middle of a line costs the next one nothing; and a next one whose arrival the
    /// kernel has not noticed loses no part of its line.
    #[test]
    fn a_line_without_an_end_is_no_part_of_the_next() {
        let mut agent = Agent::default();
        let mut ask = |line: &str| agent.answer(line.as_bytes());
        let ping = r#"{"execute":"guest-ping"}"#;
        assert_eq!(ask(ping), json!({"return": {}}));
        for before in [
            r#"{"exec"#,
            r#"{"execute":"guest-sync","arguments":{"#,
            ping,
        ] {
            assert_eq!(ask(&format!("{before}{ping}")), json!({"return": {}}));
        }

        let (host, guest) = UnixStream::pair().unwrap();
        (&host).write_all(&ping.as_bytes()[..5]).unwrap();
        drop(host);
        let mut line = Vec::new();
        let mut port = File::from(OwnedFd::from(guest));
        agent.serve_all(&mut port, &mut line).unwrap();
        assert_eq!(line, &ping.as_bytes()[..5]);
    }

    #[test]
    fn a_line_that_never_ends_takes_a_bounded_space() {
        let (host, guest) = UnixStream::pair().unwrap();
        let mut port = File::from(OwnedFd::from(guest));
        let mut line = vec![b'x'; MAX_LINE];
        (&host).write_all(b"more").unwrap();
        drop(host);
        Agent::default().serve_all(&mut port, &mut line).unwrap();
        assert_eq!(line, b"more");
    }
}
