//! What all objects have in common: a home, a life, and those who wait.
//!
//! ```text
//!   life:  4n ── somebody found dead ──► 4n+1 ── claimed ──► 4n+3 ── made free ──► 4n+4
//!          in order                      broken              being recovered       in order
//! ```
//! Whoever finds somebody dead in his queue breaks the object, but only in the life in
//! which he joined: a queue that a recovery threw away must not break the next one. He is
//! sure of that if the life was the same, in order, before he joined. Else, at a lock, he
//! gives up, breaks nothing and joins anew; whether the one behind him is sure, that one
//! knows. Elsewhere he breaks it all the same: nobody can leave without a trace there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::atomic::RemoteU64;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::segment::RemoteSegment;
use crate::sync::participant::Participant;
use crate::sync::slot::{Entry, Grant, Slot, State};

/// Memory of an object at its home, in bytes, and its alignment. Zeroed memory is a
/// free lock, an empty queue, a semaphore of value zero.
pub const OBJECT_BYTES: u64 = 64;

/// Offset of the life, which only grows. Its lowest two bits are 0 while the object is
/// in order, [`BROKEN`], or [`CLAIMED`] while somebody recovers it.
const LIFE: u64 = 32;
const BROKEN: u64 = 1;
const CLAIMED: u64 = 3;

/// A life that no object has reached: nothing is known.
const UNKNOWN: u64 = u64::MAX;

fn is_in_order(life: u64) -> bool {
    life & CLAIMED == 0
}

/// First and longest time between two looks after the one before.
const LOOKS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// A process that has joined a queue and does not chain itself up for so long
/// counts as dead. Twice the time after which a NIC gives up a peer.
pub const LINK_LIMIT: Duration = Duration::from_secs(10);

/// An object at its home.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) participant: Participant,
    pub(crate) segment: RemoteSegment,
    pub(crate) offset: u64,
    kind: &'static str,
    life: RemoteU64,
    /// The life as it was seen last.
    known: AtomicU64,
    identity: u64,
    /// Whether who doubts that his queue is the present one joins anew. Nobody may leave the
    /// queue of a semaphore or of an event like that: he would take a signal with him.
    pub(crate) rejoins: bool,
}

/// What has become of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    There,
    /// He is not in this queue any more.
    Left,
    /// His slot does not name this one as the next: he has left and joined anew, or
    /// the name is still on its way.
    Unlinked,
    /// His process is.
    Gone,
}

/// Looks at longer and longer intervals.
#[derive(Debug)]
struct Looks(Duration);

impl Looks {
    fn next(&mut self, now: Instant) -> Instant {
        let pause = self.0;
        self.0 = (pause * 2).min(LOOKS.1);
        now + pause
    }
}

/// What somebody who waits knows of his queue: lives as long as his place in it, so
/// that many short waits notice what one long wait does.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The one before, unless he has left.
    before: Option<Entry>,
    /// The life of the object when he began to wait.
    life: Option<u64>,
    /// Since when nobody is before him, though he is not the first.
    nobody_since: Option<Instant>,
    looks: Looks,
    /// When to look next.
    next: Option<Instant>,
}

impl Watch {
    /// That of somebody who has just joined behind another one, or as the first.
    pub(crate) fn new(before: Option<Entry>) -> Self {
        Watch {
            before,
            life: None,
            nobody_since: None,
            looks: Looks(LOOKS.0),
            next: None,
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
        if address % OBJECT_BYTES != 0 {
            return Err(Error::Misaligned {
                offset,
                width: OBJECT_BYTES,
            });
        }
        // The same for all processes, and different for different objects but by
        // great chance; the two lowest bits are those of a State.
        let home = u64::from(segment.node().0) << 48 | u64::from(segment.port().0) << 32;
        let identity = home
            .wrapping_add(address)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(Object {
            life: participant.endpoint().atomic_u64(segment, offset + LIFE)?,
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

    /// A word of it.
    pub(crate) fn word(&self, at: u64) -> Result<RemoteU64> {
        let endpoint = self.participant.endpoint();
        endpoint.atomic_u64(&self.segment, self.offset + at)
    }

    /// Takes a slot for its queue.
    pub(crate) fn enter(&self) -> Result<Slot> {
        // Relaxed: whoever finds an old life has more doubts than it must.
        let mut known = self.known.load(Ordering::Relaxed);
        if !is_in_order(known) {
            known = self.see_life()?;
        }
        self.participant.enter(self.identity, known)
    }

    /// Looks at the life, and remembers it.
    fn see_life(&self) -> Result<u64> {
        let life = self.life.load()?;
        self.known.store(life, Ordering::Relaxed);
        Ok(life)
    }

    /// Waits until all that the program wrote before is in the memory it was meant for.
    pub(crate) fn publish(&self) -> Result<()> {
        self.core().publish()
    }

    /// Chains a slot up behind another one.
    pub(crate) fn link(&self, before: Entry, slot: &Slot) -> Result<()> {
        match self.participant.link(before, slot) {
            Err(error) if error.is_peer_gone() => Err(self.break_under(slot)?),
            linked => linked,
        }
    }

    /// Wakes an entry. Of one that is gone, those behind it take care.
    pub(crate) fn wake(&self, entry: Entry, count: u32) -> Result<()> {
        match self.participant.grant(entry, Grant::Woken(count)) {
            Err(error) if error.is_peer_gone() => Ok(()),
            woken => woken,
        }
    }

    /// Waits until a slot is woken; returns how many still wait. `is_first` says,
    /// by what the home says, that nobody stands before it any more.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::TimedOut`], and those of the home.
    pub(crate) fn await_grant(
        &self,
        slot: &Slot,
        watch: &mut Watch,
        deadline: Option<Instant>,
        is_first: impl Fn() -> Result<bool>,
    ) -> Result<u32> {
        let core = self.core();
        if watch.life.is_none() && slot.granted()?.is_none() {
            // Whose queue ends before he has seen its life cannot tell it from the next.
            self.check_life(&mut watch.life)?;
        }
        loop {
            let looks = &mut watch.looks;
            let look = *watch.next.get_or_insert_with(|| looks.next(core.now()));
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            match core.wait_for(Some(until), || slot.granted()) {
                Ok(Grant::Woken(count)) => return Ok(count),
                Ok(Grant::Lost) => return Err(self.break_under(slot)?),
                Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
            let now = core.now();
            if now >= look {
                watch.next = None;
                self.look(slot, watch, now, &is_first)?;
            }
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Looks after the object and the one before.
    fn look(
        &self,
        slot: &Slot,
        watch: &mut Watch,
        now: Instant,
        is_first: &impl Fn() -> Result<bool>,
    ) -> Result<()> {
        self.check_life(&mut watch.life)?;
        let mut waits = false;
        if let Some(other) = watch.before {
            match self.look_after(other, slot)? {
                Other::There => waits = true,
                Other::Unlinked => {}
                Other::Gone if !is_first()? => return Err(self.break_under(slot)?),
                Other::Left | Other::Gone => watch.before = None,
            }
        }
        // He must be the first, or his grant is on its way.
        if waits || is_first()? {
            watch.nobody_since = None;
        } else if now - *watch.nobody_since.get_or_insert(now) >= LINK_LIMIT {
            return Err(self.break_under(slot)?);
        }
        Ok(())
    }

    /// Checks that the object is in order and was not recovered since the first look. Who
    /// has claimed it may be dead, too: then somebody who gives up must recover it.
    fn check_life(&self, first: &mut Option<u64>) -> Result<()> {
        let life = self.see_life()?;
        let first = *first.get_or_insert(life);
        match is_in_order(life) && first == life {
            true => Ok(()),
            false => Err(self.broken()),
        }
    }

    /// Looks what has become of the one before.
    fn look_after(&self, before: Entry, slot: &Slot) -> Result<Other> {
        let all = &self.participant;
        let found = all.state(before);
        let (state, next) = match found.and_then(|state| Ok((state, all.next(before)?))) {
            Ok(found) => found,
            Err(error) if error.is_peer_gone() => {
                // He may have woken this one before he went, or named it the first.
                return match slot.granted()? {
                    Some(_) => Ok(Other::Left),
                    None => Ok(Other::Gone),
                };
            }
            Err(error) => return Err(error),
        };
        match State::of(state, self.identity) {
            Some(State::Waiting | State::Holding) if next == slot.entry().0 => Ok(Other::There),
            Some(State::Waiting | State::Holding) => Ok(Other::Unlinked),
            Some(State::GivenUp) => Err(self.break_under(slot)?),
            None => Ok(Other::Left),
        }
    }

    /// Breaks the object in whose queue a slot stands, unless that may be a queue of the
    /// past.
    pub(crate) fn break_under(&self, slot: &Slot) -> Result<Error> {
        let life = self.see_life()?;
        if is_in_order(life) {
            if self.rejoins && life != slot.known() {
                slot.doubt();
            } else {
                self.life.compare_swap(life, life | BROKEN)?;
            }
        }
        Ok(self.broken())
    }

    /// Waits until the one behind a slot has chained himself up, who is known to
    /// have joined.
    pub(crate) fn await_next(&self, slot: &Slot) -> Result<Entry> {
        let core = self.core();
        let (mut looks, mut life) = (Looks(LOOKS.0), None);
        let limit = core.now() + LINK_LIMIT;
        loop {
            match core.wait_for(Some(looks.next(core.now())), || slot.next()) {
                Err(Error::TimedOut) => {}
                next => return next,
            }
            self.check_life(&mut life)?;
            if core.now() >= limit {
                return Err(self.break_under(slot)?);
            }
        }
    }

    /// Claims a broken object in order to empty it: nobody else does until
    /// [`Object::revive`] or [`Object::give_back`]. `None`: it is in order, or somebody
    /// else has just recovered it. Who claims it and does neither for [`LINK_LIMIT`]
    /// counts as dead: longer than a message of his can be under way.
    pub(crate) fn claim(&self) -> Result<Option<u64>> {
        let life = self.life.load()?;
        let claim = match life & CLAIMED {
            0 => return Ok(None),
            CLAIMED if !self.stands_still(life)? => return Ok(None),
            CLAIMED => life.wrapping_add(4),
            _ => life.wrapping_add(CLAIMED - BROKEN),
        };
        let claimed = self.life.compare_swap(life, claim)? == life;
        Ok(claimed.then_some(claim))
    }

    /// Says whether the life stays what it is for [`LINK_LIMIT`].
    fn stands_still(&self, life: u64) -> Result<bool> {
        let core = self.core();
        let limit = core.now() + LINK_LIMIT;
        let mut looks = Looks(LOOKS.0);
        while core.now() < limit {
            match core.wait_for(Some(looks.next(core.now())), || Ok(None::<()>)) {
                Ok(()) | Err(Error::TimedOut) => {}
                Err(error) => return Err(error),
            }
            if self.life.load()? != life {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes that a claimed object is in order again; `false` if the claim has ended.
    pub(crate) fn revive(&self, claim: u64) -> Result<bool> {
        Ok(self.life.compare_swap(claim, claim.wrapping_add(1))? == claim)
    }

    /// Notes that a claimed object is still broken.
    pub(crate) fn give_back(&self, claim: u64) -> Result<()> {
        let broken = claim.wrapping_add(4 - CLAIMED + BROKEN);
        self.life.compare_swap(claim, broken).map(drop)
    }

    /// Says whether the object is broken.
    pub(crate) fn is_broken(&self) -> Result<bool> {
        Ok(!is_in_order(self.see_life()?))
    }

    /// Says whether the owner of an entry, which the home knows as the holder of this
    /// object, is there and holds it, or was woken to and has not noticed yet.
    pub(crate) fn is_held_by(&self, entry: Entry) -> Result<bool> {
        match self.participant.state(entry) {
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

    /// The object, for people.
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
