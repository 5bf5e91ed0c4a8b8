//! A platform for unit tests: SRAM in a vector, a NIC that answers requests from
//! a small model, an address space that the test maps and unmaps, a clock that
//! only moves when somebody sleeps.
//!
//! It also checks the core's promises about contexts: nothing sleeps, allocates
//! locks or calls the device under a spin lock, no two spin locks are held at
//! once, and the device is not called with a region's lock held.

mod memory;
mod nic;
mod sync;

use core::fmt;
use std::string::String;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use qnic_abi::attach::{DeviceConfig, CONFIG_MAGIC, CONFIG_SIZE};
use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::header::Geometry;
use qnic_abi::host_area::HOST_PAGES;
use qnic_abi::{uapi, NodeId, SharedMemory, ABI_VERSION};
use zerocopy::IntoBytes;

pub(crate) use memory::{Kernel, Pin, Watch, PAGE};
pub(crate) use nic::Nic;
pub(crate) use sync::{SleepLock, Spin, Waiters};

use crate::platform::{HostArea, Level, MemoryError, NoMemory, Patience, Platform, RequestError};
use crate::{check_config, Driver, Process, Region, StartError};

/// Geometry of the fake NIC: 64 frames, 4 windows.
pub(crate) fn geometry() -> Geometry {
    Geometry::new(NodeId(7), 64, 4, 2).unwrap()
}

/// SRAM in a vector.
#[derive(Clone)]
pub(crate) struct Sram(Arc<Mutex<Vec<u8>>>);

impl Sram {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Sram(Arc::new(Mutex::new(
            std::vec![0; geometry.sram_bytes as usize],
        )))
    }

    fn load<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert_eq!(offset % N, 0);
        self.0.lock().unwrap()[offset..offset + N]
            .try_into()
            .unwrap()
    }

    fn store<const N: usize>(&self, offset: usize, bytes: [u8; N]) {
        assert_eq!(offset % N, 0);
        self.0.lock().unwrap()[offset..offset + N].copy_from_slice(&bytes);
    }
}

impl SharedMemory for Sram {
    fn size(&self) -> usize {
        self.0.lock().unwrap().len()
    }
    fn load_u32(&self, offset: usize, _: Ordering) -> u32 {
        u32::from_le_bytes(self.load(offset))
    }
    fn store_u32(&self, offset: usize, value: u32, _: Ordering) {
        self.store(offset, value.to_le_bytes());
    }
    fn load_u64(&self, offset: usize, _: Ordering) -> u64 {
        u64::from_le_bytes(self.load(offset))
    }
    fn store_u64(&self, offset: usize, value: u64, _: Ordering) {
        self.store(offset, value.to_le_bytes());
    }
    fn fence(&self) {}
}

/// Pages of a process as the device sees them.
pub(crate) struct Area {
    pub(crate) addresses: [u64; HOST_PAGES],
    pub(crate) generation: AtomicU64,
}

impl HostArea for Area {
    fn addresses(&self) -> [u64; HOST_PAGES] {
        self.addresses
    }

    fn store_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }
}

/// The fake platform; a clone is another handle on the same one.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) sram: Sram,
    pub(crate) nic: Arc<Mutex<Nic>>,
    pub(crate) kernel: Kernel,
    clock_ns: Arc<AtomicU64>,
    tick_ns: Arc<AtomicU64>,
    random: Arc<AtomicU64>,
    log: Arc<Mutex<Vec<String>>>,
    physical: Arc<AtomicBool>,
    /// Runs whenever the driver gives way: what the rest of the world does meanwhile.
    on_give_way: Arc<Mutex<Option<Hook>>>,
}

/// Time that passes while the driver gives way.
const GIVE_WAY_NS: u64 = 50_000;

type Hook = std::boxed::Box<dyn FnMut(u64) + Send>;

impl Fake {
    /// A platform whose SRAM carries the header of [`geometry`].
    pub(crate) fn new() -> Self {
        let geometry = geometry();
        let sram = Sram::new(&geometry);
        let header = geometry.header();
        for (index, word) in header.as_bytes().chunks(8).enumerate() {
            sram.store::<8>(index * 8, word.try_into().unwrap());
        }
        Fake {
            sram,
            nic: Arc::default(),
            kernel: Kernel::default(),
            clock_ns: Arc::default(),
            tick_ns: Arc::default(),
            random: Arc::new(AtomicU64::new(1)),
            log: Arc::default(),
            physical: Arc::default(),
            on_give_way: Arc::default(),
        }
    }

    pub(crate) fn start(&self) -> Result<Arc<Driver<Fake>>, StartError> {
        Driver::start(self.clone(), &check_config(&config_bytes()).unwrap())
    }

    pub(crate) fn nic(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// From now on processes may use physical addresses.
    pub(crate) fn allow_physical(&self) {
        self.physical.store(true, Ordering::Relaxed);
    }

    /// From now on so many nanoseconds pass between two looks at the clock.
    pub(crate) fn tick_on_look(&self, nanoseconds: u64) {
        self.tick_ns.store(nanoseconds, Ordering::Relaxed);
    }

    /// Runs `hook` with the time whenever the driver gives way.
    pub(crate) fn on_give_way(&self, hook: impl FnMut(u64) + Send + 'static) {
        *self.on_give_way.lock().unwrap() = Some(std::boxed::Box::new(hook));
    }
}

/// The configuration space of the fake device.
pub(crate) fn config_bytes() -> [u8; CONFIG_SIZE] {
    let geometry = geometry();
    let config = DeviceConfig {
        magic: CONFIG_MAGIC.into(),
        abi_version: ABI_VERSION.into(),
        node: geometry.node.0.into(),
        reserved0: 0.into(),
        sram_bytes: geometry.sram_bytes.into(),
        doorbells: geometry.doorbells.into(),
        windows: geometry.windows.into(),
        reserved1: [0.into(); 4],
    };
    config.as_bytes().try_into().unwrap()
}

/// Registers a process on any port.
pub(crate) fn register(driver: &Arc<Driver<Fake>>) -> Process<Fake> {
    let mut call = uapi::Register::default();
    driver.register((), 100, &mut call).unwrap().unwrap()
}

impl Platform for Fake {
    type Sram = Sram;
    type Mutex<T: Send> = SleepLock<T>;
    type SpinLock<T: Send> = Spin<T>;
    type Space = ();
    type Watch = Watch;
    type Pin = Pin;
    type HostArea = Area;
    type Waiters = Waiters;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn now_ns(&self) -> u64 {
        let tick = self.tick_ns.load(Ordering::Relaxed);
        self.clock_ns.fetch_add(tick, Ordering::Relaxed)
    }

    fn give_way(&self) {
        sync::assert_may_sleep();
        let now = self.clock_ns.fetch_add(GIVE_WAY_NS, Ordering::Relaxed) + GIVE_WAY_NS;
        if let Some(hook) = self.on_give_way.lock().unwrap().as_mut() {
            hook(now);
        }
    }

    fn random(&self) -> u64 {
        self.random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn frames(&self) -> u64 {
        geometry().frames
    }

    fn request(
        &self,
        request: &[u8; REQUEST_BYTES],
        patience: Patience,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        sync::assert_may_call_device();
        self.nic().request(request, patience)
    }

    fn post(&self, request: &[u8; REQUEST_BYTES], limit_ms: u32) -> Result<(), RequestError> {
        sync::assert_may_call_device();
        let mut nic = self.nic();
        nic.posted += 1;
        let reply = nic.request(request, Patience::Bounded(limit_ms));
        reply.map(drop)
    }

    fn stop_device(&self) {
        sync::assert_may_sleep();
        self.nic().stopped = true;
    }

    fn mark_dirty(&self, frame: u32) {
        self.kernel.mark_dirty(frame);
    }

    fn new_host_area(&self) -> Result<Area, NoMemory> {
        sync::assert_may_sleep();
        let first = self.random() & 0xffff;
        Ok(Area {
            addresses: core::array::from_fn(|page| (first + page as u64) * PAGE),
            generation: AtomicU64::new(0),
        })
    }

    fn doorbell_offset(&self, queue: u16) -> u32 {
        u32::from(queue) * 4
    }

    fn new_waiters(&self) -> Result<Waiters, NoMemory> {
        Ok(Waiters::default())
    }

    fn watch(&self, _: &(), region: &Arc<Region<Self>>) -> Result<Watch, MemoryError> {
        sync::assert_may_sleep();
        self.kernel.watch(region)
    }

    fn may_use_physical(&self) -> bool {
        self.physical.load(Ordering::Relaxed)
    }

    fn pin(&self, (): &(), address: u64, length: u64) -> Result<(Pin, u64), MemoryError> {
        sync::assert_may_sleep();
        self.kernel.pin(address, length)
    }

    fn fault_in(
        &self,
        _: &(),
        _: &Watch,
        region: &Region<Self>,
        first: usize,
        count: usize,
    ) -> Result<(), MemoryError> {
        sync::assert_may_sleep();
        self.kernel.fault_in(region, first, count)
    }

    fn enter_resident(&self, _: &(), _: &Watch, region: &Region<Self>) {
        sync::assert_may_sleep();
        self.kernel.enter_resident(region);
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let line = std::format!("{level:?}: {message}");
        self.log.lock().unwrap().push(line);
    }
}
