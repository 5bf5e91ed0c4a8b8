//! Pages of frames that a wire has kept: they stay locked until nothing reads them any more.
//!
//! ```text
//!   send ──► Sent::Kept(ticket) ──► [kept: ticket, pages | …] ──► is_done(ticket) ──► released
//!                                     oldest first
//! ```
//! Each is of a frame in a window, so there are no more of them than fragments in the windows of
//! all peers ([`crate::Limits::window`]). They are released in the order in which they were sent: one
//! whose way is slow holds up those behind it, for as long as its peer needs for a round.

use std::collections::VecDeque;

use qnic_abi::wire::SPAN_PAGES;

use super::page_table::LockedPage;
use super::pages::LockedSpan;
use super::Core;
use crate::env::{Host, Ticket};

/// Locked pages of frames, in the order in which these were sent.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<(Ticket, [Option<LockedPage>; SPAN_PAGES])>);

impl Core {
    /// Keeps the pages of a frame locked beyond this call.
    #[inline(never)] // Frames within one engine are never kept.
    pub(crate) fn keep(&mut self, ticket: Ticket, span: &mut LockedSpan) {
        self.kept.0.push_back((ticket, span.take_pages()));
    }

    /// Returns true if pages are kept.
    #[inline]
    pub(crate) fn has_kept(&self) -> bool {
        !self.kept.0.is_empty()
    }

    /// Unlocks the pages of frames that are `done`, up to the first that is not.
    #[cold]
    pub(crate) fn release_kept<H: Host>(&mut self, host: &H, done: impl Fn(Ticket) -> bool) {
        while self.kept.0.front().is_some_and(|(ticket, _)| done(*ticket)) {
            if let Some((_, mut pages)) = self.kept.0.pop_front() {
                self.release_pages(host, &mut pages);
            }
        }
    }
}
