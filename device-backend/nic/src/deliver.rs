//! RDMA write at its destination (N4, N11, N16).
//!
//! Port, segment, key, access and range are checked for every frame, then the
//! page is locked, written, marked dirty and unlocked. A page that is absent is
//! asked of the driver, and the frame refused with `WAIT`: its source sends it
//! again once it gets the Resume. Nothing is staged here.

use qnic_abi::wire::{FrameFlags, FrameHeader, FrameKind};
use qnic_abi::{Access, Key, Port, SegmentId, Status, VniId};

use crate::command::counted;
use crate::env::{Host, Payload, Time};
use crate::fault::Need;
use crate::nic::Nic;
use crate::operation::OperationId;
use crate::read::within_page;
use crate::segment::PageKey;
use crate::transport::{header, PeerIndex};
use crate::write::PageError;

/// Why a frame was not delivered.
enum Refusal {
    Final(Status),
    /// A Resume follows.
    Wait,
}

impl Nic {
    /// Takes a frame of a write.
    pub(crate) fn deliver_write<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) {
        let Err(refusal) = self.try_deliver(now, host, index, frame, payload) else {
            return;
        };
        let held = self.hold_frame(index, frame);
        match refusal {
            Refusal::Final(status) => self.frame_refused(held, frame, status),
            Refusal::Wait => {
                let mut nak = header(FrameKind::Nak);
                nak.operation = frame.operation;
                nak.offset = frame.offset;
                nak.flags = FrameFlags::WAIT.bits().into();
                nak.status = Status::PageUnavailable.code().into();
                self.send_nak(held, nak);
            }
        }
    }

    #[inline]
    fn try_deliver<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: Payload<'_, H::Memory>,
    ) -> Result<(), Refusal> {
        let (address, length) = (frame.address.get(), payload.len() as u64);
        let (vni, key, need) = self.check_write(frame, length).map_err(|status| {
            self.counters.refused(status);
            Refusal::Final(status)
        })?;
        let notification = match frame.flags.get() & FrameFlags::NOTIFY.bits() {
            0 => None,
            _ => Some(
                counted(frame.notification.get()).ok_or(Refusal::Final(Status::BadNotification))?,
            ),
        };
        match self.place(host, vni, address, key, payload) {
            Ok(()) => {}
            Err(PageError::Refused(status)) => return Err(Refusal::Final(status)),
            Err(PageError::Absent) => {
                let operation = OperationId(frame.operation.get());
                self.wait_remote(vni, need, index, operation)
                    .map_err(Refusal::Final)?;
                return Err(Refusal::Wait);
            }
        }
        if let Some(notification) = notification {
            let sequence = frame.sequence.get();
            self.notify(host, index, sequence, (vni, notification));
        }
        // Its process is likely to answer.
        self.heat(vni, Some(now));
        Ok(())
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
        if !within_page(address, length) {
            return Err(Status::BadLength);
        }
        let ahead = frame.length.get().clamp(length, segment.end() - address);
        Ok((vni, segment.page_key, Need::new(address, ahead)))
    }
}
