//! How the driver of one NIC starts and ends, and its report.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::AtomicU32;

use qnic_abi::control::{Opcode, PathInfo, Query, QueryPath};
use qnic_abi::counters::{CounterPage, CounterSource};
use qnic_abi::event::Event;
use qnic_abi::header::Geometry;
use qnic_abi::{uapi, Status, VniId, ABI_VERSION};

use crate::datagram::Engine;
use crate::device::control_queue::Request;
use crate::device::{Config, Device};
use crate::error::{CallError, StartError};
use crate::memory::page_table::PageTable;
use crate::memory::MemoryManager;
use crate::platform::{Level, Lock, NoMemory};
use crate::process::slots::Slots;
use crate::verbs::Table;

/// Faults of the NIC that wait for a worker (N13); more stay in the event queue.
pub(super) const QUEUE_FAULTS: usize = 1024;

/// The driver of one NIC: the state that all its processes share.
pub struct Driver<P: MemoryManager> {
    pub(crate) device: Arc<Device<P>>,
    pub(super) page_table: Arc<PageTable<P>>,
    pub(super) slots: P::SpinLock<Slots<P>>,
    /// Faults in order of arrival; allocated once.
    pub(super) faults: P::SpinLock<VecDeque<Event>>,
    /// Datagrams, once a port was bound.
    pub(super) engine: P::SpinLock<Option<Arc<Engine<P>>>>,
    /// Held while a datagram port is bound.
    pub(super) binding: P::Mutex<()>,
    /// Objects of verbs.
    pub(super) verbs: Arc<Table<P>>,
    /// Input frames of all pools. Relaxed: a count that orders nothing.
    pub(crate) pool_frames: AtomicU32,
}

impl<P: MemoryManager> Driver<P> {
    /// Waits for the SRAM, checks it, and sends Hello to the NIC.
    ///
    /// The platform must deliver control responses by now. The wait for the SRAM is
    /// over before any other step can fail, so the platform may reset the device
    /// after an error.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(platform: P, config: &Config) -> Result<Arc<Self>, StartError> {
        let device = Device::start(platform, config)?;
        let geometry = device.geometry;
        let mut faults = VecDeque::new();
        faults
            .try_reserve_exact(QUEUE_FAULTS)
            .map_err(NoMemory::from)?;
        let driver = Arc::new(Driver {
            slots: P::SpinLock::new(Slots::new(geometry.windows)?)?,
            faults: P::SpinLock::new(faults)?,
            engine: P::SpinLock::new(None)?,
            binding: P::Mutex::new(())?,
            verbs: Arc::new(Table::new()?),
            pool_frames: AtomicU32::new(0),
            page_table: PageTable::new(device.clone())?,
            device,
        });
        driver.device.platform.log(
            Level::Info,
            format_args!(
                "{}: {} windows, {} doorbells, {} frames, {} MiB SRAM",
                geometry.node,
                geometry.windows,
                geometry.doorbells,
                geometry.frames,
                geometry.sram_bytes >> 20
            ),
        );
        driver.print_memory_map();
        Ok(driver)
    }

    /// Writes the parts of the NIC's memory to the system's log, a line for each (Q17).
    fn print_memory_map(&self) {
        for part in self.device.geometry.parts() {
            let end = part.offset + part.bytes;
            self.device.platform.log(
                Level::Info,
                format_args!(
                    "SRAM {:#010x} to {end:#010x}: {}, written by {}",
                    part.offset, part.name, part.writer
                ),
            );
        }
    }

    /// The system beneath the driver.
    pub fn platform(&self) -> &P {
        &self.device.platform
    }

    /// Layout of the SRAM.
    pub fn geometry(&self) -> &Geometry {
        &self.device.geometry
    }

    /// Returns true if the device is there and works.
    pub fn is_alive(&self) -> bool {
        self.device.is_alive()
    }

    /// Fills in the versions and properties of driver and NIC.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`.
    pub fn info(&self, call: &mut uapi::Info) -> Result<(), CallError> {
        if call.reserved0.get() != 0 {
            return Err(CallError::Invalid);
        }
        if !self.is_alive() {
            return Err(CallError::NoDevice);
        }
        let geometry = &self.device.geometry;
        *call = uapi::Info {
            status: Status::Ok.code().into(),
            abi_version: ABI_VERSION.into(),
            node: geometry.node.0.into(),
            reserved0: 0.into(),
            windows: geometry.windows.into(),
            sram_bytes: geometry.sram_bytes.into(),
            frames: geometry.frames.into(),
        };
        Ok(())
    }

    /// Fills in a page of counters: the driver's own, those of datagrams, or what the NIC answers.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`.
    pub fn counters(&self, call: &mut uapi::Counters) -> Result<(), CallError> {
        let (source, first) = (CounterSource::try_from(call.source.get()), call.first);
        let (Ok(source), 0) = (source, call.reserved.get()) else {
            return Err(CallError::Invalid);
        };
        let mut status = Status::Ok;
        call.page = match source {
            CounterSource::Driver => CounterPage::of(&self.device.counters, first.get()),
            CounterSource::Datagrams => self.datagram_counters(first.get()),
            CounterSource::Nic => {
                let reserved = 0.into();
                let query = Request::new(Opcode::Query, VniId(0), &Query { first, reserved });
                let response;
                (status, response) = self.device.call(&query)?;
                response.body().unwrap_or_default()
            }
        };
        call.status = status.code().into();
        Ok(())
    }

    /// Queries the route to a node (U8).
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`.
    pub(crate) fn path(&self, call: &mut uapi::Path) -> Result<(), CallError> {
        if call.reserved.get() != 0 {
            return Err(CallError::Invalid);
        }
        let query = QueryPath {
            node: call.node,
            ..QueryPath::default()
        };
        let request = Request::new(Opcode::QueryPath, VniId(0), &query);
        let (status, response) = self.device.call(&request)?;
        call.status = status.code().into();
        call.path = response.body::<PathInfo>().unwrap_or_default();
        Ok(())
    }

    /// Sends the NIC a request while any process depends on it. The platform calls
    /// this every few seconds if it cannot see by itself that a device has died. A
    /// NIC that does not answer is declared broken, and waiters wake.
    pub fn check_device(&self) {
        if !self.device.wakes.is_empty() {
            // The call deals with an error itself.
            let _ = self.device.call(&Request::bare(Opcode::Query, VniId(0)));
        }
        self.check_datagrams();
    }

    /// Tells the NIC that the device is about to be reset, so that its peers learn of it at once
    /// and do not wait as for a machine that is paused. Returns when the peers have what the NIC has
    /// sent, or after a second.
    pub fn announce_reset(&self) {
        // The call deals with an error itself.
        let _ = self
            .device
            .call(&Request::bare(Opcode::AnnounceReset, VniId(0)));
    }

    /// The device goes away: every call fails from now on and every waiter wakes.
    /// SRAM may still be accessed until [`Driver::detach`].
    pub fn begin_removal(&self) {
        self.device.lose();
    }

    /// The device has been reset or is gone: nothing accesses the SRAM any more.
    pub fn detach(&self) {
        self.device.detach();
        self.page_table.wait_for_accesses();
        self.finish_datagrams();
    }
}
