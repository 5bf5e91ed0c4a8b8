//! What needs virtual machines.

mod cases;
mod memory;
mod nodes;
mod shell;
mod wire;

pub use nodes::VmNodes;

pub(crate) use cases::CASES;
pub(crate) use memory::CASES as MEMORY;
pub(crate) use wire::CASES as WIRE;
