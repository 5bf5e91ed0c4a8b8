//! Result records: where the NIC puts the results of atomic operations.

use std::sync::{Condvar, Mutex, PoisonError};

use qnic_abi::host_area::RESULT_RECORDS;

use crate::core::lock;

/// Result records that are free: bit *i* for record *i*.
#[derive(Debug)]
pub(crate) struct Records {
    free: Mutex<u64>,
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
            free: Mutex::new(u64::MAX),
            given_back: Condvar::new(),
        }
    }

    /// Takes a record; waits while commands of other threads have all of them.
    pub(crate) fn take(&self) -> Record<'_> {
        let woken = self
            .given_back
            .wait_while(lock(&self.free), |free| *free == 0);
        let mut free = woken.unwrap_or_else(PoisonError::into_inner);
        let number = free.trailing_zeros();
        *free &= !(1 << number);
        Record {
            records: self,
            number: number as u16,
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        *lock(&self.records.free) |= 1 << self.number;
        self.records.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_is_taken_once_and_a_thread_that_finds_none_waits() {
        let records = Records::new();
        let mut taken: Vec<_> = (0..RESULT_RECORDS).map(|_| records.take()).collect();
        let numbers: Vec<_> = taken.iter().map(|record| record.number).collect();
        assert_eq!(numbers, (0..RESULT_RECORDS as u16).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            let late = scope.spawn(|| records.take().number);
            taken.swap_remove(17);
            assert_eq!(late.join().unwrap(), 17);
        });
    }
}
