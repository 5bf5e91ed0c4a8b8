//! Hints of a caller, and infos for it, in its memory.
//!
//! # Invariants
//! - Hints are copied while the call runs; what is null in them asks for nothing.
//! - An info is memory of the loader, as are its texts and addresses (of the C library's allocator): the
//!   caller frees it by `fi_freeinfo`.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void, CString};

use super::offer::{Hints, Offer, VERSION};
use crate::address::Address;
use crate::errno::{Result, NO_MEMORY};
use crate::loader;
use crate::pointers::{In, Plain};
use crate::sys::Info;

/// Longest address of another provider that is looked at, in bytes.
const ADDRESS_MAX: usize = 4096;

/// What a caller asks for.
pub(crate) fn hints(info: In<Info>) -> Option<Hints> {
    let info = info.pointer();
    if info.is_null() || !info.is_aligned() {
        return None;
    }
    // SAFETY: the caller promises an info while the call runs.
    let info = unsafe { &*info };
    let domain = get(info.domain_attr);
    let fabric = get(info.fabric_attr);
    Some(Hints {
        caps: info.caps,
        addr_format: info.addr_format,
        source: address(info.src_addr, info.src_addrlen),
        destination: address(info.dest_addr, info.dest_addrlen),
        tx: get(info.tx_attr),
        rx: get(info.rx_attr),
        ep: get(info.ep_attr),
        domain,
        domain_name: domain.and_then(|domain| text(domain.name)),
        fabric_name: fabric.and_then(|fabric| text(fabric.name)),
        provider: fabric.and_then(|fabric| text(fabric.prov_name)),
    })
}

fn get<T: Plain>(pointer: *mut T) -> Option<T> {
    let is_there = !pointer.is_null() && pointer.is_aligned();
    // SAFETY: attributes of an info, which the caller promises to be there, or null.
    is_there.then(|| unsafe { pointer.read() })
}

fn text(pointer: *mut c_char) -> Option<String> {
    // SAFETY: a text of an info, which ends, or null; a pointer in any case.
    let text = unsafe { In::of_program(pointer.cast_const()) };
    text.text().map(str::to_owned)
}

fn address(pointer: *mut c_void, length: usize) -> Option<Vec<u8>> {
    let length = length.min(ADDRESS_MAX);
    // SAFETY: so many bytes of an info, or null; a pointer in any case.
    let bytes = unsafe { In::of_program(pointer.cast_const()) };
    let bytes = bytes.bytes(length).filter(|bytes| !bytes.is_empty());
    bytes.map(<[u8]>::to_vec)
}

/// An info for the caller.
///
/// # Errors
/// [`NO_MEMORY`]
pub(crate) fn info(offer: &Offer) -> Result<*mut Info> {
    let info = loader::allocate_info().ok_or(NO_MEMORY)?;
    // SAFETY: an info of the loader, with all of its attributes, that nothing else knows yet.
    match fill(unsafe { &mut *info }, offer) {
        Ok(()) => Ok(info),
        Err(error) => {
            // SAFETY: as above.
            unsafe { loader::free_info(info) };
            Err(error)
        }
    }
}

fn fill(info: &mut Info, offer: &Offer) -> Result<()> {
    info.caps = offer.caps;
    info.mode = offer.mode;
    info.addr_format = offer.addr_format;
    for (place, length, address) in [
        (
            &mut info.src_addr,
            &mut info.src_addrlen,
            Some(offer.source),
        ),
        (
            &mut info.dest_addr,
            &mut info.dest_addrlen,
            offer.destination,
        ),
    ] {
        if let Some(address) = address {
            *place = allocate(&address)?;
            *length = crate::address::BYTES;
        }
    }
    set(info.tx_attr, offer.tx)?;
    set(info.rx_attr, offer.rx)?;
    set(info.ep_attr, offer.ep)?;
    set(info.domain_attr, offer.domain)?;
    let fabric = get(info.fabric_attr).ok_or(NO_MEMORY)?;
    let fabric = crate::sys::FabricAttr {
        name: duplicate(&offer.fabric_name)?,
        prov_version: VERSION,
        api_version: offer.api_version,
        ..fabric
    };
    set(info.fabric_attr, fabric)?;
    let name = duplicate(&offer.domain_name)?;
    // SAFETY: `set` has found it.
    unsafe { (*info.domain_attr).name = name };
    Ok(())
}

fn set<T: Plain>(pointer: *mut T, value: T) -> Result<()> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(NO_MEMORY);
    }
    // SAFETY: attributes that the loader has allocated.
    unsafe { pointer.write(value) };
    Ok(())
}

/// A text in memory of the C library.
fn duplicate(text: &str) -> Result<*mut c_char> {
    let text = CString::new(text).map_err(|_| NO_MEMORY)?;
    // SAFETY: a text that ends.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    match copy.is_null() {
        true => Err(NO_MEMORY),
        false => Ok(copy),
    }
}

/// An address in memory of the C library.
fn allocate(address: &Address) -> Result<*mut c_void> {
    let bytes = address.to_bytes();
    // SAFETY: any size will do.
    let memory = unsafe { libc::malloc(bytes.len()) };
    if memory.is_null() {
        return Err(NO_MEMORY);
    }
    // SAFETY: it has this size.
    unsafe { memory.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    Ok(memory)
}
