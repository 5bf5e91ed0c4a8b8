//! For tests: carriers of several processes, driven by one thread.

use std::time::{Duration, Instant};

use qnic_config::plan::Impairments;
use qnic_nic::env::Channel;
use qnic_nic::Time;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::carrier::{Carrier, CarrierReport, ProcessReport};
use crate::network::LinkChange;

/// Impairments as they are printed: `loss 5% delay 1ms partition`.
pub(crate) fn impairments(text: &str) -> Impairments {
    serde_json::from_value(settings(text)).unwrap()
}

/// The change of the settings that are named, as in [`impairments`].
pub(crate) fn change(text: &str) -> LinkChange {
    LinkChange::Set(serde_json::from_value(settings(text)).unwrap())
}

fn settings(text: &str) -> serde_json::Value {
    let mut words = text.split_whitespace();
    let settings = std::iter::from_fn(|| match words.next()? {
        "partition" => Some(("partition".to_owned(), true.into())),
        name => Some((name.to_owned(), words.next()?.into())),
    });
    serde_json::Value::Object(settings.collect())
}

/// Longest time for a test.
const LIMIT: Duration = Duration::from_secs(60);

/// Processes, `None` if they do not run, and the frames that each has received.
pub(crate) struct Processes<C, X = ()> {
    started: Instant,
    /// What they share.
    pub(crate) context: X,
    pub(crate) carriers: Vec<Option<C>>,
    pub(crate) frames: Vec<Vec<Vec<u8>>>,
}

impl<C: Carrier, X> Processes<C, X> {
    pub(crate) fn new(carriers: Vec<Option<C>>, context: X) -> Self {
        Processes {
            started: Instant::now(),
            context,
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
        self.send_on(Channel::Data, from, peer, frame);
    }

    pub(crate) fn send_on(&mut self, channel: Channel, from: usize, peer: usize, frame: &[u8]) {
        let now = self.now();
        let carrier = self.carriers[from].as_mut().unwrap();
        carrier.send(now, peer, channel, &mut |out| {
            out.extend_from_slice(frame);
            true
        });
    }

    /// Sends frames of these lengths on each of the links (from, number of the peer, to),
    /// waits for all, and returns what was sent to each process.
    pub(crate) fn send_all(
        &mut self,
        rounds: usize,
        links: &[(usize, usize, usize)],
        lengths: [usize; 4],
    ) -> Vec<Vec<Vec<u8>>> {
        let mut sent = vec![Vec::new(); self.carriers.len()];
        for round in 0..rounds {
            for (from, peer, to) in links {
                let frame = vec![(round * 4 + from) as u8; lengths[(round + from) % 4]];
                self.send(*from, *peer, &frame);
                sent[*to].push(frame);
            }
        }
        self.until("all frames", |processes| {
            let mut pairs = processes.frames.iter().zip(&sent);
            pairs.all(|(arrived, sent)| arrived.len() >= sent.len())
        });
        sent
    }
}
