//! The one definition of everything that the two sides of the qnic device share.
//!
//! The rustdoc of this crate is the device's reference manual: what a driver, a
//! guest library, the NIC and its peers may rely on, byte by byte. It holds
//! layouts, numbers and names, and no behaviour.
//!
//! ```text
//!  guest                                             device process
//!  ┌────────────┐  window: commands, wake words      ┌──────────────┐   frames
//!  │ process    ├───────────────[window, command]───►│              ├──[wire]──► peer NIC
//!  │            │◄──────────────[host_area]──────────┤              │
//!  ├────────────┤  shadow page table: plain stores   │     NIC      │
//!  │ driver     ├───────────────[page_table]────────►│              │
//!  │            ├───────────────[control]───────────►│              │
//!  │            │◄──────────────[event]──────────────┤              │
//!  └────────────┘  identity, geometry: [attach],     └──────────────┘
//!                  [header]
//! ```
//!
//! | module | memory it describes | written by | read by |
//! |---|---|---|---|
//! | [`attach`] | virtio identity, queues, configuration space | device | driver |
//! | [`header`] | first page of SRAM: magic, version, geometry | NIC | driver |
//! | [`window`] | a process's window in SRAM (Q1, N12) | process, NIC (one word) | NIC, process |
//! | [`command`] | one slot of the command queue in the window: what all commands have | process; NIC zeroes | NIC |
//! | [`rdma`] | commands and frames of writes and reads (N9) | process; NIC | NIC; peer NIC |
//! | [`atomic`] | the same of atomic operations, and the structures that they work on (N20) | process; NIC | NIC; peer NIC |
//! | [`collective`] | commands and frames of groups and collectives (Q14, Q15) | process; NIC | NIC; peer NIC |
//! | [`message`] | commands and frames of messages (Q4) | process; NIC | NIC; peer NIC |
//! | [`context`] | contexts of messages in the window, and their doorbells (Q4, Q5, Q7, Q8) | process; NIC | NIC; process |
//! | [`datagram`] | commands and the frame of unreliable datagrams (H1) | driver; NIC | NIC; peer NIC |
//! | [`mod@ethernet`] | the frame that carries Ethernet (X17) | device process | device process |
//! | [`remote_memory`] | header of remote memory, in datagrams (H9) | driver | driver of another node |
//! | [`directory`] | frames that ask for exported names (N3) | NIC | peer NIC |
//! | [`export`] | importers of a segment, and what its writers may signal (N2) | process | NIC |
//! | [`host_area`] | counters and queues in guest memory, one area for each process | NIC; driver (one word) | process |
//! | [`page_table`] | shadow page table and physical map in SRAM (N4) | driver; NIC (lock, dirty) | both |
//! | [`control`] | commands of the driver, on the control virtqueue (Q9) | driver | NIC |
//! | [`mod@counters`] | pages of counters; how a table of them is declared | NIC, driver | driver, library |
//! | [`event`] | events for the driver, on the event virtqueue | NIC | driver |
//! | [`wire`] | frames between NICs: envelope, sessions, acknowledgements | NIC | peer NIC |
//! | [`names`] | names of the kinds of frames | | people |
//! | [`layout`] | sizes, fields and numbers of all of them | | tests, people |
//! | [`uapi`] | ioctl and mmap of the character device | library, driver | driver, library |
//! | [`stream`] | frames of reliable streams (S6) | process | process |
//! | [`pool`] | shared pools of frames, and their calls (S1) | process; driver | both |
//! | [`verbs`] | rings of librxe, and what driver and NICs say of them (X18) | program, driver; NIC | NIC; program, peer NIC |
//! | [`volume`] | calls of remote memory (H9) | process, driver | driver, process |
//!
//! What a configuration names and bounds is defined in `qnic-limits`, for tools that need no layouts,
//! and stands here in the modules that it belongs to.
//!
//! # Conventions
//! Every integer is little-endian. Every struct has a fixed size and no implicit
//! padding; reserved fields are zero, and a receiver refuses other values.
//! Offsets and sizes are in bytes unless the name says otherwise. A virtual or
//! physical page is [`PAGE_SIZE`] bytes.
//!
//! # Versions
//! [`ABI_VERSION`] changes with every change of a layout; both sides refuse a
//! partner with another one. The test `layout_digest` fails when a layout
//! changes and the version does not.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[macro_use]
pub mod layout;

pub mod atomic;
pub mod attach;
#[cfg(feature = "client")]
pub mod client;
pub mod collective;
pub mod command;
pub mod context;
pub mod control;
pub mod counters;
pub mod datagram;
pub mod directory;
pub mod ethernet;
pub mod event;
pub mod export;
pub mod header;
pub mod host_area;
pub mod ids;
pub mod message;
pub mod multicast;
pub mod names;
pub mod page_table;
pub mod pool;
pub mod process_names;
pub mod rdma;
pub mod remote_memory;
pub mod shared;
pub mod status;
pub mod stream;
pub mod uapi;
pub mod verbs;
pub mod volume;
pub mod window;
pub mod wire;

pub use ids::{Access, Key, NodeId, Port, Secret, SegmentId, SegmentName, VniId};
pub use shared::SharedMemory;
pub use status::Status;

/// Version of all layouts and numbers in this crate.
pub const ABI_VERSION: u32 = 33;

pub use qnic_limits::PAGE_SIZE;

/// Binary logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

const _: () = assert!(PAGE_SIZE == 1 << PAGE_SHIFT);
