//! A lossless wire that keeps frames, as the rings between the engines of a process do: a frame
//! arrives later than it is sent, and its payload lies in its sender's pages until then.

use std::collections::VecDeque;

use qnic_abi::wire::{Class, Frame};

use super::{Cluster, Memory};
use crate::{Host, HostMemory, Payload, Sent, Ticket};

/// A frame of a wire that keeps frames ([`Cluster::keeps`]).
#[derive(Debug)]
struct KeptFrame {
    frame: Frame,
    payload: KeptPayload,
}

/// The payload of a frame that a wire keeps.
#[derive(Debug)]
pub enum KeptPayload {
    /// It was read.
    Bytes(Vec<u8>),
    /// It lies in pages of its sender.
    Pages {
        /// Their addresses.
        pages: Vec<u64>,
        /// Of the first byte in the first page.
        offset: usize,
        /// In bytes.
        length: usize,
    },
}

impl KeptPayload {
    /// Takes the payload of a frame: leaves it in pages, if it lies there and `keeps` says so.
    ///
    /// # Panics
    /// If it is out of reach.
    pub fn take<M: HostMemory>(payload: &Payload<'_, M>, keeps: bool) -> Self {
        match *payload {
            Payload::Memory {
                pages,
                offset,
                length,
                ..
            } if keeps => KeptPayload::Pages {
                pages: pages.to_vec(),
                offset,
                length,
            },
            ref payload => {
                let mut bytes = vec![0; payload.len()];
                payload.read(&mut bytes).expect("memory that is there");
                KeptPayload::Bytes(bytes)
            }
        }
    }

    /// Returns true if its sender may not reuse its pages.
    pub fn is_in_pages(&self) -> bool {
        matches!(self, KeptPayload::Pages { .. })
    }

    /// What a NIC is given; `memory` is that of the sender.
    ///
    /// # Panics
    /// If it lies in memory that is gone.
    pub fn lies_in<'a, M: HostMemory>(&'a self, memory: Option<&'a M>) -> Payload<'a, M> {
        match self {
            KeptPayload::Bytes(bytes) if bytes.is_empty() => Payload::None,
            KeptPayload::Bytes(bytes) => Payload::Bytes(bytes),
            KeptPayload::Pages {
                pages,
                offset,
                length,
            } => Payload::Memory {
                memory: memory.expect("memory of the sender"),
                pages,
                offset: *offset,
                length: *length,
            },
        }
    }

    /// Copies what lies in pages.
    pub fn recall<M: HostMemory>(&mut self, memory: &M) {
        if self.is_in_pages() {
            *self = Self::take(&self.lies_in(Some(memory)), false);
        }
    }
}

impl KeptFrame {
    fn source(&self) -> usize {
        self.frame.envelope.source_node.get().into()
    }
}

/// The frames of a wire that keeps them, in the order in which they were sent.
#[derive(Debug, Default)]
pub(super) struct KeptFrames {
    frames: VecDeque<KeptFrame>,
    /// How many have arrived.
    arrived: u64,
}

impl KeptFrames {
    /// Takes a frame.
    pub(super) fn push(&mut self, frame: &Frame, payload: &Payload<'_, Memory>) -> Sent {
        let windowed = Class::of(frame.envelope.kind) == Class::Windowed;
        let payload = KeptPayload::take(payload, windowed);
        let place = self.arrived + self.frames.len() as u64;
        let sent = match payload.is_in_pages() {
            true => Sent::Kept(Ticket { way: 0, place }),
            false => Sent::Taken,
        };
        let frame = *frame;
        self.frames.push_back(KeptFrame { frame, payload });
        sent
    }

    /// As [`crate::Wire::is_done`].
    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        let place = ticket.place.checked_sub(self.arrived);
        let frame = place.and_then(|place| self.frames.get(place as usize));
        !frame.is_some_and(|frame| frame.payload.is_in_pages())
    }

    /// Reads all payloads of a node.
    pub(super) fn recall(&mut self, node: usize, memory: &Memory) {
        for kept in self.frames.iter_mut().filter(|kept| kept.source() == node) {
            kept.payload.recall(memory);
        }
    }
}

impl Cluster {
    /// The wire keeps frames from now on, with their payloads in the pages of their senders, until
    /// [`Cluster::arrive`] or [`Cluster::run`].
    pub fn keep_frames(&mut self) {
        self.kept = Some(KeptFrames::default());
    }

    /// Frames that the wire keeps.
    pub fn kept_frames(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.frames.len())
    }

    /// Hands over the oldest frame that is kept, or returns it to its sender if its destination
    /// does not run. Returns false if there is none.
    pub fn arrive(&mut self) -> bool {
        let now = self.now;
        let Some(kept) = self.kept.as_mut() else {
            return false;
        };
        let Some(arrived) = kept.frames.pop_front() else {
            return false;
        };
        kept.arrived += 1;
        let from = arrived.source();
        let to = usize::from(arrived.frame.envelope.destination_node.get());
        let (first, second) = self.nodes.split_at_mut(from.max(to));
        let (source, node) = match from < to {
            true => (&mut first[from], &mut second[0]),
            false => (&mut second[0], &mut first[to]),
        };
        if !node.nic.is_running() {
            source
                .nic
                .handle_returned(now, &source.host, &arrived.frame);
            return true;
        }
        let payload = arrived.payload.lies_in(Some(source.host.memory()));
        node.nic
            .handle_frame(now, &node.host, &arrived.frame, payload);
        true
    }
}
