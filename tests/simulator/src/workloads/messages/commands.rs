//! Commands of a message worker: right ones and wrong ones of every size.

use qnic_abi::command::{CommandBody, Descriptor, INLINE_CAPACITY};
use qnic_abi::message::{
    CancelCommand, Label, ProbeCommand, ProbeFlags, ReceiveCommand, ReceiveFlags, SendCommand,
    SendFlags,
};
use qnic_abi::PAGE_SIZE;
use zerocopy::IntoBytes;

use super::oracle::{bytes_of, How, Message, Pattern, Receive, Space, INCOMING, OUTGOING};
use super::{Area, Claimed, MessageWorker, ENDPOINTS, LOOK};
use crate::expected_bytes::Range;
use crate::process::worker::{mistakes, QueueWorker};
use crate::process::{Ended, Result};
use crate::schedule::{lock, trace};
use crate::settings::port;

/// Longest message that stands in its command, behind its label.
const INLINE_MAX: usize = INLINE_CAPACITY - size_of::<Label>();

/// Tags of messages: some differ only in bits that receives ignore.
const TAGS: [u64; 5] = [0, 1, 2, 0x1_0001, 1 << 63];

/// Bits of the tag that receives do not compare.
const IGNORED: [u64; 4] = [0, 3, 0xffff, u64::MAX];

/// A port on which no process is.
pub(super) const NO_PORT: u16 = 9999;

mistakes! {
    Key => BadKey,
    Address => BadAddress,
    Segment => NoSuchSegment,
    Port => NoSuchPort,
}

/// Address, key and segment.
type Local = (u64, u64, u16);

impl MessageWorker<'_> {
    /// Memory in an area, perhaps named wrongly; `None` if it is not exported.
    pub(super) fn local(&self, area: Area, start: u64, wrong: Option<Wrong>) -> Option<Local> {
        let exported = self.exported[area as usize]?;
        let (address, length) = self.ranges[area as usize];
        let (mut local, mut key, mut segment) = (address + start, exported.key, exported.segment);
        match wrong {
            Some(Wrong::Key) => key ^= 1 << 40,
            Some(Wrong::Address) => local = address + length - 1,
            Some(Wrong::Segment) => segment = 60,
            Some(Wrong::Port) | None => {}
        }
        Some((local, key, segment))
    }

    /// Stores what is to be sent. The bytes are new each time: a NIC that reads them late sees
    /// others.
    pub(super) fn write_source(&self, start: u64, bytes: &[u8]) -> Result<()> {
        let (kernel, space) = (&self.context.machine.kernel, *self.process.space());
        let address = self.ranges[Area::Outgoing as usize].0 + start;
        kernel.write(space, address, bytes).map_err(|_| Ended)?;
        self.context.check_alive()
    }

    fn length(&self) -> u64 {
        let schedule = self.schedule;
        match schedule.range(0..20) {
            0..=2 => 0,
            3..=6 => schedule.range(1..INLINE_CAPACITY as u64 + 2),
            7..=10 => schedule.range(1..2000),
            11..=14 => schedule.range(3000..PAGE_SIZE as u64 + 3),
            15..=18 => schedule.range(4000..12_000),
            _ => schedule.range(12_000..100_000),
        }
    }

    fn space(&self) -> Space {
        let endpoint = match self.schedule.chance(600) {
            true => 0,
            false => self.schedule.below(ENDPOINTS.len()),
        };
        (ENDPOINTS[endpoint], self.schedule.chance(200))
    }

    fn tag(&self, (_, untagged): Space) -> u64 {
        match untagged {
            true => 0,
            false => TAGS[self.schedule.below(TAGS.len())],
        }
    }

    /// A process: mostly one of few, sometimes this one.
    fn other(&self) -> usize {
        let settings = &self.common.settings;
        let count = settings.slots.len() - settings.rdma_workers;
        let choice = match self.schedule.chance(400) {
            true => 0,
            false => self.schedule.below(count),
        };
        settings.rdma_workers + choice
    }

    /// Puts a command into the queue. `issue` is what happens at that moment.
    pub(super) fn put(
        &mut self,
        command: &Descriptor,
        payload: &[u8],
        issue: impl FnOnce(&Self),
    ) -> Result<()> {
        self.make_room(LOOK)?;
        issue(self);
        self.registered.put(command, payload);
        Ok(())
    }

    /// Issues the command of a receive or a probe.
    pub(super) fn issue(
        &mut self,
        (command, payload): (&Descriptor, &[u8]),
        mut receive: Receive,
        serves: Option<Space>,
    ) -> Result<()> {
        let (schedule, slot, handle) = (self.schedule, self.slot, receive.handle);
        self.make_room(LOOK)?;
        let now = schedule.now();
        receive.issued = now;
        trace!(schedule, "message worker {slot}: {receive:?}");
        lock(&self.workload.oracle).post(slot, now, receive);
        // Every other receive may stand unread until a message comes.
        match command.header.opcode == ReceiveCommand::OPCODE && handle % 2 == 0 {
            true => self.registered.put_quietly(command, payload),
            false => self.registered.put(command, payload),
        }
        self.receives.insert(handle, serves);
        Ok(())
    }

    /// The incarnation that a message to a process names; zero: none.
    pub(super) fn named(&self, to: usize, id: u64) -> u32 {
        match id % 4 {
            0 => 0,
            _ => lock(&self.workload.oracle).announced(to),
        }
    }

    /// Sends a message to some process.
    pub(super) fn send(&mut self) -> Result<()> {
        let space = self.space();
        let tag = self.tag(space);
        let (to, length) = (self.other(), self.length());
        self.send_to(to, space, tag, length)
    }

    /// Sends messages in a row, which are not to overtake each other.
    pub(super) fn send_some(&mut self) -> Result<()> {
        let (to, space) = (self.other(), self.space());
        let tag = self.tag(space);
        for _ in 0..self.schedule.range(2..6) {
            let length = self.length().min(9000);
            self.send_to(to, space, tag, length)?;
        }
        Ok(())
    }

    /// Sends to all others, and does nothing else until that has arrived: one after the other, or all
    /// at once. What was sent to a process and not received fits into the share that this one has.
    pub(super) fn exchange(&mut self) -> Result<()> {
        let one_by_one = self.schedule.chance(500);
        let first = lock(&self.workload.oracle).next();
        let (own, space) = (self.slot, self.space());
        for to in self.common.settings.others().filter(|to| *to != own) {
            let (tag, length) = (self.tag(space), self.length());
            if lock(&self.workload.oracle).has_share(self.slot, to, length) {
                self.send_to(to, space, tag, length)?;
            }
            if one_by_one {
                self.wait_for_sends(first)?;
            }
        }
        self.wait_for_sends(first)
    }

    /// Waits until no message runs that was issued behind a number of the oracle.
    fn wait_for_sends(&mut self, first: u64) -> Result<()> {
        while lock(&self.workload.oracle).sends_behind(self.slot, first) {
            self.wait(LOOK)?;
        }
        Ok(())
    }

    fn send_to(&mut self, to: usize, space: Space, tag: u64, length: u64) -> Result<()> {
        let schedule = self.schedule;
        if self.sends + 1 >= self.common.settings.limits.sends as usize {
            return Ok(());
        }
        if self.workload.contexts && schedule.chance(350) {
            return self.send_by_context(to, space, tag, length);
        }
        let wrong = schedule.chance(60).then(|| Wrong::ALL[schedule.below(4)]);
        let inline = length <= INLINE_MAX as u64 && schedule.chance(600);
        let names_memory = !inline && length >= 2;
        let wrong = wrong.filter(|wrong| *wrong == Wrong::Port || names_memory);
        let id = lock(&self.workload.oracle).next();
        let bytes = bytes_of(id, length);
        let mut command = SendCommand::command();
        let named = self.named(to, id);
        let label = Label {
            incarnation: named.into(),
            mark: (id as u32).into(),
        };
        let mut payload = label.as_bytes().to_vec();
        if inline {
            payload.extend_from_slice(&bytes);
        } else if length > 0 {
            let start = schedule.range(0..OUTGOING - length + 1);
            if !self.sources.reserve((start, length), id) {
                return Ok(());
            }
            self.write_source(start, &bytes)?;
            let Some((address, key, segment)) = self.local(Area::Outgoing, start, wrong) else {
                self.sources.release(id);
                return Ok(());
            };
            command.local_address = address.into();
            command.local_key = key.into();
            command.local_segment = segment.into();
        }
        let node = self.common.settings.slots[to] as u16;
        let to_port = if wrong == Some(Wrong::Port) {
            NO_PORT
        } else {
            port(to)
        };
        command.header.remote_node = node.into();
        command.header.remote_port = to_port.into();
        command.handle = id.into();
        command.immediate = id.into();
        command.tag = tag.into();
        command.length = length.into();
        command.endpoint = space.0.into();
        command.header.inline_length = payload.len() as u8;
        let mut flags = SendFlags::LABEL;
        flags.set(SendFlags::UNTAGGED, space.1);
        command.flags = flags.bits().into();
        let mut message = Message::new((self.slot, to), space, tag, length);
        message.wrong = wrong.map(Wrong::status);
        message.named = named;
        self.put(&command.descriptor(), &payload, |worker| {
            let now = schedule.now();
            message.issued = now;
            trace!(schedule, "message {id}: {message:?}");
            lock(&worker.workload.oracle).send(id, now, message);
        })?;
        self.sends += 1;
        Ok(())
    }

    /// What a receive or a probe of a space takes.
    fn pattern(&self, space: Space) -> Pattern {
        let schedule = self.schedule;
        let source = match schedule.chance(450) {
            true => None,
            false => Some(self.other()),
        };
        let ignore = match space.1 {
            true => 0,
            false => IGNORED[schedule.below(IGNORED.len())],
        };
        let incarnation = source.map_or(0, |slot| lock(&self.workload.oracle).announced(slot));
        let source = source.map(|slot| {
            let node = self.common.settings.slots[slot] as u16;
            let nobody = schedule.chance(30);
            (node, if nobody { NO_PORT } else { port(slot) })
        });
        let tag = self.tag(space);
        // Some receives from one process name it; others take messages of the next one on its port, too.
        let named = (u64::from(incarnation) + tag) % 2 == 0;
        Pattern {
            source,
            incarnation: if named { incarnation } else { 0 },
            space,
            tag,
            ignore,
        }
    }

    /// Posts a receive.
    pub(super) fn receive(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let space = self.space();
        let pattern = self.pattern(space);
        let many = schedule.chance(150);
        let length = self.length() * if many { 3 } else { 1 };
        let length = length.min(INCOMING / 3);
        let wrong = schedule.chance(50).then(|| Wrong::ALL[schedule.below(3)]);
        let wrong = wrong.filter(|_| length >= 2);
        self.post((pattern, length, many), wrong, None)
    }

    /// Posts a receive for any message of a space.
    pub(super) fn receive_any(&mut self, space: Space) -> Result<()> {
        let pattern = Pattern {
            source: None,
            incarnation: 0,
            space,
            tag: 0,
            ignore: if space.1 { 0 } else { u64::MAX },
        };
        let length = self.schedule.range(0..9000);
        self.post((pattern, length, false), None, Some(space))
    }

    /// Waits for a message of a process of another node, which comes no more: by a receive or a probe.
    pub(super) fn wait_for_another(&mut self) -> Result<()> {
        let slots = &self.common.settings.slots;
        let own = slots[self.slot];
        let others = self.common.settings.others().filter(|it| slots[*it] != own);
        let others: Vec<usize> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        let other = others[self.schedule.below(others.len())];
        let space = self.space();
        let pattern = Pattern {
            source: Some((slots[other] as u16, port(other))),
            incarnation: 0,
            space,
            tag: self.tag(space),
            ignore: 0,
        };
        match self.schedule.chance(500) {
            true => self.post_probe(pattern, How::Look(true)),
            false => self.post((pattern, 0, false), None, None),
        }
    }

    fn post(
        &mut self,
        (pattern, length, many): (Pattern, u64, bool),
        wrong: Option<Wrong>,
        serves: Option<Space>,
    ) -> Result<()> {
        let schedule = self.schedule;
        if self.workload.contexts && !many && schedule.chance(350) {
            return self.receive_by_context(pattern, length, wrong, serves);
        }
        let start = schedule.range(0..INCOMING - length + 1);
        let mut oracle = lock(&self.workload.oracle);
        let handle = oracle.next();
        let range: Range = (start, length);
        if !oracle.reserve(self.slot, handle, range) {
            return Ok(());
        }
        drop(oracle);
        let Some((address, key, segment)) = self.local(Area::Incoming, start, wrong) else {
            return Ok(());
        };
        let mut command = ReceiveCommand::command();
        let mut flags = ReceiveFlags::empty();
        flags.set(ReceiveFlags::UNTAGGED, pattern.space.1);
        flags.set(ReceiveFlags::ANY_PROC, pattern.source.is_none());
        flags.set(ReceiveFlags::MANY, many);
        flags.set(ReceiveFlags::LABEL, pattern.incarnation != 0);
        let (node, port) = pattern.source.unwrap_or_default();
        command.header.remote_node = node.into();
        command.header.remote_port = port.into();
        command.handle = handle.into();
        command.tag = pattern.tag.into();
        command.ignore = pattern.ignore.into();
        command.length = length.into();
        command.local_address = address.into();
        command.local_key = key.into();
        command.local_segment = segment.into();
        command.endpoint = pattern.space.0.into();
        command.flags = flags.bits().into();
        let mut receive = Receive::new(handle, pattern, range);
        receive.many = many;
        receive.wrong = wrong.map(Wrong::status);
        let label = Label {
            incarnation: pattern.incarnation.into(),
            mark: 0.into(),
        };
        let payload: &[u8] = match pattern.incarnation {
            0 => &[],
            _ => label.as_bytes(),
        };
        command.header.inline_length = payload.len() as u8;
        self.issue((&command.descriptor(), payload), receive, serves)
    }

    /// Posts a probe.
    pub(super) fn probe(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let pattern = self.pattern(self.space());
        let waits = schedule.chance(400);
        let how = match schedule.range(0..4) {
            0 => How::Look(waits),
            1 => How::Discard(waits),
            _ => How::Claim(waits),
        };
        self.post_probe(pattern, how)
    }

    fn post_probe(&mut self, pattern: Pattern, how: How) -> Result<()> {
        let (How::Look(waits) | How::Discard(waits) | How::Claim(waits)) = how else {
            return Ok(());
        };
        let handle = lock(&self.workload.oracle).next();
        let mut flags = ProbeFlags::empty();
        flags.set(ProbeFlags::UNTAGGED, pattern.space.1);
        flags.set(ProbeFlags::ANY_PROC, pattern.source.is_none());
        flags.set(ProbeFlags::WAIT, waits);
        flags.set(ProbeFlags::CLAIM, how == How::Claim(waits));
        flags.set(ProbeFlags::DISCARD, how == How::Discard(waits));
        let mut command = ProbeCommand::command();
        let (node, port) = pattern.source.unwrap_or_default();
        command.header.remote_node = node.into();
        command.header.remote_port = port.into();
        command.handle = handle.into();
        command.tag = pattern.tag.into();
        command.ignore = pattern.ignore.into();
        command.endpoint = pattern.space.0.into();
        command.flags = flags.bits().into();
        command.incarnation = pattern.incarnation.into();
        let mut receive = Receive::new(handle, pattern, (0, 0));
        receive.how = how;
        self.issue((&command.descriptor(), &[]), receive, None)
    }

    /// Receives some claimed message, or drops it.
    pub(super) fn receive_claimed(&mut self) -> Result<()> {
        if self.claimed.is_empty() {
            return Ok(());
        }
        let claimed = self.schedule.below(self.claimed.len());
        let claimed = self.claimed.swap_remove(claimed);
        let drops = self.schedule.chance(350);
        self.receive_or_drop(claimed, drops)
    }

    pub(super) fn receive_or_drop(&mut self, claimed: Claimed, drops: bool) -> Result<()> {
        let (schedule, slot) = (self.schedule, self.slot);
        // Mostly all of it.
        let shorter = schedule.chance(150);
        let length = claimed.length.min(INCOMING / 3);
        let length = if shorter { length / 2 } else { length };
        let start = schedule.range(0..INCOMING - length + 1);
        let range: Range = if drops { (0, 0) } else { (start, length) };
        let mut oracle = lock(&self.workload.oracle);
        let handle = oracle.next();
        let local = self.local(Area::Incoming, start, None);
        let reserved = drops || local.is_some() && oracle.reserve(slot, handle, range);
        drop(oracle);
        let mut command = ReceiveCommand::command();
        let mut how = How::Claimed(claimed.id);
        let mut flags = ReceiveFlags::CLAIMED;
        match local.filter(|_| reserved && !drops) {
            Some((address, key, segment)) => {
                command.length = length.into();
                command.local_address = address.into();
                command.local_key = key.into();
                command.local_segment = segment.into();
            }
            // There is no room for it.
            None => {
                flags |= ReceiveFlags::DISCARD;
                how = How::Dropped(claimed.id);
            }
        }
        command.handle = handle.into();
        command.tag = claimed.number.into();
        command.flags = flags.bits().into();
        let space = (0, false);
        let nothing = Pattern {
            source: None,
            incarnation: 0,
            space,
            tag: 0,
            ignore: 0,
        };
        let mut receive = Receive::new(handle, nothing, range);
        receive.how = how;
        self.issue((&command.descriptor(), &[]), receive, None)?;
        self.landing.insert(handle, claimed);
        Ok(())
    }

    /// Takes some receive back: one that is posted, or was, or never was.
    pub(super) fn cancel_some(&mut self) -> Result<()> {
        let posted: Vec<_> = self.receives.keys().copied().collect();
        let handle = match posted.is_empty() || self.schedule.chance(150) {
            true => self.schedule.range(0..1000),
            false => posted[self.schedule.below(posted.len())],
        };
        self.cancel(handle)
    }

    /// Takes all receives back.
    pub(super) fn cancel_all(&mut self) -> Result<()> {
        let posted: Vec<_> = self.receives.keys().copied().collect();
        posted
            .into_iter()
            .try_for_each(|handle| self.cancel(handle))
    }

    fn cancel(&mut self, handle: u64) -> Result<()> {
        let command = match self.contexts.of_receive(handle) {
            Some(number) => Self::cancel_of_context(number),
            None => {
                let mut command = CancelCommand::command();
                command.handle = handle.into();
                command
            }
        };
        let (schedule, slot) = (self.schedule, self.slot);
        self.put(&command.descriptor(), &[], |worker| {
            trace!(schedule, "message worker {slot}: cancels receive {handle}");
            lock(&worker.workload.oracle).cancel(slot, handle);
        })
    }
}
