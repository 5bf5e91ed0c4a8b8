//! Carriers of several processes, driven by one thread: for tests.

use std::time::{Duration, Instant};

use qnic_nic::Time;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::carrier::{Carrier, CarrierReport, ProcessReport};

/// Longest time for a test.
const LIMIT: Duration = Duration::from_secs(60);

/// Processes, `None` if they do not run, and the frames that each has received.
pub(crate) struct Processes<C> {
    started: Instant,
    pub(crate) carriers: Vec<Option<C>>,
    pub(crate) frames: Vec<Vec<Vec<u8>>>,
}

impl<C: Carrier> Processes<C> {
    pub(crate) fn new(carriers: Vec<Option<C>>) -> Self {
        Processes {
            started: Instant::now(),
            frames: vec![Vec::new(); carriers.len()],
            carriers,
        }
    }

    fn now(&self) -> Time {
        Time(self.started.elapsed().as_nanos() as u64)
    }

    /// Drives all processes until `holds` returns true; sleeps when all of them would.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        while !holds(self) {
            assert!(
                self.started.elapsed() < LIMIT,
                "{what}: {:?}",
                self.carriers
            );
            let now = self.now();
            let mut busy = false;
            for (carrier, frames) in self.carriers.iter_mut().zip(&mut self.frames) {
                let Some(carrier) = carrier else { continue };
                busy |= carrier.receive(now, &mut |_, frame| frames.push(frame.to_vec()));
                carrier.flush(now);
            }
            let mut carriers = self.carriers.iter_mut().flatten();
            if busy || !carriers.all(C::prepare_sleep) || holds(self) {
                continue;
            }
            let carriers = || self.carriers.iter().flatten();
            let deadlines = carriers().filter_map(C::next_deadline);
            let first = deadlines.min().map(|first| first.0.saturating_sub(now.0));
            let mut fds: Vec<_> = carriers()
                .map(|one| PollFd::from_borrowed_fd(one.descriptor(), PollFlags::IN))
                .collect();
            let first = Duration::from_nanos(first.unwrap_or(u64::MAX)).min(LIMIT);
            let timeout = Timespec::try_from(first).unwrap();
            poll(&mut fds, Some(&timeout)).unwrap();
        }
    }

    pub(crate) fn report(&self, process: usize) -> CarrierReport {
        self.carriers[process].as_ref().unwrap().report()
    }

    /// What one process reports about its peer of that number.
    pub(crate) fn about(&self, process: usize, peer: usize) -> ProcessReport {
        self.report(process).processes[peer].clone()
    }

    /// Returns true if all that run are connected with all of their peers.
    pub(crate) fn connected(&self) -> bool {
        let carriers = self.carriers.iter().flatten();
        let mut peers = carriers.flat_map(|one| one.report().processes);
        peers.all(|peer| peer.connected)
    }

    pub(crate) fn send(&mut self, from: usize, peer: usize, frame: &[u8]) {
        let now = self.now();
        let carrier = self.carriers[from].as_mut().unwrap();
        carrier.send(now, peer, &mut |out| {
            out.extend_from_slice(frame);
            true
        });
    }
}
