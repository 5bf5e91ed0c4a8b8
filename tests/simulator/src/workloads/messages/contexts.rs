//! Contexts of a message worker (Q4, Q5, Q7, Q8): which it has under way, what it stores into
//! them, and their doorbells. It does what `guest-lib/src/core/contexts.rs` does for requests of the
//! library, which this worker does not have: raw commands, without pages that stay behind.

use std::ops::Range;
use std::sync::Arc;

use qnic::provider::Memory;
use qnic_abi::command::Descriptor;
use qnic_abi::context::{
    pages_of, ContextCommand, ContextFlags, DoorbellState, MessageContext, Opcode, PageDescriptor,
    CONTEXTS, CONTEXT_BYTES, CONTEXT_PAGES,
};
use qnic_abi::host_area::{
    receive_doorbell_offset, send_doorbell_offset, DOORBELL_STATE, POOL, SEND_DOORBELLS,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{receive_context_offset, send_context_offset};
use qnic_abi::{SharedMemory, PAGE_SIZE};
use qnic_driver::Process;
use zerocopy::IntoBytes;

use super::oracle::POOL_BYTES;
use crate::machine::mapping::Mapping;
use crate::machine::platform::{Machine, SimPlatform};

/// A context: whether it is one for receives, and its number.
pub(super) type ContextName = (bool, usize);

/// The contexts of a process.
pub(super) struct Contexts {
    window: Mapping,
    /// The writable pages of its host area.
    pool: Mapping,
    /// The message or receive that each has, by direction.
    held: [[Option<u64>; CONTEXTS]; 2],
    next: [usize; 2],
}

fn doorbell((receives, number): ContextName) -> usize {
    let offset = match receives {
        true => receive_doorbell_offset(number),
        false => send_doorbell_offset(number),
    };
    offset - SEND_DOORBELLS
}

impl Contexts {
    pub(super) fn new(machine: &Arc<Machine>, process: &Process<SimPlatform>) -> Self {
        Contexts {
            window: Mapping::window(machine, process.window_offset()),
            pool: Mapping::pool(machine, process.host_area().frames),
            held: [[None; CONTEXTS]; 2],
            next: [0; 2],
        }
    }

    /// Returns true if no context of a direction is free.
    pub(super) fn are_held(&self, receives: bool) -> bool {
        self.held[usize::from(receives)].iter().all(Option::is_some)
    }

    /// Takes a context for a message or a receive.
    ///
    /// # Panics
    /// If all are held.
    pub(super) fn take(&mut self, receives: bool, handle: u64) -> ContextName {
        let side = usize::from(receives);
        let mut numbers = (0..CONTEXTS).map(|step| (self.next[side] + step) % CONTEXTS);
        let number = numbers.find(|number| self.held[side][*number].is_none());
        let number = number.expect("a context is free");
        self.held[side][number] = Some(handle);
        self.next[side] = number + 1;
        self.store_state((receives, number), DoorbellState::Used);
        (receives, number)
    }

    /// The context that a receive has.
    pub(super) fn of_receive(&self, handle: u64) -> Option<usize> {
        self.held[1].iter().position(|held| *held == Some(handle))
    }

    /// Stores a context with its region, and returns the command that issues it.
    pub(super) fn fill(
        &self,
        (receives, number): ContextName,
        context: &MessageContext,
        region: &[u8],
    ) -> Descriptor {
        let (opcode, offset) = match receives {
            true => (Opcode::ReceiveContext, receive_context_offset(number)),
            false => (Opcode::SendContext, send_context_offset(number)),
        };
        let mut words = [0u64; CONTEXT_BYTES / 8];
        let (front, back) = words
            .as_mut_bytes()
            .split_at_mut(size_of::<MessageContext>());
        front.copy_from_slice(context.as_bytes());
        back[..region.len()].copy_from_slice(region);
        self.window.write_words(offset, &words.map(u64::from_le));
        zerocopy::transmute!(ContextCommand::new(opcode, number, context))
    }

    /// Stores bytes in the pool.
    pub(super) fn store(&self, start: u64, bytes: &[u8]) {
        let first = POOL - SEND_DOORBELLS + start as usize;
        let mut done = 0;
        while done < bytes.len() {
            let at = first + done;
            let end = bytes.len().min(done + PAGE_SIZE - at % PAGE_SIZE);
            self.pool.write_bytes(at, &bytes[done..end]);
            done = end;
        }
    }

    fn store_state(&self, name: ContextName, state: DoorbellState) {
        let word = u64::from(state as u32) << 32;
        let offset = doorbell(name) + DOORBELL_STATE;
        // Release, as the library's; partner: an acquire load of another thread, of which there is
        // none here.
        self.pool.store_u64(offset, word, Ordering::Release);
    }

    fn has_ended(&self, name: ContextName) -> bool {
        let offset = doorbell(name) + DOORBELL_STATE;
        // Partner: the NIC's release store of the state, behind the bytes of the message.
        let word = self.pool.load_u64(offset, Ordering::Acquire);
        word >> 32 != u64::from(DoorbellState::Used as u32)
    }

    fn names(&self) -> impl Iterator<Item = (ContextName, u64)> + '_ {
        let side = |receives: bool| {
            let held = self.held[usize::from(receives)].iter().enumerate();
            held.filter_map(move |(number, handle)| Some(((receives, number), (*handle)?)))
        };
        side(false).chain(side(true))
    }

    /// Returns true if the NIC has ended one.
    pub(super) fn have_ended(&self) -> bool {
        self.names().any(|(name, _)| self.has_ended(name))
    }

    /// Frees those that have ended: what each was for.
    pub(super) fn ended(&mut self) -> Vec<(ContextName, u64)> {
        let ended = self.names().filter(|(name, _)| self.has_ended(*name));
        let ended: Vec<_> = ended.collect();
        for ((receives, number), _) in &ended {
            self.held[usize::from(*receives)][*number] = None;
            self.store_state((*receives, *number), DoorbellState::Free);
        }
        ended
    }
}

/// The pages of a stretch of memory; `None` if no context lists so many.
pub(super) fn pages_at(
    address: u64,
    length: u64,
) -> Option<(u16, [PageDescriptor; CONTEXT_PAGES])> {
    let page = PAGE_SIZE as u64;
    let count = pages_of((address % page) as usize, length);
    let mut pages = [PageDescriptor::default(); CONTEXT_PAGES];
    let mut at = address;
    for descriptor in pages.get_mut(..count as usize)? {
        let end = (at - at % page + page).min(address + length);
        *descriptor = PageDescriptor {
            address: (at - at % page).into(),
            offset: ((at % page) as u16).into(),
            length: ((end - at) as u16).into(),
            valid: 1.into(),
        };
        at = end;
    }
    Some((count as u16, pages))
}

/// Where bytes in the pool may begin: a context names a page that is there, also for no byte.
pub(super) fn pool_starts(length: u64) -> Range<u64> {
    0..POOL_BYTES - length.max(1) + 1
}

/// Makes a context one of bytes in the pool.
pub(super) fn in_pool(context: &mut MessageContext, start: u64, length: u64) {
    let (page, offset) = (start as usize / PAGE_SIZE, start as usize % PAGE_SIZE);
    let flags = context.flags.get() | ContextFlags::POOL.bits();
    context.flags = flags.into();
    context.pool_page = (page as u16).into();
    context.pool_offset = (offset as u16).into();
    context.pages = (pages_of(offset, length) as u16).into();
}
