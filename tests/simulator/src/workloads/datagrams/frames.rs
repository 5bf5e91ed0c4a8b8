//! The frames of a datagram worker, which its commands name.

use qnic_abi::datagram::RECORD_BYTES;
use qnic_abi::{PAGE_SHIFT, PAGE_SIZE};

use super::{BUFFERS, PACKETS};
use crate::machine::memory::{Memory, Owner};
use crate::machine::platform::Machine;
use crate::workloads::datagrams::oracle::FILL;

/// Pages of buffers, then pages of packets, then that with the records.
pub(super) struct Frames(Vec<u32>);

fn address(frame: u32) -> u64 {
    u64::from(frame) << PAGE_SHIFT
}

/// Stores bytes within a page, as the processor does.
fn store(memory: &Memory, address: u64, bytes: &[u8]) {
    let offset = address as usize % PAGE_SIZE;
    memory.store((address >> PAGE_SHIFT) as u32, offset, bytes);
}

impl Frames {
    /// Takes them; `None` if memory is short.
    pub(super) fn take(machine: &Machine) -> Option<Self> {
        let mut frames = Frames(Vec::new());
        for _ in 0..BUFFERS + PACKETS + 1 {
            match machine.kernel.try_frame_for(Owner::Driver) {
                Some(frame) => frames.0.push(frame),
                None => {
                    frames.release(machine);
                    return None;
                }
            }
        }
        Some(frames)
    }

    /// Gives them back: the NIC does not know the process any more.
    pub(super) fn release(self, machine: &Machine) {
        for frame in self.0 {
            machine.memory.release(frame);
        }
    }

    /// The page and the record of a buffer.
    pub(super) fn buffer(&self, page: usize) -> (u64, u64) {
        let records = address(self.0[BUFFERS + PACKETS]);
        let record = records + (page * RECORD_BYTES) as u64;
        (address(self.0[page]), record)
    }

    /// The page of a packet.
    pub(super) fn packet(&self, page: usize) -> u64 {
        address(self.0[BUFFERS + page])
    }

    /// Fills a buffer and its record before they are posted.
    pub(super) fn fill(&self, memory: &Memory, page: usize) {
        let (data, record) = self.buffer(page);
        store(memory, data, &[FILL; PAGE_SIZE]);
        store(memory, record, &[FILL; RECORD_BYTES]);
    }

    /// Stores the data of a packet.
    pub(super) fn store(&self, memory: &Memory, address: u64, bytes: &[u8]) {
        store(memory, address, bytes);
    }
}
