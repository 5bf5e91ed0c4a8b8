//! The entry points of `ffi.h`, which the shim calls.
//!
//! A `driver` is an `Arc<Driver>`, a `process` a `Box<Process>`, a `region` an
//! `Arc<Region>`, each as a raw pointer.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;
use core::ptr::NonNull;

use qnic_abi::attach::CONFIG_SIZE;
use qnic_abi::event::EVENT_BYTES;
use qnic_abi::host_area::{READ_ONLY_PAGES, WRITABLE_PAGES};
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::{pool, uapi, volume, PAGE_SIZE};
use qnic_driver::platform::Level;
use qnic_driver::{check_config, Handled, Region, StartError};

use crate::datagram::*;
use crate::ffi::{self, errno, MmStruct, QnicDev, QnicHostArea, QnicNotifier};
use crate::platform::{AddressSpace, Driver, Kernel, Process};
use crate::pools::*;
use crate::remote_memory::*;
use crate::shared::{driver_arc, driver_of, poll_bits, with_argument};
use crate::verbs::*;

// Each entry point has the type that ffi.h declares.
include!(concat!(env!("OUT_DIR"), "/entry.rs"));

/// All calls of the character device.
pub(crate) const CALLS: [u32; 22] = [
    uapi::REGISTER,
    uapi::EXPORT,
    uapi::UNEXPORT,
    uapi::IMPORT,
    uapi::WAIT,
    uapi::RESET_QUEUE,
    uapi::WAKE,
    uapi::PATH,
    uapi::INFO,
    uapi::COUNTERS,
    pool::OPEN_POOLS,
    pool::POOL_KICK,
    pool::POOL_WAIT,
    pool::POOL_INFO,
    volume::ATTACH_VOLUME,
    volume::DETACH_VOLUME,
    volume::VOLUME_INFO,
    volume::VOLUME_SERVER,
    volume::VOLUME_LATENCY,
    volume::SERVE_MEMORY,
    volume::LEAVE_MEMORY,
    volume::MEMORY_INFO,
];

/// Size of the argument of a call, which its ioctl number contains.
pub(crate) const fn argument_bytes(command: u32) -> u32 {
    command >> 16 & 0x3fff
}

/// Length of the host area's mapping in bytes.
const HOST_AREA_BYTES: u64 = (READ_ONLY_PAGES * PAGE_SIZE) as u64;
const POOL_BYTES: u64 = (WRITABLE_PAGES * PAGE_SIZE) as u64;

/// # Safety
/// `process` came from [`qnic_rs_register`] and was not released yet.
unsafe fn process_of<'a>(process: *mut c_void) -> &'a Process {
    // SAFETY: the caller's promise.
    unsafe { &*process.cast::<Process>() }
}

fn start_errno(error: StartError) -> i32 {
    crate::log(Level::Error, format_args!("{error}"));
    match error {
        StartError::NoMemory => errno::ENOMEM,
        StartError::NoSram | StartError::NoResponse(_) => errno::ETIMEDOUT,
        StartError::NotQnic { .. } => errno::ENODEV,
        _ => errno::EPROTO,
    }
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_check_config(config: *const u8) -> i32 {
    // SAFETY: the shim passes QNIC_CONFIG_BYTES bytes.
    let config = unsafe { &*config.cast::<[u8; CONFIG_SIZE]>() };
    match check_config(config) {
        Ok(config) => config.doorbells as i32,
        Err(error) => -start_errno(error),
    }
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_start(
    dev: *mut QnicDev,
    config: *const u8,
    sram: *mut u8,
    sram_bytes: u64,
    driver: *mut *mut c_void,
) -> i32 {
    let (Some(dev), Some(sram)) = (NonNull::new(dev), NonNull::new(sram)) else {
        return -errno::EINVAL;
    };
    // SAFETY: the shim gives a reference away, under which the SRAM stays mapped.
    let kernel = unsafe { Kernel::new(dev, sram, sram_bytes as usize) };
    // SAFETY: the shim passes QNIC_CONFIG_BYTES bytes.
    let config = unsafe { &*config.cast::<[u8; CONFIG_SIZE]>() };
    let started = check_config(config).and_then(|config| Driver::start(kernel, &config));
    match started {
        Ok(started) => {
            // SAFETY: the shim passes a pointer to a variable.
            unsafe { *driver = Arc::into_raw(started).cast_mut().cast() };
            0
        }
        Err(error) => -start_errno(error),
    }
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_get(driver: *mut c_void) -> *mut c_void {
    // SAFETY: the shim holds a reference.
    unsafe { Arc::increment_strong_count(driver.cast::<Driver>()) };
    driver
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_put(driver: *mut c_void) {
    // SAFETY: the shim gives a reference back.
    drop(unsafe { Arc::from_raw(driver.cast::<Driver>()) });
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_event(driver: *mut c_void, event: *const u8) -> bool {
    // SAFETY: the shim passes QNIC_EVENT_BYTES bytes that the device has given back.
    let event = unsafe { &*event.cast::<[u8; EVENT_BYTES]>() };
    // SAFETY: the shim holds a reference.
    unsafe { driver_of(driver) }.handle_event(event) == Handled::FaultQueued
}

/// Entry points that call one method of a driver or process.
macro_rules! forward {
    ($($name:ident($of:ident) $(-> $result:ty)? = $method:expr;)*) => {$(
        #[no_mangle]
        unsafe extern "C" fn $name(object: *mut c_void) $(-> $result)? {
            // SAFETY: the shim holds a reference on the driver, or has not released
            // the process.
            $method(unsafe { $of(object) })
        }
    )*};
}

forward! {
    qnic_rs_announce_reset(driver_of) = Driver::announce_reset;
    qnic_rs_begin_removal(driver_of) = Driver::begin_removal;
    qnic_rs_detach(driver_of) = Driver::detach;
    qnic_rs_event_room(driver_of) -> bool = Driver::event_room;
    qnic_rs_serve_fault(driver_of) -> bool = Driver::serve_fault;
    qnic_rs_check_device(driver_of) = Driver::check_device;
    qnic_rs_host_area(process_of) -> *mut QnicHostArea = |of: &Process| of.host_area().raw.as_ptr();
    qnic_rs_waiters(process_of) -> *mut c_void = |of: &Process| of.waiters().0.as_ptr();
    qnic_rs_poll(process_of) -> i32 = poll;
    qnic_rs_close(process_of) = Process::close;
}

fn poll(process: &Process) -> i32 {
    poll_bits(process.is_readable(), !process.is_open())
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_register(
    driver: *mut c_void,
    mm: *mut MmStruct,
    pid: u32,
    argument: *mut u8,
    process: *mut *mut c_void,
) -> i32 {
    let Some(mm) = NonNull::new(mm) else {
        return -errno::EINVAL;
    };
    // SAFETY: the shim passes the caller's address space.
    let space = unsafe { AddressSpace::new(mm) };
    // SAFETY: the shim holds a reference.
    let driver = unsafe { driver_arc(driver) };
    let mut registered = None;
    let call = |call: &mut uapi::Register| {
        registered = driver.register(space, pid, call)?;
        Ok(())
    };
    // SAFETY: the shim's buffer has room for every argument.
    let result = unsafe { with_argument(argument, call) };
    if let Some(registered) = registered {
        // SAFETY: the shim passes a pointer to a variable.
        unsafe { *process = Box::into_raw(Box::new(registered)).cast() };
    }
    result
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_info(driver: *mut c_void, argument: *mut u8) -> i32 {
    // SAFETY: the shim holds a reference.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: the shim's buffer has room for every argument.
    unsafe { with_argument(argument, |call: &mut uapi::Info| driver.info(call)) }
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_counters(driver: *mut c_void, argument: *mut u8) -> i32 {
    // SAFETY: the shim holds a reference.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: the shim's buffer has room for every argument.
    unsafe { with_argument(argument, |call: &mut uapi::Counters| driver.counters(call)) }
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_call(process: *mut c_void, command: u32, argument: *mut u8) -> i32 {
    // SAFETY: the shim has not released the process.
    let process = unsafe { process_of(process) };
    // SAFETY: the shim's buffer has room for every argument.
    unsafe {
        match command {
            uapi::EXPORT => with_argument(argument, |call| process.export(call)),
            uapi::UNEXPORT => with_argument(argument, |call| process.unexport(call)),
            uapi::IMPORT => with_argument(argument, |call| process.import(call)),
            uapi::WAIT => with_argument(argument, |call| process.wait(call)),
            uapi::RESET_QUEUE => with_argument(argument, |call| process.reset_queue(call)),
            uapi::WAKE => with_argument(argument, |call| process.wake(call)),
            uapi::PATH => with_argument(argument, |call| process.path(call)),
            _ => -errno::ENOTTY,
        }
    }
}

#[no_mangle]
extern "C" fn qnic_rs_argument_bytes(command: u32) -> i32 {
    match CALLS.contains(&command) {
        true => argument_bytes(command) as i32,
        false => -errno::ENOTTY,
    }
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_mapping(
    process: *mut c_void,
    offset: u64,
    length: u64,
    writable: bool,
    value: *mut u64,
) -> i32 {
    // SAFETY: the shim has not released the process.
    let process = unsafe { process_of(process) };
    if !process.is_open() {
        return -errno::ENODEV;
    }
    let (kind, what) = match (offset, length) {
        (uapi::MMAP_WINDOW, length) if length == WINDOW_BYTES as u64 => {
            (ffi::QNIC_MAP_WINDOW, process.window_offset() as u64)
        }
        (uapi::MMAP_DOORBELL, length) if length == PAGE_SIZE as u64 => {
            (ffi::QNIC_MAP_DOORBELL, process.doorbell_queue().into())
        }
        (uapi::MMAP_HOST_AREA, HOST_AREA_BYTES) if writable => return -errno::EACCES,
        (uapi::MMAP_HOST_AREA, HOST_AREA_BYTES) => (ffi::QNIC_MAP_HOST_AREA, 0),
        (uapi::MMAP_POOL, POOL_BYTES) => (ffi::QNIC_MAP_POOL, 0),
        _ => return -errno::EINVAL,
    };
    // SAFETY: the shim passes a pointer to a variable.
    unsafe { *value = what };
    kind
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_release(process: *mut c_void) {
    // SAFETY: the shim gives the process back.
    drop(unsafe { Box::from_raw(process.cast::<Process>()) });
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_is_young(
    region: *mut c_void,
    start: u64,
    end: u64,
    forget: bool,
) -> bool {
    // SAFETY: the region lives until qnic_notifier_free has returned.
    let region = unsafe { &*region.cast::<Region<Kernel>>() };
    region.is_young(start, end, forget)
}

#[no_mangle]
unsafe extern "C" fn qnic_rs_invalidate(
    region: *mut c_void,
    notifier: *mut QnicNotifier,
    start: u64,
    end: u64,
    may_sleep: bool,
    sequence: u64,
) -> bool {
    // SAFETY: the region lives until qnic_notifier_free has returned.
    let region = unsafe { &*region.cast::<Region<Kernel>>() };
    region.invalidate(start, end, may_sleep, || {
        // SAFETY: this is the notifier's callback, and `notifier` its notifier; the
        // region's lock is held.
        unsafe { ffi::qnic_notifier_set_seq(notifier, sequence) }
    })
}
