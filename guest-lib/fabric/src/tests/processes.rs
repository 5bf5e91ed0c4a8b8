//! A peer that is a process of its own: stopped, and killed.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::harness::{at, close, domain_at, Cluster, Side, BOTH, TAGGED};
use super::memory::{begin_write, end, read, write};
use super::regions::{register, ALL};
use crate::pointers::test::{bytes, context};
use crate::pointers::{Context, In};
use crate::service::PIECE_MAX;

/// Tells the other process its socket, and that it is that one.
pub(super) const SOCKET: &str = "QNIC_FABRIC_TEST_SOCKET";
/// Tells it whose memory it is to write to.
pub(super) const PEER: &str = "QNIC_FABRIC_TEST_PEER";
/// How the line begins in which it tells its address.
pub(super) const ADDRESS: &str = "address ";

/// What the other process does; returns false in the first one.
fn is_other() -> bool {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return false;
    };
    let (fabric, domain) = domain_at(socket.into(), In::NULL);
    let side = Side::on(fabric, domain, TAGGED, BOTH);
    match std::env::var(PEER) {
        Ok(peer) => ask(&side, &bytes_of(&peer)),
        Err(_) => serve(&side),
    }
    true
}

/// Serves memory until standard input ends.
fn serve(side: &Side) {
    let mut memory = vec![0u8; 4 * PIECE_MAX];
    let _region = register(side, &mut memory, ALL, 1);
    println!("\n{ADDRESS}{}", digits_of(&side.name));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Writes to the memory of a peer, again and again.
fn ask(side: &Side, peer: &[u8]) {
    let to = side.insert(peer);
    let sent = vec![9u8; 4 * PIECE_MAX];
    println!("\n{ADDRESS}{}", digits_of(&side.name));
    for _ in 0..30 {
        begin_write(side, to, &sent, (0, 1), 1);
    }
    loop {
        assert!(end(side, 1).is_ok());
        begin_write(side, to, &sent, (0, 1), 1);
    }
}

pub(super) fn digits_of(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(" ")
}

pub(super) fn bytes_of(digits: &str) -> Vec<u8> {
    let byte = |text| u8::from_str_radix(text, 16).unwrap();
    digits.split(' ').map(byte).collect()
}

/// Starts a test in a process of its own, and waits for its address.
pub(super) fn start(test: &str, socket: PathBuf, peer: Option<&[u8]>) -> (Child, Vec<u8>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SOCKET, socket)
        .envs(peer.map(|peer| (PEER, digits_of(peer))))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let mut lines = said.lines().map(Result::unwrap);
    let name = lines.find_map(|line| line.strip_prefix(ADDRESS).map(str::to_owned));
    (child, bytes_of(&name.expect("an address")))
}

pub(super) fn signal(child: &Child, signal: i32) -> libc::pid_t {
    let process = libc::pid_t::try_from(child.id()).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: a process that this one has started and not waited for.
    let sent = unsafe { libc::kill(process, signal) };
    assert_eq!(sent, 0);
    process
}

/// Stops a process; it runs no more when this returns.
pub(super) fn stop(child: &Child) {
    let process = signal(child, libc::SIGSTOP);
    #[allow(unsafe_code)]
    // SAFETY: a child of this process; no place for its status.
    let stopped = unsafe { libc::waitpid(process, std::ptr::null_mut(), libc::WUNTRACED) };
    assert_eq!(stopped, process);
}

/// What is asked of it waits while it is stopped, and nothing else does; when it is killed, what waits ends.
#[test]
fn a_peer_that_is_stopped_holds_up_nothing_else_and_one_that_is_killed_ends() {
    if is_other() {
        return;
    }
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let name = "tests::processes::a_peer_that_is_stopped_holds_up_nothing_else_and_one_that_is_killed_ends";
    let (mut child, address) = start(name, cluster.socket(1), None);
    let (to, own) = (a.insert(&address), a.insert(&a.name));
    let mut memory = [0u8; 8];
    let region = register(&a, &mut memory, ALL, 1);
    let long = vec![7u8; 4 * PIECE_MAX];
    assert_eq!(write(&a, to, &long, (0, 1), 1), Ok(()));
    stop(&child);
    for _ in 0..50 {
        begin_write(&a, to, &long, (0, 1), 2);
    }
    for _ in 0..50 {
        assert_eq!(write(&a, own, b"others", (0, 1), 3), Ok(()));
    }
    assert_eq!(&memory[..6], b"others");
    signal(&child, libc::SIGCONT);
    for _ in 0..50 {
        assert!(end(&a, 2).is_ok());
    }
    stop(&child);
    let write_call = at(a.ep).rma.write;
    let mut begun = 0;
    // There is room for so many, until some end.
    let refused = loop {
        let (from, none) = (bytes(&long), Context::NULL);
        match write_call(a.ep, from, long.len(), none, to, 0, 1, context(2)) {
            0 => begun += 1,
            refused => break refused,
        }
    };
    assert_eq!(refused, -(libc::EAGAIN as isize));
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..begun {
        // Nothing was served: it was stopped before.
        let error = end(&a, 2).unwrap_err();
        assert!(
            [libc::ECONNABORTED, libc::EHOSTUNREACH].contains(&error),
            "{error}"
        );
    }
    assert_eq!(write(&a, own, b"after", (0, 1), 3), Ok(()));
    assert_eq!(close(region), 0);
    a.close();
}

/// What it had begun ends, and the next process on its port begins anew.
#[test]
fn a_process_that_is_killed_while_it_writes_leaves_nothing() {
    if is_other() {
        return;
    }
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let own = a.insert(&a.name);
    let mut memory = vec![0u8; 4 * PIECE_MAX];
    let region = register(&a, &mut memory, ALL, 1);
    let name = "tests::processes::a_process_that_is_killed_while_it_writes_leaves_nothing";
    for _ in 0..3 {
        assert_eq!(write(&a, own, &[0], (0, 1), 1), Ok(()));
        let (mut child, _) = start(name, cluster.socket(1), Some(&a.name));
        let mut byte = [0];
        while byte != [9] {
            assert_eq!(read(&a, own, &mut byte, (0, 1), 2), Ok(()));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(close(region), 0);
    a.close();
}

/// Each call returns, and what the program does itself goes on.
#[test]
fn peers_that_write_without_end_do_not_hold_up_the_program() {
    if is_other() {
        return;
    }
    let cluster = Cluster::new(3);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let own = a.insert(&a.name);
    let mut memory = vec![0u8; 4 * PIECE_MAX];
    let region = register(&a, &mut memory, ALL, 1);
    let name = "tests::processes::peers_that_write_without_end_do_not_hold_up_the_program";
    let mut children: Vec<Child> = (1..3)
        .map(|node| start(name, cluster.socket(node), Some(&a.name)).0)
        .collect();
    for _ in 0..100 {
        assert_eq!(write(&a, own, &[0], (0, 1), 1), Ok(()));
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(close(region), 0);
    a.close();
}
