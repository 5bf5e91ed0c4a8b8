//! A server: gives memory until it leaves, is killed, or everything ends.

use qnic_driver::remote_memory::{Memory, ServeError, ServerConfig, ServerConfigError};

use super::{Module, BLOCKS, KEY, LEASE, LOOK, MS, OUTAGE, REQUESTS, SERVER_PORT};
use crate::common::Phase;
use crate::machine::platform::SimPlatform;
use crate::process::Result;
use crate::schedule::{lock, trace};

/// Pages: the volumes of two clients, and some that replace others.
const PAGES: usize = 2 * BLOCKS as usize + REQUESTS;

impl Module<'_> {
    /// A server from its start to its end.
    pub(super) fn give_memory(self) -> Result<()> {
        // What looks for it is the business of clients.
        self.set_verified();
        let schedule = &self.common.schedule;
        if schedule.chance(500) {
            self.sleep(schedule.range(0..OUTAGE))?;
        }
        let memory = self.start_server()?;
        trace!(schedule, "memory worker {}: serves", self.slot);
        lock(&self.of.serving).slots.insert(self.slot);
        self.set_idle(true);
        let mut leaves = false;
        while self.common.phase() != Phase::Exit {
            let works = self.common.phase() == Phase::Work;
            if leaves || (works && schedule.chance(15)) {
                if !leaves {
                    trace!(schedule, "memory worker {}: leaves", self.slot);
                    lock(&self.of.serving).slots.remove(&self.slot);
                }
                leaves = true;
                if memory.leave(LOOK) {
                    // If its NIC is gone, no client could be told anything.
                    self.check_alive()?;
                    assert_eq!(memory.status().used, 0, "a server has left with pages");
                    return Ok(());
                }
            }
            let changed = &self.common.phase_changed;
            schedule.wait(Some(changed), Some(schedule.now() + LOOK));
            self.check_alive()?;
        }
        self.end_server(&memory)
    }

    fn start_server(&self) -> Result<Memory<SimPlatform>> {
        loop {
            let config = ServerConfig {
                incarnation: self.common.schedule.any(),
                key: KEY,
                pages: PAGES,
                quota: PAGES / 2,
                clients: 2,
                window: 8,
                lease: self.of.times * LEASE,
                leave_interval: 10 * MS,
            };
            match self.driver.serve_memory(SERVER_PORT, config) {
                Ok(memory) => return Ok(memory),
                Err(ServeError::Bind(error)) => self.after_bind_error(error)?,
                Err(ServeError::Config(ServerConfigError::NoMemory)) => self.sleep(100_000)?,
                Err(error) => panic!("memory worker {}: {error}", self.slot),
            }
        }
    }

    /// Clients end now; those that have died lose their pages with their lease.
    fn end_server(&self, memory: &Memory<SimPlatform>) -> Result<()> {
        let schedule = &self.common.schedule;
        let limit = schedule.now() + self.of.times * 4 * LEASE;
        while memory.status().clients > 0 {
            let now = schedule.now();
            let status = memory.status();
            assert!(
                now < limit,
                "a server keeps clients that are gone: {status:?}"
            );
            self.sleep(5 * MS)?;
        }
        assert_eq!(memory.status().used, 0, "pages without a client");
        Ok(())
    }
}
