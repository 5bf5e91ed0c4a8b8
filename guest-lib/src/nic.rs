//! The NIC of this node, as an application opens it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use qnic_abi::command::INLINE_CAPACITY;
use qnic_abi::counters::CounterSource;
use qnic_abi::host_area::OPERATIONS;
use qnic_abi::{uapi, Port, ABI_VERSION};
use rustix::io::Errno;

use crate::core::{retry, Settings};
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::machine::Place;
use crate::memory::{allocate, Buffer};
#[cfg(feature = "vfio")]
use crate::provider::host::DEFAULT_PINNED_MEMORY;
#[cfg(feature = "host")]
use crate::provider::host::{Node, DEFAULT_MEMORY};
use crate::provider::linux::{Device, DEFAULT_DEVICE, NAMED_DEVICES};
use crate::provider::{CallError, Provider, Registration};

/// Environment variable with the path of the device file.
pub const DEVICE_VARIABLE: &str = "QNIC_DEVICE";

/// Environment variable with the name of the NIC that [`Nic::open`] opens, on a node with several.
pub const NIC_VARIABLE: &str = "QNIC_NIC";

/// Environment variable with the path of a device process's socket: host mode.
pub const HOST_SOCKET_VARIABLE: &str = "QNIC_HOST_SOCKET";

/// Environment variable with the address of the PCI function that a node on VFIO drives, such as
/// `0000:01:00.0`.
pub const VFIO_VARIABLE: &str = "QNIC_VFIO";

/// Environment variable with the memory of a node in this process, of host mode or on VFIO: bytes, or
/// such as `16MiB`.
pub const HOST_MEMORY_VARIABLE: &str = "QNIC_HOST_MEMORY";

/// Environment variable that allows physical addresses on such a node if it is 1 ([`crate::physical`]).
pub const HOST_PHYSICAL_VARIABLE: &str = "QNIC_HOST_PHYSICAL";

/// Environment variable with the inline limit, in bytes ([`Nic::with_inline_max`]).
pub const INLINE_MAX_VARIABLE: &str = "QNIC_INLINE_MAX";

/// Environment variable with the most transfers and atomic operations that an endpoint has under way
/// ([`Nic::with_operations`]).
pub const OPERATIONS_VARIABLE: &str = "QNIC_OPERATIONS";

/// The NIC of this node.
///
/// Clones are cheap and refer to the same NIC.
///
/// It belongs to the process that has opened it. In a forked child, each call on it, and on everything
/// made from it, ends with [`Error::Forked`]. What the child calls or drops has no effect on the
/// parent, whose transfers go on. Buffers are ordinary memory in the child. A child may open a NIC
/// itself.
#[derive(Debug, Clone)]
pub struct Nic {
    provider: Arc<dyn Provider>,
    path: PathBuf,
    settings: Settings,
    place: Option<Place>,
}

/// The range of [`Settings::operations`].
const OPERATIONS_RANGE: std::ops::RangeInclusive<usize> = 16..=OPERATIONS as usize;

impl Settings {
    const DEFAULT: Self = Settings {
        inline_max: None,
        operations: OPERATIONS as usize,
    };

    /// What the environment says.
    fn from_environment() -> Result<Self> {
        let inline_max = setting(
            INLINE_MAX_VARIABLE,
            "a number of bytes from 0 to 128",
            |text| text.parse().ok().filter(|bytes| *bytes <= INLINE_CAPACITY),
        )?;
        let operations = setting(OPERATIONS_VARIABLE, "a number from 16 to 1024", |text| {
            text.parse().ok().filter(|it| OPERATIONS_RANGE.contains(it))
        })?;
        Ok(Settings {
            inline_max,
            operations: operations.unwrap_or(Self::DEFAULT.operations),
        })
    }
}

impl Nic {
    /// Opens the NIC that the environment names: with [`NIC_VARIABLE`] the one with this name
    /// ([`Nic::open_named`]); else with [`HOST_SOCKET_VARIABLE`] a host-mode node, else with
    /// [`VFIO_VARIABLE`] that PCI function, else the device file of [`DEVICE_VARIABLE`], else
    /// `/dev/qnic0`. Where that is not there, the first NIC that vfio-pci drives. So one program runs
    /// in all guests and in host mode.
    ///
    /// # Errors
    /// Those of [`Nic::open_linux`], or of `Nic::open_host` and `Nic::open_vfio`;
    /// [`Error::NoHostMode`] without the feature `host`.
    pub fn open() -> Result<Self> {
        Self::open_chosen(std::env::var_os(NIC_VARIABLE).as_deref())
    }

    /// Opens the NIC with this name, of a node that has several (S7): in a guest
    /// `/dev/qnic/NAME`; in host mode the socket beside that of [`HOST_SOCKET_VARIABLE`] that has
    /// `.NAME` before its extension: `/run/n0.disks.sock` beside `/run/n0.sock`. Each NIC of a process
    /// has endpoints of its own, and in host mode memory of its own.
    ///
    /// # Errors
    /// As [`Nic::open`]; [`Error::Open`] if there is no NIC of that name.
    pub fn open_named(name: &str) -> Result<Self> {
        Self::open_chosen(Some(OsStr::new(name)))
    }

    fn open_chosen(name: Option<&OsStr>) -> Result<Self> {
        if let Some(socket) = std::env::var_os(HOST_SOCKET_VARIABLE) {
            let socket = socket_of(PathBuf::from(socket), name);
            #[cfg(feature = "host")]
            return Self::open_host(&socket);
            #[cfg(not(feature = "host"))]
            return Err(Error::NoHostMode(socket));
        }
        #[cfg(feature = "vfio")]
        if name.is_none() {
            if let Some(function) = vfio_function()? {
                return Self::open_vfio(function);
            }
        }
        Self::open_linux(device_of(std::env::var_os(DEVICE_VARIABLE), name))
    }

    /// Opens the NIC behind a device file of the kernel module. [`INLINE_MAX_VARIABLE`] sets
    /// its inline limit, [`OPERATIONS_VARIABLE`] how much its endpoints have under way.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Setting`], [`Error::Incompatible`] if the module is of another
    /// ABI version
    pub fn open_linux(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut nic = Self::with_provider(Arc::new(Device::new(path)), path);
        nic.settings = Settings::from_environment()?;
        nic.place = Place::from_environment()?;
        let info = nic.provider.info();
        check_version(path, info)?;
        log::info!("{} is open", path.display());
        Ok(nic)
    }

    /// Becomes the host-mode node behind the socket of a device process (X2).
    /// [`HOST_MEMORY_VARIABLE`] sets its memory for buffers (bytes, or `16MiB`; 128 MiB without
    /// it), [`HOST_PHYSICAL_VARIABLE`] = 1 allows physical addresses, and
    /// [`INLINE_MAX_VARIABLE`] and [`OPERATIONS_VARIABLE`] count as in a guest.
    ///
    /// The device process gives its processor up to nodes that spin (docs/performance.md). A
    /// program that polls memory by itself should yield its processor now and then, as all waits of
    /// this library do: otherwise the device process gets none if there are few processors.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Setting`]
    #[cfg(feature = "host")]
    pub fn open_host(socket: impl AsRef<Path>) -> Result<Self> {
        let node = Node::connect(&socket, memory_or(DEFAULT_MEMORY)?)?;
        Self::of_node(node, socket)
    }

    /// Becomes the node of this guest (X11): this process drives the NIC, through VFIO. `function` is the
    /// folder of a PCI function that vfio-pci drives, as in `/sys/bus/pci/devices`. It has the NIC
    /// alone, and takes the capability CAP_SYS_ADMIN: the NIC reaches all memory of the guest.
    ///
    /// [`HOST_MEMORY_VARIABLE`] sets its memory for buffers (64 MiB without it), all of which is
    /// *pinned*; other memory cannot be exported. The other variables are those of `Nic::open_host`.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Setting`]
    #[cfg(feature = "vfio")]
    pub fn open_vfio(function: impl AsRef<Path>) -> Result<Self> {
        let node = Node::open_vfio(&function, memory_or(DEFAULT_PINNED_MEMORY)?)?;
        Self::of_node(node, function)
    }

    #[cfg(feature = "host")]
    fn of_node(node: Node, path: impl AsRef<Path>) -> Result<Self> {
        let settings = Settings::from_environment()?;
        let physical = setting(HOST_PHYSICAL_VARIABLE, "0 or 1", |text| match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        })?;
        if physical == Some(true) {
            node.node().allow_physical();
        }
        log::info!("this process is the node of {}", path.as_ref().display());
        Ok(Nic {
            settings,
            place: Place::from_environment()?,
            ..Self::with_provider(Arc::new(node), path)
        })
    }

    /// [`Nic::open_host`] with `memory` bytes for buffers, a multiple of the page size,
    /// and without physical addresses; the environment sets nothing.
    ///
    /// # Errors
    /// [`Error::Host`]
    #[cfg(feature = "host")]
    pub fn open_host_with(socket: impl AsRef<Path>, memory: usize) -> Result<Self> {
        let node = Node::connect(&socket, memory)?;
        log::info!("this process is the node of {}", socket.as_ref().display());
        Ok(Self::with_provider(Arc::new(node), socket))
    }

    /// A NIC on another platform.
    pub fn with_provider(provider: Arc<dyn Provider>, path: impl AsRef<Path>) -> Self {
        Nic {
            provider,
            path: path.as_ref().to_owned(),
            settings: Settings::DEFAULT,
            place: None,
        }
    }

    /// The same NIC. Endpoints that are registered through this handle have this place in an
    /// application, whatever the environment says.
    #[must_use]
    pub fn with_place(self, place: Place) -> Self {
        Nic {
            place: Some(place),
            ..self
        }
    }

    /// The place of this process in an application, if a launcher has given it one.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// The same NIC, with another inline limit for the endpoints that are registered through this
    /// handle: a part of a segment of at most `bytes` bytes travels in the command, a longer one by
    /// DMA (N10). The range is 0 to 128, the room in a command ([`INLINE_CAPACITY`]). Inline costs
    /// the processor a copy, DMA costs the NIC a look at the page table. Ordinary bytes travel
    /// inline as far as the NIC takes them, whatever the limit: no write fails because of it.
    ///
    /// # Errors
    /// [`Error::InlineMax`] outside of that range.
    pub fn with_inline_max(self, bytes: usize) -> Result<Self> {
        if bytes > INLINE_CAPACITY {
            return Err(Error::InlineMax(bytes));
        }
        let inline_max = Some(bytes);
        let settings = Settings {
            inline_max,
            ..self.settings
        };
        Ok(Nic { settings, ..self })
    }

    /// The same NIC. Endpoints that are registered through this handle have at most so many transfers
    /// and atomic operations under way, 16 to 1,024 (N12). This bounds what a queue of commands costs
    /// when the program ends, or a peer is slow. While there is no room, `post` waits.
    ///
    /// # Errors
    /// [`Error::Operations`] outside of that range.
    pub fn with_operations(self, operations: usize) -> Result<Self> {
        if !OPERATIONS_RANGE.contains(&operations) {
            return Err(Error::Operations(operations));
        }
        let settings = Settings {
            operations,
            ..self.settings
        };
        Ok(Nic { settings, ..self })
    }

    /// Registers this process on a port (N1); port 0 asks for any free one. A
    /// process may register several times, on different ports.
    ///
    /// If a launcher has given this process a [place](Nic::place) in an application, that is the
    /// name of the endpoint as long as it lives (Q14), unless another endpoint has the name: of
    /// several, the first has it.
    ///
    /// # Errors
    /// [`Error::Refused`] with `PortInUse` or `Exhausted`; those of
    /// [`Names::register`](crate::names::Names::register) but [`Error::Name`].
    pub fn register(&self, port: Port) -> Result<Endpoint> {
        let endpoint = self.register_with(port, 0)?;
        if let Some(place) = &self.place {
            let names = endpoint.names().timeout(Duration::ZERO);
            match names.register(place.application(), place.rank()) {
                Ok(name) => name.keep(),
                Err(Error::Name(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(endpoint)
    }

    /// Registers this process on a port as process `process` of an application: it has this
    /// name as long as it lives.
    ///
    /// # Errors
    /// Those of [`Nic::register`], and [`Error::Name`] if another process has the name.
    pub fn register_as(&self, port: Port, application: &str, process: u32) -> Result<Endpoint> {
        let endpoint = self.register_with(port, 0)?;
        endpoint.names().register(application, process)?.keep();
        Ok(endpoint)
    }

    pub(crate) fn register_with(&self, port: Port, flags: u32) -> Result<Endpoint> {
        let what = || format!("register on {port} of {}", self.path.display());
        match retry(what, || self.provider.register(port.0, flags))? {
            Registration::Done(process) => {
                let provider = self.provider.clone();
                Endpoint::new(process, provider, self.settings)
            }
            Registration::Refused(status) => {
                let error = Error::refused(what(), status);
                log::warn!("{error}");
                Err(error)
            }
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

    /// Describes driver and NIC.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::DeviceGone`]
    pub fn info(&self) -> Result<uapi::Info> {
        let what = || format!("ask {} what it is", self.path.display());
        let info = retry(what, || self.provider.info())?;
        Error::check(info.status.get(), what)?;
        Ok(info)
    }

    /// Everything that the driver, its datagram layer or the NIC counts, by name
    /// ([`mod@qnic_abi::counters`]). The names come from there, so counters that this library does
    /// not know are among them.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::DeviceGone`]
    pub fn counters(&self, source: CounterSource) -> Result<BTreeMap<String, u64>> {
        let what = || format!("ask {} for its counters", self.path.display());
        uapi::Counters::read(source, |call| {
            retry(what, || self.provider.counters(call))?;
            Error::check(call.status.get(), what)
        })
    }
}

/// Checks what the driver answered to the first call: it has to be of this library's version.
pub(crate) fn check_version(
    path: &Path,
    info: std::result::Result<uapi::Info, CallError>,
) -> Result<()> {
    let file = path.display();
    match info.map(|info| info.abi_version.get()) {
        Ok(ABI_VERSION) => Ok(()),
        Ok(driver) => Err(Error::Incompatible(format!(
            "the module behind {file} is of ABI version {driver}, this program of {ABI_VERSION}"
        ))),
        // The number of a call has the size of its struct in it, which differs between versions.
        Err(CallError::System(source)) if is_unknown_call(&source) => {
            Err(Error::Incompatible(format!(
                "{file} is no qnic device, or does not know the calls of ABI version {ABI_VERSION}"
            )))
        }
        Err(CallError::System(source)) => Err(Error::Open {
            path: path.to_owned(),
            source,
            hint: match cfg!(feature = "host") {
                true if cfg!(feature = "vfio") => {
                    "is the qnic module loaded? Without it, is the NIC bound to vfio-pci?"
                }
                true => "is the qnic module loaded?",
                false => "is the qnic module loaded? The program was built without host mode",
            },
        }),
        Err(other) => Err(Error::call(|| format!("open {file}"), other)),
    }
}

fn is_unknown_call(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOTTY)
}

/// The PCI function that this process is to drive: the one that the environment names, or the first,
/// where there is no module.
#[cfg(feature = "vfio")]
fn vfio_function() -> Result<Option<PathBuf>> {
    if let Some(address) = std::env::var_os(VFIO_VARIABLE) {
        let named = qnic_vfio::named(&address.to_string_lossy());
        return Ok(Some(named.map_err(qnic_host::ConnectError::from)?));
    }
    let has_module = std::env::var_os(DEVICE_VARIABLE).is_some();
    let has_module = has_module || Path::new(DEFAULT_DEVICE).exists();
    Ok(qnic_vfio::find().filter(|_| !has_module))
}

/// The memory of a node in this process, in bytes.
#[cfg(feature = "host")]
fn memory_or(usual: usize) -> Result<usize> {
    let memory = setting(HOST_MEMORY_VARIABLE, "a size such as 16MiB", bytes)?;
    Ok(memory.unwrap_or(usual))
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

/// The device file that the environment names.
#[cfg(feature = "remote-memory")]
pub(crate) fn device_in_environment() -> PathBuf {
    let name = std::env::var_os(NIC_VARIABLE);
    device_of(std::env::var_os(DEVICE_VARIABLE), name.as_deref())
}

/// The device file of the NIC with a name, or else of the one that `device` says.
fn device_of(device: Option<OsString>, name: Option<&OsStr>) -> PathBuf {
    match (name, device) {
        (Some(name), _) => Path::new(NAMED_DEVICES).join(name),
        (None, Some(device)) => device.into(),
        (None, None) => DEFAULT_DEVICE.into(),
    }
}

/// The socket of the NIC with a name, or else of the one that `first` is of.
fn socket_of(first: PathBuf, name: Option<&OsStr>) -> PathBuf {
    let Some(name) = name else { return first };
    let extension = first.extension();
    let mut last = name.to_owned();
    for part in extension.into_iter().flat_map(|it| [OsStr::new("."), it]) {
        last.push(part);
    }
    first.with_extension(last)
}

/// Bytes: a number, or one with a binary unit as in cluster files, such as `16MiB`.
#[cfg(feature = "host")]
fn bytes(text: &str) -> Option<usize> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)];
    let (digits, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)))?;
    // A sign is no digit.
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: usize = digits.parse().ok().filter(|_| plain)?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What modules answer to the first call of a program, [`Nic`] or
    /// [`RemoteMemory`](crate::remote_memory::RemoteMemory). Those of ABI version 15 and less know the
    /// call by another number, as they had all counters in it.
    #[test]
    fn a_module_of_another_version_is_refused() {
        let path = Path::new("/dev/qnic0");
        let of = |version: u32| uapi::Info {
            abi_version: version.into(),
            ..Default::default()
        };
        assert!(check_version(path, Ok(of(ABI_VERSION))).is_ok());
        for former in [360, 392] {
            assert_ne!(uapi::INFO, uapi::ioctl_number(7, former));
        }
        let unknown = CallError::System(Errno::NOTTY.into());
        assert_eq!(uapi::INFO, uapi::ioctl_number(7, size_of::<uapi::Info>()));
        let next = ABI_VERSION + 1;
        let answers = [
            (Err(unknown), "does not know the calls".to_owned()),
            (Ok(of(11)), "ABI version 11".to_owned()),
            (Ok(of(15)), "ABI version 15".to_owned()),
            (Ok(of(next)), format!("ABI version {next}")),
        ];
        for (answer, says) in answers {
            let refused = check_version(path, answer).unwrap_err();
            assert!(matches!(refused, Error::Incompatible(_)), "{refused}");
            assert!(refused.to_string().contains(&says), "{refused}");
        }
        let absent = CallError::System(Errno::NOENT.into());
        let refused = check_version(path, Err(absent)).unwrap_err();
        assert!(matches!(refused, Error::Open { .. }), "{refused}");
    }

    /// A program chooses its NIC by a name, in guests and in host mode (S7).
    #[test]
    fn nics_are_found_by_their_names() {
        let disks = Some(OsStr::new("disks"));
        for (device, name, expected) in [
            (None, None, "/dev/qnic0"),
            (Some("/dev/qnic3".into()), None, "/dev/qnic3"),
            (Some("/dev/qnic3".into()), disks, "/dev/qnic/disks"),
        ] {
            assert_eq!(device_of(device, name), Path::new(expected));
        }
        for (socket, name, expected) in [
            ("/run/n0.sock", None, "/run/n0.sock"),
            ("/run/n0.sock", disks, "/run/n0.disks.sock"),
            ("/r.d/nic", disks, "/r.d/nic.disks"),
        ] {
            assert_eq!(socket_of(socket.into(), name), Path::new(expected));
        }
    }

    #[cfg(feature = "host")]
    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("16MiB"), Some(16 << 20));
        assert_eq!(bytes("1GiB"), Some(1 << 30));
        for wrong in ["", "MiB", "+1", "1MB", "-1KiB", "99999999999GiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
