//! What a driver does for a process: its registration, a segment, pages in the page table.

use crate::control::{Export, NewProcess};
use crate::export::ExportOptions;
use crate::header::Geometry;
use crate::page_table::{entry_of, PageAccess, Tag, ROW_ENTRIES};
use crate::shared::Ordering;
use crate::{Access, SharedMemory};

/// Registers a process on a port; `page` gives the addresses of its host area.
pub fn registration(port: u16, page: impl FnMut(usize) -> u64) -> NewProcess {
    NewProcess {
        port: port.into(),
        flags: 0.into(),
        pid: 1.into(),
        host_area: core::array::from_fn(page).map(Into::into),
    }
}

/// Exports `length` bytes at `address` as segment 0, to every process and with every access. Its
/// pages have the same key.
pub fn export(name: u64, (address, length): (u64, u64), key: u64) -> Export {
    Export {
        segment: 0.into(),
        flags: 0.into(),
        access: Access::all().bits().into(),
        name: name.into(),
        address: address.into(),
        length: length.into(),
        key: key.into(),
        page_key: key.into(),
        options: ExportOptions::open(),
    }
}

/// Enters a page that can be written to in the page table, in the order of the reference. Returns
/// false if its row is full.
pub fn enter_page(
    sram: &impl SharedMemory,
    geometry: &Geometry,
    (tag, key): (Tag, u64),
    frame: u32,
) -> bool {
    sram.store_u64(geometry.key_word(frame), key, Ordering::Release);
    let word = tag.word(PageAccess::Write);
    sram.store_u64(geometry.vpn_word(frame), word, Ordering::Release);
    let row = tag.row(geometry.rows);
    let mut entries = (0..ROW_ENTRIES).map(|entry| geometry.entry_offset(row, entry));
    let free = entries.find(|entry| sram.load_u32(*entry, Ordering::Relaxed) == 0);
    if let Some(entry) = free {
        sram.store_u32(entry, entry_of(frame), Ordering::Release);
    }
    free.is_some()
}
