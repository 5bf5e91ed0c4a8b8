//! A frame in a ring, and where its payload is.

use std::fmt::Debug;

use qnic_abi::wire::{Class, Frame, SPAN_PAGES};
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, HostMemory, Payload};

use super::ring::Item;

/// Payloads up to so many bytes go with the frame: copying them costs less than keeping their pages.
pub(super) const SMALL: usize = 128;

/// What a frame in a ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It goes to its destination. If it finds no route there, it comes back.
    Lossless,
    /// It goes to its destination, over a route that loses frames.
    Lossy,
    /// It found no route, and comes back to its source without its payload.
    Back,
}

/// A frame in a ring.
#[derive(Debug)]
pub(crate) struct RingFrame<M> {
    pub(crate) delivery: Delivery,
    pub(crate) channel: Channel,
    pub(crate) frame: Frame,
    content: Content<M>,
}

#[derive(Debug)]
enum Content<M> {
    None,
    Small {
        bytes: [u8; SMALL],
        length: u8,
    },
    Bytes(Vec<u8>),
    /// In pages of its source.
    Pages {
        memory: M,
        addresses: [u64; SPAN_PAGES],
        count: usize,
        offset: usize,
        length: usize,
    },
}

impl<M> Item for RingFrame<M>
where
    M: Debug,
{
    fn refers(&self) -> bool {
        matches!(self.content, Content::Pages { .. })
    }
}

impl<M: HostMemory + Clone> RingFrame<M> {
    /// A frame as it was sent. `None`: its payload cannot be read.
    pub(crate) fn new(
        delivery: Delivery,
        channel: Channel,
        frame: &Frame,
        payload: Payload<'_, M>,
    ) -> Option<Self> {
        let keeps = channel == Channel::Data && Class::of(frame.envelope.kind) == Class::Windowed;
        let content = match payload {
            Payload::Memory {
                memory,
                pages,
                offset,
                length,
            } if keeps && length > SMALL && pages.len() <= SPAN_PAGES => {
                let mut addresses = [0; SPAN_PAGES];
                addresses[..pages.len()].copy_from_slice(pages);
                Content::Pages {
                    memory: memory.clone(),
                    addresses,
                    count: pages.len(),
                    offset,
                    length,
                }
            }
            payload => Content::copied(&payload)?,
        };
        Some(RingFrame {
            delivery,
            channel,
            frame: *frame,
            content,
        })
    }

    /// A frame that comes back.
    pub(crate) fn back(frame: &Frame) -> Self {
        RingFrame {
            delivery: Delivery::Back,
            channel: Channel::Data,
            frame: *frame,
            content: Content::None,
        }
    }

    /// The node that has sent it, also if it comes back.
    pub(crate) fn source(&self) -> NodeId {
        NodeId(self.frame.envelope.source_node.get())
    }

    /// Its payload lies in pages of its source.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.content, Content::Pages { .. })
    }

    /// Its payload.
    pub(crate) fn payload(&self) -> Payload<'_, M> {
        match &self.content {
            Content::None => Payload::None,
            Content::Small { bytes, length } => Payload::Bytes(&bytes[..usize::from(*length)]),
            Content::Bytes(bytes) => Payload::Bytes(bytes),
            Content::Pages {
                memory,
                addresses,
                count,
                offset,
                length,
            } => Payload::Memory {
                memory,
                pages: &addresses[..*count],
                offset: *offset,
                length: *length,
            },
        }
    }

    /// Takes its payload out of the pages of its source, if it lies there. One that cannot be read
    /// any more is nothing but zeros: its NIC has no such memory.
    pub(super) fn recall(&mut self) {
        if self.is_kept() {
            let payload = self.payload();
            self.content =
                Content::copied(&payload).unwrap_or_else(|| Content::Bytes(vec![0; payload.len()]));
        }
    }
}

impl<M: HostMemory> Content<M> {
    fn copied(payload: &Payload<'_, M>) -> Option<Self> {
        Some(match payload.len() {
            0 => Content::None,
            length @ ..=SMALL => {
                let mut bytes = [0; SMALL];
                payload.read(&mut bytes[..length]).ok()?;
                Content::Small {
                    bytes,
                    length: length as u8,
                }
            }
            length => {
                let mut bytes = Vec::with_capacity(length);
                payload.read_into(&mut bytes).ok()?;
                Content::Bytes(bytes)
            }
        })
    }
}
