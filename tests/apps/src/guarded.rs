//! What export options keep from a process with bad intentions (N2): the side that guards, and
//! the side that tries.
//!
//! ```text
//!   memory-server                                    isolation-probe
//!     SECRET  asks for a secret              ◄──────── imports without it, with another
//!     LISTED  admits none                    ◄──────── imports
//!     SILENT  may be written, signals nothing ◄─────── writes and signals
//!     LOCK    may be read; held by a participant of a secret
//!                                            ◄──────── reads the holder's name, forges a grant
//! ```

use std::time::Duration;

use anyhow::{ensure, Result};
use qnic::sync::{Lock, Participant, AREA_NAME, NOTIFICATION, OBJECT_BYTES};
use qnic::{
    Access, Buffer, Endpoint, Error, ExportOptions, ImportOptions, Importers, NodeId,
    Notifications, OneShot, RemoteSegment, Secret, Segment, SegmentName, Signal, Status,
};

use qnic_apps::demo::node::{Exported, Peer};
use qnic_apps::demo::options::{notification, REQUEST};

const SECRET: SegmentName = SegmentName(40);
const LISTED: SegmentName = SegmentName(41);
const SILENT: SegmentName = SegmentName(42);
const LOCK: SegmentName = SegmentName(43);
/// The lock, for its participants.
const OBJECT: SegmentName = SegmentName(44);
/// Bytes of the silent segment, and of a write to it: over a page border, by DMA.
const SIZE: usize = 16 * 1024;
const LENGTH: usize = 9000;

/// Memory that is exported with options.
pub(crate) struct Guarded {
    silent: Buffer,
    lock: Lock,
    _segments: Vec<Segment>,
}

impl Guarded {
    /// Exports it.
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self> {
        let secret = Secret::random()?;
        let silent = endpoint.allocate(SIZE)?;
        let objects = endpoint.allocate(OBJECT_BYTES as usize)?;
        let all = || ExportOptions::new(Access::all()).notifications(Notifications::None);
        let listed = all().importers(Importers::nobody());
        let mut segments = vec![
            endpoint.export(SECRET, &silent, all().secret(secret))?,
            endpoint.export(LISTED, &silent, listed)?,
            endpoint.export(SILENT, &silent, all())?,
        ];
        let participant = Participant::among(endpoint, Importers::with_secret(secret))?;
        segments.push(endpoint.export(OBJECT, &objects, all().secret(secret))?);
        let own = endpoint.import(endpoint.node(), endpoint.port(), OBJECT, Duration::ZERO)?;
        let lock = Lock::new(&participant, &own, 0)?;
        // Held for good: its name stands at the owner.
        std::mem::forget(lock.acquire()?);
        segments.push(endpoint.export(LOCK, &objects, Access::READ)?);
        Ok(Guarded {
            silent,
            lock,
            _segments: segments,
        })
    }

    /// Checks that nothing of it was changed, and nothing signalled by its writers.
    pub(crate) fn check(&self, endpoint: &Endpoint) -> Result<()> {
        let same = self.silent.read_vec(0, SIZE)? == vec![0; SIZE];
        ensure!(same, "the silent segment was changed");
        ensure!(self.lock.try_acquire()?.is_none(), "the lock is free");
        for number in [7, NOTIFICATION.number()] {
            let signals = endpoint.notification(notification(number)).signals();
            ensure!(signals == 0, "notification {number} was signalled");
        }
        Ok(())
    }
}

/// An attempt: what was tried, how it ended, and the status that is right.
pub(crate) type Tried = (String, qnic::Result<()>, Option<Status>);

/// Tries to reach what a [`Guarded`] guards.
pub(crate) fn attempts(endpoint: &Endpoint, peer: &Peer, memory: &Exported) -> Result<Vec<Tried>> {
    let refused = Some(Status::ImportRefused);
    let import = |name, secret: Option<Secret>| {
        let options = ImportOptions::new(Duration::ZERO).secret(secret);
        let imported = endpoint.import(NodeId(peer.peer), peer.port(), name, options);
        imported.map(drop)
    };
    let mut tried: Vec<Tried> = vec![
        (
            "import without the secret".into(),
            import(SECRET, None),
            refused,
        ),
        (
            "import with a wrong secret".into(),
            import(SECRET, Some(Secret::random()?)),
            refused,
        ),
        (
            "import with a list of others".into(),
            import(LISTED, None),
            refused,
        ),
        (
            "import the object of others".into(),
            import(OBJECT, None),
            refused,
        ),
    ];
    let silent = peer.import(endpoint, SILENT)?;
    let one_shot = OneShot::new(2000).map(Signal::from);
    let counted = [REQUEST, notification(7), NOTIFICATION].map(|id| Some(Signal::from(id)));
    for signal in counted.into_iter().chain([one_shot]).flatten() {
        let denied = Some(Status::AccessDenied);
        let what = |form| format!("signal {} {form}", signal.number());
        let alone = endpoint.write(&silent, 0, b"").notify(signal).fenced();
        tried.push((what("alone"), alone, denied));
        let inline = endpoint
            .write(&silent, 0, b"forged")
            .notify(signal)
            .fenced();
        tried.push((what("with an inline write"), inline, denied));
        let pages = memory.part(0, LENGTH);
        let pages = endpoint.write(&silent, 100, pages).notify(signal).fenced();
        tried.push((what("with pages"), pages, denied));
    }
    tried.push((
        "forge a grant".into(),
        forge_grant(endpoint, peer, memory),
        refused,
    ));
    Ok(tried)
}

/// Writes to the slot of the process that holds the lock: any process may read its name.
fn forge_grant(endpoint: &Endpoint, peer: &Peer, memory: &Exported) -> qnic::Result<()> {
    let (node, port) = (NodeId(peer.peer), peer.port());
    let lock: RemoteSegment = endpoint.import(node, port, LOCK, Duration::ZERO)?;
    endpoint.read(&lock, 0, memory.part(0, 8)).fenced()?;
    let holder = memory.buffer.load_u64(0)?;
    let incarnation = holder >> 16 & 0xffff;
    let slot = (holder & 0xffff).checked_sub(1).ok_or(Error::TimedOut)?;
    let name = SegmentName(u64::from(AREA_NAME) << 32 | incarnation);
    let area = endpoint.import(node, port, name, Duration::ZERO)?;
    let grant = 3u64.to_le_bytes();
    endpoint
        .write(&area, slot * 64 + 8, &grant)
        .notify(NOTIFICATION)
        .fenced()
}
