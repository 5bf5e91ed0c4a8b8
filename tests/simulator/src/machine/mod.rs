//! The hardware and the kernel of a node.

pub(crate) mod device_memory;
pub(crate) mod kernel;
pub(crate) mod mapping;
pub(crate) mod memory;
pub(crate) mod platform;
pub(crate) mod verbs_events;
