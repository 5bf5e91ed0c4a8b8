//! Remote memory: the entry points of `ffi.h` for volumes and for the memory that this node
//! offers. A `volume` is a `Box<Volume>`, a `memory` a `Box<Memory>`.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;

use qnic_abi::volume::{
    AttachVolume, LeaveMemory, MemoryInfo, ServeMemory, VolumeInfo, VolumeLatency, VolumeServer,
    VOLUME_INFO, VOLUME_LATENCY, VOLUME_SERVER,
};
use qnic_abi::PAGE_SIZE;
use qnic_driver::datagram::Buffer;
use qnic_driver::remote_memory::{self, Failure, VolumeUser};
use qnic_driver::CallError;

use crate::ffi::{self, errno};
use crate::memory::Memory as Page;
use crate::platform::Kernel;
use crate::shared::{driver_of, with_argument};

type Volume = remote_memory::Volume<Kernel>;
type Memory = remote_memory::Memory<Kernel>;

/// The block layer: a token is one of its requests.
struct Blocks;

impl VolumeUser<Kernel> for Blocks {
    fn done(&self, token: u64, result: Result<(), Failure>, page: Buffer<Kernel>) {
        // The request still holds its page: it goes before the request ends.
        drop(page);
        let error = match result {
            Ok(()) => 0,
            Err(Failure::Full) => -errno::ENOSPC,
            Err(_) => -errno::EIO,
        };
        // SAFETY: the token is the request that `qnic_rs_volume_transfer` came with, and each
        // transfer that was taken ends once.
        unsafe { ffi::qnic_volume_done(token, error) }
    }
}

/// # Safety
/// `volume` came from [`qnic_rs_volume_attach`] and was not detached yet.
unsafe fn volume_of<'a>(volume: *mut c_void) -> &'a Volume {
    // SAFETY: the caller's promise.
    unsafe { &*volume.cast::<Volume>() }
}

/// # Safety
/// `memory` came from [`qnic_rs_memory_serve`] and was not ended yet.
unsafe fn memory_of<'a>(memory: *mut c_void) -> &'a Memory {
    // SAFETY: the caller's promise.
    unsafe { &*memory.cast::<Memory>() }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_volume_attach(
    driver: *mut c_void,
    slot: u16,
    argument: *mut u8,
    volume: *mut *mut c_void,
) -> i32 {
    // SAFETY: the shim passes a driver that it has a reference of.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: the shim's buffer has room for every argument; it passes a pointer to a variable.
    unsafe {
        with_argument(argument, |call: &mut AttachVolume| {
            if let Some(attached) = driver.open_volume(slot, call, Arc::new(Blocks))? {
                *volume = Box::into_raw(Box::new(attached)).cast();
            }
            Ok(())
        })
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_volume_detach(volume: *mut c_void) {
    // SAFETY: the shim gives the volume back.
    drop(unsafe { Box::from_raw(volume.cast::<Volume>()) });
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_volume_blocks(volume: *mut c_void) -> u64 {
    // SAFETY: the shim has not detached the volume.
    unsafe { volume_of(volume) }.blocks()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_volume_transfer(
    volume: *mut c_void,
    writes: bool,
    block: u64,
    page: u64,
    token: u64,
) -> bool {
    // SAFETY: the shim has not detached the volume.
    let volume = unsafe { volume_of(volume) };
    // SAFETY: the shim passes a whole page, and gives a reference away.
    let Some(page) = (unsafe { Page::from_raw(page, PAGE_SIZE) }) else {
        return false;
    };
    let page = Buffer::new(page);
    let taken = match writes {
        true => volume.write(token, block, page),
        false => volume.read(token, block, page),
    };
    taken.is_ok()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_volume_look_on(volume: *mut c_void) {
    // SAFETY: the shim has not detached the volume.
    unsafe { volume_of(volume) }.look_on();
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_volume_call(
    volume: *mut c_void,
    command: u32,
    argument: *mut u8,
) -> i32 {
    // SAFETY: the shim has not detached the volume.
    let volume = unsafe { volume_of(volume) };
    // SAFETY: the shim's buffer has room for every argument.
    unsafe {
        match command {
            VOLUME_INFO => with_argument(argument, |call: &mut VolumeInfo| {
                volume.info(call);
                Ok(())
            }),
            VOLUME_SERVER => with_argument(argument, |call: &mut VolumeServer| {
                volume.server_info(call);
                Ok(())
            }),
            VOLUME_LATENCY => {
                with_argument(argument, |call: &mut VolumeLatency| volume.latency(call))
            }
            _ => -errno::ENOTTY,
        }
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_memory_serve(
    driver: *mut c_void,
    argument: *mut u8,
    memory: *mut *mut c_void,
) -> i32 {
    // SAFETY: the shim passes a driver that it has a reference of.
    let driver = unsafe { driver_of(driver) };
    // SAFETY: the shim's buffer has room for every argument; it passes a pointer to a variable.
    unsafe {
        with_argument(argument, |call: &mut ServeMemory| {
            // Asked before they are taken: taking more would kill processes of this guest.
            if !ffi::qnic_may_take_pages(call.pages.get()) {
                return Err(CallError::NoMemory);
            }
            if let Some(served) = driver.open_memory(call)? {
                *memory = Box::into_raw(Box::new(served)).cast();
            }
            Ok(())
        })
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_memory_leave(
    memory: *mut c_void,
    argument: *mut u8,
) -> i32 {
    // SAFETY: the shim has not ended it.
    let memory = unsafe { memory_of(memory) };
    // SAFETY: the shim's buffer has room for every argument.
    unsafe {
        with_argument(argument, |call: &mut LeaveMemory| {
            memory.leave_call(call).map(drop)
        })
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_memory_abandon(memory: *mut c_void) {
    // SAFETY: the shim has not ended it.
    unsafe { memory_of(memory) }.abandon();
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_memory_end(memory: *mut c_void) {
    // SAFETY: the shim gives it back.
    drop(unsafe { Box::from_raw(memory.cast::<Memory>()) });
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_memory_info(memory: *mut c_void, argument: *mut u8) -> i32 {
    // SAFETY: the shim has not ended it; its buffer has room for every argument.
    unsafe {
        with_argument(argument, |call: &mut MemoryInfo| {
            match memory.is_null() {
                true => *call = MemoryInfo::default(),
                false => memory_of(memory).info(call),
            }
            Ok(())
        })
    }
}
