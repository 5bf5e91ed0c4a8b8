//! Attempts to map of the device file what is not this process's.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use anyhow::{ensure, Context, Result};
use qnic::uapi::{self, MMAP_DOORBELL, MMAP_HOST_AREA, MMAP_WINDOW};
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::Attempt;

const PAGE: u64 = PAGE_SIZE as u64;
const WINDOW: u64 = WINDOW_BYTES as u64;
const READ: i32 = libc::PROT_READ;
const WRITE: i32 = libc::PROT_WRITE;
const BOTH: i32 = READ | WRITE;

/// Tries every mapping that must be refused: first on a file that registers nothing and
/// so owns nothing, then on one that has registered. In host mode there is no such file.
pub(crate) fn attempts(path: &str) -> Result<Vec<Attempt>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).open(path);
    let file = file.with_context(|| format!("open {path}"))?;
    let fd = file.as_raw_fd();
    let attempt = |what: &str, offset, length, protection| {
        let answer = map(fd, offset, length, protection);
        Attempt {
            what: what.into(),
            refused: answer.is_err(),
            answer: answer.map_or_else(|error| error.to_string(), |()| "mapped".into()),
        }
    };
    let mut attempts = vec![
        attempt("map an unregistered window", MMAP_WINDOW, WINDOW, BOTH),
        attempt("map an unregistered doorbell", MMAP_DOORBELL, PAGE, WRITE),
        attempt("map an unregistered host area", MMAP_HOST_AREA, PAGE, READ),
    ];
    attempts.extend([4, 8, 512, 1024, 4096].map(|page| {
        let what = format!("map SRAM page {page}");
        attempt(&what, page * PAGE, PAGE, BOTH)
    }));
    register(fd)?;
    let (next_window, next_doorbell) = (MMAP_WINDOW + WINDOW, MMAP_DOORBELL + PAGE);
    attempts.extend([
        attempt("map the window after this one", next_window, WINDOW, BOTH),
        attempt("map two windows", MMAP_WINDOW, 2 * WINDOW, BOTH),
        attempt("map two doorbell pages", MMAP_DOORBELL, 2 * PAGE, WRITE),
        attempt("map the next doorbell", next_doorbell, PAGE, WRITE),
        attempt("map the host area to write", MMAP_HOST_AREA, PAGE, BOTH),
        attempt("map beyond the host area", MMAP_HOST_AREA, 4 * PAGE, READ),
    ]);
    Ok(attempts)
}

fn register(fd: i32) -> Result<()> {
    let mut call = uapi::Register::default();
    let request = libc::c_ulong::from(uapi::REGISTER);
    // SAFETY: the request number and the struct belong together (uapi), and the struct
    // lives for the call.
    let result = unsafe { libc::ioctl(fd, request, std::ptr::from_mut(&mut call)) };
    ensure!(
        result == 0 && call.status.get() == 0,
        "register by ioctl: {} / {}",
        std::io::Error::last_os_error(),
        call.status.get()
    );
    Ok(())
}

/// Maps a range of the file, and unmaps it again.
fn map(fd: i32, offset: u64, length: u64, protection: i32) -> std::io::Result<()> {
    let (length, offset) = (length as usize, offset as libc::off_t);
    let anywhere = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; if it
    // succeeds it is not touched but unmapped.
    let address = unsafe { libc::mmap(anywhere, length, protection, libc::MAP_SHARED, fd, offset) };
    if address == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping that was just made, which nothing uses.
    unsafe { libc::munmap(address, length) };
    Ok(())
}
