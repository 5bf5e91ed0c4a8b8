//! The process's side of contexts (`qnic_abi::context`; Q4, Q5, Q8): which request has which, what stands in
//! them, and their doorbells.
//!
//! ```text
//!             take: Used                     NIC: Done, or Free
//!    Free ───────────────► held ─────────────────────────────► swept: Free
//!                           │ request, or none                   │ entry, pages of the pool
//!                           └─ leave: its pages stay with it ────┘
//! ```
//! # Invariants
//! - A context is taken only while no request holds it; its doorbell is Free then.
//! - Contexts are looked at from the one behind that which was taken last (Q8).
//! - A doorbell that says Done or Free of a context that is held has ended it. A sweep hands the
//!   entry on before the context can be taken again.
//!
//! Written against [`SharedMemory`], so that loom runs it against a NIC's side. Offsets into the
//! doorbells are those of the writable pages of the host area.

use qnic_abi::command::Descriptor;
use qnic_abi::context::{
    ContextCommand, DoorbellState, MessageContext, Opcode, PageDescriptor, CONTEXTS, CONTEXT_PAGES,
    REGION_BYTES,
};
use qnic_abi::host_area::{
    receive_doorbell_offset, send_doorbell_offset, CompletionEntry, DOORBELL_STATE, SEND_DOORBELLS,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{receive_context_offset, send_context_offset};
use qnic_abi::SharedMemory;

use crate::core::pool::Run;

/// Words of a context without its region.
const CONTEXT_WORDS: usize = size_of::<MessageContext>() / 8;

/// Words of a region.
const REGION_WORDS: usize = REGION_BYTES / 8;

/// Words of a doorbell.
const DOORBELL_WORDS: usize = size_of::<CompletionEntry>() / 8;

const _: () = assert!(2 * CONTEXTS <= u64::BITS as usize);

/// What a context is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// A context, by direction and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextName {
    pub(crate) direction: Direction,
    pub(crate) number: usize,
}

impl ContextName {
    /// Its bit in a bitmap of both directions.
    fn bit(self) -> u64 {
        let first = match self.direction {
            Direction::Send => 0,
            Direction::Receive => CONTEXTS,
        };
        1 << (first + self.number)
    }

    /// The context of the lowest bit.
    fn of_bit(bits: u64) -> Option<Self> {
        let bit = bits.trailing_zeros() as usize;
        (bits != 0).then_some(ContextName {
            direction: match bit < CONTEXTS {
                true => Direction::Send,
                false => Direction::Receive,
            },
            number: bit % CONTEXTS,
        })
    }

    /// Offset of its doorbell.
    fn doorbell(self) -> usize {
        let offset = match self.direction {
            Direction::Send => send_doorbell_offset(self.number),
            Direction::Receive => receive_doorbell_offset(self.number),
        };
        offset - SEND_DOORBELLS
    }

    fn store_state<M: SharedMemory + ?Sized>(self, doorbells: &M, state: DoorbellState) {
        // Release; partner: the acquire load in `state` of another thread of this process. It
        // sees that something has changed, if the context has ended in between. The NIC reads no
        // doorbell: it stores one behind its acquire load of the command, whose release store
        // stands behind this one.
        let word = u64::from(state as u32) << 32;
        doorbells.store_u64(self.doorbell() + DOORBELL_STATE, word, Ordering::Release);
    }

    fn state<M: SharedMemory + ?Sized>(self, doorbells: &M) -> u64 {
        // Acquire: the other words and the bytes of the message stand before it (partner: the
        // NIC's release store).
        let word = doorbells.load_u64(self.doorbell() + DOORBELL_STATE, Ordering::Acquire);
        word >> 32
    }

    /// Returns true unless the NIC has the context.
    fn has_ended<M: SharedMemory + ?Sized>(self, doorbells: &M) -> bool {
        self.state(doorbells) != DoorbellState::Used as u64
    }

    /// The command that issues the operation that stands in it.
    pub(crate) fn command(self, contents: &Contents) -> Descriptor {
        let opcode = match self.direction {
            Direction::Send => Opcode::SendContext,
            Direction::Receive => Opcode::ReceiveContext,
        };
        zerocopy::transmute!(ContextCommand::new(opcode, self.number, &contents.context))
    }

    /// Stores what the operation is. Relaxed: the command's release store publishes it (partner:
    /// the NIC's acquire load of that).
    pub(crate) fn fill<M: SharedMemory + ?Sized>(self, window: &M, contents: &Contents) {
        let offset = match self.direction {
            Direction::Send => send_context_offset(self.number),
            Direction::Receive => receive_context_offset(self.number),
        };
        let context: [u64; CONTEXT_WORDS] = zerocopy::transmute!(contents.context);
        window.write_words(offset, &context.map(u64::from_le));
        let region = &contents.region[..contents.region_words];
        window.write_words(offset + size_of::<MessageContext>(), region);
    }
}

/// What stands in a context and its region.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    context: MessageContext,
    region: [u64; REGION_WORDS],
    /// Words of the region that mean something.
    region_words: usize,
}

impl Contents {
    /// Nothing in the region.
    pub(crate) fn new(context: MessageContext) -> Self {
        Contents {
            context,
            region: [0; REGION_WORDS],
            region_words: 0,
        }
    }

    /// These bytes in the region; there must be room.
    pub(crate) fn with_bytes(context: MessageContext, bytes: &[u8]) -> Self {
        let mut region = [0u8; REGION_BYTES];
        region[..bytes.len()].copy_from_slice(bytes);
        let region: [u64; REGION_WORDS] = zerocopy::transmute!(region);
        Contents {
            context,
            region: region.map(u64::from_le),
            region_words: bytes.len().div_ceil(8),
        }
    }

    /// These pages in the region; there must be room.
    pub(crate) fn with_pages(context: MessageContext, pages: &[PageDescriptor]) -> Self {
        let mut region = [PageDescriptor::default(); CONTEXT_PAGES];
        region[..pages.len()].copy_from_slice(pages);
        let region: [u64; REGION_WORDS] = zerocopy::transmute!(region);
        Contents {
            context,
            region: region.map(u64::from_le),
            region_words: REGION_WORDS,
        }
    }
}

/// What waits for the end of a context.
#[derive(Debug, Clone, Copy)]
struct Holder<K> {
    /// `None`: no request; its failure is counted.
    request: Option<K>,
    /// Pages of the pool that are free once it has ended.
    left: Option<Run>,
}

/// The end of a context.
#[derive(Debug)]
pub(crate) struct Ended<K> {
    /// Whose it was.
    pub(crate) request: Option<K>,
    /// `None`: well, and without a notice.
    pub(crate) entry: Option<CompletionEntry>,
    /// Pages of the pool that nothing else gives back.
    pub(crate) left: Option<Run>,
}

/// Which request has which context. `K` names a request.
#[derive(Debug)]
pub(crate) struct Contexts<K> {
    /// How many there are of each direction.
    count: usize,
    /// By direction, where the next look begins.
    next: [usize; 2],
    holders: [[Option<Holder<K>>; CONTEXTS]; 2],
    /// Those with a holder.
    held: u64,
    /// Those whose command was posted.
    posted: u64,
}

impl<K: Copy> Contexts<K> {
    /// So many of each direction, up to [`CONTEXTS`], all of them free.
    pub(crate) fn new(count: usize) -> Self {
        Contexts {
            count,
            next: [0; 2],
            holders: [[None; CONTEXTS]; 2],
            held: 0,
            posted: 0,
        }
    }
}

/// Returns true if the NIC has ended one of these contexts.
#[inline]
pub(crate) fn any_ended<M: SharedMemory + ?Sized>(doorbells: &M, held: u64) -> bool {
    held != 0 && any_of(doorbells, held)
}

fn any_of<M: SharedMemory + ?Sized>(doorbells: &M, held: u64) -> bool {
    let mut left = held;
    while let Some(name) = ContextName::of_bit(left) {
        if name.has_ended(doorbells) {
            return true;
        }
        left &= left - 1;
    }
    false
}

impl<K: Copy> Contexts<K> {
    /// A bitmap of the contexts that are held.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// How many there are of each direction.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes a context of a direction; `None` if all are held.
    pub(crate) fn take<M: SharedMemory + ?Sized>(
        &mut self,
        doorbells: &M,
        direction: Direction,
        request: Option<K>,
    ) -> Option<ContextName> {
        let side = direction as usize;
        let name = |step| ContextName {
            direction,
            number: (self.next[side] + step) % self.count,
        };
        let name = (0..self.count)
            .map(name)
            .find(|name| self.held & name.bit() == 0)?;
        name.store_state(doorbells, DoorbellState::Used);
        let left = None;
        self.holders[side][name.number] = Some(Holder { request, left });
        self.held |= name.bit();
        self.posted &= !name.bit();
        self.next[side] = (name.number + 1) % self.count;
        Some(name)
    }

    /// Undoes a [`Contexts::take`] whose command was not posted.
    pub(crate) fn put_back<M: SharedMemory + ?Sized>(&mut self, doorbells: &M, name: ContextName) {
        self.free(doorbells, name);
        self.next[name.direction as usize] = name.number;
    }

    /// The command of a context is in the queue.
    pub(crate) fn note_posted(&mut self, name: ContextName) {
        self.posted |= name.bit();
    }

    /// Pages of the pool stay with a context until it ends.
    pub(crate) fn leave(&mut self, name: ContextName, pages: Run) {
        if let Some(holder) = &mut self.holders[name.direction as usize][name.number] {
            holder.left = Some(pages);
        }
    }

    /// A bitmap of the contexts that the NIC may have ended.
    pub(crate) fn under_way(&self) -> u64 {
        self.held & self.posted
    }

    /// Frees the first context of a bitmap of [`Contexts::under_way`] that has ended. The bitmap
    /// keeps those behind it.
    pub(crate) fn sweep<M: SharedMemory + ?Sized>(
        &mut self,
        doorbells: &M,
        left: &mut u64,
    ) -> Option<Ended<K>> {
        while let Some(name) = ContextName::of_bit(*left) {
            *left &= *left - 1;
            let state = name.state(doorbells);
            if state == DoorbellState::Used as u64 {
                continue;
            }
            let entry = (state != DoorbellState::Free as u64).then(|| {
                let mut words = [0u64; DOORBELL_WORDS];
                doorbells.read_words(name.doorbell(), &mut words);
                zerocopy::transmute!(words.map(u64::to_le))
            });
            if let Some(Holder { request, left }) = self.free(doorbells, name) {
                return Some(Ended {
                    request,
                    entry,
                    left,
                });
            }
        }
        None
    }

    /// Frees all contexts: the NIC has dropped their operations. Hands pages that were left to
    /// `take`.
    pub(crate) fn reset<M: SharedMemory + ?Sized>(
        &mut self,
        doorbells: &M,
        mut take: impl FnMut(Run),
    ) {
        while let Some(name) = ContextName::of_bit(self.held) {
            let holder = self.free(doorbells, name);
            if let Some(pages) = holder.and_then(|holder| holder.left) {
                take(pages);
            }
        }
    }

    fn free<M: SharedMemory + ?Sized>(
        &mut self,
        doorbells: &M,
        name: ContextName,
    ) -> Option<Holder<K>> {
        name.store_state(doorbells, DoorbellState::Free);
        self.held &= !name.bit();
        self.posted &= !name.bit();
        self.holders[name.direction as usize][name.number].take()
    }
}
