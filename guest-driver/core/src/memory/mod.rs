//! Memory that the NIC may access: the driver's side of the shadow page table, the
//! regions whose pages are in it, and the faults by which the NIC asks for more.
//!
//! ```text
//!   manager ──► region ──► page_table ──► shadow        fault
//! ```

pub(crate) mod fault;
mod manager;
pub(crate) mod page_table;
mod region;
pub mod shadow;

pub use manager::MemoryManager;
pub use region::Region;
