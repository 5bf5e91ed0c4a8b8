//! The pages of a server, by client and block.
//!
//! ```text
//!   chains (hash of client, block) ──► entry ──► entry        entries hold one page each
//!   clients: first ──► entry ◄──► entry ◄──► entry            all entries of a client
//!   free ──► entry ──► entry
//! ```
//! An entry whose page is replaced while the NIC reads it becomes an *orphan*: it cannot be found
//! any more, and is freed when the NIC is done. So there are more entries than pages.

use alloc::vec::Vec;

use crate::platform::{table, NoMemory};

const NONE: u32 = u32::MAX;

/// Index of an entry.
pub(super) type EntryIndex = u32;

/// One page.
#[derive(Debug)]
struct Entry<P> {
    client: u8,
    orphan: bool,
    /// Answers that carry the page.
    readers: u16,
    block: u64,
    version: u64,
    page: Option<P>,
    /// Next entry of the chain, or of the free entries.
    next: u32,
    /// Neighbours among those of the client.
    before: u32,
    after: u32,
}

/// All pages.
#[derive(Debug)]
pub(super) struct Store<P> {
    entries: Vec<Entry<P>>,
    chains: Vec<u32>,
    /// First entry of each client.
    clients: Vec<u32>,
    free: u32,
    /// Pages that can be found.
    used: usize,
    room: usize,
}

impl<P> Store<P> {
    /// An empty store with room for so many pages, clients, and orphans.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new(pages: usize, clients: usize, orphans: usize) -> Result<Self, NoMemory> {
        let all = pages + orphans;
        let (mut entries, mut chains) = (Vec::new(), Vec::new());
        entries.try_reserve_exact(all)?;
        for index in 0..all {
            entries.push(Entry {
                client: 0,
                orphan: false,
                readers: 0,
                block: 0,
                version: 0,
                page: None,
                next: if index + 1 == all {
                    NONE
                } else {
                    index as u32 + 1
                },
                before: NONE,
                after: NONE,
            });
        }
        let buckets = pages.next_power_of_two();
        chains.try_reserve_exact(buckets)?;
        chains.resize(buckets, NONE);
        let firsts = table::<()>(clients)?.iter().map(|_| NONE).collect();
        Ok(Store {
            entries,
            chains,
            clients: firsts,
            free: 0,
            used: 0,
            room: pages,
        })
    }

    /// Pages that are stored.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Pages that can be stored.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Finds the page of a block of a client: the entry, and its version.
    pub(super) fn find(&self, client: u8, block: u64) -> Option<(EntryIndex, u64)> {
        let mut next = self.chains[self.bucket(client, block)];
        while next != NONE {
            let entry = &self.entries[next as usize];
            if entry.client == client && entry.block == block {
                return Some((next, entry.version));
            }
            next = entry.next;
        }
        None
    }

    /// Stores the first page of a block; gives it back if there is no room.
    pub(super) fn insert(
        &mut self,
        client: u8,
        block: u64,
        version: u64,
        page: P,
    ) -> Result<(), P> {
        if self.used == self.room || self.free == NONE {
            return Err(page);
        }
        let index = self.free;
        let bucket = self.bucket(client, block);
        let (chain, first) = (self.chains[bucket], self.clients[usize::from(client)]);
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        *entry = Entry {
            client,
            orphan: false,
            readers: 0,
            block,
            version,
            page: Some(page),
            next: chain,
            before: NONE,
            after: first,
        };
        self.chains[bucket] = index;
        self.clients[usize::from(client)] = index;
        if first != NONE {
            self.entries[first as usize].before = index;
        }
        self.used += 1;
        Ok(())
    }

    /// Replaces a page by a newer one. Returns the old one, unless the NIC reads it.
    ///
    /// # Errors
    /// The new page, if there is no room for both.
    pub(super) fn replace(
        &mut self,
        index: EntryIndex,
        version: u64,
        page: P,
    ) -> Result<Option<P>, P> {
        let entry = &mut self.entries[index as usize];
        if entry.readers == 0 {
            entry.version = version;
            return Ok(entry.page.replace(page));
        }
        let (client, block) = (entry.client, entry.block);
        if self.free == NONE {
            return Err(page);
        }
        self.unlink(index);
        self.entries[index as usize].orphan = true;
        self.insert(client, block, version, page).map(|()| None)
    }

    /// Removes one page of a client. Returns the page unless the NIC reads it; `None` if the
    /// client has none.
    pub(super) fn pop(&mut self, client: u8) -> Option<Option<P>> {
        let index = self.clients[usize::from(client)];
        if index == NONE {
            return None;
        }
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        if entry.readers > 0 {
            entry.orphan = true;
            return Some(None);
        }
        let page = entry.page.take();
        self.release(index);
        Some(page)
    }

    /// An answer carries the page from now on.
    pub(super) fn begin_read(&mut self, index: EntryIndex) {
        self.entries[index as usize].readers += 1;
    }

    /// The page, while an answer carries it.
    pub(super) fn page(&self, index: EntryIndex) -> Option<&P> {
        self.entries.get(index as usize)?.page.as_ref()
    }

    /// An answer does not carry it any more. Returns the page of an orphan.
    pub(super) fn end_read(&mut self, index: EntryIndex) -> Option<P> {
        let entry = self.entries.get_mut(index as usize)?;
        entry.readers = entry.readers.saturating_sub(1);
        if entry.readers > 0 || !entry.orphan {
            return None;
        }
        entry.orphan = false;
        let page = entry.page.take();
        self.release(index);
        page
    }

    fn bucket(&self, client: u8, block: u64) -> usize {
        let key = block ^ u64::from(client) << 48;
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed as usize & (self.chains.len() - 1)
    }

    fn release(&mut self, index: EntryIndex) {
        self.entries[index as usize].next = self.free;
        self.free = index;
    }

    /// Takes an entry out of its chain and from its client.
    fn unlink(&mut self, index: EntryIndex) {
        let entry = &self.entries[index as usize];
        let (client, block, next) = (entry.client, entry.block, entry.next);
        let (before, after) = (entry.before, entry.after);
        let bucket = self.bucket(client, block);
        if self.chains[bucket] == index {
            self.chains[bucket] = next;
        } else {
            let mut last = self.chains[bucket];
            while last != NONE && self.entries[last as usize].next != index {
                last = self.entries[last as usize].next;
            }
            if last != NONE {
                self.entries[last as usize].next = next;
            }
        }
        match before {
            NONE => self.clients[usize::from(client)] = after,
            before => self.entries[before as usize].after = after,
        }
        if after != NONE {
            self.entries[after as usize].before = before;
        }
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests;
