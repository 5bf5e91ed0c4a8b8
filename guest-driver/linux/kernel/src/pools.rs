//! Shared pools: the entry points of `ffi.h` for them. A `pools` is a `Box<Pools>`.

use alloc::boxed::Box;
use core::ffi::c_void;

use qnic_abi::pool::{
    OpenPools, PoolInfo, PoolKick, PoolWait, MMAP_POOLS, POOL_INFO, POOL_KICK, POOL_WAIT,
};
use qnic_abi::uapi;
use qnic_driver::platform::DeviceMemory;

use crate::ffi::errno;
use crate::platform::Kernel;
use crate::shared::{driver_arc, poll_bits, with_argument};

type Pools = qnic_driver::Pools<Kernel>;

/// # Safety
/// `pools` came from [`qnic_rs_pools_open`] and was not closed yet.
unsafe fn pools_of<'a>(pools: *mut c_void) -> &'a Pools {
    // SAFETY: the caller's promise.
    unsafe { &*pools.cast::<Pools>() }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_open(
    driver: *mut c_void,
    argument: *mut u8,
    pools: *mut *mut c_void,
) -> i32 {
    // SAFETY: the shim passes a driver that it has a reference of.
    let driver = unsafe { driver_arc(driver) };
    // SAFETY: the shim's buffer has room for every argument; it passes a pointer to a variable.
    unsafe {
        with_argument(argument, |call: &mut OpenPools| {
            if let Some(opened) = driver.open_pools(call)? {
                *pools = Box::into_raw(Box::new(opened)).cast();
            }
            Ok(())
        })
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_close(pools: *mut c_void) {
    // SAFETY: the shim gives the pools back.
    drop(unsafe { Box::from_raw(pools.cast::<Pools>()) });
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_call(
    pools: *mut c_void,
    command: u32,
    argument: *mut u8,
) -> i32 {
    // SAFETY: the shim has not closed the pools.
    let pools = unsafe { pools_of(pools) };
    // SAFETY: the shim's buffer has room for every argument.
    unsafe {
        match command {
            POOL_KICK => with_argument(argument, |call: &mut PoolKick| pools.kick(call)),
            POOL_WAIT => with_argument(argument, |call: &mut PoolWait| pools.wait(call)),
            POOL_INFO => with_argument(argument, |call: &mut PoolInfo| pools.info(call)),
            uapi::PATH => with_argument(argument, |call| pools.path(call)),
            _ => -errno::EBADFD,
        }
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_mapping(
    pools: *mut c_void,
    offset: u64,
    length: u64,
) -> i32 {
    // SAFETY: the shim has not closed the pools.
    let pools = unsafe { pools_of(pools) };
    match offset == MMAP_POOLS && length == pools.bytes() as u64 {
        true if pools.is_open() => 0,
        true => -errno::ENODEV,
        false => -errno::EINVAL,
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_page(pools: *mut c_void, index: u64) -> u64 {
    // SAFETY: the shim has not closed the pools.
    let pools = unsafe { pools_of(pools) };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    pools.page(index).map_or(0, |page| page.address())
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_waiters(pools: *mut c_void) -> *mut c_void {
    // SAFETY: the shim has not closed the pools.
    unsafe { pools_of(pools) }.waiters().0.as_ptr()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_pools_poll(pools: *mut c_void) -> i32 {
    // SAFETY: the shim has not closed the pools.
    let pools = unsafe { pools_of(pools) };
    poll_bits(pools.is_readable(), !pools.is_open())
}
