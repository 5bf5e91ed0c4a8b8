//! Attempts to map of the device file what is not this process's.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use qnic::uapi::{MMAP_DOORBELL, MMAP_HOST_AREA, MMAP_WINDOW};
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::PAGE_SIZE;
use qnic_apps::report::Attempt;

/// Tries every mapping that must be refused, on a file that registers nothing and
/// so owns nothing; in host mode there is no such file.
pub(crate) fn attempts(path: &str) -> Result<Vec<Attempt>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("open {path}"))?;
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let mut attempts = Vec::new();
    let mut try_one = |what: String, offset: u64, length: usize, protection: i32| {
        attempts.push(attempt(what, file.as_raw_fd(), offset, length, protection));
    };
    try_one(
        "map a window without registering".into(),
        MMAP_WINDOW,
        WINDOW_BYTES,
        read_write,
    );
    try_one(
        "map a doorbell without registering".into(),
        MMAP_DOORBELL,
        PAGE_SIZE,
        libc::PROT_WRITE,
    );
    try_one(
        "map a host area without registering".into(),
        MMAP_HOST_AREA,
        PAGE_SIZE,
        libc::PROT_READ,
    );
    for page in [4, 8, 512, 1024, 4096] {
        let offset = (page * PAGE_SIZE) as u64;
        try_one(
            format!("map SRAM page {page}"),
            offset,
            PAGE_SIZE,
            read_write,
        );
    }
    Ok(attempts)
}

/// The same for a file that has registered: beyond the window, the host area for
/// writing, more than one doorbell page.
pub(crate) fn attempts_registered(path: &str) -> Result<Vec<Attempt>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("open {path}"))?;
    let fd = file.as_raw_fd();
    let mut register = qnic::uapi::Register::default();
    // SAFETY: the request number and the struct belong together (uapi), and the
    // struct lives for the call.
    let result = unsafe {
        libc::ioctl(
            fd,
            libc::c_ulong::from(qnic::uapi::REGISTER),
            std::ptr::from_mut(&mut register),
        )
    };
    anyhow::ensure!(
        result == 0 && register.status.get() == 0,
        "register by ioctl: {} / {}",
        std::io::Error::last_os_error(),
        register.status.get()
    );
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    let tries = [
        (
            "map the window after this one",
            MMAP_WINDOW + WINDOW_BYTES as u64,
            WINDOW_BYTES,
            read_write,
        ),
        ("map two windows", MMAP_WINDOW, 2 * WINDOW_BYTES, read_write),
        (
            "map two doorbell pages",
            MMAP_DOORBELL,
            2 * PAGE_SIZE,
            libc::PROT_WRITE,
        ),
        (
            "map the doorbell after this one",
            MMAP_DOORBELL + PAGE_SIZE as u64,
            PAGE_SIZE,
            libc::PROT_WRITE,
        ),
        (
            "map the host area for writing",
            MMAP_HOST_AREA,
            PAGE_SIZE,
            read_write,
        ),
        (
            "map beyond the host area",
            MMAP_HOST_AREA,
            4 * PAGE_SIZE,
            libc::PROT_READ,
        ),
    ];
    let refused = tries.into_iter().map(|(what, offset, length, protection)| {
        attempt(what.into(), fd, offset, length, protection)
    });
    Ok(refused.collect())
}

fn attempt(what: String, fd: i32, offset: u64, length: usize, protection: i32) -> Attempt {
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing;
    // if it succeeds it is not touched but unmapped.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            protection,
            libc::MAP_SHARED,
            fd,
            offset as libc::off_t,
        )
    };
    if address == libc::MAP_FAILED {
        return Attempt {
            what,
            refused: true,
            answer: std::io::Error::last_os_error().to_string(),
        };
    }
    // SAFETY: the mapping that was just made, which nobody uses.
    unsafe { libc::munmap(address, length) };
    Attempt {
        what,
        refused: false,
        answer: "mapped".into(),
    }
}
