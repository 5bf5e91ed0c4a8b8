//! What one process receives: its posted receives, its probes that wait, and where they meet
//! messages.

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::context::CONTEXTS;
use qnic_abi::{SegmentId, Status, VniId};

use super::command::{HandleName, Memory, Name, Probe, Receive, Source, Space};
use super::context::Pages;
use super::matching::{Arrived, Bounds, Full, Matching, ReceiveId, Takes};
use super::sought::Sought;
use super::staging::{Header, Landing};
use super::table::{Entry, EntryId, Table};
use crate::config::Limits;
use crate::core::{Core, PageKey, Tally};

/// A posted receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    pub(super) command: Receive,
    /// Its number, of receives and probes.
    number: u64,
    id: Option<ReceiveId>,
    /// Bytes of its memory that messages have taken.
    filled: u64,
    /// A frame of this number of the process that it names had arrived when it was posted.
    pub(super) newest: u64,
}

impl Posted {
    pub(super) fn new(command: Receive) -> Self {
        Posted {
            command,
            newest: 0,
            number: 0,
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
        let memory = self.command.memory;
        let offset = self.filled;
        let allowed = length.min(memory.length() - offset);
        self.filled += allowed;
        let left = memory.length() - self.filled;
        let full = allowed < length || left < self.command.least.max(1);
        Landing {
            handle: self.command.handle,
            memory,
            offset,
            allowed,
            arrived: 0,
            more: self.command.takes == Takes::Many && !full,
        }
    }
}

impl Entry<1> for Posted {
    type Bin = HandleName;

    fn bins(&self) -> [HandleName; 1] {
        [self.command.handle.name()]
    }
}

/// Names a posted receive of an inbox.
pub(super) type PostedId = EntryId;

/// Receives that messages of one process look at one by one in a poll; the last of these messages may
/// look at all receives.
const WALK: usize = 4_096;

/// What a message has found.
type Found = Arrived<Source, PostedId>;

/// A space of an endpoint: handles are names of receives, and numbers of messages.
pub(super) type Meeting = Matching<Source, PostedId, u64>;

/// What one process receives.
#[derive(Debug)]
pub(super) struct Inbox {
    /// In their order.
    spaces: Vec<(Space, Meeting)>,
    posted: Table<Posted, 1>,
    /// The pages of Receive contexts that are under way.
    contexts: [Option<Box<Pages>>; CONTEXTS],
    /// Probes that wait, by number.
    probes: BTreeMap<u64, Probe>,
    /// How many receives and probes name a node.
    nodes: Tally<u16>,
    /// Processes that receives and probes have named, and that were asked for.
    pub(super) sought: Sought,
    /// Messages that are held back, in their order.
    pub(super) held: VecDeque<u64>,
    /// Receives that its messages have looked at one by one since messages were last held back.
    walked: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Inbox {
            spaces: Vec::new(),
            posted: Table::new(),
            contexts: Default::default(),
            probes: BTreeMap::new(),
            nodes: Tally::default(),
            sought: Sought::default(),
            held: VecDeque::new(),
            walked: 0,
        }
    }
}

impl Inbox {
    fn place_of(&self, space: Space) -> Result<usize, usize> {
        self.spaces
            .binary_search_by_key(&space, |(space, _)| *space)
    }

    /// A space of an endpoint. What is bounded for the process as a whole is not bounded here.
    pub(super) fn space(&mut self, space: Space, limits: &Limits) -> &mut Meeting {
        let place = self.place_of(space).unwrap_or_else(|place| {
            let bounds = Bounds {
                receives: limits.receives,
                masks: limits.masks,
                messages: u32::MAX,
            };
            self.spaces.insert(place, (space, Matching::new(bounds)));
            place
        });
        &mut self.spaces[place].1
    }

    /// What a message has found that has come. The process pays for walks over receives.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        limits: &Limits,
        header: &Header,
        number: u64,
    ) -> Result<Found, Full> {
        let space = self.space(header.space, limits);
        let found = space.arrive(header.sender(), header.tag, number);
        match space.take_walked() {
            0 => {}
            walked => self.walked += walked,
        }
        found
    }

    /// Returns true if the messages of this process have walked as far as they may in one poll.
    pub(super) fn is_tired(&self) -> bool {
        self.walked >= WALK
    }

    /// Lets its messages walk again.
    pub(super) fn rest(&mut self) {
        self.walked = 0;
    }

    /// How many receives are posted.
    pub(super) fn posted_count(&self) -> usize {
        self.posted.len()
    }

    /// Returns true if a message waits for a receive.
    pub(super) fn has_messages(&self) -> bool {
        self.spaces.iter().any(|(_, it)| it.message_count() > 0)
    }

    /// How many probes wait.
    pub(super) fn probe_count(&self) -> usize {
        self.probes.len()
    }

    /// Returns true if a receive or a probe names that node.
    pub(super) fn names(&self, node: u16) -> bool {
        self.nodes.any_in(node, node)
    }

    /// The sources that receives and probes name.
    pub(super) fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        let posted = self.posted.entries();
        let receives = posted.map(|(_, posted)| posted.command.pattern.source());
        let probes = self.probes.values().map(|probe| probe.pattern.source());
        receives.chain(probes).flatten()
    }

    /// Queues a receive for which there is no message. Returns false if there is no room.
    pub(super) fn post(&mut self, limits: &Limits, number: u64, posted: Posted) -> bool {
        if self.posted.len() >= limits.receives as usize {
            return false;
        }
        let command = posted.command;
        let id = self.posted.insert(|_| Posted { number, ..posted });
        let meeting = self.space(command.space, limits);
        let queued = meeting.post(command.pattern, command.takes, id);
        let (Ok(super::matching::Posted::Queued(queued)), Some(posted)) =
            (queued, self.posted.get_mut(id))
        else {
            self.posted.remove(id);
            return false;
        };
        posted.id = Some(queued);
        self.count_source(command.pattern.process());
        true
    }

    fn count_source(&mut self, source: Option<Name>) {
        if let Some(source) = source {
            self.nodes.add(source.node);
        }
    }

    fn uncount_source(&mut self, source: Option<Name>) {
        if let Some(source) = source {
            self.nodes.remove(source.node);
        }
    }

    /// Lets a probe wait. Returns false if there is no room.
    pub(super) fn wait(&mut self, limits: &Limits, number: u64, probe: Probe) -> bool {
        if self.probes.len() >= limits.probes as usize {
            return false;
        }
        self.probes.insert(number, probe);
        self.count_source(probe.pattern.process());
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
        self.uncount_source(probe.pattern.process());
        Some(probe)
    }

    /// Takes out the probes that are chosen.
    pub(super) fn take_probes(&mut self, chosen: impl Fn(&Probe) -> bool) -> Vec<Probe> {
        let numbers = self.probes().filter(|(_, probe)| chosen(probe));
        let numbers: Vec<u64> = numbers.map(|(number, _)| number).collect();
        let taken = numbers.into_iter().map(|number| self.take_probe(number));
        taken.flatten().collect()
    }

    /// Gives a message of so many bytes to a posted receive that has matched it.
    pub(super) fn land(&mut self, id: PostedId, length: u64) -> Option<Landing> {
        let posted = self.posted.get_mut(id)?;
        let landing = posted.take(length);
        if landing.more {
            return Some(landing);
        }
        match posted.command.takes {
            // It left when it was matched.
            Takes::One => drop(self.take_out(id)),
            Takes::Many => drop(self.remove(id)),
        }
        Some(landing)
    }

    /// Takes a receive out that is matched no more.
    fn take_out(&mut self, id: PostedId) -> Option<Posted> {
        let posted = self.posted.remove(id)?;
        self.uncount_source(posted.command.pattern.process());
        Some(posted)
    }

    /// Takes a receive out.
    pub(super) fn remove(&mut self, id: PostedId) -> Option<Posted> {
        let posted = self.take_out(id)?;
        if let (Ok(place), Some(id)) = (self.place_of(posted.command.space), posted.id) {
            self.spaces[place].1.cancel(id);
        }
        Some(posted)
    }

    /// The receive of a name that was posted first, and its number.
    pub(super) fn with_name(&self, name: HandleName) -> Option<(u64, PostedId)> {
        let id = self.posted.first(&name)?;
        let posted = self.posted.get(id)?;
        Some((posted.number, id))
    }

    /// The probe of a name that was posted first, of those that wait.
    pub(super) fn probe_with_name(&self, name: HandleName) -> Option<u64> {
        let mut probes = self.probes();
        let probe = probes.find(|(_, probe)| (false, probe.handle) == name);
        probe.map(|(number, _)| number)
    }

    /// Takes out the receives that are chosen, in the order of posting.
    pub(super) fn remove_all(&mut self, chosen: impl Fn(&Self, &Posted) -> bool) -> Vec<Posted> {
        let posted = self.posted.entries();
        let ids = posted.filter(|(_, posted)| chosen(self, posted));
        let ids: Vec<PostedId> = ids.map(|(id, _)| id).collect();
        let removed = ids.into_iter().map(|id| self.remove(id));
        removed.flatten().collect()
    }
}

/// Says which receives name a source that has ended, as the frame of a number says, and not one that
/// was heard of behind that.
pub(super) fn names_source(
    ended: impl Fn(Source) -> bool,
    before: u64,
) -> impl Fn(&Inbox, &Posted) -> bool {
    move |_, posted| posted.newest < before && posted.command.pattern.source().is_some_and(&ended)
}

/// Memory of receives.
impl Inbox {
    /// Takes a Receive context. Returns false if it is under way.
    pub(super) fn take_context(&mut self, index: u8, pages: Pages) -> bool {
        let slot = &mut self.contexts[usize::from(index)];
        let free = slot.is_none();
        if free {
            *slot = Some(Box::new(pages));
        }
        free
    }

    /// Returns true if a Receive context is under way.
    pub(super) fn has_context(&self, index: u8) -> bool {
        self.contexts[usize::from(index)].is_some()
    }

    /// Gives a context back.
    pub(super) fn free_context(&mut self, index: u8) {
        self.contexts[usize::from(index)] = None;
    }

    /// Forgets what is under way.
    pub(super) fn forget_contexts(&mut self) {
        self.contexts = Default::default();
    }

    fn pages(&self, index: u8) -> Option<&Pages> {
        self.contexts[usize::from(index)].as_deref()
    }

    /// Returns how the memory of a receive is found, if the process has exported it.
    pub(super) fn authorise(
        &self,
        core: &Core,
        vni: VniId,
        memory: &Memory,
    ) -> Result<PageKey, Status> {
        match memory {
            Memory::Range(local) => local.authorise(core, vni),
            Memory::Context { index, .. } => {
                let pages = self.pages(*index).ok_or(Status::Aborted)?;
                pages.authorise(core, vni)
            }
        }
    }

    /// Where a byte of the memory of a receive is, and how many follow it there in one piece.
    pub(super) fn at(&self, memory: &Memory, offset: u64) -> (u64, u64) {
        match memory {
            Memory::Range(local) => (
                local.address.wrapping_add(offset),
                local.length.saturating_sub(offset),
            ),
            Memory::Context { index, .. } => {
                self.pages(*index).map_or((0, 0), |pages| pages.at(offset))
            }
        }
    }

    /// Returns true if any byte of the memory of a receive is in a segment.
    pub(super) fn uses(&self, memory: &Memory, segment: SegmentId) -> bool {
        match memory {
            Memory::Range(local) => local.uses(segment),
            Memory::Context { index, .. } => {
                self.pages(*index).is_some_and(|pages| pages.uses(segment))
            }
        }
    }

    /// Takes out the receives that use a segment.
    pub(super) fn remove_users(&mut self, segment: SegmentId) -> Vec<Posted> {
        self.remove_all(|inbox, posted| inbox.uses(&posted.command.memory, segment))
    }
}
