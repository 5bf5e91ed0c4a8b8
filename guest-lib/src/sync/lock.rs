//! Mutual exclusion (N21): MCS locks, first come, first served.
//!
//! ```text
//!   owner:  head  tail  turns (how many, generation)     epoch
//!            │     └───────────────────────────┐
//!            ▼                                 ▼
//!    A (holds)  next ──►  B (waits)  next ──►  C (waits)
//! ```
//! The three words are a [`WaitQueue`](qnic_abi::atomic::WaitQueue) of the NIC: its Enqueue
//! takes a free lock and leaves the holder's name in `head`, in one operation. The module `turns`
//! says what `turns` counts.
//!
//! | step | operations at the owner | `head` | `turns` |
//! |---|---|---|---|
//! | A takes the free lock | Enqueue | 0 → A | 0 → 1 |
//! | B joins behind A, links itself to A | Enqueue | A | 1 → 2 |
//! | A hands over to B | CompareSwap of `head`, then the grant | A → B | 2 |
//! | B, the last, releases | CompareSwap of `turns`, 2 → 0 | B | 2 → 0 |
//! | a recovery looks | CompareSwap of `turns` | | frozen |
//! | … and frees the lock, or not | CompareSwap of `turns` | | 0, next generation; or thawed |
//!
//! # Invariants
//! 1. While `turns` is not 0, `head` names the holder, or the process that the lock is being
//!    handed to.
//! 2. Each operation that changes the lock, except the joining one, compares a value that no other
//!    holder can have left: a name, or a turn of its generation. So an operation that arrives late
//!    has no effect.
//! 3. A process leaves its slot only when `turns` is 0 or `head` names another.
//! 4. What a holder has written is delivered before `turns` is 0 or `head` names another process.
//!    (That process may have given up; then a recovery frees the lock for a third one.)
//!
//! # Why a recovery frees no lock whose holder lives
//! It freezes `turns` unless that is 0. From then on no process can take the lock: it is not
//! free, and no release makes it free. Then it reads `head`, looks at the slot of that name,
//! and reads `head` again until both names are the same.
//!
//! | meanwhile | the recovery |
//! |---|---|
//! | `turns` is 0, and a process takes the lock before the recovery has ended | its CompareSwap of `turns` fails: it looks again |
//! | A takes the lock, and its Enqueue's response is lost or late | reads `head` = A, whose slot waits: [`Error::Held`] |
//! | A releases before `turns` is frozen | reads 0, or its CompareSwap fails: it looks again |
//! | A releases while `turns` is frozen | A's CompareSwap fails: A abandons its slot and gets [`Error::Broken`]; this recovery or the next one frees the lock |
//! | A hands over to B before the recovery has read `head` | finds B, which waits or holds: [`Error::Held`] |
//! | A hands over to B, and leaves, before the recovery has looked at A's slot | reads `head` = B the second time, and looks at B's slot |
//! | A dies while it hands over, before `head` is B | frees the lock; the late CompareSwap of A finds no A in `head` |
//! | A dies behind that, and never grants | finds B waiting: [`Error::Held`], until B notices and abandons its slot |
//! | A is cut off, counts as dead, and comes back | has freed the lock; what A still does there compares A's name or generation |
//! | another process takes the recovery over, after twice the peer timeout | its CompareSwap fails: the generation is another, or the lock is not frozen |
//!
//! # Trying
//! [`Lock::try_acquire`] joins only if it has seen the lock free. Another process may take it
//! in between. Then the process *withdraws*, before it has linked itself to its predecessor:
//! it makes the predecessor the last again. If another process has joined behind it meanwhile, it
//! links that process to the predecessor. Both take the time of a few messages, and wait for no
//! holder.

use std::time::{Duration, Instant};

use qnic_abi::atomic::{Function, WaitQueue as Structure};
use qnic_abi::{NodeId, Port};

use crate::atomic::{Operand, RemoteU64};
use crate::error::{Error, Result};
use crate::memory::RemoteSegment;
use crate::sync::entry::{Entry, State};
use crate::sync::object::{Object, Watch};
use crate::sync::participant::Participant;
use crate::sync::slot::Slot;
use crate::sync::turns::{Turn, Turns, MANY};

/// Offset of the name of the holder, or of the next one during a hand-over.
const HEAD: u64 = 0;
/// Offset of the name of the last entry of the queue.
const TAIL: u64 = 8;
/// Offset of [`Turns`].
const TURNS: u64 = 16;

/// A lock between processes of all nodes (N21).
#[derive(Debug)]
pub struct Lock {
    object: Object,
    structure: Operand,
    head: RemoteU64,
    tail: RemoteU64,
    turns: RemoteU64,
}

impl Lock {
    /// The lock at `offset` of an imported segment ([memory](crate::sync#memory)).
    pub fn new(participant: &Participant, segment: &RemoteSegment, offset: u64) -> Result<Self> {
        let mut object = Object::new(participant, segment, offset, "lock")?;
        object.rejoins = true;
        let core = participant.endpoint().core();
        let length = size_of::<Structure>() as u64;
        Ok(Lock {
            structure: Operand::new(core, segment, offset, length)?,
            head: object.word(HEAD)?,
            tail: object.word(TAIL)?,
            turns: object.word(TURNS)?,
            object,
        })
    }

    /// Waits for the lock; first come, first served.
    ///
    /// # Errors
    /// [`Error::Broken`]: a process that held it or waited for it has died; this one is
    /// not in the queue any more.
    pub fn acquire(&self) -> Result<LockGuard<'_>> {
        self.waiting().wait(None)
    }

    /// A way to wait for the lock with timeouts; joins no queue yet.
    pub fn waiting(&self) -> LockWaiting<'_> {
        LockWaiting {
            lock: self,
            entry: None,
        }
    }

    /// Joins with a slot; returns what stands before it: 0 if it has taken the free lock.
    fn join(&self, slot: &Slot) -> Result<u64> {
        let joined = self
            .structure
            .execute(Function::Enqueue, [slot.entry.0, 0], None);
        slot.join(joined).map(|(before, _)| before)
    }

    /// Joins the queue; returns `None` if that was perhaps one that a recovery has thrown away.
    fn enter(&self) -> Result<Option<Waiter>> {
        let slot = self.object.take_slot()?;
        let before = self.join(&slot)?;
        match self.object.link(&slot, before) {
            Ok(before) => Ok(Some(Waiter {
                slot,
                before,
                watch: Watch::new(before),
            })),
            Err(Error::Broken { .. }) if slot.is_stale() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until an entry of the queue has the lock; returns the number of its turn.
    fn await_turn(&self, waiter: &mut Waiter, deadline: Option<Instant>) -> Result<u32> {
        let Waiter {
            slot,
            before,
            watch,
        } = waiter;
        match before {
            None => Ok(1),
            Some(_) => self.object.await_grant(slot, watch, deadline, || Ok(false)),
        }
    }

    /// Takes the lock if it is free. Does not wait for a holder.
    ///
    /// # Errors
    /// [`Error::Broken`]: another process took it at the same time, and has died or
    /// recovered it since.
    pub fn try_acquire(&self) -> Result<Option<LockGuard<'_>>> {
        let turns = self.load_turns()?;
        if turns.count() != 0 {
            return Ok(None);
        }
        let turn = Turn {
            number: 1,
            generation: turns.generation(),
        };
        let slot = self.object.take_slot()?;
        match Entry::from_word(self.join(&slot)?) {
            None => self.hold(slot, turn, None).map(Some),
            Some(before) => self.withdraw(slot, turn.generation, before).map(|()| None),
        }
    }

    fn hold(&self, slot: Slot, turn: Turn, before: Option<Entry>) -> Result<LockGuard<'_>> {
        slot.set_state(State::Holding)?;
        Ok(LockGuard {
            lock: self,
            slot: Some(slot),
            turn,
            before,
        })
    }

    fn load_turns(&self) -> Result<Turns> {
        self.turns.load().wait().map(Turns)
    }

    /// Changes `turns` from one value to another; returns the value before.
    fn swap_turns(&self, from: Turns, to: Turns) -> Result<Turns> {
        self.turns.compare_swap(from.0, to.0).wait().map(Turns)
    }

    /// Takes a slot, which is not linked, out of the queue again.
    fn withdraw(&self, slot: Slot, generation: u32, before: Entry) -> Result<()> {
        let (object, me) = (&self.object, slot.entry.0);
        // The last withdraws before it counts as gone: else its predecessor, which counts
        // itself as the last, could free the lock while this name stands in `tail`.
        let is_last = || Ok(self.tail.compare_swap(me, before.0).wait()? == me);
        let next = match is_last()? {
            true => None,
            false => object.await_next(&slot, is_last)?,
        };
        if let Some(next) = next {
            object.follow(next, before)?;
        }
        self.count_less(generation, 1)?;
        if let Some(next) = next {
            // From here on the predecessor can hand over to it, with the turn of this one.
            object.link_to(before, next)?;
        }
        slot.leave()
    }

    /// Takes turns off the count.
    ///
    /// # Errors
    /// [`Error::Broken`]: they are of a lock that a recovery has freed, or looks at.
    fn count_less(&self, generation: u32, turns: u32) -> Result<()> {
        let mut found = self.load_turns()?;
        while found.is_of(generation) && found.count() > turns {
            let before = self.swap_turns(found, found.less(turns))?;
            if before == found {
                return Ok(());
            }
            found = before;
        }
        Err(self.object.broken())
    }

    /// Returns true if a process has died in its queue.
    pub fn is_broken(&self) -> Result<bool> {
        self.object.is_broken()
    }

    /// Makes a broken lock free again; returns false if it is not broken, or another
    /// process recovers it.
    ///
    /// What the lock protects may be in any state: repair it first, or after taking
    /// the lock.
    ///
    /// # Errors
    /// [`Error::Held`]: a process that lives holds the lock, or was woken to hold it. Calling
    /// `recover` again after its release does no harm.
    pub fn recover(&self) -> Result<bool> {
        let object = &self.object;
        let Some(claim) = object.claim_recovery()? else {
            return Ok(false);
        };
        // Free it before it is intact: a process that sees it intact joins no old queue.
        let free = Turns::free(Turns::generation_of(claim.wrapping_add(1)));
        while object.is_claimed(claim)? {
            let turns = self.freeze()?;
            if turns.is_frozen() && self.is_held()? {
                self.replace_frozen(turns, Turns::thawed)?;
                object.cancel_recovery(claim)?;
                return Err(Error::Held {
                    what: object.what(),
                });
            }
            let done = match turns.is_frozen() {
                true => self.replace_frozen(turns, |_| free)?,
                // Fails if a process has taken it, which has the lock then.
                false => self.swap_turns(turns, free)? == turns,
            };
            if done {
                return object.finish_recovery(claim);
            }
        }
        Ok(false)
    }

    /// Sees to it that no process can take or release the lock, unless it is free.
    fn freeze(&self) -> Result<Turns> {
        let mut turns = self.load_turns()?;
        while turns.count() != 0 && !turns.is_frozen() {
            let before = self.swap_turns(turns, turns.frozen())?;
            if before == turns {
                return Ok(turns.frozen());
            }
            turns = before;
        }
        Ok(turns)
    }

    /// Replaces what is frozen, with the turns of processes that have joined meanwhile.
    /// Returns false if another process has done so.
    fn replace_frozen(&self, frozen: Turns, to: impl Fn(Turns) -> Turns) -> Result<bool> {
        let mut turns = frozen;
        while turns.is_frozen() && turns.generation() == frozen.generation() {
            let before = self.swap_turns(turns, to(turns))?;
            if before == turns {
                return Ok(true);
            }
            turns = before;
        }
        Ok(false)
    }

    /// Returns true if the holder of a frozen lock lives.
    fn is_held(&self) -> Result<bool> {
        let mut head = self.head.load().wait()?;
        loop {
            if let Some(holder) = Entry::from_word(head) {
                if self.object.is_held_by(holder)? {
                    return Ok(true);
                }
            }
            // It may have handed over and left.
            let now = self.head.load().wait()?;
            if now == head {
                return Ok(false);
            }
            head = now;
        }
    }

    fn release(&self, slot: Slot, turn: Turn) -> Result<()> {
        self.object.core().wait_program_writes()?;
        let next = match slot.next()? {
            Some(next) => Some(next),
            None => match self.free(&slot, turn)? {
                true => None,
                // Or the process behind withdraws.
                false => self.object.await_next(&slot, || self.free(&slot, turn))?,
            },
        };
        if let Some(next) = next {
            self.hand_over(&slot, turn, next)?;
        }
        slot.leave()
    }

    /// Frees the lock that a slot holds, if no process is behind it.
    ///
    /// # Errors
    /// [`Error::Broken`]: a recovery has freed it, or looks at it.
    fn free(&self, slot: &Slot, mut turn: Turn) -> Result<bool> {
        loop {
            let last = turn.as_last();
            let found = self.swap_turns(last, Turns::free(turn.generation))?;
            if found == last {
                return Ok(true);
            }
            if found.is_of(turn.generation) && found.count() > turn.number {
                return Ok(false);
            }
            // Or the lock was recovered after this process knew its epoch, and before it
            // joined. Then its name stands there.
            let is_old = found.is_of(turn.generation) || found.is_frozen();
            if is_old || self.head.load().wait()? != slot.entry.0 {
                return Err(self.object.broken());
            }
            turn.generation = found.generation();
        }
    }

    /// Hands the lock over to the next process of the queue.
    ///
    /// # Errors
    /// [`Error::Broken`]: a recovery has freed it.
    fn hand_over(&self, slot: &Slot, turn: Turn, next: Entry) -> Result<()> {
        let (object, me) = (&self.object, slot.entry.0);
        let mut number = turn.number;
        if number >= MANY && self.count_less(turn.generation, number - 1).is_ok() {
            number = 1;
        }
        if self.head.compare_swap(me, next.0).wait()? != me {
            return Err(object.broken());
        }
        object.wake(next, number.wrapping_add(1))
    }
}

/// An entry that has joined the queue of a lock.
#[derive(Debug)]
struct Waiter {
    slot: Slot,
    before: Option<Entry>,
    watch: Watch,
}

/// A wait for a [`Lock`], in parts ([timeouts](crate::sync#timeouts)).
///
/// Dropping it after a timeout passes the lock on if it has been granted, and breaks the lock
/// otherwise.
#[derive(Debug)]
pub struct LockWaiting<'a> {
    lock: &'a Lock,
    entry: Option<Waiter>,
}

impl<'a> LockWaiting<'a> {
    /// Takes the lock, as [`Lock::acquire`] does; joins the queue unless it is still in it.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: it stays in the queue; wait again. Those of [`Lock::acquire`]: it
    /// is not in the queue any more.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<LockGuard<'a>> {
        let lock = self.lock;
        let deadline = lock.object.core().deadline(timeout);
        loop {
            let mut waiter = match self.entry.take() {
                Some(waiter) => waiter,
                None => match lock.enter()? {
                    Some(waiter) => waiter,
                    None => continue,
                },
            };
            match lock.await_turn(&mut waiter, deadline) {
                Ok(number) => {
                    let generation = Turns::generation_of(waiter.slot.known_epoch);
                    return lock.hold(waiter.slot, Turn { number, generation }, waiter.before);
                }
                Err(Error::TimedOut) => {
                    self.entry = Some(waiter);
                    return Err(Error::TimedOut);
                }
                // A recovery may have thrown its queue away: join the new one.
                Err(Error::Broken { .. }) if waiter.slot.is_stale() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for LockWaiting<'_> {
    fn drop(&mut self) {
        if self.entry.is_none() {
            return;
        }
        // The guard passes a lock on that has come.
        drop(self.wait(Some(Duration::ZERO)));
        if let Some(waiter) = self.entry.take() {
            // An error says that the owner is gone, and the lock with it.
            drop(self.lock.object.mark_broken(&waiter.slot));
        }
    }
}

/// Holds a [`Lock`] until it is dropped or released.
#[derive(Debug)]
pub struct LockGuard<'a> {
    lock: &'a Lock,
    slot: Option<Slot>,
    turn: Turn,
    before: Option<Entry>,
}

impl LockGuard<'_> {
    /// The predecessor of this process in the queue, in the order of the owner: the
    /// process that held the lock before. `None`: the lock was free.
    pub fn predecessor(&self) -> Option<(NodeId, Port)> {
        self.before.map(Entry::process)
    }

    /// Releases the lock, like dropping it, and returns an error if that failed. What the
    /// program wrote before is in the memory of its destination when the next process
    /// holds the lock.
    ///
    /// # Errors
    /// [`Error::Broken`]: the successor has died before it linked itself, or another process
    /// recovers the broken lock at this moment; this one does not hold it any more.
    pub fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        match self.slot.take() {
            None => Ok(()),
            Some(slot) => self.lock.release(slot, self.turn),
        }
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        // A drop cannot report; `release` does. The waiting processes notice.
        drop(self.end());
    }
}
