//! Links: they take frames from one NIC to another.
//!
//! ```text
//!            ┌──────────── device process ────────────┐      ┌─ other process ─┐
//!   NIC ─────┤ fabric ─► network (emulated links) ────┼─►    │                 │
//!            │    │                                   │      │                 │
//!   NIC ◄────┤    └────► carrier: udp or shm ─────────┼─────►│ carrier ─► NIC  │
//!            └────────────────────────────────────────┘      └─────────────────┘
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`fabric`] | holds the NICs of one process and routes their frames |
//! | [`network`] | emulates the links between nodes that have impairments |
//! | [`topology`] | says which nodes are joined by a link, and the route between other nodes |
//! | [`impairment`], [`emulator`] | the settings of a link; one direction of a link |
//! | [`carrier`] | the interface to other processes |
//! | [`udp`] | a carrier in UDP datagrams, each of them authenticated |
//! | [`shm`] | a carrier in shared memory, between processes of one host |
//! | [`codec`] | a frame as bytes, with a checksum |
//! | [`tap`] | records the frames on links, for captures |
//! | [`notifier`] | eventfds, also those of other processes |
//! | [`units`] | probabilities, times and rates as text |
//!
//! A frame takes the first of these that applies:
//!
//! 1. a function call, if its destination is in this process and no link of its route is
//!    impaired. The payload is copied once, from node memory to node memory;
//! 2. the emulated links of its route, as bytes with a checksum;
//! 3. a carrier, if its destination is in another process; also after 2.
//!
//! Only [`codec`] knows the layout of a frame. A NIC receives a frame intact or not at
//! all: a frame that a link damages does not match its checksum, and is dropped and
//! counted.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod codec;
pub mod emulator;
pub mod fabric;
pub mod impairment;
pub mod memfd;
pub mod network;
pub mod notifier;
pub mod shm;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod topology;
pub mod udp;
pub mod units;

pub use carrier::{Carrier, CarrierReport, ProcessReport};
pub use fabric::{DuplicateNode, Fabric, LocalWire};
pub use impairment::{ImpairmentChange, Impairments};
pub use network::{LinkError, LinkReport, LinkSet, Network, NetworkPlan};
pub use shm::{ShmCarrier, ShmPeer, MAX_NAME};
pub use tap::{Outcome, Tap, TapFlags, TapId, TapRecord};
pub use topology::{Shape, Topology};
pub use udp::{ClusterKey, ShortKey, UdpCarrier, UdpPeer};
