//! A peer that is a process of its own: stopped, and killed.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::harness::{close, domain_at, Cluster, Side, BOTH, TAGGED};
use super::memory::{begin_write, end, write};
use super::regions::{register, ALL};
use crate::pointers::In;
use crate::service::PIECE_MAX;

/// Tells the other process its socket, and that it is that one.
const SOCKET: &str = "QNIC_FABRIC_TEST_SOCKET";
/// How the line begins in which it tells its address.
const ADDRESS: &str = "address ";

/// Serves memory until standard input ends.
fn serve(socket: PathBuf) {
    let (fabric, domain) = domain_at(socket, In::NULL);
    let side = Side::on(fabric, domain, TAGGED, BOTH);
    let mut memory = vec![0u8; 4 * PIECE_MAX];
    let _region = register(&side, &mut memory, ALL, 1);
    let digits: Vec<String> = side.name.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\n{ADDRESS}{}", digits.join(" "));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Starts this test in a process of its own, and waits for its address.
fn start(test: &str, socket: PathBuf) -> (Child, Vec<u8>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let mut lines = said.lines().map(Result::unwrap);
    let name = lines.find_map(|line| line.strip_prefix(ADDRESS).map(str::to_owned));
    let name = name.expect("an address");
    let bytes = name
        .split(' ')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap());
    (child, bytes.collect())
}

fn signal(child: &Child, signal: i32) -> libc::pid_t {
    let process = libc::pid_t::try_from(child.id()).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: a process that this one has started and not waited for.
    let sent = unsafe { libc::kill(process, signal) };
    assert_eq!(sent, 0);
    process
}

/// Stops a process; it runs no more when this returns.
fn stop(child: &Child) {
    let process = signal(child, libc::SIGSTOP);
    #[allow(unsafe_code)]
    // SAFETY: a child of this process; no place for its status.
    let stopped = unsafe { libc::waitpid(process, std::ptr::null_mut(), libc::WUNTRACED) };
    assert_eq!(stopped, process);
}

/// What is asked of it waits while it is stopped, and nothing else does; when it is killed, what waits ends.
#[test]
fn a_peer_that_is_stopped_holds_up_nothing_else_and_one_that_is_killed_ends() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return serve(socket.into());
    }
    let cluster = Cluster::new(2);
    let a = Side::new(&cluster, 0, TAGGED, BOTH);
    let name = "tests::processes::a_peer_that_is_stopped_holds_up_nothing_else_and_one_that_is_killed_ends";
    let (mut child, address) = start(name, cluster.socket(1));
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
    for _ in 0..50 {
        begin_write(&a, to, &long, (0, 1), 2);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..50 {
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
