//! An end of a connection: how it is made, connected and closed.

use std::collections::BTreeMap;

use qnic::provider::Memory as _;
use qnic_abi::verbs::requests::ModifyQueuePair;
use qnic_abi::verbs::{PathAddress, Rights, State, Transport, NUMBERS};
use qnic_abi::NodeId;
use qnic_driver::verbs::{Capacity, QueuePair, QueuePairOptions, Queues};
use qnic_driver::Failure;
use zerocopy::FromZeros;

use super::oracle::{Address, Name, RECEIVE};
use super::rings::ProgramRing;
use super::{made, VerbsWorker, BASE, ENDS, END_BYTES, PLACES, PLACE_BYTES, RECEIVES, WORD};
use crate::machine::platform::SimPlatform;
use crate::process::Result;
use crate::schedule::lock;
use crate::settings::Faults;

/// How long an end waits for its peer to accept, in nanoseconds.
const OFFERED: u64 = 20_000_000;

/// Protection domain of all.
pub(super) const DOMAIN: u32 = 7;

/// Key of all queue pairs for datagrams.
pub(super) const QKEY: u32 = 0x1234;

/// An end of a connection.
pub(super) struct End {
    transport: Transport,
    pub(super) name: Name,
    pub(super) pair: QueuePair<SimPlatform>,
    pub(super) sends: ProgramRing,
    /// `None`: its receives are those that its process shares.
    pub(super) receives: Option<ProgramRing>,
    /// Which part of the memory of its process it has.
    part: u64,
    /// What events of its queue pair name.
    pub(super) owner: u32,
    pub(super) key: u32,
    /// Address by which its key names the first byte.
    pub(super) named: u64,
    psn: u32,
    /// Its attributes.
    not_ready_retries: u8,
    /// Its NIC has not been told of all that is posted.
    pub(super) unheard: bool,
    /// It is connected.
    pub(super) ready: bool,
    /// Something has ended with an error.
    pub(super) failed: bool,
    /// It waits for its peer until then.
    pub(super) until: u64,
    /// Places that nothing uses, and those of work under way.
    pub(super) free_sends: Vec<u64>,
    pub(super) free_receives: Vec<u64>,
    pub(super) used: BTreeMap<u64, u64>,
}

impl End {
    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    pub(super) fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Address of its memory.
    pub(super) fn base(&self) -> u64 {
        BASE + self.part * END_BYTES
    }

    /// Work has ended: its places are free again.
    pub(super) fn ended(&mut self, ids: &[u64]) {
        for id in ids {
            match self.used.remove(id) {
                Some(place) if id & RECEIVE != 0 => self.free_receives.push(place),
                Some(place) => self.free_sends.push(place),
                None => {}
            }
        }
    }
}

fn options(transport: Transport, requests: [u32; 2], sges: u32) -> QueuePairOptions {
    let [sends, receives] = requests.map(|requests| Capacity { requests, sges });
    QueuePairOptions {
        transport,
        signal_all: false,
        domain: DOMAIN,
        sends,
        receives,
        inline: 48,
    }
}

impl VerbsWorker<'_> {
    /// Makes an end, which is not connected yet.
    fn new_end(&mut self, transport: Transport) -> Result<()> {
        let taken = |part: &u64| self.ends.iter().any(|end| end.part == *part);
        let part = (0..ENDS as u64).find(|part| !taken(part)).expect("a part");
        let (number, psn) = (lock(self.oracle).number(), self.some_psn());
        let requests = [3, 7, 15][self.schedule.below(3)];
        let owner = (
            number as u32,
            (self.slot as u64) << 32 | number & 0xffff_ffff,
        );
        let options = options(transport, [requests, 7], 3);
        let shared = self.shared.as_ref().filter(|_| self.schedule.chance(400));
        let pair = made(self.context, "queue pair", || {
            let queues = Queues {
                sends: &self.queue,
                receives: &self.queue,
                shared: shared.map(|shared| &shared.queue),
            };
            self.verbs.create_queue_pair(options, queues, owner.1)
        })?;
        let offset = self.schedule.range(0..1 << 40);
        let not_ready_retries = if self.schedule.chance(100) { 2 } else { 7 };
        self.ends.push(End {
            transport,
            name: (0, 0),
            sends: ProgramRing::new(pair.sends()),
            receives: pair.receives().map(|ring| ProgramRing::new(ring)),
            pair,
            part,
            owner: owner.0,
            key: 0,
            named: [BASE + part * END_BYTES, offset][self.schedule.below(2)],
            psn,
            not_ready_retries,
            unheard: false,
            ready: false,
            failed: false,
            until: self.schedule.now() + self.schedule.range(1000..OFFERED),
            free_sends: (0..PLACES).map(|place| place * PLACE_BYTES).collect(),
            free_receives: (0..PLACES)
                .map(|place| RECEIVES + place * PLACE_BYTES)
                .collect(),
            used: BTreeMap::new(),
        });
        self.context.check_alive()?;
        let end = self.ends.last().expect("it was added");
        let (base, named) = (end.base(), end.named);
        let word = base - BASE + WORD;
        self.memory.write_bytes(word as usize, &[0; 8]);
        let rights = Rights::LOCAL_WRITE
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_READ
            | Rights::REMOTE_ATOMIC;
        let range = (base, END_BYTES);
        let key = made(self.context, "memory", || {
            self.verbs.register(DOMAIN, range, named, rights)
        })?;
        self.ends.last_mut().expect("it was added").key = key;
        self.context.check_alive()
    }

    /// Some number of a message, often one of the last.
    fn some_psn(&self) -> u32 {
        let first = match self.schedule.chance(500) {
            true => NUMBERS - 10,
            false => 0,
        };
        self.schedule.range(first.into()..NUMBERS.into()) as u32
    }

    /// What the last end tells its peer.
    fn address(&self) -> (Address, u64) {
        let end = self.ends.last().expect("an end");
        let address = Address {
            transport: end.transport,
            shares: end.receives.is_none(),
            slot: self.slot,
            node: self.context.machine.incarnation.node,
            qp: end.number(),
            psn: end.psn,
            key: end.key,
            named: end.named,
        };
        (address, end.base())
    }

    /// Offers a connection to some process.
    pub(super) fn offer(&mut self) -> Result<()> {
        let Some(to) = lock(self.oracle).some_process(self.schedule) else {
            return self.context.think(500);
        };
        let transport = match self.schedule.below(10) {
            0..=5 => Transport::Reliable,
            6..=7 => Transport::Unreliable,
            _ => Transport::Datagram,
        };
        self.new_end(transport)?;
        let index = self.ends.len() - 1;
        let (weak, eager) = (
            self.ends[index].not_ready_retries < 7,
            self.schedule.chance(100),
        );
        let (address, now) = (self.address(), self.schedule.now());
        let number = lock(self.oracle).offer(address, to, (weak, eager), now);
        self.ends[index].name = (number, 0);
        self.trace(format_args!("offers connection {number} to {to}"));
        self.modify(index, State::Init, None)?;
        self.post_receive(index)
    }

    /// Accepts a connection.
    pub(super) fn accept(&mut self, connection: u64, peer: Address) -> Result<()> {
        self.new_end(peer.transport)?;
        let index = self.ends.len() - 1;
        self.ends[index].name = (connection, 1);
        self.trace(format_args!("accepts connection {connection}"));
        let (address, now) = (self.address(), self.schedule.now());
        let mut oracle = lock(self.oracle);
        if !oracle.accept(connection, address, now) {
            drop(oracle);
            return self.forget(index);
        }
        if self.ends[index].not_ready_retries < 7 {
            oracle.weaken((connection, 1));
        }
        drop(oracle);
        self.modify(index, State::Init, None)?;
        for _ in 0..self.schedule.range(0..4) {
            self.post_receive(index)?;
        }
        self.connect(index, peer)
    }

    /// Connects an end whose peer has accepted.
    pub(super) fn try_connect(&mut self, index: usize) -> Result<()> {
        let peer = lock(self.oracle).peer(self.ends[index].name);
        match peer {
            Some(peer) => self.connect(index, peer),
            None => Ok(()),
        }
    }

    fn connect(&mut self, index: usize, peer: Address) -> Result<()> {
        self.modify(index, State::ReadyToReceive, Some(peer))?;
        if self.schedule.chance(300) {
            self.context.think(500)?;
        }
        self.modify(index, State::ReadyToSend, Some(peer))?;
        let end = &mut self.ends[index];
        end.ready = true;
        lock(self.oracle).set_ready(end.name);
        lock(self.oracle).count("verbs connections");
        Ok(())
    }

    fn modify(&mut self, index: usize, state: State, peer: Option<Address>) -> Result<()> {
        let end = &self.ends[index];
        let mut change = ModifyQueuePair::new_zeroed();
        change.state = state as u8;
        change.access = Rights::all().bits() as u8;
        change.timeout = 10;
        change.retries = 7;
        change.mtu = 3;
        change.not_ready_timer = 1 + (end.psn % 12) as u8;
        change.not_ready_retries = end.not_ready_retries;
        change.max_reads = 1 + (end.psn % 4) as u8;
        change.max_peer_reads = 4;
        change.send_psn = end.psn.into();
        change.qkey = QKEY.into();
        if let Some(peer) = peer {
            change.path = PathAddress::new(NodeId(peer.node as u16), 0, false)
                .0
                .into();
            change.peer_qp = peer.qp.into();
            change.receive_psn = peer.psn.into();
        }
        let modified = self.verbs.modify(&end.pair, change);
        self.called("modify", modified)
    }

    /// Takes the key of an end back while it and its peer use it.
    pub(super) fn take_key_back(&mut self, index: usize) -> Result<()> {
        let end = &mut self.ends[index];
        let faults = self.context.common.settings.options.faults;
        if !faults.contains(Faults::REVOKE) || end.key == 0 {
            return Ok(());
        }
        lock(self.oracle).take_key_back(end.name);
        let key = std::mem::take(&mut end.key);
        let taken = self.verbs.deregister(key);
        self.called("the end of a key", taken)
    }

    /// Closes an end: all that is posted ends, and nothing of it is left.
    pub(super) fn close(&mut self, index: usize) -> Result<()> {
        let name = self.ends[index].name;
        self.trace(format_args!("closes {name:?}"));
        lock(self.oracle).close(name);
        self.modify(index, State::Failed, None)?;
        self.collect()?;
        lock(self.oracle).closed(name);
        self.forget(index)?;
        if let Some(shared) = self.shared.as_ref().filter(|_| self.ends.is_empty()) {
            let (used, left) = (shared.used.len(), shared.ring.filled());
            assert_eq!(
                used, left,
                "shared receives that have not ended, and those that are left"
            );
        }
        Ok(())
    }

    fn forget(&mut self, index: usize) -> Result<()> {
        let end = self.ends.swap_remove(index);
        self.verbs.destroy_queue_pair(end.pair);
        self.context.check_alive()?;
        match end.key {
            0 => Ok(()),
            key => {
                let taken: std::result::Result<(), Failure> = self.verbs.deregister(key);
                self.called("the end of a key", taken)
            }
        }
    }
}
