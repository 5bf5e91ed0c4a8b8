//! Wires between NICs.
//!
//! | module | what |
//! |---|---|
//! | [`fabric`] | the NICs of one process and the router between them: a function call, perfect and in order, unless a link on the way is impaired |
//! | [`network`] | the links between nodes, as this process realises them |
//! | [`carrier`] | the way to other processes |
//! | [`udp`] | such a way: UDP, each datagram authenticated |
//! | [`shm`] | such a way on one host: rings in shared memory |
//! | [`notifier`] | eventfds, also of other processes |
//! | [`topology`] | which nodes are joined, and the way between those that are not |
//! | [`impairment`], [`stage`] | what a link does to frames; the stage that does it |
//! | [`codec`] | a frame as bytes, with a checksum |
//! | [`tap`] | who looks at frames on links |
//! | [`units`] | quantities as people write them |
//!
//! A wire knows no more of the protocol than the frame header. A frame reaches a NIC
//! only intact: what a link damaged is caught by the checksum and counted.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod codec;
pub mod fabric;
pub mod impairment;
pub mod network;
pub mod notifier;
pub mod shm;
pub mod stage;
pub mod tap;
#[cfg(test)]
mod testing;
pub mod topology;
pub mod udp;
pub mod units;

pub use carrier::{Carrier, CarrierReport, ProcessReport};
pub use fabric::{DuplicateNode, Fabric, LocalWire};
pub use impairment::{ImpairmentChange, Impairments};
pub use network::{LinkReport, LinkSet, Network, NetworkPlan, NotSet};
pub use shm::{ShmCarrier, ShmPeer, MAX_NAME};
pub use tap::{Marks, Outcome, Sighting, Tap, TapId};
pub use topology::{Shape, Topology};
pub use udp::{ClusterKey, ShortKey, UdpCarrier, UdpPeer};
