//! Datagram ports of other modules: the entry points of `ffi.h` for them.
//!
//! A `port` is a `Box<Binding>`, an `upper` the shim's structure for it. Buffers are physical
//! addresses, each with a reference on its page ([`Memory`]).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;

use qnic_abi::{NodeId, PAGE_SIZE};
use qnic_driver::datagram::{
    Address, BindError, Binding, Buffer, Data, Handle, Header, Message, Outgoing, Port, PortConfig,
    SendError, Sent, Upper, MAX_DESTINATIONS,
};

use crate::ffi::{self, errno};
use crate::memory::Memory;
use crate::platform::Kernel;
use crate::shared::driver_of;

type KernelPort = Port<Kernel>;

/// A third-party module, named by the shim's structure for its port.
struct Module(*mut c_void);

// SAFETY: the shim's structure does not change while the port is bound.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// The physical addresses of buffers that are given away; 0 if there is none.
fn give_away(data: Data<Kernel>) -> [u64; 2] {
    data.into_buffers()
        .map(|buffer| buffer.map_or(0, |buffer| buffer.keep().into_raw()))
}

impl Upper<Kernel> for Module {
    fn received(&self, _: &KernelPort, message: Message<Kernel>) {
        let from = u32::from(message.from.node.0) << 16 | u32::from(message.from.port);
        let header = message.header.as_bytes();
        let (bytes, steered) = (
            message.data.len() as u32,
            message.steered.map_or(0, |it| it.0),
        );
        let [first, second] = give_away(message.data);
        // SAFETY: the structure lives until the port is closed; the header for the call.
        unsafe {
            ffi::qnic_upper_received(
                self.0,
                from,
                header.as_ptr(),
                header.len() as u32,
                first,
                second,
                bytes,
                steered,
            );
        }
    }

    fn sent(&self, _: &KernelPort, sent: Sent<Kernel>) {
        let (failed, status) = (sent.failed as u32, sent.status.code());
        let [first, second] = give_away(sent.data);
        // SAFETY: the structure lives until the port is closed.
        unsafe { ffi::qnic_upper_sent(self.0, sent.token, failed, status, first, second) }
    }

    fn withdrawn(&self, _: &KernelPort, handle: Handle, buffer: Buffer<Kernel>) {
        let address = buffer.keep().into_raw();
        // SAFETY: as above.
        unsafe { ffi::qnic_upper_withdrawn(self.0, handle.0, address) }
    }

    fn deadline(&self, _: &KernelPort, now_ns: u64) {
        // SAFETY: as above.
        unsafe { ffi::qnic_upper_deadline(self.0, now_ns) }
    }

    fn gone(&self, _: &KernelPort) {
        // SAFETY: as above.
        unsafe { ffi::qnic_upper_gone(self.0) }
    }
}

/// # Safety
/// `port` came from [`qnic_rs_datagram_bind`] and was not closed yet.
unsafe fn port_of<'a>(port: *mut c_void) -> &'a Binding<Kernel> {
    // SAFETY: the caller's promise.
    unsafe { &*port.cast::<Binding<Kernel>>() }
}

/// Buffers of the shim; on an error it keeps the references.
///
/// # Safety
/// Each is within a page, and the caller gives a reference away for each that is not 0.
unsafe fn buffers_of(
    (first, first_bytes): (u64, u32),
    (second, second_bytes): (u64, u32),
) -> [Option<Buffer<Kernel>>; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        [
            Memory::from_raw(first, first_bytes as usize),
            Memory::from_raw(second, second_bytes as usize),
        ]
    }
    .map(|memory| memory.map(Buffer::new))
}

/// Gives the references back to the shim.
fn leave(buffers: [Option<Buffer<Kernel>>; 2]) {
    for buffer in buffers.into_iter().flatten() {
        let _ = buffer.keep().into_raw();
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_bind(
    driver: *mut c_void,
    number: u16,
    receives: u16,
    steered: u16,
    messages: u16,
    upper: *mut c_void,
    port: *mut *mut c_void,
) -> i32 {
    let config = PortConfig {
        receives,
        steered,
        messages,
    };
    // SAFETY: the shim passes a driver that it has a reference of.
    let driver = unsafe { driver_of(driver) };
    match driver.bind_datagrams(number, &config, Arc::new(Module(upper))) {
        Ok(binding) => {
            // SAFETY: the shim passes a pointer to a variable.
            unsafe { *port = Box::into_raw(Box::new(binding)).cast() };
            0
        }
        Err(BindError::Invalid) => -errno::EINVAL,
        Err(BindError::InUse) => -errno::EBUSY,
        Err(BindError::Exhausted) => -errno::ENOSPC,
        Err(BindError::NoDevice) => -errno::ENODEV,
        Err(BindError::NoMemory) => -errno::ENOMEM,
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_close(port: *mut c_void) {
    // SAFETY: the shim gives the port back.
    drop(unsafe { Box::from_raw(port.cast::<Binding<Kernel>>()) });
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_fill(port: *mut c_void) -> i32 {
    // SAFETY: the shim passes a port that is open.
    let port = unsafe { port_of(port) };
    match port.fill() {
        Ok(()) => port.wait_posted(),
        Err(_) => return -errno::ENOMEM,
    }
    0
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_send(
    port: *mut c_void,
    to: *const u32,
    count: u32,
    header: *const u8,
    header_bytes: u32,
    first: u64,
    first_bytes: u32,
    second: u64,
    second_bytes: u32,
    target: u64,
    token: u64,
) -> i32 {
    let mut addresses = [Address {
        node: NodeId(0),
        port: 0,
    }; MAX_DESTINATIONS];
    // SAFETY: the shim passes so many destinations.
    let to = unsafe { core::slice::from_raw_parts(to, count as usize) };
    let Some(list) = addresses.get_mut(..to.len()) else {
        return -errno::EINVAL;
    };
    for (address, packed) in list.iter_mut().zip(to) {
        address.node = NodeId((packed >> 16) as u16);
        address.port = *packed as u16;
    }
    // SAFETY: the shim passes so many bytes.
    let header = unsafe { core::slice::from_raw_parts(header, header_bytes as usize) };
    let Some(header) = Header::new(header) else {
        return -errno::EINVAL;
    };
    // SAFETY: the shim has checked them, and gives the references away if this succeeds.
    let data = match unsafe { buffers_of((first, first_bytes), (second, second_bytes)) } {
        [None, rest] => {
            leave([None, rest]);
            Data::none()
        }
        [Some(first), second] => {
            let length = (first_bytes + second_bytes) as usize;
            match Data::new(first, second, length) {
                Ok(data) => data,
                Err((first, second)) => {
                    leave([Some(first), second]);
                    return -errno::EINVAL;
                }
            }
        }
    };
    let message = Outgoing {
        header,
        data,
        target: (target != 0).then_some(Handle(target)),
        token,
    };
    // SAFETY: the shim passes a port that is open.
    match unsafe { port_of(port) }.send(list, message) {
        Ok(()) => 0,
        Err((error, message)) => {
            leave(message.data.into_buffers());
            match error {
                SendError::Destinations => -errno::EINVAL,
                SendError::Full => -errno::EAGAIN,
                SendError::Closed => -errno::ENODEV,
            }
        }
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_expect(
    port: *mut c_void,
    first: u64,
    first_bytes: u32,
    second: u64,
    second_bytes: u32,
    handle: *mut u64,
) -> i32 {
    // SAFETY: the shim has checked them, and gives the references away if this succeeds.
    let buffers = unsafe { buffers_of((first, first_bytes), (second, second_bytes)) };
    let [Some(first), second] = buffers else {
        leave(buffers);
        return -errno::EINVAL;
    };
    // SAFETY: the shim passes a port that is open.
    match unsafe { port_of(port) }.expect(first, second) {
        Ok(expected) => {
            // SAFETY: the shim passes a pointer to a variable.
            unsafe { *handle = expected.0 };
            0
        }
        Err((first, second)) => {
            leave([Some(first), second]);
            -errno::EAGAIN
        }
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_withdraw(port: *mut c_void, handle: u64) {
    // SAFETY: the shim passes a port that is open.
    unsafe { port_of(port) }.withdraw(Handle(handle));
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_give(
    port: *mut c_void,
    address: u64,
    bytes: u32,
) -> bool {
    let length = (bytes as usize).min(PAGE_SIZE);
    // SAFETY: the shim gives a reference away.
    let Some(memory) = (unsafe { Memory::from_raw(address, length) }) else {
        return false;
    };
    // SAFETY: the shim passes a port that is open.
    unsafe { port_of(port) }.give(memory).is_none()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_deadline(port: *mut c_void, at_ns: u64) {
    let at_ns = (at_ns != 0).then_some(at_ns);
    // SAFETY: the shim passes a port that is open.
    unsafe { port_of(port) }.set_deadline(at_ns);
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_node(port: *mut c_void) -> u16 {
    // SAFETY: the shim passes a port that is open.
    unsafe { port_of(port) }.address().node.0
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_datagram_serve(driver: *mut c_void) {
    // SAFETY: the shim passes its driver.
    unsafe { driver_of(driver) }.serve_datagrams();
}
