//! How all peers share the windows of one NIC (N15).
//!
//! ```text
//!   held_frames ├─ smallest window for each peer that may be ─┤─ own node ─┤─ free, granted ─┤
//!                  always there                                 whole        in equal shares
//! ```
//! The windows that are granted never exceed `held_frames`, or the smallest windows if those are
//! more. Shares change in eight steps for each doubling of the peers, so that a new peer renews the
//! windows of few others on average.
//!
//! # Windows that are renewed
//! ```text
//!   this side                                                    the peer
//!   share is another one ──── Window 720 ──────────────────────► sends nothing while more
//!                                                                than 720 are under way
//!   720 are granted, the rest is free ◄──── WindowTaken 720 ──── no more than 720 are
//!          └──► to peers that have less than their share
//! ```
//! A window that shrinks takes back nothing: what the peer was allowed to send is accepted, and room
//! that becomes free is not granted again. The old window counts as granted until the peer says that
//! no more than the new one is under way. It says so after the last frame of the old window was
//! delivered, so what is held here never exceeds what is granted. Each peer has one renewal under way
//! at a time. Both frames are numbered, so none is lost or overtaken.

use qnic_abi::wire::{kind, Frame, Window};

use super::Transport;
use crate::config::Limits;
use crate::ids::PeerIndex;

/// The windows that are granted.
#[derive(Debug)]
pub(super) struct Pool {
    /// Smallest and largest window.
    least: u32,
    most: u32,
    /// Fragments beyond smallest windows: all, and those that are not granted.
    total: u32,
    free: u32,
    /// Peers that have a window.
    peers: u32,
}

impl Pool {
    /// A pool of which only the own node has a window.
    pub(super) fn new(limits: &Limits) -> Self {
        let (least, most) = limits.window_range();
        let total = limits.granted_windows() - limits.reserved_windows();
        Pool {
            least,
            most,
            total,
            free: total,
            peers: 0,
        }
    }

    /// The largest window.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// The window that each peer is to have.
    pub(super) fn share(&self) -> u32 {
        let step = (self.peers.next_power_of_two() / 8).max(1);
        let shares = self.peers.max(1).next_multiple_of(step);
        self.least + (self.total / shares).min(self.most - self.least)
    }

    /// Grants a first window.
    pub(super) fn join(&mut self) -> u32 {
        self.peers += 1;
        self.grow(self.least)
    }

    /// Takes the window back of a peer that leaves.
    pub(super) fn leave(&mut self, window: u32) {
        self.peers = self.peers.saturating_sub(1);
        self.shrink(window, self.least);
    }

    /// A peer that was gone is there again, with the smallest window.
    pub(super) fn rejoin(&mut self) {
        self.peers += 1;
    }

    /// The smallest window.
    pub(super) fn least(&self) -> u32 {
        self.least
    }

    /// Grants what there is to a window that is smaller than its share; returns its size.
    pub(super) fn grow(&mut self, window: u32) -> u32 {
        let more = self.share().saturating_sub(window).min(self.free);
        self.free -= more;
        window + more
    }

    /// Takes a window back and grants another one.
    pub(super) fn renew(&mut self, window: u32) -> u32 {
        self.shrink(window, self.least);
        self.grow(self.least)
    }

    /// Returns true if a window can grow.
    pub(super) fn has_free(&self) -> bool {
        self.free > 0
    }

    /// Takes back what a window has beyond `to`.
    pub(super) fn shrink(&mut self, window: u32, to: u32) {
        self.free += window.saturating_sub(to);
    }
}

/// A renewal, as its frame says.
type Renewal = Window<{ kind::WINDOW }>;

/// Its confirmation.
type Taken = Window<{ kind::WINDOW_TAKEN }>;

impl Transport {
    /// Renews the windows of all peers, if their share has changed.
    pub(super) fn share_windows(&mut self) {
        if self.peers.share_has_changed() {
            for index in self.peers.all() {
                self.renew(index);
            }
        }
    }

    /// Renews the window of a peer that has not its share, if that can be now.
    pub(super) fn renew(&mut self, index: PeerIndex) {
        if let Some(window) = self.peers.renew(index) {
            let reserved = 0.into();
            let window = window.into();
            self.send_control(index, Frame::new(&Renewal { window, reserved }));
        }
    }

    /// A peer grants another window, or confirms one.
    pub(crate) fn receive_window(&mut self, index: PeerIndex, frame: &Frame) {
        if frame.is::<Renewal>() {
            let renewal: Renewal = frame.body();
            let window = renewal.window.get().min(self.peers.most());
            self.peers[index].taken = Some(window);
            // A side that has asked to leave stays closed; its Hello is under way.
            if !self.peers[index].leaving.closed {
                self.granted(index, window);
                self.confirm_window(index);
            }
        } else {
            let taken: Taken = frame.body();
            match self.peers.taken(index, taken.window.get()) {
                true => self.renew(index),
                false => self.counters.malformed_frames += 1,
            }
            self.grow_windows();
        }
    }

    /// Lets windows grow that are smaller than their share, as far as there is room.
    pub(super) fn grow_windows(&mut self) {
        while let Some(index) = self.peers.next_growing() {
            self.renew(index);
        }
    }

    /// Confirms a renewed window once no more than that is under way.
    pub(super) fn confirm_window(&mut self, index: PeerIndex) {
        let peer = &mut self.peers[index];
        let fits = |window: &mut u32| peer.send.in_flight() <= *window as usize;
        if let Some(window) = peer.taken.take_if(fits) {
            let reserved = 0.into();
            let window = window.into();
            self.send_control(index, Frame::new(&Taken { window, reserved }));
        }
    }
}

/// Returns true if the frame is one of these two, as the format says.
pub(crate) fn is_well_formed(frame: &Frame) -> bool {
    frame.is::<Renewal>() || frame.is::<Taken>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(window: u32, held_frames: u32, peers: u32) -> Pool {
        Pool::new(&Limits {
            window,
            held_frames,
            peers,
            ..Limits::default()
        })
    }

    #[test]
    fn few_peers_have_whole_windows_and_many_share() {
        let limits = Limits::default();
        let mut pool = Pool::new(&limits);
        let windows: Vec<_> = (0..64).map(|_| (pool.join(), pool.share())).collect();
        assert_eq!(windows[..10], [(4096, 4096); 10]);
        assert_eq!(windows[63].1, 720);
        assert_eq!(
            windows[63].0, 16,
            "the rest when others have given theirs back"
        );
    }

    #[test]
    fn where_memory_allows_64_peers_have_whole_windows() {
        let mut pool = pool(4096, 66 * 4096 + 1024 * 16, 1024);
        assert!((0..64).all(|_| pool.join() == 4096 && pool.share() == 4096));
    }

    proptest! {
        #[test]
        fn what_is_granted_stays_within_the_memory(
            window in 1u32..5000,
            held in 0u32..100_000,
            peers in 1u32..200,
            steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..400),
        ) {
            let mut pool = pool(window, held, peers);
            let most = pool.most();
            let mut windows = Vec::new();
            for (step, index) in steps {
                match step {
                    0 | 1 if windows.len() < peers as usize - 1 => windows.push(pool.join()),
                    2 if !windows.is_empty() => {
                        pool.leave(windows.swap_remove(index.index(windows.len())));
                    }
                    _ if !windows.is_empty() => {
                        let at = index.index(windows.len());
                        let share = pool.share();
                        if windows[at] > share {
                            pool.shrink(windows[at], share);
                            windows[at] = share;
                        } else {
                            windows[at] = pool.grow(windows[at]);
                        }
                    }
                    _ => {}
                }
                prop_assert!(windows.iter().all(|window| (most.min(16)..=most).contains(window)));
                let granted = windows.iter().sum::<u32>() + most;
                prop_assert!(granted <= held.max(peers * most.min(16) + most));
            }
            // Once all have given back what is too much, all have their shares.
            let share = pool.share();
            for window in windows.iter_mut().filter(|window| **window > share) {
                pool.shrink(*window, share);
                *window = share;
            }
            for window in &mut windows {
                *window = pool.grow(*window);
            }
            prop_assert!(windows.iter().all(|window| *window == share));
        }
    }
}
