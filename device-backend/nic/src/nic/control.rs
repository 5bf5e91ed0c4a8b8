//! Requests of the driver ([`qnic_abi::control`], Q9).
//!
//! A guest's kernel writes them, so every field is checked; a request that is refused
//! changes nothing.

use qnic_abi::control::{
    Export, FaultDone, Hello, NewProcess, Opcode, PathInfo, Query, QueryPath, RequestHeader,
    Unexport, EXPORT_PHYSICAL, PROCESS_DRIVER, PROCESS_PHYSICAL, REQUEST_BYTES,
};
use qnic_abi::counters::CounterPage;
use qnic_abi::datagram::DRIVER_PORT;
use qnic_abi::header::{SEGMENTS_BEYOND, SEGMENTS_OF_EACH};
use qnic_abi::shared::Ordering;
use qnic_abi::window::{AWAKE, SIGNAL_WAKE_REQUEST, WAKE_REQUEST};
use qnic_abi::{
    Access, Key, NodeId, Port, SegmentId, SegmentName, SharedMemory, Status, VniId, ABI_VERSION,
};
use zerocopy::{FromBytes, IntoBytes};

use super::Nic;
use crate::control_reply::{body, reply, Reply};
use crate::core::{HostArea, PageKey, Permissions, Process, Segment};
use crate::env::{Host, HostMemory, Time};
use crate::ids::FaultNumber;

impl Nic {
    /// Handles one request; `None` says that the reply comes later.
    pub(super) fn request<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        request: &[u8],
        token: u64,
    ) -> Option<Reply> {
        let Ok((header, bytes)) = RequestHeader::read_from_prefix(request) else {
            return Some(reply(Status::Malformed, &[]));
        };
        let opcode = Opcode::try_from(header.opcode.get());
        let (Ok(opcode), REQUEST_BYTES, 0) = (opcode, request.len(), header.reserved.get()) else {
            return Some(reply(Status::Malformed, &[]));
        };
        let (protocols, mut cx) = self.parts(now, host);
        if let Some(handled) = protocols.request(&mut cx, &header, bytes, token) {
            return handled;
        }
        let vni = VniId(header.vni.get());
        let result = match opcode {
            Opcode::Hello => body(bytes).and_then(|body| self.hello(&body)),
            Opcode::NewProcess => body(bytes).and_then(|body| self.new_process(host, vni, &body)),
            Opcode::DeleteProcess => body(bytes).and_then(|()| self.end_process(now, host, vni)),
            Opcode::Export => body(bytes).and_then(|body| self.export(now, host, vni, &body)),
            Opcode::Unexport => body(bytes).and_then(|body: Unexport| {
                match body.reserved.iter().all(|word| word.get() == 0) {
                    true => self.unexport(now, host, vni, SegmentId(body.segment.get())),
                    false => Err(Status::Malformed),
                }
            }),
            // A protocol has handled it, if any does.
            Opcode::Import
            | Opcode::CreateCompletionQueue
            | Opcode::CreateSharedReceiveQueue
            | Opcode::ModifySharedReceiveQueue
            | Opcode::CreateQueuePair
            | Opcode::ModifyQueuePair
            | Opcode::QueryQueuePair
            | Opcode::RegisterMemory
            | Opcode::DestroyObject => Err(Status::Malformed),
            Opcode::FaultDone => {
                body(bytes).and_then(|body| self.answer_fault(now, host, vni, &body))
            }
            Opcode::ResetQueue => body(bytes).and_then(|()| self.reset_queue(now, host, vni)),
            Opcode::AnnounceReset => match body(bytes) {
                Ok(()) => return self.announce_reset(now, token),
                Err(status) => Err(status),
            },
            Opcode::QueryPath => match body(bytes).and_then(|body| self.path(&body)) {
                Ok(path) => return Some(reply(Status::Ok, path.as_bytes())),
                Err(status) => Err(status),
            },
            Opcode::Query => match body(bytes).and_then(|body| self.query(&body)) {
                Ok(page) => return Some(reply(Status::Ok, page.as_bytes())),
                Err(status) => Err(status),
            },
        };
        Some(reply(result.err().unwrap_or(Status::Ok), &[]))
    }

    fn query(&self, query: &Query) -> Result<CounterPage, Status> {
        match query.reserved.get() {
            0 => Ok(CounterPage::of(&self.counters(), query.first.get())),
            _ => Err(Status::Malformed),
        }
    }

    fn path(&self, query: &QueryPath) -> Result<PathInfo, Status> {
        match query.reserved.iter().all(|word| word.get() == 0) {
            true => self.transport.path_info(NodeId(query.node.get())),
            false => Err(Status::Malformed),
        }
    }

    /// What the last request sent has gone out: the reply, if that has failed.
    pub(super) fn failed_request(&mut self) -> Option<Reply> {
        let failed = self.protocols.failed_request();
        failed.map(|status| reply(status, &[]))
    }

    fn hello(&self, body: &Hello) -> Result<(), Status> {
        if body.reserved.get() != 0 {
            return Err(Status::Malformed);
        }
        if body.abi_version.get() != ABI_VERSION {
            return Err(Status::VersionMismatch);
        }
        match self.unusable {
            Some(status) => Err(status),
            None if body.frames.get() > self.core.geometry.frames => Err(Status::SramTooSmall),
            None => Ok(()),
        }
    }

    fn new_process<H: Host>(
        &mut self,
        host: &H,
        vni: VniId,
        body: &NewProcess,
    ) -> Result<(), Status> {
        let port = Port(body.port.get());
        let flags = body.flags.get();
        match (flags, port.0) {
            (_, 0) => return Err(Status::Malformed),
            (PROCESS_DRIVER, DRIVER_PORT) => {}
            (0 | PROCESS_PHYSICAL, DRIVER_PORT) => return Err(Status::AccessDenied),
            (0 | PROCESS_PHYSICAL, _) => {}
            _ => return Err(Status::Malformed),
        }
        self.core.check_free(vni, port)?;
        let pages = body.host_area.map(|page| page.get());
        let host_area = HostArea::new(host.memory(), pages)?;
        let window = self.core.geometry.window_offset(vni);
        let sram = host.sram();
        sram.store_u64(window + AWAKE, 0, Ordering::Relaxed);
        let mut process = Process::new(port, (window, self.core.geometry.counts), host_area);
        // Whatever stands there was requested of a former process.
        process.wakes_seen = [WAKE_REQUEST, SIGNAL_WAKE_REQUEST]
            .map(|word| sram.load_u64(window + word, Ordering::Relaxed));
        process.pid = body.pid.get();
        process.physical = flags == PROCESS_PHYSICAL;
        self.core.insert(vni, process);
        Ok(())
    }

    fn export<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
        body: &Export,
    ) -> Result<(), Status> {
        let access = Access::from_bits(body.access.get()).filter(|access| !access.is_empty());
        let access = access.ok_or(Status::Malformed)?;
        let permissions = Permissions::new(&body.options)?;
        let process = self.core.process_mut(vni).ok_or(Status::NoSuchVni)?;
        let page_key = match (body.flags.get(), body.page_key.get()) {
            (0, key) => PageKey::Table(Key(key)),
            (EXPORT_PHYSICAL, 0) if !process.physical => return Err(Status::AccessDenied),
            (EXPORT_PHYSICAL, 0) => PageKey::Physical,
            _ => return Err(Status::Malformed),
        };
        let range = (body.address.get(), body.length.get());
        if page_key == PageKey::Physical && !host.memory().contains(range.0, range.1) {
            return Err(Status::BadAddress);
        }
        let segment = Segment {
            name: SegmentName(body.name.get()),
            address: body.address.get(),
            length: body.length.get(),
            key: Key(body.key.get()),
            page_key,
            access,
            permissions,
        };
        let id = SegmentId(body.segment.get());
        // More than others can rely on, too, come from what all share.
        let is_beyond = process.segments.count() >= SEGMENTS_OF_EACH;
        if is_beyond && self.core.segments_beyond() >= SEGMENTS_BEYOND {
            return Err(Status::Exhausted);
        }
        let process = self.core.process_mut(vni).ok_or(Status::NoSuchVni)?;
        process.segments.insert(id, segment.clone())?;
        let port = process.port;
        let (protocols, mut cx) = self.parts(now, host);
        protocols.exported(&mut cx, port, id, &segment);
        Ok(())
    }

    fn answer_fault<H: Host>(
        &mut self,
        now: Time,
        host: &H,
        vni: VniId,
        body: &FaultDone,
    ) -> Result<(), Status> {
        if self.core.process(vni).is_none() {
            return Err(Status::NoSuchVni);
        }
        let status = Status::try_from(body.status.get()).unwrap_or(Status::PageUnavailable);
        let number = FaultNumber(body.fault.get());
        self.fault_done(now, host, vni, number, status);
        Ok(())
    }
}
