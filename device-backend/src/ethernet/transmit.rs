//! From a transmit queue to the engine.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use qnic_abi::ethernet::{Ethernet, MAX_ETHERNET};
use qnic_links::ethernet::{parts, MAX_PARTS};
use vhost_user_backend::{VringRwLock, VringT};
use virtio_queue::{DescriptorChain, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryLoadGuard, GuestMemoryMmap};
use zerocopy::{FromZeros, IntoBytes};

use super::header::Header;
use super::{EthernetPort, Memory};

/// Chains that are taken at once: the engine takes one batch of a port at a time.
const BATCH: usize = 64;

/// Parts that the frames of a batch may be divided into, but for the last one: what a batch costs the
/// engine is bounded. A frame to a group is copied to each other port, and counts as so many.
const PARTS: usize = 256;
const GROUP: usize = 64;

/// A frame, and what is left to do with it.
type Sent = (Ethernet, Vec<u8>);

/// Sends what waits in these queues, a batch of each in turn, until `ended`. An error is that of an
/// engine that has ended.
pub(super) fn transmit(
    port: &EthernetPort,
    memory: &Memory,
    vrings: &[VringRwLock<Memory>],
    ended: &AtomicBool,
) -> io::Result<()> {
    // Of each queue, whether its driver has said that there is more.
    let mut said_more = vec![false; vrings.len()];
    loop {
        let mut has_more = false;
        for (vring, said_more) in vrings.iter().zip(&mut said_more) {
            let batch = take(memory, vring);
            // A ring that has more and gives none is broken: it gets no answer until its next kick.
            let is_broken = *said_more && batch.chains == 0;
            *said_more = batch.has_more;
            has_more |= batch.has_more && !is_broken;
            if !batch.frames.is_empty() {
                let (slot, frames) = (port.slot, batch.frames);
                let sent = port
                    .engine
                    .ask(move |engine| engine.send_ethernet(slot, frames));
                sent.map_err(io::Error::other)?;
            }
        }
        if !has_more || ended.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

/// What was taken out of a queue.
#[derive(Default)]
struct Batch {
    frames: Vec<Sent>,
    chains: usize,
    /// If not, the driver kicks when it adds one.
    has_more: bool,
}

/// Takes some frames out of a queue.
fn take(memory: &Memory, vring: &VringRwLock<Memory>) -> Batch {
    let memory = memory.memory();
    let mut batch = Batch::default();
    // Held for one batch: the front end can stop the queue between two of them.
    let mut state = vring.get_mut();
    if !state.is_enabled() || !state.get_queue().ready() {
        return batch;
    }
    let queue = state.get_queue_mut();
    // Of a ring that the driver has broken nothing can be taken.
    let _ = queue.disable_notification(&*memory);
    let mut all_parts = 0;
    while batch.chains < BATCH && all_parts < PARTS {
        let Some(chain) = queue.pop_descriptor_chain(memory.clone()) else {
            break;
        };
        batch.chains += 1;
        let head = chain.head_index();
        if let Some(frame) = read(&memory, chain) {
            all_parts += cost(&frame);
            batch.frames.push(frame);
        }
        if queue.add_used(&*memory, head, 0).is_err() {
            return batch;
        }
    }
    let must_signal = batch.chains > 0 && queue.needs_notification(&*memory).unwrap_or(false);
    let is_full = batch.chains == BATCH || all_parts >= PARTS;
    batch.has_more = is_full || queue.enable_notification(&*memory).unwrap_or(false);
    if must_signal {
        let _ = state.signal_used_queue();
    }
    batch
}

/// Parts of a frame, or copies. One with too many parts is refused, and costs nothing.
fn cost((left, bytes): &Sent) -> usize {
    match bytes.first() {
        Some(first) if first & 1 == 1 => GROUP,
        _ => parts(left, bytes.len()).min(MAX_PARTS),
    }
}

/// The frame of a chain. `None`: there is none in it.
fn read(
    memory: &GuestMemoryLoadGuard<GuestMemoryMmap>,
    chain: DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>,
) -> Option<Sent> {
    let mut reader = chain.reader(memory).ok()?;
    let mut header = Header::new_zeroed();
    reader.read_exact(header.as_mut_bytes()).ok()?;
    let length = reader.available_bytes();
    if length > MAX_ETHERNET {
        return None;
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).ok()?;
    Some((header.left_to_do(), bytes))
}
