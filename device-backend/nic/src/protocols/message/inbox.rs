//! What one process receives: its posted receives, its probes that wait, and where they meet
//! messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use qnic_abi::SegmentId;

use super::command::{Name, Probe, Receive, Space};
use super::matching::{Bounds, Matching, ReceiveId, Takes};
use super::staging::Landing;
use crate::config::Limits;
use crate::core::LocalMemory;

/// A posted receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    pub(super) command: Receive,
    id: Option<ReceiveId>,
    /// Bytes of its memory that messages have taken.
    filled: u64,
}

impl Posted {
    pub(super) fn new(command: Receive) -> Self {
        Posted {
            command,
            id: None,
            filled: 0,
        }
    }

    /// Bytes of its memory that messages have taken.
    pub(super) fn filled(&self) -> u64 {
        self.filled
    }

    /// Gives it a message of so many bytes.
    pub(super) fn take(&mut self, length: u64) -> Landing {
        let local = self.command.local;
        let offset = self.filled;
        let allowed = length.min(local.length - offset);
        self.filled += allowed;
        let full = allowed < length || self.filled == local.length;
        Landing {
            handle: self.command.handle,
            local,
            offset,
            allowed,
            arrived: 0,
            more: self.command.takes == Takes::Many && !full,
        }
    }
}

/// A space of an endpoint: handles are numbers of receives and of messages.
pub(super) type Meeting = Matching<Name, u64, u64>;

/// What one process receives.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    spaces: BTreeMap<Space, Meeting>,
    posted: BTreeMap<u64, Posted>,
    /// Numbers of posted receives by handle.
    handles: BTreeSet<(u64, u64)>,
    /// Probes that wait, by number.
    probes: BTreeMap<u64, Probe>,
    /// How many receives and probes name a node.
    nodes: BTreeMap<u16, u32>,
    /// Messages that are held back, in their order.
    pub(super) held: VecDeque<u64>,
}

impl Inbox {
    /// A space of an endpoint. What is bounded for the process as a whole is not bounded here.
    pub(super) fn space(&mut self, space: Space, limits: &Limits) -> &mut Meeting {
        self.spaces.entry(space).or_insert_with(|| {
            Matching::new(Bounds {
                receives: limits.receives,
                masks: limits.masks,
                messages: u32::MAX,
            })
        })
    }

    /// How many receives are posted.
    pub(super) fn posted_count(&self) -> usize {
        self.posted.len()
    }

    /// How many probes wait.
    pub(super) fn probe_count(&self) -> usize {
        self.probes.len()
    }

    /// Returns true if a receive or a probe names that node.
    pub(super) fn names(&self, node: u16) -> bool {
        self.nodes.contains_key(&node)
    }

    /// Queues a receive for which there is no message. Returns false if there is no room.
    pub(super) fn post(&mut self, limits: &Limits, number: u64, mut posted: Posted) -> bool {
        if self.posted.len() >= limits.receives as usize {
            return false;
        }
        let command = posted.command;
        let meeting = self.space(command.space, limits);
        let queued = meeting.post(command.pattern, command.takes, number);
        let Ok(super::matching::Posted::Queued(id)) = queued else {
            return false;
        };
        posted.id = Some(id);
        self.posted.insert(number, posted);
        self.handles.insert((command.handle, number));
        self.count_source(command.pattern.source());
        true
    }

    fn count_source(&mut self, source: Option<Name>) {
        if let Some(source) = source {
            *self.nodes.entry(source.node).or_default() += 1;
        }
    }

    fn uncount_source(&mut self, source: Option<Name>) {
        let Some(source) = source else {
            return;
        };
        if let Some(count) = self.nodes.get_mut(&source.node) {
            *count -= 1;
            if *count == 0 {
                self.nodes.remove(&source.node);
            }
        }
    }

    /// Lets a probe wait. Returns false if there is no room.
    pub(super) fn wait(&mut self, limits: &Limits, number: u64, probe: Probe) -> bool {
        if self.probes.len() >= limits.probes as usize {
            return false;
        }
        self.probes.insert(number, probe);
        self.count_source(probe.pattern.source());
        true
    }

    /// The probes that wait, in their order, with their numbers.
    pub(super) fn probes(&self) -> impl Iterator<Item = (u64, &Probe)> {
        self.probes.iter().map(|(number, probe)| (*number, probe))
    }

    /// Those behind the probe of a number.
    pub(super) fn probes_behind(&self, number: u64) -> impl Iterator<Item = (u64, &Probe)> {
        let behind = self.probes.range(number + 1..);
        behind.map(|(number, probe)| (*number, probe))
    }

    /// Takes out a probe that waits.
    pub(super) fn take_probe(&mut self, number: u64) -> Option<Probe> {
        let probe = self.probes.remove(&number)?;
        self.uncount_source(probe.pattern.source());
        Some(probe)
    }

    /// Takes out the probes that are chosen.
    pub(super) fn take_probes(&mut self, chosen: impl Fn(&Probe) -> bool) -> Vec<Probe> {
        let numbers = self.probes().filter(|(_, probe)| chosen(probe));
        let numbers: Vec<u64> = numbers.map(|(number, _)| number).collect();
        let taken = numbers.into_iter().map(|number| self.take_probe(number));
        taken.flatten().collect()
    }

    /// Gives a message of so many bytes to a posted receive that matches it.
    pub(super) fn land(&mut self, number: u64, length: u64) -> Option<Landing> {
        let landing = self.posted.get_mut(&number)?.take(length);
        if !landing.more {
            self.remove(number);
        }
        Some(landing)
    }

    /// Takes a receive out.
    pub(super) fn remove(&mut self, number: u64) -> Option<Posted> {
        let posted = self.posted.remove(&number)?;
        let command = &posted.command;
        self.handles.remove(&(command.handle, number));
        self.uncount_source(command.pattern.source());
        let meeting = self.spaces.get_mut(&command.space);
        if let (Some(meeting), Some(id)) = (meeting, posted.id) {
            // A receive of one message has left already when it was matched.
            let _left = meeting.cancel(id);
        }
        Some(posted)
    }

    /// The receive of a handle that was posted first.
    pub(super) fn with_handle(&self, handle: u64) -> Option<u64> {
        let mut numbers = self.handles.range((handle, 0)..=(handle, u64::MAX));
        numbers.next().map(|(_, number)| *number)
    }

    /// The probe of a handle that was posted first, of those that wait.
    pub(super) fn probe_with_handle(&self, handle: u64) -> Option<u64> {
        let mut probes = self.probes();
        let probe = probes.find(|(_, probe)| probe.handle == handle);
        probe.map(|(number, _)| number)
    }

    /// Takes out the receives that are chosen.
    pub(super) fn remove_all(&mut self, chosen: impl Fn(&Posted) -> bool) -> Vec<Posted> {
        let posted = self.posted.iter();
        let numbers = posted.filter(|(_, posted)| chosen(posted));
        let numbers: Vec<u64> = numbers.map(|(number, _)| *number).collect();
        let removed = numbers.into_iter().map(|number| self.remove(number));
        removed.flatten().collect()
    }
}

/// Says which receives name a source that has ended.
pub(super) fn names_source(ended: impl Fn(Name) -> bool) -> impl Fn(&Posted) -> bool {
    move |posted| posted.command.pattern.source().is_some_and(&ended)
}

/// Says which receives use a segment.
pub(super) fn uses(segment: SegmentId) -> impl Fn(&Posted) -> bool {
    move |posted| {
        let local: &LocalMemory = &posted.command.local;
        local.uses(segment)
    }
}
