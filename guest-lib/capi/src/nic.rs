//! The NIC of this node: open it, and ask it.
//!
//! `qnic_open` without options opens the NIC that the environment names, so that one program runs in
//! guests and in host mode: `QNIC_NIC`, else `QNIC_HOST_SOCKET`, else `QNIC_VFIO`, else `QNIC_DEVICE`,
//! else `/dev/qnic0`. A NIC belongs to the process that has opened it: after a fork, the child gets
//! `QNIC_E_FORKED`, and opens one of its own.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::{c_char, c_int, c_void, CString};

use qnic::machine::Place;
use qnic::{CounterSource, Nic};

use crate::border::{call, head, limit, Context, In, Out, Text};
use crate::failure::{Failure, Result};
use crate::handles::{close, get, open};

/// The NIC of this node, as this process has opened it. Serves many threads at once.
pub struct qnic_nic(pub(crate) Nic);

/// No part of a segment travels in the command: `inline_max` of 0 bytes.
pub const QNIC_OPEN_NO_INLINE: u32 = 1;

/// Which NIC is opened, and how. At most one of the first four is set.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_open_options {
    /// Size of this structure.
    pub size: usize,
    /// Name of the NIC, on a node with several.
    pub name: Text,
    /// Path of a device file of the kernel module.
    pub device: Text,
    /// Path of a device process's socket: host mode.
    pub host_socket: Text,
    /// Folder of a PCI function that vfio-pci drives.
    pub vfio: Text,
    /// Memory for buffers of a node with `host_socket`, in bytes, a multiple of the page size; 0: what
    /// the environment says. If it is set, the environment sets nothing.
    pub memory: usize,
    /// `QNIC_OPEN_…`.
    pub flags: u32,
    /// Most bytes of a segment that travel in the command, 1 to 128; 0: what the NIC says.
    pub inline_max: u32,
    /// Most transfers and atomic operations that an endpoint has under way, 16 to 1,024; 0: 1,024.
    pub operations: u32,
    /// Place of this process in an application: its number, below `ranks`.
    pub rank: u32,
    /// How many processes the application has; 0 without `application`.
    pub ranks: u32,
    /// Zero.
    pub reserved: u32,
    /// Name of the application whose place endpoints have; null: what the environment says.
    pub application: Text,
}

head!(qnic_open_options {
    name,
    device,
    host_socket,
    vfio,
    memory,
    flags,
    inline_max,
    operations,
    rank,
    ranks,
    reserved,
    application
});

fn open_one(options: &qnic_open_options) -> Result<Nic> {
    let chosen = [
        options.name,
        options.device,
        options.host_socket,
        options.vfio,
    ];
    let [name, device, host, vfio] = chosen.map(Text::optional);
    Ok(match (name?, device?, host?, vfio?, options.memory) {
        (None, None, None, None, 0) => Nic::open()?,
        (Some(name), None, None, None, 0) => Nic::open_named(name)?,
        (None, Some(path), None, None, 0) => Nic::open_linux(path)?,
        (None, None, Some(path), None, 0) => Nic::open_host(path)?,
        (None, None, Some(path), None, memory) => Nic::open_host_with(path, memory)?,
        (None, None, None, Some(function), 0) => Nic::open_vfio(function)?,
        _ => {
            let text =
                "open one NIC, by name, device, host_socket or vfio; memory goes with host_socket";
            return Err(Failure::argument(text));
        }
    })
}

/// Opens a NIC. `options` may be null.
///
/// Fails with `QNIC_E_OPEN`, `QNIC_E_HOST`, `QNIC_E_SETTING`, `QNIC_E_INCOMPATIBLE`.
#[no_mangle]
pub extern "C" fn qnic_open(options: In<qnic_open_options>, nic: Out<*mut qnic_nic>) -> c_int {
    open(nic, || {
        let options = options.head()?;
        let mut nic = open_one(&options)?;
        match (options.flags, options.inline_max as usize) {
            (0, 0) => {}
            (0, most) | (QNIC_OPEN_NO_INLINE, most @ 0) => nic = nic.with_inline_max(most)?,
            _ => return Err(Failure::argument("flags of qnic_open that say nothing")),
        }
        if options.operations > 0 {
            nic = nic.with_operations(options.operations as usize)?;
        }
        if let Some(application) = options.application.optional()? {
            nic = nic.with_place(Place::new(application, options.rank, options.ranks)?);
        }
        Ok(qnic_nic(nic))
    })
}

/// Closes the handle. The NIC stays open while an endpoint, a socket or a stream of it does.
#[no_mangle]
pub extern "C" fn qnic_close(nic: *mut qnic_nic) -> c_int {
    close(nic)
}

/// Driver and NIC.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_nic_info {
    /// Size of this structure.
    pub size: usize,
    /// Version of the interface between driver and NIC.
    pub abi_version: u32,
    /// Node number.
    pub node: u16,
    /// Zero.
    pub reserved: u16,
    /// Windows of the NIC: how many endpoints the node can have at a time.
    pub windows: u32,
    /// Rank of this process in its application, if `ranks` is not 0.
    pub rank: u32,
    /// How many processes its application has; 0: it has no place in one.
    pub ranks: u32,
    /// Zero.
    pub reserved1: u32,
    /// Size of the SRAM in bytes.
    pub sram_bytes: u64,
}

head!(qnic_nic_info {
    abi_version,
    node,
    reserved,
    windows,
    rank,
    ranks,
    reserved1,
    sram_bytes
});

/// Describes driver and NIC.
///
/// Fails with `QNIC_E_SYSTEM`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_nic_get_info(nic: *mut qnic_nic, info: Out<qnic_nic_info>) -> c_int {
    call(|| {
        let nic = &get(nic)?.0;
        let found = nic.info()?;
        let place = nic.place();
        info.set_head(qnic_nic_info {
            size: size_of::<qnic_nic_info>(),
            abi_version: found.abi_version.get(),
            node: found.node.get(),
            reserved: 0,
            windows: found.windows.get(),
            rank: place.map_or(0, Place::rank),
            ranks: place.map_or(0, Place::size),
            reserved1: 0,
            sram_bytes: found.sram_bytes.get(),
        })
    })
}

/// What the driver counts.
pub const QNIC_COUNTERS_DRIVER: u32 = 0;
/// What the datagram layer of the driver counts.
pub const QNIC_COUNTERS_DATAGRAMS: u32 = 1;
/// What the NIC counts.
pub const QNIC_COUNTERS_NIC: u32 = 2;

/// Calls `each` with every counter of a source, `QNIC_COUNTERS_…`, in the order of their names, on this
/// thread before this function returns. `name` lives as long as the call of `each`.
///
/// Fails with `QNIC_E_ARGUMENT`, `QNIC_E_SYSTEM`, `QNIC_E_DEVICE_GONE`.
#[no_mangle]
pub extern "C" fn qnic_nic_counters(
    nic: *mut qnic_nic,
    source: u32,
    each: Option<extern "C" fn(context: *mut c_void, name: *const c_char, value: u64)>,
    context: Context,
) -> c_int {
    call(|| {
        let source = CounterSource::try_from(source);
        let source = source.map_err(|_| Failure::argument("no such source of counters"))?;
        let each =
            each.ok_or_else(|| Failure::argument("the function of qnic_nic_counters is null"))?;
        for (name, value) in get(nic)?.0.counters(source)? {
            let name = CString::new(name).unwrap_or_default();
            each(context.get(), name.as_ptr(), value);
        }
        Ok(())
    })
}

/// Each frame of the route arrives once and at once.
pub const QNIC_PATH_LOSSLESS: u32 = 1;

/// The route to another node.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_path {
    /// Size of this structure.
    pub size: usize,
    /// Most bytes of a transfer that one frame carries.
    pub max_payload: u32,
    /// Fragments, of a page each at most, that may be under way.
    pub window: u32,
    /// Time from a frame to its acknowledgement, in nanoseconds; 0: not measured.
    pub round_trip_ns: u64,
    /// `QNIC_PATH_…`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

head!(qnic_path {
    max_payload,
    window,
    round_trip_ns,
    flags,
    reserved
});

impl From<qnic::Path> for qnic_path {
    fn from(path: qnic::Path) -> Self {
        qnic_path {
            size: size_of::<Self>(),
            max_payload: path.max_payload,
            window: path.window,
            round_trip_ns: path.round_trip.map_or(0, |time| time.as_nanos() as u64),
            flags: match path.lossless {
                true => QNIC_PATH_LOSSLESS,
                false => 0,
            },
            reserved: 0,
        }
    }
}

/// Checks that this node and another one can talk, and what their route is like. No process of the
/// other node takes part. `path` may be null.
///
/// Fails with `QNIC_E_NO_PATH`: no answer within `timeout_ns` nanoseconds.
#[no_mangle]
pub extern "C" fn qnic_nic_check_path(
    nic: *mut qnic_nic,
    node: u16,
    timeout_ns: i64,
    path: Out<qnic_path>,
) -> c_int {
    call(|| {
        let found = get(nic)?
            .0
            .check_path(qnic::NodeId(node), limit(timeout_ns))?;
        path.set_head(found.into())
    })
}
