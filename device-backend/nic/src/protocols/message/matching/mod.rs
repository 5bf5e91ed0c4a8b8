//! Matching of messages with receives, by the rules of MPI (Q4). A data structure: it knows
//! neither frames nor memory, and holds handles of its caller only.
//!
//! One [`Matching`] serves one space (tagged or untagged) of one endpoint.
//!
//! ```text
//!   post(pattern) ──► an unexpected message matches? ── yes ──► it leaves, the caller delivers
//!                          │ no
//!                          ▼
//!                     posted receives         in the order of posting
//!
//!                     unexpected messages     in the order of arrival
//!                          ▲
//!                          │ no
//!   arrive(source, tag) ──► a posted receive matches? ── yes ──► it leaves, the caller delivers
//! ```
//! # Rules
//! - A receive gets the message that arrived first of those that it matches; a message gets the
//!   receive that was posted first of those that match it. So messages of one sender that match
//!   the same receive do not overtake each other, if they arrive in its order.
//! - No posted receive matches an unexpected message: they would have met.
//! - What matches, is cancelled, claimed, discarded or forgotten leaves at once. A receive that
//!   takes many messages stays where it was posted until the caller cancels it.
//! - Nothing changes if the answer is [`Full`]. The caller keeps the order then: later receives
//!   wait behind that receive, later messages of the sender behind that message.
//!
//! # Cost
//! A *mask* is what a pattern does not compare: the source or a part of it, and which bits of the tag. A
//! receive stands in the bin of its pattern. A message that arrives is looked up once for each
//! mask that posted receives have ([`Bounds::masks`]): under one mask, one pattern takes it. The
//! receive with the lowest sequence number, of those at the heads of these bins, is the first.
//!
//! ```text
//!   (source 3, tag 7) arrives          masks in use        bins
//!                                      exact          ──►  (3, 7)    #5 ⇄ #9
//!                                      any source     ──►  (any, 7)  #4           ◄── lowest: it
//!                                      ignore 0xff    ──►  (3, 0)    #6 ⇄ #8
//! ```
//! Receives whose mask is one more than [`Bounds::masks`] stand in a bin of their own, in the order of
//! posting. A message that arrives walks over it until one matches or those behind are later than the
//! one found by the other masks. The caller learns how far it has walked ([`Matching::take_walked`]),
//! and makes the process of these receives wait for it.
//!
//! A message stands in the bins of the three common patterns that take it, and in the order of
//! all:
//!
//! | pattern of a receive, probe or claim | looks at |
//! |---|---|
//! | exact; any source; any tag | the first of one bin |
//! | any source and tag | the first of all |
//! | some bits of the tag ignored | messages of the source, or all, until one matches |
//! | a source that is not general | those of its general form in one bin, until one matches |
//!
//! So cost depends neither on the number of posted receives nor on that of unexpected messages,
//! but for the last two rows and for rare masks: one walk, bounded by [`Bounds::messages`] or
//! [`Bounds::receives`]. Nothing depends on the order
//! of a hash table, and no choice of tags makes bins collide (`../table.rs`).

#[cfg(test)]
mod tests;

use std::hash::Hash;

use super::table::{Entry, EntryId, Table};

/// What names a source. A receive that names the general form takes all whose general form that is.
pub trait Sender: Copy + Eq + Hash {
    /// Its general form: itself, if there are no others.
    #[must_use]
    fn general(self) -> Self {
        self
    }
}

/// Names a posted receive; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveId(EntryId);

/// Names an unexpected message; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageId(EntryId);

/// How many messages a receive takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// One: then it leaves.
    One,
    /// As many as match, until it is cancelled (multi-receive).
    Many,
}

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive<S, R> {
    /// Its name.
    pub id: ReceiveId,
    /// What it takes.
    pub pattern: Pattern<S>,
    /// How many it takes.
    pub takes: Takes,
    /// The caller's.
    pub handle: R,
    /// It is found by a walk: its mask is one too many.
    rare: bool,
}

/// An unexpected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<S, M> {
    /// Its name.
    pub id: MessageId,
    /// Its sender.
    pub source: S,
    /// Its tag.
    pub tag: u64,
    /// The caller's.
    pub handle: M,
}

/// What has become of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted<S, M> {
    /// It takes this message, and is not queued, whatever it [`Takes`].
    Matched(Message<S, M>),
    /// It is queued.
    Queued(ReceiveId),
}

/// What has become of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrived<S, R> {
    /// This receive takes it. It stays posted if it takes many.
    Matched(Receive<S, R>),
    /// It is queued.
    Queued(MessageId),
}

/// There is no room: nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// How much is queued at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Posted receives.
    pub receives: u32,
    /// Different masks of posted receives with bins: how often a message is looked up that arrives.
    /// Programs have a handful; receives with further ones are walked over.
    pub masks: u32,
    /// Unexpected messages.
    pub messages: u32,
}

const RECEIVE_BINS: usize = 1;

impl<S: Sender, R: Copy> Entry<RECEIVE_BINS> for Receive<S, R> {
    type Bin = Pattern<S>;

    fn bins(&self) -> [Pattern<S>; RECEIVE_BINS] {
        if self.rare {
            return [Pattern::rare()];
        }
        [self.pattern]
    }
}

const MESSAGE_BINS: usize = 3;

/// Index of a message's bin for its source, and for source and tag.
const OF_SOURCE: usize = 0;
const EXACT: usize = 2;

impl<S: Sender, M: Copy> Entry<MESSAGE_BINS> for Message<S, M> {
    type Bin = Pattern<S>;

    fn bins(&self) -> [Pattern<S>; MESSAGE_BINS] {
        let source = self.source.general();
        [
            Pattern::any_tag(source),
            Pattern::any_source(self.tag),
            Pattern::exact(source, self.tag),
        ]
    }
}

/// The posted receives and the unexpected messages of one space of one endpoint.
///
/// A source is whatever names a process; `R` and `M` are the caller's handles.
#[derive(Debug)]
pub struct Matching<S: Sender, R: Copy, M: Copy> {
    receives: Table<Receive<S, R>, RECEIVE_BINS>,
    masks: Masks,
    /// Receives that are walked over, and how many a message has looked at since the caller asked.
    rare: usize,
    walked: usize,
    messages: Table<Message<S, M>, MESSAGE_BINS>,
    bounds: Bounds,
}

impl<S: Sender, R: Copy, M: Copy> Matching<S, R, M> {
    /// Returns one in which nothing is queued.
    pub fn new(bounds: Bounds) -> Self {
        Matching {
            receives: Table::new(),
            masks: Masks::default(),
            rare: 0,
            walked: 0,
            messages: Table::new(),
            bounds,
        }
    }

    /// Takes out the earliest unexpected message that matches; queues the receive if there is
    /// none.
    ///
    /// For a receive that takes many messages: post it again after each that it is given, until
    /// it is queued or its buffer is full.
    ///
    /// # Errors
    /// Returns an error if no message matches and there is no room for the receive.
    pub fn post(
        &mut self,
        pattern: Pattern<S>,
        takes: Takes,
        handle: R,
    ) -> Result<Posted<S, M>, Full> {
        if let Some(message) = self.claim(pattern) {
            return Ok(Posted::Matched(message));
        }
        if self.receives.len() >= self.bounds.receives as usize {
            return Err(Full);
        }
        let rare = !self.masks.add(pattern.mask(), self.bounds.masks);
        self.rare += usize::from(rare);
        let receive = |id| Receive {
            id: ReceiveId(id),
            pattern,
            takes,
            handle,
            rare,
        };
        Ok(Posted::Queued(ReceiveId(self.receives.insert(receive))))
    }

    /// Gives a message to the earliest posted receive that matches; queues it if there is none.
    /// Messages of one sender arrive in its order.
    ///
    /// # Errors
    /// Returns an error if no receive matches and there is no room for the message.
    pub fn arrive(&mut self, source: S, tag: u64, handle: M) -> Result<Arrived<S, R>, Full> {
        if let Some(receive) = self.find_receive(source, tag) {
            if receive.takes == Takes::One {
                self.cancel(receive.id);
            }
            return Ok(Arrived::Matched(receive));
        }
        if self.messages.len() >= self.bounds.messages as usize {
            return Err(Full);
        }
        let message = |id| Message {
            id: MessageId(id),
            source,
            tag,
            handle,
        };
        Ok(Arrived::Queued(MessageId(self.messages.insert(message))))
    }

    /// Takes a posted receive out, if it is still there.
    pub fn cancel(&mut self, id: ReceiveId) -> Option<Receive<S, R>> {
        let receive = self.receives.remove(id.0)?;
        if receive.rare {
            self.rare -= 1;
            return Some(receive);
        }
        self.masks.remove(receive.pattern.mask());
        Some(receive)
    }

    /// Returns the earliest unexpected message that matches; it stays.
    pub fn probe(&self, pattern: Pattern<S>) -> Option<Message<S, M>> {
        self.find_message(pattern).copied()
    }

    /// Takes out the earliest unexpected message that matches: no receive and no probe finds it
    /// any more, the caller holds it (MPI_Mprobe).
    pub fn claim(&mut self, pattern: Pattern<S>) -> Option<Message<S, M>> {
        let id = self.find_message(pattern)?.id;
        self.discard(id)
    }

    /// Takes an unexpected message out, if it is still there.
    pub fn discard(&mut self, id: MessageId) -> Option<Message<S, M>> {
        self.messages.remove(id.0)
    }

    /// Takes out the receives that name a source which has ended: nothing will come for them.
    /// Receives from any source stay.
    pub fn forget_receives(&mut self, has_ended: impl Fn(S) -> bool) -> Vec<Receive<S, R>> {
        let is_dead = |it: &&Receive<S, R>| it.pattern.source().is_some_and(&has_ended);
        let dead: Vec<_> = self.receives().filter(is_dead).copied().collect();
        for receive in &dead {
            self.cancel(receive.id);
        }
        dead
    }

    /// Takes out the messages of which `is_lost` says that they cannot be delivered any more, as
    /// their source has ended. Those that have arrived as a whole may outlive it.
    pub fn forget_messages(
        &mut self,
        is_lost: impl Fn(&Message<S, M>) -> bool,
    ) -> Vec<Message<S, M>> {
        let lost: Vec<_> = self.messages().filter(|it| is_lost(it)).copied().collect();
        for message in &lost {
            self.discard(message.id);
        }
        lost
    }

    /// The posted receives, in the order of posting.
    pub fn receives(&self) -> impl Iterator<Item = &Receive<S, R>> {
        self.receives.in_order()
    }

    /// The unexpected messages, in the order of arrival.
    pub fn messages(&self) -> impl Iterator<Item = &Message<S, M>> {
        self.messages.in_order()
    }

    /// How many receives are posted.
    pub fn receive_count(&self) -> usize {
        self.receives.len()
    }

    /// How many messages are unexpected.
    pub fn message_count(&self) -> usize {
        self.messages.len()
    }

    /// How many receives messages have looked at one by one since this was asked last.
    pub fn take_walked(&mut self) -> usize {
        match self.walked {
            0 => 0,
            walked => {
                self.walked = 0;
                walked
            }
        }
    }

    fn find_receive(&mut self, source: S, tag: u64) -> Option<Receive<S, R>> {
        let patterns = self.masks.iter().map(|mask| mask.pattern_of(source, tag));
        let heads = patterns.filter_map(|pattern| self.receives.first(&pattern));
        let mut first = heads.min();
        if self.rare > 0 {
            first = self.walk(source, tag, first);
        }
        self.receives.get(first?).copied()
    }

    /// The first receive that takes a message, of `first` and those with rare masks.
    #[cold]
    fn walk(&mut self, source: S, tag: u64, first: Option<EntryId>) -> Option<EntryId> {
        for receive in self.receives.in_bin(0, &Pattern::rare()) {
            let ReceiveId(id) = receive.id;
            self.walked += 1;
            match first {
                Some(first) if first < id => break,
                _ if receive.pattern.matches(source, tag) => return Some(id),
                _ => {}
            }
        }
        first
    }

    fn find_message(&self, pattern: Pattern<S>) -> Option<&Message<S, M>> {
        let matches = |it: &&Message<S, M>| pattern.matches(it.source, it.tag);
        let general = pattern.source().map(Sender::general);
        match (general, pattern.ignore()) {
            (Some(general), 0) if pattern.source() != Some(general) => {
                let exact = Pattern::exact(general, pattern.tag());
                self.messages.in_bin(EXACT, &exact).find(matches)
            }
            (Some(general), u64::MAX) if pattern.source() != Some(general) => {
                let of_source = Pattern::any_tag(general);
                self.messages.in_bin(OF_SOURCE, &of_source).find(matches)
            }
            (_, 0) | (Some(_), u64::MAX) => self.messages.get(self.messages.first(&pattern)?),
            (None, u64::MAX) => self.messages.in_order().next(),
            (Some(source), _) => {
                let of_source = Pattern::any_tag(source);
                self.messages.in_bin(OF_SOURCE, &of_source).find(matches)
            }
            (None, _) => self.messages.in_order().find(matches),
        }
    }
}

/// Which messages a receive or probe takes.
///
/// Two patterns are equal if they take the same messages: bits of the tag that are ignored
/// are zero in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pattern<S> {
    source: Option<S>,
    tag: u64,
    ignore: u64,
}

impl<S> Pattern<S> {
    /// Names the bin of receives with rare masks: no pattern has bits that it ignores.
    #[cold]
    fn rare() -> Self {
        Pattern {
            source: None,
            tag: u64::MAX,
            ignore: u64::MAX,
        }
    }
}

impl<S: Sender> Pattern<S> {
    /// Takes messages of a source, or of any (`None`: ANY_PROC), whose tag differs at most in
    /// the bits of `ignore` (all of them: ANY_TAG).
    pub fn new(source: Option<S>, tag: u64, ignore: u64) -> Self {
        let tag = tag & !ignore;
        Pattern {
            source,
            tag,
            ignore,
        }
    }

    /// Takes messages of one source with one tag.
    pub fn exact(source: S, tag: u64) -> Self {
        Self::new(Some(source), tag, 0)
    }

    /// Takes messages of any source with one tag.
    pub fn any_source(tag: u64) -> Self {
        Self::new(None, tag, 0)
    }

    /// Takes messages of one source with any tag.
    pub fn any_tag(source: S) -> Self {
        Self::new(Some(source), 0, u64::MAX)
    }

    /// Takes all messages.
    pub fn any() -> Self {
        Self::new(None, 0, u64::MAX)
    }

    /// The source, unless any will do.
    pub fn source(&self) -> Option<S> {
        self.source
    }

    /// The tag; bits that are ignored are zero.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The bits of the tag that are ignored.
    pub fn ignore(&self) -> u64 {
        self.ignore
    }

    /// Returns true if it takes a message.
    pub fn matches(&self, source: S, tag: u64) -> bool {
        let is_of = |own| own == source || own == source.general();
        self.source.is_none_or(is_of) && tag & !self.ignore == self.tag
    }

    fn mask(&self) -> Mask {
        let compares = match self.source {
            None => Compares::Nothing,
            Some(source) if source == source.general() => Compares::General,
            Some(_) => Compares::All,
        };
        Mask {
            compares,
            ignore: self.ignore,
        }
    }
}

/// What a pattern does not compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mask {
    compares: Compares,
    ignore: u64,
}

/// What a pattern compares of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compares {
    Nothing,
    General,
    All,
}

impl Mask {
    /// The one pattern with this mask that takes a message.
    fn pattern_of<S: Sender>(self, source: S, tag: u64) -> Pattern<S> {
        let source = match self.compares {
            Compares::Nothing => None,
            Compares::General => Some(source.general()),
            Compares::All => Some(source),
        };
        Pattern::new(source, tag, self.ignore)
    }
}

/// The masks of posted receives, and how many receives have each.
#[derive(Debug, Default)]
struct Masks(Vec<(Mask, u32)>);

impl Masks {
    /// The masks; their order says nothing.
    fn iter(&self) -> impl Iterator<Item = Mask> + '_ {
        self.0.iter().map(|(mask, _)| *mask)
    }

    /// Counts a receive; returns false if its mask would be one more than `most`.
    #[must_use]
    fn add(&mut self, mask: Mask, most: u32) -> bool {
        if let Some((_, count)) = self.0.iter_mut().find(|(own, _)| *own == mask) {
            *count += 1;
            return true;
        }
        let has_room = self.0.len() < most as usize;
        if has_room {
            self.0.push((mask, 1));
        }
        has_room
    }

    /// Counts a receive less that was counted.
    fn remove(&mut self, mask: Mask) {
        if let Some(index) = self.0.iter().position(|(own, _)| *own == mask) {
            self.0[index].1 -= 1;
            if self.0[index].1 == 0 {
                self.0.swap_remove(index);
            }
        }
    }
}
