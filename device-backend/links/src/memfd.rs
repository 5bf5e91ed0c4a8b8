//! Memfds of a fixed size, for memory that processes share.

use std::fs::File;

use rustix::fs::{MemfdFlags, SealFlags};

/// A memfd of `bytes` bytes, all zero, with these seals. `name` appears in `/proc/*/maps`.
///
/// # Errors
/// Returns the error of the operating system.
pub fn sealed_memfd(name: &str, bytes: u64, seals: SealFlags) -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.set_len(bytes)?;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}
