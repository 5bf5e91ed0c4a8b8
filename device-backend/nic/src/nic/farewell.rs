//! What was sent before a reset that the driver has announced.
//!
//! ```text
//!   AnnounceReset ──► peers have all that was sent, or a second is over ──► reply ──► reset
//! ```
//! A process may end right after its last operation, and its node with it: in host mode, or when a
//! guest shuts down. A frame that the NIC has sent for it, such as the last one of a barrier, may
//! have been lost and have to be sent again. A reset forgets such frames, so the driver waits for
//! the reply before it resets the device. A driver that does not wait loses what was under way.

use qnic_abi::control::REPLY_BYTES;
use qnic_abi::Status;

use super::Nic;
use crate::control_reply::reply;
use crate::env::Time;

/// Longest time in nanoseconds that a reply waits for peers: less than a driver waits for it, and
/// enough for tens of retransmissions. A silent peer delays the reply no longer.
const LONGEST: u64 = 1_000_000_000;

/// An announcement whose reply waits.
#[derive(Debug)]
pub(super) struct Farewell {
    token: u64,
    until: Time,
}

impl Farewell {
    /// When it is over at the latest.
    pub(super) fn deadline(&self) -> Time {
        self.until
    }
}

impl Nic {
    /// The driver announces a reset. `None`: the reply comes later, with this token. The reply to
    /// an earlier announcement comes now.
    pub(super) fn announce_reset(&mut self, now: Time, token: u64) -> Option<[u8; REPLY_BYTES]> {
        self.reset_announced = true;
        if let Some(earlier) = self.farewell.take() {
            self.reply_to(&earlier);
        }
        if self.has_told_peers() {
            return Some(reply(Status::Ok, &[]));
        }
        let until = now.after(LONGEST.min(self.config.limits.peer_timeout));
        self.farewell = Some(Farewell { token, until });
        None
    }

    /// Replies to an announcement if peers have all, or its time is over. Returns true if it did.
    #[inline]
    pub(super) fn end_farewell(&mut self, now: Time) -> bool {
        match &self.farewell {
            None => false,
            Some(farewell) if now < farewell.until && !self.has_told_peers() => false,
            Some(_) => {
                if let Some(farewell) = self.farewell.take() {
                    self.reply_to(&farewell);
                }
                true
            }
        }
    }

    fn reply_to(&mut self, farewell: &Farewell) {
        let reply = (farewell.token, reply(Status::Ok, &[]));
        self.core.replies.push_back(reply);
    }

    /// Returns true if nothing is left to be sent, and peers have all that was sent.
    fn has_told_peers(&self) -> bool {
        !self.core.has_turns() && self.transport.has_told_peers()
    }
}
