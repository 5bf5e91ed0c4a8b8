//! From the front end's memory table to mapped memory.
//!
//! Every region must be shared, and its memory must stay accessible. QEMU lists its own
//! mapping of the SRAM as if it were RAM; that region is left out.
//!
//! | a region is refused when | because |
//! |---|---|
//! | its file is no memfd, or not sealed against shrinking | truncating it would kill this process (SIGBUS) |
//! | its file is in huge pages (hugetlbfs) | an empty pool of huge pages would, too |
//! | it reaches beyond the end of its file | an access there would, too |
//! | it is not page aligned, or overlaps another one | it cannot be mapped |

use std::fs::{File, Metadata};
use std::sync::Arc;

use anyhow::{anyhow, ensure, Context, Result};
use qnic_abi::PAGE_SIZE;
use rustix::fs::SealFlags;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryRegion, GuestRegionMmap};

use super::GuestMemory;
use crate::identity::FileIdentity;

/// `f_type` of hugetlbfs (linux/magic.h).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Advice in every refusal.
const ADVICE: &str = "give the guest its RAM by -object memory-backend-memfd,share=on (seal=on is \
                      its default, hugetlb=off)";

/// One line of the front end's table.
#[derive(Debug)]
pub(crate) struct TableEntry {
    /// Guest-physical address.
    pub(crate) guest_address: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Address in the front end's process; ring addresses are given in these.
    pub(crate) user_address: u64,
    /// Where the region starts in the file.
    pub(crate) offset: u64,
    pub(crate) file: File,
}

/// What is wrong with regions that overlap each other or wrap around.
pub(super) const OVERLAP: &str = "the regions overlap each other or the end of the address space";

/// The regions of a table, mapped.
#[derive(Debug, Default)]
pub(crate) struct MappedTable {
    regions: Vec<MappedRegion>,
}

#[derive(Debug)]
struct MappedRegion {
    identity: FileIdentity,
    offset: u64,
    user_address: u64,
    map: Arc<GuestRegionMmap>,
}

impl MappedTable {
    /// Maps a table; regions that `previous` has already are taken from there. Fails with
    /// the first region that is refused.
    pub(crate) fn map(
        entries: Vec<TableEntry>,
        sram: FileIdentity,
        previous: &MappedTable,
    ) -> Result<Self> {
        let mut regions = Vec::with_capacity(entries.len());
        for entry in entries {
            let identity = entry.metadata()?.into();
            if identity == sram {
                continue;
            }
            entry.check()?;
            let (offset, user_address) = (entry.offset, entry.user_address);
            let map = match previous.find(&entry, identity) {
                Some(map) => map,
                None => entry.map()?,
            };
            regions.push(MappedRegion {
                identity,
                offset,
                user_address,
                map,
            });
        }
        Ok(MappedTable { regions })
    }

    /// The memory for the engine. Fails if regions overlap.
    pub(crate) fn memory(&self) -> Result<GuestMemory> {
        let maps = self.regions.iter().map(|region| region.map.clone());
        GuestMemory::new(maps.collect())
    }

    /// Translates an address of the front end's process to guest-physical.
    pub(crate) fn guest_address(&self, user_address: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_address.checked_sub(region.user_address)?;
            (offset < region.map.len()).then(|| region.map.start_addr().0 + offset)
        })
    }

    fn find(&self, entry: &TableEntry, identity: FileIdentity) -> Option<Arc<GuestRegionMmap>> {
        let same = |region: &&MappedRegion| {
            let map = (region.map.start_addr().0, region.map.len());
            (region.identity, region.offset) == (identity, entry.offset)
                && map == (entry.guest_address, entry.length)
        };
        self.regions
            .iter()
            .find(same)
            .map(|region| region.map.clone())
    }
}

impl TableEntry {
    fn metadata(&self) -> Result<Metadata> {
        let metadata = self.file.metadata();
        metadata.map_err(|error| unusable(self.guest_address, error))
    }

    fn check(&self) -> Result<()> {
        let address = self.guest_address;
        let page = PAGE_SIZE as u64;
        ensure!(
            self.length != 0 && (address | self.length | self.offset) % page == 0,
            "region at {address:#x}: address, length and offset must be multiples of the page size"
        );
        let ends = address
            .checked_add(self.length)
            .and(self.offset.checked_add(self.length));
        let end = ends.context(OVERLAP)?;
        let seals = rustix::fs::fcntl_get_seals(&self.file);
        ensure!(
            seals.is_ok_and(|seals| seals.contains(SealFlags::SHRINK)),
            "region at {address:#x}: guest RAM is not a memfd sealed against shrinking; {ADVICE}"
        );
        let system = rustix::fs::fstatfs(&self.file).map_err(|error| unusable(address, error))?;
        ensure!(
            system.f_type != HUGETLBFS_MAGIC,
            "region at {address:#x}: guest RAM is in huge pages; {ADVICE}"
        );
        let length = self.metadata()?.len();
        ensure!(
            end <= length,
            "region at {address:#x}: ends at {end:#x} of a file of {length:#x} bytes"
        );
        Ok(())
    }

    fn map(self) -> Result<Arc<GuestRegionMmap>> {
        let address = self.guest_address;
        let length = usize::try_from(self.length).context(OVERLAP)?;
        let file = FileOffset::new(self.file, self.offset);
        GuestRegionMmap::from_range(GuestAddress(address), length, Some(file))
            .map(Arc::new)
            .map_err(|error| unusable(address, error))
    }
}

/// The region at `address` cannot be mapped or examined.
fn unusable(address: u64, error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!(
        "region at {address:#x}: guest RAM is not shared or cannot be mapped: {error}; {ADVICE}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sram::Sram;
    use qnic_links::memfd::sealed_memfd;
    use qnic_nic::env::HostMemory;

    const MIB: u64 = 1 << 20;

    fn memfd(bytes: u64, seals: SealFlags) -> File {
        sealed_memfd("ram", bytes, seals).unwrap()
    }

    fn entry(guest_address: u64, length: u64, file: File) -> TableEntry {
        TableEntry {
            guest_address,
            length,
            user_address: guest_address.wrapping_add(0x7000_0000_0000),
            offset: 0,
            file,
        }
    }

    fn map(entries: Vec<TableEntry>) -> Result<MappedTable> {
        let sram = Sram::new("t", 4096).unwrap().identity().unwrap();
        MappedTable::map(entries, sram, &MappedTable::default())
    }

    #[test]
    fn a_sealed_memfd_is_mapped_and_addresses_translate() {
        let table = map(vec![entry(MIB, MIB, memfd(MIB, SealFlags::SHRINK))]).unwrap();
        let memory = table.memory().unwrap();
        memory.write(MIB + 5, b"hello").unwrap();
        assert_eq!(memory.end(), 2 * MIB);
        let user = 0x7000_0000_0000 + MIB;
        assert_eq!(table.guest_address(user + 16), Some(MIB + 16));
        assert_eq!(table.guest_address(user + MIB), None);
        assert_eq!(table.guest_address(user - 1), None);
    }

    #[test]
    fn memory_that_could_vanish_is_refused() {
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(MIB).unwrap();
        let refused = |file| map(vec![entry(0, MIB, file)]).unwrap_err().to_string();
        assert!(refused(plain).contains("memory-backend-memfd,share=on"));
        assert!(refused(memfd(MIB, SealFlags::GROW)).contains("sealed against shrinking"));
        assert!(refused(memfd(MIB / 2, SealFlags::SHRINK)).contains("of a file of 0x80000 bytes"));
    }

    #[test]
    fn crooked_regions_are_refused() {
        let sealed = || memfd(4 * MIB, SealFlags::SHRINK);
        for (address, length) in [(1, MIB), (0, 0), (0, 4097), (u64::MAX - 4095, 8192)] {
            assert!(map(vec![entry(address, length, sealed())]).is_err());
        }
        let both = vec![entry(0, MIB, sealed()), entry(MIB / 2, MIB, sealed())];
        assert!(map(both).unwrap().memory().is_err());
        let mut odd = entry(0, MIB, sealed());
        odd.offset = u64::MAX - 4095;
        assert!(map(vec![odd]).is_err());
    }

    /// QEMU lists its own mapping of the SRAM in later tables.
    #[test]
    fn the_sram_is_left_out() {
        let sram = Sram::new("t", MIB).unwrap();
        let entries = vec![
            entry(0, MIB, memfd(MIB, SealFlags::SHRINK)),
            entry(1 << 40, MIB, sram.file().try_clone().unwrap()),
        ];
        let table =
            MappedTable::map(entries, sram.identity().unwrap(), &MappedTable::default()).unwrap();
        assert_eq!(table.memory().unwrap().end(), MIB);
    }

    #[test]
    fn the_same_region_is_mapped_once() {
        let file = memfd(MIB, SealFlags::SHRINK);
        let first = map(vec![entry(0, MIB, file.try_clone().unwrap())]).unwrap();
        let sram = Sram::new("t", 4096).unwrap().identity().unwrap();
        let second = MappedTable::map(vec![entry(0, MIB, file)], sram, &first).unwrap();
        assert!(Arc::ptr_eq(&first.regions[0].map, &second.regions[0].map));
    }
}
