//! Page faults of the NIC: brought in by workers (N13).
//!
//! The interrupt queues a fault, a worker serves it; several workers serve
//! several faults at once, so a page that comes from a slow disk delays no other.
//! Each event asks for up to [`MAX_FAULT_PAGES`] pages and is answered by one
//! `FaultDone`.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use qnic_abi::control::{self, Opcode};
use qnic_abi::event::MAX_FAULT_PAGES;
use qnic_abi::{Status, VniId, PAGE_SHIFT};

use crate::control::Request;
use crate::driver::Driver;
use crate::exports::Exported;
use crate::platform::{MemoryError, NoMemory, Platform, SpinLock};
use crate::process::ProcessState;

/// Faults that wait for a worker; more stay in the event queue.
const QUEUE_FAULTS: usize = 1024;

/// How often a fault is tried while the NIC holds what it would replace, or the page
/// changes under the worker. The NIC is told to look again after that, and asks anew
/// if need be: it has let go by then.
const BUSY_TRIES: u32 = 4;

/// One fault event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) vni: VniId,
    pub(crate) address: u64,
    pub(crate) pages: u32,
}

/// Faults in the order in which they came; allocated once.
pub(crate) struct FaultQueue(VecDeque<Fault>);

impl FaultQueue {
    pub(crate) fn new() -> Result<Self, NoMemory> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(QUEUE_FAULTS)?;
        Ok(FaultQueue(queue))
    }

    pub(crate) fn has_room(&self) -> bool {
        self.0.len() < QUEUE_FAULTS
    }

    /// Says whether there was room.
    pub(crate) fn push(&mut self, fault: Fault) -> bool {
        let room = self.has_room();
        if room {
            self.0.push_back(fault);
        }
        room
    }

    fn pop(&mut self) -> Option<Fault> {
        self.0.pop_front()
    }
}

impl<P: Platform> Driver<P> {
    /// Serves one fault, if one waits; says whether one did. Sleeps while pages
    /// are brought in.
    pub fn serve_fault(&self) -> bool {
        let Some(fault) = self.faults.with(FaultQueue::pop) else {
            return false;
        };
        let status = match self.bring_in(&fault) {
            Ok(()) => {
                self.counters.faults_served.add(1);
                Status::Ok
            }
            Err(status) => {
                self.counters.faults_failed.add(1);
                status
            }
        };
        let body = control::FaultDone {
            address: fault.address.into(),
            pages: fault.pages.into(),
            status: status.code().into(),
        };
        // The reply says nothing that matters here: not waiting for it lets a worker
        // bring in the next page at once.
        self.post(&Request::new(Opcode::FaultDone, fault.vni, &body));
        true
    }

    fn bring_in(&self, fault: &Fault) -> Result<(), Status> {
        let process: Arc<ProcessState<P>> = self
            .slots
            .with(|slots| slots.process(fault.vni).cloned())
            // It has ended, and the NIC is about to be told.
            .ok_or(Status::Aborted)?;
        let page = fault.address >> PAGE_SHIFT;
        let wanted = fault.pages.clamp(1, MAX_FAULT_PAGES) as usize;
        for _ in 0..BUSY_TRIES {
            let (exported, first): (Arc<Exported<P>>, usize) =
                process.find(page).ok_or(Status::NoSuchSegment)?;
            let region = &exported.region;
            let count = wanted.min(region.page_count() - first);
            let result =
                self.platform
                    .fault_in(&process.space, &exported.watch, region, first, count);
            match result {
                Ok(()) => return Ok(()),
                // When closed, the range may have been exported anew meanwhile, and
                // the NIC may wait for this very page of it: look again.
                Err(MemoryError::Busy | MemoryError::Closed) => {}
                Err(MemoryError::SpaceGone) => return Err(Status::Aborted),
                Err(_) => return Err(Status::PageUnavailable),
            }
        }
        // The NIC tries again and, if the page is still absent, asks again.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::RequestError;
    use crate::testing::{register, Fake, PAGE};
    use crate::{Handled, Process};
    use qnic_abi::event::{Event, Kind, FAULT_WRITE};
    use qnic_abi::{uapi, SharedMemory};
    use std::vec::Vec;
    use zerocopy::IntoBytes;

    fn fault(driver: &Driver<Fake>, vni: VniId, address: u64, pages: u32) -> Handled {
        let event = Event {
            kind: (Kind::PageFault as u32).into(),
            vni: vni.0.into(),
            flags: FAULT_WRITE.into(),
            address: address.into(),
            pages: pages.into(),
            status: 0.into(),
            reserved: 0.into(),
        };
        driver.handle_event(event.as_bytes().try_into().unwrap())
    }

    /// A process that exports pages 16 to 23, mapped and not resident.
    fn exporter(fake: &Fake) -> (Arc<Driver<Fake>>, Process<Fake>) {
        let driver = fake.start().unwrap();
        let process = register(&driver);
        fake.kernel.map(16, 8, false);
        let mut call = uapi::Export {
            access: 3.into(),
            address: (16 * PAGE).into(),
            length: (8 * PAGE).into(),
            ..Default::default()
        };
        process.export(&mut call).unwrap();
        (driver, process)
    }

    fn answers(fake: &Fake) -> Vec<Status> {
        let nic = fake.nic();
        let codes = nic.faults_done.iter().map(|(_, done)| done.status.get());
        codes.map(|code| Status::try_from(code).unwrap()).collect()
    }

    #[test]
    fn pages_are_brought_in_and_the_nic_is_told() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        assert!(!driver.serve_fault());
        assert_eq!(
            fault(&driver, process.vni(), 17 * PAGE, 3),
            Handled::FaultQueued
        );
        assert_eq!(driver.counters.pages_mapped.get(), 0);
        assert!(driver.serve_fault() && !driver.serve_fault());
        assert_eq!(driver.counters.pages_mapped.get(), 3);
        assert_eq!(answers(&fake), [Status::Ok]);
        let (vni, done) = fake.nic().faults_done[0];
        assert_eq!((vni, done.address.get()), (process.vni().0, 17 * PAGE));
        assert_eq!(done.pages.get(), 3);
        assert_eq!(fake.nic().posted, 1, "a worker waits for the reply");
    }

    #[test]
    fn a_nic_that_takes_no_answers_is_stopped() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        fake.nic().next.push_back(Err(RequestError::TimedOut));
        assert!(driver.serve_fault());
        assert!(fake.nic().stopped && !driver.is_alive());
        let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        assert!(driver.serve_fault(), "faults that are left are taken out");
        assert_eq!(fake.nic().posted, 1);
    }

    #[test]
    fn only_pages_of_the_region_are_brought_in() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        fake.kernel.map(24, 8, false);
        let _ = fault(&driver, process.vni(), 22 * PAGE, u32::MAX);
        let _ = fault(&driver, process.vni(), 16 * PAGE, 0);
        while driver.serve_fault() {}
        assert_eq!(driver.counters.pages_mapped.get(), 3);
        assert_eq!(answers(&fake), [Status::Ok; 2]);
    }

    #[test]
    fn what_cannot_be_brought_in_is_answered_too() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        fake.kernel.unmap(18, 1);
        for address in [18 * PAGE, 0, u64::MAX, 24 * PAGE] {
            let _ = fault(&driver, process.vni(), address, 1);
        }
        let _ = fault(&driver, VniId(u16::MAX), 16 * PAGE, 1);
        while driver.serve_fault() {}
        let absent = Status::NoSuchSegment;
        assert_eq!(
            answers(&fake),
            [Status::PageUnavailable, absent, absent, absent]
        );
        assert_eq!(driver.counters.faults_failed.get(), 5);
    }

    #[test]
    fn peers_of_a_process_that_ended_are_told_so() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        fake.kernel.state().space_gone = true;
        let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        assert!(driver.serve_fault());
        assert_eq!(answers(&fake), [Status::Aborted]);
    }

    #[test]
    fn a_fault_of_a_process_that_the_nic_still_knows_is_answered_as_its_end() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        let known = fake.nic().processes.clone();
        drop(process);
        fake.nic().processes = known;
        assert!(driver.serve_fault());
        assert_eq!(answers(&fake), [Status::Aborted]);
    }

    #[test]
    fn pages_that_change_meanwhile_are_looked_up_again() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        fake.kernel.state().races = 5;
        let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        assert!(driver.serve_fault());
        assert_eq!(answers(&fake), [Status::Ok]);
        assert_eq!(fake.kernel.state().races, 0);
        assert_eq!(driver.counters.pages_mapped.get(), 1);
    }

    /// Found by the simulator: a transfer under the new name failed for the old one.
    #[test]
    fn a_range_that_was_exported_anew_is_looked_up_again() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        let process = Arc::new(process);
        let again = process.clone();
        fake.kernel.state().on_fault = Some(std::boxed::Box::new(move || {
            again.unexport(&mut uapi::Unexport::default()).unwrap();
            let mut call = uapi::Export {
                access: 3.into(),
                address: (16 * PAGE).into(),
                length: (8 * PAGE).into(),
                ..Default::default()
            };
            again.export(&mut call).unwrap();
            assert_eq!(call.status.get(), Status::Ok.code());
        }));
        let _ = fault(&driver, process.vni(), 17 * PAGE, 1);
        assert!(driver.serve_fault());
        assert_eq!(answers(&fake), [Status::Ok]);
        assert_eq!(driver.counters.pages_mapped.get(), 1);
    }

    #[test]
    fn a_frame_that_the_nic_holds_is_tried_again_and_left_to_it() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        let geometry = *driver.geometry();
        for frame in 0..64 {
            let word = geometry.lock_word(frame);
            fake.sram
                .store_u32(word, 1, core::sync::atomic::Ordering::Relaxed);
        }
        let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        assert!(driver.serve_fault());
        assert_eq!(answers(&fake), [Status::Ok]);
        assert_eq!(driver.counters.pages_mapped.get(), 0);
    }

    #[test]
    fn the_queue_of_faults_is_bounded() {
        let fake = Fake::new();
        let (driver, process) = exporter(&fake);
        for _ in 0..QUEUE_FAULTS {
            assert!(driver.event_room());
            let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
        }
        assert!(!driver.event_room());
        let refused = fault(&driver, process.vni(), 16 * PAGE, 1);
        assert_eq!(refused, Handled::Refused);
        assert!(driver.serve_fault() && driver.event_room());
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let fake = Fake::new();
        let driver = fake.start().unwrap();
        let mut bytes = [0xffu8; 32];
        assert_eq!(driver.handle_event(&bytes), Handled::Refused);
        bytes[0..4].copy_from_slice(&0u32.to_le_bytes());
        assert_eq!(driver.handle_event(&bytes), Handled::Refused);
        assert!(!driver.serve_fault());
    }
}
