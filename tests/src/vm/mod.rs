//! What needs virtual machines.

mod cases;
mod ci;
mod clock;
mod datagrams;
mod ethernet;
mod events;
mod hostile;
mod machine;
mod memory;
mod nodes;
mod ordering;
mod packages;
mod pools;
mod remote_memory;
mod shell;
mod silent;
mod sync;
mod trials;
mod volumes;
mod wire;

pub(crate) use cases::CASES;
pub(crate) use datagrams::CASES as DATAGRAMS;
pub(crate) use ethernet::CASES as ETHERNET;
pub(crate) use events::CASES as EVENTS;
pub(crate) use hostile::CASES as HOSTILE;
pub(crate) use machine::CASES as MACHINE;
pub(crate) use memory::CASES as MEMORY;
pub(crate) use ordering::CASES as ORDERING;
pub(crate) use packages::CASES as PACKAGES;
pub(crate) use pools::CASES as POOLS;
pub(crate) use remote_memory::CASES as REMOTE_MEMORY;
pub(crate) use sync::CASES as SYNC;
pub(crate) use trials::CASES as TRIALS;
pub(crate) use volumes::CASES as VOLUMES;
pub(crate) use wire::CASES as WIRE;
