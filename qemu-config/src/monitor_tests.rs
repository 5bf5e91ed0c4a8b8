//! Exchanges with a monitor that says what a test tells it to.

use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::*;
use crate::qmp::{RunState, Status, QUERY_STATUS};
use crate::testing::TestDir;

const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": [\"oob\"]}}\n";
const DONE: &str = "{\"return\": {}}\n";
const RUNNING: &str = "{\"return\": {\"status\": \"running\", \"running\": true}}\n";

/// A monitor that says `first`, then one of `answers` to each line that it gets, and then hangs
/// up. It returns the lines.
fn serve(dir: &NodeDir, first: &'static str, answers: &[&str]) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(dir.monitor()).unwrap();
    let answers: Vec<_> = answers.iter().map(|one| (*one).to_owned()).collect();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(first.as_bytes()).unwrap();
        let mut received = BufReader::new(client.try_clone().unwrap()).lines();
        let mut asked = Vec::new();
        for answer in answers {
            asked.push(received.next().unwrap().unwrap());
            client.write_all(answer.as_bytes()).unwrap();
        }
        asked
    })
}

/// The result of a query for the status to which the monitor answers `answer`.
fn status_if(answer: &str) -> Result<Status> {
    let cluster = TestDir::new();
    let dir = cluster.node();
    let monitor = serve(&dir, GREETING, &[DONE, answer]);
    let status = Monitor::connect(&dir, Deadline::seconds(60))?.execute(&QUERY_STATUS);
    let asked =
        ["qmp_capabilities", "query-status"].map(|name| format!(r#"{{"execute":"{name}"}}"#));
    assert_eq!(monitor.join().unwrap(), asked);
    status
}

/// The error of a query for the status to which the monitor answers `answer`.
fn error_if(answer: &str) -> String {
    let error = status_if(answer).unwrap_err();
    assert!(matches!(error, Error::Monitor { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn the_answer_is_found_behind_events_and_a_state_may_be_newer() {
    let running = Status {
        running: true,
        status: RunState::Other,
    };
    assert_eq!(status_if(RUNNING).unwrap(), running);
    let event = "{\"event\": \"NEWER_THAN_US\", \"data\": {}}\n";
    let behind = format!("{event}{event}{RUNNING}");
    assert_eq!(status_if(&behind).unwrap(), running);
    let newer = RUNNING.replace("\"running\",", "\"newer-than-us\", \"more\": [1],");
    assert_eq!(status_if(&newer).unwrap(), running);
}

#[test]
fn a_refusal_is_told_in_the_words_of_qemu() {
    let refused = "{\"error\": {\"class\": \"NewerThanUs\", \"desc\": \"not so\"}}\n";
    assert_eq!(error_if(refused), "QEMU of node a: not so");
}

#[test]
fn garbage_is_an_error_that_shows_it_and_cannot_drive_a_terminal() {
    let error = error_if("\u{1b}[1m{\"ret\n");
    assert_eq!(
        error,
        "QEMU of node a: the monitor answers nonsense: [1m{\"ret"
    );
    let error = error_if("{\"return\": {\"status\": \"running\"}}\n");
    assert!(
        error.contains("nonsense: missing field `running`"),
        "{error}"
    );
    let error = error_if(GREETING);
    assert!(error.contains("nonsense: a second greeting"), "{error}");
    // A line that is too long is read up to the limit.
    assert!(error_if(&"x".repeat(100_000)).len() < 400);
}

#[test]
fn the_end_is_an_error_at_any_time() {
    for answer in ["", "{\"event\": \"POWERDOWN\"}\n"] {
        let error = error_if(answer);
        assert!(error.contains("the monitor does not answer"), "{error}");
    }
    // The last line was cut off.
    let error = error_if("{\"return\": {\"sta");
    assert!(error.contains("nonsense: {\"return\": {\"sta"), "{error}");
    for (first, part) in [
        ("", "the monitor does not answer"),
        (GREETING, "the monitor does not answer"),
        (DONE, "nonsense: Returned"),
        ("hello\n", "nonsense: hello"),
    ] {
        let cluster = TestDir::new();
        let dir = cluster.node();
        let monitor = serve(&dir, first, &[]);
        let error = Monitor::connect(&dir, Deadline::seconds(60)).err().unwrap();
        assert!(error.to_string().contains(part), "{first:?}: {error}");
        monitor.join().unwrap();
    }
}

#[test]
fn a_port_is_open_if_the_guest_has_it_open() {
    let devices =
        "{\"return\": [{\"frontend-open\": true, \"filename\": \"x\", \"label\": \"qmp\"}, \
        {\"frontend-open\": false, \"filename\": \"y\", \"label\": \"agent\"}]}\n";
    let cluster = TestDir::new();
    let dir = cluster.node();
    let monitor = serve(&dir, GREETING, &[DONE, devices, devices, devices]);
    let mut client = Monitor::connect(&dir, Deadline::seconds(60)).unwrap();
    for (label, open) in [("qmp", true), ("agent", false), ("none", false)] {
        assert_eq!(client.is_port_open(label).unwrap(), open, "{label}");
    }
    monitor.join().unwrap();
}
