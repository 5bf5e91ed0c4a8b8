//! The NIC as a device: bring-up, requests, loss.
//!
//! ```text
//!   Device ──► bring_up ──► control_queue
//!      └─────► wake, counters, window
//! ```

mod bring_up;
pub(crate) mod control_queue;
mod counters;
mod wake;
mod window;

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use qnic_abi::header::{Geometry, MAGIC, SRAM_MAGIC};
use qnic_abi::{SharedMemory, Status, VniId};

use crate::error::{CallError, StartError};
use crate::platform::{Level, Lock, Platform, RequestError, Timeout};
use control_queue::{Request, Response};
use counters::Counters;
use wake::WakeTable;

pub(crate) use bring_up::Announced;
pub use bring_up::{check_config, Config};
pub(crate) use counters::Counter;
pub(crate) use wake::Wake;
pub(crate) use window::Window;

/// One NIC, and the state that all parts of the driver share.
pub(crate) struct Device<P: Platform> {
    pub(crate) platform: P,
    pub(crate) geometry: Geometry,
    pub(crate) announced: Announced,
    pub(crate) counters: Counters,
    pub(crate) wakes: WakeTable<P>,
    /// Held for stores to windows.
    windows: P::Mutex<()>,
    /// False once the device is gone or broken; never true again.
    alive: AtomicBool,
    /// False once SRAM must not be accessed any more. It is read under the same lock as the
    /// access that follows.
    attached: AtomicBool,
}

impl<P: Platform> Device<P> {
    /// Brings the NIC up: Hello, then the SRAM header.
    pub(crate) fn start(platform: P, config: &Config) -> Result<Arc<Self>, StartError> {
        let hello = bring_up::send_hello(&platform);
        if let Err(error @ StartError::NoResponse(_)) = hello {
            return Err(error);
        }
        // When the NIC refuses, the header says more than the refusal.
        let (geometry, announced) = bring_up::read_geometry(&platform, config)?;
        hello?;
        Ok(Arc::new(Device {
            wakes: WakeTable::new(geometry.windows)?,
            windows: P::Mutex::new(())?,
            alive: AtomicBool::new(true),
            attached: AtomicBool::new(true),
            counters: Counters::default(),
            platform,
            geometry,
            announced,
        }))
    }

    pub(crate) fn is_alive(&self) -> bool {
        // Acquire; partner: the swap in `lose`.
        self.alive.load(Ordering::Acquire)
    }

    /// Returns true if SRAM may be accessed. The caller holds a lock: [`Device::detach`] either
    /// waits for the access, or is seen here.
    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Ordering::Acquire)
    }

    /// How long the NIC may take for a request that it answers at once, or to unlock a page, in
    /// milliseconds: longer than a busy host needs, and twice as long as other NICs wait for it. So a
    /// cluster whose hosts stand still at times sets one time for both, `network.peer_timeout`.
    pub(crate) fn response_ms(&self) -> u32 {
        RESPONSE_MS.max(self.announced.peer_timeout_ms.saturating_mul(2))
    }

    /// Fails every call from now on, and wakes every waiter. Returns true the first time.
    pub(crate) fn lose(&self) -> bool {
        let was_alive = self.alive.swap(false, Ordering::AcqRel);
        self.wakes.lose();
        was_alive
    }

    /// The device was reset or is gone: windows are not accessed any more. Other
    /// users of the SRAM take and release their lock once after this.
    pub(crate) fn detach(&self) {
        self.lose();
        self.attached.store(false, Ordering::Release);
        self.windows.with(|()| ());
    }

    /// Stops a device that misbehaves, so that memory is safe, and fails every call.
    pub(crate) fn declare_broken(&self, reason: fmt::Arguments<'_>) {
        if !self.lose() {
            return;
        }
        self.platform.log(
            Level::Error,
            format_args!("the device is broken and was stopped: {reason}; reload the driver"),
        );
        self.platform.stop_device();
        self.attached.store(false, Ordering::Release);
    }

    /// Finds out whether the NIC was reset although this driver did not ask for it. Such a NIC
    /// does not know the processes that are registered here, and its magic word is gone, or
    /// the whole SRAM.
    fn check_incarnation(&self) {
        // Acquire; partner: the NIC's release store of the word.
        let magic = self.platform.sram().load_u64(MAGIC, Ordering::Acquire);
        if magic != SRAM_MAGIC && self.is_alive() {
            self.declare_broken(format_args!(
                "the NIC was reset, and what was registered is lost"
            ));
        }
    }

    /// Sends a request that the NIC answers at once, and returns the status of its
    /// response too. An error means that the device accesses no memory any more.
    pub(crate) fn call(&self, request: &Request) -> Result<(Status, Response), CallError> {
        self.check_incarnation();
        if !self.is_alive() {
            return Err(CallError::NoDevice);
        }
        let sent = request.send(&self.platform, Timeout::Uninterruptible(self.response_ms()));
        let response = sent.map_err(|error| {
            if error != RequestError::Gone {
                self.declare_broken(format_args!("no answer on the control queue ({error:?})"));
            }
            CallError::NoDevice
        })?;
        Ok((self.status(&response)?, response))
    }

    /// Sends a request and drops its response. [`crate::Driver::check_device`] finds
    /// out if the NIC does not answer.
    pub(crate) fn post(&self, request: &Request) {
        if !self.is_alive() {
            return;
        }
        if let Err(RequestError::TimedOut) = self.platform.post(&request.0, self.response_ms()) {
            self.declare_broken(format_args!("the control queue stays full"));
        }
    }

    /// The status of a response. A response without a status means that the NIC is broken.
    pub(crate) fn status(&self, response: &Response) -> Result<Status, CallError> {
        response.status().ok_or_else(|| {
            self.declare_broken(format_args!("a response carries an unknown status"));
            CallError::NoDevice
        })
    }

    /// Runs `f`, which stores to windows, unless SRAM must not be accessed any more.
    ///
    /// # Errors
    /// `NoDevice`.
    pub(crate) fn with_windows<R>(&self, f: impl FnOnce() -> R) -> Result<R, CallError> {
        self.windows.with(|()| match self.is_attached() {
            true => Ok(f()),
            false => Err(CallError::NoDevice),
        })
    }

    /// Zeroes a window (Q2: the queue of a new process is empty; and nothing of the
    /// last process stays readable).
    pub(crate) fn zero_window(&self, vni: VniId) -> Result<(), CallError> {
        let start = self.geometry.window_offset(vni);
        self.with_windows(|| {
            let zeroes = [0u64; 64];
            for offset in (0..qnic_abi::window::WINDOW_BYTES).step_by(size_of_val(&zeroes)) {
                self.platform.sram().write_words(start + offset, &zeroes);
            }
            self.platform.sram().fence();
        })
    }
}

/// How long a NIC may take at least, in milliseconds ([`Device::response_ms`]).
const RESPONSE_MS: u32 = 10_000;
