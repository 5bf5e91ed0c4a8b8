//! The end of a way at which frames are received: of two rings, one for small frames (U4).
//!
//! ```text
//!   small   ● ● ●        a frame of the long ring has its turn when those small ones were used
//!   long    █ █ █ █      that were there when it was found: so all that were sent before it
//! ```
//! Small frames that come later wait for one frame of the long ring at most, and that one for as many of
//! them as the short ring holds.

use super::primitives::{Primitives, System};
use super::ring::{Consumer, Item};

#[derive(Debug)]
pub(super) struct Inbox<T: Item, P: Primitives = System> {
    small: Consumer<T, P>,
    long: Consumer<T, P>,
    /// The next frame of the long ring was found: so many of the short one have their turn first.
    before: Option<u64>,
}

impl<T: Item, P: Primitives> Inbox<T, P> {
    pub(super) fn new([small, long]: [Consumer<T, P>; 2]) -> Self {
        Inbox {
            small,
            long,
            before: None,
        }
    }

    /// Returns true if there is no item.
    pub(super) fn is_empty(&mut self) -> bool {
        self.small.is_empty() && self.long.is_empty()
    }

    /// Uses the item whose turn it is. Returns false if there is none.
    pub(super) fn pop(&mut self, use_it: impl FnMut(&mut T)) -> bool {
        if self.before.is_none() && !self.long.is_empty() {
            self.before = Some(self.small.put());
        }
        match self.before {
            Some(before) if self.small.used() >= before => {
                self.before = None;
                self.long.pop(use_it)
            }
            _ => self.small.pop(use_it),
        }
    }
}
