//! Two-level round robin (Q10): one frame per turn, over processes, then over
//! what that process has to send.
//!
//! ```text
//!   scheduled:  VNI 3 ─ VNI 7 ─ VNI 0       one turn each, then to the back
//!                 │
//!                 ├── operations: bit for each that can send; the next after the last
//!                 └── replies to readers: every second turn, first come, first served
//! ```
//! So a process with a thousand transfers delays one with a single transfer by
//! one frame; and readers of a process's memory share its turns, not others'.
//! Within a process a frame can have [`qnic_abi::wire::RUN_PAGES`] pages; the work of
//! one poll is counted in pages.

use qnic_abi::VniId;

use crate::env::{Host, Wire};
use crate::nic::{Io, Nic};

impl Nic {
    /// Gives a process a place in the round if it has something to send.
    pub(crate) fn schedule_process(&mut self, vni: VniId) {
        if let Some(process) = self.process(vni) {
            if process.wants_turn() && !process.scheduled {
                process.scheduled = true;
                self.scheduled.push_back(vni);
            }
        }
    }

    /// Gives turns until nobody wants one, or the bound of one poll is reached.
    pub(crate) fn schedule<H: Host, W: Wire<H::Memory>>(&mut self, io: &mut Io<'_, H, W>) -> bool {
        let limit = self.config.limits.frames_per_poll.max(1);
        let mut pieces = 0;
        while pieces < limit {
            let Some(vni) = self.scheduled.pop_front() else {
                break;
            };
            pieces += self.turn(io, vni, limit - pieces).max(1);
            self.schedule_process(vni);
        }
        pieces > 0
    }

    /// Sends one frame of at most `most` pieces; returns how many it had.
    fn turn<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
        most: u32,
    ) -> u32 {
        let Some(process) = self.process(vni) else {
            return 0;
        };
        process.scheduled = false;
        let reply = process.reply_turn || !process.operations.any_ready();
        process.reply_turn = !reply;
        if reply {
            if let Some(job) = process.replies.pop_front() {
                return self.send_reply(io, vni, job, most);
            }
        }
        match process.operations.take_turn() {
            Some(slot) => self.send_for(io, vni, slot, most),
            None => 0,
        }
    }
}
