//! Processes of several nodes count together under a lock. One of them owns lock and
//! counter.
//!
//! ```text
//! lock owner COUNTERS       serves until so many processes have counted
//! lock count NODE ROUNDS    adds one, ROUNDS times
//! lock hold NODE            takes the lock and keeps it
//! lock wait NODE            waits for the lock
//! ```
//!
//! NODE is the owner's. In host mode each node is a process with its own
//! `QNIC_HOST_SOCKET` (see `ping_pong`).

use std::time::Duration;

use anyhow::{bail, Context, Result};
use qnic::sync::{Lock, Participant, OBJECT_BYTES};
use qnic::{Access, Endpoint, Nic, NodeId, NotificationId, Port, RemoteSegment, SegmentName};

const PORT: Port = Port(300);
const LOCK: SegmentName = SegmentName(0x6c6f_636b);
const COUNTER: u64 = OBJECT_BYTES;
const DONE: NotificationId = NotificationId::new(1).unwrap();
const SOON: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["owner", counters] => own(counters.parse()?),
        ["count", node, rounds] => count(&Worker::new(node)?, rounds.parse()?),
        ["hold", node] => {
            let worker = Worker::new(node)?;
            let _guard = worker.lock.acquire()?;
            println!("holds the lock");
            stay()
        }
        ["wait", node] => {
            let worker = Worker::new(node)?;
            println!("waits");
            let _guard = worker.lock.acquire()?;
            stay()
        }
        _ => bail!("usage: lock owner COUNTERS | count NODE ROUNDS | hold NODE | wait NODE"),
    }
}

fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

fn own(counters: u32) -> Result<()> {
    let endpoint = Nic::open()?.register(PORT)?;
    let memory = endpoint.allocate(4096)?;
    let _segment = endpoint.export(LOCK, &memory, Access::all())?;
    for _ in 0..counters {
        endpoint.notification(DONE).take(None)?;
    }
    println!("counted to {}", memory.load_u64(COUNTER as usize)?);
    Ok(())
}

/// A process that uses the lock of a node.
struct Worker {
    endpoint: Endpoint,
    owner: RemoteSegment,
    lock: Lock,
}

impl Worker {
    fn new(node: &str) -> Result<Self> {
        let endpoint = Nic::open()?.register(Port(0))?;
        let node = NodeId(node.parse().context("a node number")?);
        let owner = endpoint.import(node, PORT, LOCK, SOON)?;
        let participant = Participant::new(&endpoint)?;
        Ok(Worker {
            lock: Lock::new(&participant, &owner, 0)?,
            endpoint,
            owner,
        })
    }
}

/// Adds one by a read and a write, which only the lock makes safe.
fn count(worker: &Worker, rounds: u64) -> Result<()> {
    let Worker {
        endpoint,
        owner,
        lock,
    } = worker;
    let memory = endpoint.allocate(4096)?;
    let segment = endpoint.export(LOCK, &memory, Access::READ)?;
    for _ in 0..rounds {
        let guard = lock.acquire()?;
        endpoint.read(owner, COUNTER, segment.part(0, 8)).fenced()?;
        let value = memory.load_u64(0)? + 1;
        endpoint
            .write(owner, COUNTER, &value.to_le_bytes())
            .post()?;
        guard.release()?;
    }
    endpoint.write(owner, 0, b"").notify(DONE).fenced()?;
    println!("added {rounds}");
    Ok(())
}
