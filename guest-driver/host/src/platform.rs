//! This process as the platform of the driver core.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex as StdMutex, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::page_table::PageAccess;
use qnic_abi::shared::Ordering;
use qnic_abi::PAGE_SIZE;
use qnic_driver::platform::{
    self, DeviceMemory, Level, MemoryError, Mutex, NoMemory, RequestError, Run, Timeout, Waited,
    Waiters,
};
use qnic_driver::{MemoryManager, Platform, Region, Resident};
use qnic_shared::region::SharedRegion;
use rustix::event::{eventfd, EventfdFlags};

use crate::arena::Arena;
use crate::control::Control;
use crate::device_memory::HostMemory;
use crate::error::HostError;
use crate::timer::Timer;
use crate::transport::Transport;

/// This process as the driver core sees it.
pub struct HostPlatform {
    pub(crate) arena: Arc<Arena>,
    sram: SharedRegion,
    control: Arc<Control>,
    transport: Arc<dyn Transport>,
    /// Expires when datagrams are to be served.
    timer: Arc<Timer>,
    started: Instant,
    /// Processes may use physical addresses (N25). Relaxed: it orders nothing.
    pub(crate) physical: AtomicBool,
    /// Regions that are exported now, for [`HostPlatform::evict`].
    regions: Arc<Regions>,
}

type Regions = StdMutex<Vec<Weak<Region<HostPlatform>>>>;

impl HostPlatform {
    pub(crate) fn new(
        arena: Arc<Arena>,
        sram: SharedRegion,
        control: Arc<Control>,
        transport: Arc<dyn Transport>,
        timer: Arc<Timer>,
    ) -> Self {
        HostPlatform {
            arena,
            sram,
            control,
            transport,
            timer,
            started: Instant::now(),
            physical: AtomicBool::new(false),
            regions: Arc::default(),
        }
    }

    /// Takes the pages that overlap `start..end` out of the NIC's page table, as a
    /// kernel does before it reclaims them; the NIC's next access faults (N8, N13).
    pub(crate) fn evict(&self, start: u64, end: u64) {
        let regions = lock(&self.regions).clone();
        for region in regions.iter().filter_map(Weak::upgrade) {
            region.invalidate(start, end, true, || ());
        }
    }
}

fn lock<T>(mutex: &StdMutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks of the driver core, sleeping ones and spinning ones alike.
pub struct Lock<T>(StdMutex<T>);

impl<T: Send> platform::Lock<T> for Lock<T> {
    fn new(value: T) -> Result<Self, NoMemory> {
        Ok(Lock(StdMutex::new(value)))
    }

    fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut lock(&self.0))
    }
}

impl<T: Send> Mutex<T> for Lock<T> {
    fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self.0.try_lock() {
            Ok(mut value) => Some(f(&mut value)),
            Err(TryLockError::Poisoned(value)) => Some(f(&mut value.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A wait queue; the lock makes "evaluate, then sleep" and "change, then wake"
/// exclude each other.
#[derive(Default)]
pub struct HostWaiters {
    lock: StdMutex<()>,
    woken: Condvar,
    /// An eventfd for threads that poll; made on first use, and readable from the next
    /// [`Waiters::wake_all`] on.
    event: OnceLock<OwnedFd>,
}

impl HostWaiters {
    /// The descriptor to poll; readable at once if `readable` returns true.
    ///
    /// # Errors
    /// [`HostError::Descriptor`]
    pub(crate) fn event(&self, readable: impl Fn() -> bool) -> Result<BorrowedFd<'_>, HostError> {
        let _guard = lock(&self.lock);
        if let Some(event) = self.event.get() {
            return Ok(event.as_fd());
        }
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        if readable() {
            rustix::io::write(&event, &1u64.to_ne_bytes())?;
        }
        Ok(self.event.get_or_init(|| event).as_fd())
    }

    /// Makes the descriptor unreadable; the caller checks its condition afterwards.
    pub(crate) fn clear_event(&self) {
        if let Some(event) = self.event.get() {
            // It fails if the descriptor is not readable.
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }
}

impl Waiters for HostWaiters {
    fn wait(&self, ready: &dyn Fn() -> bool, timeout_ns: Option<u64>) -> Waited {
        let guard = lock(&self.lock);
        let limit = Duration::from_nanos(timeout_ns.unwrap_or(u64::MAX));
        let waited = self.woken.wait_timeout_while(guard, limit, |()| !ready());
        let (_guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            Waited::TimedOut
        } else {
            Waited::Ready
        }
    }

    fn wake_all(&self) {
        let _guard = lock(&self.lock);
        self.woken.notify_all();
        if let Some(event) = self.event.get() {
            // A full counter is readable too.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

/// The entry of a region in the list of regions: pages change here only when a test
/// evicts them.
pub struct Notifier(Arc<Regions>);

impl Drop for Notifier {
    fn drop(&mut self) {
        // The region itself may exist a little longer; it is closed by then, and
        // an invalidation of it does nothing.
        lock(&self.0).retain(|region| region.strong_count() > 0);
    }
}

impl Platform for HostPlatform {
    type Sram = SharedRegion;
    type Mutex<T: Send> = Lock<T>;
    type SpinLock<T: Send> = Lock<T>;
    type HostArea = HostMemory;
    type Waiters = HostWaiters;
    type Memory = HostMemory;

    fn sram(&self) -> &SharedRegion {
        &self.sram
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn yield_processor(&self) {
        std::thread::yield_now();
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        // Requests of up to 256 bytes are answered whole or, before the system
        // has entropy, not at all.
        while rustix::rand::getrandom(&mut bytes, flags) != Ok(bytes.len()) {}
        u64::from_ne_bytes(bytes)
    }

    fn frames(&self) -> u64 {
        self.arena.frames()
    }

    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        self.control.request(request, timeout)
    }

    fn post(&self, request: &[u8; REQUEST_BYTES], timeout_ms: u32) -> Result<(), RequestError> {
        self.control.post(request, timeout_ms)
    }

    fn stop_device(&self) {
        self.control.disconnect();
    }

    /// The memory of a memfd is written to no file.
    fn mark_dirty(&self, _frame: u32) {}

    fn new_host_area(&self) -> Result<HostMemory, NoMemory> {
        HostMemory::allocate(&self.arena, HOST_PAGES * PAGE_SIZE)
    }

    fn new_page(&self) -> Result<HostMemory, NoMemory> {
        HostMemory::allocate(&self.arena, PAGE_SIZE)
    }

    /// One range of the arena, which is mapped already.
    fn new_blocks(&self, runs: &[Run]) -> Result<Vec<HostMemory>, NoMemory> {
        let whole = HostMemory::allocate_blocks(&self.arena, runs)?;
        let mut end = 0;
        let block = |pages| {
            let start = end;
            end += pages * PAGE_SIZE;
            whole.part(start, pages * PAGE_SIZE)
        };
        Ok(Run::each(runs).map(block).collect())
    }

    fn ring_doorbell(&self, queue: u16) {
        self.transport.notify(queue.into());
    }

    fn schedule_datagrams(&self, at_ns: u64) {
        self.timer.set(at_ns.saturating_sub(self.now_ns()));
    }

    /// The process rings by a call ([`crate::HostProcess::ring_doorbell`]), not by a word.
    fn doorbell_offset(&self, _queue: u16) -> u32 {
        0
    }

    fn new_waiters(&self) -> Result<HostWaiters, NoMemory> {
        Ok(HostWaiters::default())
    }

    fn log(&self, level: Level, message: std::fmt::Arguments<'_>) {
        match level {
            Level::Error => log::error!("{message}"),
            Level::Warning => log::warn!("{message}"),
            Level::Info => log::info!("{message}"),
        }
    }
}

impl MemoryManager for HostPlatform {
    type AddressSpace = ();
    type Notifier = Notifier;
    type Pin = ();

    /// The arena can be read and written.
    fn check(
        &self,
        (): &(),
        region: &Region<Self>,
        _access: PageAccess,
    ) -> Result<(), MemoryError> {
        let length = (region.page_count() as u64).checked_mul(PAGE_SIZE as u64);
        let length = length.ok_or(MemoryError::NotExportable)?;
        match self.arena.contains(region.address(), length) {
            true => Ok(()),
            false => Err(MemoryError::NotExportable),
        }
    }

    fn register_notifier(
        &self,
        (): &(),
        region: &Arc<Region<Self>>,
    ) -> Result<Notifier, MemoryError> {
        lock(&self.regions).push(Arc::downgrade(region));
        Ok(Notifier(self.regions.clone()))
    }

    fn fault_in(
        &self,
        (): &(),
        _: &Notifier,
        region: &Region<Self>,
        pages: Range<usize>,
        _access: PageAccess,
    ) -> Result<(), MemoryError> {
        let first = pages.start;
        let addresses = pages.map(|page| region.address() + (page * PAGE_SIZE) as u64);
        let resident = |address| {
            let frame = self.arena.frame(address)?;
            let access = PageAccess::Write;
            Some(Resident { frame, access })
        };
        let residents: Vec<_> = addresses.map(resident).collect();
        // A page of the arena always has the same frame.
        region.install(first, &residents, || true)
    }

    fn install_resident(&self, (): &(), notifier: &Notifier, region: &Region<Self>) {
        // Best effort: other pages are faulted in later.
        let pages = 0..region.page_count();
        let _ = self.fault_in(&(), notifier, region, pages, PageAccess::Read);
    }

    fn may_use_physical(&self) -> bool {
        self.physical.load(Ordering::Relaxed)
    }

    /// Pages of the arena never move; the process that exports one keeps its buffer.
    fn pin(&self, (): &(), address: u64, length: u64) -> Result<((), u64), MemoryError> {
        let physical = self.arena.contiguous(address, length);
        physical.map_or(Err(MemoryError::NotExportable), |address| Ok(((), address)))
    }
}
