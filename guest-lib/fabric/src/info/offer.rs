//! What a domain can do, and what a caller asks for: values of Rust, with no pointer that is looked at.

use std::ptr::null_mut;

use qnic::Port;

use crate::address::{Address, BYTES};
use crate::sys::{self, DomainAttr, EpAttr, RxAttr, TxAttr};

/// Name of the provider, and of its fabric.
pub(crate) const NAME: &str = "qnic";

/// Version of the provider, as `FI_VERSION` makes it: 0.2.
pub(crate) const VERSION: u32 = 2;

/// Longest message, in bytes: as many pieces as a mark can count.
pub(crate) const MESSAGE_MAX: usize = 1 << 30;

/// Longest message that goes through bounce memory at both ends as a whole, in bytes.
pub(crate) const WHOLE_MAX: usize = 16 << 20;

/// Bytes that a receive of many messages keeps for each unless the program says how many.
pub(crate) const MULTI_RECV_MIN: usize = 64;

/// Longest message of `fi_inject`, in bytes.
pub(crate) const INJECT_MAX: usize = 4096;

/// Most operations of an endpoint in each direction that are advertised.
pub(crate) const OPERATIONS: usize = 1024;

/// Most pieces of a message.
pub(crate) const PIECES_MAX: usize = 8;

/// All tag bits are the caller's.
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// How many regions a domain can have; a hint for callers.
const REGIONS: usize = 1 << 20;

/// How many objects of a kind a domain can have; a hint for callers.
const OBJECTS: usize = 1024;

/// Capabilities of both directions.
const SHARED_CAPS: u64 = sys::MSG | sys::TAGGED | sys::RMA | sys::ATOMIC | sys::COLLECTIVE;
pub(crate) const TX_CAPS: u64 = SHARED_CAPS | sys::FENCE | sys::SEND | sys::READ | sys::WRITE;
const REMOTE_CAPS: u64 = sys::REMOTE_READ | sys::REMOTE_WRITE | sys::RMA_EVENT;
pub(crate) const RX_CAPS: u64 =
    SHARED_CAPS | sys::RECV | sys::DIRECTED_RECV | sys::SOURCE | sys::MULTI_RECV | REMOTE_CAPS;
pub(crate) const DOMAIN_CAPS: u64 = sys::LOCAL_COMM | sys::REMOTE_COMM;
pub(crate) const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;

/// Flags that operations may have by default.
pub(crate) const TX_FLAGS: u64 = sys::COMPLETION
    | sys::INJECT
    | sys::INJECT_COMPLETE
    | sys::TRANSMIT_COMPLETE
    | sys::DELIVERY_COMPLETE;
pub(crate) const RX_FLAGS: u64 = sys::COMPLETION | sys::MULTI_RECV;

/// What an info says: of a domain, or what it must be.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) caps: u64,
    pub(crate) mode: u64,
    pub(crate) addr_format: u32,
    /// What the endpoint is to be named.
    pub(crate) source: Address,
    pub(crate) destination: Option<Address>,
    pub(crate) tx: TxAttr,
    pub(crate) rx: RxAttr,
    pub(crate) ep: EpAttr,
    pub(crate) domain: DomainAttr,
    pub(crate) domain_name: String,
    pub(crate) fabric_name: String,
    pub(crate) api_version: u32,
}

/// What a caller asks for. What is not there, and zeros, ask for nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints {
    pub(crate) caps: u64,
    pub(crate) addr_format: u32,
    pub(crate) source: Option<Vec<u8>>,
    pub(crate) destination: Option<Vec<u8>>,
    pub(crate) tx: Option<TxAttr>,
    pub(crate) rx: Option<RxAttr>,
    pub(crate) ep: Option<EpAttr>,
    pub(crate) domain: Option<DomainAttr>,
    pub(crate) domain_name: Option<String>,
    pub(crate) fabric_name: Option<String>,
    pub(crate) provider: Option<String>,
}

impl Offer {
    /// All that the domain of this name can do, for a caller of this version.
    pub(crate) fn all(domain_name: &str, api_version: u32) -> Self {
        Offer {
            caps: CAPS,
            mode: 0,
            addr_format: sys::ADDR_QNIC,
            source: Address::unassigned(Port(0)),
            destination: None,
            tx: TX,
            rx: RX,
            ep: EP,
            domain: DOMAIN,
            domain_name: domain_name.to_owned(),
            fabric_name: NAME.to_owned(),
            api_version,
        }
    }

    /// The same, as hints.
    #[cfg(test)]
    pub(crate) fn as_hints(&self) -> Hints {
        let bytes = |address: &Address| address.to_bytes().to_vec();
        Hints {
            caps: self.caps,
            addr_format: self.addr_format,
            source: Some(bytes(&self.source)),
            destination: self.destination.as_ref().map(bytes),
            tx: Some(self.tx),
            rx: Some(self.rx),
            ep: Some(self.ep),
            domain: Some(self.domain),
            domain_name: Some(self.domain_name.clone()),
            fabric_name: Some(self.fabric_name.clone()),
            provider: Some(NAME.to_owned()),
        }
    }
}

const _: () = assert!(
    BYTES <= 64,
    "some callers have room for 64 bytes of an address"
);

/// Messages behind messages, and accesses to memory behind accesses. Neither behind the other.
const ORDER: u64 = sys::ORDER_SAS | sys::ORDER_ACCESSES;

const TX: TxAttr = TxAttr {
    caps: TX_CAPS,
    mode: 0,
    op_flags: 0,
    msg_order: ORDER,
    comp_order: 0,
    inject_size: INJECT_MAX,
    size: OPERATIONS,
    iov_limit: PIECES_MAX,
    rma_iov_limit: 1,
    tclass: sys::TC_UNSPEC,
};

const RX: RxAttr = RxAttr {
    caps: RX_CAPS,
    mode: 0,
    op_flags: 0,
    msg_order: ORDER,
    comp_order: 0,
    total_buffered_recv: 0,
    size: OPERATIONS,
    iov_limit: PIECES_MAX,
};

const EP: EpAttr = EpAttr {
    kind: sys::EP_RDM,
    protocol: sys::PROTO_QNIC,
    protocol_version: 1,
    max_msg_size: MESSAGE_MAX,
    msg_prefix_size: 0,
    max_order_raw_size: MESSAGE_MAX,
    max_order_war_size: MESSAGE_MAX,
    max_order_waw_size: MESSAGE_MAX,
    mem_tag_format: TAG_FORMAT,
    tx_ctx_cnt: 1,
    rx_ctx_cnt: 1,
    auth_key_size: 0,
    auth_key: null_mut(),
};

const DOMAIN: DomainAttr = DomainAttr {
    domain: null_mut(),
    name: null_mut(),
    threading: sys::THREAD_SAFE,
    control_progress: sys::PROGRESS_AUTO,
    data_progress: sys::PROGRESS_AUTO,
    resource_mgmt: sys::RM_ENABLED,
    av_type: sys::AV_UNSPEC,
    mr_mode: 0,
    mr_key_size: 8,
    cq_data_size: 8,
    cq_cnt: OBJECTS,
    ep_cnt: OBJECTS,
    tx_ctx_cnt: OBJECTS,
    rx_ctx_cnt: OBJECTS,
    max_ep_tx_ctx: 1,
    max_ep_rx_ctx: 1,
    max_ep_stx_ctx: 0,
    max_ep_srx_ctx: 0,
    cntr_cnt: OBJECTS,
    mr_iov_limit: PIECES_MAX,
    caps: DOMAIN_CAPS,
    mode: 0,
    auth_key: null_mut(),
    auth_key_size: 0,
    max_err_data: 0,
    mr_cnt: REGIONS,
    tclass: sys::TC_UNSPEC,
};
