//! Segments that a process exports (N2): names, keys, and the regions under them.
//!
//! ```text
//!   segment 0 "a" READ  ─┐
//!   segment 1 "b" WRITE ─┴─► region 0x7f…000 + 4 pages   (one exact range)
//!   segment 2 "c" READ  ───► region 0x7f…000 + 1 page
//! ```
//! Regions share no page: the physical map has one key for each frame. So two
//! ranges that share a page without being equal are refused as overlapping.
//!
//! A physical segment (N25) has no region: its memory is pinned, and the NIC knows
//! its guest-physical address. Its pin ends when the NIC has forgotten it.

use alloc::sync::Arc;
use alloc::vec::Vec;

use qnic_abi::control::{self, Opcode, EXPORT_PHYSICAL};
use qnic_abi::header::SEGMENTS_PER_PROCESS;
use qnic_abi::{uapi, Access, Status, PAGE_SHIFT, PAGE_SIZE};

use crate::control::Request;
use crate::error::CallError;
use crate::platform::{MemoryError, Mutex, NoMemory, Platform, SpinLock};
use crate::process::Process;
use crate::region::Region;

/// Highest address that can be exported, exclusive: no process has one beyond,
/// and a [`qnic_abi::page_table::Tag`] has room for its page number.
const ADDRESS_END: u64 = 1 << 57;

/// A region under watch, with the exact range for which it was made.
pub(crate) struct Exported<P: Platform> {
    pub(crate) region: Arc<Region<P>>,
    pub(crate) watch: P::Watch,
    range: Range,
}

/// An exact range of addresses, checked: not empty, below [`ADDRESS_END`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    address: u64,
    length: u64,
}

impl Range {
    fn new(address: u64, length: u64) -> Result<Self, Status> {
        if length == 0 {
            return Err(Status::BadLength);
        }
        match address.checked_add(length) {
            Some(end) if end <= ADDRESS_END => Ok(Range { address, length }),
            _ => Err(Status::BadAddress),
        }
    }

    fn first_page(&self) -> u64 {
        self.address >> PAGE_SHIFT
    }

    fn end_page(&self) -> u64 {
        (self.address + self.length).div_ceil(PAGE_SIZE as u64)
    }
}

/// What stands under a segment.
enum Memory<P: Platform> {
    Watched(Arc<Exported<P>>),
    Pinned { _pin: P::Pin },
}

struct Segment<P: Platform> {
    name: u64,
    memory: Memory<P>,
}

impl<P: Platform> Segment<P> {
    fn watched(&self) -> Option<&Arc<Exported<P>>> {
        match &self.memory {
            Memory::Watched(exported) => Some(exported),
            Memory::Pinned { .. } => None,
        }
    }
}

/// The segments of one process, by index.
pub(crate) struct Segments<P: Platform>(Vec<Option<Segment<P>>>);

/// How an export or unexport can fail: refused, or not reached the NIC.
enum Failure {
    Refused(Status),
    Call(CallError),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::Refused(status)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Failure::Call(error)
    }
}

impl From<NoMemory> for Failure {
    fn from(_: NoMemory) -> Self {
        Failure::Call(CallError::NoMemory)
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::NoMemory => Failure::Call(CallError::NoMemory),
            MemoryError::SpaceGone => Failure::Call(CallError::NotRegistered),
            MemoryError::NotWritable => Failure::Refused(Status::ReadOnlyMemory),
            MemoryError::NotMapped => Failure::Refused(Status::NotMapped),
            MemoryError::FileBacked => Failure::Refused(Status::FileMemory),
            MemoryError::Shared => Failure::Refused(Status::SharedMemory),
            MemoryError::Hugetlb => Failure::Refused(Status::HugetlbMemory),
            MemoryError::Device => Failure::Refused(Status::DeviceMemory),
            MemoryError::NotExportable | MemoryError::Busy | MemoryError::Closed => {
                Failure::Refused(Status::BadAddress)
            }
        }
    }
}

impl<P: Platform> Segments<P> {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        let mut segments = Vec::new();
        segments.try_reserve_exact(SEGMENTS_PER_PROCESS as usize)?;
        segments.resize_with(SEGMENTS_PER_PROCESS as usize, || None);
        Ok(Segments(segments))
    }

    fn has_name(&self, name: u64) -> bool {
        self.0.iter().flatten().any(|segment| segment.name == name)
    }

    fn free_index(&self) -> Option<usize> {
        self.0.iter().position(Option::is_none)
    }

    fn is_used(&self, exported: &Arc<Exported<P>>) -> bool {
        let mut segments = self.0.iter().flatten();
        segments.any(|segment| {
            segment
                .watched()
                .is_some_and(|own| Arc::ptr_eq(own, exported))
        })
    }

    /// The region with exactly this range.
    ///
    /// # Errors
    /// `Overlapping` if another one shares a page with it.
    fn sharing(&self, range: Range) -> Result<Option<Arc<Exported<P>>>, Status> {
        for other in self.0.iter().flatten().filter_map(Segment::watched) {
            if other.range == range {
                return Ok(Some(other.clone()));
            }
            if other.range.first_page() < range.end_page()
                && range.first_page() < other.range.end_page()
            {
                return Err(Status::Overlapping);
            }
        }
        Ok(None)
    }
}

/// Writes a refusal into the call's status; what failed before the NIC stays an error.
fn conclude(
    result: Result<(), Failure>,
    status: &mut zerocopy::little_endian::U32,
) -> Result<(), CallError> {
    let code = match result {
        Ok(()) => Status::Ok,
        Err(Failure::Refused(refused)) => refused,
        Err(Failure::Call(error)) => return Err(error),
    };
    *status = code.code().into();
    Ok(())
}

impl<P: Platform> Process<P> {
    /// Exports a range of the process's memory (N2). The pages that are resident
    /// are entered at once, the others when the NIC asks for them.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`, `NoMemory`.
    pub fn export(&self, call: &mut uapi::Export) -> Result<(), CallError> {
        self.check_open()?;
        let access = Access::from_bits(call.access.get()).filter(|access| !access.is_empty());
        let legal = call.reserved.get() == 0 && call.flags.get() & !uapi::PHYSICAL == 0;
        let (Some(access), true) = (access, legal) else {
            return Err(CallError::Invalid);
        };
        let state = self.state().clone();
        let result = state
            .segments
            .with(|segments| self.export_locked(segments, access, call));
        conclude(result, &mut call.status)
    }

    fn export_locked(
        &self,
        segments: &mut Segments<P>,
        access: Access,
        call: &mut uapi::Export,
    ) -> Result<(), Failure> {
        // Again, now that the process cannot be closed meanwhile.
        self.check_open()?;
        let name = call.name.get();
        let range = Range::new(call.address.get(), call.length.get())?;
        if segments.has_name(name) {
            return Err(Status::NameExists.into());
        }
        let index = segments.free_index().ok_or(Status::Exhausted)?;
        if call.flags.get() & uapi::PHYSICAL != 0 {
            let memory = self.export_pinned(index, access, range, call)?;
            if let Some(place) = segments.0.get_mut(index) {
                *place = Some(Segment { name, memory });
            }
            return Ok(());
        }
        let shared = segments.sharing(range)?;
        let is_new = shared.is_none();
        let exported = match shared {
            Some(exported) => exported,
            None => self.watch(range)?,
        };
        let page_key = Some(exported.region.page_key());
        let result = self.publish(index, access, page_key, call);
        if let Err(failure) = result {
            if is_new {
                self.retract(&exported);
            }
            return Err(failure);
        }
        if let Some(place) = segments.0.get_mut(index) {
            *place = Some(Segment {
                name,
                memory: Memory::Watched(exported.clone()),
            });
        }
        if is_new {
            self.driver().platform.enter_resident(
                &self.state().space,
                &exported.watch,
                &exported.region,
            );
        }
        Ok(())
    }

    /// Pins a range and exports its physical address (N25).
    fn export_pinned(
        &self,
        index: usize,
        access: Access,
        range: Range,
        call: &mut uapi::Export,
    ) -> Result<Memory<P>, Failure> {
        if !self.state().physical {
            return Err(Status::AccessDenied.into());
        }
        let platform = &self.driver().platform;
        let (pin, physical) = platform.pin(&self.state().space, range.address, range.length)?;
        let virtual_address = core::mem::replace(&mut call.address, physical.into());
        let published = self.publish(index, access, None, call);
        if published.is_err() {
            call.address = virtual_address;
        }
        published.map(|()| Memory::Pinned { _pin: pin })
    }

    /// Makes a region, watched and known to the fault service.
    fn watch(&self, range: Range) -> Result<Arc<Exported<P>>, Failure> {
        let page_count = usize::try_from(range.end_page() - range.first_page())
            .map_err(|_| Status::BadLength)?;
        let region = Arc::new(Region::new(
            self.driver().clone(),
            self.vni(),
            range.first_page(),
            page_count,
        )?);
        let watch = self.driver().platform.watch(&self.state().space, &region)?;
        let exported = Arc::new(Exported {
            region,
            watch,
            range,
        });
        self.state().regions.with(|regions| {
            let first = exported.region.page_numbers().start;
            let place = regions.partition_point(|e| e.region.page_numbers().start < first);
            regions.insert(place, exported.clone());
        });
        Ok(exported)
    }

    /// Tells the NIC about a segment; without a page key, a physical one.
    fn publish(
        &self,
        index: usize,
        access: Access,
        page_key: Option<u64>,
        call: &mut uapi::Export,
    ) -> Result<(), Failure> {
        let driver = self.driver();
        let key = driver.platform.random();
        let segment = index as u16;
        let body = control::Export {
            segment: segment.into(),
            flags: page_key.map_or(EXPORT_PHYSICAL, |_| 0).into(),
            access: access.bits().into(),
            name: call.name,
            address: call.address,
            length: call.length,
            key: key.into(),
            page_key: page_key.unwrap_or(0).into(),
        };
        let reply = driver.call(&Request::new(Opcode::Export, self.vni(), &body))?;
        match driver.status(&reply)? {
            Status::Ok => {
                call.key = key.into();
                call.segment = segment.into();
                Ok(())
            }
            refused => Err(refused.into()),
        }
    }

    /// Revokes a segment (N2). When it returns, no transfer touches it any more.
    ///
    /// # Errors
    /// `Invalid`, `NotRegistered`, `NoDevice`.
    pub fn unexport(&self, call: &mut uapi::Unexport) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        self.check_open()?;
        let index = usize::from(call.segment.get());
        let state = self.state().clone();
        let result = state
            .segments
            .with(|segments| self.unexport_locked(segments, index));
        conclude(result, &mut call.status)
    }

    fn unexport_locked(&self, segments: &mut Segments<P>, index: usize) -> Result<(), Failure> {
        let place = segments.0.get_mut(index).filter(|place| place.is_some());
        let place = place.ok_or(Status::NoSuchSegment)?;
        let body = control::Unexport {
            segment: (index as u16).into(),
            reserved: [0.into(); 3],
        };
        let driver = self.driver();
        let reply = driver.call(&Request::new(Opcode::Unexport, self.vni(), &body))?;
        let status = driver.status(&reply)?;
        if let Some(segment) = place.take() {
            if let Some(exported) = segment.watched() {
                if !segments.is_used(exported) {
                    self.retract(exported);
                }
            }
        }
        match status {
            Status::Ok => Ok(()),
            refused => Err(refused.into()),
        }
    }

    /// Takes a region that no segment uses out of the fault service's sight and
    /// its pages out of the table. Its watch ends when the last worker is done
    /// with it.
    fn retract(&self, exported: &Arc<Exported<P>>) {
        let removed = self.state().regions.with(|regions| {
            let place = regions.iter().position(|e| Arc::ptr_eq(e, exported));
            place.map(|place| regions.remove(place))
        });
        exported.region.close();
        drop(removed);
    }

    /// Takes all regions out, without a word to the NIC: it has forgotten them.
    pub(crate) fn close_exports(&self) {
        self.state().segments.with(|segments| {
            segments.0.clear();
            loop {
                let last = self.state().regions.with(Vec::pop);
                let Some(exported) = last else { break };
                exported.region.close();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{register, Fake, PAGE};

    fn export(
        process: &Process<Fake>,
        name: u64,
        address: u64,
        length: u64,
    ) -> Result<uapi::Export, CallError> {
        let mut call = uapi::Export {
            access: Access::all().bits().into(),
            name: name.into(),
            address: address.into(),
            length: length.into(),
            ..Default::default()
        };
        process.export(&mut call).map(|()| call)
    }

    fn status(result: Result<uapi::Export, CallError>) -> Status {
        Status::try_from(result.unwrap().status.get()).unwrap()
    }

    fn unexport(process: &Process<Fake>, segment: u16) -> Status {
        let mut call = uapi::Unexport {
            segment: segment.into(),
            ..Default::default()
        };
        process.unexport(&mut call).unwrap();
        Status::try_from(call.status.get()).unwrap()
    }

    fn mapped(process: &Process<Fake>) -> u64 {
        process.driver().counters.pages_mapped.get()
    }

    #[test]
    fn names_over_one_range_share_its_pages() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        fake.kernel.map(16, 4, true);
        let first = export(&process, 1, 16 * PAGE + 8, 3 * PAGE).unwrap();
        let second = export(&process, 2, 16 * PAGE + 8, 3 * PAGE).unwrap();
        assert_ne!(first.key, second.key);
        assert_ne!(first.segment, second.segment);
        assert_eq!(fake.nic().page_keys(process.vni().0).len(), 1);
        assert_eq!(mapped(&process), 4);
        assert_eq!(unexport(&process, first.segment.get()), Status::Ok);
        assert_eq!(mapped(&process), 4);
        assert_eq!(unexport(&process, second.segment.get()), Status::Ok);
        assert_eq!(mapped(&process), 0);
        assert_eq!(
            unexport(&process, second.segment.get()),
            Status::NoSuchSegment
        );
        assert_eq!(unexport(&process, u16::MAX), Status::NoSuchSegment);
    }

    #[test]
    fn overlaps_and_bad_ranges_are_refused() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        fake.kernel.map(16, 4, false);
        fake.kernel.state().read_only.insert(19);
        let first = export(&process, 1, 16 * PAGE, PAGE + 1);
        assert_eq!(status(first), Status::Ok);
        for (name, address, length, wanted) in [
            (1, 18 * PAGE, 1, Status::NameExists),
            (2, 16 * PAGE, PAGE, Status::Overlapping),
            (2, 17 * PAGE + 100, 1, Status::Overlapping),
            (2, 18 * PAGE, 0, Status::BadLength),
            (2, 40 * PAGE, 1, Status::NotMapped),
            (2, u64::MAX - 5, 10, Status::BadAddress),
            (2, ADDRESS_END - 1, 2, Status::BadAddress),
            (2, 19 * PAGE, 1, Status::ReadOnlyMemory),
            (2, 18 * PAGE, PAGE, Status::Ok),
        ] {
            let got = status(export(&process, name, address, length));
            assert_eq!(got, wanted, "{address:#x} + {length}");
        }
        assert_eq!(fake.nic().segments.len(), 2);
    }

    #[test]
    fn illegal_arguments_are_refused() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        for access in [0, 4, u32::MAX] {
            let mut call = uapi::Export {
                access: access.into(),
                ..Default::default()
            };
            assert_eq!(process.export(&mut call), Err(CallError::Invalid));
        }
        let mut call = uapi::Export {
            access: 1.into(),
            flags: 2.into(),
            ..Default::default()
        };
        assert_eq!(process.export(&mut call), Err(CallError::Invalid));
        let huge = export(&process, 1, 0, 1 << 56);
        assert!(matches!(huge, Err(CallError::NoMemory)), "{huge:?}");
    }

    #[test]
    fn physical_exports_need_the_privilege_and_pin_while_they_last() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        fake.kernel.map(16, 4, true);
        let physical = |process: &Process<Fake>, address, length| {
            let mut call = uapi::Export {
                access: Access::all().bits().into(),
                name: address,
                address,
                length,
                flags: uapi::PHYSICAL.into(),
                ..Default::default()
            };
            process.export(&mut call).map(|()| call)
        };
        let ordinary = register(&driver);
        let (address, length) = ((16 * PAGE + 8).into(), (2 * PAGE).into());
        let refused = physical(&ordinary, address, length);
        assert_eq!(status(refused), Status::AccessDenied);
        let mut call = uapi::Register {
            flags: uapi::PHYSICAL.into(),
            ..Default::default()
        };
        assert!(driver.register((), 1, &mut call).unwrap().is_none());
        assert_eq!(call.status.get(), Status::AccessDenied.code());
        assert_eq!(fake.kernel.state().pinned, 0);

        fake.allow_physical();
        let mut call = uapi::Register {
            flags: uapi::PHYSICAL.into(),
            ..Default::default()
        };
        let process = driver.register((), 1, &mut call).unwrap().unwrap();
        let registered = fake.nic().processes[&process.vni().0];
        assert_eq!(registered.flags.get(), control::PROCESS_PHYSICAL);
        let done = physical(&process, address, length).unwrap();
        assert_eq!(done.status.get(), Status::Ok.code());
        let frame = fake.kernel.state().pages[&16].unwrap();
        assert_eq!(done.address.get(), u64::from(frame) * PAGE + 8);
        let segment = fake.nic().segments[&(process.vni().0, done.segment.get())];
        assert_eq!(segment.flags.get(), EXPORT_PHYSICAL);
        assert_eq!((segment.address, segment.page_key.get()), (done.address, 0));
        assert_eq!(mapped(&process), 0, "no page is entered in the table");
        assert_eq!(fake.kernel.state().pinned, 1);
        // Memory with a hole, refusals of the NIC.
        let hole = physical(&process, (30 * PAGE).into(), length);
        assert_eq!(status(hole), Status::NotMapped);
        fake.nic().next.push_back(Ok(Status::BadAddress.code()));
        let refused = physical(&process, (18 * PAGE).into(), length).unwrap();
        assert_eq!(refused.address.get(), 18 * PAGE);
        assert_eq!(fake.kernel.state().pinned, 1);
        assert_eq!(unexport(&process, done.segment.get()), Status::Ok);
        assert_eq!(fake.kernel.state().pinned, 0);
        let again = physical(&process, address, length);
        assert_eq!(status(again), Status::Ok);
        drop(process);
        assert_eq!(fake.kernel.state().pinned, 0);
    }

    #[test]
    fn an_export_that_the_nic_refuses_leaves_nothing() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        fake.kernel.map(16, 4, true);
        fake.nic().next.push_back(Ok(Status::Exhausted.code()));
        let refused = export(&process, 1, 16 * PAGE, PAGE);
        assert_eq!(status(refused), Status::Exhausted);
        assert_eq!(mapped(&process), 0);
        assert!(process.state().find(16).is_none());
        assert_eq!(status(export(&process, 1, 16 * PAGE, PAGE)), Status::Ok);
    }

    #[test]
    fn a_process_exports_so_many_segments_and_no_more() {
        let fake = Fake::new();
        let process = register(&fake.start().unwrap());
        fake.kernel.map(0, 300, false);
        for page in 0..u64::from(SEGMENTS_PER_PROCESS) {
            assert_eq!(status(export(&process, page, page * PAGE, 1)), Status::Ok);
        }
        let more = export(&process, 1000, 299 * PAGE, 1);
        assert_eq!(status(more), Status::Exhausted);
        assert_eq!(unexport(&process, 17), Status::Ok);
        let more = export(&process, 1000, 299 * PAGE, 1).unwrap();
        assert_eq!(more.segment.get(), 17);
    }

    #[test]
    fn the_end_of_a_process_empties_the_table() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let process = register(&driver);
        let other = register(&driver);
        fake.kernel.map(16, 8, true);
        fake.kernel.map(32, 2, true);
        export(&process, 1, 16 * PAGE, 4 * PAGE).unwrap();
        export(&process, 2, 20 * PAGE, 4 * PAGE).unwrap();
        export(&other, 1, 32 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(mapped(&other), 10);
        drop(process);
        assert_eq!(mapped(&other), 2);
        assert_eq!(fake.nic().segments.len(), 1);
        // Memory that nobody exports any more may go and come as it likes.
        fake.kernel.unmap(16, 8);
        assert_eq!(driver.counters.pages_invalidated.get(), 8);
    }
}
