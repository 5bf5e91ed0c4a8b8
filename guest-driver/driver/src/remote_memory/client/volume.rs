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
    /// How many written blocks have exactly these holders, for each set of servers: what the loss of servers
    /// costs is known at once.
    sets: Vec<u64>,
    last_version: u64,
}

impl Volume {
    /// A volume of so many blocks on so many servers, none of them written.
    ///
    /// # Errors
    /// [`NoMemory`]: ten bytes are allocated for each block.
    pub(super) fn new(blocks: usize, servers: usize) -> Result<Self, NoMemory> {
        let (mut versions, mut holders, mut sets) = (Vec::new(), Vec::new(), Vec::new());
        let count = 1 << servers.min(MAX_SERVERS);
        sets.try_reserve_exact(count)?;
        sets.resize(count, 0);
        versions.try_reserve_exact(blocks)?;
        versions.resize(blocks, 0);
        holders.try_reserve_exact(blocks)?;
        holders.resize(blocks, ServerSet::default());
        Ok(Volume {
            versions,
            holders,
            pages: [0; MAX_SERVERS],
            sets,
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
        if self.version(block) == 0 {
            self.sets[ServerSet::default().index()] += 1;
        }
        self.versions[block] = version;
        self.hold(block, holders);
    }

    /// These servers and no others are the holders of a block that was written.
    fn hold(&mut self, block: usize, holders: ServerSet) {
        let before = core::mem::replace(&mut self.holders[block], holders);
        for server in before.iter() {
            self.pages[usize::from(server)] -= 1;
        }
        for server in holders.iter() {
            self.pages[usize::from(server)] += 1;
        }
        self.sets[before.index()] -= 1;
        self.sets[holders.index()] += 1;
    }

    /// Notes that a server has the newest version, too.
    pub(super) fn add_holder(&mut self, block: usize, server: ServerIndex) {
        if self.version(block) != 0 {
            let holders = self.holders[block].or(ServerSet::only(server));
            self.hold(block, holders);
        }
    }

    /// Notes that these servers do not have the newest version.
    pub(super) fn forget(&mut self, block: usize, servers: ServerSet) {
        let left = self.holders[block].without(servers);
        if left != self.holders[block] {
            self.hold(block, left);
        }
    }

    /// How many blocks were written.
    pub(super) fn written(&self) -> u64 {
        self.sets.iter().sum()
    }

    /// How many written blocks have fewer than `replicas` holders in a set of servers.
    pub(super) fn short_of(&self, replicas: usize, among: ServerSet) -> u64 {
        let sets = (0..).map(ServerSet::from_index).zip(&self.sets);
        let short = sets.filter(|(holders, _)| holders.and(among).count() < replicas);
        short.map(|(_, count)| count).sum()
    }

    /// Returns true if some block had holders, and all of them are in a set of servers.
    pub(super) fn depends_on(&self, servers: ServerSet) -> bool {
        let mut subset = servers;
        while !subset.is_empty() {
            if self
                .sets
                .get(subset.index())
                .is_some_and(|count| *count > 0)
            {
                return true;
            }
            subset = subset.next_subset_of(servers);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_as_holders_come_and_go() {
        let mut volume = Volume::new(4, 6).unwrap();
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
    fn what_the_loss_of_servers_costs_is_known() {
        let [a, b, c] = [0, 1, 2].map(ServerSet::only);
        let mut volume = Volume::new(4, 3).unwrap();
        assert!(!volume.depends_on(a.or(b).or(c)), "nothing is written");
        volume.settle(0, 1, a.or(b));
        volume.settle(1, 2, b.or(c));
        volume.settle(2, 3, c);
        assert!(!volume.depends_on(a) && !volume.depends_on(b) && volume.depends_on(c));
        assert!(volume.depends_on(a.or(b)) && volume.depends_on(a.or(c)));
        assert_eq!(
            (volume.written(), volume.short_of(2, a.or(b).or(c))),
            (3, 1)
        );
        assert_eq!((volume.short_of(1, a), volume.short_of(2, b.or(c))), (2, 2));
        volume.add_holder(2, 1);
        assert!(!volume.depends_on(c));
        volume.forget(2, b.or(c));
        assert_eq!(volume.short_of(1, a.or(b).or(c)), 1, "one has no holder");
        volume.settle(2, 9, a.or(b));
        assert_eq!(
            (volume.written(), volume.short_of(2, a.or(b).or(c))),
            (3, 0)
        );
    }

    #[test]
    fn the_next_write_that_is_kept_makes_a_block_certain() {
        let mut volume = Volume::new(1, 1).unwrap();
        volume.settle(0, 1, ServerSet::only(0));
        volume.set_uncertain(0);
        assert!(volume.is_uncertain(0));
        assert_eq!(volume.version(0), 1);
        volume.settle(0, 3, ServerSet::only(0));
        assert!(!volume.is_uncertain(0));
    }
}
