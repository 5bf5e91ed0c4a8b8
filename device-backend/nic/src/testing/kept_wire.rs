//! A lossless wire that keeps frames, as the rings between the engines of a process do: a frame
//! arrives later than it is sent, and its payload lies in its sender's pages until then.

use std::collections::VecDeque;

use qnic_abi::wire::{Class, Frame};

use super::{Cluster, Memory};
use crate::{Host, Payload, Sent, Ticket};

/// A frame of a wire that keeps frames ([`Cluster::keeps`]).
#[derive(Debug)]
struct KeptFrame {
    frame: Frame,
    payload: KeptPayload,
}

/// The payload of such a frame.
#[derive(Debug)]
enum KeptPayload {
    /// It was read.
    Bytes(Vec<u8>),
    /// It lies in pages of its sender.
    Pages {
        pages: Vec<u64>,
        offset: usize,
        length: usize,
    },
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
        let payload = match *payload {
            Payload::Memory {
                pages,
                offset,
                length,
                ..
            } if windowed => KeptPayload::Pages {
                pages: pages.to_vec(),
                offset,
                length,
            },
            ref payload => {
                let mut bytes = vec![0; payload.len()];
                payload.read(&mut bytes).expect("a locked page");
                KeptPayload::Bytes(bytes)
            }
        };
        let place = self.arrived + self.frames.len() as u64;
        let sent = match payload {
            KeptPayload::Pages { .. } => Sent::Kept(Ticket { way: 0, place }),
            KeptPayload::Bytes(_) => Sent::Taken,
        };
        let frame = *frame;
        self.frames.push_back(KeptFrame { frame, payload });
        sent
    }

    /// As [`crate::Wire::is_done`].
    pub(super) fn is_done(&self, ticket: Ticket) -> bool {
        let place = ticket.place.checked_sub(self.arrived);
        let frame = place.and_then(|place| self.frames.get(place as usize));
        !frame.is_some_and(|frame| matches!(frame.payload, KeptPayload::Pages { .. }))
    }

    /// Reads all payloads of a node.
    pub(super) fn recall(&mut self, node: usize, memory: &Memory) {
        for kept in self.frames.iter_mut().filter(|kept| kept.source() == node) {
            let payload = kept.payload.lies_in(memory);
            let mut bytes = vec![0; payload.len()];
            payload.read(&mut bytes).expect("a locked page");
            kept.payload = KeptPayload::Bytes(bytes);
        }
    }
}

impl KeptPayload {
    /// What a NIC is given.
    fn lies_in<'a>(&'a self, memory: &'a Memory) -> Payload<'a, Memory> {
        match self {
            KeptPayload::Bytes(bytes) if bytes.is_empty() => Payload::None,
            KeptPayload::Bytes(bytes) => Payload::Bytes(bytes),
            KeptPayload::Pages {
                pages,
                offset,
                length,
            } => Payload::Memory {
                memory,
                pages,
                offset: *offset,
                length: *length,
            },
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
        let payload = arrived.payload.lies_in(source.host.memory());
        node.nic
            .handle_frame(now, &node.host, &arrived.frame, payload);
        true
    }
}
