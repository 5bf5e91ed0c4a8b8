//! Commands and copies against a guest that is only sockets: an agent that knows
//! three commands, and the real helper behind the command port.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use qnic_exec::guest::serve;
use rustix::net::{recv, RecvFlags};
use serde_json::{json, Value};

use super::GuestProcess;
use crate::dirs::NodeDir;
use crate::limits::COMMAND_SLOTS;
use crate::testing::{Asked, TestDir};
use crate::{copy, Error, GuestCommand, GuestEvent, GuestExit};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));

/// How the fake guest behaves.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    Good,
    /// Answers to an earlier client come first.
    Chatty,
    /// The helper is not there.
    NoHelper,
    /// The command port gives bytes of an earlier command first.
    Leftovers,
    /// The helper's stream is no stream of frames.
    Broken,
    /// Nothing comes out of a command port until a client has closed it: QEMU leaves it so when a guest
    /// writes to a client that has just gone.
    Throttled,
    /// The agent does not answer its first client, for the same reason.
    ThrottledAgent,
}

/// What is behind the ports: the helpers that were started, by the number that the agent gave them.
struct Inside {
    behaviour: Behaviour,
    ports: Vec<UnixListener>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
}

struct Guest {
    _dir: TestDir,
    dir: NodeDir,
}

impl Guest {
    fn new(behaviour: Behaviour) -> Self {
        let cluster = TestDir::new();
        let dir = cluster.node();
        let ports = (0..COMMAND_SLOTS).map(|slot| UnixListener::bind(dir.command(slot)).unwrap());
        let agent = UnixListener::bind(dir.agent()).unwrap();
        let inside = Arc::new(Inside {
            behaviour,
            ports: ports.collect(),
            helpers: Mutex::default(),
        });
        // Ends with the test process.
        std::thread::spawn(move || {
            if behaviour == Behaviour::ThrottledAgent {
                closed_by_client(&agent.accept().unwrap().0);
            }
            for client in agent.incoming().map_while(Result::ok) {
                serve_agent(client, &inside);
            }
        });
        Self { _dir: cluster, dir }
    }

    fn run(&self, command: &GuestCommand) -> crate::Result<crate::GuestOutput> {
        self.spawn(command)?.wait(LIMIT)
    }

    fn spawn(&self, command: &GuestCommand) -> crate::Result<GuestProcess> {
        GuestProcess::start(&self.dir, command, None, None)
    }
}

/// A command that does not end by itself.
fn endless() -> GuestCommand {
    GuestCommand::new("tail").args(["-f", "/dev/null"])
}

/// Waits until the client has closed its connection, whatever it says before.
fn closed_by_client(mut connection: &UnixStream) {
    std::io::copy(&mut connection, &mut std::io::sink()).unwrap();
}

/// True if the client has closed its connection and said nothing.
fn is_empty(connection: &UnixStream) -> bool {
    let (read, _) = recv(connection, &mut [0; 1], RecvFlags::PEEK).unwrap();
    read == 0
}

fn serve_agent(client: UnixStream, inside: &Arc<Inside>) {
    let behaviour = inside.behaviour;
    let mut to = client.try_clone().unwrap();
    if behaviour == Behaviour::Chatty {
        to.write_all(b"{\"return\":{\"pid\":1}}\n{\"return\":77}\n{\"error\":{\"class\":\"GenericError\",\"desc\":\"x\"}}\n").unwrap();
    }
    for line in BufReader::new(client).lines().map_while(Result::ok) {
        let request: Value = serde_json::from_str(&line).unwrap();
        let arguments = &request["arguments"];
        let answer = match request["execute"].as_str().unwrap() {
            "guest-sync" => json!({ "return": arguments["id"] }),
            "guest-exec" if behaviour == Behaviour::NoHelper => {
                json!({ "error": { "class": "GenericError", "desc": "no such program" } })
            }
            "guest-exec" => {
                let helper = start_helper(arguments["arg"].as_array().unwrap(), inside);
                let mut helpers = inside.helpers.lock().unwrap();
                helpers.push(helper);
                json!({ "return": { "pid": helpers.len() - 1 } })
            }
            "guest-exec-status" => {
                let pid = arguments["pid"].as_u64().unwrap() as usize;
                let ended = inside.helpers.lock().unwrap()[pid].is_finished();
                json!({ "return": { "exited": ended } })
            }
            other => panic!("unexpected command {other}"),
        };
        if writeln!(to, "{answer}").is_err() {
            return;
        }
    }
}

fn start_helper(args: &[Value], inside: &Arc<Inside>) -> JoinHandle<()> {
    assert_eq!(args[0], "serve");
    let slot = args[1].as_str().unwrap();
    let slot = slot.strip_prefix("org.qnic.command.").unwrap();
    let slot: usize = slot.parse().unwrap();
    let nonce = args[2].as_str().unwrap().parse().unwrap();
    let inside = Arc::clone(inside);
    std::thread::spawn(move || {
        let accept = || inside.ports[slot].accept().unwrap().0;
        if inside.behaviour == Behaviour::Throttled {
            closed_by_client(&accept());
        }
        let mut port = accept();
        while is_empty(&port) {
            port = accept();
        }
        match inside.behaviour {
            Behaviour::Leftovers => port
                .write_all(b"\x11\xff\xff\0qnicex\x01 old bytes")
                .unwrap(),
            Behaviour::Broken => {
                port.write_all(&qnic_exec::wire::preamble(nonce)).unwrap();
                port.write_all(&[0xee; 64]).unwrap();
                return;
            }
            _ => {}
        }
        // A host that goes away early is part of the tests.
        let _ = serve(port.into(), nonce);
    })
}

#[test]
fn output_and_end_arrive_whatever_came_before() {
    let behaviours = [
        Behaviour::Good,
        Behaviour::Chatty,
        Behaviour::Leftovers,
        Behaviour::Throttled,
        Behaviour::ThrottledAgent,
    ];
    for behaviour in behaviours {
        let command = GuestCommand::shell("printf \"$A-\"; printf e >&2; exit 5").env("A", "b=c");
        let output = Guest::new(behaviour).run(&command).unwrap();
        assert_eq!(output.stdout, b"b=c-");
        assert_eq!(output.stderr, b"e");
        assert_eq!(output.exit, GuestExit::Code(5));
    }
}

#[test]
fn a_refusal_and_nonsense_are_errors_that_name_the_node() {
    let refused = Guest::new(Behaviour::NoHelper)
        .spawn(&GuestCommand::new("true"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.starts_with("node a: ") && refused.contains("no such program"),
        "{refused}"
    );
    let broken = Guest::new(Behaviour::Broken).run(&GuestCommand::new("true"));
    assert!(matches!(broken, Err(Error::Guest { .. })), "{broken:?}");
}

#[test]
fn signals_and_timeouts_end_commands() {
    let guest = Guest::new(Behaviour::Good);
    let command = GuestCommand::shell("echo; exec tail -f /dev/null");
    let mut process = guest.spawn(&command).unwrap();
    let first = process.next_event(LIMIT).unwrap();
    assert_eq!(first, Some(GuestEvent::Stdout(b"\n".to_vec())));
    assert_eq!(process.next_event(Some(Duration::ZERO)).unwrap(), None);
    process.signal(15).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().exit, GuestExit::Signal(15));
    let late = guest.spawn(&endless()).unwrap();
    let late = late.wait(Some(Duration::from_millis(50)));
    assert!(matches!(late, Err(Error::Timeout { .. })));
}

#[test]
fn a_command_that_does_not_exist_is_told_from_one_that_fails() {
    let output = Guest::new(Behaviour::Good).run(&GuestCommand::new("/nowhere/x"));
    assert!(matches!(output, Err(Error::NotStarted { errno: 2, .. })));
}

#[test]
fn slots_are_used_up_and_given_back() {
    let guest = Guest::new(Behaviour::Good);
    let start = |_| guest.spawn(&endless()).unwrap();
    let mut running: Vec<_> = (0..COMMAND_SLOTS).map(start).collect();
    let busy = guest.spawn(&endless()).err().unwrap();
    assert!(matches!(busy, Error::Busy { limit, .. } if limit == COMMAND_SLOTS));
    running.pop();
    let output = guest.run(&GuestCommand::new("true")).unwrap();
    assert!(output.exit.success());
}

/// Whatever order: the helpers of commands that were just killed are ending, and a slot is not used
/// again before its helper has.
#[test]
fn commands_start_while_others_are_ending() {
    let guest = Guest::new(Behaviour::Good);
    for _ in 0..4 * COMMAND_SLOTS {
        drop(guest.spawn(&endless()).unwrap());
    }
    let output = guest.run(&GuestCommand::new("true")).unwrap();
    assert!(output.exit.success());
}

#[test]
fn a_pulled_cancel_ends_the_wait() {
    let guest = Guest::new(Behaviour::Good);
    let cancel = crate::Cancel::new().unwrap();
    let process = GuestProcess::start(&guest.dir, &endless(), None, Some(&cancel)).unwrap();
    cancel.cancel();
    assert!(matches!(process.wait(LIMIT), Err(Error::Interrupted)));
}

/// The guest does not answer, because it is paused or for another reason that QEMU knows.
#[test]
fn a_start_ends_in_time_and_names_the_state_of_the_guest() {
    for (status, boots, open, says) in [
        (
            "paused",
            1,
            true,
            "the guest is paused: resume it with \"qnic resume a\"",
        ),
        ("guest-panicked", 1, true, "its kernel has panicked"),
        ("running", 1, true, "not answered within 0.05 s"),
        ("running", 1, false, "the guest sleeps, or boots again"),
        ("running", 0, false, "the guest is booting"),
    ] {
        let cluster = TestDir::new();
        let dir = cluster.node();
        std::fs::write(dir.ready(), "ready 6.12\n".repeat(boots)).unwrap();
        let _silent = UnixListener::bind(dir.agent()).unwrap();
        let _qemu = Asked::qemu(&dir, move |asked| match asked {
            "query-status" => json!({ "status": status, "running": status == "running" }),
            "query-chardev" => json!([{ "label": "agent", "frontend-open": open }]),
            _ => json!({}),
        });
        let limit = Some(Duration::from_millis(50));
        let error = GuestProcess::start(&dir, &endless(), limit, None).err();
        let error = error.unwrap().to_string();
        assert!(
            error.starts_with("node a: ") && error.contains(says),
            "{error}"
        );
    }
}

#[test]
fn a_copy_without_the_helper_in_the_guest_says_so() {
    let guest = Guest::new(Behaviour::Good);
    let (from, to) = (Path::new("/etc/hostname"), Path::new("/tmp"));
    let error = copy::get(&guest.dir, from, to, &|_| (), None);
    assert!(matches!(error, Err(Error::NotStarted { .. })), "{error:?}");
}
