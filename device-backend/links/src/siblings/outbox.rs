//! The end of a ring at which frames are sent.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use qnic_abi::NodeId;
use qnic_nic::env::HostMemory;

use super::frame::RingFrame;
use super::ring::Producer;
use super::Alarm;

/// Sends frames to one engine.
#[derive(Debug)]
pub(crate) struct Outbox<M: Debug> {
    producer: Producer<RingFrame<M>>,
    /// What the ring has no room for.
    waiting: VecDeque<RingFrame<M>>,
    alarm: Arc<Alarm>,
    /// The engine has not been told of a frame.
    untold: bool,
}

impl<M: HostMemory + Clone + Debug> Outbox<M> {
    pub(super) fn new(producer: Producer<RingFrame<M>>, alarm: Arc<Alarm>) -> Self {
        Outbox {
            producer,
            waiting: VecDeque::new(),
            alarm,
            untold: false,
        }
    }

    /// Sends a frame. Returns its place among all that were sent here.
    pub(crate) fn send(&mut self, frame: RingFrame<M>) -> u64 {
        self.untold = true;
        if self.waiting.is_empty() {
            let place = self.producer.put();
            match self.producer.push(frame) {
                Ok(()) => return place,
                Err(frame) => self.waiting.push_back(frame),
            }
        } else {
            self.waiting.push_back(frame);
        }
        self.producer.put() + self.waiting.len() as u64 - 1
    }

    pub(super) fn flush(&mut self) {
        while let Some(frame) = self.waiting.pop_front() {
            if let Err(frame) = self.producer.push(frame) {
                self.waiting.push_front(frame);
                break;
            }
            self.untold = true;
        }
        if std::mem::take(&mut self.untold) && self.alarm.bell.must_ring() {
            self.alarm.notifier.signal();
        }
    }

    /// Returns true if the ring was full, and frames wait.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn is_done(&self, place: u64) -> bool {
        place < self.producer.used()
    }

    /// Copies what lies in pages of a node.
    pub(crate) fn recall(&mut self, node: NodeId) {
        let recall = |frame: &mut RingFrame<M>| {
            if frame.frame.envelope.source_node.get() == node.0 {
                frame.recall();
            }
        };
        self.producer.recall(recall);
        self.waiting.iter_mut().for_each(recall);
    }
}
