//! Monitors (N23): workers put items in and take them out, and wait while there are none.
//!
//! ```text
//!   put:   enter, items + 1, signal, leave
//!   take:  enter ──► items > 0? ── yes ──► items − 1, leave
//!            ▲         │ no
//!            └── woken ◄── wait in the queue of the condition; put one if no other does
//! ```
//! Mesa: a worker that is woken enters again and looks again, since another one may have taken
//! its item.

use std::time::Duration;

use qnic::sync::{Condition, Monitor, MonitorGuard};
use qnic::{Error, RemoteSegment};

use super::checker::Kind;
use super::{offset, SyncWorker, ITEMS};
use crate::common::Phase;

/// The monitor of an owner, as a worker uses it.
struct Store<'a> {
    worker: &'a SyncWorker<'a>,
    owner: usize,
    segment: &'a RemoteSegment,
    monitor: Monitor,
    condition: Condition,
}

impl SyncWorker<'_> {
    pub(super) fn monitor(&self, owner: usize, segment: &RemoteSegment) -> qnic::Result<()> {
        let store = Store {
            worker: self,
            owner,
            segment,
            monitor: Monitor::new(self.participant, segment, offset(Kind::Monitor))?,
            condition: Condition::new(self.participant, segment, offset(Kind::Condition))?,
        };
        let done = match self.schedule.chance(500) {
            true => store.put(),
            false => store.take(),
        };
        let recover = || {
            let lock = store.monitor.lock().recover();
            let queue = store.condition.queue().recover()?;
            lock.map(|done| done || queue)
        };
        self.unless_broken(owner, done, recover).map(drop)
    }
}

impl Store<'_> {
    fn enter(&self) -> qnic::Result<(MonitorGuard<'_>, u64)> {
        let worker = self.worker;
        worker.enters(self.owner, Kind::Monitor);
        let guard = self.monitor.enter()?;
        worker.checker().holds(worker.slot);
        let word = worker.endpoint.atomic::<u64>(self.segment, ITEMS)?;
        let items = word.load().wait().inspect_err(|_| worker.releases(None))?;
        worker.checker().reads(worker.slot, items);
        worker.schedule.sleep(worker.schedule.range(0..20_000));
        Ok((guard, items))
    }

    /// Writes how many items there are.
    fn write(&self, items: u64) -> qnic::Result<()> {
        let bytes = items.to_le_bytes();
        let endpoint = self.worker.endpoint;
        endpoint.write(self.segment, ITEMS, &bytes).post().map(drop)
    }

    fn put(&self) -> qnic::Result<()> {
        let (guard, items) = self.enter()?;
        let put = self.put_into(&guard, items);
        self.worker.releases(put.is_ok().then_some(items + 1));
        put?;
        guard.leave()?;
        self.worker.checker().leaves(self.worker.slot);
        Ok(())
    }

    fn put_into(&self, guard: &MonitorGuard<'_>, items: u64) -> qnic::Result<()> {
        self.write(items + 1)?;
        if guard.signal(&self.condition)? {
            let worker = self.worker;
            let kind = Kind::Condition;
            worker.checker().signalled(worker.slot, self.owner, kind);
        }
        Ok(())
    }

    fn take(&self) -> qnic::Result<()> {
        loop {
            let (guard, items) = self.enter()?;
            if items > 0 {
                let written = self.write(items - 1);
                self.worker.releases(written.is_ok().then_some(items - 1));
                written?;
                guard.leave()?;
                self.worker.checker().leaves(self.worker.slot);
                return Ok(());
            }
            self.wait(guard)?;
        }
    }

    /// Leaves the monitor, where no items are, and waits to be woken.
    fn wait(&self, guard: MonitorGuard<'_>) -> qnic::Result<()> {
        let (worker, schedule) = (self.worker, self.worker.schedule);
        worker.enters(self.owner, Kind::Condition);
        worker.releases(Some(0));
        let mut waiting = guard.leave_to_wait(&self.condition)?;
        worker.checker().leaves(worker.slot);
        loop {
            let limit = Duration::from_nanos(schedule.range(0..5_000_000));
            match waiting.wait(Some(limit)) {
                Ok(()) => break,
                // At the end some process has to signal.
                Err(Error::TimedOut) => {
                    if worker.common.phase() != Phase::Work || schedule.chance(200) {
                        self.put()?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        worker.checker().woken(worker.slot, Kind::Condition);
        Ok(())
    }
}
