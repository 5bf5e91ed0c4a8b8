//! What a driver and a process do right, so that the NIC gets behind its first checks: a
//! registration, a segment, pages in the page table, commands.

use fastrand::Rng;
use qnic_abi::atomic::Function;
use qnic_abi::control::{Export, NewProcess};
use qnic_abi::export::ExportOptions;
use qnic_abi::header::Geometry;
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::page_table::{entry_of, PageAccess, Tag, ROW_ENTRIES};
use qnic_abi::shared::Ordering;
use qnic_abi::{Access, Key, NodeId, Port, SegmentId, SharedMemory, VniId, PAGE_SIZE};
use qnic_abi_client::{Command, Memory, Remote};

/// VNIs that are used.
pub(super) const VNIS: u16 = 8;

/// The segment of each process.
const VIRTUAL: u64 = 0x5555_0000_0000;
const PAGES: u64 = 16;
const KEY: u64 = 0xfeed_f00d;
const NAME: u64 = 77;

/// The port of processes that exchange data on other nodes ([`crate::exchange`]).
const OTHERS_PORT: u16 = 20;

/// Nodes that are named: those of a small cluster, and some that do not exist.
const NODES: u16 = 6;

fn port(vni: u16) -> u16 {
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

/// A command that is right if it names this node and one of these processes; or one for segments
/// of others, whose keys are not known here.
pub(super) fn command(random: &mut Rng) -> Command {
    let mut memory = || Memory {
        address: VIRTUAL + random.u64(..PAGES * PAGE_SIZE as u64),
        key: Key(KEY),
        segment: SegmentId(0),
    };
    let (local, mut memory) = (memory(), memory());
    let mut port = port(random.u16(..VNIS));
    if random.u8(..4) == 0 {
        port = OTHERS_PORT;
        (memory.segment, memory.key) = (SegmentId(random.u16(..4)), Key(random.u64(..)));
    }
    let remote = Remote {
        node: NodeId(random.u16(..NODES)),
        port: Port(port),
        memory,
    };
    let length = random.u64(..2 * PAGE_SIZE as u64);
    let command = match random.u8(..3) {
        0 => Command::read(local, remote, length),
        1 => Command::write(local, remote, length).notify(random.u32(..64)),
        _ => {
            let operands = [random.u64(..), random.u64(..)];
            Command::atomic(Function::FetchAdd, remote, 8, operands, random.u16(..16))
        }
    };
    command.publish()
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
