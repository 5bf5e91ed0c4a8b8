//! A process as others see it that wait for the same things.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use qnic_abi::command::{CommandFlags, Opcode};
use qnic_abi::{Access, NodeId, Port, SegmentName, Status};

use crate::atomic::RemoteU64;
use crate::core::lock;
use crate::endpoint::Endpoint;
use crate::error::{Error, Operation, Result};
use crate::memory::buffer::Buffer;
use crate::memory::segment::{RemoteSegment, Segment};
use crate::notification::NotificationId;
use crate::rdma::transfer::{remote, summary};
use crate::sync::slot::{Entry, Grant, Slot, GRANT, NEXT, SLOTS, SLOT_BYTES, STATE};

/// Notification by which participants wake each other.
pub const NOTIFICATION: NotificationId = match NotificationId::new(1023) {
    Some(id) => id,
    None => panic!("1023 is a counted notification"),
};

/// Upper half of the names of participants' areas: "qnsy".
pub const AREA_NAME: u32 = u32::from_be_bytes(*b"qnsy");

/// How long the first message to another participant may take: its area was there
/// when its name became known, but the way to it may be bad.
const FIRST_CONTACT: Duration = Duration::from_secs(3);

/// Names that are tried for an area, each by chance, before giving up.
const ATTEMPTS: u32 = 8;

/// A process that takes part in synchronization; made once from an endpoint, then
/// cloned. All of its threads can use it at the same time.
///
/// It keeps its endpoint registered. The last clone that is dropped, with all
/// objects made from it, waits until the others have what it told them.
#[derive(Debug, Clone)]
pub struct Participant(Arc<Area>);

/// The slots of a participant, and what it knows of others.
#[derive(Debug)]
pub(crate) struct Area {
    endpoint: Endpoint,
    buffer: Buffer,
    _segment: Segment,
    life: u16,
    free: Mutex<Vec<u16>>,
    others: Mutex<BTreeMap<u64, RemoteSegment>>,
}

impl Area {
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Takes a slot back that nobody will write to any more.
    pub(crate) fn give_back(&self, entry: Entry) {
        let slot = (entry.offset() / SLOT_BYTES) as u16;
        lock(&self.free).push(slot);
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // An error says that there is nobody left to be told.
        let _unreachable = self.endpoint.core().settle_writes();
    }
}

impl Participant {
    /// Lets the process of an endpoint take part.
    ///
    /// # Errors
    /// Those of [`Endpoint::export`].
    pub fn new(endpoint: &Endpoint) -> Result<Self> {
        let endpoint = endpoint.share();
        let buffer = endpoint.allocate(usize::from(SLOTS) * SLOT_BYTES as usize)?;
        let mut attempt = 0;
        let (life, segment) = loop {
            attempt += 1;
            let life = endpoint.core().provider.random() as u16;
            match endpoint.export(area_name(life), &buffer, Access::READ | Access::WRITE) {
                Ok(segment) => break (life, segment),
                Err(error) if attempt < ATTEMPTS && is_taken(&error) => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Participant(Arc::new(Area {
            endpoint,
            buffer,
            _segment: segment,
            life,
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

    /// Takes a slot, for the queue of an object whose life is `known` to be this, or was.
    pub(crate) fn enter(&self, identity: u64, known: u64) -> Result<Slot> {
        let Some(slot) = lock(&self.0.free).pop() else {
            return Err(Error::Refused {
                what: format!(
                    "stand in more than {SLOTS} queues, those that broke or whose home was \
                     lost included: a new participant has new places"
                ),
                status: Status::Exhausted,
            });
        };
        let (node, port) = self.endpoint().core().name();
        let entry = Entry::new(node.0, port.0, self.0.life, slot);
        Slot::new(&self.0, entry, identity, known)
    }

    /// Tells the one before that `slot` stands behind him.
    pub(crate) fn link(&self, before: Entry, slot: &Slot) -> Result<()> {
        self.post(before, NEXT, slot.entry().0)
    }

    /// Wakes an entry, or tells it that it waits in vain.
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

    /// The name of the one behind another's slot.
    ///
    /// # Errors
    /// Those of [`crate::RemoteWord`]; see [`Error::is_peer_gone`].
    pub(crate) fn next(&self, entry: Entry) -> Result<u64> {
        self.load(entry, NEXT)
    }

    fn load(&self, entry: Entry, word: u64) -> Result<u64> {
        let area = self.area(entry)?;
        let word: RemoteU64 = self.endpoint().atomic_u64(&area, entry.offset() + word)?;
        word.load().inspect_err(|error| {
            if error.is_peer_gone() {
                lock(&self.0.others).remove(&entry.participant());
            }
        })
    }

    /// Writes a word of another's slot and notifies its process; does not wait. A
    /// failure is nobody's: those who wait behind notice that he is gone.
    fn post(&self, entry: Entry, word: u64, value: u64) -> Result<()> {
        let area = self.area(entry)?;
        self.write_word(&area, entry.offset() + word, value, true)
    }

    /// Writes a word, does not wait, and lets nobody know of a failure.
    pub(crate) fn write_word(
        &self,
        segment: &RemoteSegment,
        offset: u64,
        value: u64,
        notify: bool,
    ) -> Result<()> {
        let bytes = value.to_le_bytes();
        let length = bytes.len() as u64;
        let mut descriptor = remote(segment, offset, length)?;
        let mut flags = CommandFlags::INLINE;
        if notify {
            flags |= CommandFlags::NOTIFY;
            descriptor.notification = NOTIFICATION.number().into();
        }
        descriptor.opcode = Opcode::Write as u8;
        descriptor.flags = flags.bits();
        let mut summary = summary(Operation::Write, segment, offset, length);
        summary.silent = true;
        let core = self.endpoint().core();
        core.issue(&descriptor, &bytes, summary, false)?;
        Ok(())
    }

    /// The area that an entry lies in.
    fn area(&self, entry: Entry) -> Result<RemoteSegment> {
        if let Some(area) = lock(&self.0.others).get(&entry.participant()) {
            return Ok(area.clone());
        }
        let (node, port) = (NodeId(entry.node()), Port(entry.port()));
        let name = area_name(entry.life());
        let area = self.endpoint().import(node, port, name, FIRST_CONTACT)?;
        lock(&self.0.others).insert(entry.participant(), area.clone());
        Ok(area)
    }
}

fn area_name(life: u16) -> SegmentName {
    SegmentName(u64::from(AREA_NAME) << 32 | u64::from(life))
}

fn is_taken(error: &Error) -> bool {
    error.status() == Some(Status::NameExists)
}

/// Says whether an atomic operation that failed like this was refused, and so not
/// executed: who is only gone may have executed it.
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
