//! The notification ring: hands what arrives to the threads that take from
//! [`crate::NotificationQueue`], or to handlers.
//!
//! ```text
//!   host area ──RingReader::take──► counted, watched ──► `queue` ──► queue remove, wait
//!                                   one-shot ───────────►   "
//!                                   counted, handled ──► `handled` ──► dispatcher
//! ```
//!
//! # Invariants
//! - A counted notification is in at most one list, at most once. It stays there while
//!   signals of it are pending: so each of its signals is found, and the notifications
//!   take turns.
//! - The lists are bounded: by the number of counted notifications, and by
//!   [`ONE_SHOT_LIMIT`].

use std::collections::{BTreeMap, VecDeque};

use qnic_abi::host_area::ONE_SHOT_ENTRIES;

use crate::core::notifications::reader::RingReader;
use crate::core::notifications::signal::{NotificationId, OneShot, Signal};
use crate::core::Core;
use crate::error::{Error, Result};

/// One-shot notifications that wait here to be taken; more are dropped.
const ONE_SHOT_LIMIT: usize = ONE_SHOT_ENTRIES as usize;

/// Takes the signals of a counted notification. Without one, callers of
/// [`crate::Notification`] do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalSink {
    /// [`crate::NotificationQueue`].
    Queue,
    Handler,
}

#[derive(Debug)]
struct Counted {
    sink: SignalSink,
    /// It is in the list of its sink.
    listed: bool,
}

/// The notifications that have arrived and were not taken yet.
#[derive(Debug, Default)]
pub(crate) struct NotificationRing {
    reader: RingReader,
    /// Those that have a sink.
    counted: BTreeMap<NotificationId, Counted>,
    queue: VecDeque<Signal>,
    /// One-shot notifications in `queue`.
    one_shots: usize,
    handled: VecDeque<NotificationId>,
    /// One-shot notifications that were dropped here.
    dropped: u64,
    /// How many of those, and of those that the NIC has dropped, were reported.
    reported: u64,
}

impl NotificationRing {
    /// Gives the signals of a notification to a sink, pending ones included. Returns true
    /// if any are pending.
    ///
    /// # Errors
    /// [`Error::Armed`]: it has a sink already.
    pub(crate) fn arm(
        &mut self,
        core: &Core,
        id: NotificationId,
        sink: SignalSink,
    ) -> Result<bool> {
        if self.counted.contains_key(&id) {
            return Err(Error::Armed(id.number()));
        }
        let listed = false;
        self.counted.insert(id, Counted { sink, listed });
        self.reader.arm(&core.window(), id.number(), true);
        let pending = core.pending(id) > 0;
        if pending {
            self.list(id);
        }
        Ok(pending)
    }

    /// Takes a notification away from its sink, if it is this one.
    pub(crate) fn disarm(&mut self, core: &Core, id: NotificationId, sink: SignalSink) {
        if self.counted.get(&id).map(|counted| counted.sink) != Some(sink) {
            return;
        }
        self.counted.remove(&id);
        self.queue.retain(|signal| *signal != Signal::Counted(id));
        self.handled.retain(|other| *other != id);
        self.reader.arm(&core.window(), id.number(), false);
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
                    self.unlist(id);
                }
                None if more => {}
                None => return self.report_lost(core).map(|()| None),
            }
        }
    }

    /// The next notification with pending signals that has a handler. It comes again in
    /// its turn until they are acknowledged.
    pub(crate) fn next_handled(&mut self, core: &Core) -> Option<NotificationId> {
        while self.move_one(core) {}
        while let Some(id) = self.handled.pop_front() {
            if core.pending(id) > 0 {
                self.handled.push_back(id);
                return Some(id);
            }
            self.unlist(id);
        }
        None
    }

    /// Moves one entry of the host area to its list; returns false if there is none.
    fn move_one(&mut self, core: &Core) -> bool {
        let entry = self.reader.take(&core.window(), &core.area());
        match entry.map(Signal::new) {
            None => return false,
            Some(Some(Signal::Counted(id))) => self.list(id),
            Some(Some(Signal::OneShot(one_shot))) => self.keep(one_shot),
            // Number 0: no NIC enters it.
            Some(None) => {}
        }
        true
    }

    fn list(&mut self, id: NotificationId) {
        // Without a sink, it was disarmed while the entry was on its way.
        let Some(counted) = self.counted.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut counted.listed, true) {
            return;
        }
        match counted.sink {
            SignalSink::Queue => self.queue.push_back(id.into()),
            SignalSink::Handler => self.handled.push_back(id),
        }
    }

    fn unlist(&mut self, id: NotificationId) {
        if let Some(counted) = self.counted.get_mut(&id) {
            counted.listed = false;
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
        let lost = RingReader::lost(&core.area()).wrapping_add(self.dropped);
        match lost.wrapping_sub(std::mem::replace(&mut self.reported, lost)) {
            0 => Ok(()),
            unreported => Err(Error::NotificationsLost(unreported)),
        }
    }
}
