//! What a verbs worker posts, right and wrong.

use qnic::provider::Memory as _;
use qnic_abi::verbs::rings::{
    AtomicOperands, DatagramOperands, MemoryOperands, SendEntry, SendFlags, Sge,
};
use qnic_abi::verbs::{Outcome, PathAddress, Request, Transport};
use qnic_abi::NodeId;
use zerocopy::{FromZeros, IntoBytes};

use super::ends::QKEY;
use super::oracle::{Address, Receive, Work, RECEIVE};
use super::{
    bytes_of, Spoil, VerbsWorker, Wrong, AREA, AREA_BYTES, BASE, END_BYTES, PLACE_BYTES, SHARED,
    WORD,
};
use crate::process::Result;
use crate::schedule::lock;

/// Inline bytes of a work request, at most.
const INLINE: u64 = 48;

/// Bytes of a datagram, at most: what its queue pair is told.
const DATAGRAM_BYTES: u64 = 1024;

impl VerbsWorker<'_> {
    /// The pieces of some bytes of an end.
    fn sges(&self, named: u64, (local, length): (u64, u64), key: u32) -> Vec<Sge> {
        let mut borders = [
            0,
            self.schedule.range(0..length + 1),
            self.schedule.range(0..length + 1),
            length,
        ];
        borders.sort_unstable();
        let pieces = borders.windows(2).map(|border| Sge {
            address: named.wrapping_add(local + border[0]).into(),
            length: ((border[1] - border[0]) as u32).into(),
            key: key.into(),
        });
        pieces.collect()
    }

    /// Posts a receive, if there is room; few are too short, or name no memory.
    pub(super) fn post_receive(&mut self, index: usize) -> Result<()> {
        let end = &mut self.ends[index];
        let Some(receives) = &end.receives else {
            return self.post_shared();
        };
        if !receives.has_room() {
            return Ok(());
        }
        let Some(local) = end.free_receives.pop() else {
            return Ok(());
        };
        let id = RECEIVE | lock(self.oracle).number();
        end.used.insert(id, local);
        let (name, base, named, key) = (end.name, end.base(), end.named, end.key);
        let wrong = self.schedule.chance(2);
        let short = self.schedule.chance(2);
        let length = if short { 10 } else { PLACE_BYTES };
        let key = if wrong { key ^ 1 } else { key };
        let sges = self.sges(named, (local, length), key);
        let receive = Receive {
            id,
            base,
            local,
            wrong: wrong || short,
            shared: false,
        };
        self.trace(format_args!("{name:?}: {length} bytes, {receive:?}"));
        lock(self.oracle).post_receive(name, receive);
        if let Some(receives) = &self.ends[index].receives {
            receives.post_receive(id, &sges);
        }
        Ok(())
    }

    /// Posts a receive to the shared queue, if there is room.
    fn post_shared(&mut self) -> Result<()> {
        let id = RECEIVE | lock(self.oracle).number();
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.ring.has_room()) else {
            return Ok(());
        };
        let Some(local) = shared.free.pop() else {
            return Ok(());
        };
        shared.used.insert(id, local);
        let (key, base) = (shared.key, BASE + SHARED);
        let sges = self.sges(base, (local, PLACE_BYTES), key);
        let receive = Receive {
            id,
            base,
            local,
            wrong: false,
            shared: true,
        };
        self.trace(format_args!("{receive:?}"));
        lock(self.oracle).post_shared(self.slot, receive);
        if let Some(shared) = &self.shared {
            shared.ring.post_receive(id, &sges);
        }
        Ok(())
    }

    /// Posts something, if there is room.
    pub(super) fn post(&mut self, index: usize) -> Result<()> {
        let end = &self.ends[index];
        let can = end.ready && !end.failed && end.sends.has_room();
        let (name, key) = (end.name, end.key);
        let peer = lock(self.oracle).peer(name);
        let Some(peer) = peer.filter(|_| can && lock(self.oracle).may_send(name)) else {
            return Ok(());
        };
        let Some(local) = self.ends[index].free_sends.pop() else {
            return Ok(());
        };
        let transport = self.ends[index].transport();
        let mistake = self.some_mistake(transport);
        let work = self.some_work(local, mistake, transport);
        self.ends[index].used.insert(work.id, local);
        let data = bytes_of(work.data, work.length);
        let sends_bytes = !matches!(
            work.request,
            Request::Read | Request::CompareSwap | Request::FetchAdd
        );
        let place = self.ends[index].base() - BASE + local;
        let inline = sends_bytes && work.length <= INLINE && self.schedule.chance(300);
        if sends_bytes && !inline {
            // Pages may have to be brought in.
            self.memory.write_bytes(place as usize, &data);
            self.context.check_alive()?;
        }
        let key = match mistake {
            Some((Wrong::OwnKey, _)) => key ^ 1,
            _ => key,
        };
        let named = self.ends[index].named;
        let range = (local, work.length);
        let (sges, bytes) = match inline {
            true => (Vec::new(), data),
            false => (self.sges(named, range, key), Vec::new()),
        };
        let entry = entry(&work, &peer, mistake, inline);
        self.trace(format_args!("{name:?}: {work:?}"));
        lock(self.oracle).post(name, work);
        let end = &mut self.ends[index];
        end.sends.post_send(entry, &sges, &bytes);
        end.unheard = true;
        // One call may tell of many.
        match self.schedule.chance(850) {
            true => self.tell(index),
            false => Ok(()),
        }
    }

    /// Tells the NIC of what is posted.
    pub(super) fn tell(&mut self, index: usize) -> Result<()> {
        let end = &mut self.ends[index];
        if !std::mem::take(&mut end.unheard) {
            return Ok(());
        }
        let sent = self.verbs.send(&end.pair);
        self.context.called("send", sent)
    }

    fn some_mistake(&self, transport: Transport) -> Option<Spoil> {
        let mistakes = [
            (Wrong::OwnKey, Outcome::LocalProtection),
            (Wrong::Opcode, Outcome::LocalOperation),
            (Wrong::Key, Outcome::RemoteAccess),
            (Wrong::Range, Outcome::RemoteAccess),
        ];
        // Nothing tells an unreliable one of what its peer refuses.
        let mistakes = match transport {
            Transport::Reliable => &mistakes[..],
            _ => &mistakes[..2],
        };
        let any = self.schedule.chance(6);
        any.then(|| mistakes[self.schedule.below(mistakes.len())])
    }

    fn some_work(&self, local: u64, mistake: Option<Spoil>, transport: Transport) -> Work {
        // A transport has the first ones.
        let requests = [
            Request::Send,
            Request::Send,
            Request::SendImmediate,
            Request::Write,
            Request::Write,
            Request::WriteImmediate,
            Request::Read,
            Request::CompareSwap,
            Request::FetchAdd,
        ];
        let (known, most) = match transport {
            Transport::Reliable => (requests.len(), PLACE_BYTES),
            Transport::Unreliable => (6, PLACE_BYTES),
            Transport::Datagram => (3, DATAGRAM_BYTES),
        };
        let mut request = requests[self.schedule.below(known)];
        if mistake.is_some() && transport != Transport::Datagram {
            request = Request::Write;
        }
        let longest = [64, 300, most][self.schedule.below(3)];
        let mut length = self.schedule.range(0..longest + 1);
        let mut remote = 0;
        match request {
            Request::CompareSwap | Request::FetchAdd => length = 8,
            Request::Send | Request::SendImmediate => {}
            _ => remote = self.schedule.range(0..AREA_BYTES - length + 1),
        }
        if mistake.is_some() {
            length = length.max(INLINE + 1);
            remote = remote.min(AREA_BYTES - length);
        }
        let number = lock(self.oracle).number();
        Work {
            id: number,
            request,
            signaled: self.schedule.chance(700),
            fence: self.schedule.chance(200),
            local,
            length,
            remote,
            data: number,
            immediate: self.schedule.any() as u32,
            // Words stay small, so that some are equal.
            operands: [self.schedule.range(0..3), self.schedule.range(0..3)],
            wrong: mistake.map(|(_, outcome)| outcome),
            issued: self.schedule.now(),
        }
    }
}

/// The entry of a work request.
fn entry(work: &Work, peer: &Address, mistake: Option<Spoil>, inline: bool) -> SendEntry {
    let wrong = mistake.map(|(wrong, _)| wrong);
    let mut entry = SendEntry::new_zeroed();
    entry.id = work.id.into();
    entry.opcode = match wrong {
        Some(Wrong::Opcode) => 9,
        _ => work.request as u32,
    }
    .into();
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SIGNALED, work.signaled);
    flags.set(SendFlags::FENCE, work.fence);
    flags.set(SendFlags::INLINE, inline);
    flags.set(SendFlags::SOLICITED, work.data % 3 == 0);
    entry.flags = flags.bits().into();
    entry.immediate = work.immediate.into();
    let key = match wrong {
        Some(Wrong::Key) => peer.key ^ 1,
        _ => peer.key,
    };
    let address = match wrong {
        Some(Wrong::Range) if work.data % 2 == 0 => peer.named.wrapping_sub(1),
        Some(Wrong::Range) => peer.named + END_BYTES + 1 - work.length,
        _ => peer.named + AREA + work.remote,
    };
    let operands = entry.operands.as_mut_bytes();
    match work.request {
        _ if peer.transport == Transport::Datagram => {
            let node = NodeId(peer.node as u16);
            let datagram = DatagramOperands {
                qp: peer.qp.into(),
                qkey: QKEY.into(),
                unused: 0.into(),
                path: PathAddress::new(node, 0, work.data % 2 == 0).0.into(),
            };
            operands[..size_of::<DatagramOperands>()].copy_from_slice(datagram.as_bytes());
        }
        Request::CompareSwap | Request::FetchAdd => {
            let atomic = AtomicOperands {
                address: (peer.named + WORD).into(),
                operand: work.operands[0].into(),
                swap: work.operands[1].into(),
                key: key.into(),
                unused: 0.into(),
            };
            operands[..size_of::<AtomicOperands>()].copy_from_slice(atomic.as_bytes());
        }
        _ => {
            let memory = MemoryOperands {
                address: address.into(),
                key: key.into(),
                unused: 0.into(),
            };
            operands[..size_of::<MemoryOperands>()].copy_from_slice(memory.as_bytes());
        }
    }
    entry
}
