//! The end of a way at which frames are sent: of two rings, one for small frames (U4).
//!
//! | frame | its ring |
//! |---|---|
//! | small, and its [`Order`] allows that it overtakes | the short one, unless that is full, or a frame that must not be overtaken is in the other one |
//! | any other | the long one |
//!
//! What the long ring has no room for waits here, in order, and is counted for the node that it comes
//! from: a node that sends faster than another engine takes harms no other node.
//!
//! | frame | of one node, at most | beyond |
//! |---|---|---|
//! | may be lost: Unreliable, or over a route that loses frames | [`MOST_LOSSY`] | it is lost |
//! | any other | [`MOST`] | there is no route, and the session ends |
//! | comes back | as many as have come | |

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;

use qnic_abi::wire::Class;
use qnic_abi::NodeId;
use qnic_nic::env::{Channel, HostMemory, Order};
use qnic_nic::order_of;

use super::frame::{Delivery, RingFrame};
use super::ring::Producer;
use super::Alarm;

/// Frames of one node that wait and may be lost.
pub(super) const MOST_LOSSY: usize = 1024;

/// Frames of one node that wait: more than its windows and numbers allow while all goes well.
pub(super) const MOST: usize = 1 << 16;

/// What has become of a frame at an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// It has this place among all of the long ring.
    At(u64),
    /// It is in the short ring: nothing of its sender is needed any more.
    First,
    /// It is lost, as its kind or its route allows.
    Lost,
    /// Its node has too many there.
    Refused,
}

/// Sends frames to one engine.
#[derive(Debug)]
pub(crate) struct Outbox<M: Debug> {
    small: Producer<RingFrame<M>>,
    producer: Producer<RingFrame<M>>,
    /// The place of the last frame of the long ring that must not be overtaken.
    between: Option<u64>,
    /// What the long ring has no room for.
    waiting: VecDeque<RingFrame<M>>,
    /// How many of them each node has.
    of_node: BTreeMap<NodeId, usize>,
    alarm: Arc<Alarm>,
    /// There is a frame that the engine may not know of.
    must_signal: bool,
}

impl<M: HostMemory + Clone + Debug> Outbox<M> {
    pub(super) fn new([small, producer]: [Producer<RingFrame<M>>; 2], alarm: Arc<Alarm>) -> Self {
        Outbox {
            small,
            producer,
            between: None,
            waiting: VecDeque::new(),
            of_node: BTreeMap::new(),
            alarm,
            must_signal: false,
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&mut self, frame: RingFrame<M>) -> Put {
        let order = order_of(frame.frame.envelope.kind);
        let frame = match frame.channel {
            Channel::Priority if order == Order::Free && !self.is_between() => {
                match self.small.push(frame) {
                    Ok(()) => {
                        self.must_signal = true;
                        return Put::First;
                    }
                    Err(frame) => frame,
                }
            }
            _ => frame,
        };
        let put = self.send_behind(frame);
        if let (Order::Between, Put::At(place)) = (order, put) {
            self.between = Some(place);
        }
        put
    }

    /// Returns true if a frame is under way that must not be overtaken.
    fn is_between(&mut self) -> bool {
        self.between = self.between.filter(|place| !self.is_done(*place));
        self.between.is_some()
    }

    /// Sends a frame behind all others.
    fn send_behind(&mut self, frame: RingFrame<M>) -> Put {
        let frame = match self.waiting.is_empty() {
            true => {
                let place = self.producer.put();
                match self.producer.push(frame) {
                    Ok(()) => {
                        self.must_signal = true;
                        return Put::At(place);
                    }
                    Err(frame) => frame,
                }
            }
            false => frame,
        };
        self.wait(frame)
    }

    #[cold]
    fn wait(&mut self, frame: RingFrame<M>) -> Put {
        let of_node = self.of_node.entry(frame.source()).or_default();
        let lossy = frame.delivery == Delivery::Lossy
            || Class::of(frame.frame.envelope.kind) == Class::Unreliable;
        if lossy && *of_node >= MOST_LOSSY {
            return Put::Lost;
        }
        if frame.delivery == Delivery::Lossless && *of_node >= MOST {
            return Put::Refused;
        }
        *of_node += 1;
        self.waiting.push_back(frame);
        Put::At(self.producer.put() + self.waiting.len() as u64 - 1)
    }

    pub(super) fn flush(&mut self) {
        while let Some(frame) = self.waiting.pop_front() {
            let source = frame.source();
            if let Err(frame) = self.producer.push(frame) {
                self.waiting.push_front(frame);
                break;
            }
            self.must_signal = true;
            if let Some(of_node) = self.of_node.get_mut(&source) {
                *of_node -= 1;
            }
        }
        if self.waiting.is_empty() && !self.of_node.is_empty() {
            self.waiting = VecDeque::new();
            self.of_node.clear();
        }
        if std::mem::take(&mut self.must_signal) && self.alarm.bell.must_ring() {
            self.alarm.notifier.signal();
        }
    }

    /// Returns true if the long ring was full, and frames wait.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn is_done(&self, place: u64) -> bool {
        place < self.producer.used()
    }

    /// Copies what lies in pages of a node: nothing of the short ring does.
    pub(crate) fn recall(&mut self, node: NodeId) {
        let recall = |frame: &mut RingFrame<M>| {
            if frame.source() == node {
                frame.recall();
            }
        };
        self.producer.recall(recall);
        self.waiting.iter_mut().for_each(recall);
    }
}
