//! Numbers of libfabric: capabilities, flags, classes, errors.

/// Capabilities, and flags of operations and completions.
pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const TAGGED: u64 = 1 << 3;
pub(crate) const ATOMIC: u64 = 1 << 4;
pub(crate) const COLLECTIVE: u64 = 1 << 6;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const MULTI_RECV: u64 = 1 << 16;
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const MORE: u64 = 1 << 18;
pub(crate) const PEEK: u64 = 1 << 19;
pub(crate) const FENCE: u64 = 1 << 21;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const LOCAL_COMM: u64 = 1 << 51;
pub(crate) const REMOTE_COMM: u64 = 1 << 52;
pub(crate) const PROV_ATTR_ONLY: u64 = 1 << 54;
pub(crate) const RMA_EVENT: u64 = 1 << 56;
pub(crate) const SOURCE: u64 = 1 << 57;
pub(crate) const DIRECTED_RECV: u64 = 1 << 59;
/// The same bit as [`DIRECTED_RECV`]: of a receive.
pub(crate) const CLAIM: u64 = 1 << 59;
pub(crate) const DISCARD: u64 = 1 << 58;
/// The same bit: of a binding to a completion queue.
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Address vector sets: all addresses of the vector, and which collectives it is for.
pub(crate) const UNIVERSE: u64 = 1 << 57;
pub(crate) const SET_COLLECTIVES: u64 = 0x1ff << 40;

/// The order of messages behind messages.
pub(crate) const ORDER_SAS: u64 = 1 << 8;
/// The order of reads and writes behind reads and writes: of any kind, of RMA, of atomic operations.
pub(crate) const ORDER_ACCESSES: u64 = 0b1_1011 | 0xf << 32 | 0xf << 36;

/// Bits of `mr_mode` that stand for all others, in the words of old callers.
pub(crate) const MR_BASIC: i32 = 1;
pub(crate) const MR_SCALABLE: i32 = 2;

/// Which kind of atomic operation is asked about.
pub(crate) const FETCH_ATOMIC: u64 = 1 << 58;
pub(crate) const COMPARE_ATOMIC: u64 = 1 << 59;

/// Types of endpoints.
pub(crate) const EP_UNSPEC: u32 = 0;
pub(crate) const EP_RDM: u32 = 3;

/// Threads that may call at the same time.
pub(crate) const THREAD_UNSPEC: u32 = 0;
pub(crate) const THREAD_SAFE: u32 = 1;

/// Which side makes progress.
pub(crate) const PROGRESS_UNSPEC: u32 = 0;
pub(crate) const PROGRESS_AUTO: u32 = 1;

pub(crate) const RM_UNSPEC: u32 = 0;
pub(crate) const RM_ENABLED: u32 = 2;

pub(crate) const AV_UNSPEC: u32 = 0;
pub(crate) const AV_TABLE: u32 = 2;

/// An address whose format is the provider's own (the highest bit says so): "qn".
pub(crate) const ADDR_QNIC: u32 = 1 << 31 | 0x716e;
pub(crate) const FORMAT_UNSPEC: u32 = 0;
/// No address: a receive of any source, an unknown sender.
pub(crate) const ADDR_UNSPEC: u64 = u64::MAX;

/// A protocol that is the provider's own.
pub(crate) const PROTO_QNIC: u32 = 1 << 31 | 0x716e;
pub(crate) const PROTO_UNSPEC: u32 = 0;

pub(crate) const TC_UNSPEC: u32 = 0;

/// Classes of objects.
pub(crate) const CLASS_FABRIC: usize = 1;
pub(crate) const CLASS_DOMAIN: usize = 2;
pub(crate) const CLASS_EP: usize = 3;
pub(crate) const CLASS_AV: usize = 11;
pub(crate) const CLASS_MR: usize = 12;
pub(crate) const CLASS_EQ: usize = 13;
pub(crate) const CLASS_CQ: usize = 14;
pub(crate) const CLASS_CNTR: usize = 15;
pub(crate) const CLASS_MC: usize = 19;
pub(crate) const CLASS_AV_SET: usize = 21;

/// An event: a group has formed.
pub(crate) const JOIN_COMPLETE: u32 = 6;

/// Commands of `fi_control`.
pub(crate) const CONTROL_GETWAIT: i32 = 5;
pub(crate) const CONTROL_ENABLE: i32 = 6;
pub(crate) const CONTROL_REFRESH: i32 = 14;
pub(crate) const CONTROL_GETWAITOBJ: i32 = 16;

/// Options of endpoints: their level, and their names.
pub(crate) const OPT_ENDPOINT: i32 = 0;
pub(crate) const OPT_MIN_MULTI_RECV: i32 = 0;

/// Objects to wait with.
pub(crate) const WAIT_NONE: u32 = 0;
pub(crate) const WAIT_UNSPEC: u32 = 1;
pub(crate) const WAIT_FD: u32 = 3;

/// Formats of completions.
pub(crate) const CQ_FORMAT_UNSPEC: u32 = 0;
pub(crate) const CQ_FORMAT_CONTEXT: u32 = 1;
pub(crate) const CQ_FORMAT_MSG: u32 = 2;
pub(crate) const CQ_FORMAT_DATA: u32 = 3;
pub(crate) const CQ_FORMAT_TAGGED: u32 = 4;

/// Errors, beside those of the C library.
pub(crate) const FI_ETOOSMALL: i32 = 257;
pub(crate) const FI_EOPBADSTATE: i32 = 258;
pub(crate) const FI_EAVAIL: i32 = 259;
pub(crate) const FI_EBADFLAGS: i32 = 260;
pub(crate) const FI_ENOEQ: i32 = 261;
pub(crate) const FI_ENOCQ: i32 = 263;
pub(crate) const FI_ETRUNC: i32 = 265;
pub(crate) const FI_ENOKEY: i32 = 266;
pub(crate) const FI_ENOAV: i32 = 267;

/// Levels and parts of the log.
pub(crate) const LOG_WARN: i32 = 0;
pub(crate) const LOG_INFO: i32 = 2;
pub(crate) const LOG_CORE: i32 = 0;

/// Atomic operations.
pub(crate) const MIN: u32 = 0;
pub(crate) const MAX: u32 = 1;
pub(crate) const SUM: u32 = 2;
pub(crate) const PROD: u32 = 3;
pub(crate) const LOR: u32 = 4;
pub(crate) const LAND: u32 = 5;
pub(crate) const BOR: u32 = 6;
pub(crate) const BAND: u32 = 7;
pub(crate) const LXOR: u32 = 8;
pub(crate) const BXOR: u32 = 9;
pub(crate) const ATOMIC_READ: u32 = 10;
pub(crate) const ATOMIC_WRITE: u32 = 11;
pub(crate) const CSWAP: u32 = 12;
pub(crate) const CSWAP_NE: u32 = 13;
pub(crate) const CSWAP_LE: u32 = 14;
pub(crate) const CSWAP_LT: u32 = 15;
pub(crate) const CSWAP_GE: u32 = 16;
pub(crate) const CSWAP_GT: u32 = 17;
pub(crate) const MSWAP: u32 = 18;
/// No operation, and no type: of collectives.
pub(crate) const NOOP: u32 = 256;
