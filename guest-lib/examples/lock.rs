//! Processes of several nodes count together under a lock. One of them is the home
//! of lock and counter.
//!
//! `lock home COUNTERS` serves until so many have counted; `lock count NODE ROUNDS`
//! adds ROUNDS times one; `lock hold NODE` takes the lock and keeps it, `lock wait NODE`
//! waits for it. Several nodes: set `QNIC_HOST_SOCKET` differently for each (host
//! mode), or run them in guests.

use std::time::Duration;

use anyhow::{bail, Context, Result};
use qnic::sync::{Lock, Participant, OBJECT_BYTES};
use qnic::{Access, Endpoint, Nic, NodeId, NotificationId, Port, RemoteSegment, SegmentName};

const PORT: Port = Port(300);
const HOME: SegmentName = SegmentName(0x6c6f_636b);
const COUNTER: u64 = OBJECT_BYTES;
const DONE: NotificationId = NotificationId::new(1).unwrap();
const SOON: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["home", counters] => home(counters.parse()?),
        ["count", node, rounds] => count(&join(node)?, rounds.parse()?),
        ["hold", node] => {
            let (_, lock) = &join(node)?;
            let _guard = lock.acquire()?;
            println!("holds the lock");
            stay()
        }
        ["wait", node] => {
            let (_, lock) = &join(node)?;
            println!("waits");
            let _guard = lock.acquire()?;
            stay()
        }
        _ => bail!("usage: lock home COUNTERS | count NODE ROUNDS | hold NODE | wait NODE"),
    }
}

fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

fn home(counters: u32) -> Result<()> {
    let endpoint = Nic::open()?.register(PORT)?;
    let memory = endpoint.allocate(4096)?;
    let _segment = endpoint.export(HOME, &memory, Access::all())?;
    for _ in 0..counters {
        endpoint.notification(DONE).take(None)?;
    }
    println!("counted to {}", memory.load_u64(COUNTER as usize)?);
    Ok(())
}

/// Becomes a process that uses the lock of a node.
fn join(node: &str) -> Result<(Member, Lock)> {
    let endpoint = Nic::open()?.register(Port(0))?;
    let node = NodeId(node.parse().context("a node number")?);
    let home = endpoint.import(node, PORT, HOME, SOON)?;
    let participant = Participant::new(&endpoint)?;
    let lock = Lock::new(&participant, &home, 0)?;
    Ok((Member { endpoint, home }, lock))
}

struct Member {
    endpoint: Endpoint,
    home: RemoteSegment,
}

/// Adds one by a read and a write, which only the lock makes safe.
fn count((member, lock): &(Member, Lock), rounds: u64) -> Result<()> {
    let Member { endpoint, home } = member;
    let memory = endpoint.allocate(4096)?;
    let segment = endpoint.export(HOME, &memory, Access::READ)?;
    for _ in 0..rounds {
        let guard = lock.acquire()?;
        endpoint.read_fenced(home, COUNTER, segment.part(0, 8))?;
        let value = memory.load_u64(0)? + 1;
        endpoint.write(home, COUNTER, &value.to_le_bytes())?;
        guard.release()?;
    }
    endpoint.write_fenced_notify(home, 0, b"", DONE)?;
    println!("added {rounds}");
    Ok(())
}
