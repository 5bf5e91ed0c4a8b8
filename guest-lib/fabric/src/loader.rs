//! The libfabric that has loaded this library: its version, its memory, its log.
//!
//! The library is not linked to libfabric: it is for versions from 1.17 to the newest, some of which are not
//! there when it is built. So it looks functions up in the loader, which is in this process already. It takes
//! them from `libfabric.so.1` itself, as Open MPI opens that where other libraries do not see it.
//!
//! # Invariants
//! - Each function has the type that libfabric's headers say.
//! - Without a loader (in tests) nothing is called.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::OnceLock;

use crate::sys::{Info, Provider, LOG_CORE};

/// What each version of libfabric 1 and 2 calls itself.
const LIBRARY: &CStr = c"libfabric.so.1";

/// What is taken for the version of a loader that does not tell it: the oldest that is supported.
const OLDEST: u32 = 1 << 16 | 17;

/// What the loader knows this provider by.
static PROVIDER: AtomicPtr<Provider> = AtomicPtr::new(std::ptr::null_mut());

type Version = extern "C" fn() -> u32;
type DuplicateInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
type FreeInfo = unsafe extern "C" fn(*mut Info);
type LogEnabled = unsafe extern "C" fn(*const Provider, c_int, c_int) -> c_int;
type Log =
    unsafe extern "C" fn(*const Provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);

/// Functions of the loader.
struct Functions {
    version: Version,
    duplicate_info: DuplicateInfo,
    free_info: FreeInfo,
    log_enabled: LogEnabled,
    log: Log,
}

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS.get_or_init(find).as_ref()
}

fn find() -> Option<Functions> {
    // SAFETY: it only looks whether the library is loaded. The handle is kept: the loader outlives this
    // library, which it closes.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    let library = match library.is_null() {
        true => libc::RTLD_DEFAULT,
        false => library,
    };
    let symbol = |name: &CStr| {
        // SAFETY: a handle of a library, and a text.
        let found: *mut c_void = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    // SAFETY: libfabric's headers declare these functions with these types, and they stay loaded.
    unsafe {
        Some(Functions {
            version: std::mem::transmute::<*mut c_void, Version>(symbol(c"fi_version")?),
            duplicate_info: std::mem::transmute::<*mut c_void, DuplicateInfo>(symbol(
                c"fi_dupinfo",
            )?),
            free_info: std::mem::transmute::<*mut c_void, FreeInfo>(symbol(c"fi_freeinfo")?),
            log_enabled: std::mem::transmute::<*mut c_void, LogEnabled>(symbol(c"fi_log_enabled")?),
            log: std::mem::transmute::<*mut c_void, Log>(symbol(c"fi_log")?),
        })
    }
}

/// The loader's version, as `FI_VERSION` makes it.
pub(crate) fn version() -> u32 {
    functions().map_or(OLDEST, |it| (it.version)())
}

/// A new `fi_info` with all attributes, all zero, of the loader's memory; `None` without memory or loader.
pub(crate) fn allocate_info() -> Option<*mut Info> {
    // SAFETY: without an info to duplicate it makes a new one.
    let info = unsafe { (functions()?.duplicate_info)(std::ptr::null()) };
    (!info.is_null()).then_some(info)
}

/// Frees a list of infos.
///
/// # Safety
/// All are of [`allocate_info`], and nothing uses them any more.
pub(crate) unsafe fn free_info(info: *mut Info) {
    if let Some(functions) = functions() {
        // SAFETY: as the caller promises.
        unsafe { (functions.free_info)(info) };
    }
}

/// Says where the provider is that the loader knows.
pub(crate) fn knows(provider: *mut Provider) {
    // Release: partner is the load of `log`.
    PROVIDER.store(provider, Ordering::Release);
}

/// Tells the loader's log (FI_LOG_LEVEL) what the text says, if its level is logged.
pub(crate) fn log(level: c_int, text: impl FnOnce() -> String) {
    let Some(functions) = functions() else {
        return;
    };
    // Acquire: partner is the store of `knows`.
    let provider = PROVIDER.load(Ordering::Acquire).cast_const();
    if provider.is_null() {
        return;
    }
    // SAFETY: a provider that lives as long as this library is loaded.
    if unsafe { (functions.log_enabled)(provider, level, LOG_CORE) } == 0 {
        return;
    }
    let Ok(text) = CString::new(text()) else {
        return;
    };
    // SAFETY: as above; the format takes one text.
    unsafe {
        (functions.log)(
            provider,
            level,
            LOG_CORE,
            c"qnic".as_ptr(),
            0,
            c"%s\n".as_ptr(),
            text.as_ptr(),
        );
    }
}
