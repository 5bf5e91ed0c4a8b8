//! Verbs: the entry points of `ffi.h` for the module of the device of libibverbs.
//!
//! A `context` is a `Box<Context>`, a `cq` a `Box<CompletionQueue>`, an `srq` a `Box<SharedReceiveQueue>`, a `qp` a
//! `Box<QueuePair>`, a `ring` an `Arc<Ring>`, each as a raw pointer.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::slice;

use qnic_abi::verbs::requests::ModifyQueuePair;
use qnic_abi::verbs::{PathAddress, Rights, Transport};
use qnic_abi::{NodeId, Status};
use qnic_driver::platform::DeviceMemory;
use qnic_driver::verbs::{management, Capacity, QueuePairOptions, Queues};
use qnic_driver::{CallError, Failure};

use crate::ffi::{self, errno, MmStruct};
use crate::platform::{AddressSpace, Kernel};
use crate::shared::{call_errno, driver_arc, driver_of};

type Context = qnic_driver::VerbsContext<Kernel>;
type CompletionQueue = qnic_driver::verbs::CompletionQueue<Kernel>;
type SharedReceiveQueue = qnic_driver::verbs::SharedReceiveQueue<Kernel>;
type QueuePair = qnic_driver::verbs::QueuePair<Kernel>;
type Ring = qnic_driver::verbs::Ring<Kernel>;

/// Numbers that the shim passes as one.
type Numbers<const COUNT: usize> = [u32; COUNT];

/// # Safety
/// `context` came from [`qnic_rs_verbs_open`] and was not closed yet.
unsafe fn context_of<'a>(context: *mut c_void) -> &'a Context {
    // SAFETY: the caller's promise.
    unsafe { &*context.cast::<Context>() }
}

/// # Safety
/// `cq` came from [`qnic_rs_verbs_create_cq`] and was not destroyed yet.
unsafe fn cq_of<'a>(cq: *mut c_void) -> &'a CompletionQueue {
    // SAFETY: the caller's promise.
    unsafe { &*cq.cast::<CompletionQueue>() }
}

/// # Safety
/// `srq` came from [`qnic_rs_verbs_create_srq`] and was not destroyed yet.
unsafe fn srq_of<'a>(srq: *mut c_void) -> &'a SharedReceiveQueue {
    // SAFETY: the caller's promise.
    unsafe { &*srq.cast::<SharedReceiveQueue>() }
}

/// # Safety
/// `qp` came from [`qnic_rs_verbs_create_qp`] and was not destroyed yet.
unsafe fn qp_of<'a>(qp: *mut c_void) -> &'a QueuePair {
    // SAFETY: the caller's promise.
    unsafe { &*qp.cast::<QueuePair>() }
}

fn failure_errno(failure: Failure) -> i32 {
    match failure {
        Failure::Call(error) => call_errno(error),
        Failure::Refused(Status::Exhausted | Status::SramTooSmall) => errno::ENOMEM,
        Failure::Refused(
            Status::NotMapped
            | Status::BadAddress
            | Status::ReadOnlyMemory
            | Status::UnreadableMemory
            | Status::SecretMemory
            | Status::DaxMemory
            | Status::UserFaultMemory
            | Status::DeviceMemory,
        ) => errno::EFAULT,
        Failure::Refused(_) => errno::EINVAL,
    }
}

fn result(result: Result<(), Failure>) -> i32 {
    result.map_or_else(|failure| -failure_errno(failure), |()| 0)
}

/// Gives a new object to the shim.
///
/// # Safety
/// `to` points to a variable.
unsafe fn give<T>(made: Result<T, Failure>, to: *mut *mut c_void) -> i32 {
    match made {
        Ok(made) => {
            // SAFETY: the caller's promise.
            unsafe { *to = Box::into_raw(Box::new(made)).cast() };
            0
        }
        Err(failure) => -failure_errno(failure),
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_open(
    driver: *mut c_void,
    mm: *mut MmStruct,
    pid: u32,
    context: *mut *mut c_void,
) -> i32 {
    let Some(mm) = NonNull::new(mm) else {
        return -errno::EINVAL;
    };
    // SAFETY: the shim passes the caller's address space.
    let space = unsafe { AddressSpace::new(mm) };
    // SAFETY: the shim holds a reference.
    let driver = unsafe { driver_arc(driver) };
    // SAFETY: the shim passes a pointer to a variable.
    unsafe { give(driver.open_verbs(space, pid), context) }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_close(context: *mut c_void) {
    // SAFETY: the shim gives the context back.
    drop(unsafe { Box::from_raw(context.cast::<Context>()) });
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_node(driver: *mut c_void) -> u16 {
    // SAFETY: the shim holds a reference.
    unsafe { driver_of(driver) }.geometry().node.0
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_number(context: *mut c_void) -> u32 {
    // SAFETY: the shim has not closed the context.
    unsafe { context_of(context) }.next_number()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_create_cq(
    context: *mut c_void,
    owner: u64,
    entries: *mut u32,
    cq: *mut *mut c_void,
) -> i32 {
    // SAFETY: the shim passes a pointer to a variable.
    let entries = unsafe { &mut *entries };
    // SAFETY: the shim has not closed the context.
    let made = unsafe { context_of(context) }.create_completion_queue(*entries, owner);
    if let Ok(made) = &made {
        *entries = made.completions();
    }
    // SAFETY: the shim passes a pointer to a variable.
    unsafe { give(made, cq) }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_destroy_cq(context: *mut c_void, cq: *mut c_void) {
    // SAFETY: the shim gives the queue back.
    let cq = unsafe { Box::from_raw(cq.cast::<CompletionQueue>()) };
    // SAFETY: the shim has not closed the context.
    unsafe { context_of(context) }.destroy_completion_queue(*cq);
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_create_srq(
    context: *mut c_void,
    owner: u64,
    domain: u32,
    receives: *mut u32,
    sges: *mut u32,
    limit: u32,
    srq: *mut *mut c_void,
) -> i32 {
    // SAFETY: the shim passes pointers to two variables.
    let (receives, sges) = unsafe { (&mut *receives, &mut *sges) };
    let capacity = Capacity {
        requests: *receives,
        sges: *sges,
    };
    // SAFETY: the shim has not closed the context.
    let context = unsafe { context_of(context) };
    let made = context.create_shared_receive_queue(domain, capacity, limit, owner);
    if let Ok(made) = &made {
        let made = made.capacity();
        (*receives, *sges) = (made.requests, made.sges);
    }
    // SAFETY: the shim passes a pointer to a variable.
    unsafe { give(made, srq) }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_modify_srq(
    context: *mut c_void,
    srq: *mut c_void,
    limit: u32,
) -> i32 {
    // SAFETY: the shim has neither closed the one nor destroyed the other.
    result(unsafe { context_of(context).set_limit(srq_of(srq), limit) })
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_destroy_srq(context: *mut c_void, srq: *mut c_void) {
    // SAFETY: the shim gives the queue back.
    let srq = unsafe { Box::from_raw(srq.cast::<SharedReceiveQueue>()) };
    // SAFETY: the shim has not closed the context.
    unsafe { context_of(context) }.destroy_shared_receive_queue(*srq);
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_srq_number(srq: *mut c_void) -> u32 {
    // SAFETY: the shim has not destroyed it.
    unsafe { srq_of(srq) }.number()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_create_qp(
    context: *mut c_void,
    owner: u64,
    send_cq: *mut c_void,
    receive_cq: *mut c_void,
    srq: *mut c_void,
    options: *mut u32,
    qp: *mut *mut c_void,
) -> i32 {
    // SAFETY: the shim passes so many numbers.
    let raw = unsafe { &mut *options.cast::<Numbers<{ ffi::QNIC_QP_OPTIONS as usize }>>() };
    let Ok(transport) = Transport::try_from(raw[ffi::QNIC_QP_TRANSPORT as usize] as u8) else {
        return -errno::EINVAL;
    };
    let capacity = |requests: i32, sges: i32| Capacity {
        requests: raw[requests as usize],
        sges: raw[sges as usize],
    };
    let options = QueuePairOptions {
        transport,
        signal_all: raw[ffi::QNIC_QP_SIGNAL_ALL as usize] != 0,
        domain: raw[ffi::QNIC_QP_DOMAIN as usize],
        sends: capacity(ffi::QNIC_QP_SENDS, ffi::QNIC_QP_SEND_SGES),
        receives: capacity(ffi::QNIC_QP_RECEIVES, ffi::QNIC_QP_RECEIVE_SGES),
        inline: raw[ffi::QNIC_QP_INLINE as usize],
    };
    // SAFETY: the shim has not destroyed them; the last one may be NULL.
    let queues = unsafe {
        Queues {
            sends: cq_of(send_cq),
            receives: cq_of(receive_cq),
            shared: (!srq.is_null()).then(|| srq_of(srq)),
        }
    };
    // SAFETY: the shim has not closed the context.
    let made = unsafe { context_of(context) }.create_queue_pair(options, queues, owner);
    if let Ok(made) = &made {
        let made = made.options();
        raw[ffi::QNIC_QP_SENDS as usize] = made.sends.requests;
        raw[ffi::QNIC_QP_SEND_SGES as usize] = made.sends.sges;
        raw[ffi::QNIC_QP_INLINE as usize] = made.inline;
        raw[ffi::QNIC_QP_RECEIVES as usize] = made.receives.requests;
        raw[ffi::QNIC_QP_RECEIVE_SGES as usize] = made.receives.sges;
    }
    // SAFETY: the shim passes a pointer to a variable.
    unsafe { give(made, qp) }
}

/// The address of the node that has a LID; `None`: none can have it.
fn path_of(lid: u32, service_level: u32, route_header: bool) -> Option<PathAddress> {
    let node = NodeId(u16::try_from(lid.checked_sub(1)?).ok()?);
    let service_level = u8::try_from(service_level).ok()?;
    Some(PathAddress::new(node, service_level, route_header))
}

#[no_mangle]
pub(crate) extern "C" fn qnic_rs_verbs_path(
    lid: u32,
    service_level: u32,
    route_header: bool,
) -> u32 {
    path_of(lid, service_level, route_header).map_or(0, |path| path.0)
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_management_header(
    from: *const u8,
    to: *const u8,
    header: *mut u8,
) {
    // SAFETY: the shim passes two addresses, and room for a header.
    unsafe {
        let made = management::header(&*from.cast(), &*to.cast());
        header.cast::<[u8; management::HEADER_BYTES]>().write(made);
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_management_route(
    from_port: u32,
    header: *const u8,
    header_bytes: u32,
    message: *const u8,
    bytes: u32,
    route: *mut u8,
) -> u32 {
    // SAFETY: the shim passes so many bytes of both, which no other code writes to.
    let (header, message) = unsafe {
        (
            slice::from_raw_parts(header, header_bytes as usize),
            slice::from_raw_parts(message, bytes as usize),
        )
    };
    match management::route_of(from_port as u16, header, message) {
        Some((version, made)) => {
            // SAFETY: the shim passes room for a route header.
            unsafe { route.cast::<[u8; management::ROUTE_BYTES]>().write(made) };
            version as u32
        }
        None => 0,
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_management_admit(due: *mut u64, now: u64) -> bool {
    // SAFETY: the shim passes a variable that no other code uses meanwhile.
    management::admits(unsafe { &mut *due }, now)
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_management_asked(due: *mut u64) {
    // SAFETY: the shim passes a variable that no other code uses meanwhile.
    management::has_asked(unsafe { &mut *due });
}

/// The request for what the shim says; `None`: a number is out of range.
fn change_of(raw: &Numbers<{ ffi::QNIC_QP_ATTRIBUTES as usize }>) -> Option<ModifyQueuePair> {
    let number = |index: i32| raw[index as usize];
    let byte = |index: i32| u8::try_from(number(index)).ok();
    let path = match number(ffi::QNIC_QP_LID) {
        0 => 0,
        lid => path_of(lid, number(ffi::QNIC_QP_SERVICE_LEVEL), false)?.0,
    };
    Some(ModifyQueuePair {
        qp: 0.into(),
        state: byte(ffi::QNIC_QP_STATE)?,
        access: byte(ffi::QNIC_QP_ACCESS)?,
        timeout: byte(ffi::QNIC_QP_TIMEOUT)?,
        retries: byte(ffi::QNIC_QP_RETRIES)?,
        path: path.into(),
        peer_qp: number(ffi::QNIC_QP_PEER).into(),
        send_psn: number(ffi::QNIC_QP_SEND_PSN).into(),
        receive_psn: number(ffi::QNIC_QP_RECEIVE_PSN).into(),
        qkey: number(ffi::QNIC_QP_QKEY).into(),
        mtu: byte(ffi::QNIC_QP_MTU)?,
        not_ready_timer: byte(ffi::QNIC_QP_RNR_TIMER)?,
        not_ready_retries: byte(ffi::QNIC_QP_RNR_RETRIES)?,
        max_reads: byte(ffi::QNIC_QP_READS)?,
        max_peer_reads: byte(ffi::QNIC_QP_PEER_READS)?,
        drain_event: byte(ffi::QNIC_QP_DRAIN_EVENT)?,
        reserved: [0; 6],
    })
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_modify_qp(
    context: *mut c_void,
    qp: *mut c_void,
    attributes: *const u32,
) -> i32 {
    // SAFETY: the shim passes so many numbers.
    let raw = unsafe { &*attributes.cast::<Numbers<{ ffi::QNIC_QP_ATTRIBUTES as usize }>>() };
    let Some(change) = change_of(raw) else {
        return -errno::EINVAL;
    };
    // SAFETY: the shim has neither closed the one nor destroyed the other.
    result(unsafe { context_of(context).modify(qp_of(qp), change) })
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_query_qp(
    context: *mut c_void,
    qp: *mut c_void,
    now: *mut u32,
) -> i32 {
    // SAFETY: the shim passes room for so many numbers.
    let now = unsafe { &mut *now.cast::<Numbers<{ ffi::QNIC_QP_NOW as usize }>>() };
    // SAFETY: the shim has neither closed the one nor destroyed the other.
    match unsafe { context_of(context).query(qp_of(qp)) } {
        Ok(info) => {
            now[ffi::QNIC_QP_NOW_STATE as usize] = info.state.into();
            now[ffi::QNIC_QP_NOW_DRAINING as usize] = info.draining.into();
            now[ffi::QNIC_QP_NOW_SEND_PSN as usize] = info.send_psn.get();
            now[ffi::QNIC_QP_NOW_RECEIVE_PSN as usize] = info.receive_psn.get();
            0
        }
        Err(failure) => -failure_errno(failure),
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_destroy_qp(context: *mut c_void, qp: *mut c_void) {
    // SAFETY: the shim gives the queue pair back.
    let qp = unsafe { Box::from_raw(qp.cast::<QueuePair>()) };
    // SAFETY: the shim has not closed the context.
    unsafe { context_of(context) }.destroy_queue_pair(*qp);
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_qp_number(qp: *mut c_void) -> u32 {
    // SAFETY: the shim has not destroyed it.
    unsafe { qp_of(qp) }.number()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_register(
    context: *mut c_void,
    domain: u32,
    address: u64,
    bytes: u64,
    named: u64,
    rights: u32,
    key: *mut u32,
) -> i32 {
    let Some(rights) = Rights::from_bits(rights) else {
        return -errno::EINVAL;
    };
    // SAFETY: the shim has not closed the context.
    let context = unsafe { context_of(context) };
    match context.register(domain, (address, bytes), named, rights) {
        Ok(registered) => {
            // SAFETY: the shim passes a pointer to a variable.
            unsafe { *key = registered };
            0
        }
        Err(failure) => -failure_errno(failure),
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_deregister(context: *mut c_void, key: u32) -> i32 {
    // SAFETY: the shim has not closed the context.
    result(unsafe { context_of(context) }.deregister(key))
}

fn command_result(sent: Result<(), CallError>) -> i32 {
    match sent {
        Ok(()) => 0,
        Err(CallError::TimedOut) => -errno::EAGAIN,
        Err(error) => -call_errno(error),
    }
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_send(context: *mut c_void, qp: *mut c_void) -> i32 {
    // SAFETY: the shim has neither closed the one nor destroyed the other.
    command_result(unsafe { context_of(context).send(qp_of(qp)) })
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_arm(
    context: *mut c_void,
    cq: *mut c_void,
    solicited: bool,
) -> i32 {
    // SAFETY: the shim has neither closed the one nor destroyed the other.
    command_result(unsafe { context_of(context).arm(cq_of(cq), solicited) })
}

fn ring_of(ring: &Arc<Ring>) -> *mut c_void {
    Arc::into_raw(ring.clone()).cast_mut().cast()
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_cq_ring(cq: *mut c_void) -> *mut c_void {
    // SAFETY: the shim has not destroyed it.
    ring_of(unsafe { cq_of(cq) }.ring())
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_srq_ring(srq: *mut c_void) -> *mut c_void {
    // SAFETY: the shim has not destroyed it.
    ring_of(unsafe { srq_of(srq) }.ring())
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_qp_ring(qp: *mut c_void, sends: bool) -> *mut c_void {
    // SAFETY: the shim has not destroyed it.
    let qp = unsafe { qp_of(qp) };
    let ring = match sends {
        true => Some(qp.sends()),
        false => qp.receives(),
    };
    ring.map_or(core::ptr::null_mut(), ring_of)
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_ring_bytes(ring: *mut c_void) -> u64 {
    // SAFETY: the shim has not put it.
    unsafe { &*ring.cast::<Ring>() }.bytes() as u64
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_ring_page(ring: *mut c_void, index: u64) -> u64 {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    // SAFETY: the shim has not put it.
    let page = unsafe { &*ring.cast::<Ring>() }.page(index);
    page.map_or(0, |page| page.address())
}

#[no_mangle]
pub(crate) unsafe extern "C" fn qnic_rs_verbs_ring_put(ring: *mut c_void) {
    // SAFETY: the shim gives its reference back.
    drop(unsafe { Arc::from_raw(ring.cast::<Ring>()) });
}
