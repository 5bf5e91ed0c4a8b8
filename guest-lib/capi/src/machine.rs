//! Which rank of which parallel machine this process is.

#![allow(unsafe_code)] // For the names of symbols alone: no block is unsafe.

use std::ffi::c_int;

use qnic::machine::{Interface, Machine};

use crate::border::{call, head, Out};
use crate::failure::Failure;
use crate::handles::{close, get, open};

/// A parallel machine, as the environment of this process names it.
pub struct qnic_machine(Machine);

/// Opens the machine that the environment names.
///
/// Fails with `QNIC_E_NO_MACHINE`: start the program with `cargo qnic machine run`; `QNIC_E_SETTING`.
#[no_mangle]
pub extern "C" fn qnic_machine_open(machine: Out<*mut qnic_machine>) -> c_int {
    open(machine, || Ok(qnic_machine(Machine::from_environment()?)))
}

/// The ranks reach each other through registers of the NIC: messages.
pub const QNIC_INTERFACE_QNIC: u32 = 1;
/// They reach each other through the kernel: streams.
pub const QNIC_INTERFACE_POOL: u32 = 2;

/// A machine.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct qnic_machine_info {
    /// Size of this structure.
    pub size: usize,
    /// The rank of this process.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// `QNIC_INTERFACE_…`.
    pub interface: u32,
    /// Zero.
    pub reserved: u32,
    /// The secret of the run.
    pub key: u64,
    /// Its name, with a zero byte at its end; as much of it as fits.
    pub name: [u8; 64],
}

head!(qnic_machine_info {
    rank,
    ranks,
    interface,
    reserved,
    key,
    name
});

/// Describes a machine.
#[no_mangle]
pub extern "C" fn qnic_machine_get_info(
    machine: *mut qnic_machine,
    info: Out<qnic_machine_info>,
) -> c_int {
    call(|| {
        let machine = &get(machine)?.0;
        let mut name = [0; 64];
        for (to, byte) in name[..63].iter_mut().zip(machine.name().bytes()) {
            *to = byte;
        }
        info.set_head(qnic_machine_info {
            size: size_of::<qnic_machine_info>(),
            rank: machine.rank(),
            ranks: machine.size(),
            interface: match machine.interface() {
                Interface::Qnic => QNIC_INTERFACE_QNIC,
                Interface::Pool => QNIC_INTERFACE_POOL,
            },
            reserved: 0,
            key: machine.key(),
            name,
        })
    })
}

/// Stores node and port of a rank. Both pointers may be null.
///
/// Fails with `QNIC_E_ARGUMENT`: there is no such rank.
#[no_mangle]
pub extern "C" fn qnic_machine_rank(
    machine: *mut qnic_machine,
    rank: u32,
    node: Out<u16>,
    port: Out<u16>,
) -> c_int {
    call(|| {
        let machine = &get(machine)?.0;
        if rank >= machine.size() {
            return Err(Failure::argument("no such rank"));
        }
        node.set(machine.node_of(rank).0)?;
        port.set(machine.port_of(rank))
    })
}

/// Closes a machine.
#[no_mangle]
pub extern "C" fn qnic_machine_close(machine: *mut qnic_machine) -> c_int {
    close(machine)
}
