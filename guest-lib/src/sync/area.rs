//! The area of a participant: its slots, and how it reaches those of others.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use qnic_abi::{SegmentName, Status};

use crate::core::lock;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{Buffer, ImportOptions, Importers, RemoteSegment, Segment};
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

/// The slots of a participant, and the areas of others that it has imported.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) endpoint: Endpoint,
    pub(crate) buffer: Buffer,
    _segment: Segment,
    incarnation: u16,
    /// The processes that may import it.
    pub(crate) others: Importers,
    free: Mutex<Vec<u16>>,
    imported: Mutex<BTreeMap<u64, RemoteSegment>>,
}

impl Area {
    pub(crate) fn new(
        endpoint: Endpoint,
        buffer: Buffer,
        segment: Segment,
        (incarnation, others): (u16, Importers),
    ) -> Self {
        Area {
            endpoint,
            buffer,
            _segment: segment,
            incarnation,
            others,
            free: Mutex::new((0..SLOTS).rev().collect()),
            imported: Mutex::default(),
        }
    }

    pub(crate) fn take(&self) -> Result<Entry> {
        let slot = lock(&self.free).pop().ok_or_else(|| {
            let what = format!(
                "join more than {SLOTS} queues, those that broke or whose owner was lost \
                 included: a new participant has new slots"
            );
            Error::refused(what, Status::Exhausted)
        })?;
        let (node, port) = self.endpoint.core().name();
        Ok(Entry::new(node.0, port.0, self.incarnation, slot))
    }

    /// Takes back a slot that no process will write to any more.
    pub(crate) fn give_back(&self, entry: Entry) {
        let slot = (entry.offset() / SLOT_BYTES) as u16;
        lock(&self.free).push(slot);
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
                lock(&self.imported).remove(&entry.participant());
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
        if let Some(area) = lock(&self.imported).get(&entry.participant()) {
            return Ok(area.clone());
        }
        let (node, port) = entry.process();
        let name = area_name(entry.incarnation());
        let options = ImportOptions::new(FIRST_CONTACT).secret(self.others.secret());
        let area = self.endpoint.import(node, port, name, options)?;
        lock(&self.imported).insert(entry.participant(), area.clone());
        Ok(area)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // An error says that no process is left to be told.
        let _unreachable = self.endpoint.core().wait_writes(None, None);
    }
}

/// The name under which an incarnation of a participant exports its area.
pub(crate) fn area_name(incarnation: u16) -> SegmentName {
    SegmentName(u64::from(AREA_NAME) << 32 | u64::from(incarnation))
}
