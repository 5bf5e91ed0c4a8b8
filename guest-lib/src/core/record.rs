//! Result records: where the NIC puts the results of atomic operations.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use qnic_abi::host_area::RESULT_RECORDS;

use crate::core::lock;
use crate::core::tracker::Issued;

/// How often a thread that finds no record free looks for late ones whose command has ended.
const LATE_INTERVAL: Duration = Duration::from_millis(10);

/// Which records are free, and which are late.
///
/// A record is *late* if nothing waits for its command any more: the NIC may still write to
/// it. It becomes free when the command has ended.
#[derive(Debug)]
struct State {
    /// Bit *i* for record *i*.
    free: u64,
    late: Vec<(Issued, u16)>,
}

/// The result records of a process.
#[derive(Debug)]
pub(crate) struct Records {
    state: Mutex<State>,
    given_back: Condvar,
}

const _: () = assert!(RESULT_RECORDS == u64::BITS as usize);

/// A record that belongs to one command.
pub(crate) struct Record<'a> {
    records: &'a Records,
    pub(crate) number: u16,
}

impl Records {
    pub(crate) fn new() -> Self {
        Records {
            state: Mutex::new(State {
                free: u64::MAX,
                late: Vec::new(),
            }),
            given_back: Condvar::new(),
        }
    }

    /// Takes a record; waits while other commands have all of them. Returns `None` when
    /// `is_over` says so. `has_ended` says whether the command of a late record has.
    pub(crate) fn take(
        &self,
        is_over: impl Fn() -> bool,
        has_ended: impl Fn(&Issued) -> bool,
    ) -> Option<Record<'_>> {
        let mut state = lock(&self.state);
        loop {
            let State { free, late } = &mut *state;
            late.retain(|(issued, number)| {
                let ended = has_ended(issued);
                *free |= u64::from(ended) << number;
                !ended
            });
            if *free != 0 {
                let number = free.trailing_zeros();
                *free &= !(1 << number);
                return Some(Record {
                    records: self,
                    number: number as u16,
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
        lock(&self.records.state).free |= 1 << self.number;
        self.records.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tracker::Mark;
    use crate::error::Operation;

    fn take(records: &Records) -> Record<'_> {
        records.take(|| false, |_| false).unwrap()
    }

    #[test]
    fn each_record_is_taken_once_and_a_thread_that_finds_none_waits() {
        let records = Records::new();
        let mut taken: Vec<_> = (0..RESULT_RECORDS).map(|_| take(&records)).collect();
        let numbers: Vec<_> = taken.iter().map(|record| record.number).collect();
        assert_eq!(numbers, (0..RESULT_RECORDS as u16).collect::<Vec<_>>());
        assert!(records.take(|| true, |_| false).is_none());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| take(&records).number);
            taken.swap_remove(17);
            assert_eq!(late.join().unwrap(), 17);
        });
    }

    #[test]
    fn a_late_record_is_free_only_when_its_command_has_ended() {
        let records = Records::new();
        let mut taken: Vec<_> = (0..RESULT_RECORDS).map(|_| take(&records)).collect();
        let mark = Mark {
            operation: Operation::Atomic,
            ordinal: 1,
            generation: 0,
        };
        let issued = |number| Issued { number, mark };
        taken.remove(9).make_late(issued(9));
        taken.remove(3).make_late(issued(3));
        assert!(records.take(|| true, |_| false).is_none());
        let found = records.take(|| true, |issued| issued.number == 9);
        assert_eq!(found.unwrap().number, 9);
    }
}
