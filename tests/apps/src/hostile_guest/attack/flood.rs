//! A flood of the connection managers of all other nodes (X18): datagrams as the module of this guest sends them, from
//! its own address. Each is a message that its reader has to look at. Their contents are chance.

use std::time::Instant;

use anyhow::{ensure, Result};
use qnic_abi::client::{registration, CommandQueue, Entry, Packet};
use qnic_abi::control::{Hello, Opcode, PROCESS_DRIVER};
use qnic_abi::datagram::{PacketFlags, DRIVER_PORT, HEADER_CAPACITY};
use qnic_abi::header::Geometry;
use qnic_abi::host_area::{completion_offset, CompletionEntry, COMPLETION_TAIL};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{COMMAND_ENTRIES, COMPLETION_HEAD};
use qnic_abi::{SharedMemory, Status, VniId, ABI_VERSION, PAGE_SIZE};
use zerocopy::IntoBytes;

use super::{Attack, DATA, HOST_AREA};

/// As `management.rs` of the crate `qnic-driver` has it: the datagram port, and the bytes of a message.
const PORT: u16 = 65;
const MESSAGE: usize = 256;
/// What a message begins with, and where its attribute stands.
const BEGINS: [u8; 4] = [1, 7, 2, 3];
const ATTRIBUTE: usize = 17;

/// The VNI of the driver's process.
const VNI: u16 = 0;

/// Messages to a node, one behind the other.
const BATCH: usize = 32;
const _: () = assert!(BATCH <= COMMAND_ENTRIES);

impl Attack {
    /// Floods all nodes whose numbers are lower, until the time is over.
    pub(in super::super) fn flood(&mut self, end: Instant) -> Result<()> {
        let geometry = self.start_and_wait()?;
        let hello = Hello {
            abi_version: ABI_VERSION.into(),
            reserved: 0.into(),
            frames: geometry.frames.into(),
        };
        self.ask(Opcode::Hello, 0, hello.as_bytes())?;
        let mut process = registration(DRIVER_PORT, |page| self.arena.address(HOST_AREA + page));
        process.flags = PROCESS_DRIVER.into();
        self.ask(Opcode::NewProcess, VNI, process.as_bytes())?;
        let mut queue = CommandQueue::at(geometry.window_offset(VniId(VNI)), 0);
        let mut seen = 0;
        while Instant::now() < end {
            self.write_message();
            // No more than the command queue has room for.
            for node in 0..geometry.node.0 {
                for _ in 0..BATCH {
                    self.post_message(&mut queue, (geometry.node.0, node));
                }
                let posted = queue.tail();
                self.wait_for("datagrams to be sent", |attack| {
                    seen = attack.take_completions(&geometry, seen)?;
                    Ok(seen == posted)
                })?;
            }
        }
        self.device.reset();
        Ok(())
    }

    /// A message of connection management, of any kind.
    fn write_message(&mut self) {
        let mut message = [0; MESSAGE];
        self.random.fill(&mut message);
        message[..BEGINS.len()].copy_from_slice(&BEGINS);
        message[ATTRIBUTE - 1..=ATTRIBUTE].copy_from_slice(&[0, self.random.u8(0x10..=0x1a)]);
        self.arena.write(DATA, 0, &message);
    }

    fn post_message(&mut self, queue: &mut CommandQueue, (from, to): (u16, u16)) {
        let packet = Packet {
            handle: queue.tail() + 1,
            node: to,
            port: PORT,
            source_port: PORT,
            address: self.arena.address(DATA),
            length: MESSAGE as u16,
            sequence: queue.tail() as u32,
            flags: PacketFlags::LAST.bits(),
            header: header(from, to).to_vec(),
            ..Packet::default()
        };
        let entry = Entry::new(&packet.descriptor(), &packet.header);
        let (_, must_ring) = queue.post_words(&self.device.sram, entry.words());
        if must_ring {
            self.device.ring(self.doorbell(VNI));
        }
    }

    /// Takes the completions behind those that were seen. Returns how many there are.
    fn take_completions(&mut self, geometry: &Geometry, seen: u64) -> Result<u64> {
        let tail = u64::from_le_bytes(self.arena.read(HOST_AREA, COMPLETION_TAIL));
        for number in seen..tail {
            let at = completion_offset(number);
            let page = HOST_AREA + at / PAGE_SIZE;
            let bytes: [u8; size_of::<CompletionEntry>()] = self.arena.read(page, at % PAGE_SIZE);
            let entry: CompletionEntry = zerocopy::transmute!(bytes);
            let status = entry.status.get();
            ensure!(
                status == Status::Ok.code(),
                "a datagram was not sent: status {status}"
            );
            self.done.management_messages += 1;
        }
        let head = geometry.window_offset(VniId(VNI)) + COMPLETION_HEAD;
        self.device.sram.store_u64(head, tail, Ordering::Release);
        Ok(tail)
    }
}

/// The header of a message between the Ethernet ports of two nodes.
fn header(from: u16, to: u16) -> [u8; HEADER_CAPACITY] {
    let mut header = [0; HEADER_CAPACITY];
    header[0] = 1;
    for (at, node) in [(8, from), (24, to)] {
        let address = [0xff, 0xff, 10, 71, 0, node as u8 + 1];
        header[at + 10..at + 16].copy_from_slice(&address);
    }
    header
}
