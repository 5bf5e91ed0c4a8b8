//! Commands and copies against a guest that is only sockets: an agent that knows
//! three commands, and the real helper behind the command port.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use qnic_exec::guest::serve;
use serde_json::{json, Value};

use super::GuestProcess;
use crate::dirs::NodeDir;
use crate::state::{Runtime, COMMAND_SLOTS};
use crate::{copy, Error, GuestCommand, GuestEvent, GuestExit};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// How the fake guest behaves.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Good,
    /// Answers to somebody else come first.
    Chatty,
    /// The helper is not there.
    NoHelper,
    /// The command port gives bytes of an earlier command first.
    Leftovers,
    /// The helper's stream is no stream of frames.
    Broken,
}

struct Guest {
    _home: tempfile::TempDir,
    dir: NodeDir,
}

impl Guest {
    fn new(mood: Mood) -> Self {
        let home = tempfile::tempdir().unwrap();
        let runtime = Runtime::at(home.path().join("r"), home.path().join("d")).unwrap();
        let dir = runtime.dir("c").node("a");
        std::fs::create_dir_all(dir.agent().parent().unwrap()).unwrap();
        let ports: Vec<_> = (0..COMMAND_SLOTS)
            .map(|slot| UnixListener::bind(dir.command(slot)).unwrap())
            .collect();
        let agent = UnixListener::bind(dir.agent()).unwrap();
        let ports = Arc::new(ports);
        // Ends with the test process.
        std::thread::spawn(move || {
            for client in agent.incoming().map_while(Result::ok) {
                serve_agent(client, mood, &ports);
            }
        });
        Self { _home: home, dir }
    }

    fn spawn(&self, command: &GuestCommand) -> crate::Result<GuestProcess> {
        GuestProcess::start("a", &self.dir, command, None)
    }
}

fn serve_agent(client: UnixStream, mood: Mood, ports: &Arc<Vec<UnixListener>>) {
    let mut to = client.try_clone().unwrap();
    if mood == Mood::Chatty {
        to.write_all(b"{\"return\":{\"pid\":1}}\n{\"return\":77}\n{\"error\":{\"class\":\"GenericError\",\"desc\":\"x\"}}\n").unwrap();
    }
    for line in BufReader::new(client).lines().map_while(Result::ok) {
        let request: Value = serde_json::from_str(&line).unwrap();
        let arguments = &request["arguments"];
        let answer = match request["execute"].as_str().unwrap() {
            "guest-sync" => json!({ "return": arguments["id"] }),
            "guest-exec" if mood == Mood::NoHelper => {
                json!({ "error": { "class": "GenericError", "desc": "no such program" } })
            }
            "guest-exec" => {
                start_helper(arguments["arg"].as_array().unwrap(), mood, ports);
                json!({ "return": { "pid": 9 } })
            }
            "guest-exec-status" => json!({ "return": { "exited": true } }),
            other => panic!("unexpected command {other}"),
        };
        if writeln!(to, "{answer}").is_err() {
            return;
        }
    }
}

fn start_helper(args: &[Value], mood: Mood, ports: &Arc<Vec<UnixListener>>) {
    assert_eq!(args[0], "serve");
    let slot: usize = args[1]
        .as_str()
        .unwrap()
        .strip_prefix("org.qnic.command.")
        .unwrap()
        .parse()
        .unwrap();
    let nonce = args[2].as_str().unwrap().parse().unwrap();
    let ports = Arc::clone(ports);
    std::thread::spawn(move || {
        let (mut port, _) = ports[slot].accept().unwrap();
        match mood {
            Mood::Leftovers => port
                .write_all(b"\x11\xff\xff\0qnicex\x01 old bytes")
                .unwrap(),
            Mood::Broken => {
                port.write_all(&qnic_exec::wire::preamble(nonce)).unwrap();
                port.write_all(&[0xee; 64]).unwrap();
                return;
            }
            _ => {}
        }
        // A host that goes away early is part of the tests.
        let _ = serve(port.into(), nonce);
    });
}

#[test]
fn output_and_end_arrive_whatever_came_before() {
    for mood in [Mood::Good, Mood::Chatty, Mood::Leftovers] {
        let command = GuestCommand::shell("printf \"$A-\"; printf e >&2; exit 5").env("A", "b=c");
        let output = Guest::new(mood)
            .spawn(&command)
            .unwrap()
            .wait(LIMIT)
            .unwrap();
        assert_eq!(output.stdout, b"b=c-");
        assert_eq!(output.stderr, b"e");
        assert_eq!(output.exit, GuestExit::Code(5));
    }
}

#[test]
fn a_refusal_and_nonsense_are_errors_that_name_the_node() {
    let refused = Guest::new(Mood::NoHelper)
        .spawn(&GuestCommand::new("true"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.starts_with("node a: ") && refused.contains("no such program"),
        "{refused}"
    );
    let broken = Guest::new(Mood::Broken);
    let broken = broken
        .spawn(&GuestCommand::new("true"))
        .and_then(|process| process.wait(LIMIT));
    assert!(matches!(broken, Err(Error::Guest { .. })), "{broken:?}");
}

#[test]
fn signals_and_timeouts_end_commands() {
    let guest = Guest::new(Mood::Good);
    let mut process = guest
        .spawn(&GuestCommand::shell("echo; exec tail -f /dev/null"))
        .unwrap();
    assert_eq!(
        process.next_event(LIMIT).unwrap(),
        Some(GuestEvent::Stdout(b"\n".to_vec()))
    );
    assert_eq!(process.next_event(Some(Duration::ZERO)).unwrap(), None);
    process.signal(15).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().exit, GuestExit::Signal(15));
    let late = guest
        .spawn(&GuestCommand::new("tail").args(["-f", "/dev/null"]))
        .unwrap();
    assert!(matches!(
        late.wait(Some(Duration::from_millis(50))),
        Err(Error::Timeout { .. })
    ));
}

#[test]
fn a_command_that_does_not_exist_is_told_from_one_that_fails() {
    let process = Guest::new(Mood::Good)
        .spawn(&GuestCommand::new("/nowhere/x"))
        .unwrap();
    assert!(matches!(
        process.wait(LIMIT),
        Err(Error::NotStarted { errno: 2, .. })
    ));
}

#[test]
fn slots_are_used_up_and_given_back() {
    let guest = Guest::new(Mood::Good);
    let forever = GuestCommand::new("tail").args(["-f", "/dev/null"]);
    let mut running: Vec<_> = (0..COMMAND_SLOTS)
        .map(|_| guest.spawn(&forever).unwrap())
        .collect();
    assert!(matches!(
        guest.spawn(&forever),
        Err(Error::Busy {
            limit: COMMAND_SLOTS,
            ..
        })
    ));
    running.pop();
    let output = guest
        .spawn(&GuestCommand::new("true"))
        .unwrap()
        .wait(LIMIT)
        .unwrap();
    assert!(output.exit.success());
}

#[test]
fn a_pulled_cancel_ends_the_wait() {
    let guest = Guest::new(Mood::Good);
    let cancel = crate::Cancel::new().unwrap();
    let command = GuestCommand::new("tail").args(["-f", "/dev/null"]);
    let process = GuestProcess::start("a", &guest.dir, &command, Some(&cancel)).unwrap();
    cancel.cancel();
    assert!(matches!(process.wait(LIMIT), Err(Error::Interrupted)));
}

#[test]
fn a_copy_without_the_helper_in_the_guest_says_so() {
    let guest = Guest::new(Mood::Good);
    let error = copy::get(
        "a",
        &guest.dir,
        Path::new("/etc/hostname"),
        Path::new("/tmp"),
        &|_| (),
        None,
    );
    assert!(matches!(error, Err(Error::NotStarted { .. })), "{error:?}");
}
