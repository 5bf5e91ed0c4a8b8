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
        let mut turns = 0;
        while turns < limit {
            let Some(vni) = self.scheduled.pop_front() else {
                break;
            };
            turns += 1;
            if let Some(slot) = self.turn(io, vni) {
                turns += self.send_burst(io, vni, slot, limit - turns);
            }
            self.schedule_process(vni);
        }
        turns > 0
    }

    /// Sends one frame. Returns the operation that had the turn if it can go on
    /// and nobody else wants a turn.
    fn turn<H: Host, W: Wire<H::Memory>>(
        &mut self,
        io: &mut Io<'_, H, W>,
        vni: VniId,
    ) -> Option<u8> {
        let process = self.process(vni)?;
        process.scheduled = false;
        let reply = process.reply_turn || !process.operations.any_ready();
        process.reply_turn = !reply;
        if reply {
            if let Some(job) = process.replies.pop_front() {
                self.send_reply(io, vni, job);
                return None;
            }
        }
        let slot = process.operations.take_turn()?;
        self.send_for(io, vni, slot);
        let alone = self.is_alone(vni, slot);
        let ready = self.process(vni)?.operations.is_ready(slot);
        (alone && ready).then_some(slot)
    }

    /// Says whether nobody but this operation wants a turn.
    pub(crate) fn is_alone(&self, vni: VniId, slot: u8) -> bool {
        let process = self.processes[usize::from(vni.0)].as_deref();
        self.scheduled.iter().all(|other| *other == vni)
            && process.is_some_and(|process| {
                process.replies.is_empty() && !process.operations.any_other_ready(slot)
            })
    }
}
