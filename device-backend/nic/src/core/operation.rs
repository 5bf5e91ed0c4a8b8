//! Operations: commands that were read and are not complete. Here is what they have in common in
//! all protocols, and the table of those of one process.
//!
//! ```text
//!   begun ──► ready ──► has a turn ──► waits: for an answer, a page, a window
//!     │         ▲                        │
//!     │         └────────────────────────┘
//!     └──► finished: its completion is told, its counter moves, an error is recorded, the slot is free
//! ```
//! A protocol keeps its own part of an operation by VNI and slot.
//!
//! ```text
//!   slots:   0 ──────────── 1,023 │ 1,024 ────────── 3,071
//!            counted              │ messages             a chunk of 64 is made when it is needed
//! ```
//! An operation that a completion counter counts has one of the first slots. A message may wait for
//! its receiver for any time. It has one of the other slots, so that no transfer waits behind it
//! (Q4).

use qnic_abi::host_area::OPERATIONS;
use qnic_abi::message::SENDS;
use qnic_abi::{Port, Status};

use super::order::Counter;
use super::sampling::Sample;
use super::turns::Turns;
use crate::ids::{OperationId, PeerIndex, ProtocolId};

/// Slots for operations of one process that a completion counter counts.
pub(crate) const OPERATION_SLOTS: usize = OPERATIONS as usize;

/// Slots for its messages, behind them.
pub(crate) const SEND_SLOTS: usize = SENDS as usize;

/// Slots that come about together.
pub(crate) const CHUNK: usize = 64;

const COUNTED_CHUNKS: usize = OPERATION_SLOTS / CHUNK;
const CHUNKS: usize = COUNTED_CHUNKS + SEND_SLOTS / CHUNK;

const _: () = assert!(OPERATION_SLOTS % CHUNK == 0 && SEND_SLOTS % CHUNK == 0);
const _: () = assert!(CHUNKS <= u64::BITS as usize && CHUNKS * CHUNK <= 1 << 12);

/// A command that runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operation {
    pub(crate) id: OperationId,
    pub(crate) protocol: ProtocolId,
    /// Number of the command, from 0 at registration.
    pub(crate) number: u64,
    /// What counts it when it is complete, and its number there.
    pub(crate) counter: Counter,
    pub(crate) lane: u8,
    pub(crate) order: u64,
    /// Zero, or the handle of its completion. Messages have theirs elsewhere.
    pub(crate) handle: u64,
    pub(crate) peer: PeerIndex,
    /// Port of the process at the other end.
    pub(crate) remote_port: Port,
    /// Waits for a page of its own process.
    pub(crate) faulted: bool,
    /// Waits for a window of its peer.
    pub(crate) blocked: bool,
    /// Why it was given up.
    pub(crate) failure: Option<Status>,
    /// Its stages are timed.
    pub(crate) sampled: bool,
}

impl Operation {
    /// Returns true if nothing of the NIC holds it back.
    pub(crate) fn may_send(&self) -> bool {
        !self.faulted && !self.blocked && self.failure.is_none()
    }

    /// Gives it up, if it was not before.
    pub(crate) fn fail(&mut self, status: Status) {
        self.failure.get_or_insert(status);
        self.faulted = false;
        self.blocked = false;
    }
}

/// Slots that stand together.
#[derive(Debug)]
struct Chunk {
    slots: Box<[Operation; CHUNK]>,
    samples: Box<[Option<Sample>; CHUNK]>,
    /// Bit *i*: slot *i* is in use.
    used: u64,
}

impl Chunk {
    fn new() -> Self {
        Chunk {
            slots: Box::new([Operation::default(); CHUNK]),
            samples: Box::new([None; CHUNK]),
            used: 0,
        }
    }

    fn running(&self) -> impl Iterator<Item = &Operation> {
        let mut used = self.used;
        std::iter::from_fn(move || {
            let slot = used.trailing_zeros() as usize;
            used &= used.wrapping_sub(1);
            self.slots.get(slot)
        })
    }
}

/// The operations of one process.
#[derive(Debug)]
pub(crate) struct OperationTable {
    /// Those of counted operations, then those of messages, as many as were needed.
    chunks: [Option<Chunk>; CHUNKS],
    /// Bit *i*: chunk *i* has no free slot.
    full: u64,
    counted: u32,
    sends: u32,
    turns: Turns,
    /// Messages to each process, so that the end of a peer looks through none of others.
    receivers: Tally<(PeerIndex, Port)>,
}

impl OperationTable {
    pub(crate) fn new() -> Self {
        OperationTable {
            chunks: [const { None }; CHUNKS],
            full: 0,
            counted: 0,
            sends: 0,
            turns: Turns::default(),
            receivers: Tally::default(),
        }
    }

    /// Number of operations that run and are counted.
    pub(crate) fn counted(&self) -> u32 {
        self.counted
    }

    /// Number of messages that run.
    pub(crate) fn sends(&self) -> u32 {
        self.sends
    }

    /// Number of all operations that run.
    pub(crate) fn count(&self) -> u32 {
        self.counted + self.sends
    }

    /// Takes a free slot for an operation, and gives it the name that `name` makes of that. `ready`:
    /// it can send a frame.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        operation: Operation,
        ready: bool,
        name: impl FnOnce(u16) -> OperationId,
    ) -> Option<OperationId> {
        let is_send = operation.counter == Counter::Own;
        let (first, end) = match is_send {
            true => (COUNTED_CHUNKS, CHUNKS),
            false => (0, COUNTED_CHUNKS),
        };
        let chunk = first + (self.full >> first).trailing_ones() as usize;
        if chunk >= end {
            return None;
        }
        let slots = self.chunks[chunk].get_or_insert_with(Chunk::new);
        let free = slots.used.trailing_ones() as usize;
        slots.used |= 1 << free;
        self.full |= u64::from(slots.used == u64::MAX) << chunk;
        let id = name((chunk * CHUNK + free) as u16);
        slots.slots[free] = Operation { id, ..operation };
        match is_send {
            true => {
                self.receivers.add((operation.peer, operation.remote_port));
                self.sends += 1;
            }
            false => self.counted += 1,
        }
        if ready {
            self.turns.push(operation.peer, id.slot());
        }
        Some(id)
    }

    /// Takes an operation out, if it still runs, and gives its slot back.
    #[inline]
    pub(crate) fn end(&mut self, id: OperationId) -> Option<&Operation> {
        let (index, bit) = place(id.slot());
        let chunk = self.chunks.get_mut(index)?.as_mut()?;
        let slot = &mut chunk.slots[usize::from(id.slot()) % CHUNK];
        if slot.id != id || id.0 == 0 {
            return None;
        }
        slot.id = OperationId::default();
        chunk.used &= !bit;
        self.full &= !(1 << index);
        self.turns.remove(slot.peer, id.slot());
        match slot.counter {
            Counter::Own => {
                self.sends -= 1;
                self.receivers.remove((slot.peer, slot.remote_port));
            }
            Counter::Writes | Counter::Reads => self.counted -= 1,
        }
        Some(slot)
    }

    #[inline]
    fn slot(&self, slot: u16) -> Option<&Operation> {
        let chunk = self.chunks.get(usize::from(slot) / CHUNK)?.as_ref()?;
        Some(&chunk.slots[usize::from(slot) % CHUNK])
    }

    /// The operation in a slot, if one runs there.
    #[inline]
    pub(crate) fn in_slot(&self, slot: u16) -> Option<OperationId> {
        let id = self.slot(slot)?.id;
        (id.0 != 0).then_some(id)
    }

    /// The operation of that name, if it still runs.
    #[inline]
    pub(crate) fn find(&mut self, id: OperationId) -> Option<&mut Operation> {
        let slot = usize::from(id.slot());
        let chunk = self.chunks.get_mut(slot / CHUNK)?.as_mut()?;
        let operation = &mut chunk.slots[slot % CHUNK];
        (operation.id == id && id.0 != 0).then_some(operation)
    }

    /// The operation of that name, if it still runs.
    #[inline]
    pub(crate) fn get(&self, id: OperationId) -> Option<&Operation> {
        let operation = self.slot(id.slot())?;
        (operation.id == id && id.0 != 0).then_some(operation)
    }

    /// Sets the sample of an operation, which may have none after all.
    pub(crate) fn set_sample(&mut self, id: OperationId, sample: Option<Sample>) {
        if let Some(operation) = self.find(id) {
            operation.sampled = sample.is_some();
        }
        if let Some(place) = self.sample_of(id.slot()) {
            *place = sample;
        }
    }

    /// The sample of an operation, if it still runs and has one.
    pub(crate) fn sample(&mut self, id: OperationId) -> Option<&mut Sample> {
        self.get(id)?;
        self.sample_of(id.slot())?.as_mut()
    }

    /// Takes the sample of an operation that has just ended.
    pub(crate) fn take_sample(&mut self, id: OperationId) -> Option<Sample> {
        self.sample_of(id.slot())?.take()
    }

    fn sample_of(&mut self, slot: u16) -> Option<&mut Option<Sample>> {
        let chunk = self.chunks.get_mut(usize::from(slot) / CHUNK)?.as_mut()?;
        Some(&mut chunk.samples[usize::from(slot) % CHUNK])
    }

    /// Operations that run.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Operation> {
        self.chunks.iter().flatten().flat_map(Chunk::running)
    }

    /// Operations that run with a peer, or with one process there.
    pub(crate) fn running_with(
        &self,
        peer: PeerIndex,
        port: Option<Port>,
    ) -> impl Iterator<Item = &Operation> {
        let first = (peer, port.unwrap_or(Port(0)));
        let last = (peer, port.unwrap_or(Port(u16::MAX)));
        let chunks = match self.receivers.any_in(first, last) {
            true => &self.chunks[..],
            false => &self.chunks[..COUNTED_CHUNKS],
        };
        let running = chunks.iter().flatten().flat_map(Chunk::running);
        running.filter(move |operation| {
            operation.peer == peer && port.is_none_or(|port| operation.remote_port == port)
        })
    }

    /// The other ends of all that run; of messages each but once for a process there.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerIndex> + '_ {
        let counted = self.chunks[..COUNTED_CHUNKS].iter().flatten();
        let counted = counted
            .flat_map(Chunk::running)
            .map(|operation| operation.peer);
        counted.chain(self.receivers.keys().map(|(peer, _)| peer))
    }

    /// Returns true if any operation can send a frame.
    pub(crate) fn any_ready(&self) -> bool {
        self.turns.any()
    }

    /// Notes whether an operation can send a frame.
    #[inline]
    pub(crate) fn set_ready(&mut self, id: OperationId, ready: bool) {
        let Some(peer) = self.get(id).map(|operation| operation.peer) else {
            return;
        };
        match ready {
            true => self.turns.push(peer, id.slot()),
            false => self.turns.remove(peer, id.slot()),
        }
    }

    /// The operation whose turn it is ([`super::turns`]). It can send no more until that is noted
    /// again.
    #[inline]
    pub(crate) fn take_turn(&mut self) -> Option<&Operation> {
        let slot = self.turns.pop()?;
        self.slot(slot)
    }
}

/// The chunk of a slot, and its bit there.
#[inline]
fn place(slot: u16) -> (usize, u64) {
    let slot = usize::from(slot);
    (slot / CHUNK, 1 << (slot % CHUNK))
}

/// Counts by key, in the order of the keys.
#[derive(Debug)]
pub(crate) struct Tally<K>(Vec<(K, u32)>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally(Vec::new())
    }
}

impl<K: Copy + Ord> Tally<K> {
    fn find(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by_key(&key, |(key, _)| *key)
    }

    /// Counts one more of a key.
    pub(crate) fn add(&mut self, key: K) {
        match self.find(key) {
            Ok(index) => self.0[index].1 += 1,
            Err(index) => self.0.insert(index, (key, 1)),
        }
    }

    /// Counts one less of a key, if there is any.
    pub(crate) fn remove(&mut self, key: K) {
        if let Ok(index) = self.find(key) {
            let count = &mut self.0[index].1;
            *count -= 1;
            if *count == 0 {
                self.0.remove(index);
            }
        }
    }

    /// Returns true if there is any of the keys from `first` to `last`.
    pub(crate) fn any_in(&self, first: K, last: K) -> bool {
        let index = self.find(first).unwrap_or_else(|index| index);
        self.0.get(index).is_some_and(|(key, _)| *key <= last)
    }

    /// The keys of which there are any.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.0.iter().map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::VniId;

    use super::*;

    fn begin(table: &mut OperationTable, counter: Counter, peer: u16) -> Option<OperationId> {
        let operation = Operation {
            counter,
            peer: PeerIndex(peer),
            remote_port: Port(7),
            ..Operation::default()
        };
        table.begin(operation, false, |slot| {
            OperationId::new(1, VniId(4095), slot)
        })
    }

    fn turns(table: &mut OperationTable, ready: &[OperationId], count: usize) -> Vec<u16> {
        let turn = |_| {
            let slot = table.take_turn()?.id.slot();
            for id in ready {
                table.set_ready(*id, true);
            }
            Some(slot)
        };
        (0..count).filter_map(turn).collect()
    }

    #[test]
    fn turns_go_round() {
        let mut table = OperationTable::new();
        let counted: Vec<_> = (0..OPERATIONS)
            .map(|_| begin(&mut table, Counter::Reads, 0).unwrap())
            .collect();
        assert_eq!(begin(&mut table, Counter::Reads, 0), None);
        let sends: Vec<_> = (0..SENDS)
            .map(|_| begin(&mut table, Counter::Own, 1).unwrap())
            .collect();
        assert_eq!(begin(&mut table, Counter::Own, 1), None);
        let slots = counted.iter().chain(&sends).map(|id| id.slot());
        assert!(slots.eq(0..3072));
        assert!(counted.iter().all(|id| id.vni() == VniId(4095)));
        assert_eq!((table.counted(), table.sends()), (1024, 2048));
        assert!(table.take_turn().is_none());
        let ready = [counted[5], counted[0], counted[1023], sends[0], sends[2047]];
        for id in ready {
            table.set_ready(id, true);
        }
        // A destination and then the other; of each, the one that has waited longest.
        let expected = [5, 1024, 0, 3071, 1023, 1024, 5, 3071, 0];
        assert_eq!(turns(&mut table, &ready, 9), expected);
        assert!(table.end(counted[5]).is_some());
        assert!(table.end(sends[2047]).is_some());
        assert_eq!(turns(&mut table, &ready, 4), [1024, 1023, 1024, 0]);
        assert_eq!((table.counted(), table.sends()), (1023, 2047));
        assert_eq!(begin(&mut table, Counter::Own, 1), Some(sends[2047]));
    }

    #[test]
    fn a_peer_has_those_that_run_with_it() {
        let mut table = OperationTable::new();
        let read = begin(&mut table, Counter::Reads, 1).unwrap();
        let sends = [1, 2, 1].map(|peer| begin(&mut table, Counter::Own, peer).unwrap());
        let with = |table: &OperationTable, peer, port| -> Vec<_> {
            let running = table.running_with(PeerIndex(peer), port);
            running.map(|operation| operation.id).collect()
        };
        assert_eq!(with(&table, 1, None), [read, sends[0], sends[2]]);
        assert_eq!(with(&table, 2, Some(Port(7))), [sends[1]]);
        assert_eq!(with(&table, 2, Some(Port(6))), []);
        assert!(table.peers().map(|peer| peer.0).eq([1, 1, 2]));
        assert!(table.end(sends[1]).is_some());
        assert!(table.end(sends[1]).is_none());
        assert_eq!(with(&table, 2, None), []);
        assert_eq!(table.running().count(), 3);
    }
}

#[cfg(test)]
mod tally_tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It counts as a map does in which nothing is zero.
        #[test]
        fn it_counts(steps in prop::collection::vec((any::<bool>(), 0u8..8), 0..200)) {
            let mut tally = Tally::default();
            let mut counts = BTreeMap::<u8, u32>::new();
            for (add, key) in steps {
                let count = counts.entry(key).or_default();
                match add {
                    true => {
                        tally.add(key);
                        *count += 1;
                    }
                    false => {
                        tally.remove(key);
                        *count = count.saturating_sub(1);
                    }
                }
                counts.retain(|_, count| *count > 0);
                prop_assert!(tally.keys().eq(counts.keys().copied()));
                for last in key..8 {
                    let any = counts.range(key..=last).next().is_some();
                    prop_assert_eq!(tally.any_in(key, last), any);
                }
            }
        }
    }
}
