//! The line of an emulated link that has a rate: it sends one frame after the other.
//!
//! ```text
//!   priority ─► queue ─┐
//!                      ├─ [Turns] ─► line ─► sent, when its last byte has left
//!   data ─────► queue ─┘
//! ```
//! A frame waits in the queue of its channel until the line is free. A frame whose sending has
//! begun is not interrupted. Bytes of both channels take time on the line.

use std::collections::VecDeque;

use qnic_nic::env::Channel;
use qnic_nic::Time;

use crate::turns::Turns;

/// A frame that waits.
#[derive(Debug)]
struct Waiting<F> {
    since: Time,
    /// Time that it takes on the line, in nanoseconds.
    takes: u64,
    frame: F,
}

/// The frames of one channel.
#[derive(Debug)]
struct Queue<F> {
    frames: VecDeque<Waiting<F>>,
    /// Time that all of them take.
    takes: u64,
}

impl<F> Default for Queue<F> {
    fn default() -> Self {
        Queue {
            frames: VecDeque::new(),
            takes: 0,
        }
    }
}

/// A line, and what waits for it.
#[derive(Debug)]
pub(crate) struct Line<F> {
    /// When it has sent what it is sending.
    free: Time,
    priority: Queue<F>,
    data: Queue<F>,
    turns: Turns,
}

impl<F> Default for Line<F> {
    fn default() -> Self {
        Line {
            free: Time(0),
            priority: Queue::default(),
            data: Queue::default(),
            turns: Turns::default(),
        }
    }
}

impl<F> Line<F> {
    fn queue(&mut self, channel: Channel) -> &mut Queue<F> {
        match channel {
            Channel::Priority => &mut self.priority,
            Channel::Data => &mut self.data,
        }
    }

    /// Frames that wait.
    pub(crate) fn len(&self) -> usize {
        self.priority.frames.len() + self.data.frames.len()
    }

    /// How long a frame of this channel would wait now, in nanoseconds, if none came after it.
    pub(crate) fn wait(&self, now: Time, channel: Channel) -> u64 {
        let ahead = match channel {
            Channel::Priority => self.priority.takes,
            Channel::Data => self.priority.takes + self.data.takes,
        };
        self.free.0.saturating_sub(now.0) + ahead
    }

    /// Lets a frame wait that takes so long on the line.
    pub(crate) fn push(&mut self, now: Time, channel: Channel, takes: u64, frame: F) {
        let queue = self.queue(channel);
        queue.takes += takes;
        queue.frames.push_back(Waiting {
            since: now,
            takes,
            frame,
        });
    }

    /// The next frame whose sending begins at `now` at the latest, and when it is sent.
    pub(crate) fn pop(&mut self, now: Time) -> Option<(Time, F)> {
        if self.free > now {
            return None;
        }
        let [first, second] = match self.turns.first() {
            Channel::Priority => [Channel::Priority, Channel::Data],
            Channel::Data => [Channel::Data, Channel::Priority],
        };
        let channel = match self.queue(first).frames.is_empty() {
            true => second,
            false => first,
        };
        let queue = self.queue(channel);
        let next = queue.frames.pop_front()?;
        queue.takes -= next.takes;
        self.turns.taken(channel);
        self.free = self.free.max(next.since).after(next.takes);
        Some((self.free, next.frame))
    }

    /// When the next frame's sending begins.
    pub(crate) fn next(&self) -> Option<Time> {
        (self.len() > 0).then_some(self.free)
    }
}
