//! What needs virtual machines.

mod cases;
mod evidence;
mod hostile;
mod memory;
mod nodes;
mod ordering;
mod shell;
mod silent;
mod sync;
mod wire;

pub use nodes::VmNodes;

pub(crate) use cases::CASES;
pub(crate) use hostile::CASES as HOSTILE;
pub(crate) use memory::CASES as MEMORY;
pub(crate) use ordering::CASES as ORDERING;
pub(crate) use sync::CASES as SYNC;
pub(crate) use wire::CASES as WIRE;
