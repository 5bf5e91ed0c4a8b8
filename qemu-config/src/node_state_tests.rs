//! States of a node whose QEMU is a socket that says what QEMU 11.1 says.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{json, Value};

use super::*;
use crate::testing::TestDir;

const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 3, "minor": 1, "major": 11}, "package": "Debian 1:11.1.3+ds-1~bpo13+1"}, "capabilities": ["oob"]}}"#;
const RUNNING: &str = r#"{"return": {"status": "running", "running": true}}"#;
const PAUSED: &str = r#"{"return": {"status": "paused", "running": false}}"#;
const PANICKED: &str = r#"{"return": {"status": "guest-panicked", "running": false}}"#;

/// Longest time for an agent that does not answer, so that the tests are short.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

/// What `query-chardev` says.
fn chardevs(agent_open: bool) -> String {
    format!(
        r#"{{"return": [{{"frontend-open": true, "filename": "unix:qmp.sock,server=on", "label": "qmp"}}, {{"frontend-open": {agent_open}, "filename": "disconnected:unix:agent.sock,server=on", "label": "agent"}}]}}"#
    )
}

/// A node whose QEMU gives one of `statuses` at each question, the last one again and again.
fn node(boots: &str, statuses: &[&'static str], agent_open: bool) -> (TestDir, NodeDir) {
    let cluster = TestDir::new();
    let dir = cluster.node();
    std::fs::write(dir.ready(), boots).unwrap();
    let monitor = UnixListener::bind(dir.monitor()).unwrap();
    let mut statuses: VecDeque<_> = statuses.iter().copied().collect();
    // Ends with the test process.
    std::thread::spawn(move || {
        for client in monitor.incoming().map_while(Result::ok) {
            let status = match statuses.len() {
                1 => statuses[0],
                _ => statuses.pop_front().unwrap(),
            };
            serve_monitor(client, status, agent_open);
        }
    });
    (cluster, dir)
}

fn serve_monitor(client: UnixStream, status: &str, agent_open: bool) {
    let mut to = client.try_clone().unwrap();
    writeln!(to, "{GREETING}").unwrap();
    for line in BufReader::new(client).lines().map_while(Result::ok) {
        let request: Value = serde_json::from_str(&line).unwrap();
        let answer = match request["execute"].as_str().unwrap() {
            "query-status" => status.to_owned(),
            "query-chardev" => chardevs(agent_open),
            _ => r#"{"return": {}}"#.to_owned(),
        };
        if writeln!(to, "{answer}").is_err() {
            return;
        }
    }
}

/// An agent that answers, or only reads.
fn start_agent(dir: &NodeDir, answers: bool) {
    let agent = UnixListener::bind(dir.agent()).unwrap();
    std::thread::spawn(move || {
        for client in agent.incoming().map_while(Result::ok) {
            let mut to = client.try_clone().unwrap();
            for line in BufReader::new(client).lines().map_while(Result::ok) {
                let request: Value = serde_json::from_str(&line).unwrap();
                let answer = json!({ "return": request["arguments"]["id"] });
                if answers && writeln!(to, "{answer}").is_err() {
                    break;
                }
            }
        }
    });
}

#[test]
fn a_guest_whose_agent_answers_is_ready() {
    let (_cluster, dir) = node("ready 6.12\n", &[RUNNING], true);
    start_agent(&dir, true);
    assert_eq!(state_within(&dir, LONG), NodeState::Ready);
}

#[test]
fn a_guest_that_has_panicked_is_not_ready() {
    let (_cluster, dir) = node("ready 6.12\n", &[PANICKED], true);
    start_agent(&dir, false);
    assert_eq!(state_within(&dir, LONG), NodeState::Panicked);
    assert!(has_panicked(&dir).unwrap());
    let (_cluster, dir) = node("", &[RUNNING], false);
    assert!(!has_panicked(&dir).unwrap());
}

#[test]
fn a_guest_whose_agent_is_silent_is_not_ready() {
    let (_cluster, dir) = node("ready 6.12\n", &[RUNNING], true);
    start_agent(&dir, false);
    assert_eq!(state_within(&dir, SHORT), NodeState::NotAnswering);
}

#[test]
fn what_happens_while_the_agent_is_asked_is_told() {
    for (then, expected) in [(PANICKED, NodeState::Panicked), (PAUSED, NodeState::Paused)] {
        let (_cluster, dir) = node("ready 6.12\n", &[RUNNING, then], true);
        start_agent(&dir, false);
        assert_eq!(state_within(&dir, SHORT), expected);
    }
}

#[test]
fn a_guest_that_has_reported_nothing_or_has_no_agent_is_booting() {
    for (boots, agent_open) in [("", true), ("ready 6.12\n", false)] {
        let (_cluster, dir) = node(boots, &[RUNNING], agent_open);
        start_agent(&dir, true);
        assert_eq!(state_within(&dir, LONG), NodeState::Booting);
    }
}

/// A guest reports its boot before its agent listens.
#[test]
fn a_boot_is_over_when_the_agent_answers() {
    let (_cluster, dir) = node("ready 6.12\n", &[RUNNING], false);
    start_agent(&dir, true);
    wait_answering(&dir, &Deadline::new(Some(LONG), None)).unwrap();
    let (_cluster, dir) = node("ready 6.12\n", &[RUNNING], false);
    start_agent(&dir, false);
    let error = wait_answering(&dir, &Deadline::new(Some(SHORT), None)).unwrap_err();
    assert!(
        error.to_string().contains("agent does not answer"),
        "{error}"
    );
}

#[test]
fn a_guest_that_panics_before_its_agent_answers_is_told() {
    let (_cluster, dir) = node("ready 6.12\n", &[PANICKED], false);
    start_agent(&dir, false);
    let error = wait_answering(&dir, &Deadline::new(Some(LONG), None)).unwrap_err();
    assert!(
        error.to_string().contains("its kernel has panicked"),
        "{error}"
    );
}

#[test]
fn a_paused_guest_and_a_qemu_without_monitor_are_told_apart() {
    let (_cluster, dir) = node("ready 6.12\n", &[PAUSED], true);
    assert_eq!(state_within(&dir, LONG), NodeState::Paused);
    let cluster = TestDir::new();
    assert_eq!(state_within(&cluster.node(), LONG), NodeState::Silent);
}

#[test]
fn states_have_the_same_words_in_text_and_json() {
    for (state, words, well) in [
        (NodeState::Ready, "ready", true),
        (NodeState::Booting, "booting", true),
        (NodeState::Paused, "paused", true),
        (NodeState::Panicked, "panicked", false),
        (NodeState::NotAnswering, "not answering", false),
        (NodeState::Dead, "dead", false),
        (NodeState::Silent, "silent", false),
    ] {
        assert_eq!(state.to_string(), words);
        assert_eq!(json!(state), json!(words));
        assert_eq!(state.is_well(), well);
    }
}
