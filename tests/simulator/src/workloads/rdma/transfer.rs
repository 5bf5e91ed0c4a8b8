//! Transfers of a process: right ones and wrong ones of every size.

use qnic_abi::atomic::Function;
use qnic_abi::client::{Command, Memory, Remote};
use qnic_abi::command::{CommandBody, DEFAULT_INLINE_MAX, INLINE_CAPACITY};
use qnic_abi::host_area::RESULT_RECORDS;
use qnic_abi::rdma::FenceCommand;
use qnic_abi::{Key, NodeId, Port, SegmentId};

use super::increments::word;
use super::oracle::{first_notification, Kind, Plan, FENCE, HALF, SECTION};
use super::{Imported, Name, RdmaWorker};
use crate::process::worker::mistakes;
use crate::process::{Ended, Result};
use crate::schedule::{lock, trace};
use crate::settings::port;

mistakes! {
    RemoteKey => BadKey,
    LocalKey => BadKey,
    Address => BadAddress,
    Segment => NoSuchSegment,
    Port => NoSuchPort,
    ReadOnly => AccessDenied,
}

/// A transfer that is being prepared.
struct Draft {
    id: u64,
    target: usize,
    imported: Imported,
    start: u64,
    length: u64,
    wrong: Option<Wrong>,
}

/// The lane of the transfers to a target.
fn lane(target: usize) -> u8 {
    u8::try_from(target).expect("no more workers than lanes")
}

impl RdmaWorker<'_> {
    /// Chooses a segment, a range of it, and perhaps a mistake; reserves the range.
    fn draft(&mut self, writes: bool) -> Option<Draft> {
        let schedule = self.schedule;
        let wrong = schedule.chance(80).then(|| Wrong::ALL[schedule.below(6)]);
        let wrong = wrong.filter(|wrong| *wrong != Wrong::ReadOnly || writes);
        let read_only = wrong == Some(Wrong::ReadOnly) || !writes && schedule.chance(300);
        let known = self.imported.iter();
        let known = known.filter(|((_, other), _)| *other == read_only);
        let known: Vec<_> = known.map(|(_, imported)| *imported).collect();
        if known.is_empty() {
            return None;
        }
        let imported = known[schedule.below(known.len())];
        let target = imported.target;
        let mut oracle = lock(self.oracle);
        // A key that is not known yet is not used yet; an old one now and then.
        let live = oracle.is_live(target, imported.key);
        if live == Some(false) && !schedule.chance(250) || live.is_none() {
            self.imported.remove(&(target, read_only));
            return None;
        }
        let length = match schedule.range(0..5) {
            0 => schedule.range(0..20),
            1 => schedule.range(0..DEFAULT_INLINE_MAX as u64 + 2),
            2 => schedule.range(0..1000),
            3 => schedule.range(0..4098),
            _ => schedule.range(0..SECTION / 2),
        };
        let length = length.max(if wrong.is_some() { 2 } else { 0 });
        let start = schedule.range(0..SECTION - length + 1);
        let id = oracle.name();
        let free = oracle.reserve(id, (self.slot, target), (start, length));
        free.then_some(Draft {
            id,
            target,
            imported,
            start,
            length,
            wrong,
        })
    }

    /// An address in a segment of another process.
    pub(super) fn remote(&self, to: &Imported, offset: u64) -> Remote {
        Remote {
            node: NodeId(self.common.settings.slots[to.target] as u16),
            port: Port(port(to.target)),
            memory: Memory {
                address: to.address + offset,
                key: Key(to.key),
                segment: SegmentId(to.segment),
            },
        }
    }

    /// The remote side of a command, with the mistake in it.
    fn drafted_remote(&self, draft: &Draft) -> Remote {
        let at = self.slot as u64 * SECTION + draft.start;
        let mut remote = self.remote(&draft.imported, at);
        let to = &draft.imported;
        match draft.wrong {
            Some(Wrong::RemoteKey) => remote.memory.key = Key(to.key ^ 1 << 40),
            Some(Wrong::Address) => remote.memory.address = to.address + to.length - 1,
            Some(Wrong::Segment) => remote.memory.segment = SegmentId(60),
            Some(Wrong::Port) => remote.port = Port(9999),
            Some(Wrong::LocalKey | Wrong::ReadOnly) | None => {}
        }
        remote
    }

    /// Lets a command ask now and then for its completion to be written back.
    fn finished(&self, command: Command) -> Command {
        match self.schedule.chance(250) {
            true => command.publish(),
            false => command,
        }
    }

    /// The local side of a command.
    pub(super) fn local(&self, offset: u64) -> Memory {
        let local = self.exported.get(&Name::Local);
        local.map_or(Memory::default(), |local| Memory {
            address: self.ranges[1].0 + offset,
            key: Key(local.key),
            segment: SegmentId(local.segment),
        })
    }

    /// The same, with the mistake in it.
    fn drafted_local(&self, draft: &Draft, offset: u64) -> Memory {
        let mut local = self.local(offset);
        local.key.0 ^= u64::from(draft.wrong == Some(Wrong::LocalKey));
        local
    }

    /// Reserves a range of the local segment; without it, the transfer is given up.
    fn reserve_local(&self, draft: &Draft, start: u64) -> bool {
        let range = (start, draft.length);
        let free = lock(self.oracle).reserve_local(draft.id, self.slot, range);
        let reserved = free && self.exported.contains_key(&Name::Local);
        if !reserved {
            self.abandon(draft);
        }
        reserved
    }

    pub(super) fn write(&mut self) -> Result<()> {
        let Some(draft) = self.draft(true) else {
            return Ok(());
        };
        let schedule = self.schedule;
        let fits = draft.length <= INLINE_CAPACITY as u64;
        let inline = fits && schedule.chance(600) && draft.wrong != Some(Wrong::LocalKey);
        let mut data = vec![0; draft.length as usize];
        schedule.fill(&mut data);
        let mut source = None;
        if !inline {
            let at = schedule.range(0..HALF - draft.length);
            if !self.reserve_local(&draft, at) {
                return Ok(());
            }
            // The bytes are new each time: a NIC that reads them late sees others.
            let (kernel, space) = (&self.context.machine.kernel, *self.process.space());
            let stored = kernel.write(space, self.ranges[1].0 + at, &data);
            if stored.is_err() || self.context.check_alive().is_err() {
                self.abandon(&draft);
                return Err(Ended);
            }
            source = Some(at);
        }
        if !self.make_room(&draft)? {
            return Ok(());
        }
        let number = || first_notification(self.slot) + schedule.range(0..2) as u32;
        let notification = schedule.chance(350).then(number);
        let remote = self.drafted_remote(&draft);
        let mut command = match source {
            Some(at) => Command::write(self.drafted_local(&draft, at), remote, draft.length),
            None => Command::inline_write(remote, draft.length as u8),
        };
        command.notification = notification;
        let command = self.finished(command);
        let payload = if inline { data.clone() } else { Vec::new() };
        let kind = Kind::Write { data, notification };
        let (id, target, length) = (draft.id, draft.target, draft.length);
        self.issue(draft, &command, &payload, kind);
        if let Some(at) = source.filter(|_| id % 16 == 0) {
            return self.reuse(id, target, (at, length));
        }
        if schedule.chance(100) {
            return self.flush();
        }
        Ok(())
    }

    /// Stores other bytes into the source of a write as soon as a fence says that it may (N9): those
    /// that arrive are the old ones.
    fn reuse(&mut self, id: u64, target: usize, (at, length): (u64, u64)) -> Result<()> {
        let schedule = self.schedule;
        if !self.block_until(Some(20_000_000), Self::has_room)? {
            return Ok(());
        }
        let mut command = FenceCommand::command();
        command.header.lane = lane(target);
        command.header.remote_node = (self.common.settings.slots[target] as u16).into();
        command.header.remote_port = port(target).into();
        command.handle = (FENCE | id).into();
        let number = self.queue.next;
        trace!(
            schedule,
            "process {}: command {number}, fence of the sources for process {target}",
            self.slot
        );
        lock(self.oracle).fence(self.slot, id);
        self.put(&command.descriptor(), &[]);
        let limit = schedule.range(1000..1_000_000);
        let told = |worker: &Self| !lock(worker.oracle).is_fenced(worker.slot, id);
        if self.block_until(Some(limit), told)? {
            let mut other = vec![0; length as usize];
            schedule.fill(&mut other);
            let (kernel, space) = (&self.context.machine.kernel, *self.process.space());
            let stored = kernel.write(space, self.ranges[1].0 + at, &other);
            return stored.or(Err(Ended));
        }
        Ok(())
    }

    pub(super) fn read(&mut self) -> Result<()> {
        let Some(draft) = self.draft(false) else {
            return Ok(());
        };
        let schedule = self.schedule;
        let local = HALF + schedule.range(0..HALF - draft.length);
        if !self.reserve_local(&draft, local) || !self.make_room(&draft)? {
            return Ok(());
        }
        let to = self.drafted_local(&draft, local);
        let command = Command::read(to, self.drafted_remote(&draft), draft.length);
        let command = self.finished(command);
        let ends = (self.slot, draft.target);
        let range = (draft.start, draft.length);
        let expected = lock(self.oracle).expected(ends, range);
        self.issue(draft, &command, &[], Kind::Read { expected, local });
        Ok(())
    }

    pub(super) fn increment(&mut self) -> Result<()> {
        let Some(mut draft) = self.draft(true) else {
            return Ok(());
        };
        draft.length = 8;
        // Nothing local is named.
        draft.wrong = draft.wrong.filter(|wrong| *wrong != Wrong::LocalKey);
        if !self.make_room(&draft)? {
            return Ok(());
        }
        let mut remote = self.drafted_remote(&draft);
        if draft.wrong != Some(Wrong::Address) {
            let sections = self.common.settings.rdma_workers as u64 * SECTION;
            remote.memory.address = word(draft.imported.address + sections);
        }
        // Those of a lane that are not complete have numbers in a row.
        let lane = lane(draft.target);
        let most = RESULT_RECORDS / self.common.settings.rdma_workers;
        let reads = self.issued.get(&lane).map_or(0, |issued| issued.1);
        if reads - self.done(lane).1 >= most as u64 {
            self.abandon(&draft);
            return Ok(());
        }
        let record = usize::from(lane) * most + reads as usize % most;
        let command = Command::atomic(Function::Increment, remote, 8, [0; 2], record as u16);
        let command = self.finished(command);
        self.issue(draft, &command, &[], Kind::Increment { record });
        Ok(())
    }

    /// Waits for room in the queue; without it, the transfer is given up. What was
    /// learnt before the wait may be outdated after it.
    fn make_room(&mut self, draft: &Draft) -> Result<bool> {
        let room = self.block_until(Some(20_000_000), Self::has_room);
        let live = lock(self.oracle).is_live(draft.target, draft.imported.key);
        if live.is_none() || !matches!(room, Ok(true)) {
            self.abandon(draft);
        }
        Ok(room? && live.is_some())
    }

    fn abandon(&self, draft: &Draft) {
        lock(self.oracle).give_up(draft.id, self.slot, draft.target);
    }

    fn issue(&mut self, draft: Draft, command: &Command, payload: &[u8], kind: Kind) {
        let schedule = self.schedule;
        let is_write = matches!(kind, Kind::Write { .. });
        let number = self.queue.next;
        trace!(
            schedule,
            "process {}: command {number}, {} {} bytes at {} of process {}{}{}",
            self.slot,
            kind.name(),
            draft.length,
            draft.start,
            draft.target,
            kind.notification().map_or("", |_| ", notifies"),
            draft.wrong.map_or("", |_| ", wrong")
        );
        let tells = draft.id % 3 == 0;
        let mut command = *command;
        if tells {
            command.handle = draft.id;
            command.record = 0;
        }
        let plan = Plan {
            id: draft.id,
            target: draft.target,
            key: draft.imported.key,
            start: draft.start,
            length: draft.length,
            kind,
            tells,
            wrong: draft.wrong.map(Wrong::status),
        };
        let lane = lane(draft.target);
        lock(self.oracle).issue(self.slot, number, schedule.now(), plan);
        self.put_transfer(lane, &command, payload, is_write);
    }

    /// Puts a transfer into the queue, and counts it in its lane.
    pub(super) fn put_transfer(
        &mut self,
        lane: u8,
        command: &Command,
        payload: &[u8],
        is_write: bool,
    ) {
        let (writes, reads) = self.issued.entry(lane).or_default();
        *(if is_write { writes } else { reads }) += 1;
        let mut descriptor = command.descriptor();
        descriptor.header.lane = lane;
        self.put(&descriptor, payload);
    }

    /// Waits for all writes, all reads, or both; not for ever, as others may be slow.
    pub(super) fn flush(&mut self) -> Result<()> {
        let choice = self.schedule.below(3);
        self.block_until(Some(30_000_000), |worker| {
            worker.issued.iter().all(|(lane, (writes, reads))| {
                let done = worker.done(*lane);
                (choice == 0 || done.0 >= *writes) && (choice == 1 || done.1 >= *reads)
            })
        })?;
        Ok(())
    }

    /// Waits for a notification of some process, for a while.
    pub(super) fn listen(&mut self) -> Result<()> {
        let sender = self.schedule.below(self.common.settings.rdma_workers);
        let notification = first_notification(sender);
        let before = self.signals(notification);
        let limit = self.schedule.range(1000..1_000_000);
        self.block_until(Some(limit), |worker| worker.signals(notification) != before)?;
        Ok(())
    }

    /// Looks at some of its memory, which brings it in.
    pub(super) fn look_around(&mut self) -> Result<()> {
        let schedule = self.schedule;
        let (address, length) = self.ranges[schedule.below(2)];
        let mut bytes = vec![0; schedule.below(6000)];
        let at = address + schedule.range(0..length - bytes.len() as u64);
        let space = *self.process.space();
        match self.context.machine.kernel.read(space, at, &mut bytes) {
            Ok(()) => self.context.check_alive(),
            Err(_) => Err(Ended),
        }
    }
}
