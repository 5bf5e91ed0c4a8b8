//! Who gets what comes out of the notification queue: those who take from
//! [`crate::NotificationQueue`], or a handler.
//!
//! ```text
//!   host area ──Inbox::take──► counted, watched ──► `queue` ──► queue remove, wait
//!                              one-shot ───────────►   "
//!                              counted, handled ──► `handled` ──► dispatcher
//! ```
//!
//! # Invariants
//! - A counted notification stands in one list, at most once, and stays there while
//!   signals of it are pending: each of its signals is found, and those of all
//!   numbers in turn.
//! - The lists are bounded: by the counted notifications that there are, and by
//!   [`ONE_SHOT_LIMIT`].

use std::collections::VecDeque;

use qnic_abi::host_area::{ONE_SHOT_ENTRIES, SIGNAL_COUNTERS};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::notification::reader::Inbox;
use crate::notification::{NotificationId, OneShot, Signal};

/// One-shot notifications that wait here to be taken; more are dropped.
const ONE_SHOT_LIMIT: usize = ONE_SHOT_ENTRIES as usize;

/// Who takes the signals of a counted notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taker {
    /// Who looks at the notification itself.
    Nobody,
    /// [`crate::NotificationQueue`].
    Queue,
    /// A handler.
    Handler,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    taker: Taker,
    /// It stands in the list of its taker.
    listed: bool,
}

/// What has arrived and was not taken yet.
#[derive(Debug)]
pub(crate) struct Arrivals {
    inbox: Inbox,
    counted: Box<[Counted]>,
    queue: VecDeque<Signal>,
    /// One-shot ones in `queue`.
    one_shots: usize,
    handled: VecDeque<NotificationId>,
    /// One-shot ones that were dropped here.
    dropped: u64,
    /// Of those, and of those that the NIC has dropped, how many were reported.
    reported: u64,
}

impl Default for Arrivals {
    fn default() -> Self {
        let counted = Counted {
            taker: Taker::Nobody,
            listed: false,
        };
        Arrivals {
            inbox: Inbox::default(),
            counted: vec![counted; SIGNAL_COUNTERS as usize].into(),
            queue: VecDeque::new(),
            one_shots: 0,
            handled: VecDeque::new(),
            dropped: 0,
            reported: 0,
        }
    }
}

impl Arrivals {
    /// Gives the signals of a notification, those that are pending included, to a
    /// taker. Says whether there are any.
    ///
    /// # Errors
    /// [`Error::Armed`]: it has one already.
    pub(crate) fn arm(&mut self, core: &Core, id: NotificationId, taker: Taker) -> Result<bool> {
        let counted = &mut self.counted[id.number() as usize];
        if counted.taker != Taker::Nobody {
            return Err(Error::Armed(id.number()));
        }
        counted.taker = taker;
        self.inbox.arm(core.process.window(), id.number(), true);
        let pending = core.pending(id) > 0;
        if pending {
            self.list(id);
        }
        Ok(pending)
    }

    /// Takes the notification away from its taker, if it is this one.
    pub(crate) fn disarm(&mut self, core: &Core, id: NotificationId, taker: Taker) {
        let counted = &mut self.counted[id.number() as usize];
        if counted.taker != taker {
            return;
        }
        *counted = Counted {
            taker: Taker::Nobody,
            listed: false,
        };
        self.queue.retain(|signal| *signal != Signal::Counted(id));
        self.handled.retain(|other| *other != id);
        self.inbox.arm(core.process.window(), id.number(), false);
    }

    /// The next notification for the queue. A counted one has pending signals, and
    /// comes again in its turn until they are acknowledged.
    ///
    /// # Errors
    /// [`Error::NotificationsLost`], once for those that it counts.
    pub(crate) fn next_queued(&mut self, core: &Core) -> Result<Option<Signal>> {
        loop {
            let more = self.move_one(core);
            match self.queue.pop_front() {
                Some(Signal::OneShot(one_shot)) => {
                    self.one_shots -= 1;
                    return Ok(Some(one_shot.into()));
                }
                Some(Signal::Counted(id)) => {
                    if core.pending(id) > 0 {
                        self.queue.push_back(id.into());
                        return Ok(Some(id.into()));
                    }
                    self.counted[id.number() as usize].listed = false;
                }
                None if more => {}
                None => return self.report_lost(core).map(|()| None),
            }
        }
    }

    /// The next notification with pending signals that has a handler; it comes again
    /// in its turn until they are acknowledged.
    pub(crate) fn next_handled(&mut self, core: &Core) -> Option<NotificationId> {
        while self.move_one(core) {}
        while let Some(id) = self.handled.pop_front() {
            if core.pending(id) > 0 {
                self.handled.push_back(id);
                return Some(id);
            }
            self.counted[id.number() as usize].listed = false;
        }
        None
    }

    /// Moves one entry of the host area to the list where it belongs.
    fn move_one(&mut self, core: &Core) -> bool {
        let (window, area) = (core.process.window(), core.process.host_area());
        let Some(number) = self.inbox.take(window, area) else {
            return false;
        };
        match Signal::new(number) {
            Some(Signal::Counted(id)) => self.list(id),
            Some(Signal::OneShot(one_shot)) => self.keep(one_shot),
            // No NIC enters it.
            None => {}
        }
        true
    }

    fn list(&mut self, id: NotificationId) {
        let counted = &mut self.counted[id.number() as usize];
        if std::mem::replace(&mut counted.listed, true) {
            return;
        }
        match counted.taker {
            Taker::Queue => self.queue.push_back(id.into()),
            Taker::Handler => self.handled.push_back(id),
            // It was disarmed while the entry was on its way.
            Taker::Nobody => counted.listed = false,
        }
    }

    fn keep(&mut self, one_shot: OneShot) {
        if self.one_shots == ONE_SHOT_LIMIT {
            self.dropped += 1;
        } else {
            self.one_shots += 1;
            self.queue.push_back(one_shot.into());
        }
    }

    fn report_lost(&mut self, core: &Core) -> Result<()> {
        let lost = Inbox::lost(core.process.host_area()).wrapping_add(self.dropped);
        match lost.wrapping_sub(std::mem::replace(&mut self.reported, lost)) {
            0 => Ok(()),
            news => Err(Error::NotificationsLost(news)),
        }
    }
}
