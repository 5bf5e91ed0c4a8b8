//! What all objects have in common: an owner, an epoch, and processes that wait.
//!
//! ```text
//!   epoch:  4n ── a dead process found ──► 4n+1 ── claimed ──► 4n+3 ── emptied ──► 4n+4
//!           intact                         broken              recovering          intact
//! ```
//! A process that finds a dead process in its queue breaks the object. It must not break
//! the next epoch: a recovery may have thrown its queue away in the meantime. Its queue is
//! surely the present one if the epoch was the same, and intact, before the process joined.
//! Else its queue may be *stale*, and the process breaks nothing and abandons its slot:
//!
//! - At a lock, it is not sure. The process joins anew. Its successor decides for itself whether
//!   its own queue is stale.
//! - At a wait queue or semaphore, it is sure, by the generation of the queue. The process gets
//!   [`Error::Broken`] like all others of that queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::atomic::RemoteU64;
use crate::core::wait::earlier;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::RemoteSegment;
use crate::sync::entry::{Entry, Grant, State, BEFORE, NEXT, STATE};
use crate::sync::participant::Participant;
use crate::sync::slot::Slot;

/// Memory of an object at its owner, in bytes, and its alignment. Zeroed memory is a
/// free lock, an empty queue, a semaphore of value zero.
pub const OBJECT_BYTES: u64 = 64;

/// Offset of the name of the last entry of the queue.
const TAIL: u64 = 8;

/// Offset of the epoch, which only grows. Its lowest two bits are 0 while the object is
/// intact, else [`BROKEN`] or [`RECOVERING`].
const EPOCH: u64 = 32;
const BROKEN: u64 = 1;
const RECOVERING: u64 = 3;

/// An epoch that no object has reached: nothing is known.
const UNKNOWN: u64 = u64::MAX;

fn is_intact(epoch: u64) -> bool {
    epoch & RECOVERING == 0
}

/// Entries of a queue that a holder looks at to find the one behind it, at most.
const LONGEST_QUEUE: usize = 1 << 16;

/// An object at its owner.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) participant: Participant,
    pub(crate) segment: RemoteSegment,
    pub(crate) offset: u64,
    kind: &'static str,
    epoch: RemoteU64,
    tail: RemoteU64,
    /// The epoch that was seen last.
    known: AtomicU64,
    identity: u64,
    /// A process whose queue may be stale joins anew.
    pub(crate) rejoins: bool,
}

/// What has become of the predecessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Predecessor {
    /// It is in this queue.
    Present,
    /// It is not in this queue any more.
    Left,
    /// Its slot does not name this one as the next: it has left and joined again, or the
    /// link is still on its way.
    Unlinked,
    /// Its process is gone.
    Gone,
}

/// Intervals between two checks, which grow from the first of [`Backoff::LIMITS`] to the
/// second.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    const LIMITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

    fn new() -> Self {
        Backoff(Self::LIMITS.0)
    }

    fn next(&mut self, now: Instant) -> Instant {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LIMITS.1);
        now + pause
    }
}

/// What a waiting process knows of its queue. It lives as long as the entry in the queue,
/// so that many short waits notice what one long wait does.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The predecessor, unless it has left.
    before: Option<Entry>,
    /// The epoch of the queue; if that is not known, of the object when the wait began.
    epoch: Option<u64>,
    /// The epoch was checked once.
    checked: bool,
    /// Since when there is no predecessor, though the process is not the first.
    alone_since: Option<Instant>,
    backoff: Backoff,
    next_check: Option<Instant>,
}

impl Watch {
    /// Begins when a process has joined behind another one, or as the first.
    pub(crate) fn new(before: Option<Entry>) -> Self {
        Watch {
            before,
            epoch: None,
            checked: false,
            alone_since: None,
            backoff: Backoff::new(),
            next_check: None,
        }
    }

    /// The same, in the queue of a known epoch, whatever has become of the object since.
    pub(crate) fn in_epoch(before: Option<Entry>, epoch: u64) -> Self {
        Watch {
            epoch: Some(epoch & !RECOVERING),
            ..Watch::new(before)
        }
    }
}

impl Object {
    pub(crate) fn new(
        participant: &Participant,
        segment: &RemoteSegment,
        offset: u64,
        kind: &'static str,
    ) -> Result<Self> {
        segment.check(offset, OBJECT_BYTES)?;
        let address = segment.address() + offset;
        Error::check_alignment(address, offset, OBJECT_BYTES)?;
        // The same for all processes. Two objects share it only by a rare chance. The
        // two lowest bits are those of a State.
        let owner = u64::from(segment.node().0) << 48 | u64::from(segment.port().0) << 32;
        let identity = owner
            .wrapping_add(address)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(Object {
            epoch: participant.endpoint().atomic(segment, offset + EPOCH)?,
            tail: participant.endpoint().atomic(segment, offset + TAIL)?,
            known: AtomicU64::new(UNKNOWN),
            participant: participant.clone(),
            segment: segment.clone(),
            offset,
            kind,
            identity: identity & !3,
            rejoins: false,
        })
    }

    pub(crate) fn core(&self) -> &Core {
        self.participant.endpoint().core()
    }

    /// After what time a message that has not arrived never will, nor anything behind it: its
    /// sender's NIC has given this one up, or this one the sender's.
    fn limit(&self) -> Duration {
        self.participant.endpoint().peer_timeout() * 2
    }

    pub(crate) fn word(&self, at: u64) -> Result<RemoteU64> {
        let endpoint = self.participant.endpoint();
        endpoint.atomic(&self.segment, self.offset + at)
    }

    /// Takes a slot for its queue.
    pub(crate) fn take_slot(&self) -> Result<Slot> {
        // Relaxed: an old epoch only makes the process less sure of its queue.
        let mut known = self.known.load(Ordering::Relaxed);
        if !is_intact(known) {
            known = self.load_epoch()?;
        }
        Slot::new(&self.participant.0, self.identity, known)
    }

    /// Loads the epoch, and remembers it.
    pub(crate) fn load_epoch(&self) -> Result<u64> {
        let epoch = self.epoch.load().wait()?;
        self.known.store(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    /// Links a slot that has joined behind `before`, if that names an entry; returns it.
    pub(crate) fn link(&self, slot: &Slot, before: u64) -> Result<Option<Entry>> {
        let Some(before) = Entry::from_word(before) else {
            return Ok(None);
        };
        // Before the predecessor knows this one, which may replace it.
        slot.set_predecessor(before)?;
        match self.participant.0.post(before, NEXT, slot.entry.0) {
            Err(error) if error.is_peer_gone() => Err(self.mark_broken(slot)?),
            linked => linked.map(|()| Some(before)),
        }
    }

    /// Links an entry to a predecessor, in the name of the entry between them, which leaves.
    pub(crate) fn link_to(&self, before: Entry, next: Entry) -> Result<()> {
        self.tell(before, NEXT, next)
    }

    /// Names an entry its new predecessor, and waits until it can see it.
    pub(crate) fn follow(&self, entry: Entry, before: Entry) -> Result<()> {
        self.tell(entry, BEFORE, before)?;
        self.core().wait_writes(None, None)
    }

    /// Writes a name to a slot. If its process is gone, the entries behind it notice.
    fn tell(&self, entry: Entry, word: u64, name: Entry) -> Result<()> {
        match self.participant.0.post(entry, word, name.0) {
            Err(error) if error.is_peer_gone() => Ok(()),
            told => told,
        }
    }

    /// Wakes an entry. If its process is gone, the entries behind it notice.
    pub(crate) fn wake(&self, entry: Entry, count: u32) -> Result<()> {
        match self.participant.0.grant(entry, Grant::Woken(count)) {
            Err(error) if error.is_peer_gone() => Ok(()),
            woken => woken,
        }
    }

    /// Waits until a slot is woken; returns how many entries still wait. `is_first` asks
    /// the owner whether the entry is the first of the queue.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::TimedOut`], and those of [`crate::AtomicOperation::wait`].
    pub(crate) fn await_grant(
        &self,
        slot: &Slot,
        watch: &mut Watch,
        deadline: Option<Instant>,
        is_first: impl Fn() -> Result<bool>,
    ) -> Result<u32> {
        let core = self.core();
        if !watch.checked && slot.granted()?.is_none() {
            watch.checked = true;
            // If the queue ended before the process saw its epoch, the process could not
            // tell it from the next one.
            self.check_epoch(&mut watch.epoch)?;
        }
        loop {
            let backoff = &mut watch.backoff;
            let check = *watch
                .next_check
                .get_or_insert_with(|| backoff.next(core.now()));
            match core.wait_until(earlier(check, deadline), || slot.granted())? {
                Some(Grant::Woken(count)) => return Ok(count),
                Some(Grant::Abandoned) => return Err(self.mark_broken(slot)?),
                None => {}
            }
            let now = core.now();
            if now >= check {
                watch.next_check = None;
                self.check(slot, watch, now, &is_first)?;
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Checks the object and the predecessor of a waiting slot.
    fn check(
        &self,
        slot: &Slot,
        watch: &mut Watch,
        now: Instant,
        is_first: &impl Fn() -> Result<bool>,
    ) -> Result<()> {
        self.check_epoch(&mut watch.epoch)?;
        let mut waits = false;
        watch.before = slot.new_predecessor()?.or(watch.before);
        if let Some(before) = watch.before {
            match self.check_predecessor(before, slot)? {
                Predecessor::Present => waits = true,
                Predecessor::Unlinked => {}
                Predecessor::Gone if !is_first()? => return Err(self.mark_broken(slot)?),
                Predecessor::Left | Predecessor::Gone => watch.before = None,
            }
        }
        // Without a predecessor, the slot is the first or its grant is on its way.
        if waits || is_first()? {
            watch.alone_since = None;
        } else if now - *watch.alone_since.get_or_insert(now) >= self.limit() {
            return Err(self.mark_broken(slot)?);
        }
        Ok(())
    }

    /// Checks that the object is intact, and was not recovered since the epoch was `first`
    /// seen. A recovering object counts as broken: the process that recovers it may have
    /// died, and then one that gets the error must recover it.
    fn check_epoch(&self, first: &mut Option<u64>) -> Result<()> {
        let epoch = self.load_epoch()?;
        let first = *first.get_or_insert(epoch);
        match is_intact(epoch) && first == epoch {
            true => Ok(()),
            false => Err(self.broken()),
        }
    }

    /// Finds out what has become of a slot's predecessor.
    fn check_predecessor(&self, before: Entry, slot: &Slot) -> Result<Predecessor> {
        let load = |word| self.participant.0.load(before, word);
        let (state, next) = match load(STATE).and_then(|state| Ok((state, load(NEXT)?))) {
            Ok(found) => found,
            Err(error) if error.is_peer_gone() => {
                // It may have woken this slot before it died.
                return match slot.granted()? {
                    Some(_) => Ok(Predecessor::Left),
                    None => Ok(Predecessor::Gone),
                };
            }
            Err(error) => return Err(error),
        };
        match State::of(state, self.identity) {
            Some(State::Waiting | State::Holding) if next == slot.entry.0 => {
                Ok(Predecessor::Present)
            }
            Some(State::Waiting | State::Holding) => Ok(Predecessor::Unlinked),
            Some(State::Abandoned) => Err(self.mark_broken(slot)?),
            None => Ok(Predecessor::Left),
        }
    }

    /// Returns true if a slot is in the queue of an intact epoch.
    fn is_queue_of(&self, slot: &Slot, epoch: u64) -> bool {
        match self.rejoins {
            true => slot.known_epoch == epoch,
            // It has joined in the generation of that epoch, perhaps when it was broken.
            false => slot.known_epoch >> 2 == epoch >> 2,
        }
    }

    /// Breaks the object in whose queue a slot is, unless that queue is stale, or may be.
    pub(crate) fn mark_broken(&self, slot: &Slot) -> Result<Error> {
        let epoch = self.load_epoch()?;
        if is_intact(epoch) {
            if self.is_queue_of(slot, epoch) {
                self.epoch.compare_swap(epoch, epoch | BROKEN).wait()?;
            } else if self.rejoins {
                slot.mark_stale();
            }
        }
        Ok(self.broken())
    }

    /// Waits until the successor of a slot, which has joined, has linked itself. Returns
    /// `None` if `is_last` says that it has withdrawn. A successor that lives may take any time.
    pub(crate) fn await_next(
        &self,
        slot: &Slot,
        is_last: impl Fn() -> Result<bool>,
    ) -> Result<Option<Entry>> {
        let core = self.core();
        let (mut backoff, mut epoch) = (Backoff::new(), None);
        let mut doubtful_since = None;
        loop {
            let check = backoff.next(core.now());
            if let Some(next) = core.wait_until(check, || slot.next())? {
                return Ok(Some(next));
            }
            self.check_epoch(&mut epoch)?;
            if is_last()? {
                return Ok(None);
            }
            let now = core.now();
            match self.successor_lives(slot)? {
                Some(true) => doubtful_since = None,
                Some(false) => return Err(self.mark_broken(slot)?),
                None if now - *doubtful_since.get_or_insert(now) >= self.limit() => {
                    return Err(self.mark_broken(slot)?);
                }
                None => {}
            }
        }
    }

    /// Finds out whether the process that has joined behind a slot, and is not linked, lives: from
    /// the last of the queue to the one in front of it, and so on. Returns true as well if one of
    /// these lives and does not name its predecessor yet; `None` if the queue has changed meanwhile.
    fn successor_lives(&self, slot: &Slot) -> Result<Option<bool>> {
        let mut last = self.tail.load().wait()?;
        for _ in 0..LONGEST_QUEUE {
            let Some(entry) = Entry::from_word(last).filter(|entry| *entry != slot.entry) else {
                break;
            };
            let load = |word| self.participant.0.load(entry, word);
            let (state, before) = match load(STATE).and_then(|state| Ok((state, load(BEFORE)?))) {
                Ok(found) => found,
                Err(error) if error.is_peer_gone() => return Ok(Some(false)),
                Err(error) => return Err(error),
            };
            match State::of(state, self.identity) {
                Some(State::Waiting | State::Holding) => {}
                Some(State::Abandoned) => return Ok(Some(false)),
                None => break,
            }
            if before == 0 || before == slot.entry.0 {
                return Ok(Some(true));
            }
            last = before;
        }
        Ok(None)
    }

    /// Claims a broken object, to empty it: no other process does so until
    /// [`Object::finish_recovery`] or [`Object::cancel_recovery`]. Returns `None` if the
    /// object is intact, or another process has just recovered it. A claim that does not
    /// end within [`Object::limit`] counts as that of a dead process: no message of it can
    /// still be on its way then.
    pub(crate) fn claim_recovery(&self) -> Result<Option<u64>> {
        let epoch = self.epoch.load().wait()?;
        let claim = match epoch & RECOVERING {
            0 => return Ok(None),
            RECOVERING if !self.is_stuck(epoch)? => return Ok(None),
            RECOVERING => epoch.wrapping_add(4),
            _ => epoch.wrapping_add(RECOVERING - BROKEN),
        };
        let claimed = self.epoch.compare_swap(epoch, claim).wait()? == epoch;
        Ok(claimed.then_some(claim))
    }

    /// Returns true if the epoch does not change for [`Object::limit`].
    fn is_stuck(&self, epoch: u64) -> Result<bool> {
        let core = self.core();
        let limit = core.now() + self.limit();
        let mut backoff = Backoff::new();
        while core.now() < limit {
            core.wait_until(backoff.next(core.now()), || Ok(None::<()>))?;
            if self.epoch.load().wait()? != epoch {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns true if the claim has not ended.
    pub(crate) fn is_claimed(&self, claim: u64) -> Result<bool> {
        Ok(self.epoch.load().wait()? == claim)
    }

    /// Makes a claimed object intact; returns false if the claim has ended.
    pub(crate) fn finish_recovery(&self, claim: u64) -> Result<bool> {
        Ok(self
            .epoch
            .compare_swap(claim, claim.wrapping_add(1))
            .wait()?
            == claim)
    }

    /// Makes a claimed object broken again.
    pub(crate) fn cancel_recovery(&self, claim: u64) -> Result<()> {
        let broken = claim.wrapping_add(4 - RECOVERING + BROKEN);
        self.epoch.compare_swap(claim, broken).wait().map(drop)
    }

    /// Returns true if the object is not intact.
    pub(crate) fn is_broken(&self) -> Result<bool> {
        Ok(!is_intact(self.load_epoch()?))
    }

    /// Returns true if the process of an entry, which the owner names as the holder, is
    /// there and holds this object, or was woken to hold it and has not noticed yet.
    pub(crate) fn is_held_by(&self, entry: Entry) -> Result<bool> {
        match self.participant.0.load(entry, STATE) {
            Ok(state) => Ok(matches!(
                State::of(state, self.identity),
                Some(State::Holding | State::Waiting)
            )),
            Err(error) if error.is_peer_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn broken(&self) -> Error {
        Error::Broken { what: self.what() }
    }

    /// The object, for messages.
    pub(crate) fn what(&self) -> String {
        format!(
            "the {} at offset {} of segment {:#x} of {}, {}",
            self.kind,
            self.offset,
            self.segment.name().0,
            self.segment.node(),
            self.segment.port()
        )
    }
}
