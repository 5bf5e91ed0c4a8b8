//! The functions of the C shim: `border.h` in Rust, in the same order.

use core::ffi::c_void;

/// `struct qnic_dev`.
#[repr(C)]
pub(crate) struct QnicDev([u8; 0]);
/// `struct qnic_watch`.
#[repr(C)]
pub(crate) struct QnicWatch([u8; 0]);
/// `struct qnic_host_area`.
#[repr(C)]
pub(crate) struct QnicHostArea([u8; 0]);
/// `struct qnic_pin`.
#[repr(C)]
pub(crate) struct QnicPin([u8; 0]);
/// `struct mm_struct`.
#[repr(C)]
pub(crate) struct MmStruct([u8; 0]);

pub(crate) const MAP_WINDOW: i32 = 0;
pub(crate) const MAP_DOORBELL: i32 = 1;
pub(crate) const MAP_HOST_AREA: i32 = 2;

pub(crate) const MEMORY_DEVICE: i32 = 1;
pub(crate) const MEMORY_HUGETLB: i32 = 2;
pub(crate) const MEMORY_SHARED: i32 = 3;
pub(crate) const MEMORY_FILE: i32 = 4;

pub(crate) const POLL_READABLE: u32 = 1;
pub(crate) const POLL_GONE: u32 = 2;

/// Error numbers of the kernel.
pub(crate) mod errno {
    pub(crate) const ESRCH: i32 = 3;
    pub(crate) const EINTR: i32 = 4;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const ENODEV: i32 = 19;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENOTTY: i32 = 25;
    pub(crate) const ETIME: i32 = 62;
    pub(crate) const EPROTO: i32 = 71;
    pub(crate) const EBADFD: i32 = 77;
    pub(crate) const ETIMEDOUT: i32 = 110;
}

extern "C" {
    pub(crate) fn qnic_alloc(bytes: u64) -> *mut c_void;
    pub(crate) fn qnic_free(memory: *mut c_void);

    pub(crate) fn qnic_log(level: u32, text: *const u8, bytes: u64);
    pub(crate) fn qnic_bug() -> !;

    pub(crate) fn qnic_mutex_new() -> *mut c_void;
    pub(crate) fn qnic_mutex_free(lock: *mut c_void);
    pub(crate) fn qnic_mutex_lock(lock: *mut c_void);
    pub(crate) fn qnic_mutex_trylock(lock: *mut c_void) -> bool;
    pub(crate) fn qnic_mutex_unlock(lock: *mut c_void);
    pub(crate) fn qnic_spin_new() -> *mut c_void;
    pub(crate) fn qnic_spin_free(lock: *mut c_void);
    pub(crate) fn qnic_spin_lock(lock: *mut c_void) -> u64;
    pub(crate) fn qnic_spin_unlock(lock: *mut c_void, flags: u64);

    pub(crate) fn qnic_waiters_new() -> *mut c_void;
    pub(crate) fn qnic_waiters_free(waiters: *mut c_void);
    pub(crate) fn qnic_waiters_wake(waiters: *mut c_void);
    pub(crate) fn qnic_wait(
        waiters: *mut c_void,
        ready: extern "C" fn(*const c_void) -> bool,
        context: *const c_void,
        timeout_ns: i64,
    ) -> i32;

    pub(crate) fn qnic_now_ns() -> u64;
    pub(crate) fn qnic_give_way();
    pub(crate) fn qnic_random() -> u64;
    pub(crate) fn qnic_frames() -> u64;

    pub(crate) fn qnic_request(
        dev: *mut QnicDev,
        request: *const u8,
        reply: *mut u8,
        timeout_ms: u32,
        interruptible: bool,
    ) -> i32;
    pub(crate) fn qnic_post(dev: *mut QnicDev, request: *const u8, timeout_ms: u32) -> i32;
    pub(crate) fn qnic_stop(dev: *mut QnicDev);
    pub(crate) fn qnic_doorbell_offset(dev: *mut QnicDev, queue: u16) -> u32;
    pub(crate) fn qnic_dev_put(dev: *mut QnicDev);

    pub(crate) fn qnic_host_area_new() -> *mut QnicHostArea;
    pub(crate) fn qnic_host_area_free(area: *mut QnicHostArea);
    pub(crate) fn qnic_host_area_address(area: *mut QnicHostArea, page: u32) -> u64;
    pub(crate) fn qnic_host_area_store(area: *mut QnicHostArea, offset: u32, value: u64);

    pub(crate) fn qnic_space_get(mm: *mut MmStruct);
    pub(crate) fn qnic_space_put(mm: *mut MmStruct);

    pub(crate) fn qnic_watch_new(
        mm: *mut MmStruct,
        start: u64,
        bytes: u64,
        region: *mut c_void,
        watch: *mut *mut QnicWatch,
    ) -> i32;
    pub(crate) fn qnic_watch_free(watch: *mut QnicWatch);
    pub(crate) fn qnic_watch_set(watch: *mut QnicWatch, sequence: u64);
    pub(crate) fn qnic_watch_changed(watch: *mut QnicWatch, sequence: u64) -> bool;
    pub(crate) fn qnic_watch_lookup(
        watch: *mut QnicWatch,
        start: u64,
        count: u32,
        fault: bool,
        frames: *mut u64,
        sequence: *mut u64,
    ) -> i32;
    pub(crate) fn qnic_mark_dirty(frame: u64);

    pub(crate) fn qnic_may_use_physical() -> bool;
    pub(crate) fn qnic_pin_new(
        address: u64,
        bytes: u64,
        pin: *mut *mut QnicPin,
        physical: *mut u64,
    ) -> i32;
    pub(crate) fn qnic_pin_free(pin: *mut QnicPin);
}
