//! What needs virtual machines.

mod cases;
mod memory;
mod nodes;
mod shell;

pub use nodes::VmNodes;

pub(crate) use cases::CASES;
pub(crate) use memory::CASES as MEMORY;
