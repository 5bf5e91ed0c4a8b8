//! Command queues (Q2, N12). Module [`super::awake`] decides which of them the NIC looks at.
//!
//! # Fetch
//! A non-zero first word is a command. The slot is copied once, word by word and only as far as
//! needed. Its first word is zeroed; then a protocol checks the copy. A queue is *stalled* while its
//! process has no operation to spare, or leaves too many completions unread: its next command waits
//! until an operation ends, or completions are read.
//!
//! # Malformed commands
//! The queue stops. Its status, an error record and an event say so, and nothing else is affected.
//! A command that is well formed but wrong (N11) fails alone.

use qnic_abi::command::{
    CommandFlags, CommandHeader, Descriptor, DESCRIPTOR_BYTES, INLINE_CAPACITY,
};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{Changes, AWAKE, HEAD_STEP, POLLED};
use qnic_abi::{Port, SharedMemory, Status, VniId};
use zerocopy::FromZeros;

use super::events::Pending;
use super::operation::Operation;
use super::order::Counter;
use super::scheduler::Owner;
use super::Core;
use crate::env::{Host, Time};
use crate::ids::{OperationId, PeerIndex, ProtocolId};

/// Words of a descriptor.
const DESCRIPTOR_WORDS: usize = DESCRIPTOR_BYTES / 8;

/// Words of the inline payload.
pub(crate) const INLINE_WORDS: usize = INLINE_CAPACITY / 8;

/// A command that was read, and is private now.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) descriptor: Descriptor,
    /// The node that it names, if there is a route to it.
    pub(crate) peer: Option<PeerIndex>,
    /// The inline payload, as far as the header says that there is one.
    pub(crate) inline: [u64; INLINE_WORDS],
}

/// Returns why the part of a command that is the same for all protocols is malformed,
/// if it is.
fn check_header(header: &CommandHeader) -> Result<(), Status> {
    if CommandFlags::from_bits(header.flags).is_none() {
        return Err(Status::Malformed);
    }
    match usize::from(header.inline_length) > INLINE_CAPACITY {
        true => Err(Status::BadLength),
        false => Ok(()),
    }
}

impl Default for Fetched {
    fn default() -> Self {
        Fetched {
            descriptor: Descriptor::new_zeroed(),
            peer: None,
            inline: [0; INLINE_WORDS],
        }
    }
}

impl Core {
    /// The first word of the next command of a queue, if there is one and an operation to
    /// spare for it.
    #[inline]
    pub(crate) fn next_command<H: Host>(&mut self, host: &H, vni: VniId) -> Option<u64> {
        let running = (self.limits.operations, self.limits.sends);
        let completions = self.limits.completions;
        let process = self.process_mut(vni)?;
        let sram = host.sram();
        let queue = &mut process.queue;
        if !queue.awake {
            // Pairs with the process's load behind its fence: it rings or it
            // relies on this queue being looked at from now on.
            sram.store_u64(queue.window + AWAKE, POLLED, Ordering::Release);
            queue.awake = true;
        }
        let slot = queue.slot;
        // Pairs with the process's release store: the rest of the slot is there.
        let first = sram.load_u64(slot, Ordering::Acquire);
        if first == 0 {
            return None;
        }
        if !process.has_room(first, running, completions) {
            process.queue.stalled = true;
            return None;
        }
        Some(first)
    }

    /// Reads the next command of a queue, which [`Core::next_command`] has found, into
    /// `command`, which is empty.
    ///
    /// Returns true if it is sampled, or there is a trace.
    ///
    /// # Errors
    /// Why it is malformed: its queue stops.
    #[inline]
    pub(crate) fn fetch<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
        first: u64,
        command: &mut Fetched,
    ) -> Result<bool, Status> {
        let sram = host.sram();
        let process = self.process_mut(vni).ok_or(Status::NoSuchVni)?;
        let slot = process.queue.slot;
        let mut words = [0; DESCRIPTOR_WORDS];
        words[0] = first;
        sram.read_words(slot + 8, &mut words[1..]);
        command.descriptor = zerocopy::transmute!(words.map(u64::to_le));
        let header = &command.descriptor.header;
        let checked = check_header(header);
        if checked.is_ok() && header.inline_length > 0 {
            let words = usize::from(header.inline_length).div_ceil(8);
            sram.read_words(slot + DESCRIPTOR_BYTES, &mut command.inline[..words]);
        }
        // Release pairs with the process's acquire of the head, or of this word:
        // the slot has been read when it is reused.
        sram.store_u64(slot, 0, Ordering::Release);
        process.queue.advance(now);
        let sampled = process.queue.countdown.count();
        let head = process.queue.head;
        if process.host_area.unpublished_head(head) >= HEAD_STEP {
            process.publish_head(host.memory());
            self.mark_dirty(vni);
        }
        self.counters.commands += 1;
        checked.map(|()| sampled | self.tracing.on)
    }

    /// Stops a queue after a malformed command; it is deactivated when it is idle.
    #[cold]
    pub(crate) fn fail_queue<H: Host>(&mut self, host: &H, vni: VniId, status: Status) {
        self.counters.malformed_commands += 1;
        let Some(process) = self.process_mut(vni) else {
            return;
        };
        process.queue.failed = Some(status);
        let head = process.queue.head;
        let memory = host.memory();
        // A process that sees the error sees that the queue has stopped.
        process.host_area.fail_queue(memory, status);
        process
            .host_area
            .record_error(memory, (head - 1, 0), status);
        process.host_area.publish_head(memory, head);
        process.changes = Changes::ANYTHING;
        process.write_back = true;
        self.mark_dirty(vni);
        self.events.push(Pending::QueueFailed(vni, status));
    }

    /// Begins the operation of the command that was read last from a queue. `None`: the
    /// peer is unknown, so it has to be given up at once.
    ///
    /// There is an operation to spare, as [`Core::fetch`] has looked. `ready`: it can send a frame at
    /// once.
    pub(crate) fn begin(
        &mut self,
        (vni, protocol): (VniId, ProtocolId),
        (counter, ready): (Counter, bool),
        header: &CommandHeader,
        peer: Option<PeerIndex>,
    ) -> Option<OperationId> {
        let traced = self.tracing.on;
        self.running_number += 1;
        let running = self.running_number;
        let process = self.process_mut(vni)?;
        let publish = header.flags & CommandFlags::PUBLISH.bits() != 0;
        let number = process.queue.head - 1;
        let order = process.lanes.start(header.lane, counter, publish);
        let operation = Operation {
            protocol,
            number,
            counter,
            lane: header.lane,
            order,
            peer: peer.unwrap_or_default(),
            remote_port: Port(header.remote_port.get()),
            sampled: process.queue.countdown.is_chosen() | traced,
            ..Operation::default()
        };
        let name = |slot| OperationId::new(running, vni, slot);
        let id = process.operations.begin(operation, ready, name)?;
        if ready && !process.scheduled {
            process.scheduled = true;
            self.scheduled.push_back(Owner::Process(vni));
        }
        if operation.sampled {
            self.attach_sample(id);
        }
        Some(id)
    }

    /// Lets an operation that has begun end with a completion of its own.
    #[cold]
    pub(crate) fn set_handle(&mut self, id: OperationId, handle: u64) {
        if let Some(operation) = self.operation(id) {
            operation.handle = handle;
        }
    }
}
