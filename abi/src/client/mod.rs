//! The process's side of the ABI, for tests of the NIC, the device process and the
//! driver: it writes commands into a window, also wrong ones, and reads the host area.
//! Beside it stands what a driver does for a process. It has no policy and checks nothing. Applications use the library `qnic`.
//!
//! ```text
//!   Command ─► Descriptor ─► CommandQueue::post ─► window in SRAM ─► NIC
//!                            HostArea ◄─────────── host area ◄───────┘
//! ```

mod command;
mod datagram;
mod driver;
mod host_area;
mod queue;

pub use command::{Command, Entry, Memory, Remote};
pub use datagram::{withdraw, withdraw_all, Buffer, Packet, Record};
pub use driver::{enter_page, export, registration};
pub use host_area::HostArea;
pub use queue::CommandQueue;
