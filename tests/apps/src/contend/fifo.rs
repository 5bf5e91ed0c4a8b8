//! FIFO queues whose order is known: the leader lets one worker after the other join, each
//! when the one before has, and joins as the last. Then it wakes the first; a worker that
//! is woken logs its number and wakes the next.
//!
//! ```text
//!   leader: TURN ──► worker 0 joins     tail of the queue changes
//!           TURN ──► worker 1 joins     tail of the queue changes  …
//!           wakes ──► worker 0: log, wakes ──► worker 1: log, wakes ──► … leader: log
//! ```
//! The log is in the order of the wakeups, since only one worker is awake at a time.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic::sync::{Semaphore, WaitQueue};
use qnic::RemoteSegment;
use qnic_abi::atomic::WaitQueue as Structure;

use super::layout::{FIFO_QUEUE, FIFO_SEMAPHORE, TURN};
use super::worker::Worker;

/// Longest time for a worker to join, or to be woken.
const LIMIT: Duration = Duration::from_secs(240);

impl Worker {
    /// Passes the FIFO queues of the semaphore and of the wait queue; `others` are the
    /// workers to lead.
    pub(super) fn pass_fifos(&self, others: &[RemoteSegment]) -> Result<()> {
        let semaphore = Semaphore::new(&self.participant, &self.owner, FIFO_SEMAPHORE)?;
        let queue = WaitQueue::new(&self.participant, &self.owner, FIFO_QUEUE)?;

        self.await_turn(others, FIFO_SEMAPHORE)
            .context("the queue of the semaphore")?;
        if self.leads() {
            semaphore.signal()?;
        }
        semaphore.wait()?;
        self.log(0)?;
        semaphore.signal()?;

        self.await_turn(others, FIFO_QUEUE)
            .context("the wait queue")?;
        let mut waiting = queue.insert()?;
        if self.leads() {
            ensure!(queue.remove()?, "no process waits in the queue");
        }
        waiting.wait(Some(LIMIT)).context("in the wait queue")?;
        self.log(1)?;
        let woken = queue.remove()?;
        ensure!(
            woken != self.leads(),
            "woke another worker: {woken}, is the last: {}",
            self.leads()
        );
        Ok(())
    }

    /// Waits for its turn to join; the leader gives all others theirs before.
    fn await_turn(&self, others: &[RemoteSegment], object: u64) -> Result<()> {
        if !self.leads() {
            return Ok(self.endpoint.notification(TURN).take(None)?);
        }
        let tail = object + std::mem::offset_of!(Structure, tail) as u64;
        let mut last = 0;
        for (number, other) in others.iter().enumerate() {
            self.endpoint.write(other, 0, b"").notify(TURN).fenced()?;
            let since = Instant::now();
            last = loop {
                let [now] = self.load(tail)?;
                if now != last {
                    break now;
                }
                ensure!(since.elapsed() < LIMIT, "worker {number} does not join");
            };
        }
        Ok(())
    }

    /// Logs that it has left a FIFO queue.
    fn log(&self, fifo: u64) -> Result<()> {
        let at = self.layout.fifo(fifo);
        let [left] = self.load(at)?;
        self.store(at + 8 + left * 8, &[self.number])?;
        self.store(at, &[left + 1])
    }
}
