//! What a queue pair receives: its receive queue, and the position that it expects
//! ([`qnic_abi::verbs::frames`]).

use std::collections::VecDeque;

use qnic_abi::verbs::NUMBERS;

use super::entry::Receive;
use super::kept::Kept;
use super::receive_queue::ReceiveQueue;
use crate::core::PageRange;
use crate::env::HostMemory;

/// A frame, as far as the position is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It is expected.
    Expected,
    /// It is sent again.
    Again,
    /// It is out of sequence.
    Elsewhere,
}

/// The receiving half of a queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    /// Its receive queue, unless it uses one that is shared.
    pub(super) own: Option<ReceiveQueue>,
    /// Number of the message that is expected.
    psn: u32,
    /// Bytes of it that are stored.
    pub(super) offset: u64,
    /// What is not at the position is sent again.
    pub(super) rewound: bool,
    /// The receive of the message, and all its bytes.
    pub(super) current: Option<(Receive, u64)>,
    /// The operation of the peer whose frame waits for a page.
    pub(super) waits: Option<u64>,
    /// Numbers of the reads that are being answered, and how many bytes of each were sent.
    pub(super) reads: Vec<(u32, u64)>,
    /// The driver knows that something has come.
    pub(super) established: bool,
    /// Without acknowledgements: frames that wait for a page, in their order.
    pub(super) kept: VecDeque<Kept>,
    /// Likewise: a page is on its way.
    pub(super) fetches: Option<PageRange>,
}

impl Responder {
    pub(super) fn new(own: Option<ReceiveQueue>) -> Self {
        Responder {
            own,
            psn: 0,
            offset: 0,
            rewound: false,
            current: None,
            waits: None,
            reads: Vec::new(),
            established: false,
            kept: VecDeque::new(),
            fetches: None,
        }
    }

    /// Expects a message of that number first.
    pub(super) fn restart(&mut self, psn: u32) {
        self.psn = psn;
        self.offset = 0;
        self.rewound = false;
        self.current = None;
        self.waits = None;
        self.reads.clear();
        self.established = false;
    }

    /// Without acknowledgements: another message begins, of so many bytes. A receive that was taken for
    /// one that is lost is for this one.
    pub(super) fn begin(&mut self, psn: u32, length: u64) {
        self.psn = psn;
        self.offset = 0;
        if let Some((_, whole)) = &mut self.current {
            *whole = length;
        }
    }

    /// Number of the message that is expected.
    pub(super) fn psn(&self) -> u32 {
        self.psn
    }

    /// Where a frame stands. One that is expected ends the rewinding.
    pub(super) fn place(&mut self, psn: u32, offset: u64) -> Place {
        // While it waits for a page, the peer has not been told to go on.
        if (psn, offset) == (self.psn, self.offset) && self.waits.is_none() {
            self.rewound = false;
            return Place::Expected;
        }
        match self.rewound {
            true => Place::Again,
            false => Place::Elsewhere,
        }
    }

    /// Goes on to the next message: this one needs no receive.
    pub(super) fn pass(&mut self) {
        self.psn = (self.psn + 1) % NUMBERS;
        self.offset = 0;
    }

    /// The message is complete, and the receive that it has taken, if it needs one.
    pub(super) fn complete(&mut self, needs: bool) -> Option<Receive> {
        self.pass();
        let taken = if needs { self.current.take() } else { None };
        taken.map(|(receive, _)| receive)
    }

    /// Takes the oldest receive out: its identifier. `None`: there is none of its own.
    pub(super) fn pop_failed<M: HostMemory>(&mut self, memory: &M) -> Option<u64> {
        match (self.current.take(), &mut self.own) {
            (Some((receive, _)), _) => Some(receive.id),
            (None, own) => own.as_mut()?.pop_failed(memory),
        }
    }

    /// Forgets what was posted to it, without completions.
    pub(super) fn discard<M: HostMemory>(&mut self, memory: &M) {
        if let Some(own) = &mut self.own {
            own.discard(memory);
        }
        self.restart(0);
    }
}
