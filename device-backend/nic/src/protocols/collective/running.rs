//! One collective of a group, at one NIC.
//!
//! ```text
//!   calls of the members ─┐
//!                         ├─ part by part ─► gathered ─► up, or at the root: the result
//!   parts of nodes below ─┘                                 │
//!                                                           ▼
//!   down to the nodes below ◄──────────────────────────── result ─► memory of the members
//! ```
//! Every collective has this form: the bytes that members give are reduced on their way up, and the
//! result goes down to the members that want it. In a barrier no member gives or wants bytes.
//!
//! # Invariants
//! - A part goes up when all members have called, and all nodes below have sent theirs; so its
//!   result exists only after all have called.
//! - A part goes up only if it is less than [`WINDOW`] ahead of what is delivered here. Nodes
//!   above keep no more parts than that, for each node below them.
//! - Contributions are reduced in one order: members by rank, then nodes below.

use std::collections::BTreeMap;
use std::sync::Arc;

use qnic_abi::collective::{HAS_BYTES, WANTS_RESULT};
use qnic_abi::Status;

use super::command::{Call, Difference, Shape};
use super::outbox::{Content, Outbox};
use super::place::{Member, Relatives};
use super::Context;
use crate::core::{Destination, LookupSide, PageError, PageRange};
use crate::env::{Host, Payload, Time};

/// Parts of a collective that are under way.
pub(super) const WINDOW: u32 = 16;

/// What a part has: bytes, or none.
pub(super) type Bytes = Option<Arc<[u8]>>;

/// What a node below has sent.
#[derive(Debug, Default)]
pub(super) struct Below {
    parts: BTreeMap<u32, Bytes>,
    wants: bool,
}

/// The part that is being gathered.
#[derive(Debug, Default)]
struct Gathering {
    bytes: Option<Vec<u8>>,
    /// Members that have given theirs.
    members: usize,
}

/// Why a collective does not go on by itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stop {
    /// It waits for pages of a member.
    Pages(usize, PageRange),
    /// It fails because of a member.
    Member(usize, Status),
    /// It fails because of what came from above.
    Above(Status),
}

/// What a collective waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing<M> {
    /// A member of this node: its call, or a page of its memory.
    Member(M),
    /// A part of this neighbour.
    Node(u16),
    /// Nothing.
    Nothing,
}

/// Parts that went up, and results that are here.
pub(super) type Progress = (u32, usize);

/// A question to a neighbour: what does it wait for?
#[derive(Debug, Clone, Copy)]
pub(super) struct Seek {
    /// How far the collective was when the neighbour was asked.
    pub(super) progress: Progress,
    pub(super) asked: Time,
    /// The neighbour is named then, unless the collective has gone on.
    pub(super) until: Time,
}

/// One collective.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) sequence: u32,
    pub(super) shape: Option<Shape>,
    /// By member; taken when it has its completion.
    pub(super) calls: Vec<Option<Call>>,
    /// Members that have called.
    pub(super) called: usize,
    below: Vec<Below>,
    gathering: Gathering,
    /// Parts that went up.
    up: u32,
    results: BTreeMap<u32, Bytes>,
    /// Parts that are delivered here, and members that have got the next one.
    delivered: u32,
    members: usize,
    /// Bytes of the parts that are kept.
    kept: u64,
    /// It waits for pages: nothing is tried before they are there.
    pub(super) waits: bool,
    /// All members have their completions.
    pub(super) finished: bool,
    /// A neighbour was asked what it waits for.
    pub(super) seek: Option<Seek>,
}

impl Running {
    pub(super) fn new(sequence: u32, members: usize, below: usize) -> Self {
        Running {
            sequence,
            calls: vec![None; members],
            below: (0..below).map(|_| Below::default()).collect(),
            ..Running::default()
        }
    }

    /// Takes its shape from the first member or node that says it.
    ///
    /// # Errors
    /// It has another one.
    pub(super) fn agrees(&mut self, shape: Shape) -> Result<(), Difference> {
        let others = *self.shape.get_or_insert(shape);
        match others == shape {
            true => Ok(()),
            false => Err(Difference::between(&shape, &others)),
        }
    }

    fn length(&self) -> u64 {
        self.shape.map_or(0, |shape| shape.length)
    }

    /// How many parts it has: fewer than 2^30, by [`qnic_abi::collective::MAX_LENGTH`].
    fn parts(&self, part_bytes: u64) -> u32 {
        self.length().div_ceil(part_bytes).max(1) as u32
    }

    /// Where a part begins, and how long it is.
    fn extent(&self, part: u32, part_bytes: u64) -> (u64, usize) {
        let start = u64::from(part) * part_bytes;
        let left = self.length().saturating_sub(start);
        (start, left.min(part_bytes) as usize)
    }

    /// Returns true if bytes of that length can be those of a part.
    pub(super) fn fits(&self, part: u32, bytes: &Bytes, part_bytes: u64) -> bool {
        let length = self.extent(part, part_bytes).1;
        part < self.parts(part_bytes) && bytes.as_ref().is_none_or(|bytes| bytes.len() == length)
    }

    /// Takes a part of a node below. Returns false if it cannot be one now.
    pub(super) fn rise(&mut self, below: usize, part: u32, bytes: Bytes, wants: bool) -> bool {
        let near = part >= self.up && part - self.up < WINDOW;
        match self.below.get_mut(below) {
            Some(node) if near && !node.parts.contains_key(&part) => {
                self.kept += length_of(&bytes);
                node.parts.insert(part, bytes);
                node.wants = wants;
                true
            }
            _ => false,
        }
    }

    /// Takes the result of a part, and sends it on to the nodes below that want it. Returns
    /// false if it cannot be one now.
    pub(super) fn fall(
        &mut self,
        part: u32,
        bytes: Bytes,
        relatives: &Relatives,
        outbox: &mut Outbox,
    ) -> bool {
        if part >= self.up || part < self.delivered || self.results.contains_key(&part) {
            return false;
        }
        let Some(shape) = self.shape else {
            return false;
        };
        for (node, below) in relatives.children.iter().zip(&self.below) {
            let bytes = bytes.clone().filter(|_| below.wants);
            let mut fields = relatives.fields(&shape, self.sequence, part);
            fields.flags = if bytes.is_some() { HAS_BYTES } else { 0 };
            outbox.push(*node, Content::Down(fields), bytes);
        }
        self.kept += length_of(&bytes);
        self.results.insert(part, bytes);
        true
    }

    /// Returns true if all results are here: nothing has to come any more.
    pub(super) fn is_decided(&self, part_bytes: u64) -> bool {
        let here = self.delivered as usize + self.results.len();
        part_bytes > 0 && self.shape.is_some() && here >= self.parts(part_bytes) as usize
    }

    /// Returns true if each part is delivered here.
    pub(super) fn is_delivered(&self, part_bytes: u64) -> bool {
        part_bytes > 0 && self.shape.is_some() && self.delivered >= self.parts(part_bytes)
    }

    /// What it waits for; all members have called.
    pub(super) fn missing(&self, relatives: &Relatives) -> Missing<usize> {
        let part_bytes = relatives.part_bytes;
        if self.finished {
            return Missing::Nothing;
        }
        if self.waits {
            return Missing::Member(match self.results.contains_key(&self.delivered) {
                true => self.members,
                false => self.gathering.members,
            });
        }
        if self.is_decided(part_bytes) {
            return Missing::Nothing;
        }
        let gathers = self.up < self.parts(part_bytes) && self.up - self.delivered < WINDOW;
        let lacks = |node: &Below| !node.parts.contains_key(&self.up);
        let child = self.below.iter().position(lacks).filter(|_| gathers);
        let node = child.map(|index| relatives.children[index]);
        let node = node.or(relatives.parent);
        node.map_or(Missing::Nothing, Missing::Node)
    }

    /// How far it is.
    pub(super) fn progress(&self) -> Progress {
        (self.up, self.delivered as usize + self.results.len())
    }

    /// Goes on as far as can be; `begins`: also gathers.
    pub(super) fn advance<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        members: &[Member],
        relatives: &Relatives,
        outbox: &mut Outbox,
        begins: bool,
    ) -> Result<(), Stop> {
        loop {
            let delivered = self.deliver(cx, members, relatives.part_bytes)?;
            let gathered = begins && self.gather(cx, members, relatives, outbox)?;
            if !delivered && !gathered {
                return Ok(());
            }
        }
    }

    /// Gathers the next part and sends it up. Returns true if it did.
    fn gather<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        members: &[Member],
        relatives: &Relatives,
        outbox: &mut Outbox,
    ) -> Result<bool, Stop> {
        let (part, part_bytes) = (self.up, relatives.part_bytes);
        let Some(shape) = self.shape else {
            return Ok(false);
        };
        let ready = self.called == members.len()
            && part < self.parts(part_bytes)
            && part - self.delivered < WINDOW
            && self.below.iter().all(|node| node.parts.contains_key(&part));
        if !ready {
            return Ok(false);
        }
        let (start, length) = self.extent(part, part_bytes);
        while let Some(member) = members.get(self.gathering.members) {
            if shape.gives(member.rank) && length > 0 {
                let index = self.gathering.members;
                let given = self.read(cx, members, index, (start, length))?;
                reduce(&shape, &mut self.gathering.bytes, &given);
            }
            self.gathering.members += 1;
        }
        let mut bytes = std::mem::take(&mut self.gathering).bytes;
        for node in &mut self.below {
            let given = node.parts.remove(&part).flatten();
            self.kept -= length_of(&given);
            if let Some(given) = given {
                reduce(&shape, &mut bytes, &given);
            }
        }
        self.up += 1;
        let bytes: Bytes = bytes.map(Into::into);
        match relatives.parent {
            None => {
                self.fall(part, bytes, relatives, outbox);
            }
            Some(parent) => {
                let wanted = members.iter().any(|member| shape.wants(member.rank))
                    || self.below.iter().any(|node| node.wants);
                let mut fields = relatives.fields(&shape, self.sequence, part);
                fields.flags = u8::from(wanted) * WANTS_RESULT;
                fields.flags |= u8::from(bytes.is_some()) * HAS_BYTES;
                outbox.push(parent, Content::Up(fields), bytes);
            }
        }
        Ok(true)
    }

    /// Reads what a member gives to a part.
    fn read<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        members: &[Member],
        index: usize,
        (start, length): (u64, usize),
    ) -> Result<Vec<u8>, Stop> {
        let mut bytes = vec![0; length];
        let from = self.memory(cx, members, index, start)?;
        match cx.core.copy_out(cx.host, from, &mut bytes) {
            Ok(()) => Ok(bytes),
            Err(PageError::Refused(status)) => Err(Stop::Member(index, status)),
            Err(PageError::Absent) => Err(Stop::Pages(
                index,
                PageRange::new(from.address, length as u64, LookupSide::Source),
            )),
        }
    }

    /// Where a part stands in the memory of a member.
    fn memory<H: Host>(
        &self,
        cx: &Context<'_, H>,
        members: &[Member],
        index: usize,
        start: u64,
    ) -> Result<Destination, Stop> {
        let gone = Stop::Member(index, Status::Aborted);
        let (member, call) = members.get(index).zip(self.calls[index]).ok_or(gone)?;
        let key = call.local.authorise(cx.core, member.vni);
        Ok(Destination {
            vni: member.vni,
            address: call.local.address + start,
            key: key.map_err(|status| Stop::Member(index, status))?,
        })
    }

    /// Gives the result of the next part to the members. Returns true if it did.
    fn deliver<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        members: &[Member],
        part_bytes: u64,
    ) -> Result<bool, Stop> {
        let part = self.delivered;
        let (Some(shape), Some(bytes)) = (self.shape, self.results.get(&part).cloned()) else {
            return Ok(false);
        };
        let (start, length) = self.extent(part, part_bytes);
        while let Some(member) = members.get(self.members) {
            let index = self.members;
            if shape.wants(member.rank) && length > 0 && self.calls[index].is_some() {
                let bytes = bytes.as_deref().ok_or(Stop::Above(Status::Malformed))?;
                self.write(cx, members, index, (start, bytes))?;
            }
            self.members += 1;
        }
        self.results.remove(&part);
        self.kept -= length_of(&bytes);
        self.delivered += 1;
        self.members = 0;
        Ok(true)
    }

    /// Writes a part to the memory of a member.
    fn write<H: Host>(
        &self,
        cx: &mut Context<'_, H>,
        members: &[Member],
        index: usize,
        (start, bytes): (u64, &[u8]),
    ) -> Result<(), Stop> {
        let mut to = self.memory(cx, members, index, start)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let payload = Payload::Bytes(rest);
            let mut copied = cx.core.copy_in_span(cx.host, to, &payload);
            if copied == 0 {
                let page = qnic_abi::PAGE_SIZE as u64;
                let first = payload.part(0, (page - to.address % page) as usize);
                match cx.core.copy_in(cx.host, to, &first) {
                    Ok(()) => copied = first.len(),
                    Err(PageError::Refused(status)) => return Err(Stop::Member(index, status)),
                    Err(PageError::Absent) => {
                        let length = rest.len() as u64;
                        let side = LookupSide::Destination;
                        let range = PageRange::new(to.address, length, side);
                        return Err(Stop::Pages(index, range));
                    }
                }
            }
            to.address += copied as u64;
            rest = &rest[copied..];
        }
        Ok(())
    }

    /// Bytes of parts that are kept for nodes below, and of results.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept
    }

    /// Forgets all parts: no member wants them.
    pub(super) fn drop_bytes(&mut self) {
        self.kept = 0;
        self.results.clear();
        for node in &mut self.below {
            node.parts.clear();
        }
    }

    /// A member is out; it was the one of that index.
    pub(super) fn restart_part(&mut self, index: usize) {
        self.members -= usize::from(index < self.members);
        self.waits = false;
    }
}

fn length_of(bytes: &Bytes) -> u64 {
    bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)
}

/// Adds a contribution to what was gathered.
fn reduce(shape: &Shape, gathered: &mut Option<Vec<u8>>, given: &[u8]) {
    match (gathered, shape.reduction) {
        (Some(bytes), Some(reduction)) => reduction.apply(bytes, given),
        // Of a broadcast only the root gives.
        (Some(_), None) => {}
        (none, _) => *none = Some(given.to_vec()),
    }
}
