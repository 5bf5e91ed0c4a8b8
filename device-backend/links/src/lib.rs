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
//! A frame takes the first of these that applies:
//!
//! 1. a function call, if its destination is a NIC of this engine and no link of its route is
//!    impaired. The payload is copied once, from node memory to node memory;
//! 2. the emulated links of its route, as bytes with a checksum;
//! 3. a ring to another engine of the process, if its destination is there; also after step 2. The
//!    payload is copied once, unless the frame comes from step 2;
//! 4. a carrier, if its destination is in another process; also after step 2.
//!
//! Only [`codec`] knows the layout of a frame. A NIC receives a frame intact or not at
//! all: a frame that a link damages does not match its checksum, and is dropped and
//! counted.
#![forbid(unsafe_code)]

pub mod carrier;
pub mod codec;
pub mod emulator;
pub mod ethernet;
pub mod fabric;
mod line;
mod link_set;
pub mod memfd;
pub mod network;
pub mod notifier;
pub mod shm;
pub mod siblings;
pub mod tap;
#[cfg(test)]
mod testing;
mod turns;
pub mod udp;

pub use carrier::{Carrier, CarrierReport, ProcessReport};
pub use fabric::{DuplicateNode, Fabric, LocalWire};
pub use link_set::LinkSet;
pub use network::{LinkChange, LinkError, LinkReport, Network};
pub use qnic_config::plan::{
    impairment, topology, units, ImpairmentChange, Impairments, KeyError, NetworkPlan, NotAKey,
    PrivateKey, PublicKey, Shape, Topology, MAX_NAME,
};
pub use shm::{ShmCarrier, ShmPeer};
pub use siblings::Siblings;
pub use tap::{Outcome, Tap, TapFlags, TapId, TapRecord};
pub use udp::{UdpCarrier, UdpIdentity, UdpPeer};
