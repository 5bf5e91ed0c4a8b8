//! Reading commands (Q2, N12), and the set of queues that are worth looking at.
//!
//! # Hot set
//! The NIC polls only the command queues of *hot* VNIs, so its cost does not
//! depend on how many processes are registered (P9). A doorbell, and data or a
//! notification that arrives, make a VNI hot; `AWAKE` is stored before the queue
//! is looked at. A queue without a command for [`crate::Limits::cool_after`]
//! becomes cold again, by the protocol of [`qnic_abi::window`]: `AWAKE` = 0, full
//! fence, one more look.
//!
//! # Fetch
//! A non-zero first word is a command. The slot is copied once, word by word and
//! only as far as needed; its first word is zeroed; then the copy is checked. A
//! queue whose process has no operation to spare is *stalled*: it stays as it is
//! until an operation ends.
//!
//! # Malformed commands
//! The queue stops: status, error record and event say so, and nothing else is
//! affected. A command that is well formed but wrong (N11) fails alone.

use qnic_abi::command::Opcode;
use qnic_abi::shared::Ordering;
use qnic_abi::window::{AWAKE, HEAD_STEP, SIGNAL_WAKE_REQUEST, WAKE_REQUEST};
use qnic_abi::{Access, Key, SharedMemory, Status, VniId};

use crate::command::{descriptor, Command, DESCRIPTOR_WORDS, INLINE_WORDS};
use crate::env::{Host, Time};
use crate::event::Pending;
use crate::nic::Nic;
use crate::operation::OperationId;
use crate::segment::PageKey;

impl Nic {
    /// Puts a VNI into the hot set, or keeps it there.
    pub(crate) fn heat(&mut self, vni: VniId, now: Option<Time>) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let queue = &mut process.queue;
        if let Some(now) = now {
            queue.last_work = now;
        }
        if !queue.hot && queue.failed.is_none() {
            queue.hot = true;
            self.hot.push(vni);
        }
    }

    fn heat_rung(&mut self, now: Time) {
        let mut rung = std::mem::take(&mut self.rung);
        let doorbells = self.config.doorbells.max(1) as usize;
        while rung != 0 {
            let bit = rung.trailing_zeros() as usize;
            rung &= rung - 1;
            for doorbell in (bit..doorbells).step_by(64) {
                for vni in (doorbell..self.processes.len()).step_by(doorbells) {
                    self.heat(VniId(vni as u16), Some(now));
                }
            }
        }
    }

    /// Reads commands of all hot VNIs; cools those that had none for long enough.
    pub(crate) fn fetch_hot<H: Host>(&mut self, now: Time, host: &H) -> bool {
        if self.rung != 0 {
            self.heat_rung(now);
        }
        let cool_after = self.config.limits.cool_after;
        let mut busy = false;
        let mut idle = false;
        let mut place = 0;
        // What is started here may make another VNI hot.
        while let Some(vni) = self.hot.get(place).copied() {
            place += 1;
            busy |= self.fetch(now, host, vni);
            let process = self.process(vni);
            idle |= process.is_some_and(|process| process.queue.last_work.after(cool_after) <= now);
        }
        if idle {
            busy |= self.cool(host, Some(now));
        }
        busy
    }

    fn fetch<H: Host>(&mut self, now: Time, host: &H, vni: VniId) -> bool {
        let limit = self.config.limits.commands_per_poll.max(1);
        let mut commands = 0;
        while commands < limit && self.fetch_one(now, host, vni) {
            commands += 1;
        }
        commands > 0
    }

    /// Takes the next command of a queue, if there is one and an operation to
    /// spare for it.
    fn fetch_one<H: Host>(&mut self, now: Time, host: &H, vni: VniId) -> bool {
        let operations = self.config.limits.operations;
        let Some(process) = self.process(vni) else {
            return false;
        };
        let sram = host.sram();
        let queue = &mut process.queue;
        if !queue.awake {
            // Pairs with the process's load behind its fence: it rings or it
            // relies on this queue being looked at from now on.
            sram.store_u64(queue.window + AWAKE, 1, Ordering::Release);
            queue.awake = true;
        }
        let slot = queue.slot;
        // Pairs with the process's release store: the rest of the slot is there.
        let first = sram.load_u64(slot, Ordering::Acquire);
        if first == 0 {
            return false;
        }
        if !process.has_room(operations) {
            process.queue.stalled = true;
            return false;
        }
        let mut words = [0; DESCRIPTOR_WORDS];
        words[0] = first;
        sram.read_words(slot + 8, &mut words[1..]);
        let command = Command::try_from(&descriptor(words));
        let mut inline = [0; INLINE_WORDS];
        if let Ok(Command {
            inline: true,
            length,
            ..
        }) = command
        {
            let words = (length as usize).div_ceil(8);
            sram.read_words(slot + 8 * DESCRIPTOR_WORDS, &mut inline[..words]);
        }
        // Release pairs with the process's acquire of the head, or of this word:
        // the slot has been read when it is reused.
        sram.store_u64(slot, 0, Ordering::Release);
        process.queue.advance(now);
        let head = process.queue.head;
        if process.host_area.unpublished_head(head) >= HEAD_STEP {
            process.changed |= process.host_area.publish_head(host.memory(), head);
            self.touch(vni);
        }
        self.counters.commands += 1;
        match command {
            Ok(command) => self.issue(host, vni, &command, &inline),
            Err(status) => self.fail_queue(host, vni, status),
        }
        true
    }

    /// Stops a queue; it leaves the hot set when it has cooled.
    fn fail_queue<H: Host>(&mut self, host: &H, vni: VniId, status: Status) {
        self.counters.malformed_commands += 1;
        let Some(process) = self.process(vni) else {
            return;
        };
        process.queue.failed = Some(status);
        let head = process.queue.head;
        let memory = host.memory();
        // Who sees the error sees that the queue has stopped.
        process.host_area.fail_queue(memory, status);
        process.host_area.record_error(memory, head - 1, status);
        process.host_area.publish_head(memory, head);
        process.changed = true;
        process.publish = true;
        self.touch(vni);
        self.events.push(Pending::QueueFailed(vni, status));
    }

    /// Starts a command; one that is wrong fails at once, in its order.
    fn issue<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        command: &Command,
        inline: &[u64; INLINE_WORDS],
    ) {
        let node = command.remote.node;
        let peer = self.peers.find_or_add(node, &self.config.limits);
        self.running_number += 1;
        let running = self.running_number;
        let Some(process) = self.process(vni) else {
            return;
        };
        let Some(slot) = process.operations.allocate() else {
            return;
        };
        let id = OperationId::new(running, vni, slot);
        let number = process.queue.head - 1;
        let checked = check_transfer(process, command);
        let operation = process.operations.get_mut(slot);
        operation.begin(id, number, *command);
        match command.opcode {
            Opcode::Write => {
                operation.order = process.writes.start(command.publish);
                operation.stream = process.streams.join(command.remote.node, slot);
                if command.inline {
                    operation.inline = *inline;
                }
            }
            Opcode::Read | Opcode::Atomic => operation.order = process.reads.start(command.publish),
        }
        let checked = checked.and_then(|page_key| match peer {
            Some(peer) => Ok((page_key, peer)),
            None => Err(Status::NoSuchNode),
        });
        match checked {
            Ok((page_key, peer)) => {
                operation.page_key = page_key;
                operation.peer = peer;
                self.reconsider(host, vni, slot);
            }
            Err(status) => {
                self.counters.refused(status);
                self.fail_operation(host, vni, slot, status);
            }
        }
    }

    /// Takes VNIs out of the hot set: all, or those that are idle at `now`.
    /// Returns whether one of them had a command after all, or must be woken.
    pub(crate) fn cool<H: Host>(&mut self, host: &H, now: Option<Time>) -> bool {
        let sram = host.sram();
        let cool_after = self.config.limits.cool_after;
        let mut cooling = std::mem::take(&mut self.hot);
        cooling.retain(|vni| {
            let process = self.processes[usize::from(vni.0)].as_deref();
            let last = process.map_or(Time::default(), |process| process.queue.last_work);
            let cools = now.is_none_or(|now| last.after(cool_after) <= now);
            if !cools {
                self.hot.push(*vni);
            }
            cools
        });
        for vni in &cooling {
            if let Some(process) = self.process(*vni) {
                process.queue.hot = false;
                process.queue.awake = false;
                process.publish = true;
                sram.store_u64(process.queue.window + AWAKE, 0, Ordering::Relaxed);
                let head = process.queue.head;
                process.changed |= process.host_area.publish_head(host.memory(), head);
                self.touch(*vni);
            }
        }
        // Pairs with the process's fence between its command and its load of
        // AWAKE: one of the two sees the other's store.
        sram.fence();
        let mut found = false;
        for vni in &cooling {
            if self.has_command(host, *vni) {
                self.heat(*vni, None);
                found = true;
            }
        }
        found
    }

    fn has_command<H: Host>(&mut self, host: &H, vni: VniId) -> bool {
        let operations = self.config.limits.operations;
        let Some(process) = self.process(vni) else {
            return false;
        };
        process.queue.stalled = !process.has_room(operations);
        let slot = process.queue.slot;
        !process.queue.stalled && host.sram().load_u64(slot, Ordering::Relaxed) != 0
    }

    /// Tells all processes that the NIC stops looking at their queues, and looks
    /// once more. `true`: sleep until a doorbell, a control request, a frame or
    /// [`Nic::next_deadline`]. `false`: there is work, or an event, after all.
    pub fn prepare_sleep<H: Host>(&mut self, host: &H) -> bool {
        if !self.is_running() {
            return true;
        }
        if self.rung != 0 || !self.scheduled.is_empty() || self.peers.has_output(Time::default()) {
            return false;
        }
        if !self.hot.is_empty() && self.cool(host, None) {
            return false;
        }
        let events = self.has_event();
        self.publish(host);
        events == self.has_event()
    }

    /// Notes that a process has something to publish.
    pub(crate) fn touch(&mut self, vni: VniId) {
        if let Some(process) = self.process(vni) {
            if !process.touched {
                process.touched = true;
                self.touched.push(vni);
            }
        }
    }

    /// Publishes completions that are due, then wakes processes that asked for it.
    #[inline]
    pub(crate) fn publish<H: Host>(&mut self, host: &H) -> bool {
        let touched = !self.touched.is_empty();
        if touched {
            self.publish_touched(host);
        }
        touched
    }

    fn publish_touched<H: Host>(&mut self, host: &H) {
        let mut touched = std::mem::take(&mut self.touched);
        let mut changed = false;
        for vni in &touched {
            if let Some(process) = self.process(*vni) {
                process.touched = false;
                process.publish_completions(host.memory());
                changed |= process.changed;
            }
        }
        if changed {
            // Pairs with the process's fence between its wake request and its
            // last look at the host area.
            host.sram().fence();
            for vni in &touched {
                self.offer_wake(host, *vni);
            }
        }
        touched.clear();
        self.touched = touched;
    }

    fn offer_wake<H: Host>(&mut self, host: &H, vni: VniId) {
        let Some(process) = self.process(vni) else {
            return;
        };
        let changed = std::mem::take(&mut process.changed);
        let signalled = std::mem::take(&mut process.signalled);
        let mut asked = false;
        let words = [(WAKE_REQUEST, changed), (SIGNAL_WAKE_REQUEST, signalled)];
        for ((word, happened), seen) in words.into_iter().zip(&mut process.wakes_seen) {
            if happened {
                let word = process.queue.window + word;
                let request = host.sram().load_u64(word, Ordering::Acquire);
                asked |= std::mem::replace(seen, request) != request;
            }
        }
        if asked && !std::mem::replace(&mut process.wake_queued, true) {
            self.events.push(Pending::Wake(vni));
        }
    }
}

/// Checks what a command says of its own side (N11), and that the remote range
/// does not wrap around. Returns how the local pages are found.
fn check_transfer(process: &crate::process::Process, command: &Command) -> Result<PageKey, Status> {
    let remote_end = command.remote.address.checked_add(command.length);
    remote_end.ok_or(Status::BadAddress)?;
    if !command.has_local() {
        return Ok(PageKey::Table(Key(0)));
    }
    let local = &command.local;
    let segment = process.segments.authorise(
        local.segment,
        local.key,
        Access::empty(),
        local.address,
        command.length,
    )?;
    Ok(segment.page_key)
}
