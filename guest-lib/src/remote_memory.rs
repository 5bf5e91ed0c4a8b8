//! Remote memory of a guest (H9; docs/remote-memory.md): block devices in the memory of other
//! nodes, and memory for others. The kernel does it; these are its calls
//! ([`qnic_abi::volume`]), as the tool `qnic-rmem` makes them.

use std::path::Path;

use qnic_abi::volume::{
    AttachVolume, DetachVolume, LeaveMemory, MemoryInfo, ServeMemory, VolumeInfo, VolumeLatency,
    VolumeServer,
};
use qnic_abi::Status;

use crate::core::retry;
use crate::error::{Error, Result};
use crate::nic::{check_version, device_in_environment};
use crate::provider::linux::{Device, MemoryCalls};
use crate::provider::Provider;

/// The remote memory of a NIC.
#[derive(Debug)]
pub struct RemoteMemory {
    calls: MemoryCalls,
}

/// Calls whose status is an error unless it is [`Status::Ok`].
macro_rules! calls {
    ($($(#[doc = $doc:expr])* $name:ident($call:ty) = $what:expr;)*) => {$(
        $(#[doc = $doc])*
        ///
        /// # Errors
        /// [`Error::System`], [`Error::DeviceGone`], and what the driver refuses.
        pub fn $name(&self, call: &mut $call) -> Result<()> {
            let what = || $what.to_owned();
            retry(what, || self.calls.$name(call))?;
            Error::check(call.status.get(), what)
        }
    )*};
}

impl RemoteMemory {
    /// That of the NIC of this guest that the environment names, as [`Nic::open`](crate::Nic::open)
    /// opens it.
    ///
    /// # Errors
    /// Those of [`RemoteMemory::open_path`].
    pub fn open() -> Result<Self> {
        Self::open_path(device_in_environment())
    }

    /// That of the NIC behind a device file.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::System`], [`Error::Incompatible`] if the module is of another ABI
    /// version.
    pub fn open_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        check_version(path, Device::new(path).info())?;
        let what = || format!("open {}", path.display());
        let calls = retry(what, || MemoryCalls::open(path))?;
        Ok(RemoteMemory { calls })
    }

    /// Attaches a volume. Returns the status, as `TimedOut` has a node and its reason in the call.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::DeviceGone`].
    pub fn attach(&self, call: &mut AttachVolume) -> Result<Status> {
        let what = || "attach a volume".to_owned();
        retry(what, || self.calls.attach(call))?;
        Status::try_from(call.status.get())
            .map_err(|unknown| Error::Incompatible(format!("unknown status {}", unknown.0)))
    }

    calls! {
        /// Removes a volume.
        detach(DetachVolume) = "detach the volume";
        /// How a volume is.
        volume(VolumeInfo) = "ask for the volume";
        /// How a server of a volume is.
        server(VolumeServer) = "ask for a server of the volume";
        /// How long requests of a volume took.
        latency(VolumeLatency) = "ask for latencies of the volume";
        /// Gives memory to others.
        serve(ServeMemory) = "serve memory";
        /// Takes it back.
        leave(LeaveMemory) = "leave";
        /// How the memory is that this node gives.
        memory(MemoryInfo) = "ask for the memory that this node gives";
    }

    /// How a volume is; none if there is none of that number.
    ///
    /// # Errors
    /// As [`RemoteMemory::volume`].
    pub fn find(&self, volume: u32) -> Result<Option<VolumeInfo>> {
        let mut call = VolumeInfo {
            volume: volume.into(),
            ..VolumeInfo::default()
        };
        let found = self.volume(&mut call);
        match call.status.get() == Status::NoSuchVolume.code() {
            true => Ok(None),
            false => found.map(|()| Some(call)),
        }
    }
}
