//! A node: memory that several engines may access, and processes that write.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use qnic_abi::client::{Command, CommandQueue, Memory, Remote};
use qnic_abi::control::{Export, Hello, NewProcess, Opcode, REQUEST_BYTES};
use qnic_abi::export::ExportOptions;
use qnic_abi::host_area::{ERRORS, HEAD, HOST_PAGES, WRITES_DONE};
use qnic_abi::page_table::{entry_of, PageAccess, Tag};
use qnic_abi::{
    Access, Key, NodeId, Port, SegmentId, SharedMemory, Status, VniId, ABI_VERSION, PAGE_SIZE,
};
use qnic_nic::env::{Change, Host, HostMemory, ModifyError, OutOfRange, Width, Wire};
use qnic_nic::testing::{request_bytes, status_of, Sram};
use qnic_nic::{Limits, Nic, NicConfig, Time};

/// Writes of a process that are under way at most.
const DEPTH: u64 = 32;

/// The processes, the same on each node: the first has VNI 1 and this port.
const PORT: Port = Port(7);
const KEY: u64 = 0xaa;
const SEGMENT: SegmentId = SegmentId(0);

/// Frames of memory: the host areas, and a page that is written to, of the first process.
const fn frames(processes: usize) -> usize {
    processes * HOST_PAGES + 1
}

/// Virtual address of that page.
const ADDRESS: u64 = 0x10_0000;

/// Memory from address 0. Clones are the same memory. Words, as all that is accessed here is aligned.
#[derive(Debug, Clone)]
pub(crate) struct Ram(Arc<[AtomicU64]>);

impl Ram {
    fn new(processes: usize) -> Self {
        Ram((0..frames(processes) * PAGE_SIZE / 8)
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
        end.is_some_and(|end| end <= (self.0.len() * 8) as u64)
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

    /// Partner: the release store of the process.
    fn load_u64(&self, address: u64) -> Result<u64, OutOfRange> {
        Ok(self.words(address, 8)?[0].load(Ordering::Acquire))
    }

    /// Partner: the acquire load of the process.
    fn store_u64(&self, address: u64, value: u64) -> Result<(), OutOfRange> {
        self.words(address, 8)?[0].store(value, Ordering::Release);
        Ok(())
    }

    fn modify(&self, _: u64, _: Width, _: Change) -> Result<u64, ModifyError> {
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

/// A node and its processes.
#[derive(Debug)]
pub(crate) struct Node {
    number: usize,
    sram: Sram,
    ram: Ram,
    queues: RefCell<Vec<CommandQueue>>,
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

/// The VNI of a process, by its number.
fn vni(process: usize) -> VniId {
    VniId(1 + process as u16)
}

/// Address of the host area of a process.
fn host_area(process: usize) -> u64 {
    (process * HOST_PAGES * PAGE_SIZE) as u64
}

impl Node {
    /// A node and its NIC, which has to be started.
    pub(crate) fn new(number: usize, processes: usize) -> (Nic, Node) {
        let config = NicConfig {
            node: NodeId(number as u16),
            frames: frames(processes) as u64,
            windows: 1 + processes as u32,
            doorbells: 1,
            limits: Limits::default(),
            routes: std::collections::BTreeMap::new(),
            nodes: Vec::new(),
        };
        let nic = Nic::new(config).expect("a NIC");
        let sram = Sram::new(nic.geometry().sram_bytes as usize);
        let queue = |process| CommandQueue::new(&sram, nic.geometry().window_offset(vni(process)));
        let queues = (0..processes).map(queue).collect();
        let node = Node {
            number,
            sram,
            ram: Ram::new(processes),
            queues: RefCell::new(queues),
        };
        (nic, node)
    }

    /// Starts the NIC, and registers the processes; the page of the first is in the table.
    pub(crate) fn start(&self, now: Time, nic: &mut Nic, wire: &mut impl Wire<Ram>) {
        nic.start(now, self, 1 + self.number as u64);
        let mut request = |bytes: [u8; REQUEST_BYTES]| {
            let reply = nic.handle_control(now, self, wire, &bytes, 1);
            let reply = reply.expect("a reply at once");
            assert_eq!(status_of(&reply), Status::Ok);
        };
        let processes = self.queues.borrow().len();
        let hello = Hello {
            abi_version: ABI_VERSION.into(),
            reserved: 0.into(),
            frames: (frames(processes) as u64).into(),
        };
        request(request_bytes(Opcode::Hello, VniId(0), &hello));
        for number in 0..processes {
            let page = |page| (host_area(number) + (page * PAGE_SIZE) as u64).into();
            let process = NewProcess {
                port: (PORT.0 + number as u16).into(),
                flags: 0.into(),
                pid: 1.into(),
                host_area: std::array::from_fn(page),
            };
            request(request_bytes(Opcode::NewProcess, vni(number), &process));
        }
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
        request(request_bytes(Opcode::Export, vni(0), &export));
        let (geometry, frame) = (*nic.geometry(), frames(processes) as u32 - 1);
        let tag = Tag::new(vni(0), ADDRESS);
        let order = Ordering::Relaxed;
        self.sram.store_u64(geometry.key_word(frame), KEY, order);
        let word = tag.word(PageAccess::Write);
        self.sram.store_u64(geometry.vpn_word(frame), word, order);
        let row = tag.row(geometry.rows);
        let entry = geometry.entry_offset(row, 0);
        self.sram.store_u32(entry, entry_of(frame), order);
    }

    /// Has a process post writes until enough are under way, or `writes` were posted. Returns true
    /// if the NIC has to be told.
    pub(crate) fn post(
        &self,
        process: usize,
        writes: u64,
        target: impl Fn(usize, u64) -> usize,
    ) -> bool {
        let queue = &mut self.queues.borrow_mut()[process];
        let until = writes.min(self.done(process) + DEPTH);
        let head = self.ram.load(host_area(process) + HEAD as u64);
        let mut rings = false;
        while queue.tail() < until && !queue.is_full(head) {
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

    /// Writes of a process that are complete.
    pub(crate) fn done(&self, process: usize) -> u64 {
        self.ram.load(host_area(process) + WRITES_DONE as u64)
    }

    /// Writes of a process that have failed.
    pub(crate) fn errors(&self, process: usize) -> u64 {
        self.ram.load(host_area(process) + ERRORS as u64)
    }
}
