//! What the oracle knows of a connection: its halves, and what is posted to them.

use std::collections::VecDeque;

use qnic_abi::verbs::{Outcome, Request, Transport};

use super::super::AREA_BYTES;
use crate::expected_bytes::ExpectedBytes;

/// Messages and writes whose frames a NIC keeps for a queue pair, at least.
const KEPT: usize = 20;

/// A work request of a send queue.
#[derive(Debug, Clone)]
pub(in super::super) struct Work {
    pub(in super::super) id: u64,
    pub(in super::super) request: Request,
    pub(in super::super) signaled: bool,
    pub(in super::super) fence: bool,
    /// Where its bytes are, in the memory of its half.
    pub(in super::super) local: u64,
    pub(in super::super) length: u64,
    /// Where they go to or come from, in the area of the peer.
    pub(in super::super) remote: u64,
    /// What its bytes are made of.
    pub(in super::super) data: u64,
    pub(in super::super) immediate: u32,
    pub(in super::super) operands: [u64; 2],
    /// It is a mistake, and ends so.
    pub(in super::super) wrong: Option<Outcome>,
    pub(in super::super) issued: u64,
}

impl Work {
    pub(super) fn is_write(&self) -> bool {
        matches!(self.request, Request::Write | Request::WriteImmediate)
    }

    /// Returns true if it ends a receive of the peer.
    pub(super) fn needs_receive(&self) -> bool {
        !matches!(
            self.request,
            Request::Write | Request::Read | Request::CompareSwap | Request::FetchAdd
        )
    }

    /// The immediate that the peer gets.
    fn told(&self) -> Option<u32> {
        let has = matches!(
            self.request,
            Request::SendImmediate | Request::WriteImmediate
        );
        has.then_some(self.immediate)
    }

    /// The message that it is.
    pub(super) fn message(&self, may_be_lost: bool) -> Message {
        Message {
            may_be_lost,
            data: (!self.is_write()).then_some(self.data),
            length: self.length,
            immediate: self.told(),
            id: self.id,
        }
    }

    /// The write that it is.
    pub(super) fn written(&self, may_be_lost: bool) -> Written {
        Written {
            may_be_lost,
            id: self.id,
            data: self.data,
            remote: self.remote,
            length: self.length,
        }
    }

    /// What an atomic operation makes of a word.
    pub(super) fn change(&self, word: u64) -> u64 {
        let [operand, swap] = self.operands;
        match self.request {
            Request::CompareSwap if word == operand => swap,
            Request::CompareSwap => word,
            _ => word.wrapping_add(operand),
        }
    }
}

/// A receive.
#[derive(Debug, Clone)]
pub(in super::super) struct Receive {
    pub(in super::super) id: u64,
    /// Where its bytes go, from an address on.
    pub(in super::super) base: u64,
    pub(in super::super) local: u64,
    pub(in super::super) wrong: bool,
    /// It is one of a shared queue.
    pub(in super::super) shared: bool,
}

/// What a half has sent, and its peer has not received.
#[derive(Debug, Clone)]
pub(super) struct Message {
    /// That of its work request.
    pub(super) id: u64,
    /// What the bytes of a Send are made of.
    pub(super) data: Option<u64>,
    pub(super) length: u64,
    pub(super) immediate: Option<u32>,
    /// There may have been no receive for it, or too much before it.
    pub(super) may_be_lost: bool,
}

/// A write of an unreliable connection.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// That of its work request.
    pub(super) id: u64,
    /// What its bytes are made of.
    pub(super) data: u64,
    /// Where they go, in the area of the peer.
    pub(super) remote: u64,
    pub(super) length: u64,
    /// There may have been no receive for it, or too much before it.
    pub(super) may_be_lost: bool,
}

/// What a queue pair tells its peer.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Address {
    pub(in super::super) transport: Transport,
    /// Its receives are those that its process shares.
    pub(in super::super) shares: bool,
    pub(in super::super) slot: usize,
    pub(in super::super) node: usize,
    pub(in super::super) qp: u32,
    pub(in super::super) psn: u32,
    pub(in super::super) key: u32,
    /// Address by which the key names the first byte.
    pub(in super::super) named: u64,
}

/// One end of a connection.
pub(super) struct Half {
    pub(super) address: Address,
    /// Address of its memory.
    pub(super) base: u64,
    /// It can send and receive.
    pub(super) ready: bool,
    /// It has sent all that it will.
    pub(super) finished: bool,
    /// It is being closed, or its process has ended.
    pub(super) over: bool,
    /// Nothing of it is left, or its process has ended.
    pub(super) gone: bool,
    /// Something of its send queue has ended with an error.
    pub(super) sends_failed: bool,
    /// The same of its receives.
    pub(super) receives_failed: bool,
    /// Its process has had a page that could not be brought in, or it has taken its key back.
    pub(super) weak: bool,
    /// It has made a mistake.
    pub(super) mistaken: bool,
    /// Something was flushed of which only its own mistake can be the reason, and whether an error
    /// has said so.
    pub(super) flushed: bool,
    pub(super) blamed: bool,
    pub(super) works: VecDeque<Work>,
    pub(super) receives: VecDeque<Receive>,
    /// The last shared receive that has ended for it, or zero.
    pub(super) last_shared: u64,
    pub(super) messages: VecDeque<Message>,
    /// Writes of an unreliable connection, from the last message on that has come.
    pub(super) writes: Vec<Written>,
    /// Messages that have ended well for it.
    pub(super) confirmed: u64,
    /// Messages that it has received.
    pub(super) received: u64,
    /// What must stand in the area of its peer.
    pub(super) area: ExpectedBytes,
    /// What must stand in the word of its peer, if that is known.
    pub(super) word: Option<u64>,
}

impl Half {
    /// Returns true if what it sends may be lost, and nothing tells.
    pub(super) fn is_unreliable(&self) -> bool {
        self.address.transport != Transport::Reliable
    }

    /// Returns true if something of it has ended with an error.
    pub(super) fn has_failed(&self) -> bool {
        self.sends_failed || self.receives_failed
    }

    pub(super) fn new(address: Address, base: u64, weak: bool) -> Self {
        let mut area = ExpectedBytes::new(AREA_BYTES);
        area.open(0, AREA_BYTES);
        Half {
            address,
            base,
            ready: false,
            finished: false,
            over: false,
            gone: false,
            sends_failed: false,
            receives_failed: false,
            weak,
            mistaken: false,
            flushed: false,
            blamed: false,
            works: VecDeque::new(),
            receives: VecDeque::new(),
            last_shared: 0,
            messages: VecDeque::new(),
            writes: Vec::new(),
            confirmed: 0,
            received: 0,
            area,
            word: Some(0),
        }
    }
}

/// Two queue pairs, the second once it is there.
pub(super) struct Connection {
    /// Slot of the second.
    pub(super) to: usize,
    pub(super) halves: Vec<Half>,
    pub(super) begun: u64,
    /// Its second half sends although the first may not be ready.
    pub(super) eager: bool,
    /// One of its processes has had a page that could not be brought in, or has taken its key back;
    /// or its route was disturbed; or it does not wait for receives for ever.
    pub(super) weak: bool,
}

impl Connection {
    /// Something has happened that lets work of it fail.
    pub(super) fn may_fail(&self) -> bool {
        self.weak || self.halves.iter().any(|half| half.mistaken)
    }

    /// Returns true if the peer of an unreliable half may have to drop what this one posts next: it
    /// does not receive yet, or its NIC has no receive for it, or no room to keep it while a page is absent.
    pub(super) fn may_lose(&self, side: usize, work: &Work) -> bool {
        let Some(peer) = self.halves.get(1 - side).filter(|peer| peer.ready) else {
            return true;
        };
        let half = &self.halves[side];
        let receives = peer.receives.len();
        let lacks = peer.address.shares || receives <= half.messages.len();
        work.needs_receive() && lacks || half.messages.len() + half.writes.len() >= KEPT
    }

    /// A half and its peer.
    pub(super) fn split(&mut self, side: usize) -> (&mut Half, Option<&mut Half>) {
        let (first, second) = self.halves.split_at_mut(1);
        match side {
            0 => (&mut first[0], second.first_mut()),
            _ => (&mut second[0], first.first_mut()),
        }
    }
}
