//! The services that the driver core needs of the system beneath: locks, wait queues, time, the
//! control queue. Address spaces belong to [`crate::MemoryManager`].
//!
//! There are four implementations: the Linux kernel module, an ordinary process
//! that speaks vhost-user (host mode), the simulator, and the fake of the unit tests.
//!
//! # Contexts
//! A method may sleep unless its documentation says *atomic*: such a method is
//! called with a spin lock held or from an interrupt, and neither sleeps nor
//! allocates.
//!
//! # Allocation
//! The core allocates only in contexts that may sleep. An allocation whose size
//! depends on a number from a user is made with `try_reserve`. Every other allocation is
//! smaller than [`SMALL_BYTES`], and a kernel's allocator must not fail for it.

use alloc::vec::Vec;
use core::fmt;

use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::datagram::MAX_DATA;
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::{verbs, SharedMemory, PAGE_SIZE};

/// Infallible allocations of the core are at most this large, in bytes.
pub const SMALL_BYTES: usize = 4096;

/// Most pages of a block ([`Platform::new_blocks`]).
pub const MAX_BLOCK_PAGES: usize = MAX_DATA / PAGE_SIZE;

/// Several blocks of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// How many blocks.
    pub blocks: usize,
    /// Pages of each.
    pub pages: usize,
}

impl Run {
    /// The number of pages of each block, over all runs.
    pub fn each(runs: &[Run]) -> impl Iterator<Item = usize> + '_ {
        let run = |run: &Run| core::iter::repeat_n(run.pages, run.blocks);
        runs.iter().flat_map(run)
    }

    /// Pages of all runs.
    pub fn pages(runs: &[Run]) -> usize {
        runs.iter().map(|run| run.blocks * run.pages).sum()
    }
}

/// There was no memory for a lock, a queue or pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory;

impl From<alloc::collections::TryReserveError> for NoMemory {
    fn from(_: alloc::collections::TryReserveError) -> Self {
        NoMemory
    }
}

/// `count` values, or [`NoMemory`] if there is no memory for one of them.
///
/// # Errors
/// [`NoMemory`].
pub fn collect<T>(
    count: usize,
    make: impl Fn() -> Result<T, NoMemory>,
) -> Result<Vec<T>, NoMemory> {
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    for _ in 0..count {
        values.push(make()?);
    }
    Ok(values)
}

/// A table of `count` entries that are all empty.
pub(crate) fn table<T>(count: usize) -> Result<Vec<Option<T>>, NoMemory> {
    let mut entries = Vec::new();
    entries.try_reserve_exact(count)?;
    entries.resize_with(count, || None);
    Ok(entries)
}

/// A lock around a value.
pub trait Lock<T>: Send + Sync + Sized {
    /// Makes one around `value`.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new(value: T) -> Result<Self, NoMemory>;

    /// Waits for the lock and runs `f` with it.
    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R;
}

/// A lock whose owner may sleep; never taken in an atomic context.
pub trait Mutex<T>: Lock<T> {
    /// Runs `f` with the lock if it is free; never sleeps to get it.
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R>;
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// The condition holds.
    Ready,
    /// The time ran out first.
    TimedOut,
    /// A signal is pending for the waiting thread.
    Interrupted,
}

/// A wait queue: threads of one process that wait for a condition.
pub trait Waiters: Send + Sync {
    /// Blocks the calling thread until `ready` returns true or `timeout_ns`
    /// nanoseconds have passed (`None`: no limit). `ready` is evaluated before the
    /// thread first sleeps and after each [`Waiters::wake_all`] that follows; a
    /// wake-up between evaluation and sleep is not lost. `ready` does not sleep.
    fn wait(&self, ready: &dyn Fn() -> bool, timeout_ns: Option<u64>) -> Waited;

    /// Makes every waiting thread evaluate its condition again, threads that wait
    /// through the system's own means (poll) included. Atomic. The caller holds no lock that a
    /// condition takes: a condition may be evaluated under a lock of the wait queue.
    fn wake_all(&self);
}

/// The host area of one process ([`qnic_abi::host_area`]): zeroed pages that the
/// device writes. The process reads them, or the driver where it is itself the process. Dropping the
/// host area frees the pages once no process has them mapped any more.
pub trait HostArea: Send + Sync {
    /// Its words.
    type Memory: SharedMemory;

    /// Addresses of the pages as the device sees them.
    fn addresses(&self) -> [u64; HOST_PAGES];

    /// The pages, one behind the other. Atomic, and so are accesses.
    fn memory(&self) -> &Self::Memory;
}

/// Memory that the device reads and writes: a page, a block of adjacent pages, or a part of either.
///
/// It is a handle: dropping the last one of a page or block frees it. All methods are atomic and
/// do not allocate. A read returns old or new bytes where the other side writes at the same time.
pub trait DeviceMemory: SharedMemory + Send + Sync + Sized + 'static {
    /// Address of the first byte as the device sees it.
    fn address(&self) -> u64;

    /// Another handle, on a part.
    ///
    /// # Panics
    /// If it is not within this one.
    #[must_use]
    fn part(&self, offset: usize, length: usize) -> Self;

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range leaves the memory.
    fn read_bytes(&self, offset: usize, bytes: &mut [u8]);

    /// Copies bytes in.
    ///
    /// # Panics
    /// If the range leaves the memory.
    fn write_bytes(&self, offset: usize, bytes: &[u8]);
}

/// Why a request to the device has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The device is gone or was stopped: it does not access memory any more.
    Gone,
    /// A signal ended the wait ([`Timeout::Interruptible`] only).
    Interrupted,
    /// No response came in time. One that comes later is dropped.
    TimedOut,
    /// Interruptible requests filled their share of the control queue all the time
    /// ([`Timeout::Interruptible`] only).
    TooMany,
}

/// How long a request waits for its response, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// The device answers at once; signals do not end the wait.
    Uninterruptible(u32),
    /// The device may answer late; a signal ends the wait. The platform keeps a
    /// part of the control queue free of such requests.
    Interruptible(u32),
}

/// Why memory cannot be exported, or a page not be faulted in or installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryError {
    /// Some of it is not mapped, or does not permit the access that is needed.
    NotMapped,
    /// Some of it is memory that the device cannot reach.
    NotExportable,
    /// Some of it is beyond what the page table of the NIC covers.
    NotCovered,
    /// Some of it is kept secret from the kernel.
    Secret,
    /// Some of it is storage that is mapped directly.
    Dax,
    /// Some of it is served by a program (userfaultfd).
    UserFault,
    /// Some of it belongs to a device or to the kernel.
    Device,
    /// The process cannot read some of it.
    NotReadable,
    /// The process cannot write some of it.
    NotWritable,
    /// The address space is gone: its process ended.
    SpaceGone,
    /// No memory.
    NoMemory,
    /// The frames are not current any more: look them up again.
    Stale,
    /// The NIC holds the frame or the whole row of the page table, or the pages
    /// changed too often: try again.
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

/// What a processor would do next instead of serving datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spare {
    /// Other work of the system.
    Work,
    /// The one runnable thread continues.
    Thread,
    /// The processor halts, and only an event wakes it.
    Halt,
}

/// The system beneath the driver core.
pub trait Platform: Send + Sync + Sized + 'static {
    /// The SRAM, mapped. It stays mapped (perhaps reading as anything) until the
    /// platform is dropped.
    type Sram: SharedMemory + Send + Sync;
    /// Sleeping lock.
    type Mutex<T: Send>: Mutex<T>;
    /// Lock for a few instructions, also from interrupts: its owner neither sleeps nor allocates,
    /// and is not interrupted by other code that takes this lock. Its `with` is atomic.
    type SpinLock<T: Send>: Lock<T>;
    /// The host area of one process: pages that the device writes.
    type HostArea: HostArea;
    /// Wait queue of one process.
    type Waiters: Waiters;
    /// Memory for datagrams.
    type Memory: DeviceMemory;

    /// The SRAM.
    fn sram(&self) -> &Self::Sram;

    /// Monotonic time in nanoseconds. Atomic.
    fn now_ns(&self) -> u64;

    /// Yields the processor between two polls of an SRAM word that the NIC changes
    /// without an event: the NIC holds a page for one copy, and may need this
    /// processor to end it. May sleep. The caller polls for a bounded time and
    /// relies on what it reads, not on the time that passes.
    fn yield_processor(&self);

    /// Runs `run`, which is atomic, on this processor, and runs no other thread on it meanwhile,
    /// where the platform can guarantee that.
    fn undisturbed(&self, run: &mut dyn FnMut()) {
        run();
    }

    /// Returns true if the thread may go on polling what the NIC changes: no other task wants
    /// the processor, and no signal is pending for the thread. Atomic. Always false on platforms that
    /// may preempt a thread at any time.
    fn may_look(&self) -> bool {
        false
    }

    /// What the processor would do instead of serving datagrams at the platform's request
    /// ([`Platform::schedule_datagrams`]). Atomic, and asked there only.
    fn spare(&self) -> Spare {
        Spare::Work
    }

    /// An unpredictable random number. Atomic.
    fn random(&self) -> u64;

    /// One more than the highest physical frame number that can be exported.
    fn frames(&self) -> u64;

    /// Puts a request on the control queue and waits for its response. Requests of
    /// several threads are in flight at the same time; responses come in any order.
    ///
    /// # Errors
    /// See [`RequestError`]. After [`RequestError::Interrupted`] and
    /// [`RequestError::TimedOut`] the platform keeps the buffers until the device
    /// returns them.
    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError>;

    /// Puts a request on the control queue and drops its response. Waits only while
    /// the queue is full, at most `timeout_ms` milliseconds.
    ///
    /// # Errors
    /// [`RequestError::Gone`]; [`RequestError::TimedOut`] if there was no room.
    fn post(&self, request: &[u8; REQUEST_BYTES], timeout_ms: u32) -> Result<(), RequestError>;

    /// Stops a device that misbehaves: when the call returns, the device accesses
    /// no memory any more. Requests in flight and later ones fail with
    /// [`RequestError::Gone`].
    fn stop_device(&self);

    /// Marks a frame as dirty, because the device has written to it. Atomic; the address space in
    /// which the frame was found still owns it.
    fn mark_dirty(&self, frame: u32);

    /// Allocates a host area, zeroed.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new_host_area(&self) -> Result<Self::HostArea, NoMemory>;

    /// Allocates a page for datagrams, zeroed.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new_page(&self) -> Result<Self::Memory, NoMemory>;

    /// Allocates adjacent blocks that a process will map (S1), of the sizes that `runs` gives. The
    /// pages of a block are contiguous for the device; their number is a power of two, up to
    /// [`MAX_BLOCK_PAGES`]. All are zeroed, and charged to the calling process where the system does
    /// that.
    ///
    /// # Errors
    /// [`NoMemory`]
    fn new_blocks(&self, runs: &[Run]) -> Result<Vec<Self::Memory>, NoMemory>;

    /// Rings the doorbell on virtqueue `queue`. Atomic; the core calls it only while the device
    /// is there.
    fn ring_doorbell(&self, queue: u16);

    /// Makes the platform call [`crate::Driver::serve_datagrams`] at `at_ns` of [`Platform::now_ns`] or
    /// soon after, at once if that has passed, but not from within this call. A later call replaces
    /// an earlier one. Atomic.
    fn schedule_datagrams(&self, at_ns: u64);

    /// Hands up an event of an object of verbs, whose `owner` the platform has named when it was made. Atomic:
    /// it is called with a lock held, and calls the core in no way. No call comes when the object has been
    /// destroyed.
    fn verbs_event(&self, owner: u64, event: verbs::Event) {
        let _ = (owner, event);
    }

    /// The port of the NIC is up or down now. It is up when the driver starts. Atomic.
    fn verbs_port(&self, is_up: bool) {
        let _ = is_up;
    }

    /// Offset, within the page that a process maps as its doorbell, of the word
    /// that rings the doorbell on virtqueue `queue`.
    fn doorbell_offset(&self, queue: u16) -> u32;

    /// Makes a wait queue.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn new_waiters(&self) -> Result<Self::Waiters, NoMemory>;

    /// Writes a line to the system's log. Atomic.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);
}
