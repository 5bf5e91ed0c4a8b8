//! What a queue pair receives: its receive queue, and the position that it expects
//! ([`qnic_abi::verbs::frames`]).

use qnic_abi::verbs::{Outcome, NUMBERS};

use super::entry::Receive;
use super::ring::RingMemory;
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
    ring: RingMemory,
    /// Most pieces of a receive.
    sges: usize,
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
}

impl Responder {
    pub(super) fn new(ring: RingMemory, sges: usize) -> Self {
        Responder {
            ring,
            sges,
            psn: 0,
            offset: 0,
            rewound: false,
            current: None,
            waits: None,
            reads: Vec::new(),
            established: false,
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

    /// Takes a receive for a message of so many bytes, unless that was done. `Ok(false)`: none is
    /// posted.
    ///
    /// # Errors
    /// Why nothing can be received by it.
    pub(super) fn take<M: HostMemory>(&mut self, memory: &M, length: u64) -> Result<bool, Outcome> {
        if self.current.is_some() {
            return Ok(true);
        }
        let own = self.ring.own();
        if self.ring.filled(memory, own) == 0 {
            return Ok(false);
        }
        let receive = Receive::read(&self.ring, memory, own, self.sges)?;
        self.current = Some((receive, length));
        Ok(true)
    }

    /// Goes on to the next message: this one needs no receive.
    pub(super) fn pass(&mut self) {
        self.psn = (self.psn + 1) % NUMBERS;
        self.offset = 0;
    }

    /// The message is complete, and the receive that it has taken.
    pub(super) fn complete<M: HostMemory>(&mut self, memory: &M) -> Option<Receive> {
        self.pass();
        let (receive, _) = self.current.take()?;
        self.ring
            .publish(memory, self.ring.behind(self.ring.own(), 1));
        Some(receive)
    }

    /// Takes the oldest receive out: its identifier. `None`: there is none.
    pub(super) fn pop_failed<M: HostMemory>(&mut self, memory: &M) -> Option<u64> {
        let own = self.ring.own();
        let id = match self.current.take() {
            Some((receive, _)) => receive.id,
            None if self.ring.filled(memory, own) == 0 => return None,
            None => self.ring.identifier(memory, own),
        };
        self.ring.publish(memory, self.ring.behind(own, 1));
        Some(id)
    }

    /// Forgets what was posted, without completions.
    pub(super) fn discard<M: HostMemory>(&mut self, memory: &M) {
        let producer = self.ring.other(memory);
        self.ring.publish(memory, producer);
        self.restart(0);
    }
}
