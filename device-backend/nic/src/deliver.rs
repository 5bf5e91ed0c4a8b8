//! Writes, and replies to reads, at their destination (N4, N11, N16).
//!
//! Port, segment, key, access and range are checked for every frame, then its pages
//! are locked, written, marked dirty and unlocked. A piece whose page is absent goes
//! through bounce memory ([`crate::bounce`], N14).
//!
//! ```text
//!   a run of pieces   ■ ■ ■ ■ ■ □ ■ ■ N
//!                     └───┬───┘ │ └┬┘ └── each by itself: as if it had come in a
//!                     together  │ together         frame of its own
//!                               └── by itself
//! ```

use qnic_abi::wire::{pieces, FrameFlags, FrameHeader, FrameKind};
use qnic_abi::{Access, Key, Port, SegmentId, Status, VniId, PAGE_SIZE};

use crate::bounce::{PageWork, Undelivered};
use crate::command;
use crate::env::{Host, HostMemory, Payload, Time};
use crate::fault::Need;
use crate::nic::Nic;
use crate::operation::OperationId;
use crate::run::{Destination, PageError};
use crate::transport::PeerIndex;

/// A Write or a ReadReply that has arrived, or a part of one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival<'a, M> {
    /// Its sender.
    pub(crate) index: PeerIndex,
    pub(crate) frame: &'a FrameHeader,
    pub(crate) payload: Payload<'a, M>,
}

impl Nic {
    /// Takes the payload of a Write or a ReadReply.
    #[inline]
    pub(crate) fn deliver<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) {
        match pieces(arrival.frame.address.get(), arrival.payload.len()) {
            1 => self.deliver_piece(now, host, arrival),
            _ => self.deliver_run(now, host, arrival),
        }
    }

    fn deliver_piece<H: Host>(&mut self, now: Time, host: &H, arrival: &Arrival<'_, H::Memory>) {
        match is_write(arrival.frame) {
            true => self.deliver_write(now, host, arrival),
            false => self.deliver_reply(now, host, arrival),
        }
    }

    /// Takes a run of pieces: together, as far as nothing special is about them.
    fn deliver_run<H: Host>(&mut self, now: Time, host: &H, arrival: &Arrival<'_, H::Memory>) {
        let mut rest = Run {
            index: arrival.index,
            frame: *arrival.frame,
            payload: arrival.payload,
        };
        while !rest.payload.is_empty() {
            let plain = rest.plain();
            let done = match is_write(arrival.frame) {
                _ if plain.payload.is_empty() => 0,
                true => self.place_writes(now, host, &plain),
                false => self.place_replies(now, host, &plain),
            };
            rest.skip(done);
            if !rest.payload.is_empty() {
                let (frame, payload) = rest.first();
                let piece = Arrival {
                    index: rest.index,
                    frame: &frame,
                    payload,
                };
                self.deliver_piece(now, host, &piece);
                rest.skip(payload.len());
            }
        }
    }

    /// Places as much of a run of a write as goes into pages that are there. Returns
    /// how many bytes that was; none if it is refused.
    fn place_writes<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        let Ok((to, _)) = self.check_write(arrival.frame, arrival.payload.len() as u64) else {
            return 0;
        };
        self.heat(to.vni, Some(now));
        self.place_run(host, to, &arrival.payload)
    }

    /// The same for replies to a read.
    fn place_replies<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) -> usize {
        self.heat(asker(arrival.frame), Some(now));
        self.try_replies(host, arrival)
    }

    /// Takes a piece that this node has asked for.
    fn deliver_reply<H: Host>(&mut self, now: Time, host: &H, arrival: &Arrival<'_, H::Memory>) {
        match self.try_reply(host, arrival) {
            Ok(()) => self.heat(asker(arrival.frame), Some(now)),
            Err((vni, need)) => self.bounce(vni, need, arrival, PageWork::Reply),
        }
    }

    /// Takes a piece of a write.
    fn deliver_write<H: Host>(&mut self, now: Time, host: &H, arrival: &Arrival<'_, H::Memory>) {
        match self.try_write(host, arrival) {
            // Its process is likely to answer.
            Ok(vni) => self.heat(vni, Some(now)),
            Err(Undelivered::Refused(status)) => {
                let held = self.hold_frame(arrival.index, arrival.frame);
                self.frame_refused(held, arrival.frame, status);
            }
            Err(Undelivered::Absent(vni, need)) => {
                self.bounce(vni, need, arrival, PageWork::Write);
            }
        }
    }

    /// Delivers a piece of a write, now or after it was held; returns whose it is.
    #[inline]
    pub(crate) fn try_write<H: Host>(
        &mut self,
        host: &H,
        arrival: &Arrival<'_, H::Memory>,
    ) -> Result<VniId, Undelivered> {
        let frame = arrival.frame;
        let checked = self.check_write(frame, arrival.payload.len() as u64);
        let (to, need) = checked.map_err(|status| {
            self.counters.refused(status);
            Undelivered::Refused(status)
        })?;
        let notification = match notifies(frame) {
            false => None,
            true => {
                let number = command::notification(frame.notification.get());
                Some(number.ok_or(Undelivered::Refused(Status::BadNotification))?)
            }
        };
        match self.place(host, to, &arrival.payload) {
            Ok(()) => {}
            Err(PageError::Refused(status)) => return Err(Undelivered::Refused(status)),
            Err(PageError::Absent) => return Err(Undelivered::Absent(to.vni, need)),
        }
        if let Some(notification) = notification {
            self.notify(host, arrival.index, frame, (to.vni, notification));
        }
        Ok(to.vni)
    }

    /// Checks what a frame says of its destination (N11).
    #[inline]
    fn check_write(&self, frame: &FrameHeader, length: u64) -> Result<(Destination, Need), Status> {
        let address = frame.address.get();
        let vni = self.vni_of(Port(frame.destination_port.get()));
        let vni = vni.ok_or(Status::NoSuchPort)?;
        let process = self.processes[usize::from(vni.0)].as_deref();
        let process = process.ok_or(Status::NoSuchPort)?;
        // The whole transfer must lie within the segment, not only this piece of
        // it: a transfer that is refused has touched no memory (N11).
        let before = if length == 0 { 0 } else { frame.offset.get() };
        let start = address.checked_sub(before).ok_or(Status::BadAddress)?;
        let behind = frame.length.get().max(length);
        let whole = before.checked_add(behind).ok_or(Status::BadLength)?;
        let segment = process.segments.authorise(
            SegmentId(frame.segment.get()),
            Key(frame.key.get()),
            Access::WRITE,
            start,
            whole,
        )?;
        let ahead = frame.length.get().clamp(length, segment.end() - address);
        let to = Destination {
            vni,
            address,
            key: segment.page_key,
        };
        Ok((to, Need::new(address, ahead)))
    }
}

/// What is left of a frame that carries a run of pieces.
struct Run<'a, M> {
    index: PeerIndex,
    frame: FrameHeader,
    payload: Payload<'a, M>,
}

impl<'a, M: HostMemory> Run<'a, M> {
    /// What can be placed together: all, without the last piece if it notifies.
    fn plain(&self) -> Arrival<'_, M> {
        let length = self.payload.len();
        let last = (self.frame.address.get() as usize).wrapping_add(length - 1) % PAGE_SIZE + 1;
        let payload = match notifies(&self.frame) {
            true => self.payload.part(0, length.saturating_sub(last)),
            false => self.payload,
        };
        Arrival {
            index: self.index,
            frame: &self.frame,
            payload,
        }
    }

    /// The first piece, as a frame of its own would carry it.
    fn first(&self) -> (FrameHeader, Payload<'a, M>) {
        let within = self.frame.address.get() as usize % PAGE_SIZE;
        let payload = self.payload.part(0, PAGE_SIZE - within);
        let mut frame = self.frame;
        frame.payload_length = (payload.len() as u16).into();
        if payload.len() < self.payload.len() {
            let flags = frame.flags.get() & !FrameFlags::NOTIFY.bits();
            frame.flags = flags.into();
        }
        (frame, payload)
    }

    /// Goes on to what is behind the first `length` bytes, which are whole pieces.
    fn skip(&mut self, length: usize) {
        if length == 0 {
            return;
        }
        let (frame, bytes) = (&mut self.frame, length as u64);
        let count = pieces(frame.address.get(), length);
        frame.sequence = frame.sequence.get().wrapping_add(count).into();
        frame.offset = frame.offset.get().wrapping_add(bytes).into();
        frame.address = frame.address.get().wrapping_add(bytes).into();
        frame.length = frame.length.get().saturating_sub(bytes).into();
        self.payload = self.payload.part(length, self.payload.len());
    }
}

/// The process that has asked for a reply, as the frame says.
fn asker(frame: &FrameHeader) -> VniId {
    OperationId(frame.operation.get()).vni()
}

fn is_write(frame: &FrameHeader) -> bool {
    frame.kind == FrameKind::Write as u8
}

fn notifies(frame: &FrameHeader) -> bool {
    frame.flags.get() & FrameFlags::NOTIFY.bits() != 0
}
