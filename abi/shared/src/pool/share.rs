//! One side's part of one pool: the queue that brings frames, the queue that takes them away, and
//! the frames that are here.

use qnic_abi::pool::{Pool, Queue, Shape, Slot};
use qnic_abi::SharedMemory;

use crate::pool::frame::{Frame, Malformed, Occupied, Packet, Taken};
use crate::pool::held::Held;
use crate::pool::queue::{Consumer, Producer};

#[derive(Debug)]
pub(crate) struct Share<K> {
    come: Consumer,
    go: Producer,
    held: Held,
    frame_bytes: usize,
    kind: core::marker::PhantomData<K>,
}

impl<K> Share<K> {
    /// A share with none of the frames, or with all.
    pub(crate) fn new(shape: Shape, pool: Pool, come: Queue, go: Queue, all: bool) -> Self {
        Share {
            come: Consumer::new(shape, come),
            go: Producer::new(shape, go),
            held: Held::new(shape.frames(pool), all),
            frame_bytes: shape.frame_bytes(),
            kind: core::marker::PhantomData,
        }
    }

    /// The next packet that the other side hands over.
    pub(crate) fn take<M: SharedMemory>(&mut self, memory: &M) -> Taken<Packet<K>> {
        let word = self.come.take(memory)?;
        Some(self.check(word).ok_or(Malformed))
    }

    fn check(&mut self, word: u64) -> Option<Packet<K>> {
        let slot = Slot::decode(word)?;
        if usize::from(slot.length) > self.frame_bytes || !self.held.insert(slot.index.into()) {
            return None;
        }
        Some(Packet {
            frame: Frame::new(slot.index),
            length: slot.length.into(),
            node: slot.node,
            port: slot.port,
        })
    }

    /// Hands over a packet, which is at most as long as a frame.
    pub(crate) fn put<M: SharedMemory>(
        &mut self,
        memory: &M,
        packet: Packet<K>,
    ) -> Result<(), Occupied<Packet<K>>> {
        debug_assert!(packet.length <= self.frame_bytes);
        let slot = Slot {
            index: packet.frame.index,
            length: packet.length as u16,
            node: packet.node,
            port: packet.port,
        };
        if !self.go.put(memory, slot.encode()) {
            return Err(Occupied(packet));
        }
        self.held.remove(packet.frame.index());
        Ok(())
    }

    /// Hands an empty frame over.
    pub(crate) fn put_empty<M: SharedMemory>(
        &mut self,
        memory: &M,
        frame: Frame<K>,
    ) -> Result<(), Occupied<Frame<K>>> {
        let packet = Packet {
            frame,
            length: 0,
            node: Default::default(),
            port: 0,
        };
        self.put(memory, packet)
            .map_err(|Occupied(packet)| Occupied(packet.frame))
    }

    /// Returns true if there is a packet to take.
    pub(crate) fn has_come<M: SharedMemory>(&self, memory: &M) -> bool {
        !self.come.is_empty(memory)
    }

    /// Returns true if the other side has a packet to take.
    pub(crate) fn has_unread<M: SharedMemory>(&self, memory: &M) -> bool {
        self.go.has_unread(memory)
    }
}
