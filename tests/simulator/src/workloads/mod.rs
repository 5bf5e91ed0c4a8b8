//! What processes do, and what must hold of it.

pub(crate) mod datagrams;
pub(crate) mod groups;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod rdma;
pub(crate) mod streams;
pub(crate) mod sync;
