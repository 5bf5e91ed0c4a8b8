//! A process that waits for a lock, in a wait queue or for a semaphore: it is killed
//! there, it survives others, or it recovers what they have broken. The objects lie in the
//! memory of a `memory-server`, the owner.
//!
//! | role | does |
//! |---|---|
//! | hold | takes the lock, and keeps it until it is killed |
//! | wait | joins; counts if its turn comes; when the object is broken and in order again, joins and counts once more |
//! | recover | waits until the object is broken, and recovers it; if it holds the lock, it releases it before |

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, ValueEnum};
use qnic::sync::{Lock, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Endpoint, Error, RemoteSegment};
use qnic_abi::atomic::WaitQueue as Structure;
use serde_json::json;

use qnic_apps::demo::node::{import, register, say, Exported};
use qnic_apps::demo::options::{DATA, SOURCE, TARGET_PORT};

/// Longest time for the other processes to do their part.
const LIMIT: Duration = Duration::from_secs(120);
/// Offset of the object.
const OBJECT: u64 = 0;
/// Offset of the count of turns, with the object whole and after it was broken.
const COUNTER: u64 = OBJECT_BYTES;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A lock
    Lock,
    /// A wait queue
    Queue,
    /// A semaphore of value zero
    Semaphore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Hold the lock
    Hold,
    /// Wait
    Wait,
    /// Recover the object once it is broken
    Recover,
}

#[derive(Args)]
pub(crate) struct Options {
    /// What to do
    #[arg(long, value_enum)]
    role: Role,
    /// What to wait for
    #[arg(long, value_enum)]
    object: Kind,
    /// Node of the owner, a `memory-server`
    #[arg(long)]
    owner: u16,
    /// To recover: take the lock first
    #[arg(long)]
    holding: bool,
    /// To recover a wait queue: wake so many afterwards
    #[arg(long, default_value_t = 0)]
    wake: u32,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (_nic, endpoint) = register(0)?;
    let owner = import(&endpoint, options.owner, TARGET_PORT, DATA)?;
    let participant = Participant::new(&endpoint)?;
    let waiter = LockWaiter {
        read: Exported::new(&endpoint, SOURCE, 8)?,
        object: Object::new(&participant, &owner, options.object)?,
        owner,
        endpoint,
    };
    match options.role {
        Role::Hold => waiter.hold(),
        Role::Wait => waiter.wait(),
        Role::Recover => waiter.recover(options.holding, options.wake),
    }
}

enum Object {
    Lock(Lock),
    Queue(WaitQueue),
    Semaphore(Semaphore),
}

impl Object {
    fn new(participant: &Participant, owner: &RemoteSegment, kind: Kind) -> qnic::Result<Self> {
        Ok(match kind {
            Kind::Lock => Object::Lock(Lock::new(participant, owner, OBJECT)?),
            Kind::Queue => Object::Queue(WaitQueue::new(participant, owner, OBJECT)?),
            Kind::Semaphore => Object::Semaphore(Semaphore::new(participant, owner, OBJECT)?),
        })
    }

    fn is_broken(&self) -> qnic::Result<bool> {
        match self {
            Object::Lock(lock) => lock.is_broken(),
            Object::Queue(queue) => queue.is_broken(),
            Object::Semaphore(semaphore) => semaphore.is_broken(),
        }
    }

    /// Makes it free, empty, or a semaphore of one unit.
    fn recover(&self) -> qnic::Result<bool> {
        match self {
            Object::Lock(lock) => lock.recover(),
            Object::Queue(queue) => queue.recover(),
            Object::Semaphore(semaphore) => semaphore.recover(1),
        }
    }

    fn lock(&self) -> Result<&Lock> {
        match self {
            Object::Lock(lock) => Ok(lock),
            _ => bail!("only a lock can be held"),
        }
    }
}

/// A process, and what it waits for.
struct LockWaiter {
    endpoint: Endpoint,
    owner: RemoteSegment,
    read: Exported,
    object: Object,
}

impl LockWaiter {
    fn hold(&self) -> Result<()> {
        let _guard = self.object.lock()?.acquire()?;
        say("holds", std::process::id())?;
        loop {
            std::thread::park();
        }
    }

    /// Joins; says so as soon as the owner's NIC has executed that, and how the wait ended.
    fn wait(&self) -> Result<()> {
        // The name of the last in the queue.
        let tail = std::mem::offset_of!(Structure, tail) as u64;
        let tail = self.endpoint.atomic::<u64>(&self.owner, OBJECT + tail)?;
        let before = tail.load().wait()?;
        let waited = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| -> Result<()> {
                while tail.load().wait()? == before {}
                say("joined", std::process::id())
            });
            let waited = self.count_in_turn();
            watcher.join().map(|watched| (watched, waited))
        });
        let Ok((watched, waited)) = waited else {
            bail!("the watcher panicked");
        };
        watched.context("watch the queue")?;
        let ended = match waited {
            Ok(counted) => json!({"broken": false, "counted": counted}),
            Err(error @ Error::Broken { .. }) => json!({"broken": true, "why": error.to_string()}),
            Err(error) => return Err(error).context("wait"),
        };
        say("ended", ended)?;
        say("again", self.again()?)
    }

    /// Uses the object once it is in order again; returns how many have before.
    fn again(&self) -> Result<u64> {
        let since = Instant::now();
        loop {
            self.until(false)?;
            match self.count_in_turn() {
                // It has joined while the old queue was being thrown away.
                Err(Error::Broken { .. }) if since.elapsed() < LIMIT => {}
                counted => return counted.context("use it again"),
            }
        }
    }

    /// Waits, then counts, under the protection of the object if it gives any;
    /// returns how many have before.
    fn count_in_turn(&self) -> qnic::Result<u64> {
        match &self.object {
            Object::Lock(lock) => {
                let guard = lock.acquire()?;
                let counted = self.count()?;
                match guard.release() {
                    // The successor has died.
                    Ok(()) | Err(Error::Broken { .. }) => Ok(counted),
                    Err(error) => Err(error),
                }
            }
            Object::Semaphore(semaphore) => {
                semaphore.wait()?;
                let counted = self.count()?;
                semaphore.signal()?;
                Ok(counted)
            }
            Object::Queue(queue) => {
                queue.insert()?.wait(Some(LIMIT))?;
                self.endpoint
                    .atomic::<u64>(&self.owner, COUNTER)?
                    .increment()
                    .wait()
            }
        }
    }

    /// Adds one by a read and a write.
    fn count(&self) -> qnic::Result<u64> {
        let part = self.read.part(0, 8);
        self.endpoint.read(&self.owner, COUNTER, part).fenced()?;
        let before = self.read.buffer.load_u64(0)?;
        let bytes = (before + 1).to_le_bytes();
        self.endpoint.write(&self.owner, COUNTER, &bytes).post()?;
        Ok(before)
    }

    /// Waits until the object is broken, or in order.
    fn until(&self, broken: bool) -> Result<()> {
        let since = Instant::now();
        while self.object.is_broken()? != broken {
            ensure!(since.elapsed() < LIMIT, "not broken: {broken}");
        }
        Ok(())
    }

    fn recover(&self, holding: bool, wake: u32) -> Result<()> {
        let guard = match holding {
            true => Some(self.object.lock()?.acquire()?),
            false => None,
        };
        ensure!(!self.object.recover()?, "nothing was broken");
        say("watches", std::process::id())?;
        self.until(true)?;
        if let Some(guard) = guard {
            match self.object.recover() {
                Err(Error::Held { .. }) => {}
                other => bail!("recovered under the holder: {other:?}"),
            }
            guard.release().context("release the broken lock")?;
        }
        let since = Instant::now();
        loop {
            match self.object.recover() {
                Ok(true) => break,
                Ok(false) => bail!("another process has recovered it"),
                // The next waiter had its turn before it noticed.
                Err(Error::Held { .. }) if since.elapsed() < LIMIT => {}
                Err(error) => return Err(error).context("recover"),
            }
        }
        say("recovered", std::process::id())?;
        if let Object::Queue(queue) = &self.object {
            let since = Instant::now();
            for woken in 0..wake {
                while !queue.remove()? {
                    ensure!(since.elapsed() < LIMIT, "only {woken} came again");
                }
            }
        }
        Ok(())
    }
}
