//! From the inbox of a port to its receive queues.
//!
//! ```text
//!   inbox ─► queue of the flow: waiting frames ─► chains of the guest
//!                                     ▲ held: chains that do not suffice yet for the first frame
//! ```
//! A frame may take several chains (if the driver merges them). What it has taken already is held
//! until there are enough: the driver kicks when it adds more. A queue that stops gives its chains
//! back, so that the driver finds them where they were.
//!
//! A stock driver adds chains only when half of its ring is used: one that needs more would wait for
//! ever, and all behind it. A segment that half of the ring might not hold is divided.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use qnic_links::ethernet::{EthernetFrame, Offloads};
use vhost_user_backend::{VringRwLock, VringState, VringT};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddressSpace, GuestMemoryLoadGuard, GuestMemoryMmap};
use zerocopy::IntoBytes;

use super::header::{Header, HEADER_BYTES};
use super::{EthernetPort, Memory};

type Guard = GuestMemoryLoadGuard<GuestMemoryMmap>;

/// Frames that wait for the chains of one queue; what comes then is dropped, so that a processor of the
/// guest that stands still does not hold up the others.
const WAITING: usize = 256;

/// Chains of one frame: as many as the longest one takes with the buffers of stock drivers, and more.
const MOST_CHAINS: usize = 256;

/// Bytes of a chain of a driver that merges, at the least (virtio 1.2 §5.1.6.3.1).
const CHAIN_BYTES: usize = 1526;

/// The receive queues of a port.
pub(super) struct Receiver(Vec<ReceiveQueue>);

#[derive(Default)]
struct ReceiveQueue {
    waiting: VecDeque<EthernetFrame>,
    held: Vec<DescriptorChain<Guard>>,
    /// Bytes that the guest has in `held`.
    held_bytes: usize,
    /// The queue, once it was served.
    vring: Option<VringRwLock<Memory>>,
}

impl Receiver {
    pub(super) fn new(pairs: usize) -> Self {
        Receiver((0..pairs).map(|_| ReceiveQueue::default()).collect())
    }

    /// A queue has stopped: its chains are the driver's again, and what waits is dropped.
    pub(super) fn stop(&mut self, queue: usize) {
        let Some(queue) = self.0.get_mut(queue) else {
            return;
        };
        let stopped = std::mem::take(queue);
        if let Some(vring) = stopped.vring {
            let mut state = vring.get_mut();
            for _ in stopped.held {
                state.get_queue_mut().go_to_previous_position();
            }
        }
    }

    /// Gives the guest what has arrived, as far as it has chains. `vrings` are its receive queues, of which it
    /// uses so many as `pairs` says: what comes after the answer that has changed it is dealt to these.
    pub(super) fn serve(
        &mut self,
        port: &EthernetPort,
        memory: &Memory,
        vrings: &[VringRwLock<Memory>],
        (pairs, offloads, mergeable): (&AtomicUsize, Offloads, bool),
        ended: &AtomicBool,
    ) {
        let vrings = &vrings[..vrings.len().min(self.0.len())];
        let started = |pairs: usize| -> Vec<_> {
            let used = 0..vrings.len().min(pairs);
            used.filter(|index| is_started(&vrings[*index].get_ref()))
                .collect()
        };
        // Relaxed: a frame that was sent after the answer is behind it by the lock of the inbox.
        let mut used = pairs.load(Ordering::Relaxed);
        let mut enabled = started(used);
        loop {
            let mut taken = 0;
            while let Some(frame) = (taken < WAITING).then(|| port.inbox.take()).flatten() {
                taken += 1;
                let now = pairs.load(Ordering::Relaxed);
                if now != used {
                    (used, enabled) = (now, started(now));
                }
                // The guest has not started the port, or has stopped it.
                let Some(index) = queue_of(&frame, &enabled) else {
                    port.inbox.count_overflow();
                    continue;
                };
                let waiting = &mut self.0[index].waiting;
                if waiting.len() >= WAITING {
                    port.inbox.count_overflow();
                    continue;
                }
                let entries = vrings[index].get_ref().get_queue().size();
                let whole = !mergeable || fits_half(&frame, entries);
                let offloads = if whole { offloads } else { Offloads::NONE };
                // What cannot be divided was refused where it was sent.
                let _ = frame.finish(offloads, |frame| waiting.push_back(frame));
            }
            for index in &enabled {
                self.0[*index].give(memory, &vrings[*index], mergeable);
            }
            if taken == 0 || ended.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

impl ReceiveQueue {
    /// Gives the guest what waits, as far as it has chains.
    fn give(&mut self, memory: &Memory, vring: &VringRwLock<Memory>, mergeable: bool) {
        self.vring.get_or_insert_with(|| vring.clone());
        let memory = memory.memory();
        let mut state = vring.get_mut();
        if !is_started(&state) {
            return;
        }
        let mut given = false;
        let mut held = usize::MAX;
        while let Some(frame) = self.waiting.front() {
            let queue = state.get_queue_mut();
            let wanted = HEADER_BYTES + frame.bytes().len();
            // Of a ring that the driver has broken nothing can be taken.
            let _ = queue.disable_notification(&*memory);
            if self.collect(queue, &memory, wanted, mergeable) {
                if let Some(frame) = self.waiting.pop_front() {
                    given |= self.write(queue, &memory, &frame);
                }
            } else {
                let more = queue.enable_notification(&*memory).unwrap_or(false);
                // A ring that has more and gives none is broken.
                if !more || self.held.len() == held {
                    break;
                }
                held = self.held.len();
            }
        }
        let must_signal = state
            .get_queue_mut()
            .needs_notification(&*memory)
            .unwrap_or(false);
        if given && must_signal {
            let _ = state.signal_used_queue();
        }
    }

    /// Takes chains until they have `wanted` bytes. Returns false if the guest has too few.
    fn collect(
        &mut self,
        queue: &mut Queue,
        memory: &Guard,
        wanted: usize,
        mergeable: bool,
    ) -> bool {
        while self.held_bytes < wanted {
            // A driver that does not merge gives each frame one chain, which has room for it.
            let is_full = self.held.len() >= if mergeable { MOST_CHAINS } else { 1 };
            if is_full {
                return true;
            }
            let Some(chain) = queue.pop_descriptor_chain(memory.clone()) else {
                return false;
            };
            let room = chain
                .clone()
                .writer(memory)
                .map_or(0, |it| it.available_bytes());
            self.held_bytes += room;
            self.held.push(chain);
        }
        true
    }

    /// Writes a frame into the held chains and gives them to the driver. What has no room in them is
    /// dropped. Returns true if the driver has got any.
    fn write(&mut self, queue: &mut Queue, memory: &Guard, frame: &EthernetFrame) -> bool {
        let held = std::mem::take(&mut self.held);
        let room = std::mem::take(&mut self.held_bytes);
        let header = Header::of(frame.left(), held.len() as u16);
        let image = [header.as_bytes(), frame.bytes()].concat();
        let mut rest = &image[..];
        let fits = room >= image.len();
        let mut given = false;
        for chain in held {
            let head = chain.head_index();
            let mut written = 0;
            if let (true, Ok(mut writer)) = (fits, chain.writer(memory)) {
                let (now, later) = rest.split_at(rest.len().min(writer.available_bytes()));
                if writer.write_all(now).is_ok() {
                    (rest, written) = (later, now.len());
                }
            }
            given |= queue.add_used(&**memory, head, written as u32).is_ok();
        }
        given
    }
}

fn is_started(state: &VringState<Memory>) -> bool {
    state.is_enabled() && state.get_queue().ready()
}

/// Returns true if half of a ring of so many entries holds a frame, however small its chains are.
fn fits_half(frame: &EthernetFrame, entries: u16) -> bool {
    HEADER_BYTES + frame.bytes().len() <= usize::from(entries / 2) * CHAIN_BYTES
}

/// The queue of a frame, of those that are enabled: the same for all frames of a flow.
fn queue_of(frame: &EthernetFrame, enabled: &[usize]) -> Option<usize> {
    // Addresses and ports of IPv4 and IPv6 without options are in front of that.
    let bytes = frame.bytes();
    let flow = &bytes[12..bytes.len().min(58)];
    let hash = match flow {
        [0x08, 0, 0x45, ..] if flow.len() >= 26 => fnv(&flow[14..26]),
        [0x86, 0xdd, ..] if flow.len() >= 46 => fnv(&flow[10..46]),
        _ => 0,
    };
    match enabled.len() {
        0 => None,
        count => Some(enabled[hash as usize % count]),
    }
}

fn fnv(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().fold(0x811c_9dc5, step);
    hash ^ hash >> 16
}
