//! The system under the library: what [`qnic::Nic`] stands on in a simulation.
//!
//! The driver core is called as programs call it; time is virtual, chance is the seed's,
//! and no process spins: a spinning thread would keep the world from going on. To the
//! library, a process that was killed has lost its device: its calls fail until it has
//! ended, and it stores nothing any more ([`crate::machine::mapping`]).

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qnic::provider::{CallError, Memory, Process, Provider, Registration};
use qnic_abi::{uapi, PAGE_SIZE};

use crate::machine::mapping::Mapping;
use crate::machine::platform::SimPlatform;
use crate::process::ProcessContext;

/// Memory that a process can allocate, in bytes.
pub(super) const HEAP_BYTES: u64 = 16 * PAGE_SIZE as u64;

/// After so many of a thousand calls that have slept a process goes on late, in seeds in which some do.
const LATE: u32 = 15;

/// How long a process that was woken may have no processor, in nanoseconds: long enough for others to
/// notice a death and recover.
const NO_PROCESSOR_NS: u64 = 3_000_000_000;

/// What the library takes for the peer timeout, in milliseconds. Twice that is longer than a process
/// may have no processor: one that has taken another from a queue and does not wake it counts as dead then.
const PEER_TIMEOUT_MS: u32 = 5_000;

/// A node as one process of it sees it.
pub(super) struct Platform {
    context: ProcessContext,
    /// Processes that were woken go on late, sometimes.
    late: bool,
    space: u64,
    /// First address of the heap.
    heap: u64,
    /// Bytes of the heap that are in use.
    used: AtomicU64,
    /// The last number that was drawn.
    drawn: AtomicU64,
    start: Instant,
}

impl Platform {
    pub(super) fn new(context: &ProcessContext, (space, heap): (u64, u64), late: bool) -> Self {
        Platform {
            late,
            context: context.clone(),
            space,
            heap,
            used: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    pub(super) fn drawn(&self) -> u64 {
        self.drawn.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.context.slot)
    }
}

fn unsupported() -> CallError {
    CallError::System(std::io::ErrorKind::Unsupported.into())
}

impl Provider for Platform {
    fn register(&self, port: u16, _flags: u32) -> Result<Registration, CallError> {
        let context = &self.context;
        let process = context.register(self.space).ok_or(CallError::Gone)?;
        let machine = &context.machine;
        Ok(Registration::Done(Box::new(Registered {
            registration: uapi::Register {
                node: (machine.incarnation.node as u16).into(),
                port: port.into(),
                inline_max: (qnic_abi::command::DEFAULT_INLINE_MAX as u32).into(),
                peer_timeout_ms: PEER_TIMEOUT_MS.into(),
                ..Default::default()
            }
            .with_counts(qnic_abi::header::Counts::MOST),
            window: Mapping::window(machine, process.window_offset()),
            host_area: Mapping::host_area(machine, process.host_area().frames),
            pool: Mapping::pool(machine, process.host_area().frames),
            process,
            context: context.clone(),
            late: self.late,
        })))
    }

    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError> {
        let pages = length.next_multiple_of(PAGE_SIZE) as u64;
        let at = self.used.fetch_add(pages, Ordering::Relaxed);
        assert!(at + pages <= HEAP_BYTES, "the heap is too small");
        let machine = &self.context.machine;
        let memory = Mapping::pages(machine, self.space, self.heap + at, length);
        Ok(Arc::new(memory))
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        Err(unsupported())
    }

    fn counters(&self, _: &mut uapi::Counters) -> Result<(), CallError> {
        Err(unsupported())
    }

    fn spin_budget(&self, _spinners: usize) -> Duration {
        Duration::ZERO
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.context.common.schedule.now())
    }

    fn random(&self) -> u64 {
        let number = self.context.common.schedule.any();
        self.drawn.store(number, Ordering::Relaxed);
        number
    }
}

struct Registered {
    context: ProcessContext,
    late: bool,
    registration: uapi::Register,
    window: Mapping,
    host_area: Mapping,
    pool: Mapping,
    process: qnic_driver::Process<SimPlatform>,
}

impl Registered {
    /// What a call of the driver gave. A process that has a signal does not return
    /// from it.
    fn after(&self, result: Result<(), qnic_driver::CallError>) -> Result<(), CallError> {
        if !self.context.is_alive() {
            return Err(CallError::Gone);
        }
        result.map_err(|error| match error {
            qnic_driver::CallError::TimedOut => CallError::TimedOut,
            qnic_driver::CallError::NoDevice => CallError::Gone,
            other => panic!("process {}: a call fails: {other}", self.context.slot),
        })
    }
}

impl Registered {
    /// Goes on late, sometimes, with what the process knew before it slept: others may have noticed a death
    /// by then, and recovered the object that it waits for.
    fn resume_late(&self) {
        let common = &self.context.common;
        let schedule = &common.schedule;
        if self.late && schedule.chance(LATE) {
            // Whether it is alive after that, its caller sees.
            let _ = self.context.sleep(schedule.range(0..NO_PROCESSOR_NS));
        }
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.context.slot)
    }
}

/// Calls that the driver core answers, each with its argument.
macro_rules! calls {
    ($($call:ident: $argument:ident,)*) => {
        $(fn $call(&self, call: &mut uapi::$argument) -> Result<(), CallError> {
            self.after(self.process.$call(call))
        })*
    };
}

impl Process for Registered {
    fn registration(&self) -> &uapi::Register {
        &self.registration
    }

    fn window(&self) -> &dyn Memory {
        &self.window
    }

    fn host_area(&self) -> &dyn Memory {
        &self.host_area
    }

    fn pool(&self) -> &dyn Memory {
        &self.pool
    }

    fn ring_doorbell(&self) {
        if self.context.is_alive() {
            self.context.ring_doorbell(&self.process);
        }
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Err(unsupported())
    }

    fn wait(&self, call: &mut uapi::Wait) -> Result<(), CallError> {
        let waited = self.process.wait(call);
        self.resume_late();
        self.after(waited)
    }

    calls! {
        export: Export,
        unexport: Unexport,
        import: Import,
        wake: Wake,
        reset_queue: ResetQueue,
        path: Path,
    }
}
