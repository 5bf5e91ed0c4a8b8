//! Nodes that are processes of their own: the examples.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use qnic::{ChannelOptions, NodeId, Port, Receiver, SegmentName, Sender, Status};

use crate::cluster::{Cluster, Peer, BOTH, ONE, SOON};

/// What `ping_pong` uses.
const PORT: u16 = 100;
const COURT: SegmentName = SegmentName(0x636f_7572_7400);

/// Starts an example, built beside this test.
pub(crate) fn start(cluster: &Cluster, node: u16, name: &str, arguments: &[&str]) -> Child {
    start_with(cluster, node, name, arguments, None)
}

/// The same, with more in its environment.
fn start_with<'a>(
    cluster: &Cluster,
    node: u16,
    name: &str,
    arguments: &[&str],
    environment: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Child {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    Command::new(target.join("examples").join(name))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("QNIC_HOST_SOCKET", cluster.socket(node))
        .env("QNIC_HOST_MEMORY", crate::cluster::MEMORY.to_string())
        .envs(environment)
        .spawn()
        .expect("examples are built by `cargo test -p qnic`, but not with --test")
}

pub(crate) fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Kills a process with signal 9.
pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn two_processes_play_ping_pong() {
    let cluster = Cluster::new(2);
    for bytes in ["8", "97", "100001"] {
        let second = start(&cluster, 1, "ping_pong", &["0", "200", bytes]);
        let first = start(&cluster, 0, "ping_pong", &["1", "200", bytes]);
        for child in [first, second] {
            let said = finish(child);
            assert!(said.contains("every byte right"), "{said}");
        }
    }
}

/// The inline limit comes from the environment, too (N10). It changes the way of the bytes and
/// no byte.
#[test]
fn the_environment_sets_the_inline_limit() {
    let cluster = Cluster::new(2);
    for limit in ["0", "128"] {
        let set = [("QNIC_INLINE_MAX", limit)];
        let second = start_with(&cluster, 1, "ping_pong", &["0", "20", "100"], set);
        let first = start_with(&cluster, 0, "ping_pong", &["1", "20", "100"], set);
        for child in [first, second] {
            assert!(finish(child).contains("every byte right"));
        }
    }
    let inline = |wrong| ("QNIC_INLINE_MAX", wrong, "a number of bytes from 0 to 128");
    let operations = |wrong| ("QNIC_OPERATIONS", wrong, "a number from 16 to 1024");
    let wrong = ["129", "-1", "much", ""].map(inline);
    for (variable, wrong, right) in wrong.into_iter().chain(["15", "1025"].map(operations)) {
        let set = [(variable, wrong)];
        let child = start_with(&cluster, 0, "ping_pong", &["1", "20", "100"], set);
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let expected = format!("{variable}={wrong}: expected {right}");
        assert!(
            !output.status.success() && errors.contains(&expected),
            "{errors}"
        );
    }
}

#[test]
fn a_ring_of_processes_passes_a_token() {
    let cluster = Cluster::new(3);
    let children = [2, 0, 1].map(|node| start(&cluster, node, "ring", &["0", "1", "2"]));
    let said = &children.map(finish)[1];
    assert!(said.contains("100 laps over 3 nodes, sum 300"), "{said}");
}

#[test]
fn a_ring_of_processes_passes_a_token_by_messages() {
    let cluster = Cluster::new(3);
    let children = [2, 0, 1].map(|node| start(&cluster, node, "token_ring", &["0", "1", "2"]));
    let said = &children.map(finish)[1];
    assert!(said.contains("100 laps over 3 nodes, sum 300"), "{said}");
}

#[test]
fn processes_find_the_centres_of_all_their_points() {
    let cluster = Cluster::new(3);
    let children =
        [1, 2, 0].map(|node| start(&cluster, node, "kmeans", &["2000", "5", "0", "1", "2"]));
    let said = children.map(finish);
    assert!(said[0].contains("5 centres of 6000 points"), "{said:?}");
    let centres = said.map(|said| said.split_once('\n').unwrap().1.to_owned());
    assert!(
        centres.iter().all(|other| *other == centres[0]),
        "{centres:?}"
    );
}

#[test]
fn processes_sort_what_all_of_them_have() {
    let cluster = Cluster::new(3);
    for numbers in ["1", "20000"] {
        let children =
            [1, 2, 0].map(|node| start(&cluster, node, "sort", &[numbers, "0", "1", "2"]));
        let said = &children.map(finish)[2];
        let all = 3 * numbers.parse::<usize>().unwrap();
        assert!(said.contains(&format!("{all} numbers sorted")), "{said}");
    }
}

/// A process is killed while it is written to; the writer learns of it, and the
/// node can be taken over by another process.
#[test]
fn a_killed_process_is_gone_for_its_peers() {
    const LENGTH: usize = 4 << 20;
    let cluster = Cluster::new(2);
    let nic = cluster.nic(0);
    let a = Peer::new(&nic, PORT, LENGTH);
    let court = a.endpoint.allocate(LENGTH).unwrap();
    let _court = a.endpoint.export(COURT, &court, BOTH).unwrap();
    let bytes = LENGTH.to_string();
    let victim = start(&cluster, 1, "ping_pong", &["0", "1000000", &bytes]);
    let remote = a.endpoint.import(NodeId(1), Port(PORT), COURT, SOON);
    let remote = remote.unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| a.write_until_error(&remote));
        // The victim is about to wait for a ball; no signal ever comes.
        kill(victim);
        let status = writer.join().unwrap().status().unwrap();
        let gone = [Status::PeerGone, Status::NoSuchNode, Status::NoSuchPort];
        assert!(gone.contains(&status), "{status}");
    });
    let heir = Peer::new(&cluster.nic(1), 7, 4096);
    let remote = a.import(&heir);
    a.write_fenced_notify(&remote, 0, b"heir");
    heir.take(ONE);
}

/// What `collect` uses.
const COLLECTOR: Port = Port(102);

fn lines_of(node: u16) -> SegmentName {
    SegmentName(0x0063_6f6c_6c65_6374 << 8 | u64::from(node))
}

#[test]
fn a_collector_gets_every_line_of_every_sender() {
    let cluster = Cluster::new(3);
    let arguments = ["5000", "0", "1", "2"];
    let children = [1, 0, 2].map(|node| start(&cluster, node, "collect", &arguments));
    let said = children.map(finish);
    for node in [1, 2] {
        let line = format!("node {node}: 5000 lines, then: the other end closed the channel");
        assert!(said[1].contains(&line), "{said:?}");
    }
}

/// How long a survivor may take to find out: [`qnic::channel::PROBE_INTERVAL`] and a
/// round trip, on a machine that is busy.
const FOUND_OUT: Duration = Duration::from_secs(20);

#[test]
fn the_receiver_of_a_killed_sender_gets_what_was_sent_then_an_error() {
    let cluster = Cluster::new(2);
    let endpoint = cluster.nic(0).register(COLLECTOR).unwrap();
    let options = ChannelOptions::new(16, 64, ONE);
    let mut channel = Receiver::open(&endpoint, lines_of(1), &options).unwrap();
    let victim = start(&cluster, 1, "collect", &["1000000", "0", "1"]);
    let mut lines = 0;
    let mut take = |channel: &mut Receiver| {
        let line = channel.recv(Some(FOUND_OUT))?.to_vec();
        assert_eq!(line, format!("line {lines} of node 1").as_bytes());
        lines += 1;
        Ok(())
    };
    for _ in 0..100 {
        take(&mut channel).unwrap();
    }
    kill(victim);
    let error: qnic::Error = loop {
        if let Err(error) = take(&mut channel) {
            break error;
        }
    };
    assert!(matches!(error, qnic::Error::PeerLost { .. }), "{error}");
    assert!(channel.check_peer().is_err());
    endpoint.flush().wait().unwrap();
}

#[test]
fn the_sender_to_a_killed_receiver_gets_an_error_even_without_credit() {
    let cluster = Cluster::new(2);
    let endpoint = cluster.nic(0).register(Port(1)).unwrap();
    let victim = start(&cluster, 1, "collect", &["1000000", "1", "0"]);
    let channel = Sender::connect(&endpoint, (NodeId(1), COLLECTOR, lines_of(0)), ONE, SOON);
    let mut channel = channel.unwrap();
    // Stopped, it takes no more: the sender runs out of credit.
    let pid = rustix::process::Pid::from_child(&victim);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut lines = 0;
    let full = loop {
        let line = format!("line {lines} of node 0");
        match channel.send(line.as_bytes(), Some(Duration::from_millis(50))) {
            Ok(()) => lines += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, qnic::Error::TimedOut), "{full}");
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| channel.send(b"no credit", Some(FOUND_OUT)));
        kill(victim);
        let error = blocked.join().unwrap().unwrap_err();
        assert!(matches!(error, qnic::Error::PeerLost { .. }), "{error}");
    });
    drop(channel);
    endpoint.flush().wait().unwrap();
}
