//! The client's knowledge of its blocks: the newest version of each, and its holders.

use alloc::vec::Vec;

use super::server_set::{ServerIndex, ServerSet, MAX_SERVERS};
use crate::platform::NoMemory;

/// Bit of a version: it may not be the newest. Versions never grow to this bit.
const UNCERTAIN: u64 = 1 << 63;

/// The blocks of a volume. A server that is a *holder* of a block has acknowledged its newest
/// version, in the session that it has now.
#[derive(Debug)]
pub(super) struct Volume {
    /// Newest version of each block that is known to be kept; zero if it was never written. With
    /// [`UNCERTAIN`] if a later write has failed, and a holder may keep its page.
    versions: Vec<u64>,
    holders: Vec<ServerSet>,
    /// How many blocks each server holds.
    pages: [u64; MAX_SERVERS],
    last_version: u64,
}

impl Volume {
    /// A volume of so many blocks, none of them written.
    ///
    /// # Errors
    /// [`NoMemory`]: ten bytes are allocated for each block.
    pub(super) fn new(blocks: usize) -> Result<Self, NoMemory> {
        let (mut versions, mut holders) = (Vec::new(), Vec::new());
        versions.try_reserve_exact(blocks)?;
        versions.resize(blocks, 0);
        holders.try_reserve_exact(blocks)?;
        holders.resize(blocks, ServerSet::default());
        Ok(Volume {
            versions,
            holders,
            pages: [0; MAX_SERVERS],
            last_version: 0,
        })
    }

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> usize {
        self.versions.len()
    }

    /// The newest version of a block that is known to be kept; zero if none is.
    pub(super) fn version(&self, block: usize) -> u64 {
        self.versions[block] & !UNCERTAIN
    }

    /// Returns true if a later write has failed, and a holder may have its page.
    pub(super) fn is_uncertain(&self, block: usize) -> bool {
        self.versions[block] & UNCERTAIN != 0
    }

    /// Notes that a write has failed and holders may have its page.
    pub(super) fn set_uncertain(&mut self, block: usize) {
        self.versions[block] |= UNCERTAIN;
    }

    /// The holders of a block.
    pub(super) fn holders(&self, block: usize) -> ServerSet {
        self.holders[block]
    }

    /// How many blocks a server holds.
    pub(super) fn pages(&self, server: ServerIndex) -> u64 {
        self.pages[usize::from(server)]
    }

    /// A version that no write has had.
    pub(super) fn next_version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    /// Returns true if a write has had this version.
    pub(super) fn is_known(&self, version: u64) -> bool {
        version <= self.last_version
    }

    /// Notes that these servers and no others have the newest version, which is this one.
    pub(super) fn settle(&mut self, block: usize, version: u64, holders: ServerSet) {
        for server in self.holders[block].iter() {
            self.pages[usize::from(server)] -= 1;
        }
        for server in holders.iter() {
            self.pages[usize::from(server)] += 1;
        }
        self.versions[block] = version;
        self.holders[block] = holders;
    }

    /// Notes that a server has the newest version, too.
    pub(super) fn add_holder(&mut self, block: usize, server: ServerIndex) {
        if !self.holders[block].has(server) {
            self.holders[block].insert(server);
            self.pages[usize::from(server)] += 1;
        }
    }

    /// Notes that these servers do not have the newest version.
    pub(super) fn forget(&mut self, block: usize, servers: ServerSet) {
        let gone = self.holders[block].and(servers);
        for server in gone.iter() {
            self.pages[usize::from(server)] -= 1;
        }
        self.holders[block] = self.holders[block].without(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_as_holders_come_and_go() {
        let mut volume = Volume::new(4).unwrap();
        assert_eq!((volume.blocks(), volume.version(3)), (4, 0));
        let (first, second) = (volume.next_version(), volume.next_version());
        assert!(first < second && volume.is_known(second) && !volume.is_known(second + 1));
        volume.settle(3, first, ServerSet::only(0).or(ServerSet::only(1)));
        volume.settle(3, second, ServerSet::only(1).or(ServerSet::only(2)));
        assert_eq!([0, 1, 2].map(|server| volume.pages(server)), [0, 1, 1]);
        volume.add_holder(3, 0);
        volume.add_holder(3, 0);
        volume.forget(3, ServerSet::only(2).or(ServerSet::only(5)));
        assert_eq!([0, 1, 2].map(|server| volume.pages(server)), [1, 1, 0]);
        assert_eq!(volume.version(3), second);
    }

    #[test]
    fn the_next_write_that_is_kept_makes_a_block_certain() {
        let mut volume = Volume::new(1).unwrap();
        volume.settle(0, 1, ServerSet::only(0));
        volume.set_uncertain(0);
        assert!(volume.is_uncertain(0));
        assert_eq!(volume.version(0), 1);
        volume.settle(0, 3, ServerSet::only(0));
        assert!(!volume.is_uncertain(0));
    }
}
