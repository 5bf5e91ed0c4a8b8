//! Multicasts of groups, and what members receive of them (Q3, Q15).
//!
//! A member may get a multicast that is for it once, behind all that its source has sent to it before
//! and that has not failed. No other process gets it. One that is refused fails alone; others fail
//! as the calls of their group do.
//!
//! Any receive takes any multicast, so the receives of a process get them in the order in which they were
//! posted. They may end in another one, as pages of some are absent.

use std::collections::BTreeMap;

use qnic_abi::host_area::CompletionEntry;
use qnic_abi::multicast::MAX_KEPT_BYTES;
use qnic_abi::{Status, PAGE_SIZE};

use super::{CollectiveOracle, Member, Name, Purpose};

/// Bytes of the longest multicast, and of the memory of each receive.
pub(crate) const LETTER: u64 = 100_000;

/// Receives that a worker keeps posted.
pub(crate) const RECEIVES: u64 = 2;

/// Each has a place of its own behind the memory of calls, and is anywhere in it: they may be posted for
/// ever, so calls would find no room between them.
pub(crate) const PLACE: u64 = LETTER + PAGE_SIZE as u64;

/// A multicast.
#[derive(Debug)]
pub(super) struct Letter {
    source: Member,
    /// Which of those of its source it is.
    number: usize,
    /// The members that it is for; all others, if there are none.
    ranks: Vec<u16>,
    length: u64,
    /// As many of its member may be under way as there can be.
    crowded: bool,
    end: Option<Status>,
}

impl Letter {
    fn is_for(&self, rank: u32) -> bool {
        let is_named = self.ranks.iter().any(|named| u32::from(*named) == rank);
        rank != self.source.1 && (self.ranks.is_empty() || is_named)
    }
}

/// All multicasts.
#[derive(Debug, Default)]
pub(super) struct Letters {
    /// By tag.
    letters: BTreeMap<u64, Letter>,
    /// The tags of those of each source.
    of_source: BTreeMap<Member, Vec<u64>>,
    /// Which of those of a source a member has received, by its receives, which it posts in order.
    got: BTreeMap<(Member, u32), BTreeMap<u64, usize>>,
    pub(super) received: u64,
    /// Those of them that had several pieces.
    pub(super) received_in_pieces: u64,
}

/// What a multicast has.
fn bytes_of(tag: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    fastrand::Rng::with_seed(tag).fill(&mut bytes);
    bytes
}

impl CollectiveOracle {
    /// A multicast that is going to be issued: its bytes.
    pub(crate) fn letter(tag: u64, length: u64) -> Vec<u8> {
        bytes_of(tag, length)
    }

    /// A member sends a multicast now; its handle is its tag.
    pub(crate) fn send(
        &mut self,
        source: Member,
        (tag, length): (u64, u64),
        ranks: &[u16],
        now: u64,
    ) {
        let tags = self.letters.of_source.entry(source).or_default();
        let letter = Letter {
            source,
            number: tags.len(),
            ranks: ranks.to_vec(),
            length,
            crowded: false,
            end: None,
        };
        tags.push(tag);
        self.letters.letters.insert(tag, letter);
        let seat = &mut self.plans[source.0].seats[source.1 as usize];
        seat.sends = true;
        let process = &mut self.processes[seat.slot];
        seat.lacked |= process.watched.lacks_pages(now);
        process.open.insert(tag, Purpose::Multicast(source));
    }

    /// As many of the member may be under way as there can be.
    pub(crate) fn crowd(&mut self, tag: u64) {
        if let Some(letter) = self.letters.letters.get_mut(&tag) {
            letter.crowded = true;
        }
    }

    /// A process receives any multicast now, at `start` of its segment.
    pub(crate) fn receive(&mut self, slot: usize, handle: u64, start: u64) {
        let process = &mut self.processes[slot];
        process.memory.open(start, LETTER);
        process.receives.insert(handle, start);
    }

    /// A multicast has ended at its source.
    pub(super) fn sent(
        &mut self,
        source: Member,
        entry: &CompletionEntry,
        (status, who): (Status, Name),
        now: u64,
    ) {
        let tag = entry.handle.get();
        let letter = &self.letters.letters[&tag];
        assert_eq!(entry.length.get(), letter.length, "multicast {tag}: length");
        let crowded = status == Status::Exhausted && letter.crowded;
        assert!(
            status == Status::Ok || crowded || self.may_fail(source, None, (status, who), now),
            "multicast {tag} of {source:?} fails for no reason: {status}, {who:?}; {:?}",
            self.plans[source.0]
        );
        if let Some(letter) = self.letters.letters.get_mut(&tag) {
            letter.end = Some(status);
        }
    }

    /// A receive of a process has ended.
    pub(super) fn received(&mut self, slot: usize, start: u64, entry: &CompletionEntry) {
        let (tag, handle) = (entry.tag.get(), entry.handle.get());
        let status = Status::try_from(entry.status.get()).expect("a known status");
        let process = &self.processes[slot];
        let memory = process.peek((start, LETTER)).expect("it is alive");
        let Some(letter) = self.letters.letters.get(&tag) else {
            let is_no_letter = tag == 0 && status != Status::Ok;
            assert!(
                is_no_letter,
                "process {slot} receives what was not sent: {entry:?}"
            );
            return self.processes[slot].memory.set(start, &memory);
        };
        let what = format!("process {slot}, receive {handle} of multicast {tag}: {letter:?}");
        let (source, plan) = (letter.source, &self.plans[letter.source.0]);
        let name = (entry.node.get(), entry.port.get());
        assert_eq!(name, plan.seats[source.1 as usize].name, "{what}: source");
        assert_eq!(entry.length.get(), letter.length, "{what}: length");
        assert_eq!(entry.immediate.get(), !tag, "{what}: immediate data");
        let mut seats = plan.seats.iter();
        let rank = seats.position(|seat| seat.slot == slot && !seat.dead);
        let rank = rank.unwrap_or_else(|| panic!("{what}: it is no member")) as u32;
        assert!(letter.is_for(rank), "{what}: it is not for {rank}");
        let open = self.processes[slot].receives.range(..handle).count();
        let got = self.letters.got.entry((source, rank)).or_default();
        let before = got.range(..handle).next_back();
        let behind = got.range(handle..).next();
        let is_between = before.is_none_or(|(_, other)| *other < letter.number)
            && behind.is_none_or(|(_, other)| *other > letter.number);
        assert!(is_between, "{what}: out of order: {before:?}, {behind:?}");
        let earlier = &self.letters.of_source[&source][..letter.number];
        let earlier = earlier.iter().map(|tag| &self.letters.letters[tag]);
        let missed: Vec<_> = earlier
            .filter(|it| it.is_for(rank) && it.end.is_none_or(|end| end == Status::Ok))
            .filter(|it| !got.values().any(|number| *number == it.number))
            .collect();
        assert!(
            missed.len() <= open,
            "{what}: {missed:?} have not come before, and {open} receives are open"
        );
        got.insert(handle, letter.number);
        if status == Status::Ok {
            let expected = bytes_of(tag, letter.length);
            assert!(memory.starts_with(&expected), "{what}: wrong bytes");
            self.letters.received += 1;
            let is_long = letter.length > MAX_KEPT_BYTES.into();
            self.letters.received_in_pieces += u64::from(is_long);
        }
        self.processes[slot].memory.set(start, &memory);
    }
}
