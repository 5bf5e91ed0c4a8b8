//! Which process has which name since when, and from when on and until when other NICs know.
//!
//! ```text
//!   issued ──Ok──► since ──Withdraw issued, or it dies──► leaving ──Ok, or it is gone──► until
//!     │               │                                      │                             │
//!     │ may be found  │ is found on its node; later,         │ may be found                │ later,
//!     ▼               ▼ everywhere                           ▼                             ▼ by no NIC
//! ```

use super::{NameOracle, Place};

/// How long the news of a name takes at most to a node with a route that is whole, in nanoseconds:
/// frames are lost, and wait behind others for pages of slow disks.
pub(super) const NEWS: u64 = 300_000_000;

/// How long a node takes at most to forget what it knew of one that has ended, or that it cannot
/// reach, in nanoseconds: the silence after which it gives that up, twice, as the last that it hears
/// of it may be no news.
pub(super) const STALE: u64 = 3_000_000_000;

/// A process that has, had, or may have got a name.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    pub(super) slot: usize,
    pub(super) place: Place,
    /// The Register.
    pub(super) handle: u64,
    /// When it was issued, and when it has ended well.
    pub(super) issued: u64,
    pub(super) since: Option<u64>,
    /// When the process began to take it back, or to die.
    pub(super) leaving: Option<u64>,
    /// When it has ended for sure.
    pub(super) until: Option<u64>,
}

impl Claim {
    pub(super) fn new(slot: usize, place: Place, handle: u64, now: u64) -> Self {
        Claim {
            slot,
            place,
            handle,
            issued: now,
            since: None,
            leaving: None,
            until: None,
        }
    }

    /// Returns true if the process has the name for sure.
    pub(super) fn is_had(&self) -> bool {
        self.since.is_some() && self.leaving.is_none()
    }

    /// Returns true if a process on the same node has the name, whether it takes it back or not.
    pub(super) fn is_in(&self, slot: usize) -> bool {
        self.slot == slot && self.since.is_some() && self.until.is_none()
    }
}

impl NameOracle {
    /// From when on the NIC of a node must know what a process has.
    pub(super) fn known_from(&self, claim: &Claim, node: u16) -> u64 {
        let Some(since) = claim.since.filter(|_| claim.is_had()) else {
            return u64::MAX;
        };
        match claim.place.0 == node {
            true => since,
            false => {
                let whole = self.routes.whole_since(node.into(), claim.place.0.into());
                whole.max(since + NEWS)
            }
        }
    }

    /// Until when the NIC of a node may believe it.
    fn believed_until(&self, claim: &Claim, node: u16) -> u64 {
        let Some(until) = claim.until else {
            return u64::MAX;
        };
        let whole = self.routes.whole_since(node.into(), claim.place.0.into());
        match claim.place.0 == node {
            true => until,
            false if whole <= until => until + NEWS,
            false => until + STALE,
        }
    }

    /// Until when the NIC of a node may believe that another process has a name.
    pub(super) fn free_from(&self, name: usize, place: Place) -> u64 {
        let others = self.claims[name]
            .iter()
            .filter(|claim| claim.place != place);
        let until = others.map(|claim| self.believed_until(claim, place.0));
        until.max().unwrap_or(0)
    }

    /// Returns true if the NIC of a node may say between two points in time that this process has
    /// that name.
    pub(super) fn may_find(
        &self,
        name: usize,
        place: Place,
        node: u16,
        (from, to): (u64, u64),
    ) -> bool {
        self.claims[name].iter().any(|claim| {
            let believed = claim.issued <= to && from <= self.believed_until(claim, node);
            claim.place == place && believed
        })
    }

    /// A process other than this one, on its node or a lower one, of which the NIC of a node must
    /// know at a point in time that it has that name.
    pub(super) fn rival(&self, name: usize, place: Place, node: u16, time: u64) -> Option<&Claim> {
        let mut rivals = self.claims[name].iter().filter(|claim| {
            claim.place != place && claim.place.0 <= place.0 && self.known_from(claim, node) <= time
        });
        rivals.next()
    }

    /// From when on the NIC of a node must know that some process has that name.
    pub(super) fn found_from(&self, name: usize, node: u16) -> u64 {
        let known = self.claims[name]
            .iter()
            .map(|claim| self.known_from(claim, node));
        known.min().unwrap_or(u64::MAX)
    }
}
