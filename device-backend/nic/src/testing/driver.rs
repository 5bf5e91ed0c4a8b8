//! A driver that maps pages into the shadow page table, for one simulated node.
//!
//! Virtual memory has contents whether a page is resident or not: a page that is
//! evicted keeps its bytes here and gets them back when it is brought in. A page
//! that the dirty bits call clean is not saved again, so a bit that is missing
//! shows as lost data (N7).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use qnic_abi::header::Geometry;
use qnic_abi::page_table::{entry_of, named_mapping, PageAccess, Tag, LOCKS, ROW_ENTRIES};
use qnic_abi::shared::Ordering;
use qnic_abi::{SharedMemory, Status, VniId, PAGE_SHIFT, PAGE_SIZE};

use super::SimHost;
use crate::env::HostMemory;

type Page = [u8; PAGE_SIZE];

/// When the NIC may write to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writable {
    /// Whenever it is there.
    Always,
    /// After a fault for writing, until it is evicted: the kernel copies it, or marks its
    /// file dirty.
    OnFault,
    /// Never: its process may only read it.
    Never,
}

/// Pages of the processes of one node.
#[derive(Debug)]
pub struct SimDriver {
    geometry: Geometry,
    free: Vec<u32>,
    /// Frame by VNI and page address.
    resident: BTreeMap<(u16, u64), u32>,
    /// What a page held when it was last clean.
    saved: BTreeMap<(u16, u64), Box<Page>>,
    /// Page key by VNI and page address.
    keys: BTreeMap<(u16, u64), u64>,
    /// Pages that cannot be brought in.
    unavailable: BTreeSet<(u16, u64)>,
    /// Pages that are not always writable.
    protected: BTreeMap<(u16, u64), Writable>,
}

impl SimDriver {
    /// A driver of a node without processes.
    pub fn new(geometry: Geometry) -> Self {
        SimDriver {
            geometry,
            free: (0..geometry.frames as u32).rev().collect(),
            resident: BTreeMap::new(),
            saved: BTreeMap::new(),
            keys: BTreeMap::new(),
            unavailable: BTreeSet::new(),
            protected: BTreeMap::new(),
        }
    }

    /// Takes a frame for good, zeroed: returns its address.
    ///
    /// # Panics
    /// If none is free.
    pub fn allocate(&mut self, host: &SimHost) -> u64 {
        let frame = self.free.pop().expect("a free frame");
        let address = u64::from(frame) << PAGE_SHIFT;
        let zeroes: Page = [0; PAGE_SIZE];
        host.memory
            .write(address, &zeroes)
            .expect("frames are memory");
        address
    }

    /// Gives frames back.
    pub fn release(&mut self, addresses: &[u64]) {
        let frames = addresses
            .iter()
            .map(|address| (address >> PAGE_SHIFT) as u32);
        self.free.extend(frames);
    }

    /// Notes the key for the pages of an exported range.
    pub fn cover(&mut self, vni: VniId, address: u64, length: u64, key: u64) {
        for page in pages(address, length) {
            self.keys.insert((vni.0, page), key);
        }
    }

    /// Says whether a page can be brought in from now on.
    pub fn set_available(&mut self, vni: VniId, address: u64, available: bool) {
        let page = (vni.0, page_of(address));
        match available {
            true => self.unavailable.remove(&page),
            false => self.unavailable.insert(page),
        };
    }

    /// Says when a page is writable, from its next fault on.
    pub fn set_writable(&mut self, vni: VniId, address: u64, writable: Writable) {
        self.protected.insert((vni.0, page_of(address)), writable);
    }

    /// Enters a page into the table for reading, or for writing. Returns `Ok`, or why not:
    /// it is not exported, cannot be brought in, or may not be written.
    ///
    /// # Errors
    /// The status for the NIC.
    pub fn fault_in(
        &mut self,
        host: &SimHost,
        vni: VniId,
        address: u64,
        wanted: PageAccess,
    ) -> Result<(), Status> {
        let writable = self.protected.get(&(vni.0, page_of(address)));
        let access = match (writable, wanted) {
            (Some(Writable::Never), PageAccess::Write) => return Err(Status::ReadOnlyMemory),
            (Some(Writable::Never | Writable::OnFault), PageAccess::Read) => PageAccess::Read,
            _ => PageAccess::Write,
        };
        match self.enter(host, vni, address, access) {
            true => Ok(()),
            false => Err(Status::PageUnavailable),
        }
    }

    fn enter(&mut self, host: &SimHost, vni: VniId, address: u64, access: PageAccess) -> bool {
        let page = (vni.0, page_of(address));
        let Some(key) = self.keys.get(&page).copied() else {
            return false;
        };
        if self.unavailable.contains(&page) {
            return false;
        }
        let tag = Tag::new(vni, page.1);
        if let Some(frame) = self.resident.get(&page) {
            let word = self.geometry.vpn_word(*frame);
            let present = host.sram.load_u64(word, Ordering::Relaxed);
            let access = access.max(PageAccess::of_word(present));
            host.sram
                .store_u64(word, tag.word(access), Ordering::Release);
            return true;
        }
        if self.free.is_empty() {
            let victim = self.resident.keys().next().copied();
            let (vni, address) = victim.expect("frames are free or resident");
            self.evict(host, VniId(vni), address);
        }
        let entry = self.free_entry(host, tag);
        let frame = self.free.pop().expect("a frame was freed");
        let zeroes: Box<Page> = Box::new([0; PAGE_SIZE]);
        let content = self.saved.entry(page).or_insert(zeroes);
        let at = u64::from(frame) << PAGE_SHIFT;
        host.memory
            .write(at, &content[..])
            .expect("frames are memory");
        self.clean(host, frame);
        let (sram, geometry) = (&host.sram, &self.geometry);
        sram.store_u64(geometry.key_word(frame), key, Ordering::Release);
        sram.store_u64(
            geometry.vpn_word(frame),
            tag.word(access),
            Ordering::Release,
        );
        sram.store_u32(entry, entry_of(frame), Ordering::Release);
        self.resident.insert(page, frame);
        true
    }

    /// A free entry in the row of a tag; a full row loses its first page (N5).
    fn free_entry(&mut self, host: &SimHost, tag: Tag) -> usize {
        let row = tag.row(self.geometry.rows);
        let entries = (0..ROW_ENTRIES).map(|entry| self.geometry.entry_offset(row, entry));
        let entries: Vec<usize> = entries.collect();
        let load = |entry: &usize| named_mapping(host.sram.load_u32(*entry, Ordering::Relaxed));
        if let Some(free) = entries.iter().find(|entry| load(entry).is_none()) {
            return *free;
        }
        let victim = load(&entries[0]);
        let page = self.resident.iter().find(|(_, f)| Some(**f) == victim);
        let (vni, address) = *page.expect("entries name resident pages").0;
        self.evict(host, VniId(vni), address);
        entries[0]
    }

    /// Takes a page out of the table, and its frame away.
    ///
    /// # Panics
    /// If the NIC holds it locked: it never does between two calls.
    pub fn evict(&mut self, host: &SimHost, vni: VniId, address: u64) {
        let page = (vni.0, page_of(address));
        let Some(frame) = self.resident.remove(&page) else {
            return;
        };
        let (sram, geometry) = (&host.sram, &self.geometry);
        sram.store_u64(geometry.vpn_word(frame), 0, Ordering::Relaxed);
        sram.fence();
        let lock = sram.load_u32(geometry.lock_word(frame), Ordering::Acquire) & LOCKS;
        assert_eq!(lock, 0, "page {address:#x} is locked between calls");
        let row = Tag::new(vni, page.1).row(geometry.rows);
        for entry in 0..ROW_ENTRIES {
            let entry = geometry.entry_offset(row, entry);
            if named_mapping(sram.load_u32(entry, Ordering::Relaxed)) == Some(frame) {
                sram.store_u32(entry, 0, Ordering::Release);
            }
        }
        if self.is_dirty(host, frame) {
            let mut content = Box::new([0; PAGE_SIZE]);
            let at = u64::from(frame) << PAGE_SHIFT;
            host.memory
                .read(at, &mut content[..])
                .expect("frames are memory");
            self.saved.insert(page, content);
        }
        self.free.push(frame);
    }

    /// Forgets all pages of a VNI: its process has ended.
    pub fn forget(&mut self, host: &SimHost, vni: VniId) {
        let pages: Vec<_> = self.resident.keys().copied().collect();
        for (_, address) in pages.iter().filter(|page| page.0 == vni.0) {
            self.evict(host, vni, *address);
        }
        self.saved.retain(|page, _| page.0 != vni.0);
        self.keys.retain(|page, _| page.0 != vni.0);
        self.unavailable.retain(|page| page.0 != vni.0);
        self.protected.retain(|page, _| page.0 != vni.0);
    }

    /// Reads virtual memory of a process, resident or not.
    pub fn read(&self, host: &SimHost, vni: VniId, address: u64, bytes: &mut [u8]) {
        for (page, within, part) in parts(vni, address, bytes.len()) {
            let target = &mut bytes[part];
            if let Some(frame) = self.resident.get(&page) {
                let from = (u64::from(*frame) << PAGE_SHIFT) + within as u64;
                host.memory.read(from, target).expect("frames are memory");
            } else if let Some(content) = self.saved.get(&page) {
                target.copy_from_slice(&content[within..within + target.len()]);
            } else {
                target.fill(0);
            }
        }
    }

    /// Writes virtual memory of a process, resident or not, as the process does.
    pub fn write(&mut self, host: &SimHost, vni: VniId, address: u64, bytes: &[u8]) {
        for (page, within, part) in parts(vni, address, bytes.len()) {
            let source = &bytes[part];
            if let Some(frame) = self.resident.get(&page) {
                let to = (u64::from(*frame) << PAGE_SHIFT) + within as u64;
                host.memory.write(to, source).expect("frames are memory");
            }
            // The processor's own dirty bit: what is saved is up to date.
            let zeroes: Box<Page> = Box::new([0; PAGE_SIZE]);
            let content = self.saved.entry(page).or_insert(zeroes);
            content[within..within + source.len()].copy_from_slice(source);
        }
    }

    /// Says whether the NIC has every page unlocked.
    pub fn all_unlocked(&self, host: &SimHost) -> bool {
        (0..self.geometry.frames as u32).all(|frame| {
            let lock = self.geometry.lock_word(frame);
            host.sram.load_u32(lock, Ordering::Relaxed) & LOCKS == 0
        })
    }

    /// The words with a frame's dirty bits: the driver's and the NIC's (N7).
    fn dirty_words(&self, host: &SimHost, frame: u32) -> (u32, u32) {
        let driver = self.geometry.dirty_driver_word(frame);
        let driver = host.sram.load_u32(driver, Ordering::Relaxed);
        let nic = self.geometry.dirty_nic_word(frame);
        (driver, host.sram.load_u32(nic, Ordering::Acquire))
    }

    fn is_dirty(&self, host: &SimHost, frame: u32) -> bool {
        let (driver, nic) = self.dirty_words(host, frame);
        (driver ^ nic) >> (frame % 32) & 1 == 0
    }

    fn clean(&self, host: &SimHost, frame: u32) {
        let (driver, nic) = self.dirty_words(host, frame);
        let bit = 1 << (frame % 32);
        let cleaned = driver & !bit | !nic & bit;
        let word = self.geometry.dirty_driver_word(frame);
        host.sram.store_u32(word, cleaned, Ordering::Release);
    }
}

/// A range of memory by pages: VNI and address of each, the offset within it, and which
/// of the bytes of the range lie there.
fn parts(
    vni: VniId,
    address: u64,
    length: usize,
) -> impl Iterator<Item = ((u16, u64), usize, Range<usize>)> {
    let end = address + length as u64;
    pages(address, length as u64).map(move |page| {
        let first = page.max(address);
        let last = end.min(page + PAGE_SIZE as u64);
        let part = (first - address) as usize..(last - address) as usize;
        ((vni.0, page), (first - page) as usize, part)
    })
}

fn page_of(address: u64) -> u64 {
    address & !(PAGE_SIZE as u64 - 1)
}

/// The pages of a range.
pub(super) fn pages(address: u64, length: u64) -> impl Iterator<Item = u64> {
    (page_of(address)..address + length).step_by(PAGE_SIZE)
}
