//! A process that uses objects, as the others see it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use qnic_abi::{Access, NodeId, Port, SegmentName, Status};

use crate::core::lock;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{Buffer, RemoteSegment, Segment};
use crate::notification::NotificationId;
use crate::sync::slot::{Entry, Grant, Slot, GRANT, NEXT, SLOTS, SLOT_BYTES, STATE};

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

/// Random names that are tried for an area.
const ATTEMPTS: u32 = 8;

/// A process that uses objects; made once from an endpoint, then cloned. All of its
/// threads can use it at the same time.
///
/// It keeps its endpoint registered. The drop of its last clone, and of all objects made
/// from it, waits until its last writes to other participants have ended.
#[derive(Debug, Clone)]
pub struct Participant(Arc<Area>);

/// The slots of a participant, and the areas of others that it has imported.
#[derive(Debug)]
pub(crate) struct Area {
    endpoint: Endpoint,
    buffer: Buffer,
    _segment: Segment,
    incarnation: u16,
    free: Mutex<Vec<u16>>,
    others: Mutex<BTreeMap<u64, RemoteSegment>>,
}

impl Area {
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Takes back a slot that no process will write to any more.
    pub(crate) fn give_back(&self, entry: Entry) {
        let slot = (entry.offset() / SLOT_BYTES) as u16;
        lock(&self.free).push(slot);
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // An error says that no process is left to be told.
        let _unreachable = self.endpoint.core().wait_all_writes();
    }
}

impl Participant {
    /// Makes the process of an endpoint a participant.
    ///
    /// # Errors
    /// Those of [`Endpoint::export`].
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        let endpoint = endpoint.share();
        let buffer = endpoint.allocate(usize::from(SLOTS) * SLOT_BYTES as usize)?;
        let mut attempt = 0;
        let (incarnation, segment) = loop {
            attempt += 1;
            let incarnation = endpoint.core().provider.random() as u16;
            let name = area_name(incarnation);
            match endpoint.export(name, &buffer, Access::READ | Access::WRITE) {
                Ok(segment) => break (incarnation, segment),
                Err(error) if attempt < ATTEMPTS && is_taken(&error) => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Participant(Arc::new(Area {
            endpoint,
            buffer,
            _segment: segment,
            incarnation,
            free: Mutex::new((0..SLOTS).rev().collect()),
            others: Mutex::default(),
        })))
    }

    pub(crate) fn of(area: &Arc<Area>) -> Self {
        Participant(area.clone())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.0.endpoint
    }

    /// Takes a slot for the queue of an object, whose epoch was `known_epoch`.
    pub(crate) fn take_slot(&self, identity: u64, known_epoch: u64) -> Result<Slot> {
        let slot = lock(&self.0.free).pop().ok_or_else(|| {
            let what = format!(
                "join more than {SLOTS} queues, those that broke or whose owner was lost \
                 included: a new participant has new slots"
            );
            Error::refused(what, Status::Exhausted)
        })?;
        let (node, port) = self.endpoint().core().name();
        let entry = Entry::new(node.0, port.0, self.0.incarnation, slot);
        Slot::new(&self.0, entry, identity, known_epoch)
    }

    /// Links `slot` behind its predecessor.
    pub(crate) fn link(&self, before: Entry, slot: &Slot) -> Result<()> {
        self.post(before, NEXT, slot.entry().0)
    }

    /// Wakes an entry, or tells it that its predecessor has abandoned its slot.
    pub(crate) fn grant(&self, entry: Entry, grant: Grant) -> Result<()> {
        self.post(entry, GRANT, grant.word())
    }

    /// The state of another's slot.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]; see [`Error::is_peer_gone`].
    pub(crate) fn state(&self, entry: Entry) -> Result<u64> {
        self.load(entry, STATE)
    }

    /// The name of the successor in another's slot.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]; see [`Error::is_peer_gone`].
    pub(crate) fn next(&self, entry: Entry) -> Result<u64> {
        self.load(entry, NEXT)
    }

    fn load(&self, entry: Entry, word: u64) -> Result<u64> {
        let area = self.area(entry)?;
        let word = self.endpoint().atomic_u64(&area, entry.offset() + word)?;
        word.load().inspect_err(|error| {
            if error.is_peer_gone() {
                lock(&self.0.others).remove(&entry.participant());
            }
        })
    }

    /// Writes a word of another's slot and notifies its process; does not wait. A failure
    /// is dropped: the processes that wait behind notice that it is gone.
    fn post(&self, entry: Entry, word: u64, value: u64) -> Result<()> {
        let (area, offset) = (self.area(entry)?, entry.offset() + word);
        let core = self.endpoint().core();
        core.write_word(&area, offset, value, Some(NOTIFICATION))
    }

    /// The area that an entry lies in.
    fn area(&self, entry: Entry) -> Result<RemoteSegment> {
        if let Some(area) = lock(&self.0.others).get(&entry.participant()) {
            return Ok(area.clone());
        }
        let (node, port) = (NodeId(entry.node()), Port(entry.port()));
        let name = area_name(entry.incarnation());
        let area = self.endpoint().import(node, port, name, FIRST_CONTACT)?;
        lock(&self.0.others).insert(entry.participant(), area.clone());
        Ok(area)
    }
}

fn area_name(incarnation: u16) -> SegmentName {
    SegmentName(u64::from(AREA_NAME) << 32 | u64::from(incarnation))
}

fn is_taken(error: &Error) -> bool {
    error.status() == Some(Status::NameExists)
}

/// Returns true if an atomic operation that failed like this was refused, and so not
/// executed. An owner that is merely gone may have executed it.
pub(crate) fn was_refused(error: &Error) -> bool {
    matches!(
        error.status(),
        Some(
            Status::BadLength
                | Status::BadAddress
                | Status::BadKey
                | Status::AccessDenied
                | Status::NoSuchSegment
                | Status::NoSuchPort
                | Status::NoSuchNode
                | Status::PageUnavailable
        )
    )
}
