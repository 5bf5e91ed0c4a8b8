//! Timers in a wheel: check-in and check-out take constant time (U2).
//!
//! ```text
//!            slot 0   1   2   3  …  1023          one tick each, about 131 µs
//!                 │       │
//!                 ▼       ▼
//!               guest ⇄ guest ⇄ guest             a timer that expires in tick n is
//!                                                 in slot n % 1024
//! ```
//! A timer that expires in a later turn of the wheel stays in its slot until then.
//! A timer never fires early, and at most two ticks late.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::timing::time::Time;

/// Nanoseconds in a tick, as a power of two.
const TICK_SHIFT: u32 = 17;

const SLOTS: usize = 1024;

const NONE: u32 = u32::MAX;

/// Names a timer that is checked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerId(u32);

#[derive(Debug)]
struct Guest<K> {
    key: K,
    tick: u64,
    previous: u32,
    next: u32,
}

/// Timers, each with a key by which its owner knows it.
#[derive(Debug)]
pub struct TimerWheel<K> {
    guests: Vec<Guest<K>>,
    free: Vec<u32>,
    /// First guest of each slot.
    slots: Box<[u32; SLOTS]>,
    /// Bit *n*: slot *n* has guests.
    occupied: [u64; SLOTS / 64],
    /// All ticks up to this one have been processed.
    tick: u64,
    count: u32,
}

impl<K: Copy> Default for TimerWheel<K> {
    fn default() -> Self {
        TimerWheel::new()
    }
}

impl<K: Copy> TimerWheel<K> {
    /// A wheel without timers.
    pub fn new() -> Self {
        TimerWheel {
            guests: Vec::new(),
            free: Vec::new(),
            slots: Box::new([NONE; SLOTS]),
            occupied: [0; SLOTS / 64],
            tick: 0,
            count: 0,
        }
    }

    /// Forgets all timers; none of them may be checked out any more.
    pub fn clear(&mut self) {
        if !self.guests.is_empty() {
            let tick = self.tick;
            *self = TimerWheel::new();
            self.tick = tick;
        }
    }

    /// Adds a timer that expires at `time`.
    pub fn check_in(&mut self, time: Time, key: K) -> TimerId {
        // Rounded up: when the timer fires, its whole tick has passed.
        let tick = (time.0 >> TICK_SHIFT).max(self.tick) + 1;
        let slot = tick as usize % SLOTS;
        let first = self.slots[slot];
        let guest = Guest {
            key,
            tick,
            previous: NONE,
            next: first,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.guests[index as usize] = guest;
                index
            }
            None => {
                self.guests.push(guest);
                self.guests.len() as u32 - 1
            }
        };
        if first != NONE {
            self.guests[first as usize].previous = index;
        }
        self.slots[slot] = index;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.count += 1;
        TimerId(index)
    }

    /// Removes a timer that is in the wheel: it has not been returned by
    /// [`TimerWheel::pop_due`].
    pub fn check_out(&mut self, timer: TimerId) {
        let guest = &self.guests[timer.0 as usize];
        let (previous, next) = (guest.previous, guest.next);
        let slot = guest.tick as usize % SLOTS;
        match previous {
            NONE => self.slots[slot] = next,
            previous => self.guests[previous as usize].next = next,
        }
        if next != NONE {
            self.guests[next as usize].previous = previous;
        }
        if self.slots[slot] == NONE {
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
        self.free.push(timer.0);
        self.count -= 1;
    }

    /// Takes one timer out that has expired by `now`, the oldest tick first.
    #[inline]
    pub fn pop_due(&mut self, now: Time) -> Option<K> {
        let tick = now.0 >> TICK_SHIFT;
        if self.count == 0 {
            self.tick = self.tick.max(tick);
            return None;
        }
        self.pop_due_of_some(tick)
    }

    fn pop_due_of_some(&mut self, now: u64) -> Option<K> {
        // A whole turn looks at every slot once, so it also finds timers that are later than a turn.
        let mut passed = self.tick.max(now.saturating_sub(SLOTS as u64));
        while let Some(tick) = self.next_occupied(passed).filter(|tick| *tick <= now) {
            let mut index = self.slots[tick as usize % SLOTS];
            while index != NONE {
                let guest = &self.guests[index as usize];
                if guest.tick <= now {
                    let key = guest.key;
                    self.check_out(TimerId(index));
                    // There may be more timers in this tick.
                    self.tick = self.tick.max(tick - 1);
                    return Some(key);
                }
                index = guest.next;
            }
            passed = tick;
        }
        self.tick = self.tick.max(now);
        None
    }

    /// The first tick after `passed`, within a turn, whose slot has guests. Looks at the slots in
    /// words of 64.
    fn next_occupied(&self, passed: u64) -> Option<u64> {
        const WORDS: usize = SLOTS / 64;
        let first = passed + 1;
        let (word, bit) = (first as usize % SLOTS / 64, first % 64);
        // The first word comes twice: first from its bit `bit` on, in the end up to that bit.
        (0..=WORDS as u64).find_map(|turn| {
            let mut slots = self.occupied[(word + turn as usize) % WORDS];
            if turn == 0 {
                slots &= u64::MAX << bit;
            }
            (slots != 0).then(|| first - bit + 64 * turn + u64::from(slots.trailing_zeros()))
        })
    }

    /// When to check for expired timers at the latest; perhaps too early.
    pub fn deadline(&self) -> Option<Time> {
        if self.count == 0 {
            return None;
        }
        let tick = self.next_occupied(self.tick);
        tick.map(|tick| Time(tick << TICK_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::prelude::v1::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        In(u64),
        Out(prop::sample::Index),
        Pass(u64),
        Sleep,
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = prop_oneof![0u64..1 << 18, 0u64..1 << 28, 0u64..1 << 33];
        prop_oneof![
            4 => span.clone().prop_map(Step::In),
            2 => any::<prop::sample::Index>().prop_map(Step::Out),
            2 => span.prop_map(Step::Pass),
            1 => Just(Step::Sleep),
        ]
    }

    proptest! {
        #[test]
        fn timers_fire_once_never_early_and_hardly_late(
            start in any::<u32>(), steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut now = Time(u64::from(start));
            let mut wheel = TimerWheel::new();
            let mut expected = BTreeMap::new();
            for (key, step) in steps.into_iter().enumerate() {
                match step {
                    Step::In(span) => {
                        let time = now.after(span);
                        expected.insert(key, (time, wheel.check_in(time, key)));
                    }
                    Step::Out(index) if !expected.is_empty() => {
                        let key = *expected.keys().nth(index.index(expected.len())).unwrap();
                        let (_, timer) = expected.remove(&key).unwrap();
                        wheel.check_out(timer);
                    }
                    Step::Out(_) => {}
                    Step::Pass(span) => now = now.after(span),
                    Step::Sleep => now = wheel.deadline().map_or(now, |time| time.max(now)),
                }
                while let Some(key) = wheel.pop_due(now) {
                    let (time, _) = expected.remove(&key).expect("a timer that is checked in");
                    prop_assert!(time <= now, "too early");
                }
                for (time, _) in expected.values() {
                    prop_assert!(now < time.after(2 << TICK_SHIFT), "too late");
                }
                let first = expected.values().map(|timer| timer.0).min();
                prop_assert_eq!(wheel.deadline().is_some(), first.is_some());
                if let (Some(deadline), Some(first)) = (wheel.deadline(), first) {
                    prop_assert!(deadline > now, "no thread can sleep");
                    prop_assert!(deadline <= first.after(2 << TICK_SHIFT));
                }
            }
            // Sleeping until the deadline, again and again, ends.
            let mut rounds = 0;
            while let Some(deadline) = wheel.deadline() {
                now = deadline;
                while wheel.pop_due(now).is_some() {}
                rounds += 1;
                prop_assert!(rounds < 200_000);
            }
        }
    }
}
