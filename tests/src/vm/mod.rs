//! What needs virtual machines.

mod cases;
mod nodes;
mod shell;

pub use nodes::VmNodes;

pub(crate) use cases::CASES;
