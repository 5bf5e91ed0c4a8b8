//! The two threads of a node: interrupts, and page faults.
//!
//! ```text
//!   interrupts: epoll ─┬─ interrupt ─┬─► responses to waiting threads
//!                      │             └─► driver core: wakes, faults ──┐
//!                      ├─ timer ───────► driver core: datagrams       │
//!                      └─ what the transport waits for                │
//!   faults: ◄──────────────────────────────────────────────[queued]───┘
//!           every two seconds, if the transport is silent: does the device answer?
//! ```
//! Both end when the device is gone or was stopped.

use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use qnic_driver::{Driver, Handled};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::control::Control;
use crate::events::Events;
use crate::platform::HostPlatform;
use crate::timer::Timer;
use crate::transport::Transport;

/// State shared by threads, driver core and node.
pub(crate) struct Shared {
    pub(crate) control: Arc<Control>,
    pub(crate) events: Events,
    /// The device has used buffers, of whichever queue.
    pub(crate) interrupt: EventFd,
    pub(crate) transport: Arc<dyn Transport>,
    /// When datagrams are to be served.
    pub(crate) timer: Arc<Timer>,
    pub(crate) driver: OnceLock<Weak<Driver<HostPlatform>>>,
}

/// Keys of the epoll set; those of the transport's sources follow.
const INTERRUPT: u64 = 0;
const DATAGRAMS: u64 = 1;
const SOURCES: u64 = 2;

/// How often a silent device is asked.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

impl Shared {
    fn driver(&self) -> Option<Arc<Driver<HostPlatform>>> {
        self.driver.get().and_then(Weak::upgrade)
    }

    /// Passes events to the driver core, and calls `fault` for each fault that is
    /// queued there. Before the core exists, events stay in the event queue.
    pub(crate) fn drain_events(&self, mut fault: impl FnMut()) {
        let Some(driver) = self.driver() else { return };
        let drained = self.events.drain(
            || driver.event_room(),
            |event| {
                if driver.handle_event(event) == Handled::FaultQueued {
                    fault();
                }
            },
        );
        if let Err(error) = drained {
            log::error!("event queue: {error}; the device process is broken");
            self.control.disconnect();
        }
    }
}

/// Serves interrupts until the device is gone or was stopped.
pub(crate) fn interrupts(shared: &Shared, epoll: &Epoll, faults: &Sender<()>) {
    let mut ready = [EpollEvent::default(); 8];
    loop {
        let count = match epoll.wait(-1, &mut ready) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => {
                log::error!("epoll: {error}; the node gives up");
                break;
            }
        };
        let is_ready = |key| ready[..count].iter().any(|event| event.data() == key);
        if is_ready(INTERRUPT) {
            // It fails if an earlier read took this interrupt too.
            let _ = shared.interrupt.read();
            if let Err(error) = shared.control.complete() {
                log::error!("control queue: {error}; the device process is broken");
                break;
            }
            shared.drain_events(|| {
                // The fault thread ends only after this one.
                let _ = faults.send(());
            });
        }
        if is_ready(DATAGRAMS) {
            shared.timer.clear();
            if let Some(driver) = shared.driver() {
                driver.serve_datagrams();
            }
        }
        let mut sources = ready[..count].iter().map(EpollEvent::data);
        if !sources.all(|key| key < SOURCES || shared.transport.serve((key - SOURCES) as usize)) {
            break;
        }
    }
    shared.control.disconnect();
    if let Some(driver) = shared.driver() {
        if driver.is_alive() {
            log::warn!("the device process is gone");
        }
        driver.begin_removal();
        driver.detach();
    }
}

/// Serves page faults until the interrupt thread has ended.
pub(crate) fn faults(shared: &Shared, queued: &Receiver<()>) {
    loop {
        let limit = match shared.transport.is_silent() {
            true => CHECK_INTERVAL,
            false => Duration::MAX,
        };
        match queued.recv_timeout(limit) {
            Ok(()) => (),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(driver) = shared.driver() {
                    driver.check_device();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let Some(driver) = shared.driver() else { break };
        while driver.serve_fault() {
            // There is room again for events that stayed in the queue; the loop
            // serves the faults among them.
            shared.drain_events(|| ());
        }
    }
}

/// Makes the epoll set of the interrupt thread.
pub(crate) fn epoll_set(shared: &Shared) -> std::io::Result<Epoll> {
    let epoll = Epoll::new()?;
    let own = [shared.interrupt.as_raw_fd(), shared.timer.as_raw_fd()];
    let own = own.map(|descriptor| (descriptor, EventSet::IN));
    let sources = own.into_iter().chain(shared.transport.sources());
    for ((descriptor, events), key) in sources.zip(INTERRUPT..) {
        let event = EpollEvent::new(events, key);
        epoll.ctl(ControlOperation::Add, descriptor, event)?;
    }
    Ok(epoll)
}
