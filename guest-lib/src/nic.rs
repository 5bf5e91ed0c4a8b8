//! The NIC of this node, as an application opens it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qnic_abi::command::INLINE_CAPACITY;
use qnic_abi::{uapi, Port};

use crate::core::retry;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::memory::{allocate, Buffer};
use crate::provider::host::{Node, DEFAULT_MEMORY};
use crate::provider::linux::{Device, DEFAULT_DEVICE};
use crate::provider::{CallError, Provider, Registration};

/// Environment variable with the path of the device file.
pub const DEVICE_VARIABLE: &str = "QNIC_DEVICE";

/// Environment variable with the path of a device process's socket: host mode.
pub const HOST_SOCKET_VARIABLE: &str = "QNIC_HOST_SOCKET";

/// Environment variable with the memory of a host-mode node, in bytes.
pub const HOST_MEMORY_VARIABLE: &str = "QNIC_HOST_MEMORY";

/// Environment variable that allows physical addresses on a host-mode node if it
/// is 1 ([`crate::physical`]).
pub const HOST_PHYSICAL_VARIABLE: &str = "QNIC_HOST_PHYSICAL";

/// Environment variable with the inline limit, in bytes ([`Nic::with_inline_max`]).
pub const INLINE_MAX_VARIABLE: &str = "QNIC_INLINE_MAX";

/// The NIC of this node.
///
/// Clones are cheap and refer to the same NIC.
#[derive(Debug, Clone)]
pub struct Nic {
    provider: Arc<dyn Provider>,
    path: PathBuf,
    /// Inline limit of its endpoints; without one, the NIC's holds.
    inline_max: Option<usize>,
}

impl Nic {
    /// Opens the NIC that the environment names: with [`HOST_SOCKET_VARIABLE`] a
    /// host-mode node, else the device file of [`DEVICE_VARIABLE`], else
    /// `/dev/qnic0`. So one program runs in a guest and in host mode.
    ///
    /// # Errors
    /// [`Error::Open`]
    pub fn open() -> Result<Self> {
        if let Some(socket) = std::env::var_os(HOST_SOCKET_VARIABLE) {
            return Self::open_host(Path::new(&socket));
        }
        let device = std::env::var_os(DEVICE_VARIABLE);
        Self::open_linux(Path::new(
            device.as_deref().unwrap_or(DEFAULT_DEVICE.as_ref()),
        ))
    }

    /// Opens the NIC behind a device file of the kernel module. [`INLINE_MAX_VARIABLE`] sets
    /// its inline limit.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Setting`]
    pub fn open_linux(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut nic = Self::with_provider(Arc::new(Device::new(path)), path);
        nic.inline_max = inline_setting()?;
        match nic.provider.info() {
            Ok(_) => Ok(nic),
            Err(CallError::System(source)) => Err(Error::Open {
                path: path.to_owned(),
                source,
                hint: "is the qnic module loaded?",
            }),
            Err(other) => Err(Error::call(|| format!("open {}", path.display()), other)),
        }
    }

    /// Becomes the host-mode node behind the socket of a device process (X2).
    /// [`HOST_MEMORY_VARIABLE`] sets its memory for buffers (in bytes; 128 MiB without
    /// it), [`HOST_PHYSICAL_VARIABLE`] = 1 allows physical addresses, and
    /// [`INLINE_MAX_VARIABLE`] sets its inline limit.
    ///
    /// The device process gives its processor up to nodes that spin (docs/performance.md). A
    /// program that looks at memory again and again by itself yields its own now and then, as all
    /// waits of this library do: on few processors the device process gets none otherwise.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Setting`]
    pub fn open_host(socket: impl AsRef<Path>) -> Result<Self> {
        let memory = setting(HOST_MEMORY_VARIABLE, "a number of bytes", |text| {
            text.parse().ok()
        })?;
        let inline_max = inline_setting()?;
        let node = Node::connect(&socket, memory.unwrap_or(DEFAULT_MEMORY))?;
        let physical = setting(HOST_PHYSICAL_VARIABLE, "0 or 1", |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })?;
        if physical == Some(true) {
            node.node().allow_physical();
        }
        Ok(Nic {
            inline_max,
            ..Self::with_provider(Arc::new(node), socket)
        })
    }

    /// [`Nic::open_host`] with `memory` bytes for buffers, a multiple of the page size,
    /// and without physical addresses; the environment sets nothing.
    ///
    /// # Errors
    /// [`Error::Host`]
    pub fn open_host_with(socket: impl AsRef<Path>, memory: usize) -> Result<Self> {
        let node = Node::connect(&socket, memory)?;
        Ok(Self::with_provider(Arc::new(node), socket))
    }

    /// A NIC on another platform.
    pub fn with_provider(provider: Arc<dyn Provider>, path: impl AsRef<Path>) -> Self {
        Nic {
            provider,
            path: path.as_ref().to_owned(),
            inline_max: None,
        }
    }

    /// The same NIC, with another inline limit for the endpoints that are registered through
    /// this handle: a part of a segment of at most `bytes` bytes is written within the command,
    /// a longer one by DMA (N10). The range is 0 to 128, the room in a command
    /// ([`INLINE_CAPACITY`]). Inline costs the processor a copy, DMA costs the NIC a look at the
    /// page table. Ordinary bytes travel inline as far as the NIC takes them, whatever the limit:
    /// no write fails because of it.
    ///
    /// # Errors
    /// [`Error::InlineMax`] outside of that range.
    pub fn with_inline_max(self, bytes: usize) -> Result<Self> {
        if bytes > INLINE_CAPACITY {
            return Err(Error::InlineMax(bytes));
        }
        Ok(Nic {
            inline_max: Some(bytes),
            ..self
        })
    }

    /// Registers this process on a port (N1); port 0 asks for any free one. A
    /// process may register several times, on different ports.
    ///
    /// # Errors
    /// [`Error::Refused`] with `PortInUse` or `Exhausted`.
    pub fn register(&self, port: Port) -> Result<Endpoint> {
        self.register_with(port, 0)
    }

    pub(crate) fn register_with(&self, port: Port, flags: u32) -> Result<Endpoint> {
        let what = || format!("register on {port} of {}", self.path.display());
        match retry(what, || self.provider.register(port.0, flags))? {
            Registration::Done(process) => {
                let provider = self.provider.clone();
                Ok(Endpoint::new(process, provider, self.inline_max))
            }
            Registration::Refused(status) => Err(Error::refused(what(), status)),
        }
    }

    /// The platform beneath, for tools and tests that use `qnic_abi` directly instead of
    /// an [`Endpoint`].
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// Memory that can be exported: page aligned, zeroed.
    ///
    /// # Errors
    /// [`Error::EmptyMemory`], [`Error::System`]
    pub fn allocate(&self, length: usize) -> Result<Buffer> {
        allocate(self.provider.as_ref(), length)
    }

    /// What driver and NIC hold and have counted.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::DeviceGone`]
    pub fn info(&self) -> Result<uapi::Info> {
        let what = || format!("ask {} for its counters", self.path.display());
        let info = retry(what, || self.provider.info())?;
        Error::check(info.status.get(), what)?;
        Ok(info)
    }
}

/// The inline limit that the environment sets.
fn inline_setting() -> Result<Option<usize>> {
    setting(
        INLINE_MAX_VARIABLE,
        "a number of bytes from 0 to 128",
        |text| text.parse().ok().filter(|bytes| *bytes <= INLINE_CAPACITY),
    )
}

/// The value of an environment variable, if it is set.
fn setting<T>(
    variable: &'static str,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>> {
    let Some(value) = std::env::var_os(variable) else {
        return Ok(None);
    };
    match value.to_str().and_then(parse) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(Error::Setting {
            variable,
            value: value.to_string_lossy().into_owned(),
            expected,
        }),
    }
}
