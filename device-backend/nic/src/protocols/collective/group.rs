//! A group at one NIC: its members here, its place in the tree, and its collectives.

use std::collections::{BTreeSet, VecDeque};

use qnic_abi::collective::COLLECTIVES;
use qnic_abi::{Status, VniId};

use super::command::{Call, Difference, Name};
use super::multicast::{Here, Multicasts};
use super::outbox::Outbox;
use super::place::{GroupId, Member, Relatives};
use super::running::{Missing, Progress, Running, Seek, Stop};
use super::streams::window;
use super::Context;
use crate::env::{Host, Time};

/// Collectives of a group that are under way; later ones wait for the first of them.
pub(super) const RUNNING: u32 = 4;

/// Why a group has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) status: Status,
    /// The process that is the reason; port zero if it is a node as a whole.
    pub(super) who: Name,
    /// What members have called instead of one collective.
    pub(super) difference: Difference,
}

impl End {
    pub(super) fn new(status: Status, who: Name) -> Self {
        let difference = Difference::default();
        End {
            status,
            who,
            difference,
        }
    }

    /// Members have called different collectives.
    pub(super) fn mismatch(who: Name, difference: Difference) -> Self {
        End {
            difference,
            ..End::new(Status::Mismatch, who)
        }
    }
}

/// A call that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finished {
    pub(super) vni: VniId,
    pub(super) group: GroupId,
    pub(super) handle: u64,
    pub(super) sequence: u32,
    pub(super) member: u64,
    pub(super) length: u64,
    pub(super) deadline: Time,
    pub(super) end: Option<End>,
}

/// A group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) size: u32,
    pub(super) relatives: Relatives,
    /// All nodes of a group whose home is here.
    pub(super) nodes: BTreeSet<u16>,
    /// By rank.
    pub(super) members: Vec<Member>,
    /// Number of the first collective in `running`.
    first: u32,
    running: VecDeque<Running>,
    pub(super) multicasts: Multicasts,
    pub(super) ended: Option<End>,
}

impl Group {
    pub(super) fn new(size: u32, relatives: Relatives, members: Vec<Member>) -> Self {
        Group {
            size,
            relatives,
            nodes: BTreeSet::new(),
            members,
            first: 0,
            running: VecDeque::new(),
            multicasts: Multicasts::default(),
            ended: None,
        }
    }

    /// Returns true if all NICs of the group know of it.
    pub(super) fn has_started(&self) -> bool {
        self.relatives.part_bytes > 0
    }

    /// Its multicasts, and what they need to know of it.
    pub(super) fn multicasts(&mut self) -> (&mut Multicasts, Here<'_>) {
        let here = Here {
            size: self.size,
            members: &self.members,
            relatives: &self.relatives,
        };
        (&mut self.multicasts, here)
    }

    /// The collective of a number, if it can be one that runs; `most` of them may.
    pub(super) fn running(&mut self, sequence: u32, most: u32) -> Option<&mut Running> {
        // Numbers wrap.
        let place = sequence.wrapping_sub(self.first);
        if place >= most {
            return None;
        }
        let (members, below) = (self.members.len(), self.relatives.children.len());
        while self.running.len() <= place as usize {
            let next = self.first.wrapping_add(self.running.len() as u32);
            self.running.push_back(Running::new(next, members, below));
        }
        self.running.get_mut(place as usize)
    }

    /// Returns true if that collective is done here.
    pub(super) fn is_past(&self, sequence: u32) -> bool {
        sequence.wrapping_sub(self.first) > u32::MAX / 2
    }

    /// What a collective waits for. One behind those that are under way waits for the first of
    /// them, which is returned then.
    pub(super) fn missing(&self, sequence: u32) -> (u32, Missing<usize>) {
        let place = sequence.wrapping_sub(self.first);
        let sequence = match self.is_past(sequence) {
            false if place >= RUNNING => self.first,
            _ => sequence,
        };
        let calls = |member: &Member| sequence.wrapping_sub(member.calls) <= u32::MAX / 2;
        if let Some(member) = self.members.iter().position(calls) {
            return (sequence, Missing::Member(member));
        }
        let place = sequence.wrapping_sub(self.first) as usize;
        let running = self.running.get(place);
        let missing = running.map(|running| running.missing(&self.relatives));
        (sequence, missing.unwrap_or(Missing::Nothing))
    }

    fn under_way(&mut self, sequence: u32) -> Option<&mut Running> {
        let place = sequence.wrapping_sub(self.first) as usize;
        let running = self.running.get_mut(place);
        running.filter(|running| !running.finished)
    }

    /// How far a collective is.
    pub(super) fn progress(&mut self, sequence: u32) -> Progress {
        let running = self.under_way(sequence);
        running.map_or_else(Progress::default, |running| running.progress())
    }

    /// Takes out the question about a collective, if it has stood still since.
    pub(super) fn take_seek(&mut self, sequence: u32) -> Option<Seek> {
        let running = self.under_way(sequence)?;
        let progress = running.progress();
        let seek = running.seek.take();
        seek.filter(|seek| seek.progress == progress)
    }

    /// Notes the question about a collective. Returns false if that is not under way.
    pub(super) fn put_seek(&mut self, sequence: u32, seek: Seek) -> bool {
        let running = self.under_way(sequence);
        running.is_some_and(|running| running.seek.replace(seek).is_none())
    }

    /// The first collective with a call here whose time is over.
    pub(super) fn overdue(&self, now: Time) -> Option<u32> {
        let overdue = |running: &&Running| {
            let mut calls = running.calls.iter().flatten();
            calls.any(|call| call.deadline <= now)
        };
        let running = self.running.iter().find(overdue);
        running.map(|running| running.sequence)
    }

    /// Takes the call of a member.
    ///
    /// # Errors
    /// Others have called something else.
    pub(super) fn call(
        &mut self,
        member: usize,
        sequence: u32,
        call: Call,
        most: u32,
    ) -> Result<(), Difference> {
        let running = self.running(sequence, most);
        let running = running.ok_or_else(Difference::default)?;
        running.calls[member] = Some(call);
        running.called += 1;
        running.agrees(call.shape)
    }

    /// Calls of a member that have no completion.
    pub(super) fn pending(&self, member: usize) -> usize {
        let calls = self.running.iter().map(|running| &running.calls[member]);
        calls.filter(|call| call.is_some()).count()
    }

    /// Lets a collective try again what it has waited for.
    pub(super) fn pages_came(&mut self, sequence: u32) {
        let place = sequence.wrapping_sub(self.first) as usize;
        if let Some(running) = self.running.get_mut(place) {
            running.waits = false;
        }
    }

    /// Goes on with the first collectives, as far as can be. Returns why one cannot, and which.
    pub(super) fn advance<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        outbox: &mut Outbox,
        finished: &mut Vec<Finished>,
    ) -> Option<(u32, Stop)> {
        let mut place = 0;
        while place < self.running.len() && (self.ended.is_some() || place < RUNNING as usize) {
            let begins = self.ended.is_none() && self.has_started();
            let running = &mut self.running[place];
            if !running.finished && !running.waits {
                let relatives = &self.relatives;
                let result = running.advance(cx, &self.members, relatives, outbox, begins);
                if let Err(stop) = result {
                    running.waits = matches!(stop, Stop::Pages(..));
                    return Some((running.sequence, stop));
                }
                if running.is_delivered(relatives.part_bytes) {
                    finish(running, &self.members, None, finished);
                }
            }
            place += 1;
            while self.running.front().is_some_and(|first| first.finished) {
                self.running.pop_front();
                self.first = self.first.wrapping_add(1);
                place = place.saturating_sub(1);
            }
        }
        None
    }

    /// Ends the group: what needs a frame that has not come fails.
    pub(super) fn end(&mut self, end: End, finished: &mut Vec<Finished>) {
        self.ended = Some(end);
        let part_bytes = self.relatives.part_bytes;
        for running in &mut self.running {
            if !running.is_decided(part_bytes) {
                finish(running, &self.members, Some(end), finished);
            }
        }
    }

    /// Fails what a collective has of calls.
    pub(super) fn fail(&mut self, sequence: u32, end: End, finished: &mut Vec<Finished>) {
        let place = sequence.wrapping_sub(self.first) as usize;
        if let Some(running) = self.running.get_mut(place) {
            finish(running, &self.members, Some(end), finished);
        }
    }

    /// Takes a member out of a group that has ended, with its calls.
    pub(super) fn remove(&mut self, index: usize, end: End, finished: &mut Vec<Finished>) {
        let member = self.members.remove(index);
        for running in &mut self.running {
            if let Some(call) = running.calls.remove(index) {
                finished.push(done(&member, running.sequence, &call, Some(end)));
            }
            running.restart_part(index);
        }
    }

    /// Sequences of collectives with calls that use memory of a member that is chosen.
    pub(super) fn uses(&self, member: usize, chosen: impl Fn(&Call) -> bool) -> bool {
        let calls = self
            .running
            .iter()
            .filter_map(|running| running.calls[member]);
        let mut calls = calls;
        calls.any(|call| chosen(&call))
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        let parts = self.running.iter().map(Running::kept_bytes);
        parts.sum::<u64>() + self.multicasts.kept_bytes()
    }

    /// Multicasts without completion of the member that has most.
    pub(super) fn most_sends(&self) -> usize {
        let members = self.members.iter();
        let sends = members.map(|member| self.multicasts.pending(member.rank));
        sends.max().unwrap_or(0)
    }

    /// Frames of multicasts for one neighbour at most: parts of all sources, and what was taken.
    pub(super) fn most_multicast_frames(&self) -> u32 {
        let parts = window(self.size).div_ceil(self.relatives.part_bytes.max(64)) as u32;
        // A message of no byte is a part, too.
        self.size.saturating_mul(2 * (parts + COLLECTIVES))
    }

    /// Calls without completion of the member that has most.
    pub(super) fn most_pending(&self) -> usize {
        let pending = (0..self.members.len()).map(|member| self.pending(member));
        pending.max().unwrap_or(0)
    }
}

fn done(member: &Member, sequence: u32, call: &Call, end: Option<End>) -> Finished {
    Finished {
        vni: member.vni,
        group: member.group,
        handle: call.handle,
        sequence,
        member: member.local,
        length: call.shape.length,
        deadline: call.deadline,
        end,
    }
}

/// Ends the calls of a collective.
fn finish(
    running: &mut Running,
    members: &[Member],
    end: Option<End>,
    finished: &mut Vec<Finished>,
) {
    running.finished = true;
    running.drop_bytes();
    for (member, call) in members.iter().zip(&mut running.calls) {
        if let Some(call) = call.take() {
            finished.push(done(member, running.sequence, &call, end));
        }
    }
}
