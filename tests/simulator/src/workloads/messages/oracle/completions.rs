//! What the NIC's store of a completion says, checked at that instant.

use qnic_abi::context::DoorbellState;
use qnic_abi::host_area::{CompletionEntry, CompletionKind, COMPLETION_MORE};
use qnic_abi::{Status, PAGE_SIZE};

use super::items::{How, Message, Receive, Taken};
use super::{bytes_of, MessageOracle};

/// Longest message that one frame may carry.
const SHORT: u64 = PAGE_SIZE as u64;

impl MessageOracle {
    /// A NIC has stored a word of a host area.
    pub(super) fn word_stored(&mut self, slot: usize, offset: usize, value: u64, now: u64) {
        let process = &mut self.processes[slot];
        let mut entries = process.watched.completions(offset, value);
        if let Some((name, entry)) = process.watched.doorbell(offset, value) {
            entries.push(self.of_context(slot, name, entry));
        }
        for entry in entries {
            let status = Status::try_from(entry.status.get()).expect("a known status");
            let process = &mut self.processes[slot];
            let number = process.ends;
            process.ends += 1;
            match CompletionKind::try_from(entry.kind) {
                Ok(CompletionKind::Send) => self.sent(slot, &entry, status),
                Ok(CompletionKind::Receive) if entry.immediate.get() == 0 => {
                    self.ended(slot, (number, now), &entry, status);
                }
                Ok(CompletionKind::Receive) => {
                    self.received(slot, (number, now), &entry, status);
                }
                Ok(CompletionKind::Probe) if status == Status::Ok => {
                    self.found(slot, (number, now), &entry);
                }
                Ok(CompletionKind::Probe) => self.ended(slot, (number, now), &entry, status),
                // No message worker is in a group.
                kind => panic!("process {slot}: a completion of kind {kind:?}"),
            }
        }
    }

    /// The completion that a doorbell stands for: one of the message or receive of its context.
    fn of_context(
        &mut self,
        slot: usize,
        (receives, number): (bool, usize),
        entry: CompletionEntry,
    ) -> CompletionEntry {
        let held = self.processes[slot].contexts[usize::from(receives)][number].take();
        let Some((handle, notify)) = held else {
            panic!("process {slot}: a context ends that is not under way: {entry:?}");
        };
        let kind = match receives {
            true => CompletionKind::Receive,
            false => CompletionKind::Send,
        };
        assert!(
            entry.kind == kind as u8 && entry.handle.get() == number as u64,
            "process {slot}: the doorbell of context {number} is another one's: {entry:?}"
        );
        let told = notify || entry.status.get() != Status::Ok.code();
        let state = if told {
            DoorbellState::Done
        } else {
            DoorbellState::Free
        };
        assert_eq!(
            entry.state.get(),
            state as u32,
            "process {slot}: the state of context {number}: {entry:?}"
        );
        CompletionEntry {
            handle: handle.into(),
            ..entry
        }
    }

    /// A Send has ended.
    fn sent(&mut self, slot: usize, entry: &CompletionEntry, status: Status) {
        let id = entry.handle.get();
        let open = self.processes[slot].sends.remove(&id);
        assert!(open, "process {slot}: Send {id} ends, but is not under way");
        self.processes[slot].memory.release(id);
        let message = &self.messages[&id];
        let to = self.name(message.to);
        let named = (entry.node.get(), entry.port.get()) == to || message.wrong.is_some();
        let (space, _) = message.space;
        assert!(
            named
                && entry.tag.get() == message.tag
                && entry.length.get() == message.length
                && entry.endpoint.get() == space,
            "process {slot}: the completion of Send {id} is another one's: {entry:?}"
        );
        match status {
            Status::Ok | Status::Truncated => assert_eq!(
                message.wrong, None,
                "process {slot}: Send {id} must fail and has not: {message:?}"
            ),
            status => assert!(
                self.may_fail(message, status),
                "process {slot}: Send {id} fails for no reason: {status}; {message:?}"
            ),
        }
        if let Some(message) = self.messages.get_mut(&id) {
            message.sent = Some(status);
            // Its receive fails for the same reason.
            message.disturbed |= status == Status::PeerGone;
        }
        self.check_truncated(id);
    }

    /// Both ends learn of a message that was truncated; the sender of a short one, or of one that
    /// was staged, may not.
    fn check_truncated(&self, id: u64) {
        let message = &self.messages[&id];
        let (Some(sent), Some(received)) = (message.sent, message.received) else {
            return;
        };
        let fits = match (sent, received) {
            (Status::Truncated, received) => received == Status::Truncated,
            (Status::Ok, Status::Truncated) => message.length <= SHORT || self.may_be_staged(id),
            _ => true,
        };
        assert!(
            fits || message.disturbed,
            "message {id} is {sent} for its sender and {received} for its receiver: {message:?}"
        );
    }

    /// Returns false if the receive of a message was surely posted before it: by the process that
    /// has sent it to itself.
    fn may_be_staged(&self, id: u64) -> bool {
        let message = &self.messages[&id];
        let mut receives = self.processes[message.to].receives.iter();
        let has = |it: &Receive| it.taken.iter().any(|taken| taken.id == id);
        let takes = |it: &&Receive| !it.how.probes() && has(it);
        let posted_before = receives.find(takes).is_some_and(|it| it.handle < id);
        message.from != message.to || !posted_before
    }

    fn receive(&mut self, slot: usize, entry: &CompletionEntry) -> (usize, Receive) {
        let handle = entry.handle.get();
        let process = &mut self.processes[slot];
        let Some(index) = process.handles.get(&handle).copied() else {
            panic!("process {slot}: a receive ends that was never posted: {entry:?}");
        };
        let receive = process.receives[index].clone();
        let probes = entry.kind == CompletionKind::Probe as u8;
        assert_eq!(
            probes,
            receive.how.probes(),
            "process {slot}: receive {handle}: the kind of its completion"
        );
        assert!(
            receive.how.claimed().is_some() || entry.endpoint.get() == receive.pattern.space.0,
            "process {slot}: receive {handle}: the endpoint"
        );
        (index, receive)
    }

    /// A receive has ended without a message.
    fn ended(
        &mut self,
        slot: usize,
        (number, now): (u64, u64),
        entry: &CompletionEntry,
        status: Status,
    ) {
        let (index, receive) = self.receive(slot, entry);
        let handle = receive.handle;
        assert!(
            receive.end.is_none(),
            "process {slot}: receive {handle} ends twice: {status}; {receive:?}"
        );
        assert!(
            self.may_end(slot, &receive, status, now),
            "process {slot}: receive {handle} ends for no reason: {status}; {receive:?}"
        );
        let process = &mut self.processes[slot];
        process.receives[index].end = Some(number);
        process.receives[index].ended = now;
        if !receive.many {
            process.memory.release(handle);
        }
    }

    /// A receive has taken a message.
    fn received(
        &mut self,
        slot: usize,
        (number, now): (u64, u64),
        entry: &CompletionEntry,
        status: Status,
    ) {
        let (index, mut receive) = self.receive(slot, entry);
        let (handle, id) = (receive.handle, entry.immediate.get());
        let Some(message) = self.messages.get(&id).cloned() else {
            panic!("process {slot}: receive {handle} gets message {id}, which was never sent");
        };
        self.check_envelope(slot, entry, &receive, &message);
        if receive.how == How::Dropped(id) {
            return self.dropped(slot, (index, number, now), id, status);
        }
        let offset = entry.offset.get();
        let allowed = message.length.min(receive.range.1 - offset);
        let full = allowed < message.length || offset + allowed == receive.range.1;
        let more = entry.flags & COMPLETION_MORE != 0;
        assert_eq!(
            more,
            receive.many && !full,
            "process {slot}: receive {handle} stays posted, or does not: {entry:?}"
        );
        assert!(
            receive.many || receive.end.is_none(),
            "process {slot}: receive {handle} ends twice: {status}; {receive:?}"
        );
        let overlaps = receive.taken.iter().any(|other| {
            let (start, length) = other.range;
            start < offset + allowed && offset < start + length
        });
        assert!(
            !overlaps,
            "process {slot}: two messages share memory: {receive:?}"
        );
        let range = (receive.range.0 + offset, allowed);
        self.check_bytes(slot, (id, &message), &receive, status, range);
        receive.taken.push(Taken {
            id,
            range: (offset, allowed),
            completion: number,
            time: now,
        });
        if !more {
            receive.end = Some(number);
            receive.ended = now;
        }
        let (many, by_context) = (receive.many, receive.context.is_some());
        let process = &mut self.processes[slot];
        process.receives[index] = receive;
        if !many {
            process.memory.release(handle);
        }
        if let Some(message) = self.messages.get_mut(&id) {
            message.received = Some(status);
            message.gone = now;
            message.gone_by_context = by_context;
        }
        self.check_truncated(id);
    }

    /// A probe has found a message.
    fn found(&mut self, slot: usize, (number, now): (u64, u64), entry: &CompletionEntry) {
        let (index, mut receive) = self.receive(slot, entry);
        let (handle, id) = (receive.handle, entry.immediate.get());
        let Some(message) = self.messages.get(&id).cloned() else {
            panic!("process {slot}: probe {handle} finds message {id}, which was never sent");
        };
        assert!(
            receive.end.is_none(),
            "process {slot}: probe {handle} ends twice: {receive:?}"
        );
        let claims = matches!(receive.how, How::Claim(_));
        let envelope = CompletionEntry {
            // The number of what is claimed stands there.
            offset: if claims { 0.into() } else { entry.offset },
            ..*entry
        };
        self.check_envelope(slot, &envelope, &receive, &message);
        receive.end = Some(number);
        receive.taken.push(Taken {
            id,
            range: (0, 0),
            completion: number,
            time: now,
        });
        let how = receive.how;
        self.processes[slot].receives[index] = receive;
        if let Some(message) = self.messages.get_mut(&id) {
            message.claimed = claims;
            if let How::Discard(_) = how {
                message.received = Some(Status::Truncated);
                message.gone = now;
            }
        }
        self.check_truncated(id);
    }

    /// A claimed message was discarded.
    fn dropped(
        &mut self,
        slot: usize,
        (index, number, now): (usize, u64, u64),
        id: u64,
        status: Status,
    ) {
        assert_eq!(status, Status::Ok, "process {slot}: {id} is not discarded");
        self.processes[slot].receives[index].end = Some(number);
        if let Some(message) = self.messages.get_mut(&id) {
            message.received = Some(Status::Truncated);
            message.gone = now;
        }
        self.check_truncated(id);
    }

    /// The message is one that this receive may have, and no other has had.
    fn check_envelope(
        &self,
        slot: usize,
        entry: &CompletionEntry,
        receive: &Receive,
        message: &Message,
    ) {
        let (handle, id) = (receive.handle, entry.immediate.get());
        let source = self.name(message.from);
        assert_eq!(entry.mark.get(), id as u32, "process {slot}: message {id}");
        let from = entry.incarnation.get();
        assert_eq!(from, message.ends.0, "process {slot}: message {id}");
        assert!(
            message.named == 0 || message.named == self.incarnation(slot),
            "process {slot}: message {id} was for another incarnation: {message:?}"
        );
        // A doorbell may be stored before the completion of a probe that has looked.
        let looked = matches!(receive.how, How::Look(_))
            && message.gone_by_context
            && message.gone >= receive.issued;
        assert!(
            message.received.is_none() || looked,
            "process {slot}: message {id} is delivered twice: {message:?}"
        );
        assert!(
            message.wrong.is_none(),
            "process {slot}: message {id}, which must fail, is received: {message:?}"
        );
        assert_eq!(message.to, slot, "message {id} goes to another process");
        assert!(
            entry.tag.get() == message.tag
                && entry.length.get() == message.length
                && (entry.node.get(), entry.port.get()) == source,
            "process {slot}: receive {handle} has a wrong envelope: {entry:?} of {message:?}"
        );
        let takes = match receive.how.claimed() {
            Some(claimed) => claimed == id && message.claimed,
            None => receive.pattern.takes(source, message) && !message.claimed,
        };
        assert!(
            takes && receive.wrong.is_none(),
            "process {slot}: receive {handle} does not take message {id}: {receive:?} {message:?}"
        );
        assert!(
            entry.offset.get() <= receive.range.1 && (receive.many || entry.offset.get() == 0),
            "process {slot}: message {id} lies outside of receive {handle}: {entry:?}"
        );
    }

    /// The bytes of a message are in the memory of its receive, or there is a reason.
    fn check_bytes(
        &mut self,
        slot: usize,
        (id, message): (u64, &Message),
        receive: &Receive,
        status: Status,
        (start, length): (u64, u64),
    ) {
        let handle = receive.handle;
        let truncated = length < message.length;
        match status {
            Status::Ok | Status::Truncated => {
                assert_eq!(
                    status == Status::Truncated,
                    truncated,
                    "process {slot}: receive {handle} of {length} bytes: {status}; {message:?}"
                );
                let mut expected = bytes_of(id, message.length);
                expected.truncate(length as usize);
                let process = &mut self.processes[slot];
                let memory = process.peek((start, length)).expect("it is alive");
                let wrong = memory.iter().zip(&expected).position(|(a, b)| a != b);
                assert_eq!(
                    wrong, None,
                    "process {slot}: wrong byte of message {id}: {message:?}"
                );
                self.processes[slot].memory.set(start, &expected);
                self.received += 1;
                self.bytes += length;
            }
            status => {
                assert!(
                    receive.disturbed || self.may_fail(message, status),
                    "process {slot}: receive {handle} fails for no reason: {status}; {message:?}"
                );
                self.processes[slot].memory.open(start, length);
            }
        }
    }
}
