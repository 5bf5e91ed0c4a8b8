//! Registered memory: segments of a process that have a key for verbs.

use std::collections::BTreeMap;

use qnic_abi::verbs::requests::RegisterMemory;
use qnic_abi::verbs::Rights;
use qnic_abi::{Access, SegmentId, Status, VniId};

use crate::core::{Core, Destination};

/// A segment with a key.
#[derive(Debug, Clone, Copy)]
struct Registered {
    segment: SegmentId,
    domain: u32,
    rights: Rights,
    /// Address by which work requests name its first byte.
    address: u64,
}

/// A piece of memory, as a work request or a frame names it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Extent {
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) key: u32,
}

impl Extent {
    /// `length` bytes of it, `offset` bytes behind its first.
    pub(super) fn part(self, offset: u64, length: u64) -> Self {
        Extent {
            address: self.address.wrapping_add(offset),
            length,
            ..self
        }
    }
}

/// The registered memory of all processes, by VNI and key. A segment has one key at most.
#[derive(Debug, Default)]
pub(super) struct RegisteredMemory(BTreeMap<(VniId, u32), Registered>);

impl RegisteredMemory {
    /// Gives a segment its key.
    ///
    /// # Errors
    /// Malformed, NoSuchSegment, NameExists if it has a key, BadAddress if the range wraps around.
    pub(super) fn register(
        &mut self,
        core: &Core,
        vni: VniId,
        body: &RegisterMemory,
    ) -> Result<(), Status> {
        let (segment, key) = (body.segment.get(), body.key.get());
        let rights = Rights::from_bits(body.rights.get().into()).ok_or(Status::Malformed)?;
        let made_of = key >> 16 == segment.into() && key & 0xffff != 0;
        if !made_of || body.reserved.get() != 0 {
            return Err(Status::Malformed);
        }
        let segment = SegmentId(segment);
        let process = core.process(vni).ok_or(Status::NoSuchVni)?;
        let exported = process.segments.get(segment);
        let exported = exported.ok_or(Status::NoSuchSegment)?;
        if !exported.access.contains(access_for(rights)) {
            return Err(Status::Malformed);
        }
        let address = body.address.get();
        let end = address.checked_add(exported.length);
        end.ok_or(Status::BadAddress)?;
        if self.of_segment(vni, segment).is_some() {
            return Err(Status::NameExists);
        }
        let registered = Registered {
            segment,
            domain: body.domain.get(),
            rights,
            address,
        };
        self.0.insert((vni, key), registered);
        Ok(())
    }

    fn of_segment(&self, vni: VniId, segment: SegmentId) -> Option<u32> {
        let first = u32::from(segment.0) << 16;
        let mut range = self.0.range((vni, first)..=(vni, first | 0xffff));
        range.next().map(|((_, key), _)| *key)
    }

    /// Takes a key back. Returns false if it is none.
    pub(super) fn deregister(&mut self, vni: VniId, key: u32) -> bool {
        self.0.remove(&(vni, key)).is_some()
    }

    /// A segment is gone.
    pub(super) fn segment_ended(&mut self, vni: VniId, segment: SegmentId) {
        if let Some(key) = self.of_segment(vni, segment) {
            self.0.remove(&(vni, key));
        }
    }

    /// A process is gone.
    pub(super) fn process_ended(&mut self, vni: VniId) {
        self.0.retain(|(owner, _), _| *owner != vni);
    }

    /// Where a piece lies in its process. `None`: the key is none of that protection domain, does not
    /// grant all of these rights, or the piece leaves the memory.
    pub(super) fn authorise(
        &self,
        core: &Core,
        (vni, domain): (VniId, u32),
        piece: Extent,
        rights: Rights,
    ) -> Option<Destination> {
        let registered = self.0.get(&(vni, piece.key))?;
        if registered.domain != domain || !registered.rights.contains(rights) {
            return None;
        }
        let segment = core.process(vni)?.segments.get(registered.segment)?;
        let offset = piece.address.checked_sub(registered.address)?;
        let end = offset.checked_add(piece.length)?;
        (end <= segment.length).then_some(Destination {
            vni,
            address: segment.address + offset,
            key: segment.page_key,
        })
    }
}

/// What a segment has to allow.
fn access_for(rights: Rights) -> Access {
    let writes = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
    match rights.intersects(writes) {
        true => Access::READ | Access::WRITE,
        false => Access::READ,
    }
}
