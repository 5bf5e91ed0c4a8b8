//! The eventfds that the engine watches.
//!
//! Everything is watched edge-triggered and never read: each write to an eventfd
//! is an edge, also when its counter was not zero.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::event::{poll, PollFd, PollFlags};

/// Most events taken in one wait.
const BATCH: usize = 64;

/// What an eventfd signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// There are commands, or a carrier has received something.
    Wake,
    /// A queue of a NIC was kicked.
    Kick { slot: usize, queue: usize },
}

/// The data of [`Token::Wake`]; slots are far smaller.
const WAKE: u64 = u64::MAX;

impl Token {
    fn to_data(self) -> EventData {
        EventData::new_u64(match self {
            Token::Wake => WAKE,
            Token::Kick { slot, queue } => (slot as u64) << 16 | queue as u64,
        })
    }

    fn from_data(data: EventData) -> Self {
        match data.u64() {
            WAKE => Token::Wake,
            kick => Token::Kick {
                slot: (kick >> 16) as usize,
                queue: (kick & 0xffff) as usize,
            },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    tokens: Vec<Token>,
}

impl Poller {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            tokens: Vec::with_capacity(BATCH),
        })
    }

    pub(crate) fn add(&self, source: impl AsFd, token: Token) -> std::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::ET;
        Ok(epoll::add(&self.epoll, source, token.to_data(), flags)?)
    }

    /// Stops watching `source`, which was added.
    pub(crate) fn remove(&self, source: impl AsFd) {
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Waits up to `timeout` (`None`: without limit) for the first event, and returns
    /// all events. An interrupted wait returns none.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> impl Iterator<Item = Token> + '_ {
        if let Some(timeout) = timeout.filter(|timeout| !timeout.is_zero()) {
            self.wait_readable(timeout);
        }
        let now = Timespec::default();
        let timeout = timeout.is_some().then_some(&now);
        let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
        self.tokens.clear();
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, timeout) {
            let tokens = events.iter().map(|event| Token::from_data(event.data));
            self.tokens.extend(tokens);
        }
        self.tokens.iter().copied()
    }

    /// Waits until there is an event, up to `timeout`. The timeout of
    /// `epoll_wait` is in milliseconds, which is longer than acknowledgements and lost
    /// frames may wait.
    fn wait_readable(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        // An interrupted wait ends.
        let _ = poll(&mut fds, timeout.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notifier::Notifier;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    /// Kicks are seen without being read, each of them again.
    #[test]
    fn every_signal_is_an_edge() {
        let mut poller = Poller::new().unwrap();
        let kick = Notifier::new().unwrap();
        let token = Token::Kick {
            slot: 63,
            queue: 63,
        };
        poller.add(&kick, token).unwrap();
        assert_eq!(poller.wait(NOW).count(), 0);
        for _ in 0..3 {
            kick.signal();
            kick.signal();
            assert_eq!(poller.wait(None).collect::<Vec<_>>(), [token]);
            assert_eq!(poller.wait(NOW).count(), 0);
            kick.signal();
            let soon = poller.wait(Some(Duration::from_secs(60)));
            assert_eq!(soon.collect::<Vec<_>>(), [token]);
            assert_eq!(poller.wait(NOW).count(), 0);
        }
        kick.signal();
        poller.remove(&kick);
        assert_eq!(poller.wait(NOW).count(), 0);
    }

    #[test]
    fn a_timeout_ends_the_wait() {
        let mut poller = Poller::new().unwrap();
        let started = std::time::Instant::now();
        assert_eq!(poller.wait(Some(Duration::from_micros(300))).count(), 0);
        assert!(started.elapsed() >= Duration::from_micros(300));
    }

    /// However busy the machine is, one of so many waits ends soon.
    #[test]
    fn a_wait_need_not_last_a_millisecond() {
        let mut poller = Poller::new().unwrap();
        let short = (0..10_000).any(|_| {
            let started = std::time::Instant::now();
            poller.wait(Some(Duration::from_micros(50))).count();
            started.elapsed() < Duration::from_millis(1)
        });
        assert!(short);
    }
}
