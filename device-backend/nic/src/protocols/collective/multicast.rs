//! Messages to all members of a group, or to some of them, at one NIC (Q3, Q15). Ordinary receives
//! take them.
//!
//! ```text
//!   member ── command ──► Sender: read, when there is room in its window
//!                            │
//!   neighbour ── parts ──────┴──► Stream of that source: to all other neighbours, part by part
//!             ◄── taken ──────────────── whole pieces ──► the members here, in order
//! ```
//! A message goes along the tree of the group, away from its source. A member takes it when one of
//! its receives does, or when there is staging memory for it; until then it stays here. When all
//! members on a side of the tree have taken it, the neighbour towards the source is told, and in the
//! end the source. A long message is treated so piece by piece ([`piece_bytes`](qnic_abi::multicast::piece_bytes)).
//!
//! # Invariants
//! - Each member takes the messages of a source in their order, each of them once.
//! - A source has at most [`kept_bytes`](qnic_abi::multicast::kept_bytes) of its group under way: so many are kept of it at each NIC.
//!   More is not read from its memory.
//! - Of a message of which a piece has begun each NIC learns the end: its last piece, or that it is given
//!   up.
//! - A member that takes nothing holds up the messages of those that send to it, and no others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use qnic_abi::multicast::{Multicast, MulticastTaken, PartFlags};
use qnic_abi::{Status, PAGE_SIZE};

use super::command::{Name, Send};
use super::outbox::{Content, Outbox};
use super::place::{Member, Relatives};
use super::streams::{piece_at, window, Stream, OVERHEAD};
use super::Context;
use crate::core::{Destination, LookupSide, PageError, PageRange};
use crate::env::Host;
use crate::letter::Letter;

/// What a member sends.
#[derive(Debug, Default)]
struct Sender {
    /// Those that are not under way as a whole.
    waiting: VecDeque<Send>,
    /// Of the first of them, if pieces of it are under way: where the next one begins.
    begun: Option<Multicast>,
    /// The next piece of the first of them, as far as it was read.
    row: Vec<u8>,
    /// Pieces that are under way.
    under_way: VecDeque<UnderWay>,
    /// It waits for pages.
    waits: bool,
}

/// A piece that is under way.
#[derive(Debug)]
struct UnderWay {
    /// What it takes of the window.
    cost: u64,
    /// The message that ends with it: handle and bytes.
    ends: Option<(u64, u64)>,
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
        self.senders.get(&rank).map_or(0, |sender| {
            let under_way = sender.under_way.iter();
            sender.waiting.len() + under_way.filter(|piece| piece.ends.is_some()).count()
        })
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

    /// The pages that a member has waited for have come, or will never. Returns the message that has
    /// failed.
    pub(super) fn pages_came(
        &mut self,
        rank: u32,
        failed: bool,
        outbox: &mut Outbox,
    ) -> Option<Sent> {
        self.senders.get_mut(&rank)?.waits = false;
        failed.then(|| self.give_up(rank, outbox)).flatten()
    }

    /// Takes the first message of a member out that is not under way as a whole. If pieces of it are, the
    /// other members learn that no more comes.
    fn give_up(&mut self, rank: u32, outbox: &mut Outbox) -> Option<Sent> {
        let sender = self.senders.get_mut(&rank)?;
        sender.row.clear();
        let send = sender.waiting.pop_front()?;
        if let (Some(begun), Some(stream)) = (sender.begun.take(), self.streams.get_mut(&rank)) {
            let fields = Multicast {
                flags: begun.flags | PartFlags::GIVEN_UP.bits(),
                ..begun
            };
            stream.pass_on(&fields, &Arc::default(), outbox);
            stream.letters.push_back(Letter {
                fields,
                ranks: send.list().into(),
                row: Vec::new(),
            });
            let (cost, ends) = (OVERHEAD, None);
            sender.under_way.push_back(UnderWay { cost, ends });
        }
        Some(Sent {
            rank,
            handle: send.handle,
            length: send.length.into(),
        })
    }

    /// Begins what has room of a member. Returns the first message that does not go on, and why, unless
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
            let fields = sender.begun.unwrap_or_else(|| {
                let name = super::Collectives::name_of(cx, member.vni);
                fields(here, member.rank, name, send)
            });
            let piece = piece_at(here.size, &fields);
            let used: u64 = sender.under_way.iter().map(|piece| piece.cost).sum();
            if used > 0 && used + piece + OVERHEAD > window(here.size) {
                return None;
            }
            let at = u64::from(fields.offset.get());
            if let Err(stop) = read(cx, member, send, (at, piece), &mut sender.row) {
                let status = match stop {
                    PageError::Refused(status) => status,
                    PageError::Absent => {
                        sender.waits = true;
                        let read = sender.row.len() as u64;
                        let range = PageRange::new(
                            send.address(at + read),
                            piece - read,
                            LookupSide::Source,
                        );
                        return Some(Held::Pages(range));
                    }
                };
                return Some(Held::Failed(self.give_up(member.rank, outbox)?, status));
            }
            let row = std::mem::take(&mut sender.row);
            let ranks = send.list().into();
            let stream = self.streams.entry(member.rank).or_insert_with(|| {
                let mut stream = Stream::new(None, here.members.len(), here.relatives);
                stream.past[index] = u64::MAX;
                stream
            });
            let part_bytes = here.relatives.part_bytes as usize;
            for place in (0..row.len().max(1)).step_by(part_bytes) {
                let part = &row[place..row.len().min(place + part_bytes)];
                let offset = (at as u32 + place as u32).into();
                stream.pass_on(&Multicast { offset, ..fields }, &part.into(), outbox);
            }
            let cost = row.len() as u64 + OVERHEAD;
            let letter = Letter { fields, ranks, row };
            let mut ends = None;
            match letter.is_last() {
                true => {
                    ends = Some((send.handle, send.length.into()));
                    sender.begun = None;
                    sender.waiting.pop_front();
                }
                false => {
                    let offset = ((at + piece) as u32).into();
                    sender.begun = Some(Multicast { offset, ..fields });
                }
            }
            sender.under_way.push_back(UnderWay { cost, ends });
            stream.letters.push_back(letter);
        }
        None
    }

    /// Takes a part of a neighbour, and sends it on. Returns true if a piece is here as a whole.
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
        if is_here || rank >= here.size {
            return Err(Status::Malformed);
        }
        let new = || Stream::new(Some(node), here.members.len(), here.relatives);
        let stream = self.streams.entry(rank).or_insert_with(new);
        if stream.from != Some(node) {
            return Err(Status::Malformed);
        }
        let is_whole = stream.receive(fields, &part, here.size)?;
        stream.pass_on(fields, &part.into(), outbox);
        Ok(is_whole)
    }

    /// A neighbour says how many pieces of a source were taken on its side.
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

    /// Tells the source, or the neighbour towards it, how many of its pieces were taken. At the source,
    /// returns the messages that have ended if there is room for others.
    pub(super) fn settle(
        &mut self,
        here: Here<'_>,
        rank: u32,
        outbox: &mut Outbox,
    ) -> Option<Vec<Sent>> {
        let stream = self.streams.get_mut(&rank)?;
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
                None
            }
            (None, Some(sender)) if ended > 0 => {
                let ended = sender.under_way.drain(..ended as usize);
                let ended = ended.filter_map(|piece| piece.ends);
                let sent = |(handle, length)| Sent {
                    rank,
                    handle,
                    length,
                };
                Some(ended.map(sent).collect())
            }
            _ => None,
        }
    }

    /// The group ends: nothing of it is kept. Returns the messages of members here that fail.
    pub(super) fn end(&mut self) -> Vec<Sent> {
        self.streams.clear();
        let mut failed = Vec::new();
        for (rank, sender) in std::mem::take(&mut self.senders) {
            let under_way = sender.under_way.iter().filter_map(|piece| piece.ends);
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

/// Reads a piece of a message, its first byte and length given, behind what was read of it.
fn read<H: Host>(
    cx: &mut Context<'_, H>,
    member: &Member,
    send: &Send,
    (at, length): (u64, u64),
    row: &mut Vec<u8>,
) -> Result<(), PageError> {
    if at == 0 && row.is_empty() {
        row.extend_from_slice(&send.inline);
    }
    while (row.len() as u64) < length {
        let key = send.local.authorise(cx.core, member.vni);
        let from = Destination {
            vni: member.vni,
            address: send.address(at + row.len() as u64),
            key: key.map_err(PageError::Refused)?,
        };
        let page = PAGE_SIZE - (from.address % PAGE_SIZE as u64) as usize;
        let begun = row.len();
        row.resize(begun + page.min((length - begun as u64) as usize), 0);
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
        flags: u8::from(send.untagged) * PartFlags::UNTAGGED.bits(),
        ..Multicast::default()
    }
}
