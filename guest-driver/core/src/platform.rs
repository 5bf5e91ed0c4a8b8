//! What the driver core needs from the system it runs on.
//!
//! One implementation is a Linux kernel module, another an ordinary process that
//! speaks vhost-user (host mode), a third the fake of the unit tests.
//!
//! # Contexts
//! A method may sleep unless its documentation says *atomic*: such a method is
//! called with a spin lock held or from an interrupt, and neither sleeps nor
//! allocates.
//!
//! # Allocation
//! The core allocates only in contexts that may sleep. What depends on a size
//! that a user gave is allocated with `try_reserve`; everything else is smaller
//! than [`SMALL_BYTES`], and an allocator of a kernel must not fail for it.

use alloc::sync::Arc;
use core::fmt;

use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::SharedMemory;

use crate::region::Region;

/// Infallible allocations of the core are at most this large, in bytes.
pub const SMALL_BYTES: usize = 4096;

/// There was no memory for a lock, a queue or pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory;

impl From<alloc::collections::TryReserveError> for NoMemory {
    fn from(_: alloc::collections::TryReserveError) -> Self {
        NoMemory
    }
}

/// A mutual exclusion whose owner may sleep; never taken in an atomic context.
pub trait Mutex<T>: Send + Sync + Sized {
    /// Makes one around `value`.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new(value: T) -> Result<Self, NoMemory>;

    /// Waits for the lock and runs `f` with it.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;

    /// Runs `f` with the lock if nobody holds it; never sleeps to get it.
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R>;
}

/// A mutual exclusion for a few instructions, also from interrupts: its owner
/// neither sleeps nor allocates, and is not interrupted by another that wants it.
pub trait SpinLock<T>: Send + Sync + Sized {
    /// Makes one around `value`.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new(value: T) -> Result<Self, NoMemory>;

    /// Runs `f` with the lock. Atomic.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// The condition holds.
    Ready,
    /// The time ran out first.
    TimedOut,
    /// The waiting thread has a signal to attend to.
    Interrupted,
}

/// Threads of one process that wait for a condition.
pub trait Waiters: Send + Sync {
    /// Blocks the calling thread until `ready` returns true or `timeout_ns`
    /// nanoseconds have passed (`None`: no limit). `ready` is evaluated before the
    /// thread first sleeps and after each [`Waiters::wake_all`] that follows; a
    /// wake-up between evaluation and sleep is not lost. `ready` does not sleep.
    fn wait(&self, ready: &dyn Fn() -> bool, timeout_ns: Option<u64>) -> Waited;

    /// Makes every waiting thread evaluate its condition again, threads that wait
    /// through the system's own means (poll) included. Atomic.
    fn wake_all(&self);
}

/// The host area of one process ([`qnic_abi::host_area`]): zeroed pages that the
/// device writes and the process reads. Dropping it frees the pages once no
/// process has them mapped any more.
pub trait HostArea: Send + Sync {
    /// Addresses of the pages as the device sees them.
    fn addresses(&self) -> [u64; HOST_PAGES];

    /// Stores the wake generation with release; partner: the process's acquire
    /// load. Atomic.
    fn store_generation(&self, generation: u64);
}

/// Why a request to the device has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The device is gone or was stopped: it touches no memory any more.
    Gone,
    /// The calling thread was interrupted ([`Patience::Interruptible`] only).
    Interrupted,
    /// No reply came in time. The reply, if it still comes, is dropped.
    TimedOut,
    /// All the time so many requests that the device may answer late were under
    /// way that one more could have kept others from the control queue
    /// ([`Patience::Interruptible`] only).
    TooMany,
}

/// How long a request waits for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// The device answers at once; signals do not end the wait. Milliseconds.
    Bounded(u32),
    /// The device may answer late. As long as it may take, in milliseconds; a
    /// signal ends the wait. The platform keeps a part of the control queue free of
    /// such requests.
    Interruptible(u32),
}

/// Why memory cannot be exported, or a page not be brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryError {
    /// Some of it is not mapped, or not accessible in the way that is needed.
    NotMapped,
    /// Some of it is memory that the device cannot reach.
    NotExportable,
    /// Some of it is a private mapping of a file.
    FileBacked,
    /// Some of it is shared with other processes.
    Shared,
    /// Some of it is of hugetlb pages.
    Hugetlb,
    /// Some of it belongs to a device or to the kernel.
    Device,
    /// Some of it cannot be written by its process. The NIC delivers a process's
    /// own reads into any of its segments, so every page must be the process's
    /// own, whatever peers may do with it.
    NotWritable,
    /// The address space is gone: its process ended.
    SpaceGone,
    /// No memory.
    NoMemory,
    /// The pages changed under the driver's hands too often; try again.
    Busy,
    /// The region was closed meanwhile.
    Closed,
}

impl From<NoMemory> for MemoryError {
    fn from(_: NoMemory) -> Self {
        MemoryError::NoMemory
    }
}

/// Importance of a message for the system's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The device or driver does not work any more.
    Error,
    /// Something is wrong but work goes on.
    Warning,
    /// A change of state that an administrator may want to know.
    Info,
}

/// The system under the driver core.
pub trait Platform: Send + Sync + Sized + 'static {
    /// The SRAM, mapped. It stays mapped (perhaps reading as anything) until the
    /// platform is dropped.
    type Sram: SharedMemory + Send + Sync;
    /// Sleeping lock.
    type Mutex<T: Send>: Mutex<T>;
    /// Spinning lock.
    type SpinLock<T: Send>: SpinLock<T>;
    /// A handle on the address space of a process. It does not keep the memory alive.
    type Space: Send + Sync;
    /// A range of an address space under watch; dropping it ends the watch and
    /// waits for invalidations that are under way.
    type Watch: Send + Sync;
    /// Memory that is held in place; dropping it lets go.
    type Pin: Send;
    /// Pages that the device writes for one process.
    type HostArea: HostArea;
    /// Waiting threads of one process.
    type Waiters: Waiters;

    /// The SRAM.
    fn sram(&self) -> &Self::Sram;

    /// Monotonic time in nanoseconds. Atomic.
    fn now_ns(&self) -> u64;

    /// Leaves the processor to others, between two looks at a word of SRAM that the
    /// NIC changes without an event: it holds a page for one copy, and may need this
    /// processor to end it. May sleep. Who calls it relies on what it sees, not on
    /// the time that passes, and looks for a bounded time.
    fn give_way(&self);

    /// A random number that nobody can predict.
    fn random(&self) -> u64;

    /// One more than the highest physical frame number that can be exported.
    fn frames(&self) -> u64;

    /// Puts a request on the control queue and waits for its reply. Requests of
    /// several threads are under way at the same time; replies come in any order.
    ///
    /// # Errors
    /// See [`RequestError`]. After [`RequestError::Interrupted`] and
    /// [`RequestError::TimedOut`] the platform keeps the buffers until the device
    /// has given them back.
    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        patience: Patience,
    ) -> Result<[u8; REPLY_BYTES], RequestError>;

    /// Puts a request on the control queue whose reply nobody needs; the reply is
    /// dropped. Waits only while the queue is full, at most `limit_ms`
    /// milliseconds.
    ///
    /// # Errors
    /// [`RequestError::Gone`], [`RequestError::TimedOut`] if there was no room.
    fn post(&self, request: &[u8; REQUEST_BYTES], limit_ms: u32) -> Result<(), RequestError>;

    /// Makes a device that does not keep its promises stop: when the call returns
    /// it touches no memory any more. Requests under way and to come fail with
    /// [`RequestError::Gone`].
    fn stop_device(&self);

    /// Tells the system that the device has written to a frame. Atomic; the frame
    /// is still owned by the address space that it was found in.
    fn mark_dirty(&self, frame: u32);

    /// Allocates a host area, zeroed.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new_host_area(&self) -> Result<Self::HostArea, NoMemory>;

    /// Offset, within the page that a process maps as its doorbell, of the word
    /// that rings the doorbell on virtqueue `queue`.
    fn doorbell_offset(&self, queue: u16) -> u32;

    /// Makes a queue for waiting threads.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new_waiters(&self) -> Result<Self::Waiters, NoMemory>;

    /// Checks that all pages of `region` are memory that can be exported, and
    /// starts to watch them: from now on the platform calls
    /// [`Region::invalidate`] before the system changes or takes away any of its
    /// pages, until the watch is dropped.
    ///
    /// # Errors
    /// [`MemoryError`].
    fn watch(
        &self,
        space: &Self::Space,
        region: &Arc<Region<Self>>,
    ) -> Result<Self::Watch, MemoryError>;

    /// Says whether the process that calls now may use physical addresses (N25):
    /// whether the system lets it touch all memory anyway.
    fn may_use_physical(&self) -> bool;

    /// Holds `length` bytes at `address` in place, where no page of them moves or
    /// goes away until the pin is dropped. Returns it with the guest-physical
    /// address of the first byte.
    ///
    /// # Errors
    /// [`MemoryError`]; `NotExportable` if the pages are not physically contiguous.
    fn pin(
        &self,
        space: &Self::Space,
        address: u64,
        length: u64,
    ) -> Result<(Self::Pin, u64), MemoryError>;

    /// Brings in up to `count` pages (at most [`qnic_abi::event::MAX_FAULT_PAGES`])
    /// of `region` from page `first` on (index within the region; the range lies
    /// within it), for writing, and enters them with [`Region::install`].
    ///
    /// The frames that are handed to `install` must still be what the address
    /// space maps: `install` evaluates that question under the lock that
    /// `invalidate` takes.
    ///
    /// # Errors
    /// [`MemoryError`] if the first page could not be brought in and entered.
    fn fault_in(
        &self,
        space: &Self::Space,
        watch: &Self::Watch,
        region: &Region<Self>,
        first: usize,
        count: usize,
    ) -> Result<(), MemoryError>;

    /// Enters, with [`Region::install`], those pages of `region` that are resident
    /// and writable; brings none in. Best effort.
    fn enter_resident(&self, space: &Self::Space, watch: &Self::Watch, region: &Region<Self>);

    /// Writes a line to the system's log. Atomic.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);
}
