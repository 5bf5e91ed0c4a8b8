//! The commands `forward`, `ssh` and `tap` of `cargo qnic`, which builds and starts this program for them (X17).
//!
//! ```text
//!   client ─ TCP ─► [relay] ─ [stack]: TCP/IP of smoltcp ─ frames ─► device process ─► guest
//!   programs ─ TCP/IP of the kernel ─ interface ─ [tap] ─── frames ─► device process ─► guests
//! ```
//!
//! # Invariants
//! - A connection to the guest lasts as long as that of the client, and ends as it does: each direction by
//!   itself, and both when one is reset.
//! - Nothing is read from one side that the other has no room for.
//! - The guest can open no connection: the stack listens on nothing. An interface is one of this machine, at
//!   which guests reach what listens there.
#![forbid(unsafe_code)]

mod forward;
mod relay;
mod ssh;
mod stack;
mod tap;

use std::process::ExitCode;

use anyhow::Result;
use qnic_cli::join;

struct Commands;

impl join::Join for Commands {
    fn forward(options: &join::forward::Options) -> Result<ExitCode> {
        forward::run(options)
    }

    fn ssh(options: &join::ssh::Options) -> Result<ExitCode> {
        ssh::run(options)
    }

    fn tap(options: &join::tap::Options) -> Result<ExitCode> {
        tap::run(options)
    }
}

fn main() -> ExitCode {
    join::main::<Commands>()
}
