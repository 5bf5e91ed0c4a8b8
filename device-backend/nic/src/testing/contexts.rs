//! Contexts of a process on a simulated node.

use qnic_abi::command::{CommandBody, Descriptor, INLINE_CAPACITY};
use qnic_abi::context::{
    pages_of, ContextCommand, ContextFlags, MessageContext, Opcode, PageDescriptor, CONTEXT_BYTES,
    CONTEXT_PAGES, LIST_PAGES, POOL_PAGES, REGION_BYTES,
};
use qnic_abi::host_area::{receive_doorbell_offset, send_doorbell_offset, CompletionEntry, POOL};
use qnic_abi::message::{CancelCommand, CancelFlags};
use qnic_abi::window::{receive_context_offset, send_context_offset};
use qnic_abi::{SharedMemory, PAGE_SIZE};
use zerocopy::{FromBytes, IntoBytes};

use super::{Party, SimSegment};
use crate::env::HostMemory;

/// A context that is to be filled.
#[derive(Debug, Clone)]
#[must_use = "nothing is issued until `issue`"]
pub struct Describing<'a> {
    party: &'a Party,
    opcode: Opcode,
    index: usize,
    /// The context.
    pub context: MessageContext,
    /// The pages in its region, or in its list; at least as many as a region has.
    pub pages: Vec<PageDescriptor>,
    short: Option<Vec<u8>>,
}

impl Describing<'_> {
    /// With other flags as well.
    pub fn flags(mut self, flags: ContextFlags) -> Self {
        self.context.flags = (self.context.flags.get() | flags.bits()).into();
        self
    }

    /// Its end is told.
    pub fn notify(self) -> Self {
        self.flags(ContextFlags::NOTIFY)
    }

    /// Its tag.
    pub fn tag(mut self, tag: u64) -> Self {
        self.context.tag = tag.into();
        self
    }

    /// To or from that process.
    pub fn with(mut self, other: impl Into<SimSegment>) -> Self {
        let other = other.into();
        self.context.remote_node = (other.node as u16).into();
        self.context.remote_port = other.port.0.into();
        let flags = self.context.flags.get() & !ContextFlags::ANY_PROC.bits();
        self.context.flags = flags.into();
        self
    }

    /// Pages of the segment, by number, in this order, from an offset in the first page on.
    pub fn pages(mut self, pages: &[u64], offset: u64, length: u64) -> Self {
        let segment = self.party.segment.at(0);
        self.context.local_key = segment.key.0.into();
        self.context.local_segment = segment.segment.0.into();
        self.context.pages = (pages.len() as u16).into();
        self.context.length = length.into();
        let mut left = length;
        let count = self.pages.len().max(pages.len());
        self.pages.resize(count, PageDescriptor::default());
        for (index, page) in pages.iter().enumerate() {
            let from = if index == 0 { offset } else { 0 };
            let bytes = left.min(PAGE_SIZE as u64 - from);
            left -= bytes;
            self.pages[index] = PageDescriptor {
                address: (segment.address + super::page(*page)).into(),
                offset: (from as u16).into(),
                length: (bytes as u16).into(),
                valid: 1.into(),
            };
        }
        self
    }

    /// The descriptors of its pages stand in that page of the pool.
    pub fn list(mut self, page: u16) -> Self {
        self.context.pool_page = page.into();
        self.flags(ContextFlags::LIST)
    }

    /// Bytes of the pool.
    pub fn pool(mut self, page: u16, offset: u16, length: u64) -> Self {
        self.context.pool_page = page.into();
        self.context.pool_offset = offset.into();
        self.context.length = length.into();
        self.context.pages = (pages_of(offset.into(), length) as u16).into();
        self.flags(ContextFlags::POOL)
    }

    /// These bytes, which stand in the region.
    pub fn short(mut self, bytes: &[u8]) -> Self {
        self.context.length = (bytes.len() as u64).into();
        self.short = Some(bytes.to_vec());
        self.flags(ContextFlags::REGION)
    }

    /// Stores context and region in the window, and the list in the pool.
    pub fn store(&self) {
        if self.context.flags.get() & ContextFlags::LIST.bits() != 0 {
            let fit = &self.pages[..self.pages.len().min(LIST_PAGES)];
            let page = usize::from(self.context.pool_page.get()) % POOL_PAGES;
            self.party.store_pool(page, 0, fit.as_bytes());
        }
        let mut bytes = [0; CONTEXT_BYTES];
        bytes[..size_of::<MessageContext>()].copy_from_slice(self.context.as_bytes());
        let region = &mut bytes[size_of::<MessageContext>()..];
        region.copy_from_slice(&self.pages.as_bytes()[..REGION_BYTES]);
        if let Some(short) = &self.short {
            let end = short.len().min(INLINE_CAPACITY);
            region[..end].copy_from_slice(&short[..end]);
        }
        let mut words = [0u64; CONTEXT_BYTES / 8];
        words.as_mut_bytes().copy_from_slice(&bytes);
        let at = match self.opcode {
            Opcode::SendContext => send_context_offset(self.index),
            Opcode::ReceiveContext => receive_context_offset(self.index),
        };
        let window = self.party.window();
        let words = words.map(u64::from_le);
        self.party
            .on_node(|node| node.host.sram.write_words(window + at, &words));
    }

    /// Stores it and issues its command; the queue has room.
    pub fn issue(self) {
        self.store();
        let command = ContextCommand::new(self.opcode, self.index, &self.context);
        let descriptor = Descriptor::read_from_bytes(command.as_bytes());
        self.party.post(&descriptor.expect("the same size"));
    }

    /// Issues it and runs all nodes.
    pub fn run(self) {
        let net = self.party.net.clone();
        self.issue();
        net.run();
    }
}

impl Party {
    fn describe(&self, opcode: Opcode, index: usize) -> Describing<'_> {
        Describing {
            party: self,
            opcode,
            index,
            context: MessageContext::default(),
            pages: vec![PageDescriptor::default(); CONTEXT_PAGES],
            short: None,
        }
    }

    /// A Send context.
    pub fn send_context(&self, index: usize, to: impl Into<SimSegment>) -> Describing<'_> {
        self.describe(Opcode::SendContext, index).with(to)
    }

    /// A Receive context, for messages of any process.
    pub fn receive_context(&self, index: usize) -> Describing<'_> {
        self.describe(Opcode::ReceiveContext, index)
            .flags(ContextFlags::ANY_PROC)
    }

    /// Cancels the receive of a context and runs all nodes.
    pub fn cancel_context(&self, index: usize) {
        let mut command = CancelCommand::command();
        command.handle = (index as u64).into();
        command.flags = CancelFlags::CONTEXT.bits().into();
        self.post(&command.descriptor());
        self.net.run();
    }

    fn doorbell(&self, at: usize) -> CompletionEntry {
        let words: [u64; 8] = std::array::from_fn(|index| self.word(at + index * 8).to_le());
        zerocopy::transmute!(words)
    }

    /// The doorbell of a Send context.
    pub fn send_doorbell(&self, index: usize) -> CompletionEntry {
        self.doorbell(send_doorbell_offset(index))
    }

    /// The doorbell of a Receive context.
    pub fn receive_doorbell(&self, index: usize) -> CompletionEntry {
        self.doorbell(receive_doorbell_offset(index))
    }

    /// Stores bytes in the pool, as the process does; none of them in another page.
    pub fn store_pool(&self, page: usize, offset: usize, bytes: &[u8]) {
        let at = self.address_of(POOL + page * PAGE_SIZE + offset);
        self.on_node(|node| node.host.memory.write(at, bytes))
            .expect("frames are memory");
    }

    /// Bytes of the pool, from a page on.
    pub fn pool(&self, page: usize, length: usize) -> Vec<u8> {
        let words =
            (0..length.div_ceil(8)).map(|word| self.word(POOL + page * PAGE_SIZE + word * 8));
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(length);
        bytes
    }
}
