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
use crate::run::PageError;
use crate::segment::PageKey;
use crate::transport::PeerIndex;

impl Nic {
    /// Takes the payload of a Write or a ReadReply.
    #[inline]
    pub(crate) fn deliver<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) {
        match pieces(frame.address.get(), payload.len()) {
            1 => self.deliver_piece(now, host, index, frame, payload),
            _ => self.deliver_run(now, host, index, frame, payload),
        }
    }

    fn deliver_piece<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) {
        match is_write(frame) {
            true => self.deliver_write(now, host, index, frame, payload),
            false => self.deliver_read(now, host, index, frame, payload),
        }
    }

    /// Takes a run of pieces: together, as far as nothing special is about them.
    fn deliver_run<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) {
        let mut rest = Run {
            frame: *frame,
            payload: *payload,
        };
        while !rest.payload.is_empty() {
            let plain = rest.plain();
            let done = match is_write(frame) {
                _ if plain.is_empty() => 0,
                true => self.place_writes(now, host, &rest.frame, &plain),
                false => self.place_replies(now, host, index, &rest.frame, &plain),
            };
            rest.skip(done);
            if !rest.payload.is_empty() {
                let (piece, payload) = rest.first();
                self.deliver_piece(now, host, index, &piece, &payload);
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
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) -> usize {
        let Ok((vni, key, _)) = self.check_write(frame, payload.len() as u64) else {
            return 0;
        };
        self.heat(vni, Some(now));
        self.place_run(host, vni, frame.address.get(), key, payload)
    }

    /// The same for replies to a read.
    fn place_replies<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) -> usize {
        self.heat(OperationId(frame.operation.get()).vni(), Some(now));
        self.try_replies(host, index, frame, payload)
    }

    /// Takes a piece that this node has asked for.
    fn deliver_read<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) {
        match self.try_reply(host, index, frame, payload) {
            Ok(()) => self.heat(OperationId(frame.operation.get()).vni(), Some(now)),
            Err(absent) => self.bounce::<H>(absent, index, frame, payload, PageWork::Reply),
        }
    }

    /// Takes a piece of a write.
    fn deliver_write<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) {
        match self.try_write(host, index, frame, payload) {
            // Its process is likely to answer.
            Ok(vni) => self.heat(vni, Some(now)),
            Err(Undelivered::Refused(status)) => {
                let held = self.hold_frame(index, frame);
                self.frame_refused(held, frame, status);
            }
            Err(Undelivered::Absent(vni, need)) => {
                self.bounce::<H>((vni, need), index, frame, payload, PageWork::Write);
            }
        }
    }

    /// Delivers a piece of a write, now or after it was held; returns whose it is.
    #[inline]
    pub(crate) fn try_write<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<VniId, Undelivered> {
        let address = frame.address.get();
        let checked = self.check_write(frame, payload.len() as u64);
        let (vni, key, need) = checked.map_err(|status| {
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
        match self.place(host, vni, address, key, payload) {
            Ok(()) => {}
            Err(PageError::Refused(status)) => return Err(Undelivered::Refused(status)),
            Err(PageError::Absent) => return Err(Undelivered::Absent(vni, need)),
        }
        if let Some(notification) = notification {
            self.notify(host, index, frame, (vni, notification));
        }
        Ok(vni)
    }

    /// Checks what a frame says of its destination (N11).
    #[inline]
    fn check_write(
        &self,
        frame: &FrameHeader,
        length: u64,
    ) -> Result<(VniId, PageKey, Need), Status> {
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
        Ok((vni, segment.page_key, Need::new(address, ahead)))
    }
}

/// What is left of a frame that carries a run of pieces.
struct Run<'a, M> {
    frame: FrameHeader,
    payload: Payload<'a, M>,
}

impl<'a, M: HostMemory> Run<'a, M> {
    /// What can be placed together: all, without the last piece if it notifies.
    fn plain(&self) -> Payload<'a, M> {
        let length = self.payload.len();
        let last = (self.frame.address.get() as usize).wrapping_add(length - 1) % PAGE_SIZE + 1;
        match notifies(&self.frame) {
            true => self.payload.part(0, length.saturating_sub(last)),
            false => self.payload,
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

fn is_write(frame: &FrameHeader) -> bool {
    frame.kind == FrameKind::Write as u8
}

fn notifies(frame: &FrameHeader) -> bool {
    frame.flags.get() & FrameFlags::NOTIFY.bits() != 0
}
