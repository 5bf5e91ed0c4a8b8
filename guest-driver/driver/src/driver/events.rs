//! The NIC's events: wake events and page faults (N13).
//!
//! The interrupt handler queues a fault, a worker serves it; several workers serve
//! several faults at once, so a page that comes from a slow disk delays no other.
//! Each event asks for up to [`qnic_abi::event::MAX_FAULT_PAGES`] pages and is
//! answered by one `FaultDone`.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use qnic_abi::control::{self, Opcode};
use qnic_abi::event::{Event, Kind, EVENT_BYTES, FAULT_WRITE};
use qnic_abi::layout::Unknown;
use qnic_abi::page_table::PageAccess;
use qnic_abi::{verbs, Status, VniId};

use super::lifecycle::{Driver, QUEUE_FAULTS};
use crate::device::control_queue::Request;
use crate::memory::MemoryManager;
use crate::platform::{Level, Lock};
use crate::process::state::ProcessState;

/// The outcome of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// It needs no further work.
    Done,
    /// A fault waits for [`Driver::serve_fault`].
    FaultQueued,
    /// It was malformed, or there was no room for a fault; it is dropped and logged.
    Refused,
}

impl<P: MemoryManager> Driver<P> {
    /// Makes a process known to events.
    pub(super) fn publish(&self, state: Arc<ProcessState<P>>) {
        let old = self.device.wakes.set(state.vni, Some(state.wake.clone()));
        drop(old);
        self.slots.with(|slots| slots.publish(state));
    }

    /// Makes a process unknown to events; its slot stays reserved.
    pub(super) fn retire(&self, vni: VniId) {
        let wake = self.device.wakes.set(vni, None);
        let state = self.slots.with(|slots| slots.retire(vni));
        drop((wake, state));
    }

    /// Returns true if there is room for one more fault. Without room the platform
    /// leaves events in the event queue, and asks again after the next
    /// [`Driver::serve_fault`]. Atomic.
    pub fn event_room(&self) -> bool {
        self.faults.with(|queue| queue.len() < QUEUE_FAULTS)
    }

    /// Handles an event: wakes a process, or queues a fault. Atomic: this is the
    /// interrupt's part.
    pub fn handle_event(&self, bytes: &[u8; EVENT_BYTES]) -> Handled {
        let event: Event = zerocopy::transmute!(*bytes);
        let vni = VniId(event.vni.get());
        match Kind::try_from(event.kind.get()) {
            Ok(Kind::Wake | Kind::QueueFailed) => {
                self.device.counters.wakes.add(1);
                self.device.wakes.wake(vni);
                self.wake_datagrams(vni);
                Handled::Done
            }
            Ok(Kind::Verbs) => match verbs::Event::try_from(event.flags.get()) {
                Ok(said @ (verbs::Event::PortDown | verbs::Event::PortUp)) => {
                    self.platform().verbs_port(said == verbs::Event::PortUp);
                    Handled::Done
                }
                Ok(said) => {
                    let token = event.address.get();
                    self.verbs.event(self.platform(), token, said);
                    Handled::Done
                }
                Err(Unknown(_)) => Handled::Refused,
            },
            Ok(Kind::PageFault) => self.faults.with(|queue| {
                if queue.len() == QUEUE_FAULTS {
                    return Handled::Refused;
                }
                queue.push_back(event);
                Handled::FaultQueued
            }),
            Err(Unknown(kind)) => {
                self.device.platform.log(
                    Level::Warning,
                    format_args!("event of unknown kind {kind} ignored"),
                );
                Handled::Refused
            }
        }
    }

    /// Serves one fault; returns false if none was queued. Sleeps while pages are
    /// faulted in.
    pub fn serve_fault(&self) -> bool {
        let Some(fault) = self.faults.with(VecDeque::pop_front) else {
            return false;
        };
        let vni = VniId(fault.vni.get());
        let process = self.slots.with(|slots| slots.process(vni).cloned());
        let result = match process {
            Some(process) => {
                let exports = &process.exports;
                let access = match fault.flags.get() & FAULT_WRITE {
                    0 => PageAccess::Read,
                    _ => PageAccess::Write,
                };
                exports.fault_in(fault.address.get(), fault.pages.get(), access)
            }
            // It has ended; DeleteProcess is on its way to the NIC.
            None => Err(Status::Aborted),
        };
        let counters = &self.device.counters;
        match result {
            Ok(()) => counters.faults_served.add(1),
            Err(_) => counters.faults_failed.add(1),
        }
        let body = control::FaultDone {
            fault: fault.fault,
            status: result.err().unwrap_or(Status::Ok).code().into(),
            reserved: Default::default(),
        };
        // The response is not needed: without a wait for it, the worker faults in
        // the next page at once.
        let done = Request::new(Opcode::FaultDone, vni, &body);
        self.device.post(&done);
        true
    }
}

#[cfg(test)]
mod tests;
