//! Memory that the NIC may access: the driver's side of the shadow page table,
//! and the regions whose pages are in it.
//!
//! ```text
//!   manager ──► region ──► page_table ──► shadow
//! ```

mod manager;
pub(crate) mod page_table;
mod region;
pub mod shadow;

pub use manager::MemoryManager;
pub use page_table::Resident;
pub use region::Region;
