//! Why a trial ends before its program does.

use std::sync::{Mutex, PoisonError};

use qnic_cluster::Cancel;

/// Why a trial ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A signal came.
    Interrupted,
    /// The program on this node had its time.
    TimedOut(String),
    /// The kernel of this node's guest panicked.
    Panicked(String),
    /// Something of the cluster failed.
    Failed(String),
}

/// Ends the waits of a trial, once and for one reason.
pub(crate) struct Stop {
    pub(crate) cancel: Cancel,
    reason: Mutex<Option<Reason>>,
}

impl Stop {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            cancel: Cancel::new()?,
            reason: Mutex::default(),
        })
    }

    /// Ends the trial. The first reason counts, but a panic of a guest replaces the end of the
    /// program's time, which is its consequence.
    pub(crate) fn pull(&self, reason: Reason) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*first, &reason) {
            (None, _) | (Some(Reason::TimedOut(_)), Reason::Panicked(_)) => *first = Some(reason),
            _ => {}
        }
        drop(first);
        self.cancel.cancel();
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        reason.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_but_for_a_panic_that_explains_a_timeout() {
        let stop = Stop::new().unwrap();
        assert_eq!(stop.reason(), None);
        stop.pull(Reason::TimedOut("a".into()));
        assert!(stop.cancel.is_cancelled());
        stop.pull(Reason::Interrupted);
        assert_eq!(stop.reason(), Some(Reason::TimedOut("a".into())));
        stop.pull(Reason::Panicked("b".into()));
        stop.pull(Reason::Failed("gone".into()));
        assert_eq!(stop.reason(), Some(Reason::Panicked("b".into())));
    }
}
