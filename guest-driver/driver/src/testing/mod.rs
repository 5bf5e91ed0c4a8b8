//! A platform for unit tests: simulated SRAM, a NIC that answers requests from a
//! small model, an address space that the test maps and unmaps, a clock that only
//! moves when a thread sleeps; and calls that many tests make.
//!
//! It also checks the core's promises about contexts: under a spin lock the core does not sleep,
//! allocate locks or call the device; no two spin locks are held at
//! once; and the device is not called with a region's lock held.

mod datagrams;
mod memory;
mod nic;
mod pages;
mod sync;
mod verbs_tables;

use core::fmt;
use std::collections::BTreeMap;
use std::string::String;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::vec::Vec;

use qnic_abi::attach::{DeviceConfig, CONFIG_MAGIC, CONFIG_SIZE};
use qnic_abi::control::{REPLY_BYTES, REQUEST_BYTES};
use qnic_abi::counters::CounterSource;
use qnic_abi::event::{Event, Kind};
use qnic_abi::header::{Geometry, SramHeader};
use qnic_abi::{uapi, verbs, Access, NodeId, SharedMemory, Status, VniId, ABI_VERSION};
use qnic_nic::testing::Sram;

pub(crate) use datagrams::{run, DatagramNic, Packet};
pub(crate) use memory::{Kernel, PAGE};
pub(crate) use nic::Nic;
pub(crate) use pages::{Area, FakeMemory, Pages};
pub(crate) use sync::{SleepLock, Spin, Waiters};

use crate::platform::{Level, NoMemory, Platform, RequestError, Run, Spare, Timeout};
use crate::{check_config, CallError, Driver, Handled, Process, Region, StartError};

/// Geometry of the fake NIC: 64 frames, 4 windows.
pub(crate) fn geometry() -> Geometry {
    Geometry::new(NodeId(7), 64, 4, 2).unwrap()
}

/// The fake platform; a clone is another handle on the same one.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) sram: Arc<Sram>,
    pub(crate) nic: Arc<Mutex<Nic>>,
    pub(crate) kernel: Kernel,
    clock_ns: Arc<AtomicU64>,
    /// Time that passes between two readings of the clock.
    pub(crate) tick_ns: Arc<AtomicU64>,
    random: Arc<AtomicU64>,
    log: Arc<Mutex<Vec<String>>>,
    /// Pages for the device.
    pub(crate) pages: Pages,
    /// When the driver wants its datagrams served.
    scheduled: Arc<Mutex<Option<u64>>>,
    /// How often the driver has rung its doorbell.
    pub(crate) rung: Arc<AtomicU64>,
    /// Events of verbs that were handed up, with the owners.
    pub(crate) told: Arc<Mutex<Vec<(u64, verbs::Event)>>>,
    /// What was said of the port: up or down.
    pub(crate) ports: Arc<Mutex<Vec<bool>>>,
    /// Processes may use physical addresses.
    pub(crate) physical: Arc<AtomicBool>,
    /// Runs whenever the driver yields, in place of other threads.
    on_yield: Arc<Mutex<Option<Hook>>>,
    /// Tells what the processor would do instead of serving.
    spare: Arc<Mutex<Option<SpareHook>>>,
}

/// Time that passes while the driver yields.
const YIELD_NS: u64 = 50_000;

type Hook = std::boxed::Box<dyn FnMut(u64) + Send>;

type SpareHook = std::boxed::Box<dyn FnMut() -> Spare + Send>;

impl Fake {
    /// A platform whose SRAM carries the header of [`geometry`].
    pub(crate) fn new() -> Self {
        let geometry = geometry();
        let sram = Sram::new(geometry.sram_bytes as usize);
        let header: [u64; size_of::<SramHeader>() / 8] = zerocopy::transmute!(geometry.header());
        sram.write_words(0, &header);
        Fake {
            sram: Arc::new(sram),
            nic: Arc::default(),
            kernel: Kernel::default(),
            clock_ns: Arc::default(),
            tick_ns: Arc::default(),
            random: Arc::new(AtomicU64::new(1)),
            log: Arc::default(),
            pages: Pages::default(),
            scheduled: Arc::default(),
            rung: Arc::default(),
            told: Arc::default(),
            ports: Arc::default(),
            physical: Arc::default(),
            on_yield: Arc::default(),
            spare: Arc::default(),
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

    /// Returns true if the datagrams are to be served by now.
    pub(crate) fn take_scheduled(&self) -> bool {
        let now = self.now_ns();
        let mut scheduled = self.scheduled.lock().unwrap();
        scheduled.take_if(|at| *at <= now).is_some()
    }

    /// When the datagrams are to be served next.
    pub(crate) fn scheduled(&self) -> Option<u64> {
        *self.scheduled.lock().unwrap()
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, ns: u64) {
        self.clock_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Runs `hook` with the time whenever the driver yields.
    pub(crate) fn on_yield(&self, hook: impl FnMut(u64) + Send + 'static) {
        *self.on_yield.lock().unwrap() = Some(std::boxed::Box::new(hook));
    }

    /// Asks `hook` what the processor would do instead of serving.
    pub(crate) fn on_spare(&self, hook: impl FnMut() -> Spare + Send + 'static) {
        *self.spare.lock().unwrap() = Some(std::boxed::Box::new(hook));
    }
}

/// The configuration space of the fake device.
pub(crate) fn config_bytes() -> [u8; CONFIG_SIZE] {
    let geometry = geometry();
    let config = DeviceConfig {
        magic: CONFIG_MAGIC.into(),
        abi_version: ABI_VERSION.into(),
        node: geometry.node.0.into(),
        sram_bytes: geometry.sram_bytes.into(),
        doorbells: geometry.doorbells.into(),
        windows: geometry.windows.into(),
        ..Default::default()
    };
    zerocopy::transmute!(config)
}

/// Registers a process on any port.
pub(crate) fn register(driver: &Arc<Driver<Fake>>) -> Process<Fake> {
    let mut call = uapi::Register::default();
    driver.register((), 100, &mut call).unwrap().unwrap()
}

/// A call to export `length` bytes at `address` with all rights.
pub(crate) fn export_call(name: u64, address: u64, length: u64) -> uapi::Export {
    uapi::Export {
        access: Access::all().bits().into(),
        name: name.into(),
        address: address.into(),
        length: length.into(),
        ..Default::default()
    }
}

/// Exports a range; the status is in the result.
pub(crate) fn export(
    process: &Process<Fake>,
    name: u64,
    address: u64,
    length: u64,
) -> Result<uapi::Export, CallError> {
    let mut call = export_call(name, address, length);
    process.export(&mut call).map(|()| call)
}

/// A platform, its driver, and a process.
pub(crate) fn running() -> (Fake, Arc<Driver<Fake>>, Process<Fake>) {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    let process = register(&driver);
    (fake, driver, process)
}

/// The same, with a process that exports pages 16 to `16 + count`, resident or not.
pub(crate) fn exporter(count: u64, resident: bool) -> (Fake, Arc<Driver<Fake>>, Process<Fake>) {
    let (fake, driver, process) = running();
    fake.kernel.map(16, count, resident);
    let done = export(&process, 0, 16 * PAGE, count * PAGE).unwrap();
    assert_eq!(done.status.get(), Status::Ok.code());
    (fake, driver, process)
}

/// Gives the driver an event.
pub(crate) fn event(
    driver: &Driver<Fake>,
    kind: Kind,
    vni: VniId,
    address: u64,
    pages: u32,
) -> Handled {
    let event = Event {
        kind: (kind as u32).into(),
        vni: vni.0.into(),
        address: address.into(),
        pages: pages.into(),
        ..Default::default()
    };
    driver.handle_event(&zerocopy::transmute!(event))
}

/// Pages in the page table.
pub(crate) fn mapped(process: &Process<Fake>) -> u64 {
    process.driver.device.counters.pages_mapped.get()
}

/// The region that holds a page, and the page's index in it.
pub(crate) fn region(process: &Process<Fake>, page: u64) -> Option<(Arc<Region<Fake>>, usize)> {
    let (exported, index) = process.state.exports.find(page)?;
    Some((exported.region.clone(), index))
}

impl Platform for Fake {
    type Sram = Sram;
    type Mutex<T: Send> = SleepLock<T>;
    type SpinLock<T: Send> = Spin<T>;
    type HostArea = Area;
    type Waiters = Waiters;
    type Memory = FakeMemory;

    fn sram(&self) -> &Sram {
        &self.sram
    }

    fn now_ns(&self) -> u64 {
        let tick = self.tick_ns.load(Ordering::Relaxed);
        self.clock_ns.fetch_add(tick, Ordering::Relaxed)
    }

    fn spare(&self) -> Spare {
        match &mut *self.spare.lock().unwrap() {
            Some(hook) => hook(),
            None => Spare::Work,
        }
    }

    fn yield_processor(&self) {
        sync::assert_may_sleep();
        let now = self.clock_ns.fetch_add(YIELD_NS, Ordering::Relaxed) + YIELD_NS;
        if let Some(hook) = self.on_yield.lock().unwrap().as_mut() {
            hook(now);
        }
    }

    fn verbs_event(&self, owner: u64, event: verbs::Event) {
        self.told.lock().unwrap().push((owner, event));
    }

    fn verbs_port(&self, is_up: bool) {
        self.ports.lock().unwrap().push(is_up);
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
        timeout: Timeout,
    ) -> Result<[u8; REPLY_BYTES], RequestError> {
        sync::assert_may_call_device();
        self.nic().request(request, timeout)
    }

    fn post(&self, request: &[u8; REQUEST_BYTES], timeout_ms: u32) -> Result<(), RequestError> {
        sync::assert_may_call_device();
        let mut nic = self.nic();
        nic.posted += 1;
        let reply = nic.request(request, Timeout::Uninterruptible(timeout_ms));
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
        Ok(Area::new(&self.pages))
    }

    fn new_page(&self) -> Result<FakeMemory, NoMemory> {
        sync::assert_may_sleep();
        Ok(self.pages.allocate())
    }

    fn new_blocks(&self, runs: &[Run]) -> Result<Vec<FakeMemory>, NoMemory> {
        sync::assert_may_sleep();
        let block = |pages| self.pages.allocate_block(pages);
        Ok(Run::each(runs).map(block).collect())
    }

    fn ring_doorbell(&self, _: u16) {
        self.rung.fetch_add(1, Ordering::Relaxed);
    }

    fn schedule_datagrams(&self, at_ns: u64) {
        *self.scheduled.lock().unwrap() = Some(at_ns);
    }

    fn doorbell_offset(&self, queue: u16) -> u32 {
        u32::from(queue) * 4
    }

    fn new_waiters(&self) -> Result<Waiters, NoMemory> {
        Ok(Waiters::default())
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let line = std::format!("{level:?}: {message}");
        self.log.lock().unwrap().push(line);
    }
}

/// All that the driver, its datagram layer or the NIC has counted.
pub(crate) fn counted(driver: &Driver<Fake>, source: CounterSource) -> BTreeMap<String, u64> {
    uapi::Counters::read(source, |call| driver.counters(call)).unwrap()
}
