//! The two threads of a node: interrupts, and page faults.
//!
//! ```text
//!   interrupts: epoll ─┬─ control call ─► responses to waiting threads
//!                      ├─ event call ───► driver core: wakes, faults ─┐
//!                      ├─ channel ──────► SHMEM_MAP                   │
//!                      ├─ timer ────────► driver core: datagrams      │
//!                      └─ connection closed ► the device is gone      │
//!   faults: ◄──────────────────────────────────────────────[queued]───┘
//! ```
//! Both end when the connection is closed, by either side.

use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock, Weak};

use qnic_driver::{Driver, Handled};
use vhost::vhost_user::FrontendReqHandler;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::control::Control;
use crate::events::Events;
use crate::front_end::SramSlot;
use crate::platform::HostPlatform;
use crate::timer::Timer;

/// State shared by threads, driver core and node.
pub(crate) struct Shared {
    pub(crate) control: Arc<Control>,
    pub(crate) events: Events,
    pub(crate) sram: Arc<SramSlot>,
    /// When datagrams are to be served.
    pub(crate) timer: Arc<Timer>,
    pub(crate) driver: OnceLock<Weak<Driver<HostPlatform>>>,
}

/// Keys of the epoll set.
const CONNECTION: u64 = 0;
const CHANNEL: u64 = 1;
const CONTROL_CALL: u64 = 2;
const EVENT_CALL: u64 = 3;
const DATAGRAMS: u64 = 4;

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

/// Serves interrupts until the connection is closed.
pub(crate) fn interrupts(
    shared: &Shared,
    mut channel: FrontendReqHandler<SramSlot>,
    epoll: &Epoll,
    faults: &Sender<()>,
) {
    let mut ready = [EpollEvent::default(); 5];
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
        if is_ready(CHANNEL) {
            if let Err(error) = channel.handle_request() {
                log::warn!("request of the device process refused: {error}");
            }
        }
        if is_ready(CONTROL_CALL) {
            // It fails if an earlier read took this call too.
            let _ = shared.control.call.read();
            if let Err(error) = shared.control.complete() {
                log::error!("control queue: {error}; the device process is broken");
                break;
            }
        }
        if is_ready(EVENT_CALL) {
            let _ = shared.events.call.read();
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
        if is_ready(CONNECTION) {
            break;
        }
    }
    shared.control.disconnect();
    shared.sram.fail("the device process closed the connection");
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
    while let Ok(()) = queued.recv() {
        let Some(driver) = shared.driver() else { break };
        while driver.serve_fault() {
            // There is room again for events that stayed in the queue; the loop
            // serves the faults among them.
            shared.drain_events(|| ());
        }
    }
}

/// Makes the epoll set of the interrupt thread.
pub(crate) fn epoll_set(
    shared: &Shared,
    channel: &FrontendReqHandler<SramSlot>,
) -> std::io::Result<Epoll> {
    let epoll = Epoll::new()?;
    let connection = shared.control.connection.as_raw_fd();
    let sources = [
        (connection, EventSet::READ_HANG_UP, CONNECTION),
        (channel.as_raw_fd(), EventSet::IN, CHANNEL),
        (shared.control.call.as_raw_fd(), EventSet::IN, CONTROL_CALL),
        (shared.events.call.as_raw_fd(), EventSet::IN, EVENT_CALL),
        (shared.timer.as_raw_fd(), EventSet::IN, DATAGRAMS),
    ];
    for (descriptor, events, key) in sources {
        let event = EpollEvent::new(events, key);
        epoll.ctl(ControlOperation::Add, descriptor, event)?;
    }
    Ok(epoll)
}
