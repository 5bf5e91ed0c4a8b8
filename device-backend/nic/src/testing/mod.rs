//! Simulated nodes, for tests of this crate and of others: memory, SRAM, a
//! driver that maps pages, processes that issue commands, and a cluster of NICs
//! under virtual time. One thread; nothing here depends on a clock or on chance.
//!
//! ```text
//!   Net ── Cluster ── nodes: SimNode ── nic: Nic
//!             │                   ├──── host: SimHost (Sram, Memory)
//!             │                   └──── driver: SimDriver (pages, faults, replies)
//!             └── now: virtual time
//!   Party: the library's side of one process: issues commands, looks at its host
//!          area, reads and writes its virtual memory
//!
//!   let Pair { net, a, b } = Pair::lossless();
//!   let bytes = a.fill(0, 4096, 1);                 memory of a
//!   a.write(&b).to(17).bytes(4096).notify(5).run(); what is issued; until all is idle
//!   assert_eq!(a.done(), (1, 0));                   what must hold
//!   assert!(b.holds(17, &bytes));
//! ```
//!
//! # Why these fakes are no crate of their own
//! Unit tests of this crate use them, and a fake of [`Host`](crate::Host) in a crate that depends on
//! this one would implement the trait of another instance of it there. And a package that is
//! published may name only published ones, also for a feature. So a fake stands in the crate that
//! owns its trait, behind the feature `testing`.

mod cluster;
mod contexts;
mod datagrams;
mod driver;
mod groups;
mod kept_wire;
mod lossy_wire;
mod memory;
mod messages;
mod names;
mod net;
mod party;
mod posting;
mod rings;
mod stories;
mod transfer;
mod verbs;
mod work;

pub use cluster::{request_bytes, status_of, Cluster, SimNode};
pub use contexts::Describing;
pub use datagrams::{DatagramEnd, Datagrams, Got};
pub use driver::{SimDriver, Writable};
pub use kept_wire::KeptPayload;
pub use lossy_wire::LossyWire;
pub use memory::{Memory, SimHost, Sram};
pub use names::NameEnd;
pub use net::{page, pattern, Net, Pair, ALL, PAGE, SEGMENT};
pub use party::{Party, SimSegment};
pub use posting::Posting;
pub use rings::ProgramRing;
pub use stories::{nets, scarce, scarce_nets, status};
pub use transfer::Transfer;
pub use verbs::{
    psn, receive_entry, token, ProgramQueuePair, VerbsPair, VerbsParty, CQ, DOMAIN, QP_A, QP_B,
    SGES, SRQ,
};
pub use work::WorkPosting;

/// The matching of the message protocol, for its bench.
pub use crate::protocols::message::matching;
