//! Messages to all members of a group, or to some of them, at one NIC (Q3, Q15). Ordinary receives
//! take them.
//!
//! ```text
//!   member ── command ──► Sender: read, when there is room in its window
//!                            │
//!   neighbour ── parts ──────┴──► Stream of that source: to all other neighbours, part by part
//!             ◄── taken ────────────── whole messages ──► the members here, in order
//! ```
//! A message goes along the tree of the group, away from its source. A member takes it when one of
//! its receives does, or when there is staging memory for it; until then it stays here. When all
//! members on a side of the tree have taken it, the neighbour towards the source is told, and in the
//! end the source.
//!
//! # Invariants
//! - Each member takes the messages of a source in their order, each of them once.
//! - A source has at most [`max_bytes`] of its group under way: so many are kept of it at each NIC.
//!   More is not read from its memory.
//! - A member that takes nothing holds up the messages of those that send to it, and no others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use qnic_abi::multicast::{max_bytes, Multicast, MulticastFlags, MulticastTaken, MAX_RANKS};
use qnic_abi::{Status, PAGE_SIZE};

use super::command::{Name, Send};
use super::outbox::{Content, Outbox};
use super::place::{Member, Relatives};
use super::Context;
use crate::core::{Destination, LookupSide, PageError, PageRange};
use crate::env::Host;
use crate::letter::Letter;

/// What a message costs beside its bytes and ranks: so many messages of no byte are bounded, too.
const OVERHEAD: u64 = 64;

/// Most bytes of a source that are under way in a group of that size: one message of any kind fits.
pub(super) const fn window(size: u32) -> u64 {
    max_bytes(size) as u64 + 2 * MAX_RANKS as u64 + OVERHEAD
}

/// The messages of one source.
#[derive(Debug)]
struct Stream {
    /// The neighbour towards the source; none, if that is here.
    from: Option<u16>,
    /// Those that a member here has not taken, and how many were before them.
    letters: VecDeque<Letter>,
    first: u64,
    /// How many each member here is past. The source is past all.
    past: Vec<u64>,
    /// How many were taken on the side of each other neighbour.
    taken: Vec<(u16, u64)>,
    /// How many the source, or the neighbour towards it, knows to be taken.
    told: u64,
    /// The next one, as far as it is here.
    coming: Option<Letter>,
}

impl Stream {
    fn new(from: Option<u16>, members: usize, relatives: &Relatives) -> Self {
        let others = relatives.all().filter(|node| Some(*node) != from);
        Stream {
            from,
            letters: VecDeque::new(),
            first: 0,
            past: vec![0; members],
            taken: others.map(|node| (node, 0)).collect(),
            told: 0,
            coming: None,
        }
    }

    /// How many have come as a whole.
    fn whole(&self) -> u64 {
        self.first + self.letters.len() as u64
    }

    /// How many were taken by all.
    fn done(&self) -> u64 {
        let taken = self.taken.iter().map(|(_, taken)| *taken);
        let all = taken.chain(self.past.iter().copied());
        all.fold(self.whole(), u64::min)
    }

    fn kept_bytes(&self) -> u64 {
        let letters = self.letters.iter().chain(&self.coming);
        letters
            .map(|letter| letter.row.len() as u64 + OVERHEAD)
            .sum()
    }

    /// Sends a part on.
    fn pass_on(&self, fields: &Multicast, part: &Arc<[u8]>, outbox: &mut Outbox) {
        for (node, _) in &self.taken {
            outbox.push(*node, Content::Multicast(*fields), Some(part.clone()));
        }
    }

    /// Takes a part of a neighbour.
    fn receive(&mut self, fields: &Multicast, part: &[u8], most: u64) -> Result<(), Status> {
        let begun = self.coming.take();
        let mut letter = match begun {
            Some(letter) => letter,
            None if self.kept_bytes() + fields.row() + OVERHEAD > most => {
                return Err(Status::Malformed)
            }
            None => Letter {
                fields: Multicast {
                    offset: 0.into(),
                    ..*fields
                },
                row: Vec::new(),
            },
        };
        let offset = letter.row.len() as u32;
        let expected = Multicast {
            offset: offset.into(),
            ..letter.fields
        };
        letter.row.extend_from_slice(part);
        let (length, row) = (letter.row.len() as u64, fields.row());
        if *fields != expected || length > row || part.is_empty() && row > 0 {
            return Err(Status::Malformed);
        }
        match length == row {
            true => self.letters.push_back(letter),
            false => self.coming = Some(letter),
        }
        Ok(())
    }

    /// Gives a member what has come for it. Returns true if it has taken all.
    fn deliver(&mut self, index: usize, rank: u32, mut take: impl FnMut(&Letter) -> bool) -> bool {
        let Some(past) = self.past.get_mut(index) else {
            return true;
        };
        while let Some(letter) = self.letters.get((*past - self.first) as usize) {
            if letter.is_for(rank) && !take(letter) {
                return false;
            }
            *past += 1;
        }
        true
    }

    /// Forgets what all members here are past.
    fn forget_past(&mut self) {
        let past = self.past.iter().copied().fold(self.whole(), u64::min);
        while self.first < past {
            self.letters.pop_front();
            self.first += 1;
        }
    }
}

/// What a member sends.
#[derive(Debug, Default)]
struct Sender {
    /// Those that are not under way.
    waiting: VecDeque<Send>,
    /// The row of the first of them, as far as it was read.
    row: Vec<u8>,
    /// Those that are under way: handle, bytes, and what each takes of the window.
    under_way: VecDeque<(u64, u64, u64)>,
    /// It waits for pages.
    waits: bool,
}

/// A message that has ended at its source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) rank: u32,
    pub(super) handle: u64,
    pub(super) length: u64,
}

/// Why a message of a member does not begin.
#[derive(Debug, Clone, Copy)]
pub(super) enum Held {
    Pages(PageRange),
    /// It has failed.
    Failed(Sent, Status),
}

/// The place of a NIC in a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) size: u32,
    pub(super) members: &'a [Member],
    pub(super) relatives: &'a Relatives,
}

/// The multicasts of a group.
#[derive(Debug, Default)]
pub(super) struct Multicasts {
    /// By rank.
    senders: BTreeMap<u32, Sender>,
    streams: BTreeMap<u32, Stream>,
}

impl Multicasts {
    /// Messages of a member that have no completion.
    pub(super) fn pending(&self, rank: u32) -> usize {
        let sender = self.senders.get(&rank);
        sender.map_or(0, |sender| sender.waiting.len() + sender.under_way.len())
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.streams.values().map(Stream::kept_bytes).sum()
    }

    /// Sends a message when there is room.
    pub(super) fn post(&mut self, rank: u32, send: Send) {
        let sender = self.senders.entry(rank).or_default();
        sender.waiting.push_back(send);
    }

    /// The pages that a member has waited for have come, or will never.
    pub(super) fn pages_came(&mut self, rank: u32, failed: bool) -> Option<Sent> {
        let sender = self.senders.get_mut(&rank)?;
        sender.waits = false;
        failed.then(|| sender.give_up(rank)).flatten()
    }

    /// Begins what has room of a member. Returns the first that does not begin, and why, unless
    /// there is no room for it.
    pub(super) fn send<H: Host>(
        &mut self,
        cx: &mut Context<'_, H>,
        here: Here<'_>,
        index: usize,
        outbox: &mut Outbox,
    ) -> Option<Held> {
        let member = here.members.get(index)?;
        let sender = self.senders.get_mut(&member.rank)?;
        while let Some(send) = sender.waiting.front().filter(|_| !sender.waits) {
            let used: u64 = sender.under_way.iter().map(|(_, _, cost)| cost).sum();
            if used > 0 && used + send.row() + OVERHEAD > window(here.size) {
                return None;
            }
            if let Err(stop) = read(cx, member, send, &mut sender.row) {
                let sent = match stop {
                    PageError::Refused(status) => (sender.give_up(member.rank)?, status),
                    PageError::Absent => {
                        sender.waits = true;
                        let read = sender.row.len();
                        let (address, rest) = (send.address(read), send.row() - read as u64);
                        let range = PageRange::new(address, rest, LookupSide::Source);
                        return Some(Held::Pages(range));
                    }
                };
                return Some(Held::Failed(sent.0, sent.1));
            }
            let row = std::mem::take(&mut sender.row);
            let name = super::Collectives::name_of(cx, member.vni);
            let fields = fields(here, member.rank, name, send);
            let under_way = (send.handle, send.length.into(), row.len() as u64 + OVERHEAD);
            sender.under_way.push_back(under_way);
            sender.waiting.pop_front();
            let stream = self.streams.entry(member.rank).or_insert_with(|| {
                let mut stream = Stream::new(None, here.members.len(), here.relatives);
                stream.past[index] = u64::MAX;
                stream
            });
            let part_bytes = here.relatives.part_bytes as usize;
            for offset in (0..row.len().max(1)).step_by(part_bytes) {
                let part = &row[offset..row.len().min(offset + part_bytes)];
                let offset = (offset as u32).into();
                stream.pass_on(&Multicast { offset, ..fields }, &part.into(), outbox);
            }
            stream.letters.push_back(Letter { fields, row });
        }
        None
    }

    /// Takes a part of a neighbour, and sends it on. Returns true if a message is here as a whole.
    ///
    /// # Errors
    /// It cannot be one of this group now.
    pub(super) fn receive(
        &mut self,
        here: Here<'_>,
        node: u16,
        fields: &Multicast,
        part: Vec<u8>,
        outbox: &mut Outbox,
    ) -> Result<bool, Status> {
        let rank = fields.rank.get();
        let is_here = here.members.iter().any(|member| member.rank == rank);
        let is_long = fields.length.get() > max_bytes(here.size);
        if is_here || rank >= here.size || is_long {
            return Err(Status::Malformed);
        }
        let new = || Stream::new(Some(node), here.members.len(), here.relatives);
        let stream = self.streams.entry(rank).or_insert_with(new);
        if stream.from != Some(node) {
            return Err(Status::Malformed);
        }
        stream.receive(fields, &part, window(here.size))?;
        stream.pass_on(fields, &part.into(), outbox);
        Ok(stream.coming.is_none())
    }

    /// A neighbour says how many messages of a source were taken on its side.
    ///
    /// # Errors
    /// It cannot be so.
    pub(super) fn taken(&mut self, node: u16, rank: u32, count: u32) -> Result<(), Status> {
        let stream = self.streams.get_mut(&rank).ok_or(Status::Malformed)?;
        let whole = stream.whole();
        let mut taken = stream.taken.iter_mut();
        let (_, taken) = taken
            .find(|(other, _)| *other == node)
            .ok_or(Status::Malformed)?;
        let now = *taken + u64::from(count.wrapping_sub(*taken as u32));
        *taken = now;
        match now <= whole {
            true => Ok(()),
            false => Err(Status::Malformed),
        }
    }

    /// Gives a member the messages of a source that have come for it. Returns true if it has taken all.
    pub(super) fn deliver(
        &mut self,
        (index, member): (usize, &Member),
        source: u32,
        take: impl FnMut(&Letter) -> bool,
    ) -> bool {
        let stream = self.streams.get_mut(&source);
        stream.is_none_or(|stream| stream.deliver(index, member.rank, take))
    }

    /// Tells the source, or the neighbour towards it, how many of its messages were taken. Returns
    /// those that have ended here.
    pub(super) fn settle(&mut self, here: Here<'_>, rank: u32, outbox: &mut Outbox) -> Vec<Sent> {
        let mut sent = Vec::new();
        let Some(stream) = self.streams.get_mut(&rank) else {
            return sent;
        };
        stream.forget_past();
        let done = stream.done();
        let ended = done - std::mem::replace(&mut stream.told, done);
        match (stream.from, self.senders.get_mut(&rank)) {
            (Some(node), _) if ended > 0 => {
                let taken = MulticastTaken {
                    number: here.relatives.id.number.into(),
                    rank: rank.into(),
                    count: (done as u32).into(),
                    home: here.relatives.id.home.into(),
                    ..MulticastTaken::default()
                };
                outbox.push(node, Content::Taken(taken), None);
            }
            (None, Some(sender)) => {
                let ended = sender.under_way.drain(..ended as usize);
                sent.extend(ended.map(|(handle, length, _)| Sent {
                    rank,
                    handle,
                    length,
                }));
            }
            _ => {}
        }
        sent
    }

    /// The group ends: nothing of it is kept. Returns the messages of members here that fail.
    pub(super) fn end(&mut self) -> Vec<Sent> {
        self.streams.clear();
        let mut failed = Vec::new();
        for (rank, sender) in std::mem::take(&mut self.senders) {
            let under_way = sender.under_way.iter().map(|it| (it.0, it.1));
            let waiting = sender.waiting.iter();
            let waiting = waiting.map(|send| (send.handle, send.length.into()));
            failed.extend(under_way.chain(waiting).map(|(handle, length)| Sent {
                rank,
                handle,
                length,
            }));
        }
        failed
    }
}

impl Sender {
    /// Takes the first message out that is not under way.
    fn give_up(&mut self, rank: u32) -> Option<Sent> {
        self.row.clear();
        let send = self.waiting.pop_front()?;
        Some(Sent {
            rank,
            handle: send.handle,
            length: send.length.into(),
        })
    }
}

/// Reads the row of a message, behind what was read of it.
fn read<H: Host>(
    cx: &mut Context<'_, H>,
    member: &Member,
    send: &Send,
    row: &mut Vec<u8>,
) -> Result<(), PageError> {
    if row.is_empty() {
        row.extend_from_slice(&send.inline);
    }
    while (row.len() as u64) < send.row() {
        let key = send.local.authorise(cx.core, member.vni);
        let from = Destination {
            vni: member.vni,
            address: send.address(row.len()),
            key: key.map_err(PageError::Refused)?,
        };
        let page = PAGE_SIZE - (from.address % PAGE_SIZE as u64) as usize;
        let begun = row.len();
        row.resize(begun + page.min((send.row() - begun as u64) as usize), 0);
        let read = cx.core.copy_out(cx.host, from, &mut row[begun..]);
        if read.is_err() {
            row.truncate(begun);
        }
        read?;
    }
    Ok(())
}

fn fields(here: Here<'_>, rank: u32, source: Name, send: &Send) -> Multicast {
    Multicast {
        number: here.relatives.id.number.into(),
        tag: send.tag.into(),
        immediate: send.immediate.into(),
        length: send.length.into(),
        rank: rank.into(),
        ranks: send.ranks.into(),
        home: here.relatives.id.home.into(),
        node: source.node.into(),
        port: source.port.into(),
        endpoint: send.endpoint,
        flags: u8::from(send.untagged) * MulticastFlags::UNTAGGED.bits(),
        ..Multicast::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::GroupId;
    use super::*;

    fn stream() -> Stream {
        Stream::new(
            Some(1),
            1,
            &Relatives::new(GroupId::default(), 1, Vec::new()),
        )
    }

    /// A neighbour that sends more than the window, of messages of any length, spoils its group and takes no
    /// more memory here.
    #[test]
    fn no_more_than_the_window_is_kept_of_a_source() {
        let most = window(2);
        for length in [0, 1, 4000, max_bytes(2)] {
            let mut stream = stream();
            let fields = Multicast {
                length: length.into(),
                ..Multicast::default()
            };
            let mut kept = 0;
            let refused = loop {
                let part = vec![7; length as usize];
                match stream.receive(&fields, &part, most) {
                    Ok(()) => kept += u64::from(length) + OVERHEAD,
                    Err(status) => break status,
                }
                assert!(kept <= most, "{length}: {kept}");
            };
            assert_eq!(refused, Status::Malformed);
            assert!(
                kept + u64::from(length) + OVERHEAD > most,
                "{length}: {kept}"
            );
        }
    }

    #[test]
    fn parts_that_are_none_of_the_message_are_refused() {
        let fields = |offset: u32, tag: u64| Multicast {
            length: 100.into(),
            offset: offset.into(),
            tag: tag.into(),
            ..Multicast::default()
        };
        let begun = || {
            let mut stream = stream();
            assert_eq!(stream.receive(&fields(0, 1), &[0; 64], 1000), Ok(()));
            stream
        };
        assert_eq!(begun().receive(&fields(64, 1), &[0; 36], 1000), Ok(()));
        for (offset, tag, length) in [
            (0, 1, 36),
            (65, 1, 35),
            (64, 2, 36),
            (64, 1, 37),
            (64, 1, 0),
        ] {
            let received = begun().receive(&fields(offset, tag), &vec![0; length], 1000);
            assert_eq!(
                received,
                Err(Status::Malformed),
                "{offset}, {tag}, {length}"
            );
        }
        let first = stream().receive(&fields(64, 1), &[0; 36], 1000);
        assert_eq!(first, Err(Status::Malformed));
    }
}
