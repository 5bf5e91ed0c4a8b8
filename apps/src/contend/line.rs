//! Lines whose order is known: the leader lets one member after the other join, each
//! when the one before has, and joins as the last. Then it wakes the first; who is
//! woken notes its number and wakes the next.
//!
//! ```text
//!   leader: TURN ──► member 0 joins     tail of the queue changes
//!           TURN ──► member 1 joins     tail of the queue changes  …
//!           wakes ──► member 0: log, wakes ──► member 1: log, wakes ──► … leader: log
//! ```
//! The log is in the order of the wakeups, since only one member is awake at a time.

use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use qnic::sync::{Semaphore, WaitQueue};
use qnic::RemoteSegment;
use qnic_abi::atomic::WaitQueue as Structure;

use super::layout::{LINE_QUEUE, LINE_SEMAPHORE, TURN};
use super::member::Member;

/// Longest time for a member to join a line, or to be woken in it.
const LIMIT: Duration = Duration::from_secs(240);

impl Member {
    /// Stands in the lines of the semaphore and of the wait queue; `others` are the
    /// members to lead.
    pub(super) fn stand_in_lines(&self, others: &[RemoteSegment]) -> Result<()> {
        let semaphore = Semaphore::new(&self.participant, &self.home, LINE_SEMAPHORE)?;
        let queue = WaitQueue::new(&self.participant, &self.home, LINE_QUEUE)?;
        let leads = self.number == self.layout.total - 1;

        self.await_turn(others, LINE_SEMAPHORE)
            .context("the line for the semaphore")?;
        if leads {
            semaphore.signal()?;
        }
        semaphore.wait()?;
        self.note(0)?;
        semaphore.signal()?;

        self.await_turn(others, LINE_QUEUE)
            .context("the line in the wait queue")?;
        let mut waiting = queue.insert()?;
        if leads {
            ensure!(queue.remove()?, "nobody waits in the queue");
        }
        waiting.wait(Some(LIMIT)).context("in the wait queue")?;
        self.note(1)?;
        let woken = queue.remove()?;
        ensure!(
            woken != leads,
            "woke somebody: {woken}, is the last: {leads}"
        );
        Ok(())
    }

    /// Waits for its turn to join; the leader gives all others theirs before.
    fn await_turn(&self, others: &[RemoteSegment], object: u64) -> Result<()> {
        if self.number < self.layout.total - 1 {
            self.endpoint.notification(TURN).take(None)?;
            return Ok(());
        }
        let tail = object + std::mem::offset_of!(Structure, tail) as u64;
        let mut last = 0;
        for (number, other) in others.iter().enumerate() {
            self.endpoint.write_fenced_notify(other, 0, b"", TURN)?;
            let since = Instant::now();
            last = loop {
                let [now] = self.load(tail)?;
                if now != last {
                    break now;
                }
                ensure!(since.elapsed() < LIMIT, "member {number} does not join");
            };
        }
        Ok(())
    }

    /// Notes that it has left a line.
    fn note(&self, line: u64) -> Result<()> {
        let at = self.layout.line(line);
        let [left] = self.load(at)?;
        self.store(at + 8 + left * 8, &[self.number])?;
        self.store(at, &[left + 1])?;
        Ok(())
    }
}
