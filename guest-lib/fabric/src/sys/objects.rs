//! Objects as callers see them: a head, and a pointer to each table of their class.

use std::ffi::{c_char, c_int, c_void};

use super::*;
use crate::pointers::{Context, Fid, In, Out};

/// `struct fid`: how each object begins.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Head {
    pub class: usize,
    pub context: Context,
    pub ops: &'static Ops,
}
const _: () = assert!(size_of::<Head>() == 24);

/// `struct fid_fabric`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidFabric {
    pub head: Head,
    pub ops: &'static OpsFabric,
    pub api_version: u32,
}
const _: () = assert!(size_of::<FidFabric>() == 40);

/// `struct fid_domain`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidDomain {
    pub head: Head,
    pub ops: &'static OpsDomain,
    pub mr: &'static OpsMr,
}
const _: () = assert!(size_of::<FidDomain>() == 40);

/// `struct fid_av`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidAv {
    pub head: Head,
    pub ops: &'static OpsAv,
}

/// `struct fid_cq`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidCq {
    pub head: Head,
    pub ops: &'static OpsCq,
}

/// `struct fid_cntr`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidCntr {
    pub head: Head,
    pub ops: &'static OpsCntr,
}

/// `struct fid_eq`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidEq {
    pub head: Head,
    pub ops: &'static OpsEq,
}

/// `struct fid_ep`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidEp {
    pub head: Head,
    pub ops: &'static OpsEp,
    pub cm: &'static OpsCm,
    pub msg: &'static OpsMsg,
    pub rma: &'static OpsRma,
    pub tagged: &'static OpsTagged,
    pub atomic: &'static OpsAtomic,
    pub collective: &'static OpsCollective,
}
const _: () = assert!(size_of::<FidEp>() == 80);

/// `struct fid_mr`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidMr {
    pub head: Head,
    pub mem_desc: Context,
    pub key: u64,
}
const _: () = assert!(size_of::<FidMr>() == 40);

/// `struct fid_av_set`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidAvSet {
    pub head: Head,
    pub ops: &'static OpsAvSet,
}

/// `struct fid_mc`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FidMc {
    pub head: Head,
    pub address: u64,
}
const _: () = assert!(size_of::<FidMc>() == 32);

/// `struct fi_provider`
#[derive(Debug)]
#[repr(C)]
pub struct Provider {
    pub(crate) version: u32,
    pub(crate) fi_version: u32,
    /// The loader's.
    pub(crate) context: [*mut c_void; 4],
    pub(crate) name: *const c_char,
    pub(crate) getinfo: GetInfo,
    pub(crate) fabric: extern "C" fn(In<FabricAttr>, Out<Fid<FidFabric>>, Context) -> c_int,
    pub(crate) cleanup: extern "C" fn(),
}
const _: () = assert!(size_of::<Provider>() == 72);

/// `getinfo` of a provider.
pub(crate) type GetInfo =
    extern "C" fn(u32, In<c_char>, In<c_char>, u64, In<Info>, Out<*mut Info>) -> c_int;
