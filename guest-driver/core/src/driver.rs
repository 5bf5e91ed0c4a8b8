//! The driver of one NIC: what all its processes share.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use qnic_abi::control::{Opcode, Statistics};
use qnic_abi::event::{Event, Kind, EVENT_BYTES};
use qnic_abi::header::Geometry;
use qnic_abi::page_table::Tag;
use qnic_abi::{uapi, SharedMemory, Status, VniId, ABI_VERSION};
use zerocopy::FromBytes;

use crate::bringup::{hello, read_geometry, Config};
use crate::control::{Reply, Request};
use crate::counters::Counters;
use crate::error::{CallError, StartError};
use crate::faults::{Fault, FaultQueue};
use crate::platform::{Level, Mutex, Platform, RequestError, SpinLock, Waiters};
use crate::shadow::{Inserted, Removed, Table, Unmapped};
use crate::slots::Slots;

/// How long an unmap waits for the NIC to let go of a page before the NIC is
/// declared broken, in nanoseconds. A NIC holds a page for one copy.
const UNLOCK_WAIT_NS: u64 = 2_000_000_000;

/// An unmap that waits longer than this gives way between its looks, in nanoseconds.
const UNLOCK_SPIN_NS: u64 = 100_000;

/// Looks at a lock word between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 64;

/// The driver of one NIC.
pub struct Driver<P: Platform> {
    pub(crate) platform: P,
    pub(crate) geometry: Geometry,
    pub(crate) inline_max: u32,
    pub(crate) counters: Counters,
    pub(crate) slots: P::SpinLock<Slots<P>>,
    pub(crate) faults: P::SpinLock<FaultQueue>,
    table: P::SpinLock<Attached<Table>>,
    /// Whoever stores to windows holds it.
    windows: P::Mutex<Attached<()>>,
    /// False once the device is gone or broken; never true again.
    alive: AtomicBool,
}

/// Something in SRAM that must not be touched after [`Driver::detach`].
struct Attached<T> {
    attached: bool,
    inner: T,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// All that it asked for is done.
    Done,
    /// A fault waits for [`Driver::serve_fault`].
    FaultQueued,
    /// It was no event, or there was no room for a fault; it is dropped and logged.
    Refused,
}

impl<P: Platform> Driver<P> {
    /// Waits for the SRAM, checks it, and introduces the driver to the NIC.
    ///
    /// Control replies must be delivered by now. The SRAM wait is over before any
    /// other step can fail, so the platform may reset the device after an error.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(platform: P, config: &Config) -> Result<Arc<Self>, StartError> {
        let greeted = hello(&platform);
        if let Err(error @ StartError::NoReply(_)) = greeted {
            return Err(error);
        }
        // Of a NIC that refuses, the header says more than the refusal.
        let (geometry, inline_max) = read_geometry(&platform, config)?;
        greeted?;
        let table = Attached {
            attached: true,
            inner: Table::new(geometry, platform.random()),
        };
        let windows = Attached {
            attached: true,
            inner: (),
        };
        let driver = Arc::new(Driver {
            slots: P::SpinLock::new(Slots::new(geometry.windows)?)?,
            faults: P::SpinLock::new(FaultQueue::new()?)?,
            table: P::SpinLock::new(table)?,
            windows: P::Mutex::new(windows)?,
            alive: AtomicBool::new(true),
            counters: Counters::default(),
            platform,
            geometry,
            inline_max,
        });
        driver.log(
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
        Ok(driver)
    }

    /// The system under the driver.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Layout of the SRAM.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Says whether the device is there and works.
    pub fn is_alive(&self) -> bool {
        // Acquire; partner: the release store in `lose`.
        self.alive.load(Ordering::Acquire)
    }

    /// Says whether [`Driver::handle_event`] has room for one more fault. While it
    /// has not, the platform leaves events in the event queue, and looks again
    /// after the next [`Driver::serve_fault`]. Atomic.
    pub fn event_room(&self) -> bool {
        self.faults.with(|queue| queue.has_room())
    }

    /// Takes an event: wakes a process, or queues a fault. Atomic: this is the
    /// interrupt's part.
    pub fn handle_event(&self, bytes: &[u8; EVENT_BYTES]) -> Handled {
        let Ok(event) = Event::read_from_bytes(bytes) else {
            return Handled::Refused;
        };
        let vni = VniId(event.vni.get());
        match Kind::try_from(event.kind.get()) {
            Ok(Kind::Wake | Kind::QueueFailed) => {
                self.wake(vni);
                Handled::Done
            }
            Ok(Kind::PageFault) => {
                let fault = Fault {
                    vni,
                    address: event.address.get(),
                    pages: event.pages.get(),
                };
                if self.faults.with(|queue| queue.push(fault)) {
                    Handled::FaultQueued
                } else {
                    Handled::Refused
                }
            }
            Err(kind) => {
                self.log(
                    Level::Warning,
                    format_args!("event of unknown kind {kind} ignored"),
                );
                Handled::Refused
            }
        }
    }

    /// Adds one to the wake generation of a process and wakes it. A process that
    /// has ended since is no mistake.
    fn wake(&self, vni: VniId) {
        self.counters.wakes.add(1);
        self.slots.with(|slots| {
            if let Some(process) = slots.process(vni) {
                process.wake();
            }
        });
    }

    /// Fills in what driver and NIC have counted.
    ///
    /// # Errors
    /// `Invalid`, `NoDevice`.
    pub fn info(&self, call: &mut uapi::Info) -> Result<(), CallError> {
        if call.reserved0.get() != 0 {
            return Err(CallError::Invalid);
        }
        let reply = self.call(&Request::bare(Opcode::Query, VniId(0)))?;
        let status = reply.status().ok_or(CallError::NoDevice)?;
        let counters = &self.counters;
        *call = uapi::Info {
            status: status.code().into(),
            abi_version: ABI_VERSION.into(),
            node: self.geometry.node.0.into(),
            reserved0: 0.into(),
            windows: self.geometry.windows.into(),
            sram_bytes: self.geometry.sram_bytes.into(),
            frames: self.geometry.frames.into(),
            pages_mapped: counters.pages_mapped.get().into(),
            pages_inserted: counters.pages_inserted.get().into(),
            pages_invalidated: counters.pages_invalidated.get().into(),
            pages_evicted: counters.pages_evicted.get().into(),
            faults_served: counters.faults_served.get().into(),
            faults_failed: counters.faults_failed.get().into(),
            lock_conflicts: counters.lock_conflicts.get().into(),
            wakes: counters.wakes.get().into(),
            nic: reply.body::<Statistics>().unwrap_or_default(),
        };
        Ok(())
    }

    /// Asks the NIC for a sign of life while any process depends on it. The
    /// platform calls it every few seconds, where it cannot see by itself that a
    /// device has died; a NIC that does not answer is declared broken, and those
    /// who wait for it are told.
    pub fn check_device(&self) {
        let needed = self.slots.with(|slots| slots.processes().next().is_some());
        if needed {
            // An error is dealt with where it was found.
            let _ = self.call(&Request::bare(Opcode::Query, VniId(0)));
        }
    }

    /// The device goes away: every call fails from now on and every waiter wakes.
    /// SRAM may still be touched until [`Driver::detach`].
    pub fn begin_removal(&self) {
        self.lose();
    }

    /// The device has been reset or is gone: nothing touches the SRAM any more.
    pub fn detach(&self) {
        self.lose();
        self.table.with(|table| table.attached = false);
        self.windows.with(|windows| windows.attached = false);
    }

    fn lose(&self) -> bool {
        // Release; partner: the acquire load in `is_alive`.
        let was_alive = self.alive.swap(false, Ordering::AcqRel);
        self.slots.with(|slots| {
            for process in slots.processes() {
                process.waiters.wake_all();
            }
        });
        was_alive
    }

    /// The device does not do what it must: stops it, so that memory is safe, and
    /// fails every call.
    fn declare_broken(&self, reason: fmt::Arguments<'_>) {
        if !self.lose() {
            return;
        }
        self.log(
            Level::Error,
            format_args!("the device is broken and was stopped: {reason}; reload the driver"),
        );
        self.platform.stop_device();
        self.table.with(|table| table.attached = false);
    }

    /// Sends a request that the NIC answers at once. An error means that the
    /// device touches no memory any more.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, CallError> {
        if !self.is_alive() {
            return Err(CallError::NoDevice);
        }
        request.send(&self.platform).map_err(|error| {
            if error != RequestError::Gone {
                self.declare_broken(format_args!("no answer on the control queue ({error:?})"));
            }
            CallError::NoDevice
        })
    }

    /// Sends a request whose reply nobody needs. That the NIC does not answer is
    /// found out by [`Driver::check_device`].
    pub(crate) fn post(&self, request: &Request) {
        if !self.is_alive() {
            return;
        }
        if let Err(RequestError::TimedOut) = request.post(&self.platform) {
            self.declare_broken(format_args!("the control queue stays full"));
        }
    }

    /// The status of a reply; a NIC whose replies have none is broken.
    pub(crate) fn status(&self, reply: &Reply) -> Result<Status, CallError> {
        reply.status().ok_or_else(|| {
            self.declare_broken(format_args!("a reply carries an unknown status"));
            CallError::NoDevice
        })
    }

    /// Zeroes a window (Q2: the queue of a new process is empty; and nothing of
    /// the last process stays readable).
    pub(crate) fn zero_window(&self, vni: VniId) -> Result<(), CallError> {
        let start = self.geometry.window_offset(vni);
        self.windows.with(|windows| {
            if !windows.attached {
                return Err(CallError::NoDevice);
            }
            let zeroes = [0u64; 64];
            for offset in (0..qnic_abi::window::WINDOW_BYTES).step_by(size_of_val(&zeroes)) {
                self.platform.sram().write_words(start + offset, &zeroes);
            }
            self.platform.sram().fence();
            Ok(())
        })
    }

    /// Enters a page (N5).
    pub(crate) fn insert(&self, tag: Tag, frame: u32, key: u64) -> Inserted {
        self.table.with(|table| {
            if !table.attached {
                return Inserted::OutOfRange;
            }
            let inserted = table.inner.insert(self.platform.sram(), tag, frame, key);
            let gone = match inserted {
                Inserted::Done { evicted, replaced } => {
                    self.counters.pages_inserted.add(1);
                    self.counters.pages_mapped.add(1);
                    if evicted.is_some() {
                        self.counters.pages_evicted.add(1);
                    }
                    [evicted, replaced]
                }
                Inserted::Busy { replaced } => [None, replaced],
                Inserted::Already | Inserted::OutOfRange => [None; 2],
            };
            for removed in gone.into_iter().flatten() {
                self.left(removed);
            }
            inserted
        })
    }

    /// Takes a page out unless the NIC holds it. Neither sleeps nor spins.
    pub(crate) fn try_unmap(&self, tag: Tag, frame: u32) -> Unmapped {
        self.unmap_with(|table| table.try_unmap(self.platform.sram(), tag, frame))
    }

    /// Takes a page out, and waits for the NIC to let go of it. May sleep; never
    /// says `Locked`: if the NIC does not let go, it is stopped.
    pub(crate) fn unmap(&self, tag: Tag, frame: u32) -> Unmapped {
        let outcome = self.unmap_with(|table| table.begin_unmap(self.platform.sram(), tag, frame));
        if outcome != Unmapped::Locked {
            return outcome;
        }
        self.counters.lock_conflicts.add(1);
        let start = self.platform.now_ns();
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                let outcome = self.unmap_with(|table| {
                    table
                        .finish_unmap(self.platform.sram(), frame)
                        .map_or(Unmapped::Locked, Unmapped::Done)
                });
                if outcome != Unmapped::Locked {
                    return outcome;
                }
                core::hint::spin_loop();
            }
            let waited = self.platform.now_ns().saturating_sub(start);
            if waited > UNLOCK_WAIT_NS {
                self.declare_broken(format_args!("it holds page frame {frame:#x} for ever"));
            } else if waited > UNLOCK_SPIN_NS {
                self.platform.give_way();
            }
        }
    }

    /// Runs an unmap step on the table, if there still is one.
    fn unmap_with(&self, step: impl FnOnce(&mut Table) -> Unmapped) -> Unmapped {
        self.table.with(|table| {
            if !table.attached {
                return Unmapped::Absent;
            }
            let outcome = step(&mut table.inner);
            if let Unmapped::Done(removed) = outcome {
                self.left(removed);
            }
            outcome
        })
    }

    /// A page has left the table; the table's lock is held, so nobody else has
    /// freed its frame yet.
    fn left(&self, removed: Removed) {
        self.counters.pages_mapped.subtract(1);
        if removed.dirty {
            self.platform.mark_dirty(removed.frame);
        }
    }

    pub(crate) fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.platform.log(level, message);
    }
}
