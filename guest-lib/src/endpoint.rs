//! A registered process: what it can do.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::time::Duration;

use qnic_abi::command::CommandFlags;
use qnic_abi::control::MAX_IMPORT_WAIT_MS;
use qnic_abi::{uapi, Access, NodeId, Port, SegmentName, Status};
use qnic_host::SharedRegion;

use crate::channel::{ChannelOptions, Receiver, Sender};
use crate::core::{lock, Core};
use crate::error::{Error, Operation, Result};
use crate::memory::buffer::Buffer;
use crate::memory::segment::{Part, Remote, RemoteSegment, Segment};
use crate::notification::handler::Armed;
use crate::notification::poller::Poller;
use crate::notification::queue::NotificationQueue;
use crate::notification::{Notification, NotificationId, Signal};
use crate::provider::{CallError, Process, Provider};
use crate::rdma::ticket::Ticket;
use crate::rdma::transfer::Source;

/// A process registered on a port; (node, port) names it in the network (N1).
///
/// All methods may be called from several threads at once. Commands of one thread
/// are issued in the order of its calls. The process stays registered until the
/// endpoint and all of its segments are dropped.
///
/// # Completion (N9)
/// [`write`](Self::write) and [`read`](Self::read) return once the command is in
/// the queue; they wait only while the queue is full. A *fenced* form waits until
/// it and all earlier operations of its kind of this endpoint are complete, and a
/// flush until all earlier ones are. Atomic operations
/// ([`atomic_u32`](Self::atomic_u32)) count as reads. A complete write has its bytes in the
/// destination's memory; its source is reusable. Writes may reach the destination
/// in any order; a notification arrives after all earlier writes to its node.
///
/// # Failures (N11)
/// A transfer that fails moves nothing further and is reported once: to its
/// [`Ticket`] while that lives, else to the next fence or flush of its kind. If its
/// destination is gone, another transfer there that would have to wait for room in
/// the queue reports it instead, and is not issued.
#[derive(Debug)]
pub struct Endpoint {
    core: Arc<Core>,
}

impl Endpoint {
    pub(crate) fn new(process: Box<dyn Process>, provider: Arc<dyn Provider>) -> Self {
        Endpoint {
            core: Arc::new(Core::new(process, provider)),
        }
    }

    /// The same endpoint once more.
    pub(crate) fn share(&self) -> Self {
        Endpoint {
            core: self.core.clone(),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Node of this process.
    pub fn node(&self) -> NodeId {
        self.core.name().0
    }

    /// Port of this process.
    pub fn port(&self) -> Port {
        self.core.name().1
    }

    /// Longest write that travels inline, in bytes (N10).
    pub fn inline_max(&self) -> usize {
        self.core.inline_max()
    }

    /// Memory that can be exported: page aligned, zeroed.
    ///
    /// # Errors
    /// [`Error::EmptyMemory`], [`Error::System`]
    pub fn allocate(&self, length: usize) -> Result<Buffer> {
        crate::nic::allocate(self.core.provider.as_ref(), length)
    }

    /// Exports a buffer under a name that is unique in this process (N2).
    ///
    /// # Errors
    /// [`Error::Refused`] with `NameExists` or `Exhausted` among others.
    pub fn export(&self, name: SegmentName, buffer: &Buffer, access: Access) -> Result<Segment> {
        let memory = buffer.memory().clone();
        Segment::export(self.core.clone(), name, memory, access, 0)
    }

    /// Exports any ordinary memory of this process: any address, any length.
    /// In a guest it must be anonymous memory, in host mode part of a buffer.
    ///
    /// # Safety
    /// Until the segment is dropped (or, if it never is, for ever):
    /// `address .. address + length` stays mapped and readable, and writable if
    /// `access` grants writing or reads are directed there; while peers may write
    /// to it, this process accesses it only through raw pointers or atomics.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NameExists`, `Exhausted`, `BadAddress`, `Overlapping`,
    /// or with the kind of memory that cannot be exported (`NotMapped`,
    /// `ReadOnlyMemory`, `FileMemory`, `SharedMemory`, `HugetlbMemory`,
    /// `DeviceMemory`); [`Error::EmptyMemory`].
    #[allow(unsafe_code)]
    pub unsafe fn export_range(
        &self,
        name: SegmentName,
        address: *mut u8,
        length: usize,
        access: Access,
    ) -> Result<Segment> {
        let Some(base) = NonNull::new(address) else {
            return Err(Error::Refused {
                what: "export memory at address 0".to_owned(),
                status: Status::BadAddress,
            });
        };
        // SAFETY: the caller promises what `from_raw` asks for.
        let memory = unsafe { SharedRegion::from_raw(base, length) };
        Segment::export(self.core.clone(), name, Arc::new(memory), access, 0)
    }

    /// Says whether all of `length` bytes at `address` lie in one exported
    /// segment, and at which offset; O(log segments) (N3).
    pub fn export_lookup(&self, address: u64, length: u64) -> Option<u64> {
        let found = lock(&self.core.exports).find(address, length);
        found.map(|(_, offset)| offset)
    }

    /// Imports a segment of another process, which may be on this node or this
    /// very process; waits up to `wait` for it to be exported (N3). Zero asks once.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NameNotFound`, `NoSuchNode`, `PeerGone`, `Exhausted`.
    pub fn import(
        &self,
        node: NodeId,
        port: Port,
        name: SegmentName,
        wait: Duration,
    ) -> Result<RemoteSegment> {
        let what = || format!("import segment {:#x} of {node}, {port}", name.0);
        let until = self.core.now() + wait.min(Duration::from_millis(MAX_IMPORT_WAIT_MS.into()));
        let call = loop {
            let left = until.saturating_duration_since(self.core.now());
            let mut call = uapi::Import {
                node: node.0.into(),
                port: port.0.into(),
                name: name.0.into(),
                wait_ms: (left.as_micros().div_ceil(1000) as u32).into(),
                ..Default::default()
            };
            match self.core.process.import(&mut call) {
                Ok(()) => break call,
                Err(CallError::Interrupted) => (),
                Err(error) => return Err(Error::call(what, error)),
            }
        };
        Error::check(call.status.get(), what)?;
        if call.length.get() == 0 {
            return Err(Error::Refused {
                what: what(),
                status: Status::BadLength,
            });
        }
        Ok(self.enter_import(node, port, name, &call))
    }

    fn enter_import(
        &self,
        node: NodeId,
        port: Port,
        name: SegmentName,
        call: &uapi::Import,
    ) -> RemoteSegment {
        let (address, length) = (call.address.get(), call.length.get());
        let mut imports = lock(&self.core.imports);
        let number = imports.number();
        let remote = Arc::new(Remote {
            core: Arc::downgrade(&self.core),
            number,
            node,
            port,
            name,
            segment: call.segment.get(),
            access: Access::from_bits_truncate(call.access.get()),
            address,
            length,
            key: call.key.get(),
        });
        let weak = Arc::downgrade(&remote);
        imports.insert((node.0, port.0), address, length, number, weak);
        RemoteSegment(remote)
    }

    /// The imported segment that holds `address` of a remote process, and the
    /// offset in it; O(log segments) (N3).
    pub fn import_lookup(
        &self,
        node: NodeId,
        port: Port,
        address: u64,
    ) -> Option<(RemoteSegment, u64)> {
        let imports = lock(&self.core.imports);
        let (remote, offset) = imports.find((node.0, port.0), address)?;
        Weak::upgrade(remote).map(|remote| (RemoteSegment(remote), offset))
    }

    /// Writes to a remote segment at `offset`, and does not wait.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NotExported`], [`Error::ForeignSegment`],
    /// [`Error::DeviceGone`], [`Error::QueueFailed`].
    pub fn write<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) -> Result<Ticket<'_>> {
        self.issue_write(to, offset, source.into(), None)
    }

    /// Writes, waits for this and all earlier writes, and reports what failed
    /// among those without a ticket (writeF). Sources are reusable then.
    ///
    /// # Errors
    /// [`Error::Transfer`], and those of [`Endpoint::write`].
    pub fn write_fenced<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
    ) -> Result<()> {
        self.fenced_write(to, offset, source.into(), None)
    }

    /// Writes and signals a notification of the remote process once this and all
    /// earlier writes to its node have been delivered (writeN; N16, N18). An
    /// empty source signals alone.
    ///
    /// # Errors
    /// Those of [`Endpoint::write`].
    pub fn write_notify<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        signal: impl Into<Signal>,
    ) -> Result<Ticket<'_>> {
        self.issue_write(to, offset, source.into(), Some(signal.into()))
    }

    /// [`Endpoint::write_notify`], fenced like [`Endpoint::write_fenced`] (writeFN).
    ///
    /// # Errors
    /// Those of [`Endpoint::write_fenced`].
    pub fn write_fenced_notify<'a>(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: impl Into<Source<'a>>,
        signal: impl Into<Signal>,
    ) -> Result<()> {
        self.fenced_write(to, offset, source.into(), Some(signal.into()))
    }

    /// Reads from a remote segment at `offset` into exported memory of this
    /// process, and does not wait. The access that the segment grants to peers does
    /// not matter.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::ForeignSegment`], [`Error::DeviceGone`],
    /// [`Error::QueueFailed`].
    pub fn read(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
    ) -> Result<Ticket<'_>> {
        self.core.check_reachable(from, Operation::Read)?;
        let flags = CommandFlags::empty();
        let issued = self.core.read(from, offset, destination, flags, true)?;
        Ok(Ticket::new(&self.core, issued))
    }

    /// Reads, waits for this and all earlier reads, and reports what failed among
    /// those without a ticket (readF).
    ///
    /// # Errors
    /// [`Error::Transfer`], and those of [`Endpoint::read`].
    pub fn read_fenced(
        &self,
        from: &RemoteSegment,
        offset: u64,
        destination: Part<'_>,
    ) -> Result<()> {
        let flags = CommandFlags::PUBLISH;
        let issued = self.core.read(from, offset, destination, flags, false)?;
        self.core.fence(&issued)
    }

    /// Waits for all reads that were issued before (flushR).
    ///
    /// # Errors
    /// [`Error::Transfer`] with all failed reads that no ticket waits for;
    /// [`Error::DeviceGone`], [`Error::QueueFailed`], [`Error::QueueReset`].
    pub fn flush_reads(&self) -> Result<()> {
        self.core.flush(Operation::Read)
    }

    /// Waits for all writes that were issued before (flushW).
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads`], of writes.
    pub fn flush_writes(&self) -> Result<()> {
        self.core.flush(Operation::Write)
    }

    /// Waits for all reads and writes that were issued before (flushRW).
    ///
    /// # Errors
    /// As [`Endpoint::flush_reads`], of both.
    pub fn flush(&self) -> Result<()> {
        match (self.flush_reads(), self.flush_writes()) {
            (Err(Error::Transfer(mut reads)), Err(Error::Transfer(writes))) => {
                reads.failures.extend(writes.failures);
                Err(Error::Transfer(reads))
            }
            (reads, writes) => reads.and(writes),
        }
    }

    /// A counted notification of this process (N16).
    pub fn notification(&self, id: NotificationId) -> Notification<'_> {
        Notification::new(&self.core, id)
    }

    /// The notifications of this process that arrive in its queue (N16).
    pub fn queue(&self) -> NotificationQueue<'_> {
        NotificationQueue::new(&self.core)
    }

    /// Waits until a signal of one of several counted notifications is pending, and
    /// says which; of several that are, each gets its turn. Nothing is acknowledged.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::DeviceGone`]; without any `ids` and timeout it
    /// waits for ever.
    pub fn wait_any(
        &self,
        ids: &[NotificationId],
        timeout: Option<Duration>,
    ) -> Result<NotificationId> {
        self.core.wait_any(ids, timeout)
    }

    /// Calls `handler` once for each signal of a counted notification, from those on
    /// that are pending, until the result is dropped (notfArm; N17).
    ///
    /// A thread of this library calls the handlers of an endpoint, one at a time, in
    /// the turn of their notifications; the signal is acknowledged by then. A handler
    /// may call this library, arm and disarm, and it delays the others while it waits.
    /// One that panics is not called again. With the device they end without a word.
    ///
    /// # Errors
    /// [`Error::Armed`]: it has a handler, or the queue watches it;
    /// [`Error::DeviceGone`], [`Error::System`].
    pub fn arm(
        &self,
        id: NotificationId,
        handler: impl FnMut(NotificationId) + Send + 'static,
    ) -> Result<Armed> {
        Armed::new(&self.core, id, Box::new(handler))
    }

    /// A descriptor for event loops that becomes readable when a notification
    /// arrives (N17).
    ///
    /// # Errors
    /// [`Error::Polled`]: there is one; [`Error::System`]
    pub fn poller(&self) -> Result<Poller> {
        Poller::new(&self.core)
    }

    /// Opens the receiving end of a channel under a name (N19).
    ///
    /// # Errors
    /// [`Error::BadChannel`], and those of [`Endpoint::export`].
    pub fn receiver(&self, name: SegmentName, options: &ChannelOptions) -> Result<Receiver> {
        Receiver::open(self, name, options)
    }

    /// Becomes the sending end of a channel that a process has opened, or opens within
    /// `wait` (N19). `replenish` is a notification of this process that the channel
    /// signals when there is room for more messages.
    ///
    /// # Errors
    /// [`Error::BadChannel`], and those of [`Endpoint::import`] and [`Endpoint::read`].
    pub fn sender(
        &self,
        node: NodeId,
        port: Port,
        name: SegmentName,
        replenish: NotificationId,
        wait: Duration,
    ) -> Result<Sender> {
        Sender::connect(self, (node, port, name), replenish, wait)
    }

    /// Starts the command queue again after [`Error::QueueFailed`]. Commands that
    /// were in the queue are dropped; who waits for one gets [`Error::QueueReset`].
    ///
    /// # Errors
    /// [`Error::DeviceGone`], [`Error::System`]
    pub fn reset_queue(&self) -> Result<()> {
        self.core.reset_queue()
    }

    fn issue_write(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: Source<'_>,
        signal: Option<Signal>,
    ) -> Result<Ticket<'_>> {
        let flags = CommandFlags::empty();
        let core = &self.core;
        core.check_reachable(to, Operation::Write)?;
        let issued = core.write(to, offset, source, signal, flags, true)?;
        Ok(Ticket::new(core, issued))
    }

    fn fenced_write(
        &self,
        to: &RemoteSegment,
        offset: u64,
        source: Source<'_>,
        signal: Option<Signal>,
    ) -> Result<()> {
        let flags = CommandFlags::PUBLISH;
        let core = &self.core;
        let issued = core.write(to, offset, source, signal, flags, false)?;
        core.fence(&issued)
    }
}
