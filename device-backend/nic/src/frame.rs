//! Frames that have arrived: those being received ([`Arrival`]), and those kept ([`StoredFrame`]).

use qnic_abi::wire::{Body, Class, Frame};
use qnic_abi::Port;

use crate::env::{Payload, Time};
use crate::ids::{OperationId, PeerIndex};

/// A frame that is being received, or a part of one.
#[derive(Debug)]
pub(crate) struct Arrival<'a, M> {
    /// The peer that sent it.
    pub(crate) peer: PeerIndex,
    pub(crate) frame: &'a Frame,
    pub(crate) payload: Payload<'a, M>,
    /// It does not notify, whatever it says: another frame of its operation was refused.
    pub(crate) silenced: bool,
    /// When it came, if it is sampled.
    pub(crate) received: Option<Sampled>,
}

/// A frame that was chosen, when it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampled {
    pub(crate) time: Time,
    /// Its times go into histograms.
    pub(crate) counted: bool,
    /// A trace shows its operation.
    pub(crate) traced: bool,
}

impl Sampled {
    /// The same for a further part of the frame: its times do not count again.
    pub(crate) fn further(self) -> Option<Self> {
        let counted = false;
        self.traced.then_some(Sampled { counted, ..self })
    }
}

impl<M> Clone for Arrival<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Arrival<'_, M> {}

impl<M> Arrival<'_, M> {
    /// The body of the frame.
    #[inline]
    pub(crate) fn body<B: Body>(&self) -> B {
        self.frame.body()
    }

    /// The operation that the frame belongs to, at its requester.
    pub(crate) fn operation(&self) -> OperationId {
        OperationId(self.frame.envelope.operation.get())
    }
}

/// Names a frame that was received and is not delivered. It names nothing once the
/// session that the frame came in has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldFrame {
    pub(crate) peer: PeerIndex,
    pub(crate) incarnation: u32,
    pub(crate) sequence: u64,
}

/// A frame that was received and is kept until its turn comes, or its pages do.
#[derive(Debug)]
pub(crate) struct StoredFrame {
    /// The peer that sent it.
    pub(crate) peer: PeerIndex,
    pub(crate) frame: Frame,
    /// A copy of its payload: bounce memory (N14).
    pub(crate) payload: Box<[u8]>,
    /// Its place among the frames that the peer knows not to be delivered, if its class
    /// is Windowed.
    pub(crate) held: Option<HeldFrame>,
    /// It does not notify any more.
    pub(crate) silenced: bool,
    /// When it came, if it is sampled.
    pub(crate) received: Option<Sampled>,
}

impl StoredFrame {
    /// A frame without a payload.
    pub(crate) fn request(peer: PeerIndex, frame: &Frame) -> Self {
        StoredFrame {
            peer,
            frame: *frame,
            payload: Box::default(),
            held: None,
            silenced: false,
            received: None,
        }
    }

    /// The frame as if it arrived now.
    pub(crate) fn arrival<M>(&self) -> Arrival<'_, M> {
        Arrival {
            peer: self.peer,
            frame: &self.frame,
            payload: match self.payload.is_empty() {
                true => Payload::None,
                false => Payload::Bytes(&self.payload),
            },
            silenced: self.silenced,
            // Its sample ends when it is dropped.
            received: None,
        }
    }

    /// Returns true if the process on a port of a peer sent it before a frame of that
    /// number, and waits for an answer.
    pub(crate) fn is_request_of(&self, peer: PeerIndex, port: Port, before: u64) -> bool {
        let envelope = &self.frame.envelope;
        self.peer == peer
            && Class::of(envelope.kind) == Class::Control
            && envelope.source_port.get() == port.0
            && envelope.sequence.get() < before
    }
}
