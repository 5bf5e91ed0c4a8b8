//! Looks at what has ended, and how a look that would find nothing is spared.

use std::sync::atomic::Ordering;

use qnic::message::{News, RequestId};

use super::{Engine, Operations, Process};

/// No number of changes is so high.
pub(super) const UNKNOWN: u64 = u64::MAX;

impl Engine {
    /// Tells of what has ended, and does what is owed.
    pub(super) fn complete<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) {
        if operations.closed {
            return;
        }
        let changes = self.take_ends(own, operations);
        self.await_late(own, operations);
        let mut owes = operations.owes();
        if owes {
            self.post_answers(own, operations);
            self.post_pieces(own, operations);
            self.post_calls(own, operations);
            owes = operations.owes();
        }
        self.want_help(operations);
        let has_all = operations.has_late && !owes;
        let left = changes.filter(|_| has_all).unwrap_or(UNKNOWN);
        // Relaxed: a number by itself. What it was stored for is told; a thread that finds another one looks.
        self.quiet.store(left, Ordering::Relaxed);
    }

    /// Looks at all that has ended; what [`News::changes`] was before the last look, which has found nothing.
    fn take_ends<'a>(&self, own: &'a Process, operations: &mut Operations<'a>) -> Option<u64> {
        let news = News::of(&own.endpoint);
        loop {
            let changes = news.changes();
            match operations.ends.take() {
                Ok(Some(id)) => self.look(own, operations, id),
                Ok(None) => return changes,
                Err(_) => {
                    // The NIC is gone, and with it everything: each operation says so.
                    let all: Vec<RequestId> = operations.running.iter().map(|(id, _)| id).collect();
                    for id in all {
                        self.look(own, operations, id);
                    }
                    return None;
                }
            }
        }
    }

    /// Nothing has come, and nothing is to be done, since all was looked at.
    pub(super) fn is_quiet(&self, own: &Process) -> bool {
        // Relaxed: as it is stored.
        let quiet = self.quiet.load(Ordering::Relaxed);
        News::of(&own.endpoint).changes() == Some(quiet)
    }
}
