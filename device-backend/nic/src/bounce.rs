//! Bounce memory: frames that were taken and wait for their page (N14, N15). Of a run
//! of pieces, each that has to wait is a frame of its own here.
//!
//! ```text
//!   frame ──► page there? ── yes ──► copied into it
//!                 │ no
//!                 ▼
//!             hold: payload copied here, page fault ──► driver
//!                 ▲                                       │ FaultDone
//!                 └── gone again ── page there? ◄─────────┘
//!                                       │ yes            │ it never will be
//!                                       ▼                ▼
//!                                   delivered         refused
//! ```
//! A frame that is held is delivered by the same code as one that is not: port,
//! segment, key, access and range are checked again, the page is locked, written,
//! marked dirty and unlocked, and only then does its notification count.
//!
//! # Bounds
//! A held frame keeps its place in its sender's window, and the transport takes no
//! frame beyond the window that was granted. So a peer that behaves never finds
//! bounce memory full, one that does not is refused, and all of it together is at
//! most the windows granted times a page. It is allocated by the frame, in the size
//! of its payload.
//!
//! # Progress
//! A frame tries again within the call that answers the fault. It waits once more
//! only if the page was taken away between the driver entering it and saying so;
//! each round costs the driver another reclaim of a page it has just brought in.

use qnic_abi::wire::{FrameFlags, FrameHeader};
use qnic_abi::{Status, VniId};

use crate::deliver::Arrival;
use crate::env::{Host, HostMemory, Payload};
use crate::fault::{Need, Waiter};
use crate::nic::Nic;
use crate::transport::{HeldFrame, PeerIndex};

/// What is to be done at the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageWork {
    /// Write the payload for a peer.
    Write,
    /// Take the payload that this node has asked for.
    Reply,
}

/// A frame that waits for its page.
#[derive(Debug)]
pub(crate) struct Bounced {
    held: HeldFrame,
    frame: FrameHeader,
    payload: Box<[u8]>,
    pub(crate) work: PageWork,
}

impl Bounced {
    /// The peer that it came from.
    pub(crate) fn peer(&self) -> PeerIndex {
        self.held.peer()
    }

    /// Takes its notification away.
    fn silence(&mut self) {
        let flags = self.frame.flags.get() & !FrameFlags::NOTIFY.bits();
        self.frame.flags = flags.into();
    }
}

/// What is held, and was.
#[derive(Debug, Default)]
pub(crate) struct BounceMemory {
    pub(crate) frames: u32,
    /// Payload bytes of these frames.
    pub(crate) bytes: u64,
    /// Most of them at a time.
    pub(crate) peak: u64,
    /// Frames that were held since the NIC was started.
    pub(crate) total: u64,
    /// Their payload bytes.
    pub(crate) total_bytes: u64,
}

impl BounceMemory {
    fn take(&mut self, length: usize) {
        let length = length as u64;
        self.frames += 1;
        self.bytes += length;
        self.peak = self.peak.max(self.bytes);
        self.total += 1;
        self.total_bytes += length;
    }

    fn give(&mut self, length: usize) {
        self.frames -= 1;
        self.bytes -= length as u64;
    }
}

impl Nic {
    /// Holds a frame that is being taken until a page of a process is there.
    #[cold]
    pub(crate) fn bounce<M: HostMemory>(
        &mut self,
        vni: VniId,
        need: Need,
        arrival: &Arrival<'_, M>,
        work: PageWork,
    ) {
        let mut bytes = vec![0; arrival.payload.len()].into_boxed_slice();
        let copied = arrival.payload.read(&mut bytes);
        let held = self.hold_frame(arrival.index, arrival.frame);
        if copied.is_err() {
            // The sender's memory has ended under its own frame.
            return self.frame_refused(held, arrival.frame, Status::PageUnavailable);
        }
        self.bounced.take(bytes.len());
        let bounced = Bounced {
            held,
            frame: *arrival.frame,
            payload: bytes,
            work,
        };
        self.wait_in_bounce_memory(vni, need, Box::new(bounced));
    }

    /// Puts a frame behind a page fault. A write of which another frame is refused
    /// does not notify; by the time of the copy, that may be forgotten.
    fn wait_in_bounce_memory(&mut self, vni: VniId, need: Need, mut bounced: Box<Bounced>) {
        let operation = bounced.frame.operation.get();
        if self.peers[bounced.peer()].receive.is_refused(operation) {
            bounced.silence();
        }
        self.wait_for_page(vni, need, Waiter::Bounced(bounced));
    }

    /// Tries again to deliver a frame; `failed` says that its page will never be there.
    pub(crate) fn retry_bounced<H: Host>(
        &mut self,
        host: &H,
        bounced: Box<Bounced>,
        failed: Option<Status>,
    ) {
        let index = bounced.peer();
        let arrival = Arrival {
            index,
            frame: &bounced.frame,
            payload: Payload::Bytes(&bounced.payload),
        };
        let absent = match (bounced.work, failed) {
            (PageWork::Write, None) => match self.try_write(host, &arrival) {
                Ok(vni) => {
                    self.heat(vni, None);
                    None
                }
                Err(Undelivered::Refused(status)) => {
                    return self.refuse_bounced(&bounced, status);
                }
                Err(Undelivered::Absent(vni, need)) => Some((vni, need)),
            },
            (PageWork::Write, Some(status)) => return self.refuse_bounced(&bounced, status),
            (PageWork::Reply, None) => self.try_reply(host, &arrival).err(),
            (PageWork::Reply, Some(status)) => {
                self.reply_failed(host, index, &bounced.frame, status);
                None
            }
        };
        match absent {
            Some((vni, need)) => self.wait_in_bounce_memory(vni, need, bounced),
            None => self.drop_bounced(host, &bounced),
        }
    }

    /// Gives a frame up; its sender learns why.
    pub(crate) fn refuse_bounced(&mut self, bounced: &Bounced, status: Status) {
        self.bounced.give(bounced.payload.len());
        for process in self.processes.iter_mut().flatten() {
            for other in process.faults.bounced() {
                if other.peer() == bounced.peer()
                    && other.frame.operation == bounced.frame.operation
                {
                    other.silence();
                }
            }
        }
        self.frame_refused(bounced.held, &bounced.frame, status);
    }

    /// Lets go of a frame that is delivered, or that nobody waits for any more.
    pub(crate) fn drop_bounced<H: Host>(&mut self, host: &H, bounced: &Bounced) {
        self.bounced.give(bounced.payload.len());
        self.frame_delivered(host, bounced.held);
    }
}

/// Why a frame is not delivered.
pub(crate) enum Undelivered {
    Refused(Status),
    /// It has to wait for these pages.
    Absent(VniId, Need),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_and_its_peak_is_kept() {
        let mut memory = BounceMemory::default();
        memory.take(4096);
        memory.take(8);
        memory.give(4096);
        memory.take(0);
        assert_eq!((memory.frames, memory.bytes, memory.peak), (2, 8, 4104));
        assert_eq!((memory.total, memory.total_bytes), (3, 4104));
        memory.give(8);
        memory.give(0);
        assert_eq!((memory.frames, memory.bytes), (0, 0));
    }
}
