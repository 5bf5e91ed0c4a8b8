use super::*;
use crate::platform::RequestError;
use crate::testing::{event, export, exporter, mapped, Fake, PAGE};
use qnic_abi::{uapi, SharedMemory};
use std::vec::Vec;

/// Reports a page fault as the NIC does.
fn fault(driver: &Driver<Fake>, vni: VniId, address: u64, pages: u32) -> Handled {
    event(driver, Kind::PageFault, vni, address, pages)
}

fn statuses(fake: &Fake) -> Vec<Status> {
    let nic = fake.nic();
    let codes = nic.faults_done.iter().map(|(_, done)| done.status.get());
    codes.map(|code| Status::try_from(code).unwrap()).collect()
}

#[test]
fn pages_are_faulted_in_and_the_nic_is_told() {
    let (fake, driver, process) = exporter(8, false);
    assert!(!driver.serve_fault());
    let queued = fault(&driver, process.vni(), 17 * PAGE, 3);
    assert_eq!(queued, Handled::FaultQueued);
    assert_eq!(mapped(&process), 0);
    assert!(driver.serve_fault() && !driver.serve_fault());
    assert_eq!(mapped(&process), 3);
    assert_eq!(statuses(&fake), [Status::Ok]);
    let (vni, done) = fake.nic().faults_done[0];
    assert_eq!((vni, done.fault.get()), (process.vni().0, 0));
    assert_eq!(fake.nic().posted, 1, "no worker waits for the response");
}

#[test]
fn a_nic_that_takes_no_answers_is_stopped() {
    let (fake, driver, process) = exporter(8, false);
    let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
    fake.nic().next.push_back(Err(RequestError::TimedOut));
    assert!(driver.serve_fault());
    assert!(fake.nic().stopped && !driver.is_alive());
    let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
    assert!(driver.serve_fault(), "faults that are left are taken out");
    assert_eq!(fake.nic().posted, 1);
}

#[test]
fn only_pages_of_the_region_are_faulted_in() {
    let (fake, driver, process) = exporter(8, false);
    fake.kernel.map(24, 8, false);
    let _ = fault(&driver, process.vni(), 22 * PAGE, u32::MAX);
    let _ = fault(&driver, process.vni(), 16 * PAGE, 0);
    while driver.serve_fault() {}
    assert_eq!(mapped(&process), 3);
    assert_eq!(statuses(&fake), [Status::Ok; 2]);
}

#[test]
fn a_fault_that_fails_is_answered_too() {
    let (fake, driver, process) = exporter(8, false);
    fake.kernel.unmap(18, 1);
    for address in [18 * PAGE, 0, u64::MAX, 24 * PAGE] {
        let _ = fault(&driver, process.vni(), address, 1);
    }
    let _ = fault(&driver, VniId(u16::MAX), 16 * PAGE, 1);
    while driver.serve_fault() {}
    let absent = Status::NoSuchSegment;
    assert_eq!(
        statuses(&fake),
        [Status::PageUnavailable, absent, absent, absent]
    );
    assert_eq!(driver.device.counters.faults_failed.get(), 5);
}

#[test]
fn peers_of_a_process_that_ended_are_told_so() {
    let (fake, driver, process) = exporter(8, false);
    fake.kernel.state().space_gone = true;
    let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
    assert!(driver.serve_fault());
    assert_eq!(statuses(&fake), [Status::Aborted]);
}

#[test]
fn a_fault_of_a_process_that_the_nic_still_knows_is_answered_as_its_end() {
    let (fake, driver, process) = exporter(8, false);
    let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
    let known = fake.nic().processes.clone();
    drop(process);
    fake.nic().processes = known;
    assert!(driver.serve_fault());
    assert_eq!(statuses(&fake), [Status::Aborted]);
}

#[test]
fn pages_that_change_meanwhile_are_looked_up_again() {
    let (fake, driver, process) = exporter(8, false);
    fake.kernel.state().races = 5;
    let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
    assert!(driver.serve_fault());
    assert_eq!(statuses(&fake), [Status::Ok]);
    assert_eq!(fake.kernel.state().races, 0);
    assert_eq!(mapped(&process), 1);
}

/// Found by the simulator: a transfer to the new export failed because of the old one.
#[test]
fn a_range_that_was_exported_again_is_looked_up_again() {
    let (fake, driver, process) = exporter(8, false);
    let process = Arc::new(process);
    let again = process.clone();
    fake.kernel.state().on_fault = Some(std::boxed::Box::new(move || {
        again.unexport(&mut uapi::Unexport::default()).unwrap();
        let done = export(&again, 0, 16 * PAGE, 8 * PAGE).unwrap();
        assert_eq!(done.status.get(), Status::Ok.code());
    }));
    let _ = fault(&driver, process.vni(), 17 * PAGE, 1);
    assert!(driver.serve_fault());
    assert_eq!(statuses(&fake), [Status::Ok]);
    assert_eq!(mapped(&process), 1);
}

#[test]
fn a_frame_that_the_nic_holds_is_retried_and_left_to_it() {
    let (fake, driver, process) = exporter(8, false);
    let geometry = *driver.geometry();
    for frame in 0..64 {
        let word = geometry.lock_word(frame);
        fake.sram
            .store_u32(word, 1, core::sync::atomic::Ordering::Relaxed);
    }
    let _ = fault(&driver, process.vni(), 16 * PAGE, 1);
    assert!(driver.serve_fault());
    assert_eq!(statuses(&fake), [Status::Ok]);
    assert_eq!(mapped(&process), 0);
}

#[test]
fn the_queue_of_faults_is_bounded() {
    let (_, driver, process) = exporter(8, false);
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
fn malformed_events_are_refused() {
    let driver = Fake::new().start().unwrap();
    let mut bytes = [0xffu8; 32];
    assert_eq!(driver.handle_event(&bytes), Handled::Refused);
    bytes[0..4].copy_from_slice(&0u32.to_le_bytes());
    assert_eq!(driver.handle_event(&bytes), Handled::Refused);
    assert!(!driver.serve_fault());
}

/// A fault for reading is served where a fault for writing is refused, and each answer names the
/// access that it is for.
#[test]
fn a_page_that_is_read_only_is_faulted_in_for_reading_alone() {
    let (fake, driver, process) = exporter(8, false);
    fake.kernel.state().read_only.insert(17);
    for (flags, number) in [(FAULT_WRITE, 7), (0, 8)] {
        let wanted = Event {
            kind: (Kind::PageFault as u32).into(),
            vni: process.vni().0.into(),
            flags: flags.into(),
            address: (17 * PAGE).into(),
            pages: 1.into(),
            fault: number.into(),
            ..Default::default()
        };
        let queued = driver.handle_event(&zerocopy::transmute!(wanted));
        assert_eq!(queued, Handled::FaultQueued);
    }
    while driver.serve_fault() {}
    assert_eq!(statuses(&fake), [Status::ReadOnlyMemory, Status::Ok]);
    let nic = fake.nic();
    let numbers = nic.faults_done.iter().map(|(_, done)| done.fault.get());
    assert_eq!(numbers.collect::<Vec<_>>(), [7, 8]);
    drop(nic);
    assert_eq!(mapped(&process), 1);
}
