use super::*;
use crate::platform::RequestError;
use crate::testing::{counted, event, register, running, Fake};
use core::sync::atomic::Ordering;
use qnic_abi::counters::CounterSource;
use qnic_abi::event::Kind;
use qnic_abi::header::MAGIC;
use qnic_abi::host_area::{GONE, WAKE_GENERATION};
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::SharedMemory;
use std::vec::Vec;

fn wake_event(driver: &Driver<Fake>, vni: VniId) {
    let _ = event(driver, Kind::Wake, vni, 0, 0);
}

/// The wake generation in the host area.
fn generation(process: &Process<Fake>) -> u64 {
    process
        .host_area()
        .load_u64(WAKE_GENERATION, Ordering::Acquire)
}

/// The status with which the registration of a process is refused.
fn refused(driver: &Arc<Driver<Fake>>, mut call: uapi::Register) -> u32 {
    assert!(driver.register((), 1, &mut call).unwrap().is_none());
    call.status.get()
}

/// Runs `action` while a thread waits for another generation than the present one.
fn wait_during(process: &Process<Fake>, action: impl FnOnce()) -> Result<u64, CallError> {
    let present = generation(process);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(process, present, -1));
        action();
        waiter.join().unwrap()
    })
}

fn wait(process: &Process<Fake>, generation: u64, ms: i64) -> Result<u64, CallError> {
    let mut call = uapi::Wait {
        generation: generation.into(),
        timeout_ns: (ms * 1_000_000).into(),
        ..Default::default()
    };
    process.wait(&mut call).map(|()| call.generation.get())
}

#[test]
fn each_process_gets_its_own_window_and_port() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    let on_nine = uapi::Register {
        port: 9.into(),
        ..Default::default()
    };
    let mut call = on_nine;
    let first = driver.register((), 1, &mut call).unwrap().unwrap();
    assert_eq!((call.port.get(), call.node.get()), (9, 7));
    assert_eq!(call.doorbell_value.get(), first.doorbell_queue());
    assert_eq!(refused(&driver, on_nine), Status::PortInUse.code());
    let others: Vec<_> = (0..3).map(|_| register(&driver)).collect();
    let exhausted = refused(&driver, uapi::Register::default());
    assert_eq!(exhausted, Status::Exhausted.code());
    assert_eq!(fake.nic().processes.len(), 4);
    let vnis: std::collections::BTreeSet<_> = others.iter().map(Process::vni).collect();
    assert!(vnis.len() == 3 && !vnis.contains(&first.vni()));
    drop(others);
    drop(first);
    assert!(fake.nic().processes.is_empty());
}

#[test]
fn a_process_gets_a_zeroed_window() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    for vni in 0..4 {
        let offset = driver.geometry().window_offset(VniId(vni));
        for word in 0..WINDOW_BYTES / 8 {
            let word = offset + word * 8;
            fake.sram.store_u64(word, u64::MAX, Ordering::Relaxed);
        }
    }
    let process = register(&driver);
    let start = process.window_offset();
    for word in 0..WINDOW_BYTES / 8 {
        assert_eq!(fake.sram.load_u64(start + word * 8, Ordering::Relaxed), 0);
    }
    let end = start + WINDOW_BYTES;
    assert_eq!(fake.sram.load_u64(end, Ordering::Relaxed), u64::MAX);
}

/// What the NIC's memory is divided in is in the system's log (Q17).
#[test]
fn the_memory_map_is_printed() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    let log = fake.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("SRAM 0x"))
        .collect();
    let parts: Vec<_> = driver.geometry().parts().collect();
    assert_eq!(lines.len(), parts.len());
    for (line, part) in lines.iter().zip(parts) {
        let (first, end) = (part.offset, part.offset + part.bytes);
        let range = std::format!("SRAM {first:#010x} to {end:#010x}: {}", part.name);
        assert!(
            line.contains(&range) && line.contains(part.writer),
            "{line}"
        );
    }
}

#[test]
fn a_refused_registration_leaves_nothing() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    for _ in 0..10 {
        let refusal = Status::PortInUse.code();
        fake.nic().next.push_back(Ok(refusal));
        assert_eq!(refused(&driver, uapi::Register::default()), refusal);
    }
    let mut call = uapi::Register {
        flags: 2.into(),
        ..Default::default()
    };
    let result = driver.register((), 1, &mut call);
    assert_eq!(result.err(), Some(CallError::Invalid));
    register(&driver);
}

#[test]
fn a_wake_event_ends_a_wait() {
    let (_, driver, process) = running();
    assert!(!process.is_readable());
    assert_eq!(wait(&process, 0, 1), Err(CallError::TimedOut));
    let waited = wait_during(&process, || wake_event(&driver, process.vni()));
    assert_eq!(waited, Ok(1));
    assert_eq!(generation(&process), 1);
    assert_eq!(wait(&process, 0, 0), Ok(1));
    // A VNI without a process, and one out of range: nothing happens.
    wake_event(&driver, VniId(3));
    wake_event(&driver, VniId(u16::MAX));
}

fn mark_seen(process: &Process<Fake>) -> Result<u64, CallError> {
    let mut call = uapi::Wait {
        flags: uapi::WAIT_SEEN.into(),
        ..Default::default()
    };
    process.wait(&mut call).map(|()| call.generation.get())
}

#[test]
fn poll_reports_wake_events_until_they_are_marked_as_seen() {
    let (_, driver, process) = running();
    assert!(!process.is_readable());
    wake_event(&driver, process.vni());
    assert_eq!(wait(&process, 0, 0), Ok(1));
    assert!(process.is_readable(), "a waiting thread does not mark it");
    assert_eq!(mark_seen(&process), Ok(1));
    assert!(!process.is_readable());
    let mut unknown = uapi::Wait {
        flags: 2.into(),
        ..Default::default()
    };
    assert_eq!(process.wait(&mut unknown), Err(CallError::Invalid));
    driver.begin_removal();
    assert!(process.is_readable(), "poll reports the loss of the device");
    assert_eq!(mark_seen(&process), Err(CallError::NoDevice));
}

#[test]
fn a_process_can_wake_itself() {
    let (_, driver, process) = running();
    let other = register(&driver);
    let waited = wait_during(&process, || {
        process.wake(&mut uapi::Wake::default()).unwrap()
    });
    assert_eq!(waited, Ok(1));
    assert!(process.is_readable() && !other.is_readable());
    let mut malformed = uapi::Wake {
        reserved: 1.into(),
        ..Default::default()
    };
    assert_eq!(process.wake(&mut malformed), Err(CallError::Invalid));
    process.close();
    let closed = process.wake(&mut uapi::Wake::default());
    assert_eq!(closed, Err(CallError::NotRegistered));
}

#[test]
fn the_route_to_a_node_is_what_the_nic_says() {
    let (_, _driver, process) = running();
    let path = |node: u16, reserved: u16| {
        let mut call = uapi::Path {
            node: node.into(),
            reserved: reserved.into(),
            ..Default::default()
        };
        process.path(&mut call).map(|()| call)
    };
    let known = path(1, 0).unwrap();
    assert_eq!(
        (known.status.get(), known.path.max_payload.get()),
        (0, 1024)
    );
    let unknown = path(2, 0).unwrap().status.get();
    assert_eq!(unknown, Status::NoSuchNode.code());
    assert_eq!(path(1, 1).err(), Some(CallError::Invalid));
    process.close();
    assert_eq!(path(1, 0).err(), Some(CallError::NotRegistered));
}

#[test]
fn removal_wakes_every_waiter_and_fails_every_call() {
    let (fake, driver, process) = running();
    driver.announce_reset();
    assert!(fake.nic().reset_announced);
    let waited = wait_during(&process, || driver.begin_removal());
    assert_eq!(waited, Err(CallError::NoDevice));
    fake.nic().stopped = true;
    driver.detach();
    assert_eq!(wait(&process, 0, 0), Err(CallError::NoDevice));
    let reset = process.reset_queue(&mut uapi::ResetQueue::default());
    assert_eq!(reset, Err(CallError::NoDevice));
    let import = process.import(&mut uapi::Import::default());
    assert_eq!(import, Err(CallError::NoDevice));
    let register = driver.register((), 1, &mut uapi::Register::default());
    assert_eq!(register.err(), Some(CallError::NoDevice));
    let info = driver.info(&mut uapi::Info::default());
    assert_eq!(info, Err(CallError::NoDevice));
}

/// A counter that only the NIC knows reaches a program by its name.
#[test]
fn counters_are_what_the_nic_has() {
    let (_fake, driver, _process) = running();
    let nic = counted(&driver, CounterSource::Nic);
    assert_eq!((nic["processes"], nic["newer_than_the_driver"]), (1, 7));
    let own = counted(&driver, CounterSource::Driver);
    assert_eq!((own.len(), own["faults_failed"]), (8, 0));
    assert_eq!(counted(&driver, CounterSource::Datagrams).len(), 21);
    for change in [
        |call: &mut uapi::Counters| call.source = 3.into(),
        |call: &mut uapi::Counters| call.reserved = 1.into(),
    ] {
        let mut call = uapi::Counters::default();
        change(&mut call);
        assert_eq!(driver.counters(&mut call), Err(CallError::Invalid));
    }
}

#[test]
fn a_nic_that_does_not_answer_is_stopped() {
    let (fake, driver, process) = running();
    fake.nic().next.push_back(Err(RequestError::TimedOut));
    let result = process.reset_queue(&mut uapi::ResetQueue::default());
    assert_eq!(result, Err(CallError::NoDevice));
    assert!(fake.nic().stopped && !driver.is_alive());
    assert!(fake.log().contains("broken"), "{}", fake.log());
}

#[test]
fn a_nic_that_died_is_detected_and_waiters_wake() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    fake.nic().next.push_back(Err(RequestError::TimedOut));
    driver.check_device();
    assert!(driver.is_alive(), "without a process there is no request");
    fake.nic().next.clear();
    let process = register(&driver);
    driver.check_device();
    assert!(driver.is_alive());
    let waited = wait_during(&process, || {
        fake.nic().next.push_back(Err(RequestError::TimedOut));
        driver.check_device();
    });
    assert_eq!(waited, Err(CallError::NoDevice));
    assert!(fake.nic().stopped);
}

#[test]
fn only_the_first_close_has_an_effect() {
    let (fake, driver, process) = running();
    process.close();
    let again = register(&driver);
    process.close();
    drop(process);
    assert!(fake.nic().processes.contains_key(&again.vni().0));
    assert!(again.is_open());
}

/// The NIC was reset, but not by the driver: the next call reports it, and the process sees it
/// in its host area without a call.
#[test]
fn a_reset_beneath_the_driver_is_told() {
    let fake = Fake::new();
    let driver = fake.start().unwrap();
    let process = register(&driver);
    wake_event(&driver, process.vni());
    assert_eq!(wait(&process, 0, 0), Ok(1));
    let waited = wait_during(&process, || {
        fake.sram.store_u64(MAGIC, 0, Ordering::Release);
        driver.check_device();
    });
    assert_eq!(waited, Err(CallError::NoDevice));
    assert!(process.is_readable() && !process.is_open());
    assert_eq!(generation(&process), GONE);
    wake_event(&driver, process.vni());
    assert_eq!(generation(&process), GONE, "it stays so");
    assert!(fake.nic().stopped && fake.log().contains("the NIC was reset"));
    assert_eq!(
        process.reset_queue(&mut Default::default()),
        Err(CallError::NoDevice)
    );
}
