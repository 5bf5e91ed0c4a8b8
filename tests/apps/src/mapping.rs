//! Memory of this process that is mapped, moved, protected and unmapped while it is
//! exported, as a careless program would, and processes that fork (unsafe shell).
//!
//! A [`Mapping`] is never borrowed: its words are loaded and stored one by one, atomically,
//! because the NIC writes there too. Code that unmaps it must not access it before it is
//! mapped anew: an access would end the process. The registers of a device are accessed likewise.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use qnic::{Access, Endpoint, Segment, SegmentName};
use qnic_abi::PAGE_SIZE;
use rustix::fs::FallocateFlags;
use rustix::io::retry_on_intr;
use rustix::process::{waitpid, Pid, WaitOptions};

/// Bytes of a word.
const WORD: usize = 8;

pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// A range of addresses that this process has reserved for one purpose.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: usize,
    length: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Fails for no range that was mapped; a hole is no error.
        let _ = self.unmap();
    }
}

impl Mapping {
    /// Fresh private anonymous memory, zeroed; `bytes` is rounded up to pages.
    pub(crate) fn private(bytes: usize) -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(bytes, READ_WRITE, flags, None)
    }

    /// Private memory that starts at a multiple of `alignment`, a power of two.
    pub(crate) fn aligned(bytes: usize, alignment: usize) -> Result<Self> {
        let mut wide = Self::private(bytes + alignment)?;
        let start = wide.address.next_multiple_of(alignment);
        let end = wide.address + wide.length;
        let length = bytes.next_multiple_of(PAGE_SIZE);
        drop(Mapping {
            address: start + length,
            length: end - start - length,
        });
        // What is before the aligned part stays reserved for ever.
        wide.length = 0;
        Ok(Mapping {
            address: start,
            length,
        })
    }

    /// What mmap gives for these arguments, at an address of the kernel's choice.
    pub(crate) fn new(
        bytes: usize,
        protection: i32,
        flags: i32,
        fd: Option<RawFd>,
    ) -> Result<Self> {
        let length = bytes.next_multiple_of(PAGE_SIZE);
        let (anywhere, fd) = (std::ptr::null_mut(), fd.unwrap_or(-1));
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { libc::mmap(anywhere, length, protection, flags, fd, 0) };
        Ok(Mapping {
            address: mapped(address)?,
            length,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn words(&self) -> usize {
        self.length / WORD
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words());
        // SAFETY: within the range, aligned, and mapped unless its owner has
        // unmapped it (module documentation); accessed through atomics only.
        unsafe { AtomicU64::from_ptr((self.address + index * WORD) as *mut u64) }
    }

    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// A register of a device, 32 bits at a multiple of four bytes.
    fn register(&self, offset: usize) -> &AtomicU32 {
        assert!(offset % 4 == 0 && offset + 4 <= self.length);
        // SAFETY: within the range, aligned, and mapped unless its owner has
        // unmapped it (module documentation); accessed through atomics only.
        unsafe { AtomicU32::from_ptr((self.address + offset) as *mut u32) }
    }

    pub(crate) fn load_u32(&self, offset: usize) -> u32 {
        self.register(offset).load(Ordering::Acquire)
    }

    pub(crate) fn store_u32(&self, offset: usize, value: u32) {
        self.register(offset).store(value, Ordering::Release);
    }

    pub(crate) fn export(
        &self,
        endpoint: &Endpoint,
        name: SegmentName,
        access: Access,
    ) -> qnic::Result<Segment> {
        // SAFETY: the words are accessed through atomics only. The range does not
        // always stay mapped, but the library never touches the memory of a
        // segment that is not used as an inline source, which this one is not.
        unsafe { endpoint.export_range(name, self.address as *mut u8, self.length, access) }
    }

    /// Unmaps it: a hole remains.
    pub(crate) fn unmap(&self) -> Result<()> {
        if self.length == 0 {
            return Ok(());
        }
        // SAFETY: the range is this object's own.
        check(unsafe { libc::munmap(self.address as *mut _, self.length) })
    }

    /// Maps private anonymous memory at the same addresses: into the hole, or instead of
    /// what is there.
    pub(crate) fn map_anew(&self, replace: bool) -> Result<()> {
        let fixed = match replace {
            true => libc::MAP_FIXED,
            false => libc::MAP_FIXED_NOREPLACE,
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        self.map_other(READ_WRITE, flags, None)
    }

    /// What mmap gives for these arguments, at the same addresses.
    pub(crate) fn map_other(&self, protection: i32, flags: i32, fd: Option<RawFd>) -> Result<()> {
        let (address, fd) = (self.address as *mut _, fd.unwrap_or(-1));
        // SAFETY: the range is this object's own.
        mapped(unsafe { libc::mmap(address, self.length, protection, flags, fd, 0) }).map(drop)
    }

    /// Moves its pages to new addresses; a hole remains here.
    pub(crate) fn move_away(&self) -> Result<Mapping> {
        let new = Self::private(self.length)?;
        let (from, to) = (self.address as *mut _, new.address as *mut libc::c_void);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are objects' own.
        mapped(unsafe { libc::mremap(from, self.length, self.length, flags, to) })?;
        Ok(new)
    }

    pub(crate) fn protect(&self, protection: i32) -> Result<()> {
        self.protect_part(0, self.length, protection)
    }

    pub(crate) fn protect_part(&self, offset: usize, bytes: usize, protection: i32) -> Result<()> {
        assert!(offset + bytes <= self.length);
        // SAFETY: the range is this object's own.
        check(unsafe { libc::mprotect((self.address + offset) as *mut _, bytes, protection) })
    }

    pub(crate) fn advise(&self, advice: i32) -> Result<()> {
        // SAFETY: the range is this object's own, and its owner knows what the
        // advice does to its content.
        check(unsafe { libc::madvise(self.address as *mut _, self.length, advice) })
    }
}

/// Exports memory that is not a [`Mapping`] of its own.
pub(crate) fn export_foreign(
    endpoint: &Endpoint,
    name: SegmentName,
    address: *mut u8,
    length: usize,
    access: Access,
) -> qnic::Result<Segment> {
    // SAFETY: the caller keeps the range mapped while it looks at the result, and
    // accesses what `access` lets peers write through atomics only.
    unsafe { endpoint.export_range(name, address, length, access) }
}

fn check(result: i32) -> Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

fn mapped(address: *mut libc::c_void) -> Result<usize> {
    match address {
        libc::MAP_FAILED => Err(Error::last_os_error()),
        address => Ok(address as usize),
    }
}

#[derive(Debug)]
pub(crate) struct Forked(Option<Pid>);

/// Forks; the child runs `child` and ends, with status 0 if that returned true. No other thread of
/// this process holds a lock that `child` takes: it has this thread alone.
pub(crate) fn fork(child: impl FnOnce() -> bool) -> Result<Forked> {
    // SAFETY: the C library keeps its own state whole, and the caller the rest.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last_os_error()),
        0 => {
            let status = i32::from(!child());
            // SAFETY: ends the child at once; destructors are the parent's.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(Forked(Pid::from_raw(pid))),
    }
}

impl Forked {
    /// Waits for its end; returns true if it ended with status 0.
    pub(crate) fn succeeded(self) -> Result<bool> {
        let ended = retry_on_intr(|| waitpid(self.0, WaitOptions::empty()))?;
        Ok(ended.is_some_and(|(_, status)| status.exit_status() == Some(0)))
    }
}

/// A file of this many bytes in memory; flags are those of memfd_create.
pub(crate) fn memory_file(bytes: usize, flags: u32) -> Result<File> {
    // SAFETY: the name is a string; the result is a descriptor that nothing else owns.
    let fd = unsafe { libc::memfd_create(c"qnic-life".as_ptr(), flags) };
    sized(fd, bytes)
}

/// A file of this many bytes in memory that the kernel itself has no access to.
pub(crate) fn secret_file(bytes: usize) -> Result<File> {
    // SAFETY: takes no pointer; the result is a descriptor that nothing else owns.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    sized(fd as RawFd, bytes)
}

/// Lets nothing but a program that reads the result serve the mapping's pages (userfaultfd(2)).
pub(crate) fn serve_by_program(memory: &Mapping) -> Result<OwnedFd> {
    /// The ioctls, and what they take (linux/userfaultfd.h).
    const API: (libc::Ioctl, [u64; 3]) = (0xc018_aa3f_u32 as libc::Ioctl, [0xaa, 0, 0]);
    const REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const MISSING: u64 = 1;
    // SAFETY: takes no pointer; the result is a descriptor that nothing else owns.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: it has just been opened.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let mut api = API.1;
    let mut range = [memory.address as u64, memory.length as u64, MISSING, 0];
    // SAFETY: the kernel reads and writes structures of 24 and 32 bytes, which these are.
    let done = unsafe {
        libc::ioctl(fd.as_raw_fd(), API.0, api.as_mut_ptr()) == 0
            && libc::ioctl(fd.as_raw_fd(), REGISTER, range.as_mut_ptr()) == 0
    };
    if done {
        Ok(fd)
    } else {
        Err(Error::last_os_error())
    }
}

fn sized(fd: RawFd, bytes: usize) -> Result<File> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the caller has just opened it.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// Reads a file of the mapping's length into it, past the page cache.
pub(crate) fn read_direct(path: &Path, to: &Mapping) -> Result<()> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_DIRECT).open(path)?;
    read_direct_at(&file, 0, to, to.length)
}

/// Reads so many bytes of a file that is open for reads past the page cache.
pub(crate) fn read_direct_at(file: &File, from: u64, to: &Mapping, bytes: usize) -> Result<()> {
    assert!(bytes <= to.length);
    let (fd, address) = (file.as_raw_fd(), to.address as *mut _);
    // SAFETY: the whole range is mapped, and written by the kernel as by any other process.
    let read = unsafe { libc::pread(fd, address, bytes, from as libc::off_t) };
    match usize::try_from(read) {
        Err(_) => Err(Error::last_os_error()),
        Ok(read) if read != bytes => Err(ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(()),
    }
}

/// Frees the first bytes of a file: they are zero then.
pub(crate) fn punch_hole(file: &File, bytes: usize) -> Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, 0, bytes as u64)?)
}

pub(crate) fn keep_across_exec(fd: RawFd) -> Result<()> {
    // SAFETY: changes a flag of a file descriptor, whatever it is.
    check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })
}
