//! RDMA write at its destination (N4, N11, N16).
//!
//! Port, segment, key, access and range are checked for every frame, then the
//! page is locked, written, marked dirty and unlocked. A frame whose page is
//! absent goes through bounce memory ([`crate::bounce`], N14).

use qnic_abi::wire::{FrameFlags, FrameHeader};
use qnic_abi::{Access, Key, Port, SegmentId, Status, VniId};

use crate::bounce::{PageWork, Undelivered};
use crate::command::counted;
use crate::env::{Host, Payload, Time};
use crate::fault::Need;
use crate::nic::Nic;
use crate::read::within_page;
use crate::segment::PageKey;
use crate::transport::PeerIndex;
use crate::write::PageError;

impl Nic {
    /// Takes a frame of a write.
    pub(crate) fn deliver_write<H: Host>(
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

    /// Delivers a frame of a write, now or after it was held; returns whose it is.
    #[inline]
    pub(crate) fn try_write<H: Host>(
        &mut self,
        host: &H,
        index: PeerIndex,
        frame: &FrameHeader,
        payload: &Payload<'_, H::Memory>,
    ) -> Result<VniId, Undelivered> {
        let (address, length) = (frame.address.get(), payload.len() as u64);
        let (vni, key, need) = self.check_write(frame, length).map_err(|status| {
            self.counters.refused(status);
            Undelivered::Refused(status)
        })?;
        let notification = match frame.flags.get() & FrameFlags::NOTIFY.bits() {
            0 => None,
            _ => {
                let number = counted(frame.notification.get());
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
        if !within_page(address, length) {
            return Err(Status::BadLength);
        }
        let ahead = frame.length.get().clamp(length, segment.end() - address);
        Ok((vni, segment.page_key, Need::new(address, ahead)))
    }
}
