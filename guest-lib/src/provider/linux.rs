//! Guests: the character device of the kernel module (unsafe shell).
//!
//! Every registered process is one open file; the kernel takes everything back
//! when it is closed ([`qnic_abi::uapi`]).
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::host_area::{READ_ONLY_PAGES, WAKE_GENERATION, WRITABLE_PAGES};
use qnic_abi::pool::{self, OpenPools, PoolInfo, PoolKick, PoolWait};
use qnic_abi::shared::Ordering;
#[cfg(feature = "remote-memory")]
use qnic_abi::volume::{
    self, AttachVolume, DetachVolume, LeaveMemory, MemoryInfo, ServeMemory, VolumeInfo,
    VolumeLatency, VolumeServer,
};
use qnic_abi::window::WINDOW_BYTES;
use qnic_abi::{uapi, Status, PAGE_SIZE};
use qnic_shared::region::{Kept, Own, SharedRegion};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, Opcode, Updater};
use zerocopy::{FromBytes, IntoBytes};

use super::{spin, CallError, Memory, Pools, Process, Provider, Registration};

/// Device file of the first NIC.
pub const DEFAULT_DEVICE: &str = "/dev/qnic0";

/// Directory of the device files of NICs with a name.
pub const NAMED_DEVICES: &str = "/dev/qnic";

/// The NIC behind a device file.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
}

impl Device {
    /// The NIC behind `path`; opens nothing yet.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Device {
            path: path.as_ref().to_owned(),
        }
    }

    fn open(&self) -> Result<File, CallError> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        Ok(file)
    }
}

impl Provider for Device {
    fn register(&self, port: u16, flags: u32) -> Result<Registration, CallError> {
        let file = self.open()?;
        let mut registration = Registration::call(port, flags);
        call::<{ uapi::REGISTER }, _>(&file, &mut registration)?;
        if registration.status != Status::Ok.code() {
            return Ok(Registration::refused(&registration));
        }
        let map = |offset, length, writable| map(&file, offset, length, writable);
        let host_area = map(uapi::MMAP_HOST_AREA, READ_ONLY_PAGES * PAGE_SIZE, false)?;
        let process = LinuxProcess {
            _marked: Kept::word(&host_area, WAKE_GENERATION),
            window: map(uapi::MMAP_WINDOW, WINDOW_BYTES, true)?,
            doorbell: map(uapi::MMAP_DOORBELL, PAGE_SIZE, true)?,
            host_area,
            pool: map(uapi::MMAP_POOL, WRITABLE_PAGES * PAGE_SIZE, true)?,
            file: Held::new(file),
            registration,
        };
        let offset = registration.doorbell_offset.get() as usize;
        if offset > PAGE_SIZE - 2 || offset % 2 != 0 {
            return Err(CallError::System(std::io::ErrorKind::InvalidData.into()));
        }
        Ok(Registration::Done(Box::new(process)))
    }

    fn open_pools(&self, opened: &mut OpenPools) -> Result<Option<Box<dyn Pools>>, CallError> {
        let file = self.open()?;
        call::<{ pool::OPEN_POOLS }, _>(&file, opened)?;
        if opened.status != Status::Ok.code() {
            return Ok(None);
        }
        let bytes = opened.bytes.get() as usize;
        let range = map(&file, pool::MMAP_POOLS, bytes, true)?;
        let file = Held::new(file);
        Ok(Some(Box::new(LinuxPools { range, file })))
    }

    fn allocate(&self, length: usize) -> Result<Arc<dyn Memory>, CallError> {
        let pages = length
            .checked_next_multiple_of(PAGE_SIZE)
            .ok_or(std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        Ok(Arc::new(SharedRegion::anonymous(pages)?.part(0, length)))
    }

    fn info(&self) -> Result<uapi::Info, CallError> {
        let mut info = uapi::Info::default();
        call::<{ uapi::INFO }, _>(&self.open()?, &mut info)?;
        Ok(info)
    }

    fn counters(&self, page: &mut uapi::Counters) -> Result<(), CallError> {
        call::<{ uapi::COUNTERS }, _>(&self.open()?, page)
    }

    /// The NIC does not run on this guest's processors, so one thread spins even on a
    /// single one.
    fn spin_budget(&self, spinners: usize) -> Duration {
        spin::budget(spinners, 1)
    }
}

/// Maps memory that this process shares with the NIC, and no child that it forks.
fn map(file: &File, offset: u64, length: usize, writable: bool) -> Result<SharedRegion, CallError> {
    let region = SharedRegion::map_file(file, offset, length, writable)?;
    Ok(region.kept_from_children(None)?)
}

/// The open file that a process is for the kernel: a child would keep its parent registered.
#[derive(Debug)]
struct Held {
    own: Own<()>,
    _kept: Kept,
    file: File,
}

impl Held {
    fn new(file: File) -> Self {
        Held {
            own: Own::new(()),
            _kept: Kept::descriptor(&file),
            file,
        }
    }

    fn get(&self) -> Result<&File, CallError> {
        self.own.get()?;
        Ok(&self.file)
    }
}

#[derive(Debug)]
struct LinuxProcess {
    /// What a forked child finds before each command.
    _marked: Kept,
    window: SharedRegion,
    doorbell: SharedRegion,
    host_area: SharedRegion,
    pool: SharedRegion,
    file: Held,
    registration: uapi::Register,
}

/// Methods of [`Process`] and [`Pools`] that are one ioctl.
macro_rules! ioctls {
    ($($name:ident($call:ty) = $opcode:expr),* $(,)?) => {
        $(fn $name(&self, argument: &mut $call) -> Result<(), CallError> {
            call::<{ $opcode }, _>(self.file.get()?, argument)
        })*
    };
}

impl Process for LinuxProcess {
    ioctls! {
        export(uapi::Export) = uapi::EXPORT,
        unexport(uapi::Unexport) = uapi::UNEXPORT,
        import(uapi::Import) = uapi::IMPORT,
        wait(uapi::Wait) = uapi::WAIT,
        wake(uapi::Wake) = uapi::WAKE,
        reset_queue(uapi::ResetQueue) = uapi::RESET_QUEUE,
        path(uapi::Path) = uapi::PATH,
    }

    fn registration(&self) -> &uapi::Register {
        &self.registration
    }

    fn window(&self) -> &dyn Memory {
        &self.window
    }

    fn host_area(&self) -> &dyn Memory {
        &self.host_area
    }

    fn pool(&self) -> &dyn Memory {
        &self.pool
    }

    fn ring_doorbell(&self) {
        // Release keeps the store behind the command that it announces; the NIC's
        // side of the pairing is the arrival of the doorbell's event.
        self.doorbell.store_u16(
            self.registration.doorbell_offset.get() as usize,
            self.registration.doorbell_value.get(),
            Ordering::Release,
        );
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Ok(self.file.get()?.as_fd())
    }
}

#[derive(Debug)]
struct LinuxPools {
    range: SharedRegion,
    file: Held,
}

impl Pools for LinuxPools {
    ioctls! {
        kick(PoolKick) = pool::POOL_KICK,
        wait(PoolWait) = pool::POOL_WAIT,
        info(PoolInfo) = pool::POOL_INFO,
        path(uapi::Path) = uapi::PATH,
    }

    fn range(&self) -> &dyn Memory {
        &self.range
    }

    fn looks(&self) -> bool {
        true
    }

    fn event(&self) -> Result<BorrowedFd<'_>, CallError> {
        Ok(self.file.get()?.as_fd())
    }
}

/// The calls of remote memory.
#[cfg(feature = "remote-memory")]
#[derive(Debug)]
pub(crate) struct MemoryCalls(File);

/// Methods of [`MemoryCalls`] that are one ioctl.
#[cfg(feature = "remote-memory")]
macro_rules! memory_calls {
    ($($name:ident($call:ty) = $opcode:expr),* $(,)?) => {
        $(pub(crate) fn $name(&self, argument: &mut $call) -> Result<(), CallError> {
            call::<{ $opcode }, _>(&self.0, argument)
        })*
    };
}

#[cfg(feature = "remote-memory")]
impl MemoryCalls {
    pub(crate) fn open(path: &Path) -> Result<Self, CallError> {
        Device::new(path).open().map(Self)
    }

    memory_calls! {
        attach(AttachVolume) = volume::ATTACH_VOLUME,
        detach(DetachVolume) = volume::DETACH_VOLUME,
        volume(VolumeInfo) = volume::VOLUME_INFO,
        server(VolumeServer) = volume::VOLUME_SERVER,
        latency(VolumeLatency) = volume::VOLUME_LATENCY,
        serve(ServeMemory) = volume::SERVE_MEMORY,
        leave(LeaveMemory) = volume::LEAVE_MEMORY,
        memory(MemoryInfo) = volume::MEMORY_INFO,
    }
}

/// One ioctl of [`uapi`] whose argument the kernel reads and writes.
fn call<const OPCODE: Opcode, T: FromBytes + IntoBytes>(
    file: &File,
    argument: &mut T,
) -> Result<(), CallError> {
    const { assert!((OPCODE >> 16 & 0x3fff) as usize == size_of::<T>()) };
    // SAFETY: the request number says that the kernel reads and writes as many
    // bytes as `T` has (checked above), and every bit pattern is a `T`.
    unsafe { ioctl(file, Updater::<OPCODE, T>::new(argument)) }.map_err(|errno| match errno {
        Errno::NODEV => CallError::Gone,
        Errno::TIMEDOUT => CallError::TimedOut,
        Errno::INTR => CallError::Interrupted,
        other => CallError::System(other.into()),
    })
}
