//! Windows that are renewed: peers share what there is as others come and go (N15).
//!
//! ```text
//!   this side                                                    the peer
//!   share is another one ──── Window 720 ──────────────────────► sends nothing while more
//!                                                                than 720 are under way
//!   720 are granted, the rest is free ◄──── WindowTaken 720 ──── no more than 720 are
//!          └──► to peers that have less than their share
//! ```
//! A window shrinks by not being opened again: what the peer was allowed to send is taken.
//! The old window counts as granted until the peer says that no more than the new one is
//! under way, and it says so after the last frame of the old one was delivered: so what
//! waits here never is more than what is granted. One renewal of a peer is under way at a
//! time, and both frames are numbered, so none is lost or overtaken by another.

use qnic_abi::wire::{kind, Frame, Window};

use super::Transport;
use crate::ids::PeerIndex;

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
