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
mod tests;
