//! The demo: an application that exports, and one that writes to it, reads from
//! it and notifies it, with every byte verified.
//!
//! ```text
//!  initiator                                   target
//!    data, any size and alignment  ──write──►  DATA
//!    request {verify offset length}──writeN─►  REQUESTS        notification REQUEST
//!                                              checksum of what arrived, guards
//!    RESULTS                      ◄──writeN──  result          notification RESULT
//!    BACK                         ◄──read────  DATA
//! ```
//! The request overtakes no data: a notification arrives after everything that
//! its sender wrote before (N18). So a verified checksum verifies the order too.
//!
//! The binary `qnic-demo` of this package, and the helper that runs commands in guests, are all that
//! a first run has to build of the programs on the nodes. `qnic-app`, the one of tests and benchmarks, has the same roles, and shares with it
//! how a process registers ([`node`]), what both ends agree on ([`options`]), and the data that is
//! sent ([`pattern`]).

mod info;
mod initiator;
pub mod node;
pub mod options;
pub mod pattern;
mod ping;
mod protocol;
mod target;

use anyhow::Result;
use clap::Subcommand;

pub use initiator::{Initiator, InitiatorOptions, Operation};

/// What a program does on its node.
#[derive(Subcommand)]
pub enum Role {
    /// Is written to, read from and notified, and says what arrived
    DemoTarget,
    /// Writes, reads, notifies, and compares with what the target says
    DemoInitiator(InitiatorOptions),
    /// Prints what driver and NIC hold and have counted
    Info,
    /// Checks that this node and another one can talk, and what their route is like
    Ping(ping::Options),
}

impl Role {
    /// Does it.
    ///
    /// # Errors
    /// Says what went wrong, or how much arrived wrong.
    pub fn run(&self) -> Result<()> {
        match self {
            Role::DemoTarget => target::run(),
            Role::DemoInitiator(options) => initiator::run(options),
            Role::Info => info::run(),
            Role::Ping(options) => ping::run(options),
        }
    }
}
