//! `fi_info` and what it points to, and attributes of objects.

use std::ffi::{c_char, c_void};

use super::{FidAvSet, Head};
use crate::pointers::{Context, Fid, In, Out};

/// `struct fi_tx_attr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}
const _: () = assert!(size_of::<TxAttr>() == 80);

/// `struct fi_rx_attr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}
const _: () = assert!(size_of::<RxAttr>() == 64);

/// `struct fi_ep_attr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct EpAttr {
    pub kind: u32,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}
const _: () = assert!(size_of::<EpAttr>() == 96);

/// `struct fi_domain_attr`, as far as version 1.17 has it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: i32,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
}
const _: () = assert!(size_of::<DomainAttr>() == 192);

/// `struct fi_fabric_attr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct FabricAttr {
    pub fabric: *mut c_void,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}
const _: () = assert!(size_of::<FabricAttr>() == 32);

/// `struct fi_info`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Head,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}
const _: () = assert!(size_of::<Info>() == 120);

/// `struct fi_av_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AvAttr {
    pub kind: u32,
    pub rx_ctx_bits: i32,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: In<c_char>,
    pub map_addr: *mut c_void,
    pub flags: u64,
}
const _: () = assert!(size_of::<AvAttr>() == 48);

/// `struct fi_cq_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub signaling_vector: i32,
    pub wait_cond: u32,
    pub wait_set: *mut c_void,
}
const _: () = assert!(size_of::<CqAttr>() == 40);

/// `struct fi_cntr_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CntrAttr {
    pub events: u32,
    pub wait_obj: u32,
    pub wait_set: *mut c_void,
    pub flags: u64,
}
const _: () = assert!(size_of::<CntrAttr>() == 24);

/// `struct fi_eq_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
    pub signaling_vector: i32,
    pub wait_set: *mut c_void,
}
const _: () = assert!(size_of::<EqAttr>() == 32);

/// `struct iovec`: a piece of the program's memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Iov {
    pub base: Out<c_void>,
    pub length: usize,
}
const _: () = assert!(size_of::<Iov>() == 16);

/// `struct fi_msg`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Msg {
    pub iov: In<Iov>,
    pub desc: In<*mut c_void>,
    pub iov_count: usize,
    pub addr: u64,
    pub context: Context,
    pub data: u64,
}
const _: () = assert!(size_of::<Msg>() == 48);

/// `struct fi_msg_tagged`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MsgTagged {
    pub iov: In<Iov>,
    pub desc: In<*mut c_void>,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: Context,
    pub data: u64,
}
const _: () = assert!(size_of::<MsgTagged>() == 64);

/// `struct fi_rma_iov`: a range of a peer's memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RmaIov {
    pub addr: u64,
    pub length: usize,
    pub key: u64,
}
const _: () = assert!(size_of::<RmaIov>() == 24);

/// `struct fi_msg_rma`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MsgRma {
    pub iov: In<Iov>,
    pub desc: In<*mut c_void>,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: In<RmaIov>,
    pub rma_iov_count: usize,
    pub context: Context,
    pub data: u64,
}
const _: () = assert!(size_of::<MsgRma>() == 64);

/// `struct fi_ioc`: elements in the program's memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Ioc {
    pub base: Out<c_void>,
    pub count: usize,
}
const _: () = assert!(size_of::<Ioc>() == 16);

/// `struct fi_rma_ioc`: elements in a peer's memory.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}
const _: () = assert!(size_of::<RmaIoc>() == 24);

/// `struct fi_msg_atomic`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MsgAtomic {
    pub iov: In<Ioc>,
    pub desc: In<*mut c_void>,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: In<RmaIoc>,
    pub rma_iov_count: usize,
    pub datatype: u32,
    pub op: u32,
    pub context: Context,
    pub data: u64,
}
const _: () = assert!(size_of::<MsgAtomic>() == 72);

/// `struct fi_atomic_attr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}
const _: () = assert!(size_of::<AtomicAttr>() == 16);

/// `struct fi_mr_attr`, as far as all versions have it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MrAttr {
    pub iov: In<Iov>,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: Context,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}
const _: () = assert!(size_of::<MrAttr>() == 64);

/// `struct fi_av_set_attr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AvSetAttr {
    pub count: usize,
    pub start_addr: u64,
    pub end_addr: u64,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}
const _: () = assert!(size_of::<AvSetAttr>() == 56);

/// `struct fi_collective_attr`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CollectiveAttr {
    pub op: u32,
    pub datatype: u32,
    pub datatype_attr: AtomicAttr,
    pub max_members: usize,
    pub mode: u64,
}
const _: () = assert!(size_of::<CollectiveAttr>() == 40);

/// `struct fi_collective_addr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CollectiveAddr {
    pub set: Fid<FidAvSet>,
    pub coll_addr: u64,
}
const _: () = assert!(size_of::<CollectiveAddr>() == 16);

/// `struct fi_eq_entry`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct EqEntry {
    pub fid: Context,
    pub context: Context,
    pub data: u64,
}
const _: () = assert!(size_of::<EqEntry>() == 24);

/// `struct fi_eq_err_entry`
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct EqErrEntry {
    pub entry: EqEntry,
    pub err: i32,
    pub prov_errno: i32,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}
const _: () = assert!(size_of::<EqErrEntry>() == 48);

/// `struct fi_cq_tagged_entry`; the other formats are its beginnings.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CqEntry {
    pub context: Context,
    pub flags: u64,
    pub len: usize,
    pub buf: Out<c_void>,
    pub data: u64,
    pub tag: u64,
}
const _: () = assert!(size_of::<CqEntry>() == 48);

/// `struct fi_cq_err_entry`, as far as version 1.17 has it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CqErrEntry {
    pub entry: CqEntry,
    pub olen: usize,
    pub err: i32,
    pub prov_errno: i32,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}
const _: () = assert!(size_of::<CqErrEntry>() == 80);
