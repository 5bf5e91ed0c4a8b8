//! A node: memory that several engines may access, and one process that writes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use qnic_abi::control::{Export, Hello, NewProcess, Opcode, REQUEST_BYTES};
use qnic_abi::export::ExportOptions;
use qnic_abi::host_area::{ERRORS, HEAD, HOST_PAGES, WRITES_DONE};
use qnic_abi::page_table::{entry_of, PageAccess, Tag};
use qnic_abi::{
    Access, Key, NodeId, Port, SegmentId, SharedMemory, Status, VniId, ABI_VERSION, PAGE_SIZE,
};
use qnic_abi_client::{Command, CommandQueue, Memory, Remote};
use qnic_nic::env::{Change, Host, HostMemory, OutOfRange, Width, Wire};
use qnic_nic::testing::{request_bytes, status_of, Sram};
use qnic_nic::{Limits, Nic, NicConfig, Time};

/// Writes of a process that are under way at most.
const DEPTH: u64 = 32;

/// The process, the same on each node.
const VNI: VniId = VniId(1);
const PORT: Port = Port(7);
const KEY: u64 = 0xaa;
const SEGMENT: SegmentId = SegmentId(0);

/// Frames of memory: the host area, and a page that is written to.
const FRAMES: usize = HOST_PAGES + 1;

/// Virtual address of that page.
const ADDRESS: u64 = 0x10_0000;

/// Memory from address 0. Clones are the same memory. Words, as all that is accessed here is aligned.
#[derive(Debug, Clone)]
pub(crate) struct Ram(Arc<[AtomicU64]>);

impl Ram {
    fn new() -> Self {
        Ram((0..FRAMES * PAGE_SIZE / 8)
            .map(|_| AtomicU64::new(0))
            .collect())
    }

    fn words(&self, address: u64, length: usize) -> Result<&[AtomicU64], OutOfRange> {
        let start = usize::try_from(address / 8).map_err(|_| OutOfRange)?;
        let end = start.checked_add(length / 8).ok_or(OutOfRange)?;
        let aligned = address % 8 == 0 && length % 8 == 0;
        self.0.get(start..end).filter(|_| aligned).ok_or(OutOfRange)
    }

    fn load(&self, address: u64) -> u64 {
        // Acquire; partner: the NIC's release store.
        self.0[address as usize / 8].load(Ordering::Acquire)
    }
}

impl HostMemory for Ram {
    fn contains(&self, address: u64, length: u64) -> bool {
        let end = address.checked_add(length);
        end.is_some_and(|end| end <= (FRAMES * PAGE_SIZE) as u64)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfRange> {
        let words = self.words(address, bytes.len())?;
        for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let words = self.words(address, bytes.len())?;
        for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
            let value = bytes.try_into().map_or(0, u64::from_le_bytes);
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Partner: the acquire load of the process.
    fn store_u64(&self, address: u64, value: u64) -> Result<(), OutOfRange> {
        self.words(address, 8)?[0].store(value, Ordering::Release);
        Ok(())
    }

    fn modify(&self, _: u64, _: Width, _: Change) -> Result<u64, OutOfRange> {
        unreachable!("no process here has atomic operations")
    }

    fn copy_from(
        &self,
        address: u64,
        source: &Self,
        source_address: u64,
        length: usize,
    ) -> Result<(), OutOfRange> {
        let (from, to) = (
            source.words(source_address, length)?,
            self.words(address, length)?,
        );
        for (from, to) in from.iter().zip(to) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A node and its process.
#[derive(Debug)]
pub(crate) struct Node {
    number: usize,
    sram: Sram,
    ram: Ram,
    queue: RefCell<CommandQueue>,
}

impl Host for Node {
    type Sram = Sram;
    type Memory = Ram;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn memory(&self) -> &Ram {
        &self.ram
    }
}

impl Node {
    /// A node and its NIC, which has to be started.
    pub(crate) fn new(number: usize) -> (Nic, Node) {
        let config = NicConfig {
            node: NodeId(number as u16),
            frames: FRAMES as u64,
            windows: 2,
            doorbells: 1,
            limits: Limits::default(),
            routes: std::collections::BTreeMap::new(),
            nodes: Vec::new(),
        };
        let nic = Nic::new(config).expect("a NIC");
        let sram = Sram::new(nic.geometry().sram_bytes as usize);
        let queue = CommandQueue::new(&sram, nic.geometry().window_offset(VNI));
        let node = Node {
            number,
            sram,
            ram: Ram::new(),
            queue: RefCell::new(queue),
        };
        (nic, node)
    }

    /// Starts the NIC, and registers the process, whose one page is in the table.
    pub(crate) fn start(&self, now: Time, nic: &mut Nic, wire: &mut impl Wire<Ram>) {
        nic.start(now, self, 1 + self.number as u64);
        let mut request = |bytes: [u8; REQUEST_BYTES]| {
            let reply = nic.handle_control(now, self, wire, &bytes, 1);
            let reply = reply.expect("a reply at once");
            assert_eq!(status_of(&reply), Status::Ok);
        };
        let hello = Hello {
            abi_version: ABI_VERSION.into(),
            reserved: 0.into(),
            frames: (FRAMES as u64).into(),
        };
        request(request_bytes(Opcode::Hello, VniId(0), &hello));
        let process = NewProcess {
            port: PORT.0.into(),
            flags: 0.into(),
            pid: 1.into(),
            host_area: std::array::from_fn(|page| ((page * PAGE_SIZE) as u64).into()),
        };
        request(request_bytes(Opcode::NewProcess, VNI, &process));
        let export = Export {
            segment: SEGMENT.0.into(),
            flags: 0.into(),
            access: Access::all().bits().into(),
            name: 1.into(),
            address: ADDRESS.into(),
            length: (PAGE_SIZE as u64).into(),
            key: KEY.into(),
            page_key: KEY.into(),
            options: ExportOptions::open(),
        };
        request(request_bytes(Opcode::Export, VNI, &export));
        let (geometry, frame) = (*nic.geometry(), HOST_PAGES as u32);
        let tag = Tag::new(VNI, ADDRESS);
        let order = Ordering::Relaxed;
        self.sram.store_u64(geometry.key_word(frame), KEY, order);
        let word = tag.word(PageAccess::Write);
        self.sram.store_u64(geometry.vpn_word(frame), word, order);
        let row = tag.row(geometry.rows);
        let entry = geometry.entry_offset(row, 0);
        self.sram.store_u32(entry, entry_of(frame), order);
    }

    /// Posts writes until enough are under way, or `writes` were posted. Returns true if the NIC
    /// has to be told.
    pub(crate) fn post(&self, writes: u64, target: impl Fn(usize, u64) -> usize) -> bool {
        let mut queue = self.queue.borrow_mut();
        let until = writes.min(self.done() + DEPTH);
        let mut rings = false;
        while queue.tail() < until && !queue.is_full(self.ram.load(HEAD as u64)) {
            let to = Remote {
                node: NodeId(target(self.number, queue.tail()) as u16),
                port: PORT,
                memory: Memory {
                    address: ADDRESS,
                    key: Key(KEY),
                    segment: SEGMENT,
                },
            };
            let (_, ring) = queue.post(&self.sram, &Command::inline_write(to, 8), b"8 bytes.");
            rings |= ring;
        }
        rings
    }

    /// Writes that are complete.
    pub(crate) fn done(&self) -> u64 {
        self.ram.load(WRITES_DONE as u64)
    }

    /// Writes that have failed.
    pub(crate) fn errors(&self) -> u64 {
        self.ram.load(ERRORS as u64)
    }
}
