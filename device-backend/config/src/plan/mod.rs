//! What a network of NICs is planned to be, before anything of it runs.
//!
//! ```text
//!   cluster file ─► qnic-cluster ─► qnic-config ─► device process ─► qnic-links
//!        │               │               │                │              │
//!        └───────────────┴──── words of this crate ───────┴──────────────┘
//! ```
//!
//! The cluster tool only describes networks. It shares these words with `qnic-links`, which runs
//! them, and needs neither NICs nor the ciphers of links: it is built before anything else begins.

pub mod impairment;
mod keys;
mod network;
#[cfg(test)]
mod testing;
pub mod topology;
pub mod units;

pub use impairment::{ImpairmentChange, Impairments};
pub use keys::{KeyError, NotAKey, PrivateKey, PublicKey};
pub use network::{NetworkPlan, MAX_NAME, MAX_NODES};
pub use topology::{Shape, Topology};
