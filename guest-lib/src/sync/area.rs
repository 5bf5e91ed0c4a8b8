//! The areas of a participant, and how it reaches the slots of others.
//!
//! ```text
//!   Areas ──current──► Area: 256 slots, of which some are free, in use, or abandoned
//!     │                  ▲
//!     │ imported         └── each slot in use or waited for keeps its area
//!     ▼
//!   areas of others
//! ```
//! # Invariants
//! - An abandoned slot is not used again: others may still write to it.
//! - When no slot of the current area is free, the next one takes its place. The old one is
//!   revoked with its last slot in use. From then on, what others write to it is refused. So a
//!   participant has no more areas than slots in use, however many it has abandoned.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use qnic_abi::{Access, SegmentName, Status};

use crate::core::lock;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{Buffer, ExportOptions, ImportOptions, Importers, RemoteSegment, Segment};
use crate::notification::NotificationId;
use crate::sync::entry::{Entry, Grant, GRANT, SLOTS, SLOT_BYTES};

/// Notification by which participants wake each other.
pub const NOTIFICATION: NotificationId = match NotificationId::new(1023) {
    Some(id) => id,
    None => panic!("1023 is a counted notification"),
};

/// Upper half of the names of participants' areas: "qnsy".
pub const AREA_NAME: u32 = u32::from_be_bytes(*b"qnsy");

/// How long the first message to another participant may take. Its area existed when its
/// name became known, but messages to it may get lost.
const FIRST_CONTACT: Duration = Duration::from_secs(3);

/// Names that are tried for an area.
const ATTEMPTS: u16 = 8;

/// Areas of one process that are imported at a time.
const AREAS_OF_PROCESS: usize = 4;

/// Exported memory that holds slots.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) buffer: Buffer,
    _segment: Segment,
    incarnation: u16,
    free: Mutex<Vec<u16>>,
}

impl Area {
    /// Exports an area under a name that no other one has, from `incarnation` on.
    fn new(endpoint: &Endpoint, others: &Importers, mut incarnation: u16) -> Result<Self> {
        let buffer = endpoint.allocate(usize::from(SLOTS) * SLOT_BYTES as usize)?;
        let last = incarnation.wrapping_add(ATTEMPTS - 1);
        let segment = loop {
            let options = ExportOptions::new(Access::READ | Access::WRITE)
                .importers(others.clone())
                .notifications(NOTIFICATION);
            match endpoint.export(area_name(incarnation), &buffer, options) {
                Err(error) if incarnation != last && is_taken(&error) => {
                    incarnation = incarnation.wrapping_add(1);
                }
                exported => break exported?,
            }
        };
        Ok(Area {
            buffer,
            _segment: segment,
            incarnation,
            free: Mutex::new((0..SLOTS).rev().collect()),
        })
    }

    /// Takes back a slot that no process will write to any more.
    pub(crate) fn give_back(&self, entry: Entry) {
        let slot = (entry.offset() / SLOT_BYTES) as u16;
        lock(&self.free).push(slot);
    }
}

/// The areas of a participant, and those of others that it has imported.
#[derive(Debug)]
pub(crate) struct Areas {
    pub(crate) endpoint: Endpoint,
    /// The processes that may import them.
    pub(crate) others: Importers,
    current: Mutex<Arc<Area>>,
    imported: Mutex<BTreeMap<u64, RemoteSegment>>,
}

impl Areas {
    pub(crate) fn new(endpoint: Endpoint, others: Importers) -> Result<Self> {
        let first = endpoint.core().provider.random() as u16;
        let area = Area::new(&endpoint, &others, first)?;
        Ok(Areas {
            endpoint,
            others,
            current: Mutex::new(Arc::new(area)),
            imported: Mutex::default(),
        })
    }

    /// Takes a slot, and keeps the area in which it lies.
    pub(crate) fn take(&self) -> Result<(Arc<Area>, Entry)> {
        let mut current = lock(&self.current);
        let free = lock(&current.free).pop();
        let slot = match free {
            Some(slot) => slot,
            None => {
                let next = current.incarnation.wrapping_add(1);
                *current = Arc::new(Area::new(&self.endpoint, &self.others, next)?);
                let first = lock(&current.free).pop();
                first.expect("a new area has free slots")
            }
        };
        let (node, port) = self.endpoint.core().name();
        let entry = Entry::new(node.0, port.0, current.incarnation, slot);
        Ok((current.clone(), entry))
    }

    /// Wakes an entry, or tells it that its predecessor has abandoned its slot.
    pub(crate) fn grant(&self, entry: Entry, grant: Grant) -> Result<()> {
        self.post(entry, GRANT, grant.word())
    }

    /// Loads a word of another's slot.
    ///
    /// # Errors
    /// Those of [`crate::AtomicOperation::wait`]; see [`crate::Error::is_peer_gone`].
    pub(crate) fn load(&self, entry: Entry, word: u64) -> Result<u64> {
        let area = self.area_of(entry)?;
        let word = self.endpoint.atomic(&area, entry.offset() + word)?;
        word.load().wait().inspect_err(|error| {
            if error.is_peer_gone() {
                lock(&self.imported).remove(&entry.area());
            }
        })
    }

    /// Writes a word of another's slot and notifies its process; does not wait. A failure
    /// is dropped: the processes that wait behind notice that it is gone.
    pub(crate) fn post(&self, entry: Entry, word: u64, value: u64) -> Result<()> {
        let (area, offset) = (self.area_of(entry)?, entry.offset() + word);
        let core = self.endpoint.core();
        core.write_word(&area, offset, value, Some(NOTIFICATION))
    }

    /// The area that an entry lies in.
    fn area_of(&self, entry: Entry) -> Result<RemoteSegment> {
        if let Some(area) = lock(&self.imported).get(&entry.area()) {
            return Ok(area.clone());
        }
        let (node, port) = entry.process();
        let name = area_name(entry.incarnation());
        let options = ImportOptions::new(FIRST_CONTACT).secret(self.others.secret());
        let area = self.endpoint.import(node, port, name, options)?;
        let mut imported = lock(&self.imported);
        let of_process = imported.range(entry.areas_of_process());
        if of_process.count() >= AREAS_OF_PROCESS {
            // Most of them are revoked. One that is not is imported again when it is needed.
            imported.retain(|area, _| !entry.areas_of_process().contains(area));
        }
        imported.insert(entry.area(), area.clone());
        Ok(area)
    }
}

impl Drop for Areas {
    fn drop(&mut self) {
        // An error says that no process is left to be told.
        let _unreachable = self.endpoint.core().wait_writes(None, None);
    }
}

fn is_taken(error: &Error) -> bool {
    error.status() == Some(Status::NameExists)
}

/// The name under which an incarnation of a participant exports its area.
fn area_name(incarnation: u16) -> SegmentName {
    SegmentName(u64::from(AREA_NAME) << 32 | u64::from(incarnation))
}
