//! What a driver does right, so that the NIC gets behind its first checks: a registration, a
//! segment, pages in the page table.

use qnic_abi::control::{Export, NewProcess};
use qnic_abi::export::ExportOptions;
use qnic_abi::header::Geometry;
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::page_table::{entry_of, PageAccess, Tag, ROW_ENTRIES};
use qnic_abi::shared::Ordering;
use qnic_abi::{Access, SharedMemory, VniId, PAGE_SIZE};

/// VNIs that are used.
pub(super) const VNIS: u16 = 8;

/// The segment of each process.
pub(super) const VIRTUAL: u64 = 0x5555_0000_0000;
pub(super) const PAGES: u64 = 16;
pub(super) const KEY: u64 = 0xfeed_f00d;
const NAME: u64 = 77;

pub(super) fn port(vni: u16) -> u16 {
    100 + vni
}

pub(super) fn registration(vni: u16, page: impl FnMut(usize) -> u64) -> NewProcess {
    let pages: [u64; HOST_PAGES] = std::array::from_fn(page);
    NewProcess {
        port: port(vni).into(),
        flags: 0.into(),
        pid: 1.into(),
        host_area: pages.map(Into::into),
    }
}

pub(super) fn export() -> Export {
    Export {
        segment: 0.into(),
        flags: 0.into(),
        access: Access::all().bits().into(),
        name: NAME.into(),
        address: VIRTUAL.into(),
        length: (PAGES * PAGE_SIZE as u64).into(),
        key: KEY.into(),
        page_key: KEY.into(),
        options: ExportOptions::open(),
    }
}

/// Enters a page of a process in the page table, where there is room.
pub(super) fn map_page(
    sram: &impl SharedMemory,
    geometry: &Geometry,
    (vni, address): (u16, u64),
    frame: u32,
) {
    if u64::from(frame) >= geometry.frames {
        return;
    }
    let tag = Tag::new(VniId(vni), address);
    sram.store_u64(geometry.key_word(frame), KEY, Ordering::Release);
    let word = tag.word(PageAccess::Write);
    sram.store_u64(geometry.vpn_word(frame), word, Ordering::Release);
    let row = tag.row(geometry.rows);
    let free = (0..ROW_ENTRIES)
        .map(|entry| geometry.entry_offset(row, entry))
        .find(|entry| sram.load_u32(*entry, Ordering::Relaxed) == 0);
    if let Some(entry) = free {
        sram.store_u32(entry, entry_of(frame), Ordering::Release);
    }
}
