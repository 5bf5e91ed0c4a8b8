//! Nothing breaks any more: what a client sees then.

use super::client::Client;
use super::{BLOCKS, LOOK, MS};
use crate::process::Result;
use crate::schedule::lock;

/// By then all NICs and clients have noticed that everything works again.
const SETTLE: u64 = 3500 * MS;

/// How long it takes until each block has its replicas.
const REPAIR: u64 = 6000 * MS;

/// How often servers are killed then.
const ROUNDS: usize = 6;

impl Client<'_> {
    /// Writes everything once more, reads it, and reads it without R − 1 servers.
    pub(super) fn verify(&mut self) -> Result<()> {
        self.context.sleep(SETTLE)?;
        self.collect()?;
        self.attach_again()?;
        let replicas = self.context.of.replicas;
        if lock(&self.context.of.serving).slots.len() < replicas {
            // Nodes stay without power.
            self.context.set_verified();
            return Ok(());
        }
        if self.all_serve() {
            self.wait_until_whole()?;
        }
        self.failures.clear();
        for writes in [true, false] {
            for block in 0..BLOCKS {
                self.request(block, writes)?;
            }
            self.wait_for_all()?;
        }
        if self.all_serve() && self.context.of.careful {
            self.lose_servers()?;
        }
        let failures = std::mem::take(&mut self.failures);
        let slot = self.context.slot;
        assert!(failures.is_empty(), "memory worker {slot}: {failures:?}");
        self.context.set_verified();
        Ok(())
    }

    /// Kills servers as soon as everything is written, and again and again when their pages were
    /// copied; all of it can be read each time.
    fn lose_servers(&mut self) -> Result<()> {
        for round in 0..ROUNDS {
            self.wait_until_whole()?;
            if round % 2 == 0 {
                for block in 0..BLOCKS {
                    self.request(block, true)?;
                }
                self.wait_for_all()?;
            }
            self.kill_servers();
            for block in 0..BLOCKS {
                self.request(block, false)?;
            }
            self.wait_for_all()?;
            // By then it knows that they are lost.
            self.context.sleep(self.unnoticed())?;
            self.collect()?;
        }
        Ok(())
    }

    /// Returns true if the server of each node gives memory.
    fn all_serve(&self) -> bool {
        let common = &self.context.common;
        lock(&self.context.of.serving).slots.len() == common.settings.options.nodes
    }

    fn wait_until_whole(&mut self) -> Result<()> {
        let schedule = &self.context.common.schedule;
        let times = self.context.of.times;
        let limit = schedule.now() + times * REPAIR;
        while !self.is_whole() {
            assert!(
                schedule.now() < limit,
                "memory worker {}: the volume does not become whole",
                self.context.slot
            );
            self.context.sleep(LOOK)?;
        }
        Ok(())
    }
}
