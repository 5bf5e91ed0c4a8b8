//! What the measurements stand on: memory of a process, objects in that of another, and time.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use qnic::sync::{Lock, Participant, Semaphore, WaitQueue, OBJECT_BYTES};
use qnic::{Access, Buffer, Endpoint, NotificationId};
use qnic::{RemoteSegment, RemoteU32, Segment, SegmentName};

/// Longest time for anything.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
pub(super) const SIGNAL: NotificationId = id(1);

pub(super) const fn id(number: u32) -> NotificationId {
    match NotificationId::new(number) {
        Some(id) => id,
        None => panic!("a counted notification"),
    }
}

/// A page of a process, exported.
pub(super) fn exported(endpoint: &Endpoint, name: SegmentName) -> Result<(Buffer, Segment)> {
    let buffer = endpoint.allocate(4096)?;
    let segment = endpoint.export(name, &buffer, Access::all())?;
    Ok((buffer, segment))
}

/// Objects in the memory of another process.
pub(super) struct Objects {
    pub(super) lock: Lock,
    pub(super) queue: WaitQueue,
    pub(super) semaphore: Semaphore,
    pub(super) word: RemoteU32,
}

impl Objects {
    /// Bytes that they take.
    pub(super) const BYTES: u64 = 4 * OBJECT_BYTES;

    /// Objects at an offset, and a semaphore of so many `units`.
    pub(super) fn new(
        endpoint: &Endpoint,
        remote: &RemoteSegment,
        at: u64,
        units: u32,
    ) -> Result<Self> {
        let participant = Participant::new(endpoint)?;
        let semaphore = Semaphore::new(&participant, remote, at + 2 * OBJECT_BYTES)?;
        semaphore.initialize(units)?;
        Ok(Objects {
            lock: Lock::new(&participant, remote, at)?,
            queue: WaitQueue::new(&participant, remote, at + OBJECT_BYTES)?,
            semaphore,
            word: endpoint.atomic::<u32>(remote, at + 3 * OBJECT_BYTES)?,
        })
    }
}

pub(super) fn timed(body: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    body()?;
    Ok(start.elapsed().as_nanos() as f64)
}

pub(super) fn spin(mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !ready()? {
        ensure!(start.elapsed() < LIMIT, "nothing came");
        std::hint::spin_loop();
    }
    Ok(())
}
