//! Result records: where the NIC puts the results of atomic operations.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use qnic_abi::host_area::RESULT_RECORDS;

use crate::core::lanes::Destination;
use crate::core::lock;
use crate::core::tracker::Issued;

/// How often a thread that finds no record free looks for late ones whose command has ended.
const LATE_INTERVAL: Duration = Duration::from_millis(10);

/// Records that a destination may have whatever others have.
const SHARE: usize = 16;

/// Records that are left to others once a destination has as many.
const RESERVE: usize = RESULT_RECORDS / 3;

/// Which records are free, and which are late.
///
/// A record is *late* if nothing waits for its command any more: the NIC may still write to
/// it. It becomes free when the command has ended.
#[derive(Debug)]
struct State {
    free: Vec<u16>,
    /// The destination of each that is not.
    taken: Vec<(u16, Destination)>,
    late: Vec<(Issued, u16)>,
}

impl State {
    fn has_room(&self, destination: Destination) -> bool {
        let mut its = self.taken.iter().filter(|(_, of)| *of == destination);
        self.free.len() > RESERVE || !self.free.is_empty() && its.nth(SHARE - 1).is_none()
    }

    fn give_back(&mut self, record: u16) {
        if let Some(place) = self.taken.iter().position(|(number, _)| *number == record) {
            self.taken.swap_remove(place);
            self.free.push(record);
        }
    }
}

/// The result records of a process.
#[derive(Debug)]
pub(crate) struct Records {
    state: Mutex<State>,
    given_back: Condvar,
}

/// A record that belongs to one command.
pub(crate) struct Record<'a> {
    records: &'a Records,
    pub(crate) number: u16,
}

impl Records {
    pub(crate) fn new() -> Self {
        Records {
            state: Mutex::new(State {
                free: (0..RESULT_RECORDS as u16).rev().collect(),
                taken: Vec::new(),
                late: Vec::new(),
            }),
            given_back: Condvar::new(),
        }
    }

    /// Takes a record for a command to `destination`; waits while other commands have all of them,
    /// or those to the same destination more than their share. Returns `None` when
    /// `is_over` says so. `has_ended` says whether the command of a late record has.
    pub(crate) fn take(
        &self,
        destination: Destination,
        is_over: impl Fn() -> bool,
        has_ended: impl Fn(&Issued) -> bool,
    ) -> Option<Record<'_>> {
        let mut state = lock(&self.state);
        loop {
            for (issued, number) in std::mem::take(&mut state.late) {
                match has_ended(&issued) {
                    true => state.give_back(number),
                    false => state.late.push((issued, number)),
                }
            }
            if state.has_room(destination) {
                let number = state.free.pop()?;
                state.taken.push((number, destination));
                return Some(Record {
                    records: self,
                    number,
                });
            }
            if is_over() {
                return None;
            }
            let waited = self.given_back.wait_timeout(state, LATE_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Record<'_> {
    /// Nothing waits for its command any more.
    pub(crate) fn make_late(self, issued: Issued) {
        lock(&self.records.state).late.push((issued, self.number));
        std::mem::forget(self);
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        lock(&self.records.state).give_back(self.number);
        self.records.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use qnic_abi::{NodeId, Port};

    use super::*;
    use crate::core::tracker::Mark;
    use crate::error::Operation;

    const B: Destination = (NodeId(1), Port(7));
    const C: Destination = (NodeId(2), Port(7));

    fn take(records: &Records, destination: Destination) -> Option<Record<'_>> {
        records.take(destination, || true, |_| false)
    }

    fn take_all(records: &Records, destination: Destination) -> Vec<Record<'_>> {
        std::iter::from_fn(|| take(records, destination)).collect()
    }

    #[test]
    fn a_destination_leaves_records_to_others() {
        let records = Records::new();
        let b = take_all(&records, B);
        assert_eq!(b.len(), RESULT_RECORDS - RESERVE);
        let c = take_all(&records, C);
        assert_eq!(c.len(), SHARE);
        let mut numbers: Vec<_> = b.iter().chain(&c).map(|record| record.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), b.len() + c.len(), "each is taken once");
    }

    #[test]
    fn a_thread_that_finds_none_waits() {
        let records = Records::new();
        let mut taken = take_all(&records, B);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| records.take(B, || false, |_| false).unwrap().number);
            let given_back = taken.swap_remove(17).number;
            assert_eq!(late.join().unwrap(), given_back);
        });
    }

    #[test]
    fn a_late_record_is_free_only_when_its_command_has_ended() {
        let records = Records::new();
        let mut taken = take_all(&records, B);
        let issued = |number| Issued {
            number,
            slot: 0,
            mark: Mark {
                operation: Operation::Atomic,
                lane: 0,
                ordinal: 1,
                generation: 0,
            },
        };
        let late = taken.swap_remove(9);
        let number = late.number;
        late.make_late(issued(9));
        taken.swap_remove(3).make_late(issued(3));
        assert!(take(&records, B).is_none());
        let found = records.take(B, || true, |issued| issued.number == 9);
        assert_eq!(found.unwrap().number, number);
    }
}
