//! What a completion of a queue pair says, compared with what was posted.

use qnic_abi::verbs::rings::{CompletionFlags, WorkCompletion};
use qnic_abi::verbs::{Completed, Outcome, Request, Transport, ROUTE_HEADER_BYTES};

use super::super::{bytes_of, AREA, WORD};
use super::items::{Half, Message, Receive, Work, Written};
use super::{Name, VerbsOracle, RECEIVE};
use crate::expected_bytes::{difference, ExpectedByte};

/// What counts of a work request that has ended well.
fn counted(request: Request) -> &'static str {
    match request {
        Request::Send | Request::SendImmediate => "verbs messages",
        Request::Write | Request::WriteImmediate => "verbs writes",
        Request::Read => "verbs reads",
        Request::CompareSwap | Request::FetchAdd => "verbs atomic operations",
    }
}

/// What the completion of a work request is of.
fn completed(request: Request) -> Completed {
    match request {
        Request::Send | Request::SendImmediate => Completed::Send,
        Request::Write | Request::WriteImmediate => Completed::Write,
        Request::Read => Completed::Read,
        Request::CompareSwap => Completed::CompareSwap,
        Request::FetchAdd => Completed::FetchAdd,
    }
}

/// From now on anything may stand where later writes go.
fn open(expected: &mut [ExpectedByte], start: u64, later: &Work) {
    if later.is_write() {
        open_range(expected, start, (later.remote, later.length));
    }
}

fn open_range(expected: &mut [ExpectedByte], start: u64, (remote, length): (u64, u64)) {
    let end = start + expected.len() as u64;
    let from = remote.clamp(start, end);
    let to = (remote + length).clamp(start, end);
    expected[(from - start) as usize..(to - start) as usize].fill(None);
}

/// The first byte of a write that is wrong, but for those where later ones go.
fn wrong_byte(memory: &[u8], written: &Written, writes: &[Written]) -> Option<usize> {
    let start = written.remote;
    let bytes = bytes_of(written.data, written.length);
    let mut expected: Vec<ExpectedByte> = bytes.into_iter().map(Some).collect();
    for later in writes.iter().filter(|later| later.id > written.id) {
        open_range(&mut expected, start, (later.remote, later.length));
    }
    difference(memory, &expected)
}

/// Takes the message that has come over a lossless wire from a half: what is before it was lost. `sure`: that
/// needs a reason. `peek`: what stands in the area that the half writes.
fn take_ordered(
    half: &mut Half,
    sure: bool,
    is_it: impl Fn(&Message) -> bool,
    peek: impl Fn(u64, u64) -> Option<Vec<u8>>,
) -> Option<Message> {
    let before = half.messages.iter().position(is_it)?;
    for lost in half.messages.drain(..before) {
        assert!(!sure || lost.may_be_lost, "lost for no reason: {lost:?}");
    }
    let message = half.messages.pop_front()?;
    for written in &half.writes {
        let is_there = written.id < message.id && sure && !written.may_be_lost;
        if is_there || written.id == message.id {
            let memory = peek(written.remote, written.length);
            let wrong = memory.and_then(|memory| wrong_byte(&memory, written, &half.writes));
            assert_eq!(wrong, None, "a wrong byte of {written:?} at {message:?}");
        }
    }
    half.writes.retain(|written| written.id > message.id);
    Some(message)
}

impl VerbsOracle {
    /// A completion was taken from the ring of a process. Returns the numbers of what has ended, and
    /// whether it has failed.
    pub(in super::super) fn completed(
        &mut self,
        name: Name,
        completion: &WorkCompletion,
    ) -> (Vec<u64>, bool) {
        let id = completion.id.get();
        let outcome = Outcome::try_from(completion.status.get());
        let outcome = outcome.unwrap_or_else(|_| panic!("{name:?}: {completion:?}"));
        let half = self.half(name);
        let receives = id & RECEIVE != 0;
        // A send queue without acknowledgements fails alone.
        let may_go_on = half.is_unreliable() && receives;
        let has_failed = half.receives_failed || half.sends_failed && !may_go_on;
        assert!(
            outcome != Outcome::Success || !has_failed,
            "{name:?}: it has failed, and {id} ends well"
        );
        match receives {
            true => half.receives_failed |= outcome != Outcome::Success,
            false => half.sends_failed |= outcome != Outcome::Success,
        }
        let failed = half.has_failed();
        if receives {
            let receive = self.take_receive(name, id);
            let receive = receive.unwrap_or_else(|| panic!("{name:?}: {id:#x} ends out of turn"));
            match outcome {
                Outcome::Success => self.received(name, &receive, completion),
                outcome => self.check_failure(name, (receive.wrong, None), outcome),
            }
            return (vec![id], failed);
        }
        let mut ended = Vec::new();
        loop {
            let work = self.half(name).works.pop_front();
            let work = work.unwrap_or_else(|| panic!("{name:?}: {id} ends out of turn, or twice"));
            ended.push(work.id);
            if work.id != id {
                assert!(!work.signaled, "{name:?}: {id} ends before {work:?}");
                self.succeed(name, &work);
                continue;
            }
            match outcome {
                Outcome::Success => {
                    let opcode = completed(work.request) as u32;
                    assert_eq!(completion.opcode.get(), opcode, "{name:?}: {work:?}");
                    self.succeed(name, &work);
                }
                outcome => self.check_failure(name, (work.wrong.is_some(), work.wrong), outcome),
            }
            return (ended, failed);
        }
    }

    /// The receive of a completion: the oldest, or one that is shared, behind the last of its half.
    fn take_receive(&mut self, name: Name, id: u64) -> Option<Receive> {
        let half = self.half(name);
        let (address, oldest) = (half.address, half.receives.front());
        if address.shares {
            assert!(half.last_shared < id, "{name:?}: {id:#x} ends out of turn");
            half.last_shared = id;
            return self.processes[address.slot].shared.remove(&id);
        }
        oldest.filter(|receive| receive.id == id)?;
        half.receives.pop_front()
    }

    /// The NIC has done with all entries of the send queue: those that are left tell nothing.
    /// Returns their numbers.
    pub(in super::super) fn all_done(&mut self, name: Name) -> Vec<u64> {
        let mut ended = Vec::new();
        while let Some(work) = self.half(name).works.pop_front() {
            assert!(!work.signaled, "{name:?}: {work:?} has no completion");
            ended.push(work.id);
            self.succeed(name, &work);
        }
        ended
    }

    /// A message has come.
    fn received(&mut self, name: Name, receive: &Receive, completion: &WorkCompletion) {
        let ordered = self.lossless;
        let connection = &self.connections[&name.0];
        let sure = !connection.eager && !connection.may_fail() && !self.is_disturbed(name);
        let connection = self.connections.get_mut(&name.0);
        let (own, peer) = connection.expect("a connection").split(name.1);
        own.received += 1;
        let (transport, slot) = (own.address.transport, own.address.slot);
        let front = match transport {
            Transport::Datagram => ROUTE_HEADER_BYTES as u64,
            _ => 0,
        };
        let (at, area) = (receive.base + receive.local + front, own.base + AREA);
        let found = u64::from(completion.length.get());
        let flags = CompletionFlags::from_bits_truncate(completion.flags.get());
        let told = flags.contains(CompletionFlags::IMMEDIATE);
        let told = told.then_some(completion.immediate.get());
        let watched = &self.processes[slot].watched;
        let is_it = |message: &Message| {
            let bytes = || watched.peek(at, message.length);
            let same = |data| bytes().is_none_or(|bytes| bytes == bytes_of(data, message.length));
            let wrong = message.data.is_some_and(|data| !same(data));
            found == message.length + front && told == message.immediate && !wrong
        };
        let message = peer.and_then(|peer| match transport {
            Transport::Reliable => peer.messages.pop_front(),
            _ if ordered => take_ordered(peer, sure, is_it, |at, length| {
                watched.peek(area + at, length)
            }),
            // Frames come twice, and in any order: so do these.
            _ => peer.messages.iter().find(|message| is_it(message)).cloned(),
        });
        let message = message.unwrap_or_else(|| {
            panic!("{name:?}: a message that was not sent, or twice: {completion:?}")
        });
        assert!(is_it(&message), "{name:?}: {completion:?} of {message:?}");
        let opcode = match message.data {
            Some(_) => Completed::Receive,
            None => Completed::ReceiveWrite,
        };
        assert_eq!(
            completion.opcode.get(),
            opcode as u32,
            "{name:?}: {message:?}"
        );
        self.count(match transport {
            Transport::Reliable => "verbs messages received",
            Transport::Unreliable => "verbs messages received by unreliable connections",
            Transport::Datagram => "verbs datagrams received",
        });
        if receive.shared {
            self.count("verbs messages received by shared queues");
        }
    }

    /// A work request has ended well.
    fn succeed(&mut self, name: Name, work: &Work) {
        assert_eq!(work.wrong, None, "{name:?}: a mistake ends well: {work:?}");
        if work.needs_receive() {
            self.half(name).confirmed += 1;
        }
        // It says nothing of its peer.
        if self.half(name).is_unreliable() {
            return self.count("verbs unreliable work");
        }
        match work.request {
            Request::Send | Request::SendImmediate => {}
            Request::Write | Request::WriteImmediate => self.check_write(name, work),
            Request::Read => self.check_read(name, work),
            Request::CompareSwap | Request::FetchAdd => self.check_word(name, work),
        }
        self.count(counted(work.request));
    }

    fn check_write(&mut self, name: Name, work: &Work) {
        let half = self.half(name);
        half.area
            .set(work.remote, &bytes_of(work.data, work.length));
        let mut expected = half.area.get(work.remote, work.length).to_vec();
        for later in &half.works {
            open(&mut expected, work.remote, later);
        }
        let Some(peer) = self.connections[&name.0].halves.get(1 - name.1) else {
            return;
        };
        if peer.over {
            return;
        }
        let watched = &self.processes[peer.address.slot].watched;
        if let Some(memory) = watched.peek(peer.base + AREA + work.remote, work.length) {
            let wrong = difference(&memory, &expected);
            assert_eq!(wrong, None, "{name:?}: a wrong byte of a write: {work:?}");
        }
    }

    fn check_read(&mut self, name: Name, work: &Work) {
        let half = self.half(name);
        let mut expected = half.area.get(work.remote, work.length).to_vec();
        for later in half.works.iter().take_while(|later| !later.fence) {
            open(&mut expected, work.remote, later);
        }
        if let Some(memory) = self.own_bytes(name, work) {
            let wrong = difference(&memory, &expected);
            assert_eq!(wrong, None, "{name:?}: a wrong byte of a read: {work:?}");
        }
    }

    fn check_word(&mut self, name: Name, work: &Work) {
        let Some(found) = self.own_bytes(name, work) else {
            return;
        };
        let found = u64::from_le_bytes(found.try_into().expect("a word"));
        let half = self.half(name);
        if let Some(word) = half.word {
            assert_eq!(
                found, word,
                "{name:?}: what an atomic operation finds: {work:?}"
            );
        }
        let after = work.change(found);
        half.word = Some(after);
        let at = WORD;
        let later =
            |later: &Work| matches!(later.request, Request::CompareSwap | Request::FetchAdd);
        if half.works.iter().any(later) {
            return;
        }
        let peer = self.connections[&name.0].halves.get(1 - name.1);
        let Some(peer) = peer.filter(|peer| !peer.over) else {
            return;
        };
        let watched = &self.processes[peer.address.slot].watched;
        if let Some(memory) = watched.peek(peer.base + at, 8) {
            assert_eq!(
                memory,
                after.to_le_bytes(),
                "{name:?}: the word after {work:?}"
            );
        }
    }

    /// The bytes of a read or an atomic operation.
    fn own_bytes(&self, name: Name, work: &Work) -> Option<Vec<u8>> {
        let half = &self.connections[&name.0].halves[name.1];
        let watched = &self.processes[half.address.slot].watched;
        watched.peek(half.base + work.local, work.length)
    }

    /// The route of a connection was not whole all the time.
    fn is_disturbed(&self, name: Name) -> bool {
        let connection = &self.connections[&name.0];
        let own = connection.halves[name.1].address.node;
        let peer = match name.1 {
            0 => self.processes[connection.to].watched.node,
            _ => connection.halves[0].address.node,
        };
        self.routes.whole_since(own, peer) > connection.begun
    }

    /// Something has failed: it must have a reason.
    fn check_failure(
        &mut self,
        name: Name,
        (is_mistake, expected): (bool, Option<Outcome>),
        outcome: Outcome,
    ) {
        self.count("verbs failures");
        let connection = &self.connections[&name.0];
        let (own, peer) = (
            &connection.halves[name.1],
            connection.halves.get(1 - name.1),
        );
        let disturbed = self.is_disturbed(name);
        let peer_is_over = peer.is_none_or(|peer: &Half| peer.over || !peer.ready);
        // Of its peer and of its route an unreliable one learns nothing.
        let unreliable = own.is_unreliable();
        let silent = match unreliable {
            true => own.weak,
            false => connection.weak || disturbed || peer_is_over || connection.eager,
        };
        let weak = match unreliable {
            true => own.weak || own.mistaken,
            false => connection.may_fail() || disturbed,
        };
        let excused = match outcome {
            Outcome::RetriesExceeded
            | Outcome::RemoteAccess
            | Outcome::RemoteOperation
            | Outcome::RemoteInvalidRequest
            | Outcome::ReceiverNotReady
                if unreliable =>
            {
                false
            }
            // Its own end, or what comes behind another failure.
            Outcome::Flushed => own.over || silent || weak,
            Outcome::RetriesExceeded => silent || weak,
            Outcome::RemoteAccess
            | Outcome::RemoteOperation
            | Outcome::RemoteInvalidRequest
            | Outcome::LocalProtection
            | Outcome::LocalLength
            | Outcome::ReceiverNotReady => weak,
            Outcome::Success | Outcome::LocalOperation | Outcome::Fatal => false,
        };
        let by_peer = silent || !unreliable && peer.is_some_and(|peer| peer.mistaken);
        let flushed = outcome == Outcome::Flushed && !own.over && !by_peer;
        let blamed = outcome != Outcome::Flushed;
        let half = self.half(name);
        half.flushed |= flushed;
        half.blamed |= blamed;
        assert!(
            is_mistake && expected.is_none_or(|expected| expected == outcome) || excused,
            "{name:?}: {outcome:?} for no reason"
        );
    }
}
