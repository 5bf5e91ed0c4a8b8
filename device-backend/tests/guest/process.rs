//! A process in a test guest: registers, exports its data, issues commands.

use std::sync::atomic::{fence, Ordering};

use qnic_abi::client::{enter_page, export, registration, Command, CommandQueue, Memory, Remote};
use qnic_abi::control::{Import, Imported, Opcode};
use qnic_abi::host_area::{signal_offset, ERRORS, HEAD, WRITES_DONE};
use qnic_abi::page_table::Tag;
use qnic_abi::window::{AWAKE, POLLED, WAKE_REQUEST};
use qnic_abi::{Key, NodeId, Port, Secret, SegmentId, SharedMemory, Status, VniId, PAGE_SIZE};
use vm_memory::{Bytes, GuestAddress, VolatileSlice};
use zerocopy::FromBytes;

use super::Guest;

/// Where the host area and the data are in the guest's RAM.
pub(crate) const HOST_AREA: u64 = 0x10000;
pub(crate) const DATA: u64 = 0x20000;
/// Where the process sees its data.
pub(crate) const VIRTUAL: u64 = 0x5555_0000_0000;
/// The one exported segment.
pub(crate) const PAGES: u64 = 16;
pub(crate) const NAME: u64 = 77;
pub(crate) const KEY: u64 = 0xfeed_f00d;
const VNI: u16 = 3;

/// SRAM as the ABI's client sees it.
struct Sram<'a>(VolatileSlice<'a>);

impl SharedMemory for Sram<'_> {
    fn size(&self) -> usize {
        self.0.len()
    }
    fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.0.load(offset, order).unwrap()
    }
    fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.0.store(value, offset, order).unwrap();
    }
    fn load_u64(&self, offset: usize, order: Ordering) -> u64 {
        self.0.load(offset, order).unwrap()
    }
    fn store_u64(&self, offset: usize, value: u64, order: Ordering) {
        self.0.store(value, offset, order).unwrap();
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Guest {
    /// Registers a process on `port` and exports its data, resident.
    pub(crate) fn register(&mut self, port: u16) {
        let body = registration(port, |page| HOST_AREA + (page * PAGE_SIZE) as u64);
        assert_eq!(self.request(Opcode::NewProcess, VNI, &body).0, Status::Ok);
        for page in 0..PAGES {
            let tag = Tag::new(VniId(VNI), VIRTUAL + page * PAGE_SIZE as u64);
            let frame = (DATA >> 12) as u32 + page as u32;
            let sram = Sram(self.sram());
            assert!(enter_page(&sram, &self.geometry(), (tag, KEY), frame));
        }
        let body = export(NAME, (VIRTUAL, PAGES * PAGE_SIZE as u64), KEY);
        assert_eq!(self.request(Opcode::Export, VNI, &body).0, Status::Ok);
    }

    pub(crate) fn import(&mut self, node: u16, port: u16) -> (Status, Imported) {
        let body = Import {
            node: node.into(),
            port: port.into(),
            wait_ms: 5000.into(),
            name: NAME.into(),
            secret: Secret::default(),
        };
        let (status, reply) = self.request(Opcode::Import, VNI, &body);
        (status, Imported::read_from_prefix(&reply[8..]).unwrap().0)
    }

    /// A notifying write of `length` bytes from the start of the own data to
    /// `offset` in the peer's.
    pub(crate) fn write_command(&self, node: u16, port: u16, offset: u64, length: u64) -> Command {
        let own = |offset| Memory {
            address: VIRTUAL + offset,
            key: Key(KEY),
            segment: SegmentId(0),
        };
        let remote = Remote {
            node: NodeId(node),
            port: Port(port),
            memory: own(offset),
        };
        Command::write(own(0), remote, length).notify(5).publish()
    }

    fn window(&self) -> usize {
        self.geometry().window_offset(VniId(VNI))
    }

    /// Issues command number `number`; rings the doorbell if the NIC sleeps.
    pub(crate) fn issue(&self, number: u64, command: &Command) -> bool {
        let mut queue = CommandQueue::at(self.window(), number);
        queue.post(&Sram(self.sram()), command, &[]);
        let asleep = self.is_asleep();
        if asleep {
            let doorbells = self.doorbells.len();
            self.doorbells[usize::from(VNI) % doorbells]
                .write(1)
                .unwrap();
        }
        asleep
    }

    /// Returns true if the NIC has stopped looking at the command queue.
    pub(crate) fn is_asleep(&self) -> bool {
        let word = self.window() + AWAKE;
        let awake: u64 = self.sram().load(word, Ordering::Relaxed).unwrap();
        awake != POLLED
    }

    /// Asks for an interrupt when the host area changes.
    pub(crate) fn want_wake(&self, value: u64) {
        let word = self.window() + WAKE_REQUEST;
        self.sram().store(value, word, Ordering::Relaxed).unwrap();
        fence(Ordering::SeqCst);
    }

    fn host_word(&self, offset: usize) -> u64 {
        let address = GuestAddress(HOST_AREA + offset as u64);
        self.ram.load(address, Ordering::Acquire).unwrap()
    }

    pub(crate) fn writes_done(&self) -> u64 {
        self.host_word(WRITES_DONE)
    }

    pub(crate) fn commands_read(&self) -> u64 {
        self.host_word(HEAD)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.host_word(ERRORS)
    }

    pub(crate) fn signals(&self) -> u64 {
        self.host_word(signal_offset(5))
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        self.ram.write_slice(bytes, GuestAddress(DATA)).unwrap();
    }

    pub(crate) fn clear_data(&self) {
        let zeroes = vec![0; PAGES as usize * PAGE_SIZE];
        self.ram.write_slice(&zeroes, GuestAddress(DATA)).unwrap();
    }

    pub(crate) fn data(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.ram
            .read_slice(&mut bytes, GuestAddress(DATA + offset))
            .unwrap();
        bytes
    }
}
